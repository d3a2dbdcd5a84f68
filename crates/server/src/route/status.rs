//! `kennel fleet status`: what routers and workers say about a fleet, as a table or as JSON.

use std::io::{self, Write};
use std::process::ExitCode;

use futures_util::future::join_all;
use kennel::internal::escape::harmless;
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;

use crate::Problem;
use crate::arguments::FleetStatus;
use crate::route::address::{Address, Source};
use crate::route::sources;
use crate::route::worker::{client, get_room, read_room};
use crate::route::workers::{Seen, State};

/// How long a router or a worker may take to answer.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// What a router answers.
#[derive(Deserialize)]
struct OfRouter {
    workers: Vec<Seen>,
}

/// Prints what they say. Fails where a worker is not alive.
pub(crate) fn status(arguments: &FleetStatus) -> Result<ExitCode, Problem> {
    let sources = sources("URL", &arguments.urls)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Problem::about("start threads"))?;
    let seen = runtime.block_on(async { join_all(sources.iter().map(ask)).await });
    let seen: Vec<Seen> = seen.into_iter().flatten().collect();
    let text = if arguments.json { format!("{}\n", json!({ "workers": seen })) } else { table(&seen) };
    io::stdout().write_all(text.as_bytes()).map_err(Problem::about("stdout"))?;
    let is_alive = |seen: &Seen| seen.state == State::Alive;
    Ok(if seen.iter().all(is_alive) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The workers behind an address.
async fn ask(source: &Source) -> Vec<Seen> {
    match source.addresses().await {
        Ok(addresses) => join_all(addresses.into_iter().map(ask_one)).await.into_iter().flatten().collect(),
        Err(error) => vec![Seen::silent(source.to_string(), format!("its addresses: {error}"))],
    }
}

async fn ask_one(address: Address) -> Vec<Seen> {
    let url = address.to_string();
    let answer = timeout(PATIENCE, get_room(&client(address))).await;
    let answer = answer.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}")));
    let body = match answer {
        Ok(body) => body,
        Err(reason) => return vec![Seen::silent(url, reason)],
    };
    if let Ok(OfRouter { workers }) = serde_json::from_slice(&body) {
        if workers.is_empty() {
            return vec![Seen::silent(url, "this router knows no worker".to_owned())];
        }
        return workers;
    }
    match read_room(&body) {
        Ok(room) => vec![Seen { url, state: State::Alive, reason: None, room: Some(room) }],
        Err(reason) => vec![Seen::silent(url, reason)],
    }
}

/// Columns with a head, and a line below for each worker that is not used.
fn table(seen: &[Seen]) -> String {
    let head = ["WORKER", "URL", "STATE", "VERSION", "ROOM", "RUNNING", "WAITING", "DRAINING", "TEMPLATES"];
    let rows: Vec<_> = std::iter::once(head.map(ToOwned::to_owned)).chain(seen.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    for seen in seen {
        if let Some(reason) = &seen.reason {
            text.push_str(&format!("{}: {}\n", harmless(&seen.url), harmless(reason)));
        }
    }
    text
}

fn row(seen: &Seen) -> [String; 9] {
    let state = seen.state.as_str();
    let safe = |text: &str| harmless(text).to_string();
    let url = safe(&seen.url);
    let Some(room) = &seen.room else {
        let none = || "-".to_owned();
        return [none(), url, state.to_owned(), none(), none(), none(), none(), none(), none()];
    };
    [
        safe(&room.name),
        url,
        state.to_owned(),
        safe(&room.version),
        room.room.to_string(),
        room.running.to_string(),
        room.waiting.to_string(),
        if room.draining { "yes" } else { "no" }.to_owned(),
        safe(&room.templates.join(",")),
    ]
}
