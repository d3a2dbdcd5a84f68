//! `filesystem.Filesystem`: what there is, and changes to names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::post;
use kennel::Session;
use kennel::files::{FileDetails, FileKind};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::e2b::call::{Addressed, answer, check_user, is_json, read};
use crate::sandboxes::Sandboxes;
use crate::sandboxes::paths;
use crate::sandboxes::sandbox::Sandbox;
use crate::wire::failure::Failure;

/// The most entries of a listing with its subdirectories.
const MOST_ENTRIES: usize = 100_000;

pub(crate) fn routes() -> Router<Arc<Sandboxes>> {
    Router::new()
        .route("/filesystem.Filesystem/Stat", post(stat))
        .route("/filesystem.Filesystem/ListDir", post(list))
        .route("/filesystem.Filesystem/MakeDir", post(make))
        .route("/filesystem.Filesystem/Move", post(rename))
        .route("/filesystem.Filesystem/Remove", post(remove))
        .route("/filesystem.Filesystem/{watcher}", post(no_watchers))
}

async fn no_watchers() -> Response {
    Failure::not_done("directories are not watched: list them again").connect()
}

#[derive(Debug, Deserialize)]
struct PathRequest {
    #[serde(default)]
    path: String,
    #[serde(default)]
    depth: u32,
}

/// What every call here begins with.
fn request<T: serde::de::DeserializeOwned>(
    sandbox: &Sandbox,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<(T, Session), Failure> {
    is_json(headers, "application/json")?;
    check_user(sandbox, headers)?;
    Ok((read(body)?, sandbox.session()?))
}

async fn stat(Addressed(sandbox): Addressed, headers: HeaderMap, body: Bytes) -> Response {
    let done = async {
        let (request, session): (PathRequest, _) = request(&sandbox, &headers, &body)?;
        let path = paths::absolute(&request.path)?;
        Ok(json!({ "entry": entry(&sandbox, &session, &path).await? }))
    };
    answer(done.await)
}

async fn list(Addressed(sandbox): Addressed, headers: HeaderMap, body: Bytes) -> Response {
    let done = async {
        let (request, session): (PathRequest, _) = request(&sandbox, &headers, &body)?;
        let mut left = vec![(paths::absolute(&request.path)?, request.depth.max(1))];
        let mut entries = Vec::new();
        while let Some((directory, depth)) = left.pop() {
            for found in session.list_details(&directory).await? {
                if entries.len() == MOST_ENTRIES {
                    return Err(Failure::bad(format!("depth: more than {MOST_ENTRIES} entries")));
                }
                let path = directory.join(&found.name);
                if found.info.kind == FileKind::Directory && depth > 1 {
                    left.push((path.clone(), depth - 1));
                }
                entries.push(described(&sandbox, &session, &path, &found).await);
            }
        }
        Ok(json!({ "entries": entries }))
    };
    answer(done.await)
}

async fn make(Addressed(sandbox): Addressed, headers: HeaderMap, body: Bytes) -> Response {
    let done = async {
        let (request, session): (PathRequest, _) = request(&sandbox, &headers, &body)?;
        let path = paths::absolute(&request.path)?;
        if !paths::make_directory(&session, &path).await? {
            let message = format!("{}: the directory is there already", path.display());
            return Err(Failure::new(StatusCode::CONFLICT, message));
        }
        Ok(json!({ "entry": entry(&sandbox, &session, &path).await? }))
    };
    answer(done.await)
}

#[derive(Debug, Deserialize)]
struct MoveRequest {
    #[serde(default)]
    source: String,
    #[serde(default)]
    destination: String,
}

async fn rename(Addressed(sandbox): Addressed, headers: HeaderMap, body: Bytes) -> Response {
    let done = async {
        let (request, session): (MoveRequest, _) = request(&sandbox, &headers, &body)?;
        let (from, to) = (paths::absolute(&request.source)?, paths::absolute(&request.destination)?);
        session.details(&from).await?;
        paths::rename(&session, &from, &to).await?;
        Ok(json!({ "entry": entry(&sandbox, &session, &to).await? }))
    };
    answer(done.await)
}

async fn remove(Addressed(sandbox): Addressed, headers: HeaderMap, body: Bytes) -> Response {
    let done = async {
        let (request, session): (PathRequest, _) = request(&sandbox, &headers, &body)?;
        paths::remove(&session, &paths::absolute(&request.path)?).await?;
        Ok(json!({}))
    };
    answer(done.await)
}

async fn entry(sandbox: &Sandbox, session: &Session, path: &Path) -> Result<Value, Failure> {
    let found = session.details(path).await?;
    Ok(described(sandbox, session, path, &found).await)
}

/// `EntryInfo`. The kind of a link is that of its target, as with E2B.
async fn described(sandbox: &Sandbox, session: &Session, path: &Path, found: &FileDetails) -> Value {
    let mut kind = found.info.kind;
    if kind == FileKind::Link {
        kind = session.stat(path).await.map_or(kind, |target| target.kind);
    }
    let kind = match kind {
        FileKind::File => "FILE_TYPE_FILE",
        FileKind::Directory => "FILE_TYPE_DIRECTORY",
        FileKind::Link => "FILE_TYPE_SYMLINK",
        _ => "FILE_TYPE_UNSPECIFIED",
    };
    let modified = humantime::format_rfc3339_nanos(found.info.modified).to_string();
    let mut entry = json!({
        "name": found.name.to_string_lossy(),
        "type": kind,
        "path": path.to_string_lossy(),
        // 64-bit numbers are texts in this JSON.
        "size": found.info.size.to_string(),
        "mode": found.info.mode.bits(),
        "permissions": permissions(found),
        "owner": sandbox.name_of_user(found.uid),
        "group": sandbox.name_of_group(found.gid),
        "modifiedTime": modified,
    });
    if let (Some(target), Some(entry)) = (&found.points_to, entry.as_object_mut()) {
        let above = path.parent().map_or_else(PathBuf::new, Path::to_owned);
        entry.insert("symlinkTarget".into(), above.join(target).to_string_lossy().into());
    }
    entry
}

/// As ls(1) shows them, with Go's letter for a link.
fn permissions(found: &FileDetails) -> String {
    let first = match found.info.kind {
        FileKind::Directory => 'd',
        FileKind::Link => 'L',
        _ => '-',
    };
    let bits = found.info.mode.bits();
    let letter = |(place, letter): (u32, char)| if bits >> (8 - place) & 1 == 1 { letter } else { '-' };
    std::iter::once(first).chain((0..).zip("rwxrwxrwx".chars()).map(letter)).collect()
}
