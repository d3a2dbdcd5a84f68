//! Creating children: one that shares memory with its parent, and one that does not.

use core::mem::MaybeUninit;

use super::*;

/// clone(CLONE_VM | CLONE_VFORK): runs `entry(argument)` in a child that shares this memory; this process
/// sleeps until the child executes a program or ends.
pub(crate) fn vfork<T>(
    stack: &mut [MaybeUninit<u8>],
    entry: extern "C" fn(*mut u8) -> !,
    argument: &mut T,
) -> Result<i32, Errno> {
    let flags = CLONE_VM | CLONE_VFORK | SIGCHLD as usize;
    // SAFETY: `stack` is writable and has no other user. The parent does not run while the child may use it
    // or `argument`, so both borrows outlive the child's use of them.
    let pid = unsafe { arch::vfork_call(flags, top(stack), entry, ptr::from_mut(argument).cast()) };
    i32::try_from(check(pid)?).map_err(|_| Errno(EPROTO))
}

/// clone(CLONE_NEWPID); if there is a `leaf`, clone3(CLONE_INTO_CGROUP) with it (Linux 5.7). The child gets a
/// copy of this memory and is PID 1 of a new pid namespace. Returns `None` in the child and the child's PID
/// in the parent.
pub(crate) fn fork_into_new_pid_namespace(leaf: Option<&Fd>) -> Result<Option<i32>, Errno> {
    let pid = match leaf {
        None => call!(nr::CLONE, CLONE_NEWPID | SIGCHLD as usize, 0, 0, 0, 0)?,
        Some(leaf) => {
            let wanted = CloneArgs {
                flags: CLONE_NEWPID as u64 | CLONE_INTO_CGROUP,
                handles: [0; 3],
                exit_signal: u64::from(SIGCHLD),
                memory: [0; 5],
                cgroup: u64::from(leaf.number()),
            };
            call!(nr::CLONE3, &raw const wanted, size_of::<CloneArgs>())?
        }
    };
    let pid = i32::try_from(pid).map_err(|_| Errno(EPROTO))?;
    Ok((pid > 0).then_some(pid))
}

/// fork(2). Returns `None` in the child and the child's PID in the parent.
pub(crate) fn fork() -> Result<Option<i32>, Errno> {
    let pid = call!(nr::CLONE, SIGCHLD as usize, 0, 0, 0, 0)?;
    let pid = i32::try_from(pid).map_err(|_| Errno(EPROTO))?;
    Ok((pid > 0).then_some(pid))
}

/// The first aligned address above a stack.
fn top(stack: &mut [MaybeUninit<u8>]) -> *mut u8 {
    let top = stack.as_mut_ptr_range().end.cast::<u8>();
    top.wrapping_sub(top.addr() % 16)
}

/// The argument that [`vfork`] passed to its entry.
///
/// # Safety
/// `argument` must be what an entry of `vfork::<T>` received.
pub(crate) unsafe fn vfork_argument<'a, T>(argument: *mut u8) -> &'a mut T {
    // SAFETY: the caller vouches that it is the `&mut T` given to `vfork`, whose owner sleeps.
    unsafe { &mut *argument.cast() }
}
