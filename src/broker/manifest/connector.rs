//! What a manifest says about a connector: its name, the credential of its requests, and the limits of its
//! calls.

use hyper::header::{self, HeaderName};
use serde::Deserialize;

/// Headers of a request that neither a manifest nor a program can set: Kennel and the HTTP library do, or
/// they concern one connection only.
pub(crate) const SET_BY_KENNEL: [HeaderName; 9] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::HOST,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

/// The placeholder of the credential in `format`.
const KEY: &str = "{key}";

/// The table `connector`. Other tools may have tables of their own in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct About {
    pub(crate) name: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) publisher: Option<String>,
}

/// The table `capabilities.limits`: the limits of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct ManifestLimits {
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) wall_seconds: Option<u64>,
}

/// The table `capabilities.credential`: what a request may ask Kennel to add. Its value is never in the
/// manifest.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "CredentialTable")]
pub(crate) struct Credential {
    pub(crate) kind: CredentialKind,
    /// The name of the header that gets the value.
    pub(crate) header: String,
    /// The text of the header before and after the value.
    pub(crate) around: [String; 2],
}

/// The kind of a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CredentialKind {
    Oauth2,
    ApiKey,
}

impl CredentialKind {
    /// Its name in manifests and requests.
    #[cfg_attr(not(any(feature = "wasm", test)), expect(dead_code, reason = "only connectors make requests"))]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Oauth2 => "oauth2",
            Self::ApiKey => "api_key",
        }
    }
}

/// The table `capabilities.credential` as it is written. Other tools may have tables of their own in it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct CredentialTable {
    kind: Option<CredentialKind>,
    header: Option<String>,
    format: Option<String>,
}

impl TryFrom<CredentialTable> for Credential {
    type Error = String;

    fn try_from(CredentialTable { kind, header, format }: CredentialTable) -> Result<Self, String> {
        let kind = kind.ok_or("missing field `kind`: oauth2 or api_key")?;
        if kind == CredentialKind::Oauth2 && (header.is_some() || format.is_some()) {
            return Err("`header` and `format` are for the kind `api_key` only".to_owned());
        }
        let header = header.unwrap_or_else(|| "Authorization".to_owned());
        match HeaderName::from_bytes(header.as_bytes()) {
            Ok(name) if SET_BY_KENNEL.contains(&name) => {
                return Err(format!("`{header}` is a header that Kennel sets; choose another one"));
            }
            Ok(_) => {}
            Err(_) => return Err(format!("`{header}` is not a name of a header")),
        }
        let format = format.unwrap_or_else(|| format!("Bearer {KEY}"));
        let is_plain = format.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        match format.split_once(KEY) {
            Some((before, after)) if is_plain && !after.contains(KEY) => {
                Ok(Self { kind, header, around: [before.to_owned(), after.to_owned()] })
            }
            _ => Err(format!("`{format}`: a format is plain text with `{KEY}` in it once")),
        }
    }
}
