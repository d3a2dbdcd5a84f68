//! The stream of a layer as a sequence of entries: tar with PAX and GNU extensions, read as Go's
//! `archive/tar` reads it, because docker does. It touches no file.
//!
//! Headers come from the crate `tar`. Its iterator does not fit: it reads an extension of any length into
//! memory, ends a PAX value at its first newline, and does not know holes of PAX.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tar::{GnuExtSparseHeader, GnuSparseHeader, Header};

use crate::image::extension::{Attribute, Extension, FileTime, decimal, number, records, time};
use crate::image::fault::Fault;
use crate::report::error::image::EntryRefusal;

const BLOCK: usize = 512;

/// The longest extension header, in bytes. Attributes are the largest thing in one, with 64 KiB each.
const LONGEST_EXTENSION: u64 = 1 << 20;

/// The most pieces of data that a file with holes may have.
const MOST_PIECES: usize = 1 << 20;

/// The longest name and the longest component of one, in bytes.
const LONGEST_NAME: usize = 4096;
const LONGEST_COMPONENT: usize = 255;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    File,
    Directory,
    Link,
    HardLink,
    Fifo,
    Device,
}

/// A piece of a file that has data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// An entry without its data.
#[derive(Clone, Debug)]
pub(crate) struct ArchiveEntry {
    pub(crate) kind: EntryKind,
    /// As it stands in the archive.
    pub(crate) name: Vec<u8>,
    /// The target of a link.
    pub(crate) target: Vec<u8>,
    /// Permissions with set-id bits and sticky.
    pub(crate) mode: u32,
    pub(crate) modified: FileTime,
    pub(crate) attributes: Vec<Attribute>,
    /// The length of a file, in bytes.
    pub(crate) length: u64,
    /// Where the data of a file with holes belongs.
    pub(crate) pieces: Option<Vec<Piece>>,
}

/// The entries of a stream.
pub(crate) struct Archive<R> {
    stream: R,
    /// Bytes of the current entry that were not read yet, and the padding after them.
    left: u64,
    padding: u64,
    /// The name of the current entry, for messages.
    pub(crate) name: Vec<u8>,
}

impl<R: Read> Archive<R> {
    pub(crate) fn new(stream: R) -> Self {
        Self { stream, left: 0, padding: 0, name: Vec::new() }
    }

    /// The next entry; `None` at the end. Data of the one before is skipped.
    pub(crate) fn next(&mut self) -> Result<Option<ArchiveEntry>, Fault> {
        let mut extension = Extension::default();
        loop {
            self.skip()?;
            let Some(header) = self.header()? else {
                return match extension.any {
                    true => Err(Fault::Archive("it ends after an extension header")),
                    false => Ok(None),
                };
            };
            let size = number(header.entry_size(), &header.as_old().size)?;
            match header.entry_type().as_byte() {
                b'L' => extension.name = Some(until_nul(self.extension(size)?)),
                b'K' => extension.target = Some(until_nul(self.extension(size)?)),
                b'x' | b'X' => extension.records = records(&self.extension(size)?)?,
                // For all entries that follow; docker takes none of it.
                b'g' => {
                    self.extension(size)?;
                    continue;
                }
                _ => return self.entry(&header, &extension, size).map(Some),
            }
            extension.any = true;
        }
    }

