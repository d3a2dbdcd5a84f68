//! The processes of a command: all of its pid namespace, or those with its mark.

use crate::{
    directory,
    kernel::{ESRCH, RLIMIT_RTTIME},
    sys::{self, Errno},
};

/// Every process of the pid namespace but init.
const ALL_PROCESSES: i32 = -1;

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

/// Looks at each process of the pid namespace once. A process that is born meanwhile has a higher pid in most cases,
/// and then it comes later in the same listing.
fn signal_marked(mark: u64, number: u32) -> Result<(), Errno> {
    let own = sys::own_pid();
    let mut found = Err(Errno(ESRCH));
    directory::each_process(|pid| {
        let pid = pid.unsigned_abs() as usize;
        if pid == own || !has_mark(pid, mark) {
            return;
        }
        // The pidfd stays with its process. If another one took the number, the mark tells.
        if let Ok(process) = sys::open_process(pid)
            && has_mark(pid, mark)
            && sys::signal_process(&process, number).is_ok()
        {
            found = Ok(());
        }
    })?;
    found
}

fn has_mark(pid: usize, mark: u64) -> bool {
    sys::limit_of(pid, RLIMIT_RTTIME).is_ok_and(|[_, hard]| hard == mark)
}
