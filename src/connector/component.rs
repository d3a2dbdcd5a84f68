//! Components: WASI preview 2, and the interface of `connector.wit`.

use serde_json::Value;
use wasmtime::component::{Component, ComponentType, InstancePre, Lift, Linker, Lower};
use wasmtime::{Engine, Store, StoreContextMut};
use wasmtime_wasi::p2;

use crate::broker::envelope::Envelope;
use crate::connector::call::Call;
use crate::connector::error::fault;
use crate::connector::host::{Host, NotDone};
use crate::connector::http::Wanted;
use crate::connector::imports::INTERFACE;
use crate::connector::program::{GuestError, Stopped};
use crate::connector::state::State;
use crate::report::failure::Class;

/// The function that a component exports.
const INVOKE: &str = "invoke";

/// A component that can be instantiated.
pub(crate) struct Ready(InstancePre<State>);

// The records of connector.wit.

#[derive(ComponentType, Lift)]
#[component(record)]
struct Request {
    method: Option<String>,
    url: String,
    headers: Vec<(String, String)>,
    body: Option<String>,
    credential: Option<String>,
}

#[derive(ComponentType, Lower)]
#[component(record)]
struct Response {
    status: u16,
    body: Vec<u8>,
}

#[derive(ComponentType, Lower)]
#[component(record)]
struct Failed {
    class: String,
    message: String,
}

#[derive(ComponentType, Lift)]
#[component(record)]
struct SpawnRequest {
    program: String,
    argv: Vec<String>,
    env: Vec<(String, String)>,
    cwd: Option<String>,
    stdin: Option<String>,
    #[component(name = "credential-env-keys")]
    credential_env_keys: Vec<String>,
}

#[derive(ComponentType, Lower)]
#[component(record)]
struct Output {
    status: i32,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

#[derive(ComponentType, Lift)]
#[component(record)]
struct Reported {
    class: String,
    message: String,
}

/// What components can import.
///
/// # Errors
/// A name is defined twice.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    p2::add_to_linker_async(&mut linker)?;
    let mut host = linker.instance(INTERFACE)?;
    host.func_wrap("log", |store: StoreContextMut<'_, State>, (level, message): (String, String)| {
        store.data().host.log(&level, &message);
        Ok(())
    })?;
    host.func_wrap_async("http-request", |mut store: StoreContextMut<'_, State>, (request,): (Request,)| {
        Box::new(async move {
            let host = &mut store.data_mut().host;
            let done = host.request(request.into()).await;
            Ok((answer(host, "http-request", done, response),))
        })
    })?;
    host.func_wrap_async("spawn", |mut store: StoreContextMut<'_, State>, (request,): (SpawnRequest,)| {
        Box::new(async move {
            let host = &mut store.data_mut().host;
            let done = host.spawn(Ok(request.into())).await;
            Ok((answer(host, "spawn", done, output),))
        })
    })?;
    host.func_wrap_async(
        "spawn-op",
        |mut store: StoreContextMut<'_, State>, (name, arguments): (String, Vec<(String, String)>)| {
            Box::new(async move {
                let host = &mut store.data_mut().host;
                let texts: Vec<_> = arguments.iter().map(|(name, value)| (&**name, &**value)).collect();
                let done = host.spawn_operation(&name, &texts).await;
                Ok((answer(host, "spawn-op", done, output),))
            })
        },
    )?;
    Ok(linker)
}

impl From<Request> for Wanted {
    fn from(request: Request) -> Self {
        let Request { method, url, headers, body, credential } = request;
        Self { method, url, headers: headers.into_iter().collect(), body, credential }
    }
}

impl From<SpawnRequest> for Envelope {
    fn from(request: SpawnRequest) -> Self {
        let SpawnRequest { program, argv, env, cwd, stdin, credential_env_keys } = request;
        Self { program, argv, env: env.into_iter().collect(), cwd, stdin, credential_env_keys }
    }
}

fn response(host: &Host) -> Option<Response> {
    host.response.as_ref().map(|answer| Response { status: answer.status, body: answer.body.whole.to_vec() })
}

fn output(host: &Host) -> Option<Output> {
    host.spawned.as_ref().map(|spawned| {
        let [stdout, stderr] = spawned.output.each_ref().map(|output| output.whole.to_vec());
        Output { status: spawned.status, stdout, stderr }
    })
}

/// What a function answers. The program's log tells why something was not done.
fn answer<T>(
    host: &Host,
    function: &str,
    done: Result<(), NotDone>,
    found: impl Fn(&Host) -> Option<T>,
) -> Result<T, Failed> {
    let (class, message) = match done {
        Ok(()) => match found(host) {
            Some(found) => return Ok(found),
            None => (Class::RuntimeError, "there is no answer".to_owned()),
        },
        Err(NotDone::Failed(failure) | NotDone::Unavailable(failure)) => (failure.class, failure.message),
        Err(NotDone::Malformed(reason)) => (Class::RuntimeError, reason),
    };
    host.log("warn", &format!("{function}: {message}"));
    let class = match serde_json::to_value(class) {
        Ok(Value::String(class)) => class,
        _ => String::new(),
    };
    Err(Failed { class, message })
}

impl Ready {
    /// # Errors
    /// An import is not offered, or `invoke` is not exported as a function.
    pub(crate) fn new(linker: &Linker<State>, component: &Component) -> wasmtime::Result<Self> {
        if component.get_export_index(None, INVOKE).is_none() {
            return Err(Stopped(fault(format!("it exports no function {INVOKE}"))).into());
        }
        Ok(Self(linker.instantiate_pre(component)?))
    }

    /// Runs `invoke` of the component.
    pub(crate) async fn run(
        &self,
        store: &mut Store<State>,
        call: &Call,
    ) -> wasmtime::Result<Result<String, GuestError>> {
        let instance = self.0.instantiate_async(&mut *store).await?;
        let invoke =
            instance.get_typed_func::<(&str, &str), (Result<String, Reported>,)>(&mut *store, INVOKE)?;
        let arguments = serde_json::to_string(&call.arguments)?;
        let (ended,) = invoke.call_async(&mut *store, (&*call.operation, &*arguments)).await?;
        Ok(ended.map_err(|Reported { class, message }| GuestError { class, message }))
    }
}
