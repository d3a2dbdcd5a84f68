//! The processes of a command: all of its pid namespace, or those with its mark.

use crate::{
    kernel::{ESRCH, RLIMIT_RTTIME},
    processes::{self, Looks},
    sys::{self, Errno},
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
    /// Sends a signal to every process of the command but this one: kill(2).
    pub(crate) fn signal(self, number: u32) -> Result<(), Errno> {
        match self {
            Self::Namespace => sys::kill(ALL_PROCESSES, number),
            Self::Mark(mark) => {
                Marked { mark, spared: sys::own_pid() }.signal(number, 0, &mut Looks::default()).map(drop)
            }
        }
    }
}

/// What one look at the marked processes has found.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    /// Those that began later than the kill, or that could not be killed; and one more if some may have been
    /// missed.
    pub(crate) new: u32,
    /// Those that have got the signal and have not ended yet.
    pub(crate) dying: u32,
}

/// The processes with a mark, but one.
#[derive(Clone, Copy)]
pub(crate) struct Marked {
    pub(crate) mark: u64,
    pub(crate) spared: usize,
}

impl Marked {
    /// Looks at each process of the pid namespace once, and sends a signal to those. Tells those that began
    /// before `since`, in ticks since the boot: an earlier look has killed them, or this one has. A process
    /// that is born meanwhile has a higher pid in most cases, and then it comes later in the same listing.
    // Inlining would add a kilobyte to the image.
    #[inline(never)]
    pub(crate) fn signal(self, number: u32, since: u64, looks: &mut Looks) -> Result<Found, Errno> {
        let mut found = Found { new: 0, dying: 0 };
        let is_complete = looks.look(|pid| match self.signal_one(pid as usize, number) {
            Err(Errno(ESRCH)) => false,
            Ok(None) => true,
            Ok(Some(began)) if began < since => {
                found.dying = found.dying.saturating_add(1);
                true
            }
            Ok(Some(_)) | Err(_) => {
                found.new = found.new.saturating_add(1);
                true
            }
        })?;
        found.new = found.new.saturating_add(u32::from(!is_complete));
        Ok(found)
    }

    /// Sends a signal to a process, if it is one of those. Returns when it began. `ESRCH` if it has ended.
    fn signal_one(self, pid: usize, number: u32) -> Result<Option<u64>, Errno> {
        let has_mark = || sys::limit_of(pid, RLIMIT_RTTIME).map(|[_, hard]| hard == self.mark);
        match has_mark() {
            Ok(true) if pid != self.spared => {}
            Err(errno @ Errno(ESRCH)) => return Err(errno),
            _ => return Ok(None),
        }
        // The pidfd stays with its process. If another one took the number, the mark tells.
        let process = sys::open_process(pid)?;
        if !has_mark()? || sys::has_ended(&process) {
            return Err(Errno(ESRCH));
        }
        sys::signal_process(&process, number)?;
        processes::stat(pid as i32).map(|stat| Some(stat.began)).ok_or(Errno(ESRCH))
    }
}
