//! Components: WASI preview 2, and the interface of `connector.wit`.

use serde_json::Value;
use wasmtime::component::types::{ComponentFunc, ComponentItem, Type};
use wasmtime::component::{Component, ComponentType, InstancePre, Lift, Linker, Lower, Resource};
use wasmtime::{Engine, Store, StoreContextMut};
use wasmtime_wasi::p2;
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode, IpAddressFamily};
use wasmtime_wasi::p2::bindings::sockets::tcp::TcpSocket;
use wasmtime_wasi::p2::bindings::sockets::udp::UdpSocket;

use crate::broker::envelope::Envelope;
use crate::connector::call::Call;
use crate::connector::error::{GuestError, Stopped, fault};
use crate::connector::guest::imports::INTERFACE;
use crate::connector::guest::state::GuestState;
use crate::connector::host::{CallContext, NotDone, OperationCall};
use crate::connector::http::Wanted;
use crate::report::failure::Class;

/// The function that a component exports.
const INVOKE: &str = "invoke";

/// A component that can be instantiated.
pub(crate) struct Ready(InstancePre<GuestState>);

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
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<GuestState>> {
    let mut linker = Linker::new(engine);
    p2::add_to_linker_async(&mut linker)?;
    // WASI's own functions create sockets of the host, and refuse only to bind or connect them.
    linker.allow_shadowing(true);
    no_sockets::<TcpSocket>(&mut linker, "wasi:sockets/tcp-create-socket@0.2.6", "create-tcp-socket")?;
    no_sockets::<UdpSocket>(&mut linker, "wasi:sockets/udp-create-socket@0.2.6", "create-udp-socket")?;
    linker.allow_shadowing(false);
    let mut host = linker.instance(INTERFACE)?;
    host.func_wrap("log", |store: StoreContextMut<'_, GuestState>, (level, message): (String, String)| {
        store.data().host.log(&level, &message);
        Ok(())
    })?;
    host.func_wrap_async(
        "http-request",
        |mut store: StoreContextMut<'_, GuestState>, (request,): (Request,)| {
            Box::new(async move {
                let host = &mut store.data_mut().host;
                let done = host.request(Ok(request.into())).await;
                Ok((answer(host, "http-request", done, response),))
            })
        },
    )?;
    host.func_wrap_async(
        "spawn",
        |mut store: StoreContextMut<'_, GuestState>, (request,): (SpawnRequest,)| {
            Box::new(async move {
                let host = &mut store.data_mut().host;
                let done = host.spawn(Ok(request.into())).await;
                Ok((answer(host, "spawn", done, output),))
            })
        },
    )?;
    host.func_wrap_async(
        "spawn-op",
        |mut store: StoreContextMut<'_, GuestState>, (name, arguments): (String, Vec<(String, String)>)| {
            Box::new(async move {
                let host = &mut store.data_mut().host;
                let arguments = arguments.into_iter().collect();
                let done = host.spawn_operation(Ok(OperationCall { name, arguments })).await;
                Ok((answer(host, "spawn-op", done, output),))
            })
        },
    )?;
    Ok(linker)
}

/// Lets a function that creates sockets refuse each.
fn no_sockets<S: 'static>(
    linker: &mut Linker<GuestState>,
    interface: &str,
    function: &str,
) -> wasmtime::Result<()> {
    linker.instance(interface)?.func_wrap(function, |_, (_,): (IpAddressFamily,)| {
        Ok((Err::<Resource<S>, _>(ErrorCode::AccessDenied),))
    })
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

fn response(host: &mut CallContext) -> Option<Response> {
    let answer = host.response.take()?;
    Some(Response { status: answer.status, body: answer.body.whole.into() })
}

fn output(host: &mut CallContext) -> Option<Output> {
    let spawned = host.spawned.take()?;
    let [stdout, stderr] = spawned.output.map(|output| output.whole.into());
    Some(Output { status: spawned.status, stdout, stderr })
}

/// What a function answers. The program's log tells why something was not done.
fn answer<T>(
    host: &mut CallContext,
    function: &str,
    done: Result<(), NotDone>,
    found: impl Fn(&mut CallContext) -> Option<T>,
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

/// Whether a function has the type of `invoke`.
fn is_invoke(function: &ComponentFunc) -> bool {
    let [Some(Type::Result(result)), None] = ({
        let mut results = function.results();
        [results.next(), results.next()]
    }) else {
        return false;
    };
    let is_error = |error: Type| match error {
        Type::Record(error) => error
            .fields()
            .map(|field| (field.name, field.ty))
            .eq([("class", Type::String), ("message", Type::String)]),
        _ => false,
    };
    function.params().map(|(_, parameter)| parameter).eq([Type::String, Type::String])
        && result.ok() == Some(Type::String)
        && result.err().is_some_and(is_error)
}

impl Ready {
    /// # Errors
    /// An import is not offered, or `invoke` is not exported with its type.
    pub(crate) fn new(linker: &Linker<GuestState>, component: &Component) -> wasmtime::Result<Self> {
        match component.component_type().get_export(component.engine(), INVOKE) {
            Some(ComponentItem::ComponentFunc(function)) if is_invoke(&function) => {
                Ok(Self(linker.instantiate_pre(component)?))
            }
            _ => {
                Err(Stopped(fault(format!("it exports no function {INVOKE} with the type of connector.wit")))
                    .into())
            }
        }
    }

    /// Runs `invoke` of the component.
    pub(crate) async fn run(
        &self,
        store: &mut Store<GuestState>,
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
