//! The members of a tar archive, found by their offsets, so that nothing of it is unpacked to the disk. It
//! reads headers only, and follows links only from member to member.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use tar::{EntryType, GnuExtSparseHeader, GnuHeader, Header};

use crate::image::extension::{Attribute, records};

/// Bytes of a block of tar: headers have one, contents fill whole ones.
pub(super) const BLOCK: u64 = 512;

/// The largest long name or set of PAX attributes, in bytes. Linux takes paths of 4,096.
const MOST_EXTENSION: u64 = 1 << 20;

/// The most members of an archive of images, which has a few for each layer.
const MOST_MEMBERS: usize = 100_000;

/// How many links lead from a name to its file.
const MOST_LINKS: usize = 8;

/// A part of a file, which several readers may read at once.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    file: Arc<File>,
    start: u64,
    end: u64,
}

impl Part {
    /// A whole file.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub(super) fn whole(file: Arc<File>) -> io::Result<Self> {
        let end = file.metadata()?.len();
        Ok(Self { file, start: 0, end })
    }

    /// Bytes that are left to read.
    pub(crate) fn len(&self) -> u64 {
        self.end - self.start
    }

    /// The first bytes, at most `most`.
    ///
    /// # Errors
    /// Those of pread(2).
    pub(super) fn beginning(&self, most: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.clone().take(most as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn part(&self, start: u64, len: u64) -> Self {
        Self { file: Arc::clone(&self.file), start: self.start + start, end: self.start + start + len }
    }
}

impl Read for Part {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.len()).unwrap_or(usize::MAX).min(buffer.len());
        let Some(buffer) = buffer.get_mut(..most).filter(|buffer| !buffer.is_empty()) else { return Ok(0) };
        let count = self.file.read_at(buffer, self.start)?;
        if count == 0 {
            // It was cut meanwhile.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.start += count as u64;
        Ok(count)
    }
}

/// What a name in an archive leads to.
#[derive(Debug)]
enum Member {
    File {
        start: u64,
        len: u64,
    },
    /// A name in the same archive.
    Link(String),
    /// A directory, a device: nothing that has a content.
    Other,
}

/// The members of an archive by their names.
#[derive(Debug)]
pub(super) struct Archive {
    whole: Part,
    members: HashMap<String, Member>,
}

impl Archive {
    /// Reads the headers of an archive. `None`: it has more members than any archive of images.
    ///
    /// # Errors
    /// It is no tar archive, it is cut, or it cannot be read.
    pub(super) fn index(whole: Part) -> io::Result<Option<Self>> {
        let mut members = HashMap::new();
        let mut headers = Headers { whole: whole.clone(), at: 0 };
        while let Some(entry) = headers.next_entry()? {
            if members.len() >= MOST_MEMBERS {
                return Ok(None);
            }
            // What has no UTF-8 name is nothing that a manifest could name.
            let Some(name) = normal(&entry.name) else { continue };
            members.insert(name, entry.member);
        }
        Ok(Some(Self { whole, members }))
    }

    /// The content of a member, through links. `None`: there is no such file.
    pub(super) fn open(&self, name: &str) -> Option<Part> {
        let mut name = name.strip_prefix("./").unwrap_or(name).to_owned();
        for _ in 0..=MOST_LINKS {
            match self.members.get(&name)? {
                Member::File { start, len } => return Some(self.whole.part(*start, *len)),
                Member::Link(target) => name.clone_from(target),
                Member::Other => return None,
            }
        }
        None
    }

