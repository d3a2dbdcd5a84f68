//! A call of a connector, and its result.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::broker::checked::CredentialResolver;
use crate::connector::journal::LogLine;
use crate::connector::limits::CallLimits;

/// One call of an operation.
///
/// ```
/// use kennel::connector::Call;
///
/// let call = Call::new("list_recent").argument("count", 10).allow_hosts(["api.example.com:443"]);
/// ```
#[derive(Clone, Default)]
pub struct Call {
    pub(crate) operation: String,
    pub(crate) arguments: Map<String, Value>,
    pub(crate) limits: CallLimits,
    pub(crate) hosts: Vec<String>,
    pub(crate) programs: Vec<String>,
    pub(crate) credentials: Option<Arc<dyn CredentialResolver>>,
}

impl Call {
    /// A call with no arguments. It has all that the manifest grants, and no credential.
    #[must_use]
    pub fn new(operation: impl Into<String>) -> Self {
        Self { operation: operation.into(), ..Self::default() }
    }

    /// Sets an argument.
    #[must_use]
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.arguments.insert(name.into(), value.into());
        self
    }

    /// Sets all arguments.
    #[must_use]
    pub fn arguments(mut self, arguments: Map<String, Value>) -> Self {
        self.arguments = arguments;
        self
    }

    /// Sets limits. They override the limits of the manifest.
    #[must_use]
    pub fn limits(mut self, limits: CallLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Narrows the hosts of the manifest to those that are also here, as `host:port`: for requests, and for
    /// programs that are spawned. An empty list narrows nothing.
    #[must_use]
    pub fn allow_hosts(mut self, hosts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.hosts = hosts.into_iter().map(Into::into).collect();
        self
    }

    /// Narrows the programs of the manifest to those that are also here, by name or path. An empty list
    /// narrows nothing.
    #[must_use]
    pub fn allow_programs(mut self, programs: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.programs = programs.into_iter().map(Into::into).collect();
        self
    }

    /// Binds credentials. Kennel asks the resolver for the kind of the manifest (`oauth2`, `api_key`) when
    /// the program makes a request with it, and for the name of each variable when the program spawns one.
    /// The value never enters the program.
    #[must_use]
    pub fn credentials(mut self, resolver: impl CredentialResolver + 'static) -> Self {
        self.credentials = Some(Arc::new(resolver));
        self
    }

    /// What a core module reads from stdin.
    pub(crate) fn input(&self) -> Vec<u8> {
        #[derive(Serialize)]
        struct Input<'c> {
            op: &'c str,
            args: &'c Map<String, Value>,
        }
        serde_json::to_vec(&Input { op: &self.operation, args: &self.arguments }).unwrap_or_default()
    }
}

/// Shows the names of arguments, not their values.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("operation", &self.operation)
            .field("arguments", &self.arguments.keys().collect::<Vec<_>>())
            .field("limits", &self.limits)
            .field("hosts", &self.hosts)
            .field("programs", &self.programs)
            .field("credentials", &self.credentials.is_some())
            .finish()
    }
}

/// What a call gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CallResult {
    /// The output of the operation. `None` if it has none.
    pub output: Option<Map<String, Value>>,
    /// What the program logged.
    pub logs: Vec<LogLine>,
}
