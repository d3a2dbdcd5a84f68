//! Archives that are compressed as a whole.

use std::io::{self, BufReader, Read};

use flate2::bufread::MultiGzDecoder;

use super::archive::Part;
use crate::image::blob::zstd_reader;

const GZIP: &[u8] = b"\x1f\x8b";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";

/// Whether the beginning of a file is that of a compression which is read.
pub(super) fn is_supported(beginning: &[u8]) -> bool {
    beginning.starts_with(GZIP) || beginning.starts_with(ZSTD)
}

/// The content of a compressed file.
///
/// # Errors
/// It cannot be read.
pub(super) fn decoder(part: Part) -> io::Result<Box<dyn Read + Send>> {
    let is_zstd = part.beginning(ZSTD.len())? == ZSTD;
    let buffered = BufReader::with_capacity(1 << 17, part);
    if !is_zstd {
        return Ok(Box::new(MultiGzDecoder::new(buffered)));
    }
    Ok(Box::new(zstd_reader(buffered)?))
}