    fn entry(&mut self, header: &Header, extension: &Extension, size: u64) -> Result<ArchiveEntry, Fault> {
        let name = extension.name.as_deref().or(extension.get("GNU.sparse.name")).or(extension.get("path"));
        let name = name.map_or_else(|| header.path_bytes().into_owned(), <[u8]>::to_vec);
        self.name.clone_from(&name);
        let target = extension.target.as_deref().or(extension.get("linkpath"));
        let target = target.map(<[u8]>::to_vec);
        let target = target.or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned));
        let kind = match header.entry_type().as_byte() {
            // Before POSIX, a directory was a file with a slash at the end.
            0 if name.ends_with(b"/") => EntryKind::Directory,
            0 | b'0' | b'7' | b'S' => EntryKind::File,
            b'1' => EntryKind::HardLink,
            b'2' => EntryKind::Link,
            b'3' | b'4' => EntryKind::Device,
            b'5' => EntryKind::Directory,
            b'6' => EntryKind::Fifo,
            _ => return Err(Fault::Entry(EntryRefusal::Type)),
        };
        // Others have no data, whatever size they name.
        if kind == EntryKind::File {
            self.take(extension.number("size")?.unwrap_or(size))?;
        }
        let modified = number(header.mtime(), &header.as_old().mtime)?.cast_signed();
        let modified = match extension.get("mtime") {
            Some(text) => time(text).ok_or(Fault::Archive("a time in a PAX record is no time"))?,
            None => FileTime { seconds: modified, nanoseconds: 0 },
        };
        let mode = number(header.mode().map(u64::from), &header.as_old().mode)? & 0o7777;
        let pieces = if kind == EntryKind::File { self.pieces(header, extension)? } else { None };
        let attributes = extension.records.iter().filter_map(|record| {
            let name = record.name.strip_prefix(b"SCHILY.xattr.")?.to_vec();
            Some(Attribute { name, value: record.value.clone() })
        });
        let (pieces, length) = match pieces {
            Some((pieces, length)) => (Some(pieces), length),
            None => (None, self.left),
        };
        Ok(ArchiveEntry {
            kind,
            name,
            target: target.unwrap_or_default(),
            mode: u32::try_from(mode).unwrap_or(0),
            modified,
            attributes: attributes.collect(),
            length,
            pieces,
        })
    }

    /// Reads data of the current entry; 0 at its end.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Fault> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let Some(buffer) = buffer.get_mut(..most).filter(|buffer| !buffer.is_empty()) else { return Ok(0) };
        match read_some(&mut self.stream, buffer)? {
            0 => Err(Fault::Archive("it ends within an entry")),
            count => {
                self.left -= u64::try_from(count).unwrap_or(self.left);
                Ok(count)
            }
        }
    }

    fn read_all(&mut self, mut buffer: &mut [u8]) -> Result<(), Fault> {
        while !buffer.is_empty() {
            let count = self.read(buffer)?;
            if count == 0 {
                return Err(Fault::Archive("an entry is shorter than it must be"));
            }
            buffer = buffer.get_mut(count..).unwrap_or_default();
        }
        Ok(())
    }

    /// The next `size` bytes belong to the current entry.
    fn take(&mut self, size: u64) -> Result<(), Fault> {
        if size > u64::MAX / 2 {
            return Err(Fault::Archive("an entry is larger than any file"));
        }
        (self.left, self.padding) = (size, size.next_multiple_of(512) - size);
        Ok(())
    }

    /// Reads what follows the archive.
    pub(crate) fn finish(&mut self) -> Result<(), Fault> {
        let mut buffer = vec![0; 256 << 10];
        while read_some(&mut self.stream, &mut buffer)? > 0 {}
        Ok(())
    }

    fn skip(&mut self) -> Result<(), Fault> {
        self.left += std::mem::take(&mut self.padding);
        let mut buffer = [0; 32 << 10];
        while self.read(&mut buffer)? > 0 {}
        Ok(())
    }

    /// The data of an extension header.
    fn extension(&mut self, size: u64) -> Result<Vec<u8>, Fault> {
        if size > LONGEST_EXTENSION {
            return Err(Fault::Archive("an extension header is longer than 1 MiB"));
        }
        self.take(size)?;
        let mut data = vec![0; usize::try_from(size).unwrap_or(0)];
        self.read_all(&mut data)?;
        Ok(data)
    }

    /// The next header; `None` at the end: two blocks of zeros, or no more bytes.
    fn header(&mut self) -> Result<Option<Header>, Fault> {
        let mut header = Header::new_old();
        let mut zeros = 0;
        loop {
            let bytes = header.as_mut_bytes();
            match read_block(&mut self.stream, bytes)? {
                false => return Ok(None),
                true if bytes.iter().all(|byte| *byte == 0) => zeros += 1,
                true if zeros > 0 => return Err(Fault::Archive("something follows a block of zeros")),
                true => break,
            }
            if zeros == 2 {
                return Ok(None);
            }
        }
        let bytes = header.as_bytes();
        let others = bytes.iter().enumerate().filter(|(at, _)| !(148..156).contains(at));
        let sum: u32 = others.map(|(_, byte)| u32::from(*byte)).sum::<u32>() + 8 * u32::from(b' ');
        match header.cksum() {
            Ok(expected) if expected == sum => Ok(Some(header)),
            _ => Err(Fault::Archive("it is no tar archive, or a header of it is damaged")),
        }
    }

    /// Where the data belongs, and the length of the file, if it has holes.
    fn pieces(&mut self, header: &Header, extension: &Extension) -> Result<Option<(Vec<Piece>, u64)>, Fault> {
        let mut map = Pieces::default();
        let length = if header.entry_type().is_gnu_sparse() {
            self.gnu_pieces(header, &mut map)?
        } else if extension.get("GNU.sparse.major") == Some(b"1") {
            self.pax_pieces(&mut map)?;
            extension.number("GNU.sparse.realsize")?.unwrap_or(0)
        } else if let Some(text) = extension.get("GNU.sparse.map") {
            for pair in text.split(|byte| *byte == b',').collect::<Vec<_>>().chunks(2) {
                let [offset, length] = pair else { return Err(SPARSE) };
                map.add(decimal(offset), decimal(length))?;
            }
            extension.number("GNU.sparse.size")?.unwrap_or(0)
        } else if extension.get("GNU.sparse.numblocks").is_some() {
            let mut offset = None;
            for record in &extension.records {
                match record.name.as_slice() {
                    b"GNU.sparse.offset" => offset = decimal(&record.value),
                    b"GNU.sparse.numbytes" => map.add(offset.take(), decimal(&record.value))?,
                    _ => {}
                }
            }
            extension.number("GNU.sparse.size")?.unwrap_or(0)
        } else {
            return Ok(None);
        };
        if map.end > length || map.data != self.left {
            return Err(SPARSE);
        }
        Ok(Some((map.pieces, length)))
    }

    /// Those of GNU's own format, and the length of the file.
    fn gnu_pieces(&mut self, header: &Header, map: &mut Pieces) -> Result<u64, Fault> {
        let gnu = header.as_gnu().ok_or(SPARSE)?;
        gnu.sparse.iter().try_for_each(|piece| map.add_gnu(piece))?;
        let mut goes_on = gnu.is_extended();
        while goes_on {
            let mut more = GnuExtSparseHeader::new();
            if !read_block(&mut self.stream, more.as_mut_bytes())? {
                return Err(Fault::Archive("it ends within an entry"));
            }
            more.sparse.iter().try_for_each(|piece| map.add_gnu(piece))?;
            goes_on = more.is_extended();
        }
        gnu.real_size().map_err(|_| SPARSE)
    }

    /// Those at the beginning of the data: decimal numbers, each on a line, padded to a block.
    fn pax_pieces(&mut self, map: &mut Pieces) -> Result<(), Fault> {
        let (mut numbers, mut line, mut wanted) = (Vec::new(), Vec::new(), 1);
        let mut block = [0; BLOCK];
        while numbers.len() < wanted {
            self.read_all(&mut block)?;
            for byte in block {
                match byte {
                    _ if numbers.len() == wanted => break,
                    b'\n' => {
                        numbers.push(decimal(&line).ok_or(SPARSE)?);
                        line.clear();
                    }
                    _ if line.len() == 20 => return Err(SPARSE),
                    byte => line.push(byte),
                }
                if let [count] = numbers.as_slice() {
                    let count = usize::try_from(*count).ok().filter(|count| *count <= MOST_PIECES);
                    wanted = count.ok_or(SPARSE)? * 2 + 1;
                }
            }
        }
        for pair in numbers.get(1..).unwrap_or_default().chunks(2) {
            let [offset, length] = pair else { return Err(SPARSE) };
            map.add(Some(*offset), Some(*length))?;
        }
        Ok(())
    }
}

