//! Lists of the sandboxes of all workers: asked together, and merged.

use axum::body::{Body, to_bytes};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Request, Response, StatusCode};
use axum::response::IntoResponse;
use futures_util::future::join_all;
use serde_json::Value;
use std::time::{Duration, UNIX_EPOCH};
use tokio::time::timeout;

use crate::http::request::parameters;
use crate::route::Router;
use crate::route::create::no_worker;
use crate::route::worker::Worker;
use crate::wire::failure::Failure;
use crate::wire::headers::{MISSING, NEXT_TOKEN};
use crate::wire::page::{PAGE, Place, order};

/// How long a list waits for its workers.
const PATIENCE: Duration = Duration::from_secs(2);

/// The longest list of one worker, in bytes.
const MOST: usize = 8 << 20;

/// What one worker says.
enum Said {
    Page { listed: Vec<(Place, Value)>, has_more: bool },
    Refusal(Response<Body>),
    Nothing,
}

impl Router {
    /// The sandboxes of all workers, of one page.
    pub(crate) async fn list(&self, request: Request<Body>) -> Result<Response<Body>, Failure> {
        let (parts, _) = request.into_parts();
        let workers = self.workers.alive();
        let said = join_all(workers.iter().map(|worker| async {
            timeout(PATIENCE, page_of(worker, &parts)).await.unwrap_or(Said::Nothing)
        }));
        let (mut listed, mut has_more, mut has_page) = (Vec::new(), false, false);
        let (mut refusal, mut missing) = (None, Vec::new());
        for (worker, said) in workers.iter().zip(said.await) {
            match said {
                Said::Page { listed: of_worker, has_more: more } => {
                    has_page = true;
                    has_more |= more;
                    listed.extend(of_worker);
                    continue;
                }
                Said::Refusal(response) => refusal = refusal.or(Some(response)),
                Said::Nothing => {}
            }
            missing.extend(worker.identity().map(|(name, _)| name));
        }
        if !has_page {
            return refusal.ok_or_else(no_worker);
        }
        let query = parameters(parts.uri.query().unwrap_or_default());
        let (page, next) = merge(listed, has_more, &query);
        let mut response = axum::Json(page).into_response();
        let headers = response.headers_mut();
        let next = next.map(|place| (NEXT_TOKEN, place.to_string()));
        let missing = (!missing.is_empty()).then(|| (MISSING, missing.join(",")));
        for (name, text) in next.into_iter().chain(missing) {
            HeaderValue::from_str(&text).into_iter().for_each(|value| {
                headers.insert(name, value);
            });
        }
        Ok(response)
    }
}

/// The first of all, and where the rest begins.
fn merge(
    mut listed: Vec<(Place, Value)>,
    has_more: bool,
    query: &[(String, String)],
) -> (Vec<Value>, Option<Place>) {
    let one = |name: &str| query.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str());
    let limit = one("limit").and_then(|text| text.parse().ok()).unwrap_or(PAGE).clamp(1, PAGE);
    let is_rising = one("order") == Some("asc");
    listed.sort_by(|(one, _), (other, _)| order(one, other, is_rising));
    let has_more = has_more || listed.len() > limit;
    listed.truncate(limit);
    let next = listed.last().filter(|_| has_more).map(|(place, _)| place.clone());
    (listed.into_iter().map(|(_, sandbox)| sandbox).collect(), next)
}

/// The page of one worker.
async fn page_of(worker: &Worker, parts: &Parts) -> Said {
    let request = Request::from_parts(parts.clone(), Body::empty());
    let Ok(response) = worker.ask_once(request).await else { return Said::Nothing };
    let status = response.status();
    if status.is_client_error() {
        return Said::Refusal(response);
    }
    let has_more = response.headers().contains_key(NEXT_TOKEN);
    let Ok(body) = to_bytes(response.into_body(), MOST).await else { return Said::Nothing };
    let Ok(sandboxes) = serde_json::from_slice::<Vec<Value>>(&body) else { return Said::Nothing };
    if status != StatusCode::OK {
        return Said::Nothing;
    }
    let name = worker.identity().map_or_else(String::new, |(name, _)| name);
    let placed = sandboxes.into_iter().filter_map(|sandbox| Some((place_of(&sandbox)?, sandbox)));
    // A worker speaks of its own sandboxes only.
    let listed = placed.filter(|(place, _)| place.id.worker() == name).collect();
    Said::Page { listed, has_more }
}

fn place_of(sandbox: &Value) -> Option<Place> {
    let id = sandbox["sandboxID"].as_str()?.parse().ok()?;
    let started = humantime::parse_rfc3339(sandbox["startedAt"].as_str()?).ok()?;
    let started = started.duration_since(UNIX_EPOCH).ok()?.as_millis();
    Some(Place { started: u64::try_from(started).ok()?, id })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::wire::sandbox::time;

    fn sandbox(worker: &str, started: u64) -> (Place, Value) {
        let id = format!("{worker}-aaaaaaaaaaaaaaa{}", started % 10);
        let sandbox = json!({ "sandboxID": id, "startedAt": time(started) });
        (place_of(&sandbox).expect("a place"), sandbox)
    }

    #[test]
    fn pages_of_workers_become_one() {
        let all = || vec![sandbox("a", 1005), sandbox("a", 1003), sandbox("b", 1004), sandbox("b", 1001)];
        let starts = |query: &str, has_more| {
            let (page, next) = merge(all(), has_more, &parameters(query));
            let starts: Vec<_> =
                page.iter().map(|sandbox| place_of(sandbox).expect("a place").started).collect();
            (starts, next.map(|place| place.to_string()))
        };
        assert_eq!(starts("", false), (vec![1005, 1004, 1003, 1001], None));
        assert_eq!(starts("limit=2", false), (vec![1005, 1004], Some("1004_b-aaaaaaaaaaaaaaa4".into())));
        assert_eq!(starts("limit=4", true).1.as_deref(), Some("1001_b-aaaaaaaaaaaaaaa1"));
        assert_eq!(starts("order=asc&limit=3", false).0, [1001, 1003, 1004]);
    }

    #[test]
    fn what_is_no_sandbox_has_no_place() {
        for bad in [
            json!(1),
            json!({}),
            json!({ "sandboxID": "x", "startedAt": time(1) }),
            json!({ "sandboxID": "a-aaaaaaaaaaaaaaaa", "startedAt": "then" }),
        ] {
            assert!(place_of(&bad).is_none(), "{bad}");
        }
    }
}
