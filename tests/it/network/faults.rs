//! If one side dies or resets, the other gets a clear status, nothing looks complete, and nothing is left.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    sync::{Mutex, mpsc},
    time::Duration,
};

use nix::sys::socket::{setsockopt, sockopt::Linger};

use super::{Net, Server, at, connect, stdout};
use crate::support::{has, patient, require, until};

fn reset(stream: TcpStream) {
    setsockopt(&stream, Linger, &libc::linger { l_onoff: 1, l_linger: 0 }).unwrap();
    drop(stream);
}

#[test]
fn a_reset_of_the_server_is_a_reset_for_the_client() {
    let net = Net::new();
    let server = Server::start(|mut stream, _| {
        let _ = stream.write_all(b"part");
        std::thread::sleep(Duration::from_millis(200));
        reset(stream);
    });
    let to = at("one.test", server.port);
    let heard = net.talk(&net.flags(&[&to], &[]), &[&[&connect(&to), "<part", "<"]]);
    assert!(heard[0].ends_with("part\n[ECONNRESET]\n"), "{heard:?}");
}

#[test]
fn a_reset_of_the_client_is_a_reset_for_the_server() {
    require!(has("python3"), "python3");
    let net = Net::new();
    let (sender, ends) = mpsc::channel();
    let sender = Mutex::new(sender);
    let server = Server::start(move |mut stream, _| {
        let end = std::io::copy(&mut stream, &mut std::io::sink()).map_err(|error| error.kind());
        let _ = sender.lock().unwrap().send(end);
    });
    let to = at("one.test", server.port);
    let script = format!(
        "import socket, struct, time\n\
         s = socket.create_connection(('127.0.0.1', 3128)); s.sendall(b'CONNECT {to} HTTP/1.1\\r\\n\\r\\n'); s.recv(99)\n\
         s.sendall(b'part'); time.sleep(0.2); s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); s.close()\n\
         time.sleep(0.5)\n"
    );
    let output = net.command(&net.flags(&[&to], &[]), &["python3", "-c", &script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let end = ends.recv_timeout(patient(Duration::from_secs(5))).unwrap();
    assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset));
}

#[test]
fn an_answer_that_breaks_off_is_an_error() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let server = Server::start(|stream, _| {
        let mut reader = std::io::BufReader::new(stream);
        let Ok(Some(seen)) = super::origin::read(&mut reader, 0) else { return };
        let head: &[u8] = match seen.target() {
            "/chunked" => b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n",
            "/head" => b"HTTP/1.1 200 O",
            "/nothing" => b"",
            _ => b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart",
        };
        let _ = reader.get_mut().write_all(head);
        std::thread::sleep(Duration::from_millis(100));
        if seen.target() == "/reset" {
            reset(reader.into_inner());
        }
    });
    let to = at("one.test", server.port);
    let script = format!(
        "for path in length reset chunked head nothing; do curl -s -o /dev/null -w '%{{http_code}} ' http://{to}/$path; echo $?; done"
    );
    let said = stdout(&net.shell(&net.flags(&[&to], &[]), &script));
    let lines: Vec<&str> = said.lines().collect();
    // 18: partial file; 56: receive error. If the answer did not begin, it is a bad gateway.
    assert!(matches!(lines[0], "200 18" | "200 56"), "{said}");
    assert!(matches!(lines[1], "200 18" | "200 56"), "{said}");
    assert!(matches!(lines[2], "200 18" | "200 56"), "{said}");
    assert_eq!(lines[3..], ["502 0", "502 0"], "{said}");
}

#[test]
fn the_death_of_kennel_leaves_nothing() {
    let net = Net::new();
    let (sender, ends) = mpsc::channel();
    let sender = Mutex::new(sender);
    let server = Server::start(move |mut stream, _| {
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
        let _ = sender.lock().unwrap().send(());
    });
    let to = at("endless.test", server.port);
    let marker = format!("{}.{}", std::process::id(), server.port);
    let grant = format!("{}:/payload", crate::support::payload_path().display());
    for delay in [0, 5, 20, 60, 150] {
        let before = server.accepted();
        let flags = [
            net.flags(&[&to], &["--setenv", &format!("MARKER={marker}")]),
            vec!["--ro".into(), grant.clone()],
        ]
        .concat();
        let script = "/payload talk 127.0.0.1:3128 \"$0\" '<' >/dev/null & /payload talk 127.0.0.1:3128 \"$0\" '<' >/dev/null; sleep 100";
        let mut kennel = net.command(&flags, &["sh", "-c", script, &connect(&to)]).spawn().unwrap();
        if delay > 0 {
            until("both run", || server.accepted() == before + 2);
        }
        std::thread::sleep(Duration::from_millis(delay));
        kennel.kill().unwrap();
        kennel.wait().unwrap();
        for _ in before..server.accepted() {
            ends.recv_timeout(patient(Duration::from_secs(5))).unwrap();
        }
        until("no process is left", || !any_process_with(&marker));
    }
}

/// Whether a readable process has the marker in its environment.
fn any_process_with(marker: &str) -> bool {
    let own = std::process::id().to_string();
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes.filter(|entry| entry.file_name().to_str() != Some(&own)).any(|entry| {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        environment.windows(marker.len()).any(|window| window == marker.as_bytes())
    })
}

#[test]
fn bytes_sent_before_the_end_of_a_command_arrive() {
    let net = Net::new();
    let (sender, received) = mpsc::channel();
    let sender = Mutex::new(sender);
    let server = Server::start(move |mut stream, _| {
        std::thread::sleep(Duration::from_millis(50));
        let mut all = Vec::new();
        let end = stream.read_to_end(&mut all).map_err(|error| error.kind());
        let _ = sender.lock().unwrap().send((all.len(), end));
    });
    let to = at("one.test", server.port);
    for round in 0..10 {
        net.talk(&net.flags(&[&to], &[]), &[&[&connect(&to), "<\\r\\n\\r\\n", "#1000000", "!"]]);
        let (count, end) = received.recv_timeout(patient(Duration::from_secs(5))).unwrap();
        // A client that is told of a failure can try again. A client that is told of success cannot.
        assert!(count == 1_000_000 || end.is_err(), "{round}: {count} bytes, and then {end:?}");
        assert_eq!(count, 1_000_000, "{round}: {end:?}");
    }
}
