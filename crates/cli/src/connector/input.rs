//! What `kennel connector` reads: programs, and the arguments of an operation.

use std::{
    io::{self, Read},
    path::Path,
};

use kennel::{Error, broker::SpawnPolicy};
use serde_json::{Map, Value};

use crate::{args::connector::Run, credentials};

/// The largest program, in bytes.
const MAX_PROGRAM: u64 = 256 << 20;
/// The largest text with arguments, in bytes.
const MAX_ARGUMENTS: u64 = 16 << 20;

/// Reads a program.
///
/// # Errors
/// It cannot be read, or is too large.
pub(super) fn program(path: &Path) -> Result<Vec<u8>, Error> {
    read("read connector", path, MAX_PROGRAM)
}

/// The arguments of an operation.
///
/// # Errors
/// They are no JSON object, cannot be read, or one is given twice.
pub(super) fn arguments(run: &Run, policy: &SpawnPolicy) -> Result<Map<String, Value>, Error> {
    let wrong = |reason: String, value: &str| {
        Err(Error::Command { what: "--args-json", value: value.to_owned(), reason })
    };
    let mut arguments = match run.args_json.as_deref() {
        None => Map::new(),
        Some(given) => {
            let text = match given {
                "-" => read_all("read arguments from", "-".as_ref(), io::stdin(), MAX_ARGUMENTS)?,
                text if text.trim_start().starts_with('{') => text.as_bytes().to_vec(),
                path => {
                    credentials::check_outside(policy, "file of arguments", path.as_ref())?;
                    read("read arguments from", path.as_ref(), MAX_ARGUMENTS)?
                }
            };
            // The text itself may be secret, and what is wrong with it may quote it.
            match serde_json::from_slice(&text) {
                Ok(Value::Object(members)) => members,
                Ok(_) => return wrong("expected a JSON object".to_owned(), origin(given)),
                Err(error) => {
                    let at = format!("line {} column {}", error.line(), error.column());
                    return wrong(format!("not valid JSON at {at}; expected an object"), origin(given));
                }
            }
        }
    };
    for (name, value) in &run.arg {
        if arguments.insert(name.clone(), value.clone().into()).is_some() {
            let reason = "is given twice".to_owned();
            return Err(Error::Command { what: "--arg", value: name.clone(), reason });
        }
    }
    Ok(arguments)
}

/// Where arguments come from, without their text.
fn origin(given: &str) -> &str {
    if given.trim_start().starts_with('{') { "{…}" } else { given }
}

fn read(what: &'static str, path: &Path, most: u64) -> Result<Vec<u8>, Error> {
    let file = credentials::open(path).map_err(|source| unread(what, path, source))?;
    read_all(what, path, file, most)
}

fn read_all(what: &'static str, path: &Path, from: impl Read, most: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes).map_err(|source| unread(what, path, source))?;
    if bytes.len() as u64 > most {
        let reason = format!("it is larger than {} MiB", most >> 20);
        return Err(unread(what, path, io::Error::new(io::ErrorKind::FileTooLarge, reason)));
    }
    Ok(bytes)
}

fn unread(what: &'static str, path: &Path, source: io::Error) -> Error {
    let remedy = match source.kind() {
        io::ErrorKind::NotFound => Some("name a file that is there".into()),
        io::ErrorKind::PermissionDenied => Some("run as a user who may read it".into()),
        _ => None,
    };
    Error::File { what, path: path.to_owned(), source, remedy }
}
