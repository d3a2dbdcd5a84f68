//! No client gets more of the proxy than the policy allows, and a slow client is disconnected.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use super::{Net, Origin, Server, at, connect, stderr, stdout};
use crate::support::{has, patient, payload_path, require};

/// Flags with these limits in a policy file.
fn flags(net: &Net, allow: &[&str], limits: &str) -> Vec<String> {
    let file = net.path().join("limits.toml");
    fs::write(&file, format!("[network.limits]\n{limits}\n")).unwrap();
    net.flags(allow, &["--policy", file.to_str().unwrap()])
}

#[test]
fn slow_requests_are_ended() {
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let flags = flags(&net, &[&to], "header_time = \"500ms\"");
    let drip = |first: &'static str| {
        vec![first, "~200", ">X: y\\r\\n", "~200", ">X: y\\r\\n", "~200", ">X: y\\r\\n", "<"]
    };
    let get = format!(">GET http://{to}/ HTTP/1.1\\r\\n");
    let half = vec![get.as_str(), "<"];
    let conversations: [&[&str]; 5] = [
        &drip(">GET http://one.test/ HTTP/1.1\\r\\n"),
        &half,
        &["<"],
        &[">\\x05", "<"],
        &[">\\x05\\x01\\0", "<"],
    ];
    let begun = Instant::now();
    let heard = net.talk(&flags, &conversations);
    assert!(begun.elapsed() < patient(Duration::from_secs(9)), "{:?}", begun.elapsed());
    for heard in &heard {
        assert!(!heard.contains("[silence]") && !heard.contains(" 200 "), "{heard}");
    }
    assert!(origin.is_untouched());
    // A body may take longer.
    let post = format!(">POST http://{to}/ HTTP/1.1\\r\\nContent-Length: 2\\r\\n\\r\\n");
    let heard = net.talk(&flags, &[&[&post, "~750", ">o", "~250", ">k", "<one: /"]]);
    assert!(heard[0].starts_with("HTTP/1.1 200 "), "{heard:?}");
}

#[test]
fn the_head_of_a_request_is_bounded() {
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let small = flags(&net, &[&to], "header_size = \"8K\"");
    let get = format!(">GET http://{to}/ HTTP/1.1\\r\\nX: ");
    let talk =
        |flags: &[String], size: &str| net.talk(flags, &[&[&get, size, ">\\r\\n\\r\\n", "!", "<"]]).remove(0);
    assert!(talk(&small, "#6000").starts_with("HTTP/1.1 200 "));
    let usual = net.flags(&[&to], &[]);
    assert!(talk(&usual, "#40000").starts_with("HTTP/1.1 200 "));
    for (flags, size) in [(&small, "#9000"), (&small, "#300000"), (&usual, "#200000"), (&usual, "#5000000")] {
        let heard = talk(flags, size);
        // Bytes that are still on their way may reset the answer.
        let is_refused = heard.starts_with("HTTP/1.1 431 ") || heard.starts_with("HTTP/1.1 400 ");
        assert!(
            is_refused || heard.starts_with("[ECONNRESET]") || heard.starts_with("[EPIPE]"),
            "{size}: {heard}"
        );
    }
    let many = format!("{get}y\\r\\n{}\\r\\n", "A: b\\r\\n".repeat(500));
    let heard = net.talk(&usual, &[&[&many, "!", "<"]]);
    assert!(heard[0].starts_with("HTTP/1.1 431 ") || heard[0].starts_with("HTTP/1.1 400 "), "{heard:?}");
    assert_eq!(origin.seen().len(), 2);
}

#[test]
fn a_silent_connection_is_ended_and_does_not_look_complete() {
    let net = Net::new();
    let (sender, heard_by_server) = std::sync::mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    let server = Server::start(move |mut stream, _| {
        let _ = stream.write_all(b"part");
        let _ = sender.lock().unwrap().send(stream.read(&mut [0; 8]).map_err(|error| error.kind()));
    });
    let to = at("one.test", server.port);
    let flags = flags(&net, &[&to], "idle_time = \"700ms\"");
    let begun = Instant::now();
    let heard = net.talk(&flags, &[&[&connect(&to), "<part", "<"]]);
    assert!(heard[0].ends_with("part\n[ECONNRESET]\n"), "{heard:?}");
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(600) && took < patient(Duration::from_secs(10)), "{took:?}");
    let at_server = heard_by_server.recv_timeout(patient(Duration::from_secs(5))).unwrap();
    assert_eq!(at_server, Err(std::io::ErrorKind::ConnectionReset));
}

