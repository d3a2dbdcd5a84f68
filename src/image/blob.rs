//! From the bytes of a layer to its directory. Two threads share the work: the caller's reads, hashes and
//! uncompresses, and one that may write nothing but the new directory applies what comes out.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use flate2::bufread::MultiGzDecoder;
use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible as _, PathBeneath, Ruleset,
    RulesetAttr as _, RulesetCreatedAttr as _, RulesetError,
};
use sha2::{Digest as _, Sha256};

use crate::image::apply::{Applier, ApplySummary};
use crate::image::archive::Archive;
use crate::image::digest::Digest;
use crate::image::fault::Fault;
use crate::image::new_layer::{Budget, NewLayer};
use crate::image::tree::LowerLayers;
use crate::report::error::image::ImageError;
use crate::sys;

/// The size of a piece that goes from thread to thread, and how many may wait.
const PIECE: usize = 256 << 10;
const WAITING: usize = 8;

/// The largest window of zstd, as a power of two: 128 MiB, what `zstd --long` makes at most by itself.
const ZSTD_WINDOW: u32 = 27;

/// Compressions by the first bytes of a file, other than those that are read.
const UNREAD: [(&[u8], &str); 5] = [
    (b"\xfd7zXZ\0", "xz"),
    (b"BZh", "bzip2"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"LZIP", "lzip"),
    (b"\x1f\x9d", "compress"),
];

/// The directories that the applying thread works in.
pub(crate) struct Workplace<'a> {
    /// The empty directory for the new layer.
    pub(crate) root: OwnedFd,
    /// What it may write below.
    pub(crate) writable: OwnedFd,
    /// What it may read below: all layers of the store.
    pub(crate) readable: OwnedFd,
    pub(crate) lower: &'a LowerLayers,
    pub(crate) budget: &'a Budget,
    /// The entries of the layers below.
    pub(crate) files: u64,
}

/// What a caller expects of the bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExpectedDigests {
    pub(crate) digest: Option<Digest>,
    pub(crate) diff_id: Option<Digest>,
}

/// A layer that was applied.
#[derive(Debug)]
pub(crate) struct AppliedBlob {
    pub(crate) applied: ApplySummary,
    pub(crate) diff_id: Digest,
    /// Bytes of the archive, uncompressed.
    pub(crate) size: u64,
}

/// Reads a blob to its end and applies it.
///
/// # Errors
/// The archive, one of its entries, the limits, or digests other than expected.
pub(crate) fn apply(
    blob: impl Read,
    expected: ExpectedDigests,
    layer: &str,
    workplace: Workplace<'_>,
) -> Result<AppliedBlob, ImageError> {
    let mut raw = Hashing { reader: blob, hash: Sha256::new() };
    let budget = workplace.budget;
    let (sender, receiver) = sync_channel(WAITING);
    let (sent, applied) = thread::scope(|scope| {
        let applier = thread::Builder::new().name("kennel-layer".to_owned());
        let applier = applier.spawn_scoped(scope, move || apply_pieces(receiver, workplace))?;
        let sent = uncompress(&mut raw, &sender, budget);
        drop(sender);
        Ok((sent, applier.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))))
    })
    .map_err(|error: io::Error| Fault::Write(error).of_layer(layer, b""))?;
    let outcome = match (sent, applied) {
        // The reader knows why the archive ended early.
        (Err(fault), _) => Err(fault.of_layer(layer, b"")),
        (Ok(SentPieces::Stopped), Ok(_)) => {
            Err(Fault::Archive("it was not read to its end").of_layer(layer, b""))
        }
        (Ok(_), Err(ApplyFault { fault, entry })) => Err(fault.of_layer(layer, &entry)),
        (Ok(SentPieces::All { hash, size }), Ok(applied)) => {
            Ok(AppliedBlob { applied, diff_id: Digest::of_hash(hash), size })
        }
    };
    // If the bytes are not those that were promised, that is the reason for all that is wrong with them.
    let outcome = match outcome {
        Err(error) if !is_of_content(&error) => return Err(error),
        outcome => outcome,
    };
    if let Some(expected) = expected.digest {
        match drain(&mut raw, budget) {
            Ok(()) => check(layer, "digest", expected, Digest::of_hash(raw.hash))?,
            Err(fault) if outcome.is_ok() => return Err(fault.of_layer(layer, b"")),
            Err(_) => {}
        }
    }
    let outcome = outcome?;
    if let Some(expected) = expected.diff_id {
        check(layer, "diff id", expected, outcome.diff_id)?;
    }
    Ok(outcome)
}

fn check(layer: &str, what: &'static str, expected: Digest, found: Digest) -> Result<(), ImageError> {
    if expected == found {
        return Ok(());
    }
    let (expected, found) = (expected.to_string(), found.to_string());
    Err(ImageError::Digest { layer: layer.to_owned(), what, expected, found })
}

/// Whether other bytes than the promised ones could be the reason.
fn is_of_content(error: &ImageError) -> bool {
    matches!(
        error,
        ImageError::Archive { .. }
            | ImageError::Compression { .. }
            | ImageError::Read { .. }
            | ImageError::Entry { .. }
    )
}

