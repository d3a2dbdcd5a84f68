//! The error of getting an image from a registry: what the registry says, or why it says nothing, and what to
//! do about it. The library itself asks no registry.

use std::io;

use crate::report::error::import::ImportError;
use crate::report::escape::harmless;
use crate::report::remedy::Remedy;

/// Why an image cannot be had from a registry.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PullError {
    /// The registry refuses.
    #[error("{}: {status}{}{}", harmless(registry), quoted(words), doubt(credentials))]
    Refused {
        /// The registry, as `docker login` takes it.
        registry: String,
        /// The status of HTTP.
        status: u16,
        /// What the registry says about it, in its own words.
        words: String,
        /// The credentials that were sent.
        credentials: SentCredentials,
    },
    /// The registry cannot be reached, or stops in the middle.
    #[error("{}: {}", harmless(registry), harmless(reason))]
    Unreachable {
        /// The registry.
        registry: String,
        /// Why not.
        reason: String,
    },
    /// The registry could not be authenticated.
    #[error("{}: {}", harmless(registry), harmless(reason))]
    Tls {
        /// The registry.
        registry: String,
        /// Why not.
        reason: String,
    },
    /// The registry answers something else than was asked.
    #[error("{}: {}", harmless(registry), harmless(reason))]
    Answer {
        /// The registry.
        registry: String,
        /// What is wrong.
        reason: String,
    },
    /// What the registry has is no image for this machine.
    #[error(transparent)]
    Content(#[from] ImportError),
    /// What was fetched could not be kept.
    #[error("write a layer to the image store")]
    Write {
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Which credentials a registry got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SentCredentials {
    /// There are none for it.
    #[default]
    None,
    /// Those of docker or podman.
    Given,
    /// There are some, but they could not be read.
    Unusable(String),
}

/// The words of a registry after a colon, if it has any.
fn quoted(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(": {}", harmless(words)) }
}

/// Why no credentials were sent, although there are some.
fn doubt(credentials: &SentCredentials) -> String {
    match credentials {
        SentCredentials::Unusable(reason) => format!(" (without credentials: {})", harmless(reason)),
        _ => String::new(),
    }
}

impl PullError {
    /// What a person can do about it, if anything is known.
    #[must_use]
    pub fn remedy(&self) -> Option<Remedy> {
        const DAMAGED: &str = "try again; if that does not help, the image or the registry is damaged";
        Some(match self {
            Self::Refused { registry, status, credentials, .. } => {
                let login = format!("docker login {}", harmless(registry));
                match (status, credentials) {
                    (_, SentCredentials::Unusable(_)) => {
                        format!("mend the credentials, or make them anew: {login}").into()
                    }
                    (401, SentCredentials::Given) => format!("log in again: {login}").into(),
                    (401, _) => format!("check the name; if the repository is private, log in: {login}").into(),
                    (403, _) => format!("ask the owner of the repository for access, or log in: {login}").into(),
                    (404, _) => {
                        format!("check the name and the tag; if the repository is private, log in: {login}").into()
                    }
                    (429, _) => format!(
                        "wait, or log in to be allowed more: {login}; or import the image from an archive"
                    )
                    .into(),
                    (500.., _) => "try again later, or import the image from an archive".into(),
                    _ => return None,
                }
            }
            Self::Unreachable { .. } => {
                "check the name of the registry and the network; HTTPS_PROXY names a proxy; without a network, import the \
                 image from an archive"
                    .into()
            }
            // What `openssl req -x509` makes.
            Self::Tls { reason, .. } if reason.contains("CaUsedAsEndEntity") => {
                "its certificate is that of an authority: give it one with basicConstraints=CA:FALSE".into()
            }
            Self::Tls { .. } => {
                "let SSL_CERT_FILE name the certificates of its authority, or install ca-certificates; a registry that \
                 speaks plain HTTP must be in images.insecure_registries of config.toml"
                    .into()
            }
            Self::Answer { .. } => "check that a registry is there, and no login page of a network".into(),
            Self::Content(ImportError::Platform { wanted, .. }) => {
                format!("choose an image or a tag that has {wanted}").into()
            }
            Self::Content(ImportError::Artifact { .. }) => "choose an image of a root file system".into(),
            Self::Content(ImportError::SchemaOne { .. }) => {
                "convert it, and import the archive: skopeo copy docker://NAME oci-archive:FILE".into()
            }
            Self::Content(ImportError::Digest { .. } | ImportError::Document { .. }) => DAMAGED.into(),
            Self::Content(source) => return source.remedy(),
            Self::Write { source } => return crate::report::shortage::of_writing(source).map(Remedy::from),
        })
    }
}