#[test]
fn a_body_that_takes_its_time_is_not_silence() {
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let flags = flags(&net, &[&to], "idle_time = \"1s\"");
    let head = format!(">POST http://{to}/ HTTP/1.1\\r\\nHost: {to}\\r\\nContent-Length: 8\\r\\n\\r\\n");
    let slow: Vec<&str> = [&*head].into_iter().chain([">a", "~250"].into_iter().cycle().take(16)).collect();
    let stopped = [&*head, ">a", "<"];
    let heard = net.talk(&flags, &[&[&*slow, &["!", "<"]].concat(), &stopped]);
    assert!(heard[0].starts_with("HTTP/1.1 200 "), "{heard:?}");
    assert!(heard[1].starts_with("HTTP/1.1 504 "), "{heard:?}");
    assert_eq!(origin.seen()[0].body, b"aaaaaaaa");
}

#[test]
fn a_client_that_reads_nothing_is_disconnected() {
    let net = Net::new();
    let (sender, ended) = std::sync::mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    let server = Server::start(move |mut stream, _| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
        while stream.write_all(&[b'x'; 1 << 16]).is_ok() {}
        let _ = sender.lock().unwrap().send(());
    });
    let to = at("one.test", server.port);
    let flags = flags(&net, &[&to], "idle_time = \"700ms\"");
    let get = format!(">GET http://{to}/ HTTP/1.1\\r\\nHost: {to}\\r\\n\\r\\n");
    let grant = format!("{}:/payload", payload_path().display());
    let flags = [flags, vec!["--ro".to_owned(), grant]].concat();
    let mut client = net.command(&flags, &["/payload", "talk", super::PROXY, &get, "~1000000"]);
    let mut client = client.stdout(Stdio::null()).spawn().unwrap();
    let is_ended = ended.recv_timeout(patient(Duration::from_secs(30)));
    let stays = client.try_wait().unwrap().is_none();
    client.kill().unwrap();
    client.wait().unwrap();
    is_ended.expect("the origin is let go");
    assert!(stays, "while the client is there");
}

#[test]
fn bytes_of_a_sandbox_run_out() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let origin = Origin::answering(|_| super::answer(200, &vec![b'x'; 400_000]));
    let to = at("one.test", origin.port());
    let flags = flags(&net, &[&to], "bytes = \"1M\"");
    let curl = |form: &str| {
        format!("curl -s {form} -o /dev/null -w '%{{http_code}} %{{size_download}}\\n' http://{to}/")
    };
    let script = [curl(""), curl("-p"), curl(""), curl("-i"), format!("curl -s http://{to}/")].join("; ");
    let output = net.shell(&flags, &script);
    let said = stdout(&output);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], ["200 400000", "200 400000"], "{output:?}");
    let third: Vec<&str> = lines[2].split(' ').collect();
    assert!(third[1].parse::<u32>().unwrap() < 400_000, "it broke off: {output:?}");
    assert!(lines[3].starts_with("429 "), "{output:?}");
    let words = "the byte limit of the sandbox is used up (network.limits.bytes)";
    assert_eq!(lines[4], format!("kennel: {to}: {words}"));
    assert_eq!(stderr(&output).lines().last(), Some(&*format!("kennel: denied: {to}: {words}")));
}

#[test]
fn bytes_per_second_are_kept_to() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let origin = Origin::answering(|_| super::answer(200, &vec![b'x'; 3_000_000]));
    let to = at("one.test", origin.port());
    let flags = flags(&net, &[&to], "rate = \"2M\"");
    for form in ["", "-p"] {
        let script =
            format!("curl -sS {form} -o /dev/null -w '%{{size_download}} %{{time_total}}' http://{to}/");
        let said = net.says(&flags, &script);
        let (size, time) = said.split_once(' ').unwrap();
        let time: f64 = time.parse().unwrap();
        assert_eq!(size, "3000000");
        assert!((1.0..3.5).contains(&time), "{form}: {said}");
    }
}

