//! Kennel's functions for programs, one implementation for core modules and components.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::audit::record::{CredentialUse, Record};
use crate::broker::SpawnPolicy;
use crate::broker::checked::{CredentialResolver, NoCredentials};
use crate::broker::envelope::Envelope;
use crate::connector::error::fault;
use crate::connector::http::{Granted, NoAnswer, Sender, Wanted};
use crate::connector::journal::{Journal, LogLevel};
use crate::connector::program::Loaded;
use crate::connector::spawn::Spawned;
use crate::policy::rule::Rules;
use crate::report::failure::{Class, Failure};
use crate::report::spawn_error::SpawnError;

/// The largest request or envelope that a program can pass, in bytes.
pub(crate) const MAX_REQUEST: usize = 16 << 20;

/// What one call may do, and what it has done.
pub(crate) struct Host {
    pub(crate) program: Arc<Loaded>,
    pub(crate) journal: Arc<Journal>,
    /// The hosts of the call, if it narrows those of the manifest.
    pub(crate) narrower: Option<(Rules, Vec<String>)>,
    pub(crate) spawns: SpawnPolicy,
    pub(crate) resolver: Option<Arc<dyn CredentialResolver>>,
    pub(crate) response: Option<Answer>,
    pub(crate) spawned: Option<Finished>,
    failures: Failures,
}

/// The last answer of HTTP.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Unread,
}

/// The last spawned program.
pub(crate) struct Finished {
    pub(crate) status: i32,
    /// Its stdout and its stderr.
    pub(crate) output: [Unread; 2],
}

/// Bytes that a program reads in pieces: each piece begins where the one before has ended.
pub(crate) struct Unread {
    pub(crate) whole: Bytes,
    read: usize,
}

impl Unread {
    fn new(whole: impl Into<Bytes>) -> Self {
        Self { whole: whole.into(), read: 0 }
    }

    /// The number of all bytes.
    pub(crate) fn size(&self) -> i32 {
        i32::try_from(self.whole.len()).unwrap_or(i32::MAX)
    }

    /// The next bytes, at most `length`.
    pub(crate) fn next(&mut self, length: i32) -> Bytes {
        let rest = self.whole.slice(self.read..);
        let piece = rest.slice(..rest.len().min(length.cast_unsigned() as usize));
        self.read += piece.len();
        piece
    }
}

/// What a function answers if it did not do what it was asked for.
#[derive(Debug)]
pub(crate) enum NotDone {
    /// The request itself is malformed.
    Malformed(String),
    /// It was denied, or has failed.
    Failed(Failure),
    /// This host has no sandbox.
    Unavailable(Failure),
}

/// A kind of function. A failure counts until a later call of the same kind has succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Request,
    Spawn,
}

/// The last failure of each kind, in their order.
#[derive(Default)]
struct Failures(Vec<(Kind, Failure)>);

impl Failures {
    fn set(&mut self, kind: Kind, failure: Option<&Failure>) {
        self.0.retain(|(other, _)| *other != kind);
        self.0.extend(failure.map(|failure| (kind, failure.clone())));
    }
}

impl Host {
    pub(crate) fn new(
        program: &Arc<Loaded>,
        journal: &Arc<Journal>,
        narrower: Option<(Rules, Vec<String>)>,
        spawns: SpawnPolicy,
        resolver: Option<Arc<dyn CredentialResolver>>,
    ) -> Self {
        Self {
            program: Arc::clone(program),
            journal: Arc::clone(journal),
            narrower,
            spawns,
            resolver,
            response: None,
            spawned: None,
            failures: Failures::default(),
        }
    }

    /// The failure that decides how the call ends, whatever the program says.
    pub(crate) fn failure(&mut self) -> Option<Failure> {
        self.failures.0.pop().map(|(_, failure)| failure)
    }

    pub(crate) fn log(&self, level: &str, message: &str) {
        self.journal.write(LogLevel::parse(level), message);
    }

