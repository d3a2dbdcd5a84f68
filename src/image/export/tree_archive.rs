//! A directory as the tar archive of a layer: of a root file system that somebody has made, and of a layer in
//! the store, whose whiteouts become `.wh.` entries. It changes nothing, follows no link, and stays on one
//! file system.

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::dir::Dir;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, major, minor};
use tar::{EntryType, Header};
use xattr::FileExt;

use crate::report::error::image::ImageError;
use crate::sys;

/// Bytes of a block of tar.
const BLOCK: usize = 512;

/// The longest name and target of a link in a header of tar. Longer ones are PAX attributes.
const LONGEST_NAME: usize = 100;

/// Sizes from here on are PAX attributes: the field has eleven octal digits.
const LARGE: u64 = 1 << 33;

/// How deep directories may be nested.
const MOST_LEVELS: usize = 1_000;

/// How a directory is opened.
const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// What the marks of overlayfs in a directory mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marks {
    /// Nothing: it is a root file system. A file whose name begins with `.wh.` is left out, because a layer
    /// cannot hold it.
    Ignored,
    /// What they mean to overlayfs: it is a layer.
    Kept,
}

/// Why a directory cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}", .path.display())]
pub(crate) struct TreeError {
    pub(crate) path: PathBuf,
    pub(crate) source: io::Error,
}

impl TreeError {
    /// The error of a store whose file that is.
    pub(crate) fn unread(self) -> ImageError {
        ImageError::Io { what: "read", path: self.path, source: self.source }
    }
}

/// The archive, made while it is read. The same files give the same bytes.
#[derive(Debug)]
pub(crate) struct TreeArchive {
    top: PathBuf,
    marks: Marks,
    device: u64,
    /// The directories that are being read, the deepest last.
    levels: Vec<Level>,
    /// Headers that are not read yet.
    headers: Vec<u8>,
    read: usize,
    content: Option<Content>,
    /// Where a file with several names was met first.
    names: HashMap<u64, Vec<u8>>,
    left_out: Vec<PathBuf>,
    /// Why it ended early: [`Read`] passes only the text on.
    error: Option<TreeError>,
    is_over: bool,
}

/// A directory that is being read.
#[derive(Debug)]
struct Level {
    directory: Arc<OwnedFd>,
    /// From the top, without a slash at the end.
    path: Vec<u8>,
    /// Names that are left, the next one last.
    names: Vec<CString>,
}

/// A file that is being read.
#[derive(Debug)]
struct Content {
    file: File,
    path: Vec<u8>,
    left: u64,
    /// Zeros after it, which fill the last block.
    padding: usize,
}

/// What only some headers have.
#[derive(Clone, Copy, Default)]
struct More<'a> {
    link: Option<&'a [u8]>,
    /// Bytes of the content.
    size: u64,
    attributes: &'a [Attribute],
}

impl<'a> More<'a> {
    fn link(target: &'a [u8]) -> Self {
        Self { link: Some(target), ..Self::default() }
    }
}

/// An attribute as PAX has it: its name and its value.
type Attribute = (Vec<u8>, Vec<u8>);

impl TreeArchive {
    /// Begins to read a directory.
    ///
    /// # Errors
    /// It cannot be read, or is no directory.
    pub(crate) fn of(top: &Path, marks: Marks) -> Result<Self, TreeError> {
        let failed = |source: nix::Error| TreeError { path: top.to_owned(), source: source.into() };
        let directory = nix::fcntl::open(top, DIRECTORY, Mode::empty()).map_err(failed)?;
        Self::new(top, directory, marks)
    }

