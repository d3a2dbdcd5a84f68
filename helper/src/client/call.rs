//! Sends a call without an allocator: measures it first, then writes it where it fits.

use core::ffi::CStr;

use crate::{
    client_wire::{Ask, LONGEST_ASK, Manner},
    sys::{self, Errno, Fd, Strings},
    wire::{Field, Sink},
    words::{ETOOMANYREFS, Trouble},
};

/// Longest path that getcwd(2) returns.
const LONGEST_PATH: usize = 4096;

/// Bytes of an encoded [`Ask`] with one number.
const HEAD: usize = 8;

/// Sends the command with this process's environment and descriptors, and its directory unless `-C` names
/// another.
pub(crate) fn send(
    socket: &Fd,
    directory: Option<&CStr>,
    arguments: impl Iterator<Item = &'static CStr> + Clone,
    environment: Strings,
) -> Result<(), Trouble> {
    let mut path = [0; LONGEST_PATH];
    let cwd = match directory {
        Some(directory) => directory,
        None => sys::working_directory(&mut path).map_err(Trouble::Directory)?,
    };
    let manner = Manner { cwd, timeout_ms: 0, terminal: 0, window: 0, modes: &[], report: 0 };
    let (arguments, environment) = (Measured::of(arguments), Measured::of(environment));
    let mut length = Count(0);
    manner.put(&mut length);
    let Count(length) = length;
    let length = length.saturating_add(arguments.encoded()).saturating_add(environment.encoded());
    let (buffer, _) = sys::map(None, length.saturating_add(HEAD), 0)
        .map_err(|errno| Trouble::Own(b"make room for the call", errno))?;
    let mut packet = Room(buffer);
    let number = u32::try_from(length).map_err(|_| Trouble::TooLong)?;
    let is_long = length.saturating_add(HEAD) > LONGEST_ASK;
    let ask = if is_long { Ask::Memfd { length: number } } else { Ask::Inline { length: number } };
    ask.put(&mut packet);
    manner.put(&mut packet);
    arguments.put(&mut packet);
    environment.put(&mut packet);
    let mut sent = send_once(socket, buffer, is_long);
    // This user has too many descriptors in flight for this process's limit: unix(7).
    if sent == Err(Errno(ETOOMANYREFS)) && sys::allow_all_descriptors().is_ok() {
        sent = send_once(socket, buffer, is_long);
    }
    sent.map_err(Trouble::Send)
}

fn send_once(socket: &Fd, packet: &mut [u8], is_long: bool) -> Result<(), Errno> {
    if is_long { send_long(socket, packet) } else { short(socket, packet) }
}

fn short(socket: &Fd, packet: &mut [u8]) -> Result<(), Errno> {
    sys::send_standard(socket, packet, None)
}

/// Sends the head in the packet and the call in a memfd.
fn send_long(socket: &Fd, packet: &mut [u8]) -> Result<(), Errno> {
    let (head, call) = packet.split_at_mut_checked(HEAD).unwrap_or_default();
    let memfd = sys::memory_file(c"kennel-call")?;
    sys::write_all(&memfd, call)?;
    sys::send_standard(socket, head, Some(&memfd))
}

/// Sends a signal for the command.
pub(crate) fn signal(socket: &Fd, number: u32) -> Result<(), Errno> {
    let mut bytes = [0; HEAD];
    Ask::Signal { number }.put(&mut Room(&mut bytes));
    sys::send(socket, &mut bytes, None)
}

/// Strings to encode as a [`List`](crate::wire::List).
struct Measured<S> {
    strings: S,
    count: u32,
    bytes: usize,
}

impl<S: Iterator<Item = &'static CStr> + Clone> Measured<S> {
    fn of(strings: S) -> Self {
        let mut bytes = Count(0);
        let mut count = 0u32;
        for string in strings.clone() {
            string.put(&mut bytes);
            count = count.saturating_add(1);
        }
        let Count(bytes) = bytes;
        Self { strings, count, bytes }
    }

    /// The encoded size of the list in bytes.
    fn encoded(&self) -> usize {
        self.bytes.saturating_add(HEAD)
    }

    fn put(self, out: &mut impl Sink) {
        self.count.put(out);
        u32::try_from(self.bytes).unwrap_or(u32::MAX).put(out);
        self.strings.for_each(|string| string.put(out));
    }
}

/// Counts the bytes of an encoding.
struct Count(usize);

impl Sink for Count {
    fn append(&mut self, bytes: &[u8]) {
        self.0 = self.0.saturating_add(bytes.len());
    }
}

/// A buffer being filled.
struct Room<'b>(&'b mut [u8]);

impl Sink for Room<'_> {
    /// Drops what does not fit. Everything fits, because it was measured.
    fn append(&mut self, bytes: &[u8]) {
        let rest = core::mem::take(&mut self.0);
        if let Some((room, rest)) = rest.split_at_mut_checked(bytes.len()) {
            room.copy_from_slice(bytes);
            self.0 = rest;
        }
    }
}
