//! The processes of this pid namespace, as /proc shows them. Commands choose which there are, and nothing
//! else about what is read here.

use core::ffi::CStr;

use crate::{
    digits::{decimal, number, value},
    kernel::{EPROTO, SIGSTOP},
    sys::{
        self, Errno,
        directory::{Entry, next},
    },
};

/// How many PIDs are remembered at a time.
const MANY: usize = 1024;

/// Calls `act` with the PID of each process of this pid namespace: one listing of /proc.
pub(crate) fn each(mut act: impl FnMut(i32)) -> Result<(), Errno> {
    let processes = sys::open_for_reading(c"/proc")?;
    let mut buffer = [0u8; 1024];
    loop {
        let mut rest = sys::entries(&processes, &mut buffer)?;
        if rest.is_empty() {
            return Ok(());
        }
        while let Some((Entry { name, .. }, after)) = next(rest) {
            if let Some(pid) = name.and_then(|name| number(name.to_bytes())) {
                act(pid);
            }
            rest = after;
        }
    }
}

/// Like [`each`], but the highest PID comes first: children mostly come before their parents.
pub(crate) fn each_backwards(mut act: impl FnMut(i32)) -> Result<(), Errno> {
    let mut below = i32::MAX;
    loop {
        // The highest ones that have not had their turn.
        let (mut pids, mut count) = ([0i32; MANY], 0usize);
        each(|pid| {
            if let Some(slot) = pids.get_mut(count % MANY).filter(|_| pid < below) {
                *slot = pid;
                count = count.wrapping_add(1);
            }
        })?;
        for back in 1..=count.min(MANY) {
            below = pids.get(count.wrapping_sub(back) % MANY).copied().unwrap_or_default();
            act(below);
        }
        if count <= MANY {
            return Ok(());
        }
    }
}

/// Looks that follow one another, each of which deals with every process that it finds alive.
#[derive(Default)]
pub(crate) struct Looks {
    /// The last PID before the last look.
    seen: i32,
}

impl Looks {
    /// Like [`each`]; `act` returns whether the process was still there. Returns whether none can have been
    /// missed.
    ///
    /// A process that ends before its turn may have forked, and the child may not be in the listing. Then a
    /// PID was given during the look, and the process is one that the last look has not dealt with.
    pub(crate) fn look(&mut self, mut act: impl FnMut(i32) -> bool) -> Result<bool, Errno> {
        let last = last_pid()?;
        // Numbers begin again after the highest one.
        let seen = if last < self.seen { 0 } else { self.seen };
        let mut is_complete = true;
        each(|pid| is_complete &= act(pid) || pid <= seen)?;
        self.seen = last;
        Ok(is_complete || last_pid()? == last)
    }
}

/// The last PID that this namespace gave, from proc_loadavg(5).
pub(crate) fn last_pid() -> Result<i32, Errno> {
    let mut buffer = [0u8; 128];
    let text = sys::read(&sys::open_for_reading(c"/proc/loadavg")?, &mut buffer)?;
    let last = text.split(|&byte| byte == b' ' || byte == b'\n').nth(4);
    last.and_then(number).ok_or(Errno(EPROTO))
}

/// A process, as proc_pid_stat(5) has it.
pub(crate) struct Stat {
    pub(crate) parent: i32,
    /// When it started, in hundredths of a second since the boot.
    pub(crate) began: u64,
}

/// Looks at one process; `None` if it is gone.
pub(crate) fn stat(pid: i32) -> Option<Stat> {
    let mut buffer = [0u8; 1024];
    let text = read(pid, b"/stat", &mut buffer)?;
    // The name is in parentheses and may contain any other byte.
    let end = text.iter().rposition(|&byte| byte == b')')?;
    let mut fields = text.get(end..)?.split(|&byte| byte == b' ');
    let parent = number(fields.nth(2)?)?;
    let began = fields.nth(17)?;
    let began =
        began.iter().try_fold(0u64, |sum, digit| sum.checked_mul(10)?.checked_add(value(*digit)?.into()))?;
    Some(Stat { parent, began })
}

/// Whether a process had been stopped before it got the SIGSTOP that is still pending: proc_pid_status(5).
/// SIGCONT takes both back.
pub(crate) fn is_stopped_twice(pid: i32) -> bool {
    // Groups come before what is looked for. If there are more, the answer is no.
    let mut buffer = [0u8; 4096];
    let Some(text) = read(pid, b"/status", &mut buffer) else { return false };
    let mut lines = text.split(|&byte| byte == b'\n');
    let is_stopped = lines.any(|line| line.starts_with(b"State:\tT"));
    let pending = lines.find_map(|line| line.strip_prefix(b"ShdPnd:\t")).unwrap_or_default();
    let pending = pending.iter().fold(0u64, |sum, &digit| {
        sum << 4 | u64::from(value(digit).unwrap_or(digit.wrapping_sub(b'a').wrapping_add(10)))
    });
    is_stopped && pending >> SIGSTOP.wrapping_sub(1) & 1 == 1
}

/// Reads a file of a process, once; `None` if the process is gone.
fn read<'b>(pid: i32, name: &[u8], buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    let mut path = [0u8; 32];
    let mut digits = [0u8; 10];
    let text = b"/proc/".iter().chain(decimal(pid.unsigned_abs(), &mut digits)).chain(name);
    for (to, &from) in path.iter_mut().zip(text) {
        *to = from;
    }
    let file = sys::open_for_reading(CStr::from_bytes_until_nul(&path).ok()?).ok()?;
    sys::read(&file, buffer).ok()
}
