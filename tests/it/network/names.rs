//! A name server for tests, for `--name-server`.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

/// The answer for a name.
#[derive(Clone, Debug)]
pub enum Reply {
    Addresses(Vec<Ipv4Addr>),
    NoSuchName,
    /// SERVFAIL.
    Failure,
    /// No answer.
    Silence,
}

impl From<[u8; 4]> for Reply {
    fn from(address: [u8; 4]) -> Self {
        Self::Addresses(vec![address.into()])
    }
}

/// Answers questions by UDP, with a time to live of 0, until it is dropped.
pub struct NameServer {
    pub port: u16,
    asked: Arc<Mutex<Vec<String>>>,
    over: Arc<AtomicBool>,
}

impl NameServer {
    /// Every name leads to the host's loopback.
    pub fn of_loopback() -> Self {
        Self::answering(|_, _| [127, 0, 0, 1].into())
    }

    /// `reply` gets the name and the number of earlier questions for its address. There are no other records.
    pub fn answering(reply: impl Fn(&str, usize) -> Reply + Send + 'static) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let over = Arc::new(AtomicBool::new(false));
        let (log, is_over) = (Arc::clone(&asked), Arc::clone(&over));
        std::thread::spawn(move || {
            let mut counts = HashMap::<String, usize>::new();
            let mut question = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut question) {
                if is_over.load(SeqCst) {
                    return;
                }
                let Some((name, kind, end)) = parse(&question[..length]) else { continue };
                let is_address = kind == 1;
                let count = counts.entry(name.clone()).or_default();
                let reply = reply(&name, *count);
                if is_address {
                    *count += 1;
                    log.lock().unwrap().push(name);
                }
                if let Some(bytes) = encode(&question[..end], &reply, is_address) {
                    let _ = socket.send_to(&bytes, from);
                }
            }
        });
        Self { port, asked, over }
    }

    /// The names that somebody asked for.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// Its address, as `--name-server` takes it.
    pub fn at(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.over.store(true, SeqCst);
        let _ = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.send_to(b"", self.at()));
    }
}

/// Name and type of the question, and the offset of its end.
fn parse(bytes: &[u8]) -> Option<(String, u16, usize)> {
    let mut at = 12;
    let mut labels = Vec::new();
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(bytes.get(at..at + length)?).to_ascii_lowercase());
        at += length;
    }
    let kind = u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?);
    Some((labels.join("."), kind, at + 4))
}

fn encode(question: &[u8], reply: &Reply, is_address: bool) -> Option<Vec<u8>> {
    let (code, addresses) = match reply {
        Reply::Addresses(addresses) if is_address => (0, addresses.as_slice()),
        Reply::Addresses(_) => (0, &[][..]),
        Reply::Failure => (2, &[][..]),
        Reply::NoSuchName => (3, &[][..]),
        Reply::Silence => return None,
    };
    let count = u8::try_from(addresses.len()).ok()?;
    let mut bytes = question.to_vec();
    // An answer, recursion desired and available, one question, the records, nothing else.
    bytes[2..12].copy_from_slice(&[0x81, 0x80 | code, 0, 1, 0, count, 0, 0, 0, 0]);
    for address in addresses {
        // The name of the question, A, IN, 0 seconds, 4 bytes.
        bytes.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        bytes.extend_from_slice(&address.octets());
    }
    Some(bytes)
}
