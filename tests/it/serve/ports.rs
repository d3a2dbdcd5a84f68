//! Ports of a session in another process: published at its start, later from the command line, or by a
//! `Client`.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::{SocketAddr, TcpListener},
    process::{Child, Output, Stdio},
};

use kennel::{client::Client, report::PublishedPort};
use serde_json::Value;

use super::Hosted;
use crate::{
    network::publish::{connect, exchange, is_closed},
    support::{payload_path, stderr, stdout},
};

/// A session that shows the payload, with an echo at port 8000 of its loopback.
fn with_server(flags: &[&str]) -> (Hosted, Server) {
    let payload = format!("{}:/payload", payload_path().display());
    let hosted = Hosted::start(&[&["--ro", &payload], flags].concat());
    let mut child =
        hosted.exec(&["/payload", "serve", "127.0.0.1:8000", "echo"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (hosted, Server(child))
}

/// Ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn session(hosted: &Hosted, arguments: &[&str]) -> Output {
    hosted.kennel(&[&["session"], arguments].concat()).output().unwrap()
}

/// The address of a line such as `127.0.0.1:40000->8000`.
fn address(line: &str) -> SocketAddr {
    line.split_once("->").unwrap_or_else(|| panic!("{line}")).0.parse().unwrap()
}

fn client(hosted: &Hosted) -> Client {
    Client::connect_in(hosted.socket.parent().unwrap(), "s").unwrap()
}

#[test]
fn the_command_line_publishes_and_lists() {
    let (hosted, _server) = with_server(&["--publish", "0:8000"]);
    let output = session(&hosted, &["publish", "s", "0:8000", "0:8001"]);
    let lines = stdout(&output);
    let [second, third] = *lines.lines().map(address).collect::<Vec<_>>() else { panic!("{output:?}") };
    assert!(lines.ends_with("->8001"), "{lines}");
    assert_eq!(exchange(connect(second), b"hello"), b"hello");
    let listed: Value = serde_json::from_slice(&session(&hosted, &["list", "--json"]).stdout).unwrap();
    let published = listed[0]["published"].as_array().unwrap();
    let at: Vec<SocketAddr> =
        published.iter().map(|port| port["address"].as_str().unwrap().parse().unwrap()).collect();
    assert_eq!((at.len(), &at[1..]), (3, &[second, third][..]));
    assert_eq!(exchange(connect(at[0]), b"hello"), b"hello");
    let table = stdout(&session(&hosted, &["list"]));
    assert!(table.contains(&format!("{second}->8000")), "{table}");
    assert!(session(&hosted, &["stop", "s"]).status.success());
    assert!(at.into_iter().all(is_closed));
}

/// As `kennel run --publish` does, and nothing about a port of this machine alone.
#[test]
fn a_port_that_other_machines_reach_gets_a_note() {
    let hosted = Hosted::start(&[]);
    for (port, is_public) in [("0.0.0.0:0:8000", true), ("0:8000", false)] {
        let output = session(&hosted, &["publish", "s", port]);
        let at = address(&stdout(&output));
        let note = format!(
            "kennel: note: publish {at}:8000: other machines can connect to it; leave out the address to publish it on this \
             machine only"
        );
        assert_eq!(stderr(&output), if is_public { note.as_str() } else { "" }, "{port}");
        let run = hosted.kennel(&["run", "--publish", port, "--", "true"]).output().unwrap();
        assert_eq!(stderr(&run).contains("other machines can connect to it"), is_public, "{run:?}");
    }
}

#[test]
fn a_client_publishes() {
    let (hosted, _server) = with_server(&[]);
    assert_eq!(client(&hosted).published().unwrap(), []);
    let port: PublishedPort = client(&hosted).publish("0:8000").unwrap();
    assert_eq!(exchange(connect(port.address), b"hello"), b"hello");
    assert_eq!(client(&hosted).published().unwrap(), [port]);
}

#[test]
fn what_the_session_cannot_publish_is_refused_with_its_reason() {
    let (hosted, _server) = with_server(&[]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("{}:8000", taken.local_addr().unwrap().port());
    for (port, words) in [
        (&*port, "Address already in use"),
        ("70000", "70000 is no port"),
        ("", "expected PORT"),
        ("8000/udp", "only TCP"),
        ("\u{1b}[2J", "expected PORT"),
    ] {
        let output = session(&hosted, &["publish", "s", port]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert!(
            said.contains(words) && !said.contains('\u{1b}') && output.stdout.is_empty(),
            "{port}: {said}"
        );
    }
    assert_eq!(client(&hosted).published().unwrap(), []);
    assert!(hosted.is_well());
    let none = session(&hosted, &["publish", "nobody", "8000"]);
    assert!(stderr(&none).contains("nobody"), "{none:?}");
}

#[test]
fn a_session_whose_port_is_taken_does_not_start() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("{}:8000", taken.local_addr().unwrap().port());
    let (runtime, workspace) = (super::runtime(), crate::support::workspace());
    let mut start = super::at(runtime.path(), workspace.path());
    let output = start.args(["session", "start", "--name", "s", "--publish", &port]).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr(&output).contains("hint: another program listens there"), "{output:?}");
    assert!(!runtime.path().join("kennel/s.sock").exists());
}

#[test]
fn a_session_says_which_port_the_kernel_chose() {
    let (runtime, workspace) = (super::runtime(), crate::support::workspace());
    let mut start = super::at(runtime.path(), workspace.path());
    let output = start.args(["session", "start", "--name", "s", "--publish", "0:8000"]).output().unwrap();
    let said = stderr(&output);
    let at = address(said.strip_prefix("kennel: published ").unwrap_or_else(|| panic!("{output:?}")));
    let open = !is_closed(at);
    let mut stop = super::at(runtime.path(), workspace.path());
    assert!(stop.args(["session", "stop", "s"]).status().unwrap().success());
    assert!(open && is_closed(at));
    assert!(fs::read_dir(workspace.path()).unwrap().next().is_none());
}
