//! What was given: a file, a directory, stdin. Its content says what it is.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Seek, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use super::archive::{Archive, Part, is_header, names_root};
use super::members::{Members, read};
use super::{Contents, ROOT, compression, docker, layout};
use crate::report::error::import::ImportError;

/// Bytes of a compressed archive that are looked at before all of it is decompressed.
const PREFIX: u64 = 1 << 20;

/// Bytes that are copied at once.
const PIECE: usize = 64 << 10;

/// Beginnings of files that are no images, and what they are.
const OTHERS: [(&[u8], &str, Option<&str>); 8] = [
    (b"PK\x03\x04", "a ZIP archive", None),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", None),
    (b"hsqs", "a squashfs file system", Some("unpack it, and import the directory: unsquashfs -d DIR FILE")),
    (
        b"#!/usr/bin/env run-singularity",
        "a SIF image of Apptainer",
        Some("convert it: apptainer build --sandbox DIR FILE, and import the directory"),
    ),
    (b"QFI\xfb", "a disk of a virtual machine", None),
    (b"\x7fELF", "a program", None),
    (b"!<arch>\n", "a Debian package or a static library", None),
    (b"\xed\xab\xee\xdb", "an RPM package", None),
];

/// Compressions that are not read.
const COMPRESSIONS: [(&[u8], &str); 4] =
    [(b"\xfd7zXZ\0", "xz"), (b"BZh", "bzip2"), (b"\x04\x22\x4d\x18", "lz4"), (b"LZIP", "lzip")];

/// What messages call a stream.
const STREAM: &str = "stdin";

/// Where an image comes from.
#[derive(Debug)]
pub enum Given<'a> {
    /// A file or directory.
    Path(&'a Path),
    /// A stream, such as stdin.
    Stream(File),
}

impl Given<'_> {
    /// What messages call it.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Path(path) => path.display().to_string(),
            Self::Stream(_) => STREAM.to_owned(),
        }
    }
}

/// Makes temporary files, and says how large they may become.
pub(super) struct Spool<'s> {
    /// An unlinked file in the store.
    pub(super) make: &'s dyn Fn() -> io::Result<File>,
    /// Bytes of a whole image.
    pub(super) limit: u64,
}

/// Says what was given, without unpacking anything.
///
/// # Errors
/// It is no image for this machine.
pub(super) fn contents(given: Given<'_>, spool: &Spool<'_>) -> Result<Contents, ImportError> {
    match given {
        Given::Path(path) => {
            let found = fs::metadata(path).map_err(read(path))?;
            if found.is_dir() {
                return directory(path);
            }
            let kind = found.file_type();
            if kind.is_char_device() || kind.is_block_device() || kind.is_socket() {
                return Err(other("a device or a socket", None));
            }
            let file = File::open(path).map_err(read(path))?;
            of_file(file, path, spool)
        }
        Given::Stream(file) if file.is_terminal() => {
            Err(other("a terminal", Some("pipe an archive into it: docker save NAME | …")))
        }
        Given::Stream(file) => of_file(file, Path::new(STREAM), spool),
    }
}

/// What a directory is.
fn directory(path: &Path) -> Result<Contents, ImportError> {
    let entries = fs::read_dir(path).map_err(read(path))?;
    let names = entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<io::Result<Vec<_>>>();
    let names = names.map_err(read(path))?;
    let has = |name: &str| names.iter().any(|found| found == name);
    if names.is_empty() {
        return Err(other(
            "an empty directory",
            Some("give the directory of a root file system, or of an OCI layout"),
        ));
    }
    if ROOT.iter().any(|name| has(name)) {
        return Ok(Contents::Tree(path.to_owned()));
    }
    if has("manifest.json") && has("version") && !has(layout::INDEX) {
        let remedy = "copy it to an archive: skopeo copy dir:DIR oci-archive:FILE";
        return Err(other("a directory of skopeo's transport dir:", Some(remedy)));
    }
    match images(&Members::Directory(path.to_owned()), &has)? {
        Some(images) => Ok(images),
        None => Ok(Contents::Tree(path.to_owned())),
    }
}

/// The images among members. `None`: they are no images.
fn images(members: &Members, has: &dyn Fn(&str) -> bool) -> Result<Option<Contents>, ImportError> {
    let has_list = || Ok(members.document(docker::MANIFEST)?.is_some_and(|text| docker::is_list(&text)));
    let images = if has(layout::INDEX) {
        layout::images(members)?
    } else if has(docker::MANIFEST) && has_list()? {
        docker::images(members)?
    } else if has(layout::MARK) {
        return Err(layout::lacks(layout::MARK, layout::INDEX));
    } else if has(docker::REPOSITORIES) {
        let remedy = "load it into docker, and save it again";
        return Err(other("an archive of docker before 1.10", Some(remedy)));
    } else {
        return Ok(None);
    };
    Ok(Some(Contents::Images(images)))
}

