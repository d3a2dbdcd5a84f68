//! A server, whom clients outside may reach: `serve ADDRESS KIND [COUNT]`. It says `ready` once it listens,
//! and ends after COUNT connections.
//!
//! | kind | what a client gets |
//! | --- | --- |
//! | `echo` | what it sends, until it ends its direction |
//! | `count` | the number of bytes that it has sent, after their end |
//! | `pour=N` | N times the letter a, at once |
//! | `hold` | one byte, and nothing more |

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use crate::errno_name;

/// Serves.
pub(crate) fn serve(words: &[&str]) {
    let &[address, kind, ref rest @ ..] = words else { return println!("usage: serve ADDRESS KIND [COUNT]") };
    let Ok(address) = address.parse::<SocketAddr>() else { return println!("no address: {address}") };
    let listener = match TcpListener::bind(address) {
        Ok(listener) => listener,
        Err(error) => return println!("{}", errno_name(error.raw_os_error().unwrap_or_default())),
    };
    println!("ready");
    let count = rest.first().map_or(usize::MAX, |count| count.parse().unwrap_or_default());
    let mut clients = Vec::new();
    for client in listener.incoming().take(count).flatten() {
        let kind = kind.to_owned();
        clients.push(thread::spawn(move || answer(client, &kind)));
    }
    // A client that is gone is no error of the server.
    clients.into_iter().for_each(|client| drop(client.join()));
}

fn answer(mut client: TcpStream, kind: &str) -> io::Result<()> {
    match kind.split_once('=') {
        Some(("pour", count)) => {
            let mut rest = count.parse().unwrap_or_default();
            while rest > 0 {
                let piece = vec![b'a'; usize::min(rest, 1 << 16)];
                client.write_all(&piece)?;
                rest -= piece.len();
            }
            client.shutdown(Shutdown::Write)
        }
        _ if kind == "count" => {
            let count = io::copy(&mut client, &mut io::sink())?;
            client.write_all(count.to_string().as_bytes())
        }
        _ if kind == "hold" => {
            client.write_all(b"h")?;
            client.read_to_end(&mut Vec::new()).map(drop)
        }
        _ => {
            let mut from = client.try_clone()?;
            io::copy(&mut from, &mut client)?;
            client.shutdown(Shutdown::Write)
        }
    }
}
