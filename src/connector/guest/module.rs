//! Core modules: WASI preview 1 and the functions of `aileron_host`.

use std::collections::BTreeMap;
use std::future::Future;

use wasmtime::{Caller, Engine, Extern, Linker};
use wasmtime_wasi::preview1;

use crate::broker::envelope::Envelope;
use crate::connector::error::{Stopped, fault};
use crate::connector::guest::imports::MODULE;
use crate::connector::guest::state::GuestState;
use crate::connector::host::{CallContext, MAX_REQUEST, NotDone, OperationCall};
use crate::connector::http::Wanted;
use crate::connector::journal;
use crate::report::failure::Failure;

// What the functions answer.

const DONE: i32 = 0;
/// It was denied or has failed; also: there is nothing to read.
const FAILED: i32 = -1;
const MALFORMED: i32 = -2;
const UNAVAILABLE: i32 = -3;

/// A range of the program's memory: its start and its length in bytes.
type Range = (i32, i32);

/// What modules can import.
///
/// # Errors
/// A name is defined twice.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<GuestState>> {
    let mut linker = Linker::new(engine);
    preview1::add_to_linker_async(&mut linker, |state: &mut GuestState| &mut state.wasi)?;
    linker.func_wrap(MODULE, "log", |mut caller: Caller<'_, GuestState>, level, from, message, length| {
        let level = text(&mut caller, "log", (level, from))?;
        let message = text(&mut caller, "log", (message, length))?;
        caller.data().host.log(&level, &message);
        wasmtime::Result::Ok(())
    })?;
    linker.func_wrap_async(MODULE, "http_request", |mut caller: Caller<'_, GuestState>, range: Range| {
        answer(async move {
            let request = read(&mut caller, "http_request", range)?;
            let host = &mut caller.data_mut().host;
            let done = host.request(parse_request(request)).await;
            Ok(code(host, "http_request", done))
        })
    })?;
    linker.func_wrap(MODULE, "http_response_status", |caller: Caller<'_, GuestState>| {
        caller.data().host.response.as_ref().map_or(FAILED, |answer| answer.status.into())
    })?;
    linker.func_wrap(MODULE, "http_response_size", |caller: Caller<'_, GuestState>| {
        caller.data().host.response.as_ref().map_or(FAILED, |answer| answer.body.size())
    })?;
    linker.func_wrap(
        MODULE,
        "http_response_read",
        |mut caller: Caller<'_, GuestState>, to: i32, length: i32| match &mut caller.data_mut().host.response
        {
            Some(answer) => {
                let piece = answer.body.next(length);
                write(&mut caller, "http_response_read", (to, length), &piece)
            }
            None => Ok(FAILED),
        },
    )?;
    linker.func_wrap_async(MODULE, "spawn", |mut caller: Caller<'_, GuestState>, range: Range| {
        answer(async move {
            let envelope = read(&mut caller, "spawn", range)?;
            let host = &mut caller.data_mut().host;
            let envelope = parse_envelope(host, envelope);
            let done = host.spawn(envelope).await;
            Ok(code(host, "spawn", done))
        })
    })?;
    linker.func_wrap_async(
        MODULE,
        "spawn_op",
        |mut caller: Caller<'_, GuestState>, (name, name_length, arguments, length): (i32, i32, i32, i32)| {
            answer(async move {
                let name = read(&mut caller, "spawn_op", (name, name_length))?;
                let arguments = read(&mut caller, "spawn_op", (arguments, length))?;
                let host = &mut caller.data_mut().host;
                let done = host.spawn_operation(parse_operation(name, arguments)).await;
                Ok(code(host, "spawn_op", done))
            })
        },
    )?;
    linker.func_wrap(MODULE, "spawn_status", |caller: Caller<'_, GuestState>| {
        caller.data().host.spawned.as_ref().map_or(FAILED, |spawned| spawned.status)
    })?;
    linker.func_wrap(MODULE, "spawn_output_size", |mut caller: Caller<'_, GuestState>, which: i32| {
        caller.data_mut().host.output(which).map_or(FAILED, |output| output.size())
    })?;
    linker.func_wrap(
        MODULE,
        "spawn_output_read",
        |mut caller: Caller<'_, GuestState>, which: i32, to: i32, length: i32| match caller
            .data_mut()
            .host
            .output(which)
        {
            Some(output) => {
                let piece = output.next(length);
                write(&mut caller, "spawn_output_read", (to, length), &piece)
            }
            None => Ok(FAILED),
        },
    )?;
    Ok(linker)
}

/// A host function that waits.
fn answer<'a>(
    function: impl Future<Output = wasmtime::Result<i32>> + Send + 'a,
) -> Box<dyn Future<Output = wasmtime::Result<i32>> + Send + 'a> {
    Box::new(function)
}

