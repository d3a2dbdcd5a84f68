//! `kennel session snapshot`: the session hands out what its commands changed, and this process stores it.

use std::process::ExitCode;

use kennel::{Error, client::Client};

use super::{
    import::{name, tell},
    namespace, writer,
};
use crate::args::session::Snapshot;

pub(crate) fn snapshot(arguments: &Snapshot) -> Result<ExitCode, Error> {
    let name = name(&arguments.image)?;
    let snapshot = Client::connect(&arguments.session)?.snapshot()?;
    // The session takes no client from another namespace than its own.
    namespace::enter();
    let stored = snapshot.store(&writer()?, Some(&name))?;
    // The session goes on.
    drop(snapshot);
    tell(&[stored], arguments.output.json)?;
    Ok(ExitCode::SUCCESS)
}
