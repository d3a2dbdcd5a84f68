//! Servers that say what no server should: no panic, no status, no more memory than the limits.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kennel_client::{Error, Loss, Server, Session};

/// What a lying server answers, by its path, once for each request.
fn lie(answer: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap().token("key");
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer) = (stream.unwrap(), Arc::clone(&answer));
            thread::spawn(move || {
                let path = request(&mut stream).unwrap_or_default();
                answer(&path, &mut stream);
            });
        }
    });
    server.patience(Duration::from_millis(200)).deadline(Duration::from_secs(3))
}

/// Reads a request, and returns its path.
fn request(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    stream.read_exact(&mut vec![0; length.unwrap_or(0)]).ok()?;
    head.split(' ').nth(1).map(str::to_owned)
}

fn say(stream: &mut TcpStream, status: &str, body: &[u8]) {
    let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    let _ = stream.write_all(&[head.as_bytes(), body].concat());
}

const MADE: &[u8] = br#"{"sandboxID":"kennel-aaaaaaaaaaaaaaaa","envdAccessToken":"t"}"#;

/// A session whose commands get this stream, and nothing after it.
async fn streaming(body: Vec<u8>) -> Session {
    let server = lie(move |path, stream| match path {
        "/v2/sandboxes" => say(stream, "201 Created", MADE),
        "/process.process/start" => say(stream, "200 OK", &body),
        _ => say(stream, "204 No Content", b""),
    });
    server.sandbox().create().await.unwrap()
}

fn frame(flags: u8, json: &str) -> Vec<u8> {
    let mut frame = vec![flags];
    frame.extend(u32::try_from(json.len()).unwrap().to_be_bytes());
    frame.extend(json.as_bytes());
    frame
}

const START: &str = r#"{"event":{"start":{"pid":1}}}"#;
const END: &str = r#"{"event":{"end":{"exitCode":0,"exited":true,"status":"exit status 0"}}}"#;

#[tokio::test]
async fn a_stream_without_a_real_end_has_no_status() {
    let whole = [frame(0, START), frame(0, END), frame(2, "{}")].concat();
    assert!(streaming(whole.clone()).await.command("x").output().await.unwrap().outcome.status.success());
    let start = frame(0, START);
    let with = |more: &[Vec<u8>]| [start.clone(), more.concat()].concat();
    for (what, stream) in [
        ("nothing", Vec::new()),
        ("no frame", b"HTTP is fun".to_vec()),
        ("only a start", start.clone()),
        ("a cut frame", with(&[frame(0, END)[..20].to_vec()])),
        ("a last message without an end", with(&[frame(2, "{}")])),
        ("a last message that is garbage", with(&[frame(2, "garbage")])),
        ("an error", with(&[frame(2, r#"{"error":{"code":"internal","message":"a\u001bb"}}"#)])),
        ("garbage", with(&[frame(0, "garbage"), frame(0, END)])),
        ("deep garbage", with(&[frame(0, &"[".repeat(100_000)), frame(0, END)])),
        ("an unknown event", with(&[frame(0, r#"{"event":{"surprise":{}}}"#), frame(0, END)])),
        ("no base64", with(&[frame(0, r#"{"event":{"data":{"stdout":"%"}}}"#), frame(0, END)])),
        ("a huge frame", with(&[vec![0, 0x7f, 0xff, 0xff, 0xff]])),
        ("a compressed frame", with(&[frame(1, END)])),
        ("an end without a code", with(&[frame(0, r#"{"event":{"end":{"exited":false}}}"#)])),
        ("a code beyond all", with(&[frame(0, r#"{"event":{"end":{"exited":true,"exitCode":999}}}"#)])),
        ("an end before the start", [frame(0, END), frame(2, "{}")].concat()),
    ] {
        let error = streaming(stream).await.command("x").output().await.expect_err(what);
        assert!(!error.to_string().contains('\u{1b}'), "{what}");
        assert!(!matches!(error, Error::SessionLost { .. }), "{what}: {error:?}");
    }
}

#[tokio::test]
async fn answers_without_end_are_given_up() {
    let endless = |stream: &mut TcpStream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        while stream.write_all(&[b'x'; 65536]).is_ok() {}
    };
    let server = lie(move |_, stream| endless(stream));
    let error = server.sandbox().create().await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error:?}");
    let server = lie(move |path, stream| match path {
        "/v2/sandboxes" => say(stream, "201 Created", MADE),
        _ => endless(stream),
    });
    let session = server.sandbox().create().await.unwrap();
    for error in [
        session.read("x").await.unwrap_err(),
        session.list("x").await.unwrap_err(),
        session.command("x").output().await.unwrap_err(),
    ] {
        let is_bounded = matches!(error, Error::TooLarge { .. } | Error::Deadline { .. });
        assert!(is_bounded, "{error:?}");
    }
    let header = lie(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nx: ");
        while stream.write_all(&[b'x'; 65536]).is_ok() {}
    });
    assert!(header.sandbox().create().await.is_err());
}

#[tokio::test]
async fn a_silent_server_is_given_up_in_time() {
    let server = lie(|_, _| thread::sleep(Duration::from_secs(60))).deadline(Duration::from_millis(300));
    let begun = Instant::now();
    let error = server.sandbox().create().await.unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn of_calls_with_effects_only_a_creation_is_sent_twice() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let server = lie(move |path, stream| {
        // The connection breaks after the request was read; the second creation works.
        if path == "/v2/sandboxes" && count.fetch_add(1, Ordering::Relaxed) > 0 {
            say(stream, "201 Created", MADE);
        } else if path != "/v2/sandboxes" {
            count.fetch_add(100, Ordering::Relaxed);
        }
    });
    let session = server.sandbox().create().await.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    let error = session.write("x", b"").await.unwrap_err();
    assert!(matches!(error, Error::Cut { .. }), "{error:?}");
    assert_eq!(asked.load(Ordering::Relaxed), 102);
}

#[tokio::test]
async fn garbage_is_no_answer() {
    let garbage = lie(|_, stream| {
        let _ = stream.write_all(b"\0\x01\x02 garbage\r\n\r\n");
    });
    assert!(garbage.sandbox().create().await.is_err());
    let no_json = lie(|_, stream| say(stream, "201 Created", b"<html>"));
    assert!(matches!(no_json.sandbox().create().await, Err(Error::Protocol { .. })));
    let proxy = lie(|_, stream| say(stream, "502 Bad Gateway", b"<html>"));
    let error = proxy.attach("x").await.unwrap_err();
    assert!(matches!(error, Error::Refused { status: 502, .. }), "a proxy's own answer: {error:?}");
    let gone = lie(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 502 Bad\r\nx-kennel-reason: news\r\ncontent-length: 0\r\n\r\n");
    });
    assert!(matches!(gone.attach("x").await, Err(Error::SessionLost { reason: Loss::Unknown })));
    let never = lie(|_, stream| {
        let _ = stream.write_all(
            b"HTTP/1.1 503 Later\r\nretry-after: 18446744073709551615\r\ncontent-length: 0\r\n\r\n",
        );
    });
    assert!(matches!(never.sandbox().create().await, Err(Error::Refused { status: 503, .. })));
    let names = lie(|path, stream| match path {
        "/v2/sandboxes" => say(stream, "201 Created", MADE),
        _ => say(stream, "200 OK", br#"{"entries":[{"name":"../x","type":"FILE_TYPE_FILE","size":"1"}]}"#),
    });
    let session = names.sandbox().create().await.unwrap();
    assert!(matches!(session.list(".").await, Err(Error::Protocol { .. })), "a name leads nowhere else");
}
