//! Kennel's functions for programs, one implementation for core modules and components.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;

use crate::broker::SpawnPolicy;
use crate::broker::checked::{CredentialResolver, NoCredentials};
use crate::broker::envelope::Envelope;
use crate::broker::executor::{SpawnExecutor, Spawned};
use crate::broker::manifest::Manifest;
use crate::connector::http::{GrantedHosts, HostGrants, HttpClient, NoAnswer, Sender, Wanted};
use crate::connector::journal::Journal;
use crate::network::proxy::Proxy;
use crate::policy::network::rule::Rules;
use crate::report::failure::{Class, Failure};

/// The largest request or envelope that a program can pass, in bytes.
pub(crate) const MAX_REQUEST: usize = 16 << 20;

/// How many functions may fail in one call before each further failure takes time: it has a record in the
/// audit log, and a program must not fill the disk.
const FREE_FAILURES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);

/// What all calls of a connector share.
pub(crate) struct Loaded {
    pub(crate) name: Arc<str>,
    pub(crate) manifest: Manifest,
    pub(crate) rules: Rules,
    pub(crate) client: Arc<dyn HttpClient>,
    pub(crate) spawner: Arc<dyn SpawnExecutor>,
    pub(crate) spawns: SpawnPolicy,
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) max_body: usize,
}

/// The hosts of a call, as rules and as the caller wrote them.
pub(crate) struct CallHosts {
    pub(crate) rules: Rules,
    pub(crate) hosts: Vec<String>,
}

/// What one call may do, and what it has done.
pub(crate) struct CallContext {
    pub(crate) program: Arc<Loaded>,
    pub(crate) journal: Arc<Journal>,
    /// The hosts of the call, if it narrows those of the manifest.
    pub(crate) narrower: Option<CallHosts>,
    pub(crate) spawns: SpawnPolicy,
    pub(crate) resolver: Option<Arc<dyn CredentialResolver>>,
    pub(crate) response: Option<HttpAnswer>,
    pub(crate) spawned: Option<Finished>,
    failures: Failures,
}

/// The last answer of HTTP.
pub(crate) struct HttpAnswer {
    pub(crate) status: u16,
    pub(crate) body: Unread,
}

/// The last spawned program.
pub(crate) struct Finished {
    pub(crate) status: i32,
    /// Its stdout and its stderr.
    pub(crate) output: [Unread; 2],
}

/// An operation of the manifest that a program wants to run, and its arguments.
pub(crate) struct OperationCall {
    pub(crate) name: String,
    pub(crate) arguments: BTreeMap<String, String>,
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
struct Failures {
    last: Vec<(Kind, Failure)>,
    /// How many there were.
    count: u32,
}

impl Failures {
    fn forget(&mut self, kind: Kind) {
        self.last.retain(|(other, _)| *other != kind);
    }

    async fn add(&mut self, kind: Kind, failure: &Failure) {
        self.forget(kind);
        self.last.push((kind, failure.clone()));
        self.count = self.count.saturating_add(1);
        if self.count > FREE_FAILURES {
            sleep(PAUSE).await;
        }
    }
}

impl CallContext {
    pub(crate) fn new(
        program: &Arc<Loaded>,
        journal: &Arc<Journal>,
        narrower: Option<CallHosts>,
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
        self.failures.last.pop().map(|(_, failure)| failure)
    }

    pub(crate) fn log(&self, level: &str, message: &str) {
        self.journal.write(level, message);
    }

    /// Sends a request. Its answer is in `response` afterwards, if it has one.
    pub(crate) async fn request(&mut self, wanted: Result<Wanted, NotDone>) -> Result<(), NotDone> {
        self.response = None;
        match self.sender().send(wanted?).await {
            Ok(response) => {
                self.failures.forget(Kind::Request);
                self.response = Some(HttpAnswer {
                    status: response.status().as_u16(),
                    body: Unread::new(response.into_body()),
                });
                Ok(())
            }
            Err(NoAnswer::Malformed(reason)) => Err(NotDone::Malformed(reason)),
            Err(NoAnswer::Failed(failure)) => {
                self.failures.add(Kind::Request, &failure).await;
                Err(NotDone::Failed(failure))
            }
        }
    }

    fn sender(&self) -> Sender<'_> {
        let Loaded { client, rules, manifest, proxy, max_body, .. } = &*self.program;
        Sender {
            client: &**client,
            granted: HostGrants {
                manifest: GrantedHosts { rules, hosts: &manifest.hosts },
                call: self.narrower.as_ref().map(|CallHosts { rules, hosts }| GrantedHosts { rules, hosts }),
            },
            credential: manifest.credential.as_ref(),
            resolver: self.resolver.as_deref(),
            max_body: *max_body,
            proxy,
        }
    }

    /// Runs a program. Its output is in `spawned` afterwards, if it ran.
    pub(crate) async fn spawn(&mut self, envelope: Result<Envelope, NotDone>) -> Result<(), NotDone> {
        self.spawned = None;
        let envelope = envelope?;
        let resolver = self.resolver.as_deref().unwrap_or(&NoCredentials);
        match self.spawns.execute(&envelope, resolver, &*self.program.spawner).await {
            Ok(Spawned { status, stdout, stderr }) => {
                self.failures.forget(Kind::Spawn);
                self.spawned = Some(Finished { status, output: [stdout, stderr].map(Unread::new) });
                Ok(())
            }
            Err(error) => Err(self.not_spawned(error.failure()).await),
        }
    }

    /// Runs an operation of the manifest.
    pub(crate) async fn spawn_operation(
        &mut self,
        wanted: Result<OperationCall, NotDone>,
    ) -> Result<(), NotDone> {
        self.spawned = None;
        let OperationCall { name, arguments } = wanted?;
        let arguments: Vec<_> = arguments.iter().map(|(name, value)| (&**name, &**value)).collect();
        match self.spawns.operation(&name, &arguments) {
            Ok(envelope) => self.spawn(Ok(envelope)).await,
            Err(error) => Err(self.not_spawned(error.failure()).await),
        }
    }

    async fn not_spawned(&mut self, failure: Failure) -> NotDone {
        self.failures.add(Kind::Spawn, &failure).await;
        match failure.class {
            Class::SpawnSandboxUnavailable => NotDone::Unavailable(failure),
            _ => NotDone::Failed(failure),
        }
    }

    /// Stdout (0) or stderr (1) of the last spawned program.
    pub(crate) fn output(&mut self, which: i32) -> Option<&mut Unread> {
        let which = usize::try_from(which).ok()?;
        self.spawned.as_mut()?.output.get_mut(which)
    }
}
