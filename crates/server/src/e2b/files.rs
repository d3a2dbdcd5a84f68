//! `/files`: contents of files, in and out, of any size. A file appears whole or not at all.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::multipart::Field;
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, Query, Request};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use kennel::Session;
use kennel::files::FileWriter;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::e2b::call::{Addressed, check_user, check_user_name};
use crate::sandboxes::Sandboxes;
use crate::sandboxes::paths;
use crate::sandboxes::sandbox::Sandbox;
use crate::wire::failure::Failure;
use crate::wire::headers::text;

/// Bytes of one read.
const PIECE: usize = 256 << 10;

/// The most files of one request.
const MOST_FILES: usize = 1000;

pub(crate) fn routes() -> Router<Arc<Sandboxes>> {
    Router::new().route("/files", get(read).post(write)).layer(DefaultBodyLimit::disable())
}

/// The signature in a URL is the front's to check.
#[derive(Debug, Deserialize)]
struct FileQuery {
    path: Option<String>,
    #[serde(default)]
    username: String,
}

impl FileQuery {
    fn check_user(&self, sandbox: &Sandbox, headers: &HeaderMap) -> Result<(), Failure> {
        check_user(sandbox, headers)?;
        check_user_name(sandbox, &self.username)
    }
}

async fn read(
    Addressed(sandbox): Addressed,
    Query(query): Query<FileQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    query.check_user(&sandbox, &headers)?;
    let path = paths::absolute(query.path.as_deref().unwrap_or_default())?;
    let mut file = sandbox.session()?.open_read(&path).await?;
    let on_disk = |error: std::io::Error| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    let size = file.size().await.map_err(on_disk)?;
    // The first piece before the headers: many files are no longer, and then nothing is left to ask.
    let first = piece(&mut file).await.map_err(on_disk)?;
    let is_all = first.len() as u64 == size;
    let body = if is_all {
        Body::from(first)
    } else {
        let rest = stream::unfold(Some(file), |file| async {
            let mut file = file?;
            match piece(&mut file).await {
                Ok(bytes) if bytes.is_empty() => None,
                Ok(bytes) => Some((Ok(bytes), Some(file))),
                // The connection is cut, so that nobody takes it for the whole.
                Err(error) => Some((Err(error), None)),
            }
        });
        // A file that grows meanwhile has the size that it had.
        Body::from_stream(stream::iter([Ok(first)]).chain(rest).scan(size, |left, piece| {
            let piece = piece.map(|mut bytes: Bytes| {
                bytes.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= bytes.len() as u64;
                bytes
            });
            let is_over = matches!(&piece, Ok(bytes) if bytes.is_empty());
            std::future::ready((!is_over).then_some(piece))
        }))
    };
    let headers = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (CONTENT_LENGTH, size.to_string()),
        (CONTENT_DISPOSITION, "attachment".to_owned()),
    ];
    Ok((headers, body).into_response())
}

async fn piece(file: &mut kennel::files::FileReader) -> std::io::Result<Bytes> {
    let mut bytes = BytesMut::with_capacity(PIECE);
    file.read_buf(&mut bytes).await?;
    Ok(bytes.freeze())
}

async fn write(
    Addressed(sandbox): Addressed,
    Query(query): Query<FileQuery>,
    request: Request,
) -> Result<Response, Failure> {
    query.check_user(&sandbox, request.headers())?;
    if let Some(coding) = text(request.headers(), CONTENT_ENCODING).filter(|coding| *coding != "identity") {
        let message = format!("Content-Encoding {coding:?}: contents are not decoded; send them as they are");
        return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let kind = text(request.headers(), CONTENT_TYPE).unwrap_or_default();
    let written = match kind.split(';').next().unwrap_or_default().trim() {
        "multipart/form-data" => multipart(&sandbox, query.path.as_deref(), request).await?,
        "application/octet-stream" => {
            let path = paths::absolute(query.path.as_deref().unwrap_or_default())?;
            let mut new = NewFile::begin(&sandbox.session()?, path).await?;
            let mut pieces = request.into_body().into_data_stream();
            while let Some(piece) = pieces.next().await {
                new.add(&piece.map_err(|error| cut_off(&error))?).await?;
            }
            vec![new]
        }
        other => {
            let message = format!("Content-Type {other:?}: multipart/form-data or application/octet-stream");
            return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
    };
    let mut answer = Vec::with_capacity(written.len());
    for new in written {
        answer.push(new.commit().await?);
    }
    Ok(axum::Json(answer).into_response())
}

fn cut_off(error: &dyn std::error::Error) -> Failure {
    Failure::bad(format!("the body was cut off: {error}"))
}

async fn multipart(sandbox: &Sandbox, path: Option<&str>, request: Request) -> Result<Vec<NewFile>, Failure> {
    let bad = |error: &dyn std::error::Error| Failure::bad(format!("the multipart body: {error}"));
    let mut parts = Multipart::from_request(request, &()).await.map_err(|error| bad(&error))?;
    let mut written = Vec::new();
    while let Some(field) = parts.next_field().await.map_err(|error| bad(&error))? {
        if field.name() == Some("file") {
            if written.len() == MOST_FILES {
                return Err(Failure::bad(format!("more than {MOST_FILES} files")));
            }
            written.push(part(sandbox, path, field).await?);
        }
    }
    if written.is_empty() {
        return Err(Failure::bad("the multipart body has no part `file`"));
    }
    Ok(written)
}

async fn part(sandbox: &Sandbox, path: Option<&str>, mut field: Field<'_>) -> Result<NewFile, Failure> {
    let name = path.or(field.file_name()).unwrap_or_default();
    let mut new = NewFile::begin(&sandbox.session()?, paths::absolute(name)?).await?;
    let bad = |error: &dyn std::error::Error| Failure::bad(format!("the multipart body: {error}"));
    while let Some(piece) = field.chunk().await.map_err(|error| bad(&error))? {
        new.add(&piece).await?;
    }
    Ok(new)
}

/// A file that is being written. It is not there before its commit.
struct NewFile {
    path: PathBuf,
    writer: FileWriter,
}

impl NewFile {
    async fn begin(session: &Session, path: PathBuf) -> Result<Self, Failure> {
        let writer = match session.open_write(&path).await {
            Ok(writer) => writer,
            Err(error) => {
                paths::make_missing_parent(session, &path, error).await?;
                session.open_write(&path).await?
            }
        };
        Ok(Self { path, writer })
    }

    async fn add(&mut self, piece: &[u8]) -> Result<(), Failure> {
        self.writer.write_all(piece).await.map_err(|error| failed(&self.path, error))
    }

    /// Moves it into place, and describes it.
    async fn commit(mut self) -> Result<Value, Failure> {
        self.writer.flush().await.map_err(|error| failed(&self.path, error))?;
        self.writer.commit().await?;
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(json!({ "name": name, "type": "file", "path": self.path.to_string_lossy() }))
    }
}

fn failed(path: &Path, source: std::io::Error) -> Failure {
    kennel::Error::File { what: "write", path: path.to_owned(), source, remedy: None }.into()
}