    /// Whether anything has this name, or is below it.
    pub(super) fn has(&self, name: &str) -> bool {
        self.members.contains_key(name)
            || self
                .members
                .keys()
                .any(|member| member.strip_prefix(name).is_some_and(|rest| rest.starts_with('/')))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

/// Whether an archive has one of these names at its top, as far as it can be read.
pub(super) fn names_root(whole: &Part, names: &[&str]) -> bool {
    let mut headers = Headers { whole: whole.clone(), at: 0 };
    while let Ok(Some(entry)) = headers.next_entry() {
        let Some(name) = normal(&entry.name) else { continue };
        if names.contains(&name.split('/').next().unwrap_or_default()) {
            return true;
        }
    }
    false
}

/// An entry as its headers describe it.
struct Entry {
    name: Vec<u8>,
    member: Member,
}

/// Walks the headers of an archive.
struct Headers {
    whole: Part,
    at: u64,
}

impl Headers {
    /// The next entry, with the long names and PAX attributes before it. `None` at the end of the archive.
    fn next_entry(&mut self) -> io::Result<Option<Entry>> {
        let (mut long_name, mut long_link) = (None, None);
        let mut attributes = Attributes::default();
        loop {
            let Some(header) = self.header()? else {
                return match (&long_name, &long_link) {
                    (None, None) => Ok(None),
                    _ => Err(cut()),
                };
            };
            let kind = header.entry_type();
            let size =
                attributes.size.take_if(|_| !is_extension(kind)).map_or_else(|| header.entry_size(), Ok)?;
            self.skip_sparse_map(&header)?;
            let start = self.at;
            // Others have no data, whatever size they name.
            self.skip(if is_extension(kind) || is_file(kind) { size } else { 0 })?;
            match kind {
                EntryType::GNULongName => long_name = Some(self.text(start, size)?),
                EntryType::GNULongLink => long_link = Some(self.text(start, size)?),
                EntryType::XHeader => attributes = Attributes::parse(&self.extension(start, size)?)?,
                EntryType::XGlobalHeader => {}
                _ => {
                    let name =
                        attributes.path.or(long_name).unwrap_or_else(|| header.path_bytes().into_owned());
                    let link = attributes
                        .link
                        .or(long_link)
                        .or_else(|| Some(header.link_name_bytes()?.into_owned()));
                    let member = member(kind, &name, link, start, size);
                    return Ok(Some(Entry { name, member }));
                }
            }
        }
    }

    /// The header here. `None`: the archive ends, with a block of zeros or without.
    fn header(&mut self) -> io::Result<Option<Header>> {
        let left = self.whole.len().saturating_sub(self.at);
        if left == 0 {
            return Ok(None);
        }
        if left < BLOCK {
            return Err(cut());
        }
        let mut header = Header::new_old();
        self.whole.part(self.at, BLOCK).read_exact(header.as_mut_bytes())?;
        self.at += BLOCK;
        if header.as_bytes().iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        if !is_header(header.as_bytes()) {
            let place = self.at - BLOCK;
            return Err(io::Error::other(format!("there is no tar header at byte {place}")));
        }
        Ok(Some(header))
    }

    /// Goes behind the map of a sparse file in the form of old GNU tar, which continues after the header.
    fn skip_sparse_map(&mut self, header: &Header) -> io::Result<()> {
        let mut goes_on = header.entry_type() == EntryType::GNUSparse
            && header.as_gnu().is_some_and(GnuHeader::is_extended);
        while goes_on {
            let mut map = GnuExtSparseHeader::new();
            self.whole
                .part(self.at, self.whole.len().saturating_sub(self.at).min(BLOCK))
                .read_exact(map.as_mut_bytes())?;
            self.at += BLOCK;
            goes_on = map.is_extended();
        }
        Ok(())
    }

    /// Goes behind a content.
    fn skip(&mut self, size: u64) -> io::Result<()> {
        let end = size.checked_next_multiple_of(BLOCK).and_then(|size| self.at.checked_add(size));
        // Some programs leave out what fills up the last block.
        let fits = self.at.checked_add(size).is_some_and(|end| end <= self.whole.len());
        self.at = end.filter(|_| fits).ok_or_else(cut)?;
        Ok(())
    }

    fn extension(&self, start: u64, size: u64) -> io::Result<Vec<u8>> {
        if size > MOST_EXTENSION {
            return Err(io::Error::other("a member has a name or attributes of more than 1 MiB"));
        }
        let mut bytes = Vec::new();
        self.whole.part(start, size).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// A long name, without the NUL at its end.
    fn text(&self, start: u64, size: u64) -> io::Result<Vec<u8>> {
        let mut bytes = self.extension(start, size)?;
        bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
        Ok(bytes)
    }
}

/// PAX attributes that say where a member is.
#[derive(Default)]
struct Attributes {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

impl Attributes {
    fn parse(text: &[u8]) -> io::Result<Self> {
        let mut attributes = Self::default();
        let wrong = |_| io::Error::other("a member has attributes that are none");
        for Attribute { name, value } in records(text).map_err(wrong)? {
            match &*name {
                b"path" => attributes.path = Some(value),
                b"linkpath" => attributes.link = Some(value),
                b"size" => {
                    let size = str::from_utf8(&value).ok().and_then(|value| value.parse().ok());
                    attributes.size =
                        Some(size.ok_or_else(|| io::Error::other("a member has no number as its size"))?);
                }
                _ => {}
            }
        }
        Ok(attributes)
    }
}

fn is_extension(kind: EntryType) -> bool {
    matches!(
        kind,
        EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader | EntryType::XGlobalHeader
    )
}

fn is_file(kind: EntryType) -> bool {
    matches!(kind, EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse)
}

fn member(kind: EntryType, name: &[u8], link: Option<Vec<u8>>, start: u64, len: u64) -> Member {
    let target = |link: Option<Vec<u8>>| link.filter(|link| !link.is_empty());
    match kind {
        EntryType::Regular | EntryType::Continuous => Member::File { start, len },
        // Old programs mark a directory by its name alone.
        EntryType::Link => target(link).and_then(|link| normal(&link)).map_or(Member::Other, Member::Link),
        EntryType::Symlink => {
            target(link).and_then(|link| beside(name, &link)).map_or(Member::Other, Member::Link)
        }
        _ => Member::Other,
    }
}

/// A name without `./` and without a slash at its end. `None`: it is not UTF-8, or names the top.
fn normal(name: &[u8]) -> Option<String> {
    let name = str::from_utf8(name).ok()?;
    let parts: Vec<&str> = name.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    (!parts.is_empty()).then(|| parts.join("/"))
}

/// What a symbolic link leads to, if that is in the archive.
fn beside(name: &[u8], link: &[u8]) -> Option<String> {
    let (name, link) = (normal(name)?, str::from_utf8(link).ok()?);
    if link.starts_with('/') {
        return None;
    }
    let mut parts: Vec<&str> = name.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Whether a block is the header of a member: its checksum says so.
pub(super) fn is_header(block: &[u8]) -> bool {
    let Some(header) = block.get(..Header::new_old().as_bytes().len()).map(Header::from_byte_slice) else {
        return false;
    };
    let (before, after) = (header.as_bytes().get(..148), header.as_bytes().get(156..));
    let (Some(before), Some(after)) = (before, after) else { return false };
    let sum = before.iter().chain(after).fold(8 * 32, |sum: u32, byte| sum + u32::from(*byte));
    header.cksum().is_ok_and(|claimed| claimed == sum)
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the archive is cut short")
}
