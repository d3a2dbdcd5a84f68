//! Results that cannot be stored now, because NATS cannot be reached: in memory up to a bound, then in files.
//! The next server of the state directory finds those files.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_nats::connection::State;
use bytes::Bytes;
use tokio::time::sleep;

use crate::queue::places::Places;
use crate::queue::results::Parcel;
use crate::queue::{AGAIN, Worker};
use crate::say;

/// The most bytes in memory.
const MOST_IN_MEMORY: usize = 64 << 20;

pub(crate) struct Kept {
    directory: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    parcels: VecDeque<Held>,
    /// Of those in memory.
    bytes: usize,
}

#[derive(Clone)]
enum Held {
    Memory(Box<Parcel>),
    File(PathBuf),
}

impl Kept {
    /// With those that a server before has left.
    pub(crate) fn open(directory: PathBuf) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let mut inner = Inner::default();
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "new") {
                fs::remove_file(path)?;
            } else {
                inner.parcels.push_back(Held::File(path));
            }
        }
        Ok(Self { directory, inner: Mutex::new(inner) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().parcels.is_empty()
    }

    fn len(&self) -> usize {
        self.lock().parcels.len()
    }

    /// Keeps one.
    pub(crate) fn keep(&self, parcel: Parcel) {
        let mut inner = self.lock();
        let length = parcel.contents.len();
        let mut held = Held::Memory(Box::new(parcel));
        if inner.bytes + length > MOST_IN_MEMORY {
            self.write(&mut held);
        }
        if matches!(held, Held::Memory(_)) {
            inner.bytes += length;
        }
        inner.parcels.push_back(held);
    }

    /// Moves it from the memory to a file. If that cannot be, it stays where it is.
    fn write(&self, held: &mut Held) {
        let Held::Memory(parcel) = held else { return };
        match write(&self.directory, parcel) {
            Ok(path) => *held = Held::File(path),
            Err(error) => say(&format!("kennel: a result in {}: {error}", self.directory.display())),
        }
    }

    /// Moves all to files.
    pub(crate) fn write_all(&self) {
        let mut inner = self.lock();
        inner.parcels.iter_mut().for_each(|held| self.write(held));
        inner.bytes = 0;
    }

    /// The one that waits longest. A file that is none of a result is removed.
    fn first(&self) -> Option<Parcel> {
        loop {
            match self.lock().parcels.front()?.clone() {
                Held::Memory(parcel) => return Some(*parcel),
                Held::File(path) => match read(&path) {
                    Ok(parcel) => return Some(parcel),
                    Err(error) => say(&format!("kennel: {}: {error}; it is removed", path.display())),
                },
            }
            self.forget_first();
        }
    }

    /// The first one cannot be stored now: the others come before it.
    fn turn(&self) {
        let mut inner = self.lock();
        if !inner.parcels.is_empty() {
            inner.parcels.rotate_left(1);
        }
    }

    /// It is stored.
    fn forget_first(&self) {
        let mut inner = self.lock();
        match inner.parcels.pop_front() {
            Some(Held::Memory(parcel)) => inner.bytes = inner.bytes.saturating_sub(parcel.contents.len()),
            // It would only be stored once more.
            Some(Held::File(path)) => drop(fs::remove_file(path)),
            None => {}
        }
    }
}

/// A line of JSON, and the contents.
fn write(directory: &Path, parcel: &Parcel) -> io::Result<PathBuf> {
    let path = directory.join(parcel.outcome.file_name());
    let new = directory.join(format!("{}.new", parcel.outcome.file_name()));
    // A disk that was full has left one.
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    let mut line = serde_json::to_vec(parcel)?;
    line.push(b'\n');
    file.write_all(&line)?;
    file.write_all(&parcel.contents)?;
    file.sync_all()?;
    fs::rename(new, &path)?;
    Ok(path)
}

fn read(path: &Path) -> io::Result<Parcel> {
    let bytes = Bytes::from(fs::read(path)?);
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or(io::ErrorKind::InvalidData)?;
    let mut parcel: Parcel = serde_json::from_slice(&bytes.slice(..end))?;
    parcel.contents = bytes.slice(end + 1..);
    Ok(parcel)
}

