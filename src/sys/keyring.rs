//! The session keyring of this process; see session-keyring(7).

use std::io;

use nix::errno::Errno;

/// keyctl(KEYCTL_JOIN_SESSION_KEYRING): leaves the session keyring of the login for an empty one, before this
/// process changes its user. A process keeps its keyring then, and whoever traces it could read the keys.
///
/// Where the kernel has no keys, or refuses every call about them, there is nothing to leave.
///
/// # Errors
/// `EDQUOT` if the user has too many keys.
///
/// ```
/// kennel::internal::leave_session_keyring()?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn leave_session_keyring() -> io::Result<()> {
    let none: *const libc::c_char = std::ptr::null();
    // SAFETY: a system call with a number and NULL, which stands for a keyring without a name.
    let joined = unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, none) };
    match Errno::result(joined) {
        Ok(_) | Err(Errno::ENOSYS | Errno::EPERM | Errno::EOPNOTSUPP) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
