//! One function per system call, typed and safe to call. All unsafe code of the inside is here, except the
//! assembly.
#![expect(unsafe_code, reason = "the one fence around system calls")]

use core::{ffi::CStr, mem, ptr};

use crate::{arch, kernel::*, wire::List};

/// A kernel error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

/// A descriptor, closed when dropped.
#[derive(Debug)]
pub(crate) struct Fd(i32);

impl Fd {
    /// Descriptor 0, the control socket that the outside opened. Never closed through this name.
    pub(crate) const INHERITED: &'static Self = &Self(0);

    /// Takes ownership of a received descriptor.
    pub(crate) fn adopt(number: i32) -> Self {
        Self(number)
    }

    pub(crate) fn number(&self) -> u32 {
        self.0.cast_unsigned()
    }

    fn raw(&self) -> usize {
        self.0 as usize
    }
}

impl Drop for Fd {
    // Inlining would add a kilobyte to the image, for owners of several descriptors.
    #[inline(never)]
    fn drop(&mut self) {
        // SAFETY: close(2) takes a number; this value owns it and is gone after this.
        let _ = unsafe { arch::syscall(nr::CLOSE, [self.raw(), 0, 0, 0, 0, 0]) };
    }
}

/// Every call below has the same obligation: each pointer among `arguments` is valid for what the system call
/// reads or writes there. Callers meet it by passing addresses of live references with their true sizes.
macro_rules! call {
    ($number:expr $(, $argument:expr)* $(,)?) => {{
        let arguments = six([$( $argument as usize ),*]);
        // SAFETY: see above: pointers come from references that outlive the call, sizes from their types.
        check(unsafe { arch::syscall($number, arguments) })
    }};
}

mod birth;
#[cfg(not(kennel_client))]
mod bridge;
#[cfg(not(kennel_client))]
mod cgroups;
#[cfg(kennel_client)]
mod client;
#[cfg(not(kennel_client))]
pub(crate) mod directory;
mod files;
mod mounts;
mod namespaces;
mod process;
#[cfg(not(kennel_client))]
mod shell;
mod sockets;
mod terminal;
mod walls;

#[cfg(kennel_client)]
pub(crate) use self::client::*;
#[cfg_attr(
    kennel_client,
    expect(unused_imports, reason = "the client makes fewer calls than the inside")
)]
pub(crate) use self::{
    birth::*, files::*, mounts::*, namespaces::*, process::*, sockets::*, terminal::*, walls::*,
};
#[cfg(not(kennel_client))]
pub(crate) use self::{bridge::*, cgroups::*, shell::*};

/// Fills the missing arguments with zeros.
fn six<const N: usize>(arguments: [usize; N]) -> [usize; 6] {
    let mut padded = [0; 6];
    for (slot, argument) in padded.iter_mut().zip(arguments) {
        *slot = argument;
    }
    padded
}

fn check(answer: isize) -> Result<usize, Errno> {
    if (-4095..0).contains(&answer) {
        return Err(Errno(i32::try_from(answer.unsigned_abs()).unwrap_or(EPROTO)));
    }
    Ok(answer.cast_unsigned())
}

/// Takes ownership of a descriptor that a call returned.
pub(crate) fn fd(answer: usize) -> Fd {
    Fd(i32::try_from(answer).unwrap_or(-1))
}
