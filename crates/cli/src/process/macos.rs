//! What this process asks macOS about itself. `linux.rs` has the same names.

use std::{io, os::fd::AsFd, path::PathBuf};

use nix::{
    fcntl::{FcntlArg, fcntl},
    sys::resource::{Resource, setrlimit},
};

/// The directory of this process's descriptors: fd(4).
pub(super) const DESCRIPTORS: &str = "/dev/fd";

/// The name of a descriptor's file: fcntl(F_GETPATH).
///
/// # Errors
/// Those of fcntl(2).
pub(super) fn name_of(given: impl AsFd) -> io::Result<PathBuf> {
    let mut name = PathBuf::new();
    fcntl(given, FcntlArg::F_GETPATH(&mut name))?;
    Ok(name)
}

pub(super) use kennel::internal::ignored_signals;

/// Lets this process leave no core file.
pub(super) fn leave_no_core_file() {
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
}