/// A reader whose bytes are hashed.
struct Hashing<R> {
    reader: R,
    hash: Sha256,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.hash.update(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }
}

/// Reads the rest, so that its hash is complete.
fn drain(raw: &mut impl Read, budget: &Budget) -> Result<(), Fault> {
    let mut buffer = vec![0; PIECE];
    loop {
        match raw.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Fault::Read(error)),
            Ok(0) => return Ok(()),
            Ok(count) => budget.spend(count)?,
        }
    }
}

enum SentPieces {
    All {
        hash: Sha256,
        size: u64,
    },
    /// The other thread takes no more.
    Stopped,
}

/// Sends the uncompressed bytes on.
fn uncompress(raw: impl Read, pieces: &SyncSender<Vec<u8>>, budget: &Budget) -> Result<SentPieces, Fault> {
    let mut archive = open(raw)?;
    let (mut hash, mut size) = (Sha256::new(), 0);
    loop {
        let mut piece = vec![0; PIECE];
        let mut filled = 0;
        while let Some(rest) = piece.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match archive.read(rest) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::Read(error)),
                Ok(0) => break,
                Ok(count) => filled += count,
            }
        }
        piece.truncate(filled);
        if piece.is_empty() {
            return Ok(SentPieces::All { hash, size });
        }
        budget.spend(filled)?;
        size += u64::try_from(filled).unwrap_or_default();
        hash.update(&piece);
        if pieces.send(piece).is_err() {
            return Ok(SentPieces::Stopped);
        }
    }
}

type Start<R> = BufReader<Chain<Cursor<Vec<u8>>, R>>;

/// The uncompressed bytes, by what the file begins with.
fn open<'r, R: Read + 'r>(mut raw: R) -> Result<Box<dyn Read + 'r>, Fault> {
    let mut start = Vec::new();
    raw.by_ref().take(8).read_to_end(&mut start).map_err(Fault::Read)?;
    let begins = |with: &[u8]| start.starts_with(with);
    let is_skippable_frame =
        matches!(start.as_slice(), [first, 0x2a, 0x4d, 0x18, ..] if (0x50..0x60).contains(first));
    let (is_gzip, is_zstd) = (begins(b"\x1f\x8b"), begins(b"\x28\xb5\x2f\xfd") || is_skippable_frame);
    if let Some((_, name)) = UNREAD.iter().find(|(with, _)| begins(with)) {
        return Err(Fault::Compression(name));
    }
    let whole: Start<R> = BufReader::with_capacity(PIECE, Cursor::new(start).chain(raw));
    Ok(match (is_gzip, is_zstd) {
        (true, _) => Box::new(MultiGzDecoder::new(whole)),
        (_, true) => Box::new(zstd_reader(whole).map_err(Fault::Read)?),
        _ => Box::new(whole),
    })
}

/// The content of a zstd file.
pub(crate) fn zstd_reader<R: BufRead>(whole: R) -> io::Result<zstd::Decoder<'static, R>> {
    let mut decoder = zstd::Decoder::with_buffer(whole)?;
    decoder.window_log_max(ZSTD_WINDOW)?;
    Ok(decoder)
}

/// A fault with the name of its entry.
struct ApplyFault {
    fault: Fault,
    entry: Vec<u8>,
}

/// The applying thread.
fn apply_pieces(pieces: Receiver<Vec<u8>>, workplace: Workplace<'_>) -> Result<ApplySummary, ApplyFault> {
    let Workplace { root, writable, readable, lower, budget, files } = workplace;
    if let Err(error) = restrict(writable, readable) {
        // The walls that count are those of openat2(2). A program may have used up its 16 domains.
        tracing::debug!(%error, "layers are applied without Landlock");
    }
    let mut archive = Archive::new(Pieces { pieces, current: Cursor::default() });
    let applied = Applier::new(NewLayer::new(root, lower, budget, files)).apply(&mut archive);
    match applied {
        Ok(applied) => {
            // What follows the archive counts for the diff id.
            archive.finish().map_err(|fault| ApplyFault { fault, entry: Vec::new() })?;
            Ok(applied)
        }
        Err(fault) => Err(ApplyFault { fault, entry: archive.name }),
    }
}

/// Lets this thread, and nothing else of the process, write only below one directory and read only below
/// it and another one. It has no effect on a kernel without Landlock.
fn restrict(writable: OwnedFd, readable: OwnedFd) -> Result<(), RulesetError> {
    // Before Linux 5.19, Landlock allows no link from one directory to another.
    if sys::landlock_abi() < 2 {
        return Ok(());
    }
    let all = AccessFs::from_all(ABI::V5);
    let reading: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir;
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .create()?
        .add_rule(PathBeneath::new(writable, all))?
        .add_rule(PathBeneath::new(readable, reading))?
        .restrict_self()?;
    Ok(())
}

/// The pieces as one stream.
struct Pieces {
    pieces: Receiver<Vec<u8>>,
    current: Cursor<Vec<u8>>,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.current.read(buffer)? {
                0 if !buffer.is_empty() => match self.pieces.recv() {
                    Ok(piece) => self.current = Cursor::new(piece),
                    Err(_) => return Ok(0),
                },
                count => return Ok(count),
            }
        }
    }
}