    /// Begins to read a directory that is held, perhaps without the right to read it. Errors name its files
    /// as if it were the root.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn of_directory(held: &OwnedFd, marks: Marks) -> Result<Self, TreeError> {
        let top = Path::new("/");
        let failed = |source: nix::Error| TreeError { path: top.to_owned(), source: source.into() };
        let directory = openat(held, c".", DIRECTORY, Mode::empty()).map_err(failed)?;
        Self::new(top, directory, marks)
    }

    fn new(top: &Path, directory: OwnedFd, marks: Marks) -> Result<Self, TreeError> {
        let failed = |source: nix::Error| TreeError { path: top.to_owned(), source: source.into() };
        let found = fstat(&directory).map_err(failed)?;
        let mut archive = Self {
            top: top.to_owned(),
            marks,
            device: found.st_dev,
            levels: Vec::new(),
            headers: Vec::new(),
            read: 0,
            content: None,
            names: HashMap::new(),
            left_out: Vec::new(),
            error: None,
            is_over: false,
        };
        archive.enter(directory, Vec::new(), &found)?;
        Ok(archive)
    }

    /// Files that no layer can hold: sockets, and names that begin with `.wh.`.
    pub(crate) fn left_out(&self) -> &[PathBuf] {
        &self.left_out
    }

    /// Why reading failed.
    pub(crate) fn take_error(&mut self) -> Option<TreeError> {
        self.error.take()
    }

    fn keep(&mut self, error: TreeError) -> io::Error {
        let told = io::Error::new(error.source.kind(), error.to_string());
        self.error = Some(error);
        told
    }

    /// The error about a file of the directory.
    fn failed(&self, path: &[u8]) -> impl Fn(io::Error) -> TreeError + use<> {
        let path = self.top.join(OsStr::from_bytes(path));
        move |source| TreeError { path: path.clone(), source }
    }

    /// Writes the header of a directory, and reads its names.
    fn enter(&mut self, directory: OwnedFd, path: Vec<u8>, found: &FileStat) -> Result<(), TreeError> {
        let failed = self.failed(&path);
        if self.levels.len() >= MOST_LEVELS {
            return Err(failed(io::Error::other(format!(
                "directories are nested more than {MOST_LEVELS} deep"
            ))));
        }
        let attributes = self.attributes(directory.as_fd(), &path)?;
        let name = if path.is_empty() { b"./".to_vec() } else { [&*path, b"/"].concat() };
        self.header(&name, found, EntryType::Directory, More { attributes: &attributes, ..More::default() });
        if self.marks == Marks::Kept && is_opaque(&directory).map_err(&failed)? {
            let mark = [&*name, b".wh..wh..opq"].concat();
            self.empty_file(mark.strip_prefix(b"./").unwrap_or(&mark), found);
        }
        let names = self.names(&directory, &path, found)?;
        self.levels.push(Level { directory: Arc::new(directory), path, names });
        Ok(())
    }

    /// The names in a directory, the first one last. None are taken from where another file system is
    /// mounted.
    fn names(&self, directory: &OwnedFd, path: &[u8], found: &FileStat) -> Result<Vec<CString>, TreeError> {
        let failed = self.failed(path);
        if found.st_dev != self.device {
            return Ok(Vec::new());
        }
        let failed = |source: nix::Error| failed(source.into());
        // Dir takes the descriptor, and the names below are opened from this one.
        let mut entries = Dir::openat(directory, c".", DIRECTORY, Mode::empty()).map_err(failed)?;
        let mut names = Vec::new();
        for entry in entries.iter() {
            let name = entry.map_err(failed)?.file_name().to_owned();
            if !matches!(name.to_bytes(), b"." | b"..") {
                names.push(name);
            }
        }
        names.sort_unstable_by(|one, other| other.cmp(one));
        Ok(names)
    }

    /// Goes on to the next file. False at the end.
    fn advance(&mut self) -> Result<bool, TreeError> {
        let Some(level) = self.levels.last_mut() else { return Ok(false) };
        let Some(name) = level.names.pop() else {
            self.levels.pop();
            return Ok(true);
        };
        let path = match level.path.is_empty() {
            true => name.to_bytes().to_vec(),
            false => [&*level.path, b"/", name.to_bytes()].concat(),
        };
        let parent = Arc::clone(&level.directory);
        self.entry(&parent, &name, path)?;
        Ok(true)
    }

    /// Writes the headers of a file, and opens its content.
    fn entry(&mut self, parent: &OwnedFd, name: &CStr, path: Vec<u8>) -> Result<(), TreeError> {
        let failed = self.failed(&path);
        let failed = |source: nix::Error| failed(source.into());
        let found = fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(failed)?;
        let kind = SFlag::from_bits_truncate(found.st_mode & SFlag::S_IFMT.bits());
        if name.to_bytes().starts_with(b".wh.") || kind == SFlag::S_IFSOCK {
            self.left_out.push(PathBuf::from(OsString::from_vec(path)));
            return Ok(());
        }
        if self.is_another_name(kind, &found, &path) {
            return Ok(());
        }
        let flags =
            OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        match kind {
            SFlag::S_IFDIR => {
                let opened =
                    openat(parent, name, flags | OFlag::O_DIRECTORY, Mode::empty()).map_err(failed)?;
                let found = fstat(&opened).map_err(failed)?;
                self.enter(opened, path, &found)?;
            }
            SFlag::S_IFREG => {
                let opened = openat(parent, name, flags, Mode::empty()).map_err(failed)?;
                self.file(opened, path)?;
            }
            SFlag::S_IFLNK => {
                let target = readlinkat(parent, name).map_err(failed)?;
                self.header(&path, &found, EntryType::Symlink, More::link(target.as_bytes()));
            }
            SFlag::S_IFIFO => self.header(&path, &found, EntryType::Fifo, More::default()),
            _ if self.marks == Marks::Kept && sys::is_whiteout(&found) => self.whiteout(&path, &found),
            SFlag::S_IFCHR => self.header(&path, &found, EntryType::Char, More::default()),
            _ => self.header(&path, &found, EntryType::Block, More::default()),
        }
        Ok(())
    }

    /// Writes a hard link, if the file was met under another name.
    fn is_another_name(&mut self, kind: SFlag, found: &FileStat, path: &[u8]) -> bool {
        if kind == SFlag::S_IFDIR
            || found.st_nlink < 2
            || (kind == SFlag::S_IFCHR && self.marks == Marks::Kept)
        {
            return false;
        }
        match self.names.get(&found.st_ino).cloned() {
            Some(first) => self.header(path, found, EntryType::Link, More::link(&first)),
            None => {
                self.names.insert(found.st_ino, path.to_owned());
                return false;
            }
        }
        true
    }

    fn file(&mut self, opened: OwnedFd, path: Vec<u8>) -> Result<(), TreeError> {
        let failed = self.failed(&path);
        let found = fstat(&opened).map_err(|source| failed(source.into()))?;
        if found.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(failed(io::Error::other("another file replaced it meanwhile")));
        }
        let attributes = self.attributes(opened.as_fd(), &path)?;
        let size = u64::try_from(found.st_size).unwrap_or_default();
        self.header(&path, &found, EntryType::Regular, More { size, attributes: &attributes, link: None });
        let padding = usize::try_from(size.next_multiple_of(BLOCK as u64) - size).unwrap_or_default();
        self.content = Some(Content { file: opened.into(), path, left: size, padding });
        Ok(())
    }

    /// `.wh.NAME`, which is how a layer says that a name of the layers below is gone.
    fn whiteout(&mut self, path: &[u8], found: &FileStat) {
        let at = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (directory, name) = path.split_at(at);
        self.empty_file(&[directory, b".wh.", name].concat(), found);
    }

    fn empty_file(&mut self, path: &[u8], found: &FileStat) {
        let mut found = *found;
        found.st_mode = 0o600;
        self.header(path, &found, EntryType::Regular, More::default());
    }

    /// The user's attributes of a file, without those of overlayfs.
    fn attributes(&self, file: impl AsFd, path: &[u8]) -> Result<Vec<Attribute>, TreeError> {
        let failed = self.failed(path);
        let file = File::from(file.as_fd().try_clone_to_owned().map_err(&failed)?);
        let names = match file.list_xattr() {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(Vec::new()),
            names => names.map_err(&failed)?,
        };
        let is_kept = |name: &OsString| {
            name.as_bytes().starts_with(b"user.") && !name.as_bytes().starts_with(b"user.overlay.")
        };
        let mut attributes = Vec::new();
        for name in names.filter(is_kept) {
            if let Some(value) = file.get_xattr(&name).map_err(&failed)? {
                attributes.push(([b"SCHILY.xattr.", name.as_bytes()].concat(), value));
            }
        }
        attributes.sort_unstable();
        Ok(attributes)
    }

    /// Writes a header, and before it what does not fit into one.
    fn header(&mut self, path: &[u8], found: &FileStat, kind: EntryType, more: More<'_>) {
        let More { link, size, attributes } = more;
        let mut extension = Vec::new();
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(found.st_mode & 0o7777);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(size);
        if size >= LARGE {
            record(&mut extension, b"size", size.to_string().as_bytes());
        }
        header.set_mtime(u64::try_from(found.st_mtime).unwrap_or_default().min(LARGE - 1));
        if found.st_mtime_nsec != 0 || !(0..LARGE.cast_signed()).contains(&found.st_mtime) {
            record(&mut extension, b"mtime", time(found).as_bytes());
        }
        if let Some(ustar) = header.as_ustar_mut() {
            if matches!(kind, EntryType::Char | EntryType::Block) {
                ustar.set_device_major(u32::try_from(major(found.st_rdev)).unwrap_or_default());
                ustar.set_device_minor(u32::try_from(minor(found.st_rdev)).unwrap_or_default());
            }
            if !put(&mut ustar.name, path) {
                record(&mut extension, b"path", path);
            }
            if let Some(link) = link
                && !put(&mut ustar.linkname, link)
            {
                record(&mut extension, b"linkpath", link);
            }
        }
        attributes.iter().for_each(|(name, value)| record(&mut extension, name, value));
        if !extension.is_empty() {
            let mut before = Header::new_ustar();
            before.set_entry_type(EntryType::XHeader);
            before.set_mode(0o644);
            before.set_size(extension.len() as u64);
            if let Some(ustar) = before.as_ustar_mut() {
                put(&mut ustar.name, b"././@PaxHeader");
            }
            before.set_cksum();
            self.headers.extend(before.as_bytes());
            extension.resize(extension.len().next_multiple_of(BLOCK), 0);
            self.headers.extend(extension);
        }
        header.set_cksum();
        self.headers.extend(header.as_bytes());
    }

    /// Reads from what is begun. 0: nothing is.
    fn read_on(&mut self, buffer: &mut [u8]) -> Result<usize, TreeError> {
        if let Some(rest) = self.headers.get(self.read..).filter(|rest| !rest.is_empty()) {
            let count = rest.len().min(buffer.len());
            buffer.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            self.read += count;
            if self.read == self.headers.len() {
                self.headers.clear();
                self.read = 0;
            }
            return Ok(count);
        }
        let Some(content) = &mut self.content else { return Ok(0) };
        let most = usize::try_from(content.left).unwrap_or(usize::MAX).min(buffer.len());
        let count = match content.left {
            0 => 0,
            _ => match content.file.read(buffer.get_mut(..most).unwrap_or_default()) {
                Ok(0) => Err(io::Error::other("it became shorter meanwhile")),
                count => count,
            }
            .map_err(|source| TreeError { path: self.top.join(OsStr::from_bytes(&content.path)), source })?,
        };
        content.left -= count as u64;
        if content.left == 0 {
            self.headers.resize(content.padding, 0);
            self.content = None;
        }
        Ok(count)
    }
}

