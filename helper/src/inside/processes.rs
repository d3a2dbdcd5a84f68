//! The processes of this pid namespace, as /proc shows them. Commands choose which there are, and nothing else about what
//! is read here.

use core::ffi::CStr;

use crate::{
    digits::{decimal, number, value},
    directory::{Entry, next},
    sys::{self, Errno},
};

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

/// A process, as proc_pid_stat(5) has it.
pub(crate) struct Stat {
    pub(crate) parent: i32,
    /// When it started, in hundredths of a second since the boot.
    pub(crate) began: u64,
}

/// Looks at one process; `None` if it is gone.
pub(crate) fn stat(pid: i32) -> Option<Stat> {
    let mut path = [0u8; 32];
    let mut digits = [0u8; 10];
    let text = b"/proc/".iter().chain(decimal(pid.unsigned_abs(), &mut digits)).chain(b"/stat");
    for (to, &from) in path.iter_mut().zip(text) {
        *to = from;
    }
    let file = sys::open_for_reading(CStr::from_bytes_until_nul(&path).ok()?).ok()?;
    let mut buffer = [0u8; 1024];
    let text = sys::read(&file, &mut buffer).ok()?;
    // The name is in parentheses and may contain any other byte.
    let end = text.iter().rposition(|&byte| byte == b')')?;
    let mut fields = text.get(end..)?.split(|&byte| byte == b' ');
    let parent = number(fields.nth(2)?)?;
    let began = fields.nth(17)?;
    let began =
        began.iter().try_fold(0u64, |sum, digit| sum.checked_mul(10)?.checked_add(value(*digit)?.into()))?;
    Some(Stat { parent, began })
}
