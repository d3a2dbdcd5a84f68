//! The audit log has a line for each decision, with the right numbers.

use std::{fs, os::unix::fs::PermissionsExt};

use serde_json::Value;

use super::{ClosedPort, Net, Origin, Server, at, stderr};
use crate::support::{has, refused, require};

const KEYS: [&str; 14] = [
    "address",
    "bytes_down",
    "bytes_up",
    "class",
    "decision",
    "duration_ms",
    "event",
    "exec",
    "host",
    "id",
    "port",
    "reason",
    "session",
    "time",
];

/// The lines of the log, each complete, without those of commands.
fn lines(net: &Net) -> Vec<Value> {
    let text = fs::read_to_string(log(net)).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'));
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")));
    lines.filter(|line: &Value| line["event"] != "exec" && line["event"] != "exit").collect()
}

/// Beside the workspace, where no command can write.
fn log(net: &Net) -> String {
    format!("{}.audit", net.path().display())
}

/// Removes the log with the test.
struct Log<'n>(&'n Net);

impl Drop for Log<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(log(self.0));
    }
}

fn brief(line: &Value) -> (String, String, String) {
    let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
    (format!("{}:{}", text("host"), line["port"]), text("decision"), text("reason"))
}

#[test]
fn each_decision_is_a_line() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let _log = Log(&net);
    let origin = Origin::named("one");
    let closed = ClosedPort::new();
    let (to, nobody, no) =
        (at("one.test", origin.port()), at("two.test", closed.port), at("no.test", origin.port()));
    let flags = net.flags(&[&to, &nobody, &no], &["--audit", &log(&net), "--deny", &no]);
    let script = format!(
        "curl -s http://{to}/ -o /dev/null; curl -s -p http://{to}/ -o /dev/null; curl -s http://bad.test:1/ -o /dev/null; \
         curl -s http://{no}/ -o /dev/null; curl -s http://{nobody}/ -o /dev/null; getent hosts bad.test; \
         curl -s http://169.254.169.254/; true"
    );
    net.says(&flags, &script);
    let lines = lines(&net);
    let mut found: Vec<_> = lines.iter().map(brief).collect();
    found.sort();
    // The proxy looks a name up for both families.
    found.dedup_by(|one, other| one == other && one.0.ends_with("null"));
    let expected =
        |host: &str, decision: &str, reason: &str| (host.to_owned(), decision.to_owned(), reason.to_owned());
    let mut wanted = vec![
        expected(&to, "allowed", "allowed"),
        expected(&to, "allowed", "allowed"),
        expected("bad.test:1", "denied", "not-allowed"),
        expected(&no, "denied", "denied"),
        expected(&nobody, "failed", "unreachable"),
        expected("bad.test:null", "denied", "not-allowed"),
        expected("169.254.169.254:80", "denied", "not-allowed"),
    ];
    wanted.sort();
    assert_eq!(found, wanted);
    for line in &lines {
        let keys: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys.iter().copied().collect::<std::collections::BTreeSet<_>>(), KEYS.into(), "{line}");
        assert_eq!((&line["event"], &line["exec"]), (&"egress".into(), &1.into()), "{line}");
        assert!(line["session"].as_str().is_some_and(|session| session.contains('.')), "{line}");
        assert_eq!(line["session"], lines[0]["session"]);
        let time = line["time"].as_str().unwrap();
        assert!(time.len() == "2025-01-01T00:00:00.000Z".len() && time.ends_with('Z'), "{time}");
        let address = if line["decision"] == "allowed" { "127.0.0.1".into() } else { Value::Null };
        assert_eq!(line["address"], address, "{line}");
    }
    let mode = fs::metadata(log(&net)).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
}

#[test]
fn bytes_and_time_are_right() {
    let net = Net::new();
    let _log = Log(&net);
    let echo = Server::echo();
    let to = at("echo.test", echo.port);
    let flags = net.flags(&[&to], &["--audit", &log(&net)]);
    let connect = format!(">CONNECT {to} HTTP/1.1\\r\\n\\r\\n");
    net.talk(&flags, &[&[&connect, "<\\r\\n\\r\\n", "#5000", "~300", "!", "<"]]);
    let lines = lines(&net);
    let [line] = lines.as_slice() else { panic!("{lines:?}") };
    assert_eq!((&line["bytes_up"], &line["bytes_down"]), (&5000.into(), &5000.into()), "{line}");
    let time = line["duration_ms"].as_u64().unwrap();
    assert!((300..2000).contains(&time), "{line}");
}

