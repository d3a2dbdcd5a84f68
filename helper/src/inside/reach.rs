//! The processes of a command: all of its pid namespace, or those with its mark.

use crate::{
    kernel::{ESRCH, RLIMIT_RTTIME, SIGKILL},
    processes,
    sys::{self, Errno, Fd},
};

/// Every process of the pid namespace but init and this one.
pub(crate) const ALL_PROCESSES: i32 = -1;

/// Which processes belong to a command.
#[derive(Clone, Copy)]
pub(crate) enum Reach {
    /// All of the pid namespace. This process is its init.
    Namespace,
    /// Those with this mark (`mark` in control.rs). Other commands share the pid namespace.
    Mark(u64),
}

impl Reach {
    /// Sends a signal to every process of the command but this one: kill(2). `ESRCH` if there is none.
    pub(crate) fn signal(self, number: u32) -> Result<(), Errno> {
        match self {
            Self::Namespace => sys::kill(ALL_PROCESSES, number),
            Self::Mark(mark) => signal_marked(mark, number),
        }
    }
}

fn signal_marked(mark: u64, number: u32) -> Result<(), Errno> {
    let own = sys::own_pid();
    let mut found = Err(Errno(ESRCH));
    each_marked(mark, |pid, process| {
        let is_sent = pid != own && process.is_ok_and(|process| sys::signal_process(process, number).is_ok());
        if is_sent {
            found = Ok(());
        }
    })?;
    found
}

/// What one look at the marked processes has found.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    /// Those that began later than the kill, or that could not be killed.
    pub(crate) new: u32,
    /// Those that have got SIGKILL and have not ended yet.
    pub(crate) dying: u32,
}

/// SIGKILL to every process with the mark, except `spared`. Tells those that began before `since`, in ticks since the
/// boot: an earlier look has killed them, or this one has.
pub(crate) fn kill_marked(mark: u64, spared: u32, since: u64) -> Result<Found, Errno> {
    let mut found = Found { new: 0, dying: 0 };
    each_marked(mark, |pid, process| {
        if pid == spared as usize || process.is_ok_and(sys::has_ended) {
            return;
        }
        let killed = process.map_err(Errno::clone).and_then(|process| sys::signal_process(process, SIGKILL));
        match killed {
            Err(Errno(ESRCH)) => {}
            Ok(()) if processes::stat(pid as i32).is_some_and(|stat| stat.began < since) => {
                found.dying = found.dying.saturating_add(1);
            }
            Ok(()) | Err(_) => found.new = found.new.saturating_add(1),
        }
    })?;
    Ok(found)
}

/// Looks at each process of the pid namespace once, and hands out those with the mark, or why one could not be opened. A
/// process that is born meanwhile has a higher pid in most cases, and then it comes later in the same listing.
fn each_marked(mark: u64, mut act: impl FnMut(usize, Result<&Fd, &Errno>)) -> Result<(), Errno> {
    processes::each(|pid| {
        let pid = pid.unsigned_abs() as usize;
        if !has_mark(pid, mark) {
            return;
        }
        match &sys::open_process(pid) {
            // The pidfd stays with its process. If another one took the number, the mark tells.
            Ok(process) if has_mark(pid, mark) => act(pid, Ok(process)),
            Ok(_) => {}
            Err(errno) => act(pid, Err(errno)),
        }
    })
}

fn has_mark(pid: usize, mark: u64) -> bool {
    sys::limit_of(pid, RLIMIT_RTTIME).is_ok_and(|[_, hard]| hard == mark)
}
