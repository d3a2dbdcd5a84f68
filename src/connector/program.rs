//! A compiled connector, and its calls.

use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::{fmt, panic, str};

use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::timeout;
use wasmtime::{InstancePre, Store, Trap};
use wasmtime_wasi::I32Exit;

use crate::connector::audit::CallRecord;
use crate::connector::call::{Call, CallResult};
use crate::connector::error::{ConnectorError, GuestError, Stopped, denied, exceeded, fault, too_large};
use crate::connector::guest::component;
use crate::connector::guest::state::{GuestState, GuestStreams};
use crate::connector::host::{CallContext, CallHosts, Loaded, MAX_REQUEST};
use crate::connector::journal::Journal;
use crate::connector::limits::{LimitsInForce, MAX_HANDLES};
use crate::connector::output::STDOUT_MAX;
use crate::connector::runtime::Shared;
use crate::connector::slots::Slots;
use crate::policy::network::rule::Rules;
use crate::report::error::policy::escaped_message;
use crate::report::escape::harmless;
use crate::report::failure::{self, Boundary, Failure, Limit};

/// The function of a core module that is run once for each call.
pub(crate) const START: &str = "_start";

/// A compiled connector. Clones share it.
#[derive(Clone)]
pub struct Connector {
    pub(crate) runtime: Arc<Shared>,
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) program: Arc<LinkedProgram>,
    pub(crate) slots: Arc<Slots>,
}

/// The two kinds of programs, linked and ready to be instantiated.
pub(crate) enum LinkedProgram {
    Module(InstancePre<GuestState>),
    Component(component::Ready),
}

/// The document that a program writes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum Document {
    Output(Map<String, Value>),
    Error(GuestError),
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("name", &self.loaded.name).finish_non_exhaustive()
    }
}

impl Connector {
    /// Its name, as in the manifest.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.loaded.name
    }

    /// Calls an operation in a fresh instance. Any number of calls may run at the same time; beyond the
    /// number that [`RuntimeBuilder::at_once`](crate::connector::RuntimeBuilder::at_once) sets, they wait.
    /// Dropping the future ends the call.
    ///
    /// A program that computes lets other tasks of its thread run every few milliseconds. One instruction or
    /// function does not: to fill 1 GiB takes most of a second.
    ///
    /// # Errors
    /// What a request or a spawn of the program was denied, or how it failed, unless a later one of the same
    /// kind succeeded. Otherwise: a limit, a trap, an exit status other than 0, or output that is not what
    /// the contract says.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn invoke(&self, call: Call) -> Result<CallResult, ConnectorError> {
        let record = CallRecord::begin(&self.loaded, &call.operation)?;
        let journal = Arc::new(Journal::new(&self.loaded.name, self.runtime.sink.as_ref()));
        let ended = self.limited(&call, &journal).await;
        let audit_id = record.end(ended.as_ref().err());
        let logs = journal.take();
        match (ended, audit_id) {
            (Ok(output), Ok(_)) => Ok(CallResult { output, logs }),
            (Err(failure), audit_id) => {
                Err(ConnectorError::of_call(failure.recorded(audit_id.ok().flatten()), logs))
            }
            (Ok(_), Err(unrecorded)) => Err(ConnectorError::from(unrecorded).with_logs(logs)),
        }
    }

    /// Refuses further calls of this connector and its clones, and waits until those that run have ended.
    /// The runtime and its other connectors go on; [`Runtime::close`](crate::connector::Runtime::close)
    /// closes them all. A call that begins meanwhile waits, and is refused.
    pub async fn close(&self) {
        self.slots.close().await;
    }

    /// A call within its wall time.
    async fn limited(
        &self,
        call: &Call,
        journal: &Arc<Journal>,
    ) -> Result<Option<Map<String, Value>>, Failure> {
        let limits = LimitsInForce::of(&call.limits, &self.loaded.manifest);
        match timeout(limits.wall_time, caught(self.run(call, journal, limits))).await {
            Ok(Some(ended)) => ended,
            Ok(None) => Err(fault("a function of the host panicked".to_owned())),
            Err(_) => {
                let configured = humantime::format_duration(limits.wall_time).to_string();
                let message = format!("the call took longer than {configured}");
                Err(exceeded(Limit::WallTime, configured, message))
            }
        }
    }

    async fn run(
        &self,
        call: &Call,
        journal: &Arc<Journal>,
        limits: LimitsInForce,
    ) -> Result<Option<Map<String, Value>>, Failure> {
        let _own = self.slots.take().await?;
        let _slot = self.runtime.slots.take().await?;
        let _beating = self.runtime.heartbeat.beat();
        let host = self.host(call, journal)?;
        let input = match *self.program {
            LinkedProgram::Module(_) => call.input(),
            LinkedProgram::Component(_) => Vec::new(),
        };
        let (state, streams) = GuestState::new(input, limits, host);
        let mut store = Store::new(&self.runtime.engine, state);
        store.limiter(|state| &mut state.limiter);
        store.set_hostcall_fuel(MAX_REQUEST);
        store.set_max_component_handles(MAX_HANDLES);
        store.set_epoch_deadline(1);
        store.epoch_deadline_async_yield_and_update(1);
        let ran = match &*self.program {
            LinkedProgram::Module(module) => run_module(module, &mut store).await.map(|()| None),
            LinkedProgram::Component(component) => component.run(&mut store, call).await.map(Some),
        };
        let state = store.into_data();
        judge(ran, state, &streams, limits)
    }

    /// Kennel's side of the call.
    fn host(&self, call: &Call, journal: &Arc<Journal>) -> Result<CallContext, Failure> {
        let narrower = match &*call.hosts {
            [] => None,
            hosts => {
                let rules = Rules::parse(hosts.iter().map(String::as_str)).map_err(|(number, error)| {
                    let host = harmless(&hosts[number]);
                    let message = format!("allowed host {host}: {error}");
                    denied(Boundary::Action, host, message, [])
                })?;
                Some(CallHosts { rules, hosts: hosts.to_vec() })
            }
        };
        let mut spawns = self.loaded.spawns.clone();
        if let Some(CallHosts { rules, .. }) = &narrower {
            spawns = spawns.narrow_hosts(rules);
        }
        if !call.programs.is_empty() {
            spawns = spawns.action(call.programs.iter().cloned());
        }
        Ok(CallContext::new(&self.loaded, journal, narrower, spawns, call.credentials.clone()))
    }
}

