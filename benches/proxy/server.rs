//! The server: sends as many bytes as it is asked for. And a proxy that is not Kennel's, which is that server behind a
//! Unix socket.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    os::unix::net::UnixListener,
    path::Path,
    thread,
};

/// A small stack: thousands of threads wait in a test of many tunnels.
const STACK: usize = 64 << 10;

/// What is sent: the same bytes for everybody.
static CHUNK: [u8; 256 << 10] = [7; 256 << 10];

/// Starts the server on loopback.
pub(crate) fn start() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            serve(move || send(stream));
        }
    });
    at
}

/// Starts the other proxy. It answers any CONNECT with yes, and is the server itself.
pub(crate) fn foreign(path: &Path) {
    let listener = UnixListener::bind(path).expect("a socket");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            serve(move || {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    if stream.read(&mut byte).unwrap_or(0) == 0 {
                        return;
                    }
                    head.push(byte[0]);
                }
                if stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").is_ok() {
                    send(stream);
                }
            });
        }
    });
}

fn serve(what: impl FnOnce() + Send + 'static) {
    thread::Builder::new().stack_size(STACK).spawn(what).expect("a thread");
}

/// Answers requests of one connection: eight bytes that say how many bytes to send.
fn send(mut stream: impl Read + Write) {
    let mut request = [0; 8];
    while stream.read_exact(&mut request).is_ok() {
        let mut rest = usize::try_from(u64::from_le_bytes(request)).expect("a count");
        while rest > 0 {
            let part = rest.min(CHUNK.len());
            if stream.write_all(&CHUNK[..part]).is_err() {
                return;
            }
            rest -= part;
        }
    }
}