#[test]
fn connections_beyond_the_limit_wait_for_their_turn() {
    let net = Net::new();
    let echo = Server::echo();
    let to = at("one.test", echo.port);
    let flags = flags(&net, &[&to], "connections = 2");
    let script = format!(
        "import socket, time\n\
         def ask():\n\
         \x20   s = socket.create_connection(('127.0.0.1', 3128)); s.sendall(b'CONNECT {to} HTTP/1.1\\r\\n\\r\\n'); s.settimeout(0.5)\n\
         \x20   return s\n\
         def answer(s):\n\
         \x20   try: return s.recv(99)[9:12].decode()\n\
         \x20   except TimeoutError: return 'waits'\n\
         a, b, c = ask(), ask(), ask(); print(answer(a), answer(b), answer(c)); a.close(); print(answer(c))\n"
    );
    require!(has("python3"), "python3");
    let output = net.command(&flags, &["python3", "-c", &script]).output().unwrap();
    assert_eq!(stdout(&output), "200 200 waits\n200", "{output:?}");
    assert_eq!(echo.accepted(), 3);
}

/// Connections that are already open count too.
#[test]
fn bytes_run_out_for_open_connections_too() {
    require!(has("python3"), "python3");
    let net = Net::new();
    let came = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&came);
    let sink = Server::start(move |mut stream, _| {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(read @ 1..) = stream.read(&mut bytes) {
            count.fetch_add(read, SeqCst);
        }
    });
    let to = at("one.test", sink.port);
    let script = format!(
        "import socket\n\
         def ask():\n\
         \x20   s = socket.create_connection(('127.0.0.1', 3128)); s.sendall(b'CONNECT {to} HTTP/1.1\\r\\n\\r\\n')\n\
         \x20   assert s.recv(99)[9:12] == b'200'\n\
         \x20   return s\n\
         def say(s):\n\
         \x20   try: s.sendall(b'x' * 60000); s.shutdown(1); s.recv(1)\n\
         \x20   except OSError: pass\n\
         for s in [ask() for _ in range(20)]: say(s)\n"
    );
    let output =
        net.command(&flags(&net, &[&to], "bytes = \"100K\""), &["python3", "-c", &script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let came = came.load(SeqCst);
    assert!((40_000..=100 << 10).contains(&came), "{came} bytes");
}

/// Each holds a pipe as long as its other end reads nothing.
#[test]
fn connections_that_are_stuck_take_few_descriptors_beside_their_own() {
    require!(has("python3"), "python3");
    const CONNECTIONS: usize = 16;
    let net = Net::new();
    let deaf = Server::start(|_stream, _| std::thread::sleep(Duration::from_secs(60)));
    let to = at("one.test", deaf.port);
    let script = format!(
        "import socket, sys, time\n\
         def ask():\n\
         \x20   s = socket.create_connection(('127.0.0.1', 3128)); s.sendall(b'CONNECT {to} HTTP/1.1\\r\\n\\r\\n')\n\
         \x20   assert s.recv(99)[9:12] == b'200'\n\
         \x20   s.setblocking(False)\n\
         \x20   return s\n\
         def fill(all):\n\
         \x20   until = time.time() + 0.5\n\
         \x20   while time.time() < until:\n\
         \x20       for s in all:\n\
         \x20           try: s.send(b'x' * (1 << 20)); until = time.time() + 0.5\n\
         \x20           except BlockingIOError: time.sleep(0.001)\n\
         print('ready', flush=True); sys.stdin.readline()\n\
         all = [ask() for _ in range({CONNECTIONS})]\n\
         fill(all)\n\
         print('stuck', flush=True); sys.stdin.readline()\n"
    );
    let flags = flags(&net, &[&to], &format!("connections = {CONNECTIONS}"));
    let mut command = net.command(&flags, &["python3", "-c", &script]);
    let mut kennel = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut said) = (kennel.stdin.take().unwrap(), BufReader::new(kennel.stdout.take().unwrap()));
    let mut descriptors = || {
        said.read_line(&mut String::new()).unwrap();
        let count = fs::read_dir(format!("/proc/{}/fd", kennel.id())).unwrap().count();
        stdin.write_all(b"\n").unwrap();
        count
    };
    let (before, after) = (descriptors(), descriptors());
    drop(stdin);
    assert!(kennel.wait().unwrap().success());
    // Each connection has two descriptors, and one of eight possible connections has a pipe. All the others
    // add few.
    let most = before + CONNECTIONS * 2 + CONNECTIONS / 8 * 2 + 4;
    assert!((before + CONNECTIONS * 2..=most).contains(&after), "{before} and then {after}");
}
