//! Large amounts in tunnels: nothing is lost, however slow a side is, and ends arrive in the right order.

use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    sync::{Mutex, mpsc},
    time::Duration,
};

use super::{Net, Origin, Server, at, connect, stdout};
use crate::support::{has, patient, require};

/// A server whose `serve` returns something to the test.
fn reporting<T: Send + 'static>(
    serve: impl Fn(TcpStream) -> T + Send + Sync + 'static,
) -> (Server, mpsc::Receiver<T>) {
    let (sender, receiver) = mpsc::channel();
    let sender = Mutex::new(sender);
    let server = Server::start(move |stream, _| {
        let report = serve(stream);
        let _ = sender.lock().unwrap().send(report);
    });
    (server, receiver)
}

#[test]
fn large_transfers_are_whole_in_both_directions() {
    require!(has("curl") && has("sha256sum"), "curl and sha256sum");
    let net = Net::new();
    let body: Vec<u8> = (0..20_000_000u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    fs::write(net.path().join("body"), &body).unwrap();
    let origin = Origin::answering(|seen| super::answer(200, &seen.body));
    let to = at("one.test", origin.port());
    let curl = |form: &str| format!("curl -sS {form} -T body -H Expect: http://{to}/ | sha256sum");
    let script = ["sha256sum <body".to_owned(), curl(""), curl("-p"), curl("-x socks5h://127.0.0.1:3128")];
    let said = net.says(&net.flags(&[&to], &[]), &script.join("; "));
    let sums: Vec<&str> = said.lines().map(|line| line.trim_end_matches(['-', ' '])).collect();
    assert_eq!(sums, [sums[0]; 4]);
    assert!(origin.seen().iter().all(|seen| seen.body == body));
}

#[test]
fn a_slow_reader_that_has_ended_its_own_side_gets_everything() {
    let net = Net::new();
    let (server, counts) = reporting(|mut stream| {
        let _ = stream.write_all(b"bye");
        let _ = stream.shutdown(Shutdown::Write);
        let (mut count, mut buffer) = (0, vec![0; 256 << 10]);
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return Ok(count),
                Ok(read) => count += read,
                Err(error) => return Err(error.kind()),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let to = at("slow.test", server.port);
    let steps = [&connect(&to), "<\\r\\n\\r\\n", "<", "#20000000", "!"];
    let heard = net.talk(&net.flags(&[&to], &[]), &[&steps]);
    assert!(heard[0].ends_with("bye\n[end]\n"), "{heard:?}");
    assert_eq!(counts.recv_timeout(patient(Duration::from_secs(20))).unwrap(), Ok(20_000_000));
}

#[test]
fn a_reset_in_the_midst_of_an_upload_is_seen() {
    let net = Net::new();
    let server = Server::start(|mut stream, _| {
        let _ = stream.read_exact(&mut vec![0; 1_000_000]);
        // A close with unread bytes is a reset.
        drop(stream);
    });
    let to = at("one.test", server.port);
    let heard =
        net.talk(&net.flags(&[&to], &[]), &[&[&connect(&to), "<\\r\\n\\r\\n", "#50000000", "!", "<"]]);
    let end = heard[0].lines().last().unwrap_or_default();
    assert!(matches!(end, "[ECONNRESET]" | "[EPIPE]"), "{heard:?}");
}

#[test]
fn a_client_that_never_reads_delays_nobody_else() {
    require!(has("python3"), "python3");
    let net = Net::new();
    let endless = Server::start(|mut stream, _| while stream.write_all(&[b'x'; 65536]).is_ok() {});
    let origin = Origin::named("one");
    let (to, one) = (at("endless.test", endless.port), at("one.test", origin.port()));
    let script = format!(
        "import socket, time, urllib.request\n\
         held = []\n\
         for n in range(20):\n\
         \x20   s = socket.create_connection(('127.0.0.1', 3128)); s.sendall(b'CONNECT {to} HTTP/1.1\\r\\n\\r\\n'); held.append(s)\n\
         time.sleep(0.3); begun = time.monotonic()\n\
         for n in range(20): urllib.request.urlopen('http://{one}/').read()\n\
         print('in time' if time.monotonic() - begun < 3 else 'late')\n"
    );
    let output = net.command(&net.flags(&[&to, &one], &[]), &["python3", "-c", &script]).output().unwrap();
    assert_eq!(stdout(&output), "in time", "{output:?}");
    assert_eq!(endless.accepted(), 20);
}

#[test]
fn both_directions_at_once_are_whole() {
    require!(has("python3"), "python3");
    let net = Net::new();
    let echo = Server::echo();
    let to = at("echo.test", echo.port);
    let script = format!(
        "import hashlib, os, socket, threading\n\
         s = socket.create_connection(('127.0.0.1', 3128)); s.sendall(b'CONNECT {to} HTTP/1.1\\r\\n\\r\\n')\n\
         while not s.recv(1, socket.MSG_PEEK): pass\n\
         head = b''\n\
         while not head.endswith(b'\\r\\n\\r\\n'): head += s.recv(1)\n\
         data = os.urandom(8 << 20)\n\
         def send(): s.sendall(data); s.shutdown(socket.SHUT_WR)\n\
         threading.Thread(target=send).start()\n\
         back = b''.join(iter(lambda: s.recv(65536), b''))\n\
         print(hashlib.sha256(data).digest() == hashlib.sha256(back).digest(), len(back))\n"
    );
    let output = net.command(&net.flags(&[&to], &[]), &["python3", "-c", &script]).output().unwrap();
    assert_eq!(stdout(&output), "True 8388608", "{output:?}");
}
