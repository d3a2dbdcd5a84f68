//! Where a model finds what a result leaves out of an output: the whole output, in a file of the sandbox.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use kennel::{Session, files::FileWriter};
use tokio::io::AsyncWriteExt;

use super::kept::Kept;

/// The largest such file, in bytes.
pub(super) const LARGEST: u64 = 4 << 20;

/// How many of them there are. An older one is removed.
const MOST: usize = 16;

/// The files of a server.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    last: AtomicU64,
    files: Mutex<VecDeque<String>>,
}

/// One stream of a command: what a result has of it, and its file if that is not all.
#[derive(Debug)]
pub(super) struct Stream<'s> {
    session: &'s Session,
    outputs: &'s Outputs,
    name: &'static str,
    kept: Kept,
    /// What the file does not have yet.
    pending: Vec<u8>,
    /// Whether the output is longer than the result.
    is_long: bool,
    taken: u64,
    file: Option<(String, FileWriter)>,
    /// Whether the file could not be written.
    is_lost: bool,
}

impl Outputs {
    pub(super) fn stream<'s>(&'s self, session: &'s Session, name: &'static str, cap: usize) -> Stream<'s> {
        Stream {
            session,
            outputs: self,
            name,
            kept: Kept::new(cap),
            pending: Vec::new(),
            is_long: false,
            taken: 0,
            file: None,
            is_lost: false,
        }
    }

    /// Remembers a new file. Returns the one that is one too many.
    fn remember(&self, path: &str) -> Option<String> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.push_back(path.to_owned());
        if files.len() > MOST { files.pop_front() } else { None }
    }
}

impl Stream<'_> {
    /// Bytes so far.
    pub(super) fn seen(&self) -> u64 {
        self.kept.seen()
    }

    /// Takes what the command wrote next.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        if let Some(before) = self.kept.before_overflow(bytes.len()) {
            self.is_long = true;
            self.put(&before);
        }
        if self.is_long {
            self.put(bytes);
        }
        self.kept.add(bytes);
    }

    fn put(&mut self, bytes: &[u8]) {
        let room = usize::try_from(LARGEST - self.taken).unwrap_or(0);
        let fits = bytes.get(..room.min(bytes.len())).unwrap_or_default();
        self.taken += fits.len() as u64;
        self.pending.extend(fits);
    }

    /// Writes what was taken. Dropping the future loses nothing.
    pub(super) async fn write(&mut self) {
        if !self.is_lost && !self.pending.is_empty() {
            self.is_lost = self.try_write().await.is_none();
        }
        if self.is_lost {
            self.pending = Vec::new();
        }
    }

    async fn try_write(&mut self) -> Option<()> {
        if self.file.is_none() {
            let number = self.outputs.last.fetch_add(1, Relaxed) + 1;
            let path = format!("/tmp/kennel-{number}-{}", self.name);
            let file = self.session.open_write(&path).await.ok()?;
            self.file = Some((path, file));
        }
        let (_, file) = self.file.as_mut()?;
        while !self.pending.is_empty() {
            let count = file.write(&self.pending).await.ok()?;
            self.pending.drain(..count);
        }
        Some(())
    }

    /// What the result has, and where the rest is.
    pub(super) async fn end(mut self) -> (Kept, Whereabouts) {
        self.write().await;
        let is_whole = self.taken == self.kept.seen();
        let Some((path, file)) = self.file.filter(|_| !self.is_lost) else {
            return (self.kept, Whereabouts { path: None, is_whole });
        };
        let path = file.commit().await.is_ok().then_some(path);
        if let Some(old) = path.as_ref().and_then(|path| self.outputs.remember(path)) {
            // A command may have removed it.
            let _ = self.session.remove(old).await;
        }
        (self.kept, Whereabouts { path, is_whole })
    }
}

/// Where the whole output is.
#[derive(Debug)]
pub(super) struct Whereabouts {
    pub(super) path: Option<String>,
    is_whole: bool,
}

impl Whereabouts {
    /// For a model.
    pub(super) fn words(&self) -> String {
        match &self.path {
            Some(path) if self.is_whole => {
                format!("the whole output is in {path}: search it, or read_file reads parts of it")
            }
            Some(path) => format!("the first {} MiB of the output are in {path}", LARGEST >> 20),
            None => "run it again with its output in a file, and read parts of it".to_owned(),
        }
    }
}