impl Worker {
    /// Stores an outcome, now or later.
    pub(crate) async fn deliver(&self, places: &Places, parcel: Parcel) {
        // In turns: those that wait come first.
        let is_its_turn = self.kept.is_empty() && self.is_connected();
        if !is_its_turn || self.store(places, &parcel).await.is_err() {
            self.kept.keep(parcel);
            self.note_kept();
        }
    }

    pub(crate) fn note_kept(&self) {
        self.front.note_kept(self.kept.len());
    }

    /// Without a connection, each request waits for its whole time.
    fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// Stores what was kept, as soon as NATS can be reached, for ever.
    pub(crate) async fn store_kept(self: Arc<Self>, places: Arc<Places>) {
        loop {
            while self.is_connected()
                && let Some(parcel) = self.kept.first()
            {
                if self.store(&places, &parcel).await.is_err() {
                    self.kept.turn();
                    break;
                }
                self.kept.forget_first();
                self.note_kept();
            }
            sleep(AGAIN).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::results::{Kind, Outcome, Settle};

    fn parcel(job: &str, length: usize) -> Parcel {
        let outcome = Outcome::new(job, Kind::Done, 1, "w");
        let contents = vec![b'\n'; length].into();
        Parcel { outcome, settle: Settle::Acknowledge("a.b".into()), notify: None, contents }
    }

    #[test]
    fn what_is_too_much_for_the_memory_is_in_files() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = || fs::read_dir(dir.path()).expect("listed").count();
        let kept = Kept::open(dir.path().to_owned()).expect("opened");
        kept.keep(parcel("a", MOST_IN_MEMORY - 10));
        assert_eq!(files(), 0);
        kept.keep(parcel("b", 11));
        kept.keep(parcel("c", 10));
        assert_eq!((files(), kept.len()), (1, 3));
        kept.forget_first();
        assert_eq!(kept.first().expect("the second").outcome.job, "b");
        kept.forget_first();
        assert_eq!((files(), kept.len()), (0, 1));
    }

    #[test]
    fn one_that_cannot_be_stored_lets_the_others_pass() {
        let dir = tempfile::tempdir().expect("a directory");
        let kept = Kept::open(dir.path().to_owned()).expect("opened");
        kept.turn();
        kept.keep(parcel("a", 1));
        kept.keep(parcel("b", 2));
        kept.turn();
        assert_eq!(kept.first().expect("the second").outcome.job, "b");
        kept.forget_first();
        assert_eq!((kept.first().expect("the first").outcome.job.as_str(), kept.len()), ("a", 1));
    }

    #[test]
    fn what_a_full_disk_has_left_is_overwritten() {
        let dir = tempfile::tempdir().expect("a directory");
        let kept = Kept::open(dir.path().to_owned()).expect("opened");
        let parcel = parcel("a", 3);
        let new = dir.path().join(format!("{}.new", parcel.outcome.file_name()));
        fs::write(&new, "x".repeat(10_000)).expect("written");
        kept.keep(parcel);
        kept.write_all();
        assert!(!new.exists());
        assert_eq!(kept.first().expect("it").contents.len(), 3);
    }

    #[test]
    fn another_server_finds_what_was_left() {
        let dir = tempfile::tempdir().expect("a directory");
        let kept = Kept::open(dir.path().to_owned()).expect("opened");
        kept.keep(parcel("a", 3));
        kept.write_all();
        fs::write(dir.path().join("half.new"), "x").expect("written");
        fs::write(dir.path().join("wrong"), "x\n").expect("written");
        let kept = Kept::open(dir.path().to_owned()).expect("opened");
        let found = kept.first().expect("one");
        assert_eq!((found.outcome.job.as_str(), &found.contents[..]), ("a", &b"\n\n\n"[..]));
        kept.forget_first();
        assert!(kept.first().is_none() && fs::read_dir(dir.path()).expect("listed").next().is_none());
    }
}
