//! What the child does before it becomes the image, in memory that it borrows from its sleeping parent: only raw system
//! calls, no allocation, no lock.

use std::{
    ffi::{c_char, c_int, c_void},
    ptr,
};

use super::Birth;

/// Where it begins, with a live [`Birth`].
pub(super) extern "C" fn child_main(argument: *mut c_void) -> c_int {
    // SAFETY: `clone_vfork` passed its live `Birth`, and nobody else touches it while the parent sleeps.
    let birth = unsafe { &mut *argument.cast::<Birth<'_>>() };
    let rootless = if birth.is_callers { without_root() } else { Ok(()) };
    let kept = rootless.and_then(|()| keep_capabilities(birth.capabilities));
    birth.kept = kept.is_ok();
    birth.errno = kept.and_then(|()| execute(birth)).err().unwrap_or_default();
    1
}

/// prctl(PR_SET_SECUREBITS): uid 0 of the caller's user namespace would get every capability by execveat(2), and not
/// only those that are kept. In a namespace of its own the uid is not mapped yet, and others than root get none.
fn without_root() -> Result<(), c_int> {
    const NOROOT: libc::c_long = 1;
    // SAFETY: geteuid(2) only answers.
    if unsafe { libc::syscall(libc::SYS_geteuid) } != 0 {
        return Ok(());
    }
    // SAFETY: prctl(2) with integer arguments only.
    let bits = unsafe { libc::syscall(libc::SYS_prctl, libc::PR_GET_SECUREBITS, 0, 0, 0, 0) };
    errno_of(bits)?;
    // SAFETY: as above.
    errno_of(unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_SECUREBITS, bits | NOROOT, 0, 0, 0) })
}

/// Makes the capabilities survive execveat(2) of an ordinary file by who is not root: the ambient set.
fn keep_capabilities(capabilities: &[u32]) -> Result<(), c_int> {
    let header = [0x2008_0522u32, 0];
    let kept = capabilities.iter().fold(0u32, |set, capability| set | 1 << capability);
    // effective, permitted, inheritable, of the low 32 capabilities and then of the high ones
    let data = [kept, kept, kept, 0, 0, 0];
    // SAFETY: header and data have the layout of capset(2), version 3.
    errno_of(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) })?;
    for &capability in capabilities {
        let raise = libc::PR_CAP_AMBIENT_RAISE;
        // SAFETY: prctl(2) with integer arguments only.
        errno_of(unsafe { libc::syscall(libc::SYS_prctl, libc::PR_CAP_AMBIENT, raise, capability, 0, 0) })?;
    }
    Ok(())
}

/// Moves the control socket to descriptor 0 and becomes the image.
fn execute(birth: &Birth<'_>) -> Result<(), c_int> {
    // SAFETY: dup2(2) of a descriptor that the parent holds open; descriptor 0 is the child's own copy.
    errno_of(unsafe { libc::syscall(libc::SYS_dup2, birth.control, 0) })?;
    let empty: *const c_char = c"".as_ptr();
    let arguments = [c"kennel".as_ptr(), ptr::null()];
    let environment: [*const c_char; 1] = [ptr::null()];
    // SAFETY: the path is a C string and both arrays are NULL-terminated.
    errno_of(unsafe {
        libc::syscall(
            libc::SYS_execveat,
            birth.image,
            empty,
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    })
}

fn errno_of(answer: libc::c_long) -> Result<(), c_int> {
    if answer >= 0 {
        return Ok(());
    }
    // SAFETY: always valid; it is the calling thread's own, and the child borrows that of the sleeping parent.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    Err(unsafe { *errno })
}
