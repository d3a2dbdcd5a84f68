//! A file without a name, for what is too much to stay in memory of this process.

use std::fs::File;
use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use crate::sys;

/// What is too long for a packet, and grows.
#[derive(Debug)]
pub(crate) struct MemoryFile {
    file: File,
    length: u64,
}

impl MemoryFile {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { file: sys::nameless_file()?, length: 0 })
    }

    /// Appends these bytes.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        sys::without_sigxfsz(|| self.file.write_all_at(bytes, self.length))?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Appends what another one holds.
    #[cfg(target_os = "linux")]
    pub(crate) fn append_file(&mut self, other: &Self) -> io::Result<()> {
        let mut piece = vec![0; 1 << 16];
        let mut start = 0;
        while let Ok(rest @ 1..) = usize::try_from(other.length - start) {
            let piece = piece.get_mut(..rest.min(1 << 16)).unwrap_or_default();
            other.file.read_exact_at(piece, start)?;
            self.append(piece)?;
            start += piece.len() as u64;
        }
        Ok(())
    }

    /// Bytes in it.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.file.into()
    }
}
