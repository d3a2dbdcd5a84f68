//! A network namespace, made by an assistant: making one takes the kernel as long as all mounts together, and
//! the two need not wait for each other where there is a second processor.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::{
    kernel::{CLONE_NEWNET, ETIMEDOUT, SIGKILL},
    sys::{self, Errno, Fd},
};

/// Room for the assistant's few frames.
const STACK: usize = 16 * 1024;

/// The answer while there is none yet.
const PENDING: u32 = u32::MAX;

/// An assistant that was killed from outside never answers; PID 1 must not wait for it for good.
const LONGEST_WAIT_S: u32 = 20;

/// What the assistant and PID 1 share.
struct Shared {
    /// [`PENDING`], then the errno, 0 for success.
    answer: AtomicU32,
}

/// The assistant: a process that shares PID 1's memory and is killed once its namespace was entered. Init reaps it
/// like any other.
pub(crate) struct Network {
    pid: i32,
    pidfd: Fd,
    shared: &'static Shared,
}

impl Network {
    /// Starts making a namespace.
    pub(crate) fn begin() -> Result<Self, Errno> {
        let (stack, shared) = sys::leak_stack(STACK, Shared { answer: AtomicU32::new(PENDING) })?;
        let (pid, pidfd) = sys::assist(stack, make, shared)?;
        Ok(Self { pid, pidfd, shared })
    }

    /// The assistant's pid.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits until the namespace is there, and enters it.
    pub(crate) fn join(&self) -> Result<(), Errno> {
        let mut waits = 0..LONGEST_WAIT_S;
        while self.shared.answer.load(Ordering::Acquire) == PENDING && waits.next().is_some() {
            sys::futex_wait(&self.shared.answer, PENDING)?;
        }
        let entered = match self.shared.answer.load(Ordering::Acquire) {
            PENDING => Err(Errno(ETIMEDOUT)),
            0 => sys::enter_namespace(&self.pidfd, CLONE_NEWNET),
            errno => Err(Errno(errno.cast_signed())),
        };
        // The namespace lives on in who entered it. From here on the assistant executes nothing any more.
        sys::kill(self.pid, SIGKILL)?;
        entered
    }
}

/// The assistant's whole life: make the namespace, say so, and stay until killed, because the namespace is entered
/// through it.
extern "C" fn make(argument: *mut u8) -> ! {
    #[expect(unsafe_code, reason = "the other half of assist")]
    // SAFETY: `begin` passed its `Shared`, which is never freed.
    let shared: &Shared = unsafe { sys::shared_argument(argument) };
    let made = sys::unshare(CLONE_NEWNET).and_then(|()| sys::loopback_up());
    shared.answer.store(made.err().map_or(0, |errno| errno.0.cast_unsigned()), Ordering::Release);
    sys::futex_wake(&shared.answer);
    loop {
        sys::pause();
    }
}
