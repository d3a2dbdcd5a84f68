//! The server, which sends the requested number of bytes, and another program's proxy: the same server behind
//! a Unix socket.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    os::unix::net::UnixListener,
    path::Path,
    thread,
};

/// A small stack: many tunnels mean thousands of waiting threads.
const STACK: usize = 64 << 10;

/// The bytes to send, the same for every client.
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

/// Starts the other proxy. It accepts every CONNECT and serves the connection itself.
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

/// Serves one connection. Each request is eight bytes: the number of bytes to send.
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