/// What a file is, which is read from its place.
fn of_file(mut file: File, path: &Path, spool: &Spool<'_>) -> Result<Contents, ImportError> {
    let is_whole =
        file.metadata().is_ok_and(|found| found.is_file()) && file.stream_position().is_ok_and(|at| at == 0);
    let file = match is_whole {
        true => file,
        false => spooled(&mut file, path, spool)?,
    };
    let part = Part::whole(Arc::new(file)).map_err(read(path))?;
    let beginning = part.beginning(512).map_err(read(path))?;
    if beginning.is_empty() {
        return Err(other("an empty file", None));
    }
    if is_header(&beginning) {
        return archive(part, path);
    }
    if compression::is_supported(&beginning) {
        return compressed(part, path, spool);
    }
    Err(unknown(&beginning))
}

/// What a tar archive is.
fn archive(part: Part, path: &Path) -> Result<Contents, ImportError> {
    if names_root(&part, &ROOT) {
        return Ok(Contents::Files(part));
    }
    let archive = Archive::index(part.clone()).map_err(read(path))?;
    if archive.is_empty() {
        return Err(other("an empty archive", None));
    }
    let members = Members::Archive(archive);
    let has = |name: &str| matches!(&members, Members::Archive(archive) if archive.has(name));
    Ok(images(&members, &has)?.unwrap_or(Contents::Files(part)))
}

/// What a compressed archive is. Files of a root file system stay compressed: the store reads them as a
/// stream. An archive of images is decompressed, so that its members can be found by offsets.
fn compressed(part: Part, path: &Path, spool: &Spool<'_>) -> Result<Contents, ImportError> {
    let mut plain = compression::decoder(part.clone()).map_err(read(path))?;
    let mut file = (spool.make)().map_err(kept)?;
    let copied = pass(&mut plain, &mut file, path, PREFIX)?;
    let prefix = Part::whole(Arc::new(file.try_clone().map_err(read(path))?)).map_err(read(path))?;
    let beginning = prefix.beginning(512).map_err(read(path))?;
    if !is_header(&beginning) {
        return Err(unknown(&beginning));
    }
    if names_root(&prefix, &ROOT) {
        return Ok(Contents::Files(part));
    }
    copy(&mut plain, &mut file, path, spool.limit.saturating_sub(copied), spool.limit)?;
    archive(Part::whole(Arc::new(file)).map_err(read(path))?, path)
}

/// Copies a stream to a temporary file.
fn spooled(stream: &mut File, path: &Path, spool: &Spool<'_>) -> Result<File, ImportError> {
    let mut file = (spool.make)().map_err(kept)?;
    copy(stream, &mut file, path, spool.limit, spool.limit)?;
    Ok(file)
}

fn copy(from: &mut dyn Read, to: &mut File, path: &Path, most: u64, limit: u64) -> Result<(), ImportError> {
    match pass(from, to, path, most.saturating_add(1))? > most {
        true => Err(ImportError::TooLarge { limit }),
        false => Ok(()),
    }
}

/// Copies at most so many bytes, and answers how many it were. `io::copy` does not tell which side failed.
fn pass(from: &mut dyn Read, to: &mut File, path: &Path, most: u64) -> Result<u64, ImportError> {
    let (mut from, mut piece, mut copied) = (from.take(most), vec![0; PIECE], 0);
    loop {
        let count = match from.read(&mut piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            count => count.map_err(read(path))?,
        };
        let Some(bytes) = piece.get(..count).filter(|bytes| !bytes.is_empty()) else { return Ok(copied) };
        to.write_all(bytes).map_err(kept)?;
        copied += count as u64;
    }
}

fn kept(source: io::Error) -> ImportError {
    ImportError::Copy { source }
}

/// The error for a content that is no archive.
fn unknown(beginning: &[u8]) -> ImportError {
    let found = |magic: &[u8]| beginning.starts_with(magic);
    if let Some((_, compression)) = COMPRESSIONS.iter().find(|(magic, _)| found(magic)) {
        return ImportError::Compression { compression };
    }
    if let Some((_, what, remedy)) = OTHERS.iter().find(|(magic, ..)| found(magic)) {
        return other(what, *remedy);
    }
    match beginning.iter().all(|byte| *byte == 0) {
        true => other("an empty archive", None),
        false => other("a file of another format", None),
    }
}

fn other(what: &str, remedy: Option<&'static str>) -> ImportError {
    const USUAL: &str = "give an archive of docker save or podman save, an OCI layout or an archive of one, or the files of a \
                         root file system as a tar archive or a directory";
    ImportError::Other { what: what.to_owned(), remedy: Some(remedy.unwrap_or(USUAL)) }
}
