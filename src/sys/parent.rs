//! The process that started this one.

use std::io;
use std::os::fd::OwnedFd;

use nix::unistd::getppid;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys;

/// The process that started this one, to end with it. It is a pidfd (pidfd_open(2), Linux 5.3), so threads of
/// the parent may come and go.
///
/// ```
/// # async fn example() -> std::io::Result<()> {
/// let parent = kennel::internal::Parent::open()?;
/// tokio::select! {
///     () = parent.ended() => println!("it has ended"),
///     () = std::future::ready(()) => println!("it still runs"),
/// }
/// # Ok(())
/// # }
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
/// # runtime.block_on(example()).unwrap();
/// ```
#[derive(Debug)]
pub struct Parent(AsyncFd<OwnedFd>);

impl Parent {
    /// Opens the parent of this process.
    ///
    /// # Errors
    /// Errors of pidfd_open(2); `ESRCH` if the parent has ended meanwhile, or is outside of this pid
    /// namespace.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O enabled.
    pub fn open() -> io::Result<Self> {
        let parent = getppid();
        let process = sys::open_process(parent.as_raw().unsigned_abs())?;
        if getppid() != parent {
            return Err(nix::errno::Errno::ESRCH.into());
        }
        sys::watched(process, Interest::READABLE).map(Self)
    }

    /// Waits until it has ended.
    pub async fn ended(&self) {
        // If the wait fails, nobody could tell later either.
        let _ = self.0.readable().await;
    }
}
