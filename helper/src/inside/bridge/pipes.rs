//! Pipes that carry bytes from one socket to another. The bridge creates a few at the start and keeps them. A
//! direction holds one only while it contains bytes: the kernel counts each user's pipe memory and shrinks
//! pipes beyond 64 MiB.

use crate::sys::{self, Errno, Fd};

/// Number of idle pipes to keep.
const KEPT_PIPES: usize = 4;

/// A pipe. It is empty unless a direction holds it.
pub(super) struct Pipe {
    pub(super) out: Fd,
    pub(super) into: Fd,
}

impl Pipe {
    fn new() -> Result<Self, Errno> {
        let [out, into] = sys::pipe()?;
        Ok(Self { out, into })
    }
}

/// The idle pipes.
pub(super) struct Pipes {
    kept: [Option<Pipe>; KEPT_PIPES],
}

impl Pipes {
    /// Creates the kept pipes, so that connections can pass bytes even if descriptors run out.
    pub(super) fn new() -> Result<Self, Errno> {
        let mut kept = [const { None }; KEPT_PIPES];
        for place in &mut kept {
            *place = Some(Pipe::new()?);
        }
        Ok(Self { kept })
    }

    /// An empty pipe.
    pub(super) fn take(&mut self) -> Result<Pipe, Errno> {
        if let Some(pipe) = self.kept.iter_mut().find_map(Option::take) {
            return Ok(pipe);
        }
        Pipe::new()
    }

    /// Takes an empty pipe back.
    pub(super) fn give_back(&mut self, pipe: Pipe) {
        if let Some(free) = self.kept.iter_mut().find(|kept| kept.is_none()) {
            *free = Some(pipe);
        }
    }
}