    /// Sends a request. The answer is in `response` afterwards.
    pub(crate) async fn request(&mut self, wanted: Wanted) -> Result<(), NotDone> {
        self.response = None;
        let kind = wanted.credential.clone();
        let sent = self.sender().send(wanted).await;
        let failure = match &sent {
            Err(NoAnswer::Failed(failure)) => Some(failure),
            _ => None,
        };
        if let Some(kind) = &kind {
            self.record_credential(kind, failure);
        }
        match sent {
            Ok(response) => {
                self.failures.set(Kind::Request, None);
                self.response = Some(Answer {
                    status: response.status().as_u16(),
                    body: Unread::new(response.into_body()),
                });
                Ok(())
            }
            Err(NoAnswer::Malformed(reason)) => Err(NotDone::Malformed(reason)),
            Err(NoAnswer::Failed(failure)) => {
                self.failures.set(Kind::Request, Some(&failure));
                Err(NotDone::Failed(failure))
            }
        }
    }

    fn sender(&self) -> Sender<'_> {
        let Loaded { client, rules, manifest, proxy, max_body, .. } = &*self.program;
        Sender {
            client: &**client,
            granted: Granted {
                manifest: (rules, &manifest.hosts),
                call: self.narrower.as_ref().map(|(rules, hosts)| (rules, &**hosts)),
            },
            credential: manifest.credential.as_ref(),
            resolver: self.resolver.as_deref(),
            max_body: *max_body,
            proxy,
        }
    }

    fn record_credential(&self, kind: &str, failure: Option<&Failure>) {
        let decision = match failure.map(|failure| failure.class) {
            None => "allowed",
            Some(Class::CapabilityDenied) => "denied",
            Some(_) => "failed",
        };
        let class = failure.map(|failure| failure.class);
        // A log that fails closed has refused the connection already.
        let _ = self.program.proxy.trail.write(None, || {
            Record::Credential(CredentialUse { connector: &self.program.name, kind, decision, class })
        });
    }

    /// Runs a program. Its output is in `spawned` afterwards.
    pub(crate) async fn spawn(&mut self, envelope: Result<Envelope, SpawnError>) -> Result<(), NotDone> {
        self.spawned = None;
        let spawned = match envelope {
            Ok(envelope) => {
                let resolver = self.resolver.as_deref().unwrap_or(&NoCredentials);
                self.program.spawner.spawn(&self.spawns, &envelope, resolver).await
            }
            Err(error) => Err(error),
        };
        match spawned {
            Ok(spawned) => {
                self.failures.set(Kind::Spawn, None);
                let Spawned { status, stdout, stderr } = spawned;
                self.spawned = Some(Finished { status, output: [stdout, stderr].map(Unread::new) });
                Ok(())
            }
            Err(SpawnError::Envelope(error)) => Err(NotDone::Malformed(error.to_string())),
            Err(error) => {
                let failure = error.failure();
                self.failures.set(Kind::Spawn, Some(&failure));
                Err(match failure.class {
                    Class::SpawnSandboxUnavailable => NotDone::Unavailable(failure),
                    _ => NotDone::Failed(failure),
                })
            }
        }
    }

    /// Stdout (0) or stderr (1) of the last spawned program.
    pub(crate) fn output(&mut self, which: i32) -> Option<&mut Unread> {
        let which = usize::try_from(which).ok()?;
        self.spawned.as_mut()?.output.get_mut(which)
    }

    /// Runs an operation of the manifest.
    pub(crate) async fn spawn_operation(
        &mut self,
        name: &str,
        arguments: &[(&str, &str)],
    ) -> Result<(), NotDone> {
        let envelope = self.spawns.operation(name, arguments);
        self.spawn(envelope).await
    }
}

/// A request as JSON of a core module.
///
/// # Errors
/// It is malformed.
pub(crate) fn parse_request(bytes: &[u8]) -> Result<Wanted, NotDone> {
    // The message of serde may quote a value.
    serde_json::from_slice(bytes).map_err(|_| NotDone::Malformed("the request is no valid JSON".to_owned()))
}

/// An envelope as JSON.
///
/// # Errors
/// It is malformed.
pub(crate) fn parse_envelope(bytes: &[u8]) -> Result<Envelope, SpawnError> {
    Envelope::from_json(&String::from_utf8_lossy(bytes))
}

/// The arguments of an operation as a JSON object of strings.
///
/// # Errors
/// They are something else.
pub(crate) fn parse_arguments(text: &str) -> Result<BTreeMap<String, String>, NotDone> {
    serde_json::from_str(text)
        .map_err(|_| NotDone::Malformed("its arguments are no JSON object of strings".to_owned()))
}

/// The failure of a program that passed a range outside of its memory.
pub(crate) fn bad_range(function: &str) -> Failure {
    fault(format!("{function}: the range is not in the memory of the program"))
}
