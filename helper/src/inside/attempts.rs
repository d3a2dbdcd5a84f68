//! The image as an ordinary program: makes one attempt that a sandbox must stop or must allow, and exits with
//! the errno, or 0 if it succeeded. `kennel probe` runs it inside. It prints nothing and changes only one
//! byte of the file that it is told to write.

use core::ffi::CStr;

use crate::{
    digits,
    kernel::{AF_INET, AF_UNIX, CLONE_NEWUSER, EINVAL},
    sys::{self, Arguments, Errno},
};

/// Longest name of an abstract socket: `sun_path` without its leading NUL.
const LONGEST_NAME: usize = 107;

/// Makes the attempt that the arguments name.
pub(crate) fn run(arguments: &Arguments) -> ! {
    sys::exit(attempt(arguments).err().map_or(0, |Errno(errno)| errno))
}

fn attempt(arguments: &Arguments) -> Result<(), Errno> {
    let name = arguments.get(1).ok_or(Errno(EINVAL))?;
    let operand = arguments.get(2).unwrap_or(c"");
    match name.to_bytes() {
        b"read" => sys::open_for_reading(operand).map(drop),
        b"write" => sys::write_all(&sys::open_for_writing(operand)?, b"x"),
        // Descriptor 0 is a file of the host. Its link in /proc leads out of the view.
        b"reopen-stdin" => sys::open_for_reading(c"/proc/self/fd/0").map(drop),
        b"connect-tcp" => connect_tcp(port(operand)?),
        b"serve-tcp" => serve_tcp(port(operand)?),
        b"connect-abstract" => connect_abstract(operand),
        // Signal 0 only checks whether a signal could be delivered.
        b"signal" => sys::kill(number(operand)?, 0),
        b"new-user-namespace" => sys::unshare(CLONE_NEWUSER),
        b"new-keyring" => sys::new_session_keyring(),
        _ => Err(Errno(EINVAL)),
    }
}

fn connect_tcp(port: u16) -> Result<(), Errno> {
    sys::connect(&sys::stream(AF_INET)?, &loopback(port))
}

/// Starts a server on the loopback device and connects to it.
fn serve_tcp(port: u16) -> Result<(), Errno> {
    let server = sys::stream(AF_INET)?;
    sys::bind(&server, &loopback(port))?;
    sys::listen(&server)?;
    connect_tcp(port)
}

/// `struct sockaddr_in` of 127.0.0.1.
fn loopback(port: u16) -> [u8; 16] {
    let [family, _, ..] = AF_INET.to_le_bytes();
    let [high, low] = port.to_be_bytes();
    [family, 0, high, low, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]
}

/// `struct sockaddr_un` of an abstract name: family, NUL, name.
fn connect_abstract(name: &CStr) -> Result<(), Errno> {
    let name = name.to_bytes();
    let mut address = [0; LONGEST_NAME + 3];
    let [family, _, ..] = AF_UNIX.to_le_bytes();
    for (to, &from) in address.iter_mut().zip([family, 0, 0].iter().chain(name)) {
        *to = from;
    }
    let used = address.get(..name.len().saturating_add(3)).ok_or(Errno(EINVAL))?;
    sys::connect(&sys::stream(AF_UNIX)?, used)
}

fn port(text: &CStr) -> Result<u16, Errno> {
    u16::try_from(number(text)?).map_err(|_| Errno(EINVAL))
}

/// A number in decimal digits.
fn number(text: &CStr) -> Result<i32, Errno> {
    digits::number(text.to_bytes()).ok_or(Errno(EINVAL))
}
