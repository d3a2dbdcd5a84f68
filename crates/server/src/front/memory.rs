//! The memory of the worker. Where a container has a limit, the engine may kill the whole worker at it with
//! all sandboxes; so the largest sandbox is ended before.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use serde::Deserialize;
use tokio::time::sleep;

use crate::front::Front;
use crate::wire::id::SandboxId;
use crate::wire::memory::{is_limited, total, used};

/// Memory in use from which a sandbox is ended, in percent.
const OVER: u64 = 95;

/// The pause between two looks.
const LOOK: Duration = Duration::from_millis(250);

/// The pause after an end, in which its memory comes back.
const AFTER: Duration = Duration::from_secs(1);

/// The sandbox of a host that uses the most memory.
#[derive(Debug, Deserialize)]
struct Largest {
    id: SandboxId,
    bytes: u64,
}

/// Looks at the memory for ever.
pub(crate) async fn watch(front: Arc<Front>) {
    loop {
        let percent = used().saturating_mul(100) / total().max(1);
        front.admission.note_memory(percent);
        let pause = if percent >= OVER && is_limited() && end_largest(&front).await { AFTER } else { LOOK };
        sleep(pause).await;
    }
}

/// Ends the sandbox that uses the most. Returns whether there was one.
async fn end_largest(front: &Front) -> bool {
    let mut largest: Option<Largest> = None;
    for host in front.hosts.alive() {
        let Some(found) = largest_of(front, host).await else { continue };
        if largest.as_ref().is_none_or(|largest| largest.bytes < found.bytes) {
            largest = Some(found);
        }
    }
    let Some(Largest { id, bytes }) = largest else { return false };
    crate::say(&format!(
        "kennel: memory runs out: sandbox {id} is ended, which uses the most: {} MiB",
        bytes >> 20
    ));
    let request = Request::post(format!("/host/sandboxes/{id}/memory")).body(Body::empty());
    let Ok(request) = request else { return false };
    front.hosts.ask(id.host(), request).await.is_ok()
}

async fn largest_of(front: &Front, host: u8) -> Option<Largest> {
    let request = Request::get("/host/largest").body(Body::empty()).ok()?;
    let response = front.hosts.ask(host, request).await.ok()?;
    let body = to_bytes(Body::new(response.into_body()), 4096).await.ok()?;
    serde_json::from_slice(&body).ok()?
}
