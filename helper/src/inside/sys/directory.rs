//! Entries of a directory, as getdents64(2) returns them.

use core::ffi::CStr;

/// Offsets of the length, the type and the name in an entry.
const LENGTH_AT: usize = 16;
const KIND_AT: usize = 18;
const NAME_AT: usize = 19;
const DIRECTORY: u8 = 4;

/// An entry.
pub(crate) struct Entry<'e> {
    pub(crate) name: Option<&'e CStr>,
    pub(crate) is_directory: bool,
}

/// Splits `entries` into the first entry and the rest.
pub(crate) fn next(entries: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    let &[low, high] = entries.get(LENGTH_AT..KIND_AT)? else { return None };
    let length = u16::from_le_bytes([low, high]);
    let (entry, rest) = entries.split_at_checked(length.into()).filter(|(entry, _)| !entry.is_empty())?;
    let is_directory = entry.get(KIND_AT) == Some(&DIRECTORY);
    let name = entry.get(NAME_AT..).and_then(|name| CStr::from_bytes_until_nul(name).ok());
    Some((Entry { name, is_directory }, rest))
}