#[test]
fn bytes_of_requests_are_counted_too() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let _log = Log(&net);
    let origin = Origin::answering(|_| super::answer(200, &[b'x'; 10_000]));
    let to = at("one.test", origin.port());
    let flags = net.flags(&[&to], &["--audit", &log(&net)]);
    fs::write(net.path().join("body"), [b'y'; 4000]).unwrap();
    net.says(&flags, &format!("curl -sS --data-binary @body http://{to}/ -o /dev/null"));
    let lines = lines(&net);
    let [line] = lines.as_slice() else { panic!("{lines:?}") };
    assert!((4000..4500).contains(&line["bytes_up"].as_u64().unwrap()), "{line}");
    assert!((10_000..10_500).contains(&line["bytes_down"].as_u64().unwrap()), "{line}");
}

#[test]
fn the_log_is_appended_to_and_keeps_its_mode() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let _log = Log(&net);
    fs::write(log(&net), "{\"before\": 1}\n").unwrap();
    fs::set_permissions(log(&net), fs::Permissions::from_mode(0o640)).unwrap();
    let flags = net.flags(&[], &["--audit", &log(&net)]);
    for _ in 0..2 {
        net.says(&flags, "curl -s http://one.test/ -o /dev/null");
    }
    let lines = lines(&net);
    assert_eq!((lines.len(), &lines[0]["before"]), (3, &1.into()));
    assert_ne!(lines[1]["session"], lines[2]["session"]);
    assert_eq!(fs::metadata(log(&net)).unwrap().permissions().mode() & 0o777, 0o640);
}

#[test]
fn a_path_that_cannot_be_a_log_is_refused() {
    let net = Net::new();
    let link = net.path().join("link");
    std::os::unix::fs::symlink("/dev/null", &link).unwrap();
    for place in ["/dev/null", "/nonexistent/log", link.to_str().unwrap(), net.path().to_str().unwrap()] {
        let said = refused(net.path(), &["--net", "proxy", "--audit", place]);
        assert!(said.contains("audit") && said.contains(place), "{said}");
    }
}

#[test]
fn no_line_is_torn_when_many_write() {
    let net = Net::new();
    let _log = Log(&net);
    let flags = net.flags(&[], &["-q", "--audit", &log(&net)]);
    let names: Vec<String> = (0..200).map(|n| format!("127.0.0.1:53/name-{n}.test")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let said: Vec<String> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(|| net.attempt(&flags, "query", &names))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let silent: usize = said.iter().map(|said| said.matches("silence").count()).sum();
    let answered: Vec<usize> = said.iter().map(|said| said.lines().count()).collect();
    assert_eq!(lines(&net).len(), 800, "{answered:?} answers, {silent} of them silence");
}

#[test]
fn no_secret_of_a_url_is_in_the_log() {
    let net = Net::new();
    let _log = Log(&net);
    let flags = net.flags(&["*:*"], &["--audit", &log(&net)]);
    let requests = [
        ">GET http://user:secret@one.test/ HTTP/1.1\\r\\n\\r\\n",
        ">GET https://one.test/?token=secret HTTP/1.1\\r\\n\\r\\n",
        ">GET /?token=secret HTTP/1.1\\r\\n\\r\\n",
        ">TRACE http://one.test/?token=secret HTTP/1.1\\r\\n\\r\\n",
        ">CONNECT user:secret@one.test:80 HTTP/1.1\\r\\n\\r\\n",
    ];
    for request in requests {
        let heard = net.talk(&flags, &[&[request, "!", "<"]]);
        assert!(!heard[0].contains("secret"), "{request}: {heard:?}");
    }
    assert!(!fs::read_to_string(log(&net)).unwrap().contains("secret"));
}

#[test]
fn without_the_flag_there_is_no_log() {
    let net = Net::new();
    let before = fs::read_dir(net.path()).unwrap().count();
    let said = stderr(&net.shell(&net.flags(&[], &[]), "getent hosts one.test"));
    assert!(said.contains("one.test"));
    assert_eq!(fs::read_dir(net.path()).unwrap().count(), before);
}
