//! The client, inside or bare: connects directly or by CONNECT, and prints the times in microseconds.

use std::{
    env,
    io::{Read, Write},
    net::TcpStream,
    time::Instant,
};

/// Runs one client and prints its numbers.
pub(crate) fn run(way: &str, at: &str, count: u64) {
    match way {
        "tunnels" => tunnels(at, usize::try_from(count).expect("a count")),
        "direct-connects" | "proxy-connects" => {
            for _ in 0..count {
                let (stream, connected) = connect(way.starts_with("proxy"), at);
                println!("{}", byte(stream, connected));
            }
        }
        _ => bulk(way == "proxy", at, count),
    }
}

/// Downloads `count` bytes: the time to connect, and the time of the download.
fn bulk(by_proxy: bool, at: &str, count: u64) {
    let (mut stream, connecting) = connect(by_proxy, at);
    let connected = super::micros(connecting.elapsed());
    let begun = Instant::now();
    stream.write_all(&count.to_le_bytes()).expect("a request");
    let mut buffer = vec![0; 256 << 10];
    let mut rest = count;
    while rest > 0 {
        match stream.read(&mut buffer).expect("an answer") {
            0 => panic!("cut off with {rest} bytes to come"),
            read => rest -= read as u64,
        }
    }
    println!("{connected} {}", super::micros(begun.elapsed()));
}

/// Opens that many tunnels and reads a byte through each. Prints the slowest time, and keeps the tunnels
/// open.
fn tunnels(at: &str, count: usize) {
    let mut open: Vec<TcpStream> = (0..count).map(|_| connect(true, at).0).collect();
    let begun = Instant::now();
    for stream in &mut open {
        stream.write_all(&1u64.to_le_bytes()).expect("a request");
    }
    let mut slowest = 0;
    for stream in &mut open {
        stream.read_exact(&mut [0]).expect("an answer");
        slowest = super::micros(begun.elapsed());
    }
    println!("{slowest}");
    std::thread::sleep(std::time::Duration::from_secs(60));
}

/// Microseconds until the first byte.
fn byte(mut stream: TcpStream, begun: Instant) -> u64 {
    stream.write_all(&1u64.to_le_bytes()).expect("a request");
    stream.read_exact(&mut [0]).expect("an answer");
    super::micros(begun.elapsed())
}

/// Opens a connection. Returns it and its start time.
fn connect(by_proxy: bool, at: &str) -> (TcpStream, Instant) {
    let begun = Instant::now();
    if !by_proxy {
        return (TcpStream::connect(at).expect("a connection"), begun);
    }
    let proxy = env::var("https_proxy").expect("a proxy");
    let mut stream = TcpStream::connect(proxy.trim_start_matches("http://")).expect("a connection");
    stream.set_nodelay(true).expect("an option");
    write!(stream, "CONNECT {at} HTTP/1.1\r\nHost: {at}\r\n\r\n").expect("a request");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("an answer");
        answer.push(byte[0]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    (stream, begun)
}
