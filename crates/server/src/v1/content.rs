//! Bytes in JSON: what goes into a command and its files, and what comes out.

use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kennel::Session;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use utoipa::ToSchema;

use crate::blobs::{BlobName, Blobs};
use crate::sandboxes::paths;
use crate::wire::failure::Failure;

/// Bytes, in one of three forms. Answers have `text` where the bytes are UTF-8, and `base64` otherwise, or
/// where a long text has many control characters.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Content {
    /// UTF-8.
    Text(String),
    /// Base64 with padding.
    Base64(String),
    /// The SHA-256 of a blob that this token has sent: 64 hexadecimal digits. Only in requests.
    Sha256(String),
}

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Self {
        // JSON writes six characters for each of these.
        let long = |byte: &&u8| **byte < b' ' && !b"\x08\t\n\x0c\r".contains(byte);
        let is_longer = bytes.len() > SHORT && bytes.iter().filter(long).count() > bytes.len() / 15;
        match String::from_utf8(bytes) {
            Ok(text) if !is_longer => Self::Text(text),
            Ok(text) => Self::Base64(STANDARD.encode(text)),
            Err(error) => Self::Base64(STANDARD.encode(error.as_bytes())),
        }
    }
}

/// A text of at most so many bytes stays one, whatever is in it.
const SHORT: usize = 4096;

impl Content {
    /// All of it. `key` is where it stands in the request.
    pub(crate) fn bytes(self, key: &str, blobs: &Blobs) -> Result<Vec<u8>, Failure> {
        match self {
            Self::Text(text) => Ok(text.into_bytes()),
            Self::Base64(text) => decode(key, &text),
            Self::Sha256(name) => {
                let name = blob(key, &name)?;
                blobs.read(&name).map_err(|error| missing(key, &name, &error))
            }
        }
    }
}

fn decode(key: &str, text: &str) -> Result<Vec<u8>, Failure> {
    STANDARD.decode(text).map_err(|error| Failure::bad(format!("{key}: base64: {error}")))
}

fn blob(key: &str, name: &str) -> Result<BlobName, Failure> {
    name.parse().map_err(|reason| Failure::bad(format!("{key}: sha256: {reason}")))
}

fn missing(key: &str, name: &BlobName, error: &std::io::Error) -> Failure {
    if error.kind() != std::io::ErrorKind::NotFound {
        return Failure::on_disk(error);
    }
    let name = name.as_str();
    let message = format!("{key}: this token has no blob {name}; send it with PUT /v1/blobs/{name}");
    Failure::new(StatusCode::NOT_FOUND, message)
}

/// A file of the sandbox.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileContent {
    /// Relative paths begin in the sandbox's own directory.
    pub(crate) path: String,
    pub(crate) content: Content,
}

impl FileContent {
    /// Writes it, with the directories above it.
    pub(crate) async fn write(self, key: &str, session: &Session, blobs: &Blobs) -> Result<(), Failure> {
        let path = paths::absolute(&self.path).map_err(|failure| {
            let message = format!("{key}.{}", failure.message);
            failure.with_message(message)
        })?;
        let key = format!("{key}.content");
        match self.content {
            Content::Sha256(name) => {
                let name = blob(&key, &name)?;
                let source = blobs.use_path(&name).map_err(|error| missing(&key, &name, &error))?;
                if let Err(error) = session.copy_in(&source, &path).await {
                    paths::make_missing_parent(session, &path, error).await?;
                    session.copy_in(&source, &path).await?;
                }
            }
            content => {
                let bytes = content.bytes(&key, blobs)?;
                if let Err(error) = session.write(&path, bytes.as_slice()).await {
                    paths::make_missing_parent(session, &path, error).await?;
                    session.write(&path, bytes).await?;
                }
            }
        }
        Ok(())
    }

    /// Reads it. `None` if it is not there.
    ///
    /// # Errors
    /// It has more than `most` bytes, or the command could not read it either.
    pub(crate) async fn read(path: &str, session: &Session, most: u64) -> Result<Option<Self>, Failure> {
        let mut file = match session.open_read(paths::absolute(path)?).await {
            Err(error) if paths::is_missing(&error) => return Ok(None),
            opened => opened?,
        };
        let mut bytes = Vec::new();
        let mut some = (&mut file).take(most + 1);
        some.read_to_end(&mut bytes).await.map_err(|error| Failure::bad(format!("{path}: {error}")))?;
        if bytes.len() as u64 > most {
            let message = format!("outputs: {path}: more than {most} bytes are left for it in one answer");
            return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        Ok(Some(Self { path: path.to_owned(), content: bytes.into() }))
    }

    /// How many bytes it takes in an answer.
    pub(crate) fn length(&self) -> u64 {
        let (Content::Text(text) | Content::Base64(text) | Content::Sha256(text)) = &self.content;
        text.len() as u64
    }
}