/// What a function answers. The program's log tells why something was not done.
fn code(host: &CallContext, function: &str, done: Result<(), NotDone>) -> i32 {
    let (code, reason) = match done {
        Ok(()) => return DONE,
        Err(NotDone::Failed(failure)) => (FAILED, failure.message),
        Err(NotDone::Malformed(reason)) => (MALFORMED, reason),
        Err(NotDone::Unavailable(failure)) => (UNAVAILABLE, failure.message),
    };
    host.log("warn", &format!("{function}: {reason}"));
    code
}

/// The memory of the program.
fn memory<'c>(caller: &'c mut Caller<'_, GuestState>, function: &str) -> wasmtime::Result<&'c mut [u8]> {
    match caller.get_export("memory") {
        Some(Extern::Memory(memory)) => Ok(memory.data_mut(caller)),
        _ => Err(Stopped(fault(format!("{function}: the program exports no memory"))).into()),
    }
}

/// The memory of a range.
fn slice<'c>(
    caller: &'c mut Caller<'_, GuestState>,
    function: &str,
    (from, length): Range,
) -> wasmtime::Result<&'c mut [u8]> {
    let (from, length) = (from.cast_unsigned() as usize, length.cast_unsigned() as usize);
    let range = from.checked_add(length).map(|end| from..end);
    let memory = memory(caller, function)?;
    Ok(range.and_then(|range| memory.get_mut(range)).ok_or_else(|| Stopped(bad_range(function)))?)
}

/// Copies the bytes of a range. A request can have no more than [`MAX_REQUEST`].
fn read(
    caller: &mut Caller<'_, GuestState>,
    function: &str,
    range: Range,
) -> wasmtime::Result<Result<Vec<u8>, NotDone>> {
    let bytes = slice(caller, function, range)?;
    Ok(if bytes.len() <= MAX_REQUEST {
        Ok(bytes.to_vec())
    } else {
        Err(NotDone::Malformed("it has more than 16 MiB".to_owned()))
    })
}

/// The text of a range, or the part of it that a log keeps: a program may pass megabytes at every call. Bytes
/// that are no UTF-8 are replaced.
fn text(caller: &mut Caller<'_, GuestState>, function: &str, range: Range) -> wasmtime::Result<String> {
    let bytes = slice(caller, function, range)?;
    Ok(String::from_utf8_lossy(&bytes[..bytes.len().min(journal::MAX_BYTES)]).into_owned())
}

/// Copies bytes to the start of a range, and returns their number. The range has room for them.
fn write(
    caller: &mut Caller<'_, GuestState>,
    function: &str,
    range: Range,
    bytes: &[u8],
) -> wasmtime::Result<i32> {
    slice(caller, function, range)?[..bytes.len()].copy_from_slice(bytes);
    Ok(i32::try_from(bytes.len()).unwrap_or(i32::MAX))
}

/// A request as JSON.
///
/// # Errors
/// It is malformed.
fn parse_request(bytes: Result<Vec<u8>, NotDone>) -> Result<Wanted, NotDone> {
    // The message of serde may quote a value.
    serde_json::from_slice(&bytes?).map_err(|_| NotDone::Malformed("the request is no valid JSON".to_owned()))
}

/// An envelope as JSON. The program's log names the keys that are ignored.
///
/// # Errors
/// It is malformed.
fn parse_envelope(host: &CallContext, bytes: Result<Vec<u8>, NotDone>) -> Result<Envelope, NotDone> {
    let bytes = bytes?;
    let text = String::from_utf8_lossy(&bytes);
    let envelope = Envelope::from_json(&text).map_err(|error| NotDone::Malformed(error.to_string()))?;
    let unknown = Envelope::unknown_keys(&text);
    if !unknown.is_empty() {
        let keys = unknown.join(", ");
        host.log("warn", &format!("spawn: Kennel ignores unknown keys of the envelope: {keys}"));
    }
    Ok(envelope)
}

/// An operation: its name, and its arguments as a JSON object of strings, `null`, or nothing.
///
/// # Errors
/// They are something else.
fn parse_operation(
    name: Result<Vec<u8>, NotDone>,
    arguments: Result<Vec<u8>, NotDone>,
) -> Result<OperationCall, NotDone> {
    let name = String::from_utf8_lossy(&name?).into_owned();
    let arguments = arguments?;
    if arguments.is_empty() {
        return Ok(OperationCall { name, arguments: BTreeMap::new() });
    }
    match serde_json::from_slice::<Option<_>>(&arguments) {
        Ok(arguments) => Ok(OperationCall { name, arguments: arguments.unwrap_or_default() }),
        Err(_) => Err(NotDone::Malformed("its arguments are no JSON object of strings".to_owned())),
    }
}

/// The failure of a program that passed a range outside of its memory.
fn bad_range(function: &str) -> Failure {
    fault(format!("{function}: the range is not in the memory of the program"))
}
