//! Pipes that bytes pass through on their way from one socket to another. A few are made at the start and kept; a direction
//! has one only while bytes are in it, because the kernel counts what a user has in pipes, and gives small ones beyond 64
//! MiB.

use crate::sys::{self, Errno, Fd};

/// Pipes kept for the next turn.
const KEPT: usize = 4;

/// A pipe, empty unless a direction has it.
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

/// Pipes that nobody has.
pub(super) struct Pipes {
    kept: [Option<Pipe>; KEPT],
}

impl Pipes {
    /// Makes those that are kept, so that connections which find descriptors used up can pass their bytes.
    pub(super) fn new() -> Result<Self, Errno> {
        let mut kept = [const { None }; KEPT];
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