impl Read for TreeArchive {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !buffer.is_empty() {
            let count = self.read_on(buffer).map_err(|error| self.keep(error))?;
            if count > 0 {
                return Ok(count);
            }
            if !self.headers.is_empty() || self.content.is_some() {
                continue;
            }
            match self.advance().map_err(|error| self.keep(error))? {
                true => {}
                false if self.is_over => break,
                false => {
                    self.headers.resize(2 * BLOCK, 0);
                    self.is_over = true;
                }
            }
        }
        Ok(0)
    }
}

/// Whether overlayfs hides what is below a directory.
fn is_opaque(directory: &OwnedFd) -> io::Result<bool> {
    match File::from(directory.try_clone()?).get_xattr(sys::OPAQUE) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
        value => Ok(value?.is_some_and(|value| value == b"y")),
    }
}

/// Copies a text into a field, if it fits.
fn put(field: &mut [u8], text: &[u8]) -> bool {
    field.iter_mut().zip(text).for_each(|(to, from)| *to = *from);
    text.len() <= LONGEST_NAME
}

/// Adds an attribute as PAX has it: `LENGTH NAME=VALUE\n`, where the length counts itself.
fn record(to: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let rest = name.len() + value.len() + " =\n".len();
    let mut len = rest + 1;
    while rest + len.to_string().len() != len {
        len = rest + len.to_string().len();
    }
    to.extend(len.to_string().bytes());
    to.extend([b" ", name, b"=", value, b"\n"].concat());
}

