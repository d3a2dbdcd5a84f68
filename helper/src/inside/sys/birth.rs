//! Children that share memory with their parent.

use super::*;

/// clone(CLONE_VM | CLONE_VFORK): runs `entry(argument)` in a child that shares this memory; this process sleeps
/// until the child executes a program or ends.
pub(crate) fn vfork<T>(
    stack: &mut [u8],
    entry: extern "C" fn(*mut u8) -> !,
    argument: &mut T,
) -> Result<i32, Errno> {
    let flags = CLONE_VM | CLONE_VFORK | SIGCHLD as usize;
    // SAFETY: `stack` is writable and used by nobody else; the parent does not run while the child may use it
    // or `argument`, so both borrows outlive the child's use of them.
    let pid = unsafe {
        arch::clone_call(flags, top(stack), entry, ptr::from_mut(argument).cast(), ptr::null_mut())
    };
    i32::try_from(check(pid)?).map_err(|_| Errno(EPROTO))
}

/// The first aligned address above a stack.
fn top(stack: &mut [u8]) -> *mut u8 {
    let top = stack.as_mut_ptr_range().end;
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

/// mmap(2) of a stack and of `shared` beside it, both for good.
pub(crate) fn leak_stack<T: Sync>(size: usize, shared: T) -> Result<(&'static mut [u8], &'static T), Errno> {
    let length = size.checked_add(size_of::<T>()).ok_or(Errno(EINVAL))?;
    let flags = MAP_PRIVATE | MAP_ANONYMOUS;
    let base = ptr::with_exposed_provenance_mut::<u8>(call!(
        nr::MMAP,
        0,
        length,
        PROT_READ | PROT_WRITE,
        flags,
        -1i32,
        0
    )?);
    let value = base.cast::<T>();
    // SAFETY: a fresh mapping: page-aligned, large enough, nobody else's.
    unsafe { value.write(shared) };
    // SAFETY: written just now, never moved or unmapped.
    let shared = unsafe { &*value };
    // SAFETY: the rest of the mapping, disjoint from the value.
    let stack = unsafe { core::slice::from_raw_parts_mut(base.wrapping_add(size_of::<T>()), size) };
    Ok((stack, shared))
}

/// clone(CLONE_VM | CLONE_PIDFD): runs `entry(shared)` in a child that shares this memory and runs beside this
/// process.
pub(crate) fn assist<T: Sync>(
    stack: &'static mut [u8],
    entry: extern "C" fn(*mut u8) -> !,
    shared: &'static T,
) -> Result<(i32, Fd), Errno> {
    let flags = CLONE_VM | CLONE_PIDFD | SIGCHLD as usize;
    let argument = ptr::from_ref(shared).cast_mut().cast();
    let mut pidfd = -1i32;
    // SAFETY: the stack is the child's alone and stays for good; `shared` may be used from both sides.
    let pid = unsafe { arch::clone_call(flags, top(stack), entry, argument, &raw mut pidfd) };
    Ok((i32::try_from(check(pid)?).map_err(|_| Errno(EPROTO))?, Fd(pidfd)))
}

/// The argument that [`assist`] passed to its entry.
///
/// # Safety
/// `argument` must be what an entry of `assist::<T>` received.
pub(crate) unsafe fn shared_argument<T: Sync>(argument: *mut u8) -> &'static T {
    // SAFETY: the caller vouches that it is the `&'static T` given to `assist`.
    unsafe { &*argument.cast() }
}
