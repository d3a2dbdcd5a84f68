//! Cuts, stalls and pauses, with a patience that a test can wait for. `tests/it/image/pull.rs` has the rest.

use std::{
    io::{BufRead, BufReader, Read, Seek, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex, atomic::AtomicBool},
    thread,
    time::Duration,
};

use kennel::image::{Digest, PullError};

use super::{credentials::Credentials, endpoint::Endpoint, patience::Patience, registry::Registry};
use crate::config::images::table::ImagesConfig;

/// A registry with this patience, and the pauses that it makes in place of waiting.
fn registry(host: &str, stall: Duration) -> (Registry, Arc<Mutex<Vec<Duration>>>) {
    let config = ImagesConfig { insecure_registries: vec![host.to_owned()], ..ImagesConfig::default() };
    let name = format!("{host}/a:1").parse().expect("a reference");
    let endpoint = Endpoint::of(&name, &config).expect("an endpoint");
    let pauses: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let made = Arc::clone(&pauses);
    let pause = Box::new(move |pause| made.lock().expect("no panic").push(pause));
    let registry = Registry::new(endpoint, Credentials::default(), Patience { stall, pause });
    (registry.expect("plain HTTP needs no certificates"), pauses)
}

/// A server whose Nth connection gets the Nth answer, after the head of its request. Then it waits until the
/// other side ends the connection if `stalls` says so, or ends it. The threads' results are the requests.
fn server(answers: Vec<(String, bool)>) -> (String, thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let host = listener.local_addr().expect("an address").to_string();
    let serve = move || {
        let mut asked = Vec::new();
        for (answer, stalls) in answers {
            let (mut stream, _) = listener.accept().expect("a connection");
            asked.push(head(&stream));
            stream.write_all(answer.as_bytes()).expect("a reader");
            if stalls {
                // The end, or an error: both say that the other side has gone.
                let _ = stream.read(&mut [0]);
            }
        }
        asked
    };
    (host, thread::spawn(serve))
}

fn head(stream: &TcpStream) -> String {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let range = lines.find(|line| line.to_lowercase().starts_with("range")).unwrap_or_default();
    lines.for_each(drop);
    format!("{first} {}", range.to_lowercase()).trim_end().to_owned()
}

fn answer(status: &str, more: &str, body: &str, length: usize) -> String {
    format!("HTTP/1.1 {status}\r\nConnection: close\r\n{more}Content-Length: {length}\r\n\r\n{body}")
}

fn fetch(registry: &Registry, size: u64) -> Result<String, PullError> {
    let mut file = tempfile::tempfile().expect("a file");
    registry.blob(&Digest::of(b"x"), size, &file, &AtomicBool::new(false))?;
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("what was written");
    Ok(text)
}

/// A busy machine makes more of a pause than there is, so the server only needs to come first: two seconds.
#[test]
fn a_stall_ends_and_the_rest_is_fetched() {
    let rest = answer("206 Partial Content", "Content-Range: bytes 3-5/6\r\n", "def", 3);
    let (host, served) = server(vec![(answer("200 OK", "", "abc", 6), true), (rest, false)]);
    let (registry, pauses) = registry(&host, Duration::from_secs(2));
    assert_eq!(fetch(&registry, 6).expect("the whole"), "abcdef");
    assert_eq!(*pauses.lock().expect("no panic"), [Duration::from_millis(500)]);
    let asked = served.join().expect("a server");
    assert_eq!(asked.len(), 2);
    assert!(asked.iter().all(|it| it.starts_with("GET /v2/a/blobs/sha256:")));
    assert!(asked.last().is_some_and(|it| it.ends_with("range: bytes=3-")), "{asked:?}");
}

#[test]
fn what_does_not_pass_ends_after_five_retries_of_longer_and_longer_pauses() {
    let unavailable = answer("503 Unavailable", "Content-Type: text/plain\r\n", "so\nbusy", 7);
    let (host, served) = server(vec![(unavailable, false); 6]);
    let (registry, pauses) = registry(&host, Duration::from_secs(60));
    let error = fetch(&registry, 6).expect_err("it never succeeds");
    assert_eq!(error.to_string(), format!("{host}: 503: so busy"));
    let expected = [500, 1000, 2000, 4000, 8000].map(Duration::from_millis);
    assert_eq!(*pauses.lock().expect("no panic"), expected);
    assert_eq!(served.join().expect("a server").len(), 6);
}

/// Each cut after the first one comes after less than a MiB, and counts.
#[test]
fn cuts_with_little_progress_count_together() {
    let answers = (0..6).map(|at| match at {
        0 => answer("200 OK", "", "a", 100),
        _ => answer("206 Partial Content", &format!("Content-Range: bytes {at}-99/100\r\n"), "a", 100 - at),
    });
    let (host, served) = server(answers.map(|answer| (answer, false)).collect());
    let (registry, pauses) = registry(&host, Duration::from_secs(60));
    let error = fetch(&registry, 100).expect_err("it never comes to its end");
    assert!(matches!(error, PullError::Unreachable { .. }), "{error}");
    assert_eq!(pauses.lock().expect("no panic").len(), 5);
    assert!(served.join().expect("a server").last().is_some_and(|it| it.ends_with("range: bytes=5-")));
}

#[test]
fn cuts_after_much_progress_count_anew() {
    const PART: usize = 1 << 20;
    let part = "a".repeat(PART);
    let answers = (0..9).map(|at| match at {
        0 => answer("200 OK", "", &part, 9 * PART),
        _ => {
            let range = format!("Content-Range: bytes {}-{}/{}\r\n", at * PART, 9 * PART - 1, 9 * PART);
            answer("206 Partial Content", &range, &part, (9 - at) * PART)
        }
    });
    let (host, served) = server(answers.map(|answer| (answer, false)).collect());
    let (registry, pauses) = registry(&host, Duration::from_secs(60));
    assert_eq!(fetch(&registry, 9 * PART as u64).expect("the whole").len(), 9 * PART);
    assert_eq!(*pauses.lock().expect("no panic"), [Duration::from_millis(500); 8]);
    served.join().expect("a server");
}

#[test]
fn the_registry_says_how_long_to_wait_within_reason() {
    let busy = |after: &str| {
        let head = format!("Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nRetry-After: {after}\r\n");
        (answer("429 Busy", &head, "", 0), false)
    };
    let fine = answer("200 OK", "", "x", 1);
    let (host, _served) =
        server(vec![busy("7"), busy("60"), busy("Sun, 06 Nov 1994 08:49:57 GMT"), (fine, false)]);
    let (patient, pauses) = registry(&host, Duration::from_secs(60));
    assert_eq!(fetch(&patient, 1).expect("a blob"), "x");
    assert_eq!(*pauses.lock().expect("no panic"), [7, 60, 20].map(Duration::from_secs));
    let (host, _served) = server(vec![busy("61")]);
    let (patient, pauses) = registry(&host, Duration::from_secs(60));
    let error = fetch(&patient, 1).expect_err("it is too long");
    assert_eq!(error.to_string(), format!("{host}: 429: it asks to wait 61 s"));
    assert!(pauses.lock().expect("no panic").is_empty());
}
