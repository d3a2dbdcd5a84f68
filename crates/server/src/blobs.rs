//! Blobs: contents that a client sends once and names by their SHA-256 afterwards. They are files of the
//! state directory, of one token each. The least recently used go first.

use std::fs::{self, DirBuilder, File, FileTimes};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::wire::StateDirectory;
use crate::wire::id::unhex;

/// An upload that is older than this was given up.
const GIVEN_UP: Duration = Duration::from_secs(60 * 60);

/// The blobs of one token.
#[derive(Clone, Debug)]
pub(crate) struct Blobs(PathBuf);

/// The SHA-256 of a blob, in lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlobName(String);

impl std::str::FromStr for BlobName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        unhex(text).ok_or_else(|| format!("{text:?}: a SHA-256 in 64 hexadecimal digits is expected"))?;
        Ok(Self(text.to_ascii_lowercase()))
    }
}

impl BlobName {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Blobs {
    /// Those of the token of this name.
    pub(crate) fn of(state: &StateDirectory, token: &str) -> Self {
        // The name of a token may be `..`.
        Self(state.blobs().join(format!("of-{token}")))
    }

    fn path(&self, name: &BlobName) -> PathBuf {
        self.0.join(name.as_str())
    }

    /// Whether it is there. It then counts as just used.
    pub(crate) fn has(&self, name: &BlobName) -> bool {
        self.open(name).is_ok()
    }

    fn open(&self, name: &BlobName) -> io::Result<File> {
        let file = File::options().read(true).append(true).open(self.path(name))?;
        file.set_times(FileTimes::new().set_modified(SystemTime::now()))?;
        Ok(file)
    }

    /// All of it.
    ///
    /// # Errors
    /// `NotFound`.
    pub(crate) fn read(&self, name: &BlobName) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(name)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// The file of a blob that is there. It then counts as just used.
    pub(crate) fn use_path(&self, name: &BlobName) -> io::Result<PathBuf> {
        self.open(name).map(|_| self.path(name))
    }

    /// A new file for what is being sent.
    pub(crate) fn begin(&self) -> io::Result<Upload> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        let path = self.0.join(format!("upload-{:016x}", getrandom::u64()?));
        let file = File::options().write(true).create_new(true).open(&path)?;
        Ok(Upload { file, path: Some(path) })
    }

    /// Puts it in its place, and removes others until all together have no more than `most` bytes.
    pub(crate) fn keep(&self, mut upload: Upload, name: &BlobName, most: u64) -> io::Result<()> {
        if let Some(path) = upload.path.take() {
            fs::rename(path, self.path(name))?;
        }
        self.make_room(name, most)
    }

    fn make_room(&self, kept: &BlobName, most: u64) -> io::Result<()> {
        let (mut blobs, mut sum) = (Vec::new(), 0);
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            // Another upload may have removed it meanwhile.
            let Ok(found) = entry.metadata() else { continue };
            let used = found.modified()?;
            let is_upload = entry.file_name().to_str().is_none_or(|name| name.parse::<BlobName>().is_err());
            if is_upload {
                if used.elapsed().unwrap_or_default() > GIVEN_UP {
                    remove(&entry.path())?;
                }
                continue;
            }
            sum += found.len();
            blobs.push((used, found.len(), entry.path()));
        }
        blobs.sort();
        for (_, length, path) in blobs {
            if sum <= most {
                break;
            }
            if path != self.path(kept) {
                remove(&path)?;
                sum -= length;
            }
        }
        Ok(())
    }
}

/// It is no error that somebody else was quicker.
fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })
}

/// A blob that is being sent. Nothing is left of it if it is dropped.
#[derive(Debug)]
pub(crate) struct Upload {
    pub(crate) file: File,
    path: Option<PathBuf>,
}

impl Drop for Upload {
    fn drop(&mut self) {
        // It is removed later otherwise.
        self.path.take().into_iter().for_each(|path| drop(fs::remove_file(path)));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn name(digit: char) -> BlobName {
        digit.to_string().repeat(64).parse().expect("a name")
    }

    fn put(blobs: &Blobs, digit: char, bytes: &[u8], most: u64) {
        let mut upload = blobs.begin().expect("begun");
        upload.file.write_all(bytes).expect("written");
        blobs.keep(upload, &name(digit), most).expect("kept");
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let blobs = Blobs::of(&StateDirectory(dir.path().to_owned()), "..");
        for digit in ['a', 'b', 'c'] {
            put(&blobs, digit, &[b'x'; 10], 30);
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(blobs.read(&name('a')).expect("read"), [b'x'; 10]);
        put(&blobs, 'd', &[b'x'; 10], 30);
        let there = ['a', 'b', 'c', 'd'].map(|digit| blobs.has(&name(digit)));
        assert_eq!(there, [true, false, true, true]);
        // The newest one stays, however large it is.
        put(&blobs, 'e', &[b'x'; 100], 30);
        assert!(blobs.has(&name('e')) && !blobs.has(&name('a')));
        assert!(dir.path().join("blobs/of-..").is_dir());
    }

    #[test]
    fn nothing_is_left_of_an_upload_that_is_given_up() {
        let dir = tempfile::tempdir().expect("a directory");
        let blobs = Blobs::of(&StateDirectory(dir.path().to_owned()), "me");
        drop(blobs.begin().expect("begun"));
        assert_eq!(fs::read_dir(&blobs.0).expect("listed").count(), 0);
    }

    #[test]
    fn only_a_hash_is_a_name() {
        for text in ["", "..", "a", "../../seed", &"g".repeat(64), &"a".repeat(65)] {
            text.parse::<BlobName>().expect_err(text);
        }
    }
}