/// A time as PAX has it.
fn time(found: &FileStat) -> String {
    match (found.st_mtime, found.st_mtime_nsec) {
        (seconds, 0) => seconds.to_string(),
        // -1.25 is 750 ms after second -2.
        (seconds @ ..0, parts) => {
            let whole = seconds + 1;
            format!("{}{whole}.{:09}", if whole == 0 { "-" } else { "" }, 1_000_000_000 - parts)
        }
        (seconds, parts) => format!("{seconds}.{parts:09}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;
    use std::time::{Duration, SystemTime};

    use tar::Archive;
    use tempfile::TempDir;

    use super::*;

    /// The archive of a directory.
    fn bytes(top: &Path, marks: Marks) -> Vec<u8> {
        let mut bytes = Vec::new();
        TreeArchive::of(top, marks).expect("a directory").read_to_end(&mut bytes).expect("read");
        bytes
    }

    /// The entries of an archive, as another reader of tar has them: the type, and the content or the target.
    fn entries(bytes: &[u8]) -> BTreeMap<String, (EntryType, Vec<u8>)> {
        let mut archive = Archive::new(bytes);
        let mut found = BTreeMap::new();
        for entry in archive.entries().expect("an archive") {
            let mut entry = entry.expect("an entry");
            let name = String::from_utf8(entry.path_bytes().into_owned()).expect("UTF-8");
            let kind = entry.header().entry_type();
            let link = entry.link_name_bytes().map(|link| link.into_owned());
            let mut content = Vec::new();
            entry.read_to_end(&mut content).expect("read");
            let link = link.filter(|link| !link.is_empty());
            assert!(found.insert(name, (kind, link.unwrap_or(content))).is_none(), "each name once");
        }
        found
    }

    #[test]
    fn every_kind_of_file_is_in_the_archive() {
        let dir = TempDir::new().expect("made");
        let place = |name: &str| dir.path().join(name);
        let long = "n".repeat(200);
        fs::create_dir_all(place("a/b")).expect("made");
        fs::write(place("a/file"), vec![7; 1_000]).expect("written");
        fs::write(place("empty"), "").expect("written");
        fs::write(place(&long), "long").expect("written");
        fs::hard_link(place("a/file"), place("b")).expect("linked");
        symlink("a/file", place("link")).expect("linked");
        symlink(&long, place("long-link")).expect("linked");
        symlink("/nowhere", place("broken")).expect("linked");
        nix::unistd::mkfifo(&place("fifo"), Mode::S_IRWXU).expect("made");
        let _socket = UnixListener::bind(place("socket")).expect("bound");
        fs::write(place(".wh.hidden"), "").expect("written");
        let mut archive = TreeArchive::of(dir.path(), Marks::Ignored).expect("a directory");
        let mut whole = Vec::new();
        archive.read_to_end(&mut whole).expect("read");
        let left_out: Vec<_> = archive.left_out().iter().map(|path| path.to_str().expect("UTF-8")).collect();
        assert_eq!(left_out, [".wh.hidden", "socket"]);
        let entry = |kind: EntryType, content: &[u8]| (kind, content.to_owned());
        let expected = [
            ("./", entry(EntryType::Directory, b"")),
            ("a/", entry(EntryType::Directory, b"")),
            ("a/b/", entry(EntryType::Directory, b"")),
            ("a/file", entry(EntryType::Regular, &[7; 1_000])),
            ("b", entry(EntryType::Link, b"a/file")),
            ("broken", entry(EntryType::Symlink, b"/nowhere")),
            ("empty", entry(EntryType::Regular, b"")),
            ("fifo", entry(EntryType::Fifo, b"")),
            ("link", entry(EntryType::Symlink, b"a/file")),
            ("long-link", entry(EntryType::Symlink, long.as_bytes())),
            (&long, entry(EntryType::Regular, b"long")),
        ];
        let expected: BTreeMap<_, _> =
            expected.into_iter().map(|(name, entry)| (name.to_owned(), entry)).collect();
        assert_eq!(entries(&whole), expected);
        assert_eq!(bytes(dir.path(), Marks::Ignored), whole, "the same files give the same bytes");
        // Also if it is read in small pieces.
        let mut archive = TreeArchive::of(dir.path(), Marks::Ignored).expect("a directory");
        let (mut pieces, mut piece) = (Vec::<u8>::new(), [0; 7]);
        while let count @ 1.. = archive.read(&mut piece).expect("read") {
            pieces.extend(&piece[..count]);
        }
        assert_eq!(pieces, whole);
    }

    #[test]
    fn modes_times_and_attributes_are_kept() {
        let dir = TempDir::new().expect("made");
        let file = dir.path().join("file");
        fs::write(&file, "x").expect("written");
        fs::set_permissions(&file, Permissions::from_mode(0o4755)).expect("set");
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_000, 250_000_000);
        File::options().write(true).open(&file).expect("opened").set_modified(time).expect("set");
        let has_attributes = xattr::set(&file, "user.mine", b"a\nb=c").is_ok();
        let _ = xattr::set(&file, "user.overlay.opaque", b"y");
        let bytes = bytes(dir.path(), Marks::Ignored);
        let mut archive = Archive::new(&*bytes);
        let mut entries = archive.entries().expect("an archive").map(|entry| entry.expect("an entry"));
        let mut entry = entries.find(|entry| entry.path_bytes().ends_with(b"file")).expect("it is there");
        assert_eq!(
            entry.header().mode().expect("a mode"),
            0o4755,
            "the store drops set-id bits, and says so"
        );
        assert_eq!(entry.header().mtime().expect("a time"), 1_000);
        let size = usize::try_from(entry.raw_header_position()).expect("small");
        let pax = String::from_utf8_lossy(&bytes[..size]).into_owned();
        assert!(pax.contains("mtime=1000.250000000\n"), "{pax}");
        assert!(!pax.contains("user.overlay"), "{pax}");
        assert_eq!(pax.contains("SCHILY.xattr.user.mine=a\nb=c\n"), has_attributes, "{pax}");
        let mut content = String::new();
        entry.read_to_string(&mut content).expect("read");
        assert_eq!(content, "x");
    }

    /// A layer of the store.
    #[test]
    fn marks_of_overlayfs_become_whiteouts() {
        let dir = TempDir::new().expect("made");
        let place = |name: &str| dir.path().join(name);
        fs::create_dir(place("opaque")).expect("made");
        fs::write(place("opaque/new"), "").expect("written");
        let whiteout = |name: &str| {
            let device = nix::sys::stat::makedev(0, 0);
            nix::sys::stat::mknod(&place(name), SFlag::S_IFCHR, Mode::empty(), device)
        };
        if whiteout("gone").is_err() || xattr::set(place("opaque"), sys::OPAQUE, b"y").is_err() {
            return;
        }
        fs::hard_link(place("gone"), place("opaque/gone")).expect("linked");
        let names: Vec<String> = entries(&bytes(dir.path(), Marks::Kept)).into_keys().collect();
        assert_eq!(
            names,
            ["./", ".wh.gone", "opaque/", "opaque/.wh..wh..opq", "opaque/.wh.gone", "opaque/new"]
        );
        // Of a root file system, it is a device like any other.
        let found = entries(&bytes(dir.path(), Marks::Ignored));
        assert_eq!(found["gone"].0, EntryType::Char);
        assert_eq!(found["opaque/gone"], (EntryType::Link, b"gone".to_vec()));
    }

    #[test]
    fn records_of_pax_count_their_own_length() {
        for (value, expected) in
            [("", "5 a=\n"), ("bc", "7 a=bc\n"), ("12345", "11 a=12345\n"), ("1234", "9 a=1234\n")]
        {
            let mut to = Vec::new();
            record(&mut to, b"a", value.as_bytes());
            assert_eq!(String::from_utf8(to).expect("UTF-8"), expected);
        }
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_named() {
        assert_eq!(
            TreeArchive::of("/absent".as_ref(), Marks::Ignored).expect_err("absent").path,
            Path::new("/absent")
        );
        let dir = TempDir::new().expect("made");
        fs::write(dir.path().join("file"), "").expect("written");
        assert!(TreeArchive::of(&dir.path().join("file"), Marks::Ignored).is_err());
        if nix::unistd::geteuid().is_root() {
            return;
        }
        fs::set_permissions(dir.path().join("file"), Permissions::from_mode(0o000)).expect("set");
        let mut archive = TreeArchive::of(dir.path(), Marks::Ignored).expect("a directory");
        archive.read_to_end(&mut Vec::new()).expect_err("refused");
        let error = archive.take_error().expect("kept");
        assert_eq!(
            (error.path, error.source.kind()),
            (dir.path().join("file"), io::ErrorKind::PermissionDenied)
        );
    }
}
