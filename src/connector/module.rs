//! Core modules: WASI preview 1 and the functions of `aileron_host`.

use std::future::Future;

use wasmtime::{Caller, Engine, Extern, Linker};
use wasmtime_wasi::preview1;

use crate::connector::error::fault;
use crate::connector::host::{
    Host, MAX_REQUEST, NotDone, bad_range, parse_arguments, parse_envelope, parse_request,
};
use crate::connector::imports::MODULE;
use crate::connector::program::Stopped;
use crate::connector::state::State;

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
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    preview1::add_to_linker_async(&mut linker, |state: &mut State| &mut state.wasi)?;
    linker.func_wrap(MODULE, "log", |mut caller: Caller<'_, State>, level, from, message, length| {
        let [level, message] = texts(&mut caller, "log", [(level, from), (message, length)])?;
        caller.data().host.log(&level, &message);
        wasmtime::Result::Ok(())
    })?;
    linker.func_wrap_async(MODULE, "http_request", |mut caller: Caller<'_, State>, range: Range| {
        answer(async move {
            let Some(request) = read(&mut caller, "http_request", range)? else { return Ok(MALFORMED) };
            let host = &mut caller.data_mut().host;
            let done = match parse_request(&request) {
                Ok(wanted) => host.request(wanted).await,
                Err(not_done) => Err(not_done),
            };
            Ok(code(host, "http_request", done))
        })
    })?;
    linker.func_wrap(MODULE, "http_response_status", |caller: Caller<'_, State>| {
        caller.data().host.response.as_ref().map_or(FAILED, |answer| answer.status.into())
    })?;
    linker.func_wrap(MODULE, "http_response_size", |caller: Caller<'_, State>| {
        caller.data().host.response.as_ref().map_or(FAILED, |answer| answer.body.size())
    })?;
    linker.func_wrap(
        MODULE,
        "http_response_read",
        |mut caller: Caller<'_, State>, to: i32, length: i32| match &mut caller.data_mut().host.response {
            Some(answer) => {
                let piece = answer.body.next(length);
                write(&mut caller, "http_response_read", to, &piece)
            }
            None => Ok(FAILED),
        },
    )?;
    linker.func_wrap_async(MODULE, "spawn", |mut caller: Caller<'_, State>, range: Range| {
        answer(async move {
            let Some(envelope) = read(&mut caller, "spawn", range)? else { return Ok(MALFORMED) };
            let host = &mut caller.data_mut().host;
            let done = host.spawn(parse_envelope(&envelope)).await;
            Ok(code(host, "spawn", done))
        })
    })?;
    linker.func_wrap_async(
        MODULE,
        "spawn_op",
        |mut caller: Caller<'_, State>, (name, name_length, arguments, length): (i32, i32, i32, i32)| {
            answer(async move {
                let ranges = [(name, name_length), (arguments, length)];
                let [name, arguments] = texts(&mut caller, "spawn_op", ranges)?;
                let host = &mut caller.data_mut().host;
                let done = match parse_arguments(&arguments) {
                    Ok(values) => {
                        let texts: Vec<_> = values.iter().map(|(name, value)| (&**name, &**value)).collect();
                        host.spawn_operation(&name, &texts).await
                    }
                    Err(not_done) => Err(not_done),
                };
                Ok(code(host, "spawn_op", done))
            })
        },
    )?;
    linker.func_wrap(MODULE, "spawn_status", |caller: Caller<'_, State>| {
        caller.data().host.spawned.as_ref().map_or(FAILED, |spawned| spawned.status)
    })?;
    linker.func_wrap(MODULE, "spawn_output_size", |mut caller: Caller<'_, State>, which: i32| {
        caller.data_mut().host.output(which).map_or(FAILED, |output| output.size())
    })?;
    linker.func_wrap(
        MODULE,
        "spawn_output_read",
        |mut caller: Caller<'_, State>, which: i32, to: i32, length: i32| match caller
            .data_mut()
            .host
            .output(which)
        {
            Some(output) => {
                let piece = output.next(length);
                write(&mut caller, "spawn_output_read", to, &piece)
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
fn code(host: &Host, function: &str, done: Result<(), NotDone>) -> i32 {
    let (code, reason) = match done {
        Ok(()) => return DONE,
        Err(NotDone::Failed(failure)) => (FAILED, failure.message),
        Err(NotDone::Malformed(reason)) => (MALFORMED, reason),
        Err(NotDone::Unavailable(failure)) => (UNAVAILABLE, failure.message),
    };
    host.log("warn", &format!("{function}: {reason}"));
    code
}

/// The memory of the program and the state of its call.
fn memory<'c>(caller: &'c mut Caller<'_, State>, function: &str) -> wasmtime::Result<&'c mut [u8]> {
    match caller.get_export("memory") {
        Some(Extern::Memory(memory)) => Ok(memory.data_mut(caller)),
        _ => Err(Stopped(fault(format!("{function}: the program exports no memory"))).into()),
    }
}

/// The bytes of a range. `None` if there are more than a request can have.
fn read(
    caller: &mut Caller<'_, State>,
    function: &str,
    (from, length): Range,
) -> wasmtime::Result<Option<Vec<u8>>> {
    let (from, length) = (from.cast_unsigned() as usize, length.cast_unsigned() as usize);
    let end = from.checked_add(length).ok_or_else(|| Stopped(bad_range(function)))?;
    let bytes = memory(caller, function)?.get(from..end).ok_or_else(|| Stopped(bad_range(function)))?;
    Ok((length <= MAX_REQUEST).then(|| bytes.to_vec()))
}

/// The texts of two ranges. Bytes that are no UTF-8 are replaced.
fn texts(
    caller: &mut Caller<'_, State>,
    function: &str,
    ranges: [Range; 2],
) -> wasmtime::Result<[String; 2]> {
    let mut texts = [String::new(), String::new()];
    for (text, range) in texts.iter_mut().zip(ranges) {
        let bytes = read(caller, function, range)?.unwrap_or_default();
        *text = String::from_utf8_lossy(&bytes).into_owned();
    }
    Ok(texts)
}

/// Copies bytes into the program. Returns their number.
fn write(caller: &mut Caller<'_, State>, function: &str, to: i32, bytes: &[u8]) -> wasmtime::Result<i32> {
    let to = to.cast_unsigned() as usize;
    let end = to.checked_add(bytes.len()).ok_or_else(|| Stopped(bad_range(function)))?;
    let place = memory(caller, function)?.get_mut(to..end).ok_or_else(|| Stopped(bad_range(function)))?;
    place.copy_from_slice(bytes);
    Ok(i32::try_from(bytes.len()).unwrap_or(i32::MAX))
}
