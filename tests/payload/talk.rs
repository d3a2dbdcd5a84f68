//! Conversations over TCP, byte by byte, and crowds of connections, such as no correct client makes.
//!
//! `talk 127.0.0.1:3128 '>GET / HTTP/1.0\r\n\r\n' '<' + ADDRESS STEP…`. A step is one of
//!
//! | step | what it does |
//! | --- | --- |
//! | `>TEXT` | sends; `\r`, `\n`, `\0`, `\\` and `\xHH` are bytes |
//! | `#N` | sends N times the letter a |
//! | `<TEXT` | reads until TEXT has come |
//! | `<` | reads to the end |
//! | `!` | ends what it sends; the other direction stays |
//! | `~N` | sleeps N milliseconds |
//! | `?N` | from now on waits N milliseconds for something to read, in place of 15 seconds |
//!
//! After the received text comes a line of its own: `[end]`, `[open]` if nothing was read to the end,
//! `[silence]`, or the errno.

use std::{
    io::{self, BufRead, Read, Write},
    net::{Shutdown, SocketAddr, SocketAddrV4, TcpStream},
    os::fd::AsRawFd,
    time::Duration,
};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::{
    call::{address_of, raw},
    errno_name,
};

const PATIENCE: Duration = Duration::from_secs(15);

/// Has each conversation.
pub(crate) fn talk(words: &[&str]) {
    for conversation in words.split(|word| *word == "+") {
        let Some((address, steps)) = conversation.split_first() else { continue };
        let mut heard = Vec::new();
        let end = match converse(address, steps, &mut heard) {
            Ok(end) => end.to_owned(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => "silence".to_owned(),
            Err(error) => errno_name(error.raw_os_error().unwrap_or_default()),
        };
        let newline = if heard.last().is_none_or(|last| *last == b'\n') { "" } else { "\n" };
        println!("{}{newline}[{end}]", String::from_utf8_lossy(&heard));
    }
}

fn converse(address: &str, steps: &[&str], heard: &mut Vec<u8>) -> io::Result<&'static str> {
    let address: SocketAddr = address.parse().map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut end = "open";
    for step in steps {
        let (kind, rest) = step.split_at(1);
        let number = || rest.parse::<u64>().unwrap_or_default();
        match kind {
            ">" => stream.write_all(&bytes(rest))?,
            "#" => stream.write_all(&vec![b'a'; usize::try_from(number()).unwrap_or_default()])?,
            "!" => match stream.shutdown(Shutdown::Write) {
                // The connection was reset. The next read reports it.
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
                ended => ended?,
            },
            "~" => std::thread::sleep(Duration::from_millis(number())),
            "?" => stream.set_read_timeout(Some(Duration::from_millis(number())))?,
            _ => end = hear(&mut stream, &bytes(rest), heard)?,
        }
    }
    Ok(end)
}

/// Reads until `last` has come after the text so far, or to the end if it is empty.
fn hear(stream: &mut TcpStream, last: &[u8], heard: &mut Vec<u8>) -> io::Result<&'static str> {
    let begun = heard.len();
    let mut buffer = [0; 4096];
    loop {
        let new = heard.get(begun..).unwrap_or_default();
        if !last.is_empty() && new.windows(last.len()).any(|window| window == last) {
            return Ok("open");
        }
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Ok("end");
        }
        heard.extend_from_slice(buffer.get(..count).unwrap_or_default());
    }
}

/// Decodes the escapes.
fn bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        let Some((&kind, tail)) = tail.split_first().filter(|_| first == b'\\') else {
            bytes.push(first);
            continue;
        };
        rest = tail;
        bytes.push(match kind {
            b'r' => b'\r',
            b'n' => b'\n',
            b'0' => 0,
            b'x' => {
                let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
                rest = tail.get(2..).unwrap_or_default();
                digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).unwrap_or_default()
            }
            other => other,
        });
    }
    bytes
}

/// `crowd ADDRESS COUNT TEXT`: opens that many connections without waiting for any, sends TEXT on each open
/// one, and prints how many it could begin. For each line of stdin it takes the next step: it closes them
/// all; then it ends.
pub(crate) fn crowd(words: &[&str]) {
    let [address, count, text] = words else { return println!("usage: crowd ADDRESS COUNT TEXT") };
    let (Ok(address), Ok(count)) = (address.parse::<SocketAddrV4>(), count.parse::<usize>()) else {
        return println!("usage: crowd ADDRESS COUNT TEXT");
    };
    let (_, most) =
        nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap_or((0, 0));
    let _ = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, most, most);
    let mut crowd = Vec::with_capacity(count);
    let mut reason = "ok".to_owned();
    for _ in 0..count {
        match begin(address) {
            Ok(stream) => crowd.push(stream),
            Err(errno) => {
                reason = errno_name(errno);
                break;
            }
        }
    }
    // Connections that wait for descriptors get them when some are free.
    for stream in &mut crowd {
        let _ = stream.write_all(&bytes(text));
    }
    println!("{} {reason}", crowd.len());
    let mut lines = io::stdin().lock().lines();
    let _ = lines.next();
    drop(crowd);
    println!("closed");
    let _ = lines.next();
}

/// A connection that is not complete yet.
fn begin(to: SocketAddrV4) -> Result<TcpStream, i32> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None).map_err(|errno| errno as i32)?;
    let address = libc::sockaddr_in {
        sin_family: libc::sa_family_t::try_from(libc::AF_INET).unwrap_or_default(),
        sin_port: to.port().to_be(),
        sin_addr: libc::in_addr { s_addr: to.ip().to_bits().to_be() },
        sin_zero: [0; 8],
    };
    let arguments = [i64::from(socket.as_raw_fd()), address_of(&raw const address), 16, 0, 0, 0];
    match raw(libc::SYS_connect, arguments) {
        Ok(_) | Err(libc::EINPROGRESS) => Ok(TcpStream::from(socket)),
        Err(errno) => Err(errno),
    }
}
