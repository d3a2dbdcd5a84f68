//! What this process needs for its own work: a runtime, descriptors, signals, an exit status. It knows no
//! command line and no policy.

#[cfg(target_os = "linux")]
pub(crate) mod beside;
pub(crate) mod descriptor;
pub(crate) mod exit_status;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;
pub(crate) mod signals;

use std::{io, os::fd::AsFd, thread::JoinHandle, time::Duration};

use kennel::Error;
#[cfg(target_os = "linux")]
use linux as system;
#[cfg(target_os = "macos")]
use macos as system;
use nix::sys::{
    resource::{Resource, getrlimit},
    signal::SigSet,
};
use tokio::runtime::{Builder, Runtime};

/// How long an idle blocking thread stays if the runtime can start another one later.
pub(crate) const IDLE_THREAD: Duration = Duration::from_secs(10);

/// Most descriptors that the runtime and one sandbox keep open.
const NEEDED_DESCRIPTORS: usize = 20;

/// Builds a runtime with one thread, which only waits. Blocking threads end after `idle` without work.
pub(crate) fn runtime(idle: Duration) -> Result<Runtime, Error> {
    check_free_descriptors().map_err(|source| Error::Io { what: "start the runtime", source })?;
    Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(idle)
        .build()
        .map_err(|source| Error::Io { what: "start the runtime", source })
}

/// Starts the blocking thread that commits changes and loads programs before any command runs: the runtime
/// panics if it cannot start one later.
pub(crate) async fn start_blocking_thread() -> Result<(), Error> {
    let _ = std::thread::Builder::new().spawn(|| ()).map_err(thread_error)?.join();
    let _ = tokio::task::spawn_blocking(|| ()).await;
    Ok(())
}

/// Starts a thread that takes no signals. One that this process sends to itself has then arrived when kill(2)
/// returns: another thread could take it later, when SIGCONT has discarded it.
///
/// # Errors
/// Those of pthread_create(3).
pub(crate) fn start_thread<T: Send + 'static>(
    what: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    std::thread::Builder::new().spawn(move || {
        let _ = SigSet::all().thread_block();
        what()
    })
}

/// The error if the system starts no thread.
pub(crate) fn thread_error(source: io::Error) -> Error {
    Error::Io { what: "start a thread", source }
}

/// Fails if there are too few free descriptors: the runtime panics if it runs out of them while it starts.
fn check_free_descriptors() -> io::Result<()> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < 256 {
        let spare: io::Result<Vec<_>> =
            (0..NEEDED_DESCRIPTORS).map(|_| io::stdin().as_fd().try_clone_to_owned()).collect();
        drop(spare?);
    }
    Ok(())
}
