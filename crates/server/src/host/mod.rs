//! A host: a process in which sandboxes live. It serves E2B's routes on a Unix socket, to the front only, and
//! goes on when the front dies. It ends itself when no front comes back.
//!
//! It asks no key: the front has done that. It takes no part in where a sandbox is made.

mod ports;
mod serving;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::Problem;
use crate::arguments::Host as Arguments;
use crate::sandboxes::Sandboxes;
use crate::wire::StateDirectory;

/// The niceness of a host and its commands.
const NICENESS: i32 = 5;

/// Runs a host until it is told to end, or nobody has asked for anything for too long.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Problem> {
    // Its commands inherit that, so that the front answers when they use every processor. More is always
    // allowed.
    let _ = rustix::process::setpriority_process(None, NICENESS);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(Problem::about("start threads"))?;
    runtime.block_on(host(arguments))
}

async fn host(arguments: &Arguments) -> Result<(), Problem> {
    let state = StateDirectory(arguments.state.clone());
    let _lock = lock(&state, arguments.index)?;
    let socket = state.host_socket(arguments.index);
    // The lock says that the socket of an earlier host is nobody's.
    let _ = fs::remove_file(&socket);
    let sandboxes = Sandboxes::new(state, arguments.name.clone(), arguments.index)
        .map_err(Problem::about("the state directory"))?;
    let listener = UnixListener::bind(&socket).map_err(Problem::about(socket.display()))?;
    let sandboxes = Arc::new(sandboxes);
    sandboxes.watch_all();
    let mut ending = signal(SignalKind::terminate()).map_err(Problem::about("SIGTERM"))?;
    // ^C of the front's terminal is the front's.
    let _interrupt = signal(SignalKind::interrupt()).map_err(Problem::about("SIGINT"))?;
    let orphaned = sandboxes.without_front(Duration::from_millis(arguments.orphan));
    tokio::select! {
        () = serving::serve(listener, &sandboxes) => {}
        () = orphaned => {}
        _ = ending.recv() => {}
    }
    let _ = fs::remove_file(&socket);
    sandboxes.end_all().await;
    Ok(())
}

/// A host of this index runs only once.
fn lock(state: &StateDirectory, index: u8) -> Result<Flock<File>, Problem> {
    let path = state.host_lock(index);
    let open = OpenOptions::new().create(true).write(true).truncate(false).mode(0o600).open(&path);
    let file = open.map_err(Problem::about(path.display()))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .map_err(|(_, errno)| Problem(format!("{}: another host has it: {errno}", path.display())))
}