const SPARSE: Fault = Fault::Entry(EntryRefusal::Sparse);

/// Pieces in order, without overlap.
#[derive(Default)]
struct Pieces {
    pieces: Vec<Piece>,
    end: u64,
    data: u64,
}

impl Pieces {
    fn add(&mut self, offset: Option<u64>, length: Option<u64>) -> Result<(), Fault> {
        let (Some(offset), Some(length)) = (offset, length) else { return Err(SPARSE) };
        let end = offset.checked_add(length).filter(|end| i64::try_from(*end).is_ok()).ok_or(SPARSE)?;
        if offset < self.end || self.pieces.len() == MOST_PIECES {
            return Err(SPARSE);
        }
        (self.end, self.data) = (end, self.data + length);
        self.pieces.push(Piece { offset, length });
        Ok(())
    }

    fn add_gnu(&mut self, piece: &GnuSparseHeader) -> Result<(), Fault> {
        if piece.is_empty() { Ok(()) } else { self.add(piece.offset().ok(), piece.length().ok()) }
    }
}

/// A name as a path below the root of the image, without `.` and doubled slashes. The root is the empty path.
pub(crate) fn relative(name: &[u8]) -> Result<PathBuf, EntryRefusal> {
    if name.is_empty() || name.contains(&0) {
        return Err(EntryRefusal::NoName);
    }
    if name.len() > LONGEST_NAME {
        return Err(EntryRefusal::TooLong);
    }
    // Some builders call the root `/`.
    if name.starts_with(b"/") && !name.iter().all(|byte| matches!(byte, b'/' | b'.')) {
        return Err(EntryRefusal::Absolute);
    }
    let mut path = PathBuf::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err(EntryRefusal::ParentComponent),
            part if part.len() > LONGEST_COMPONENT => return Err(EntryRefusal::TooLong),
            part => path.push(Path::new(OsStr::from_bytes(part))),
        }
    }
    Ok(path)
}

fn until_nul(mut text: Vec<u8>) -> Vec<u8> {
    text.truncate(text.iter().position(|byte| *byte == 0).unwrap_or(text.len()));
    text
}

/// Fills a block; false if the stream has ended before it.
fn read_block(stream: &mut impl Read, mut block: &mut [u8]) -> Result<bool, Fault> {
    let whole = block.len();
    while !block.is_empty() {
        match read_some(stream, block)? {
            0 if block.len() == whole => return Ok(false),
            0 => return Err(Fault::Archive("it ends within a header")),
            count => block = block.get_mut(count..).unwrap_or_default(),
        }
    }
    Ok(true)
}

fn read_some(stream: &mut impl Read, buffer: &mut [u8]) -> Result<usize, Fault> {
    loop {
        match stream.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read.map_err(Fault::Read),
        }
    }
}