/// Polls a future to its end. `None`: it panicked, which may be what a program wanted, and is no reason to
/// end its caller. Nothing of the future is used after that.
async fn caught<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|context| {
        let polled = panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
        polled.map_or(Poll::Ready(None), |polled| polled.map(Some))
    })
    .await
}

/// Runs `_start` of a core module.
async fn run_module(module: &InstancePre<GuestState>, store: &mut Store<GuestState>) -> wasmtime::Result<()> {
    let instance = module.instantiate_async(&mut *store).await?;
    let start = instance.get_typed_func::<(), ()>(&mut *store, START)?;
    match start.call_async(&mut *store, ()).await {
        Err(error) if matches!(error.downcast_ref(), Some(I32Exit(0))) => Ok(()),
        ended => ended,
    }
}

/// How a call has ended.
fn judge(
    ran: wasmtime::Result<Option<Result<String, GuestError>>>,
    mut state: GuestState,
    streams: &GuestStreams,
    limits: LimitsInForce,
) -> Result<Option<Map<String, Value>>, Failure> {
    // Nothing that the program says changes what Kennel refused it.
    if let Some(failure) = state.host.failure() {
        return Err(failure);
    }
    let text = match ran {
        Ok(None) => {
            let (bytes, is_cut) = streams.stdout.take();
            if is_cut {
                return Err(too_large("the output", STDOUT_MAX));
            }
            return document(&bytes);
        }
        Ok(Some(Ok(text))) => text,
        Ok(Some(Err(error))) => return Err(error.failure()),
        Err(error) => return Err(ended_badly(&error, &state, streams, limits)),
    };
    if text.len() > STDOUT_MAX {
        return Err(too_large("the output", STDOUT_MAX));
    }
    if text.trim_ascii().is_empty() {
        return Ok(None);
    }
    serde_json::from_str(&text).map(Some).map_err(|error| {
        fault(format!("its output is not a JSON object: {}", escaped_message(&error.to_string())))
    })
}

/// The output in what a core module wrote to stdout.
fn document(bytes: &[u8]) -> Result<Option<Map<String, Value>>, Failure> {
    let text = str::from_utf8(bytes).map_err(|_| fault("its output is not UTF-8".to_owned()))?;
    if text.trim_ascii().is_empty() {
        return Ok(None);
    }
    match serde_json::from_str(text) {
        Ok(Document::Output(output)) => Ok(Some(output)),
        Ok(Document::Error(error)) => Err(error.failure()),
        Err(error) => {
            let wanted = r#"{"output": {…}} or {"error": {"class": …, "message": …}}"#;
            Err(fault(format!("its output is not {wanted}: {}", escaped_message(&error.to_string()))))
        }
    }
}

/// Why a program did not end by itself, or with another status than 0.
fn ended_badly(
    error: &wasmtime::Error,
    state: &GuestState,
    streams: &GuestStreams,
    limits: LimitsInForce,
) -> Failure {
    if let Some(Stopped(failure)) = error.downcast_ref() {
        return failure.clone();
    }
    if state.limiter.is_exceeded {
        let configured = format!("{} bytes", limits.memory);
        let message = format!("the program needs more memory than {configured}");
        return exceeded(Limit::Memory, configured, message);
    }
    let mut message = match (error.downcast_ref(), error.downcast_ref::<Trap>()) {
        (Some(I32Exit(status)), _) => format!("the program exited with status {status}"),
        (None, Some(trap)) => format!("the program trapped: {trap}"),
        (None, None) => harmless(&failure::words(error.root_cause())),
    };
    let (stderr, _) = streams.stderr.take();
    let tail = String::from_utf8_lossy(&stderr);
    if !tail.trim().is_empty() {
        message = format!("{message}; its stderr ends: {}", harmless(tail.trim()));
    }
    fault(message)
}
