//! Published ports: programs outside reach the servers that are published, and nothing else. Nothing inside
//! gets out.

use std::{
    fs,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use kennel::{Mount, NetworkMode, Policy, Profile, Sandbox};
use serde_json::Value;
use tokio::io::AsyncBufReadExt;

use crate::support::{
    TempDir, ends, has, kennel_path, patient, payload_path, refused, require, shell, stderr, stdout,
    workspace,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// The modes with a network of the sandbox's own.
const MODES: [NetworkMode; 2] = [NetworkMode::None, NetworkMode::Proxy];

/// Connects as a program of the host does.
pub fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).expect("a published port");
    stream.set_read_timeout(Some(patient(PATIENCE))).unwrap();
    stream.set_write_timeout(Some(patient(PATIENCE))).unwrap();
    stream
}

/// Sends, ends its direction, and hears the rest.
pub fn exchange(mut stream: TcpStream, said: &[u8]) -> Vec<u8> {
    let mut back = stream.try_clone().unwrap();
    let said = said.to_owned();
    let sending = thread::spawn(move || {
        stream.write_all(&said).expect("the server reads");
        stream.shutdown(Shutdown::Write).expect("an open connection");
    });
    let mut heard = Vec::new();
    back.read_to_end(&mut heard).expect("a complete answer");
    sending.join().expect("all is sent");
    heard
}

pub fn is_closed(at: SocketAddr) -> bool {
    TcpStream::connect(at).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// A port of the host that is free now.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub fn policy(workspace: &Path) -> Policy {
    let payload = Mount::ReadOnly { source: payload_path(), target: Some("/payload".into()) };
    Policy::profile(Profile::RepoWrite, workspace).mount(payload)
}

/// `kennel run FLAGS -- /payload serve …`, which listens.
struct Run {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
    _workspace: TempDir,
}

impl Run {
    fn new(flags: &[&str], serve: &[&str]) -> Self {
        let workspace = workspace();
        let payload = format!("{}:/payload", payload_path().display());
        let mut child = Command::new(kennel_path())
            .current_dir(workspace.path())
            .args(["run", "--ro", &payload])
            .args(flags)
            .args(["--", "/payload", "serve"])
            .args(serve)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut run = Self { child, stderr, _workspace: workspace };
        if line != "ready\n" {
            panic!("the server says {line:?}: {}", run.rest());
        }
        run
    }

    fn rest(&mut self) -> String {
        let mut text = String::new();
        self.stderr.read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server of a one-shot, which listens, and the addresses of its published ports.
async fn serve(policy: &Policy, serve: &[&str]) -> (kennel::Child, Vec<SocketAddr>) {
    let sandbox = Sandbox::new(policy).expect("a sandbox");
    let mut command = sandbox.command("/payload");
    command.arg("serve").args(serve).stdout(kennel::Stdio::piped());
    let mut child = command.spawn().await.expect("a server");
    let mut lines = tokio::io::BufReader::new(child.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("ready"));
    let ports = child.published().iter().map(|port| port.address).collect();
    (child, ports)
}

/// Runs what blocks, while the runtime serves.
pub async fn outside<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(act).await.expect("no panic")
}

#[tokio::test]
async fn a_server_is_reached_in_each_mode_at_each_of_its_addresses() {
    let workspace = workspace();
    for mode in MODES {
        for at in ["127.0.0.1:8000", "0.0.0.0:8000", "[::1]:8000", "[::]:8000"] {
            let policy = policy(workspace.path()).network_mode(mode).publish("0:8000");
            let (mut child, ports) = serve(&policy, &[at, "echo"]).await;
            let &[port] = &*ports else { panic!("{ports:?}") };
            assert!(port.ip().is_loopback() && port.port() != 0, "{port}");
            assert_eq!(outside(move || exchange(connect(port), b"hello")).await, b"hello", "{mode} {at}");
            let outcome = child.kill().await.expect("an end");
            assert_eq!((outcome.published[0].address, outcome.published[0].inside), (port, 8000));
            assert!(is_closed(port), "{mode} {at}");
        }
    }
}

#[tokio::test]
async fn only_what_is_published_is_reachable() {
    let workspace = workspace();
    let unpublished = free_port();
    for mode in MODES {
        let policy = policy(workspace.path()).network_mode(mode).publish("0:8000");
        let inside = format!("0.0.0.0:{unpublished}");
        let (child, ports) = serve(&policy, &[&inside, "echo"]).await;
        let published = ports[0];
        // The server listens, at a port that is not published.
        assert!(is_closed(SocketAddr::new(published.ip(), unpublished)), "{mode}");
        let told = outside(move || connect(published).read(&mut [0])).await;
        assert_eq!(told.expect_err("nothing listens there").kind(), ErrorKind::ConnectionReset, "{mode}");
        drop(child);
    }
}

#[test]
fn a_published_port_is_no_way_out() {
    let workspace = workspace();
    let host = TcpListener::bind("127.0.0.1:0").unwrap();
    host.set_nonblocking(true).unwrap();
    let port = host.local_addr().unwrap().port();
    let payload = format!("{}:/payload", payload_path().display());
    for mode in MODES {
        let (mode, publish) = (mode.to_string(), free_port().to_string());
        let flags = ["--ro", &payload, "--net", &mode, "--publish", &format!("{publish}:8000")];
        // Neither the host's servers nor the published port itself, and no listener of Kennel but the three
        // of the proxy.
        let script = format!(
            "/payload connect 127.0.0.1:{port} 127.0.0.1:{publish} 127.0.0.1:8000 192.0.2.1:80; \
             cat /proc/net/tcp /proc/net/tcp6 | grep -c ' 0A '"
        );
        let output = shell(workspace.path(), &flags, &script);
        let said = stdout(&output);
        let mut lines = said.lines();
        let connected: Vec<&str> = lines.by_ref().take(4).collect();
        assert_eq!(connected, ["ECONNREFUSED", "ECONNREFUSED", "ECONNREFUSED", "ENETUNREACH"], "{output:?}");
        assert_eq!(lines.next(), Some(if mode == "none" { "0" } else { "3" }), "{output:?}");
        assert_eq!(host.accept().expect_err("nobody came").kind(), ErrorKind::WouldBlock);
    }
}

#[tokio::test]
async fn nothing_is_lost_in_either_direction() {
    const BYTES: usize = 32 << 20;
    let workspace = workspace();
    let sent: Vec<u8> = (0..=250).cycle().take(BYTES).collect();
    let published = |kind| {
        let policy = policy(workspace.path()).publish("0:8000");
        async move { serve(&policy, &["127.0.0.1:8000", kind]).await }
    };
    let (_echo, ports) = published("echo").await;
    let (to, said) = (ports[0], sent.clone());
    assert!(outside(move || exchange(connect(to), &said)).await == sent, "the same bytes");
    let (_count, ports) = published("count").await;
    let to = ports[0];
    assert_eq!(outside(move || exchange(connect(to), &sent)).await, BYTES.to_string().as_bytes());
    let (_pour, ports) = published("pour=33554432").await;
    let to = ports[0];
    assert_eq!(outside(move || exchange(connect(to), b"")).await.len(), BYTES);
}

#[tokio::test]
async fn two_hundred_connections_at_once_are_served() {
    let workspace = workspace();
    let policy = policy(workspace.path()).publish("0:8000");
    let (_child, ports) = serve(&policy, &["127.0.0.1:8000", "echo"]).await;
    let to = ports[0];
    let answered = outside(move || {
        let streams: Vec<TcpStream> = (0..200).map(|_| connect(to)).collect();
        let texts = (0..200).map(|at: usize| at.to_string());
        streams
            .into_iter()
            .zip(texts)
            .filter(|(stream, text)| {
                exchange(stream.try_clone().unwrap(), text.as_bytes()) == text.as_bytes()
            })
            .count()
    });
    assert_eq!(answered.await, 200);
}

#[test]
fn what_the_server_has_sent_before_its_end_arrives() {
    let port = free_port();
    let mut run = Run::new(&["--publish", &format!("{port}:8000")], &["127.0.0.1:8000", "pour=300000", "1"]);
    let mut stream = connect(SocketAddr::from(([127, 0, 0, 1], port)));
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    assert_eq!(heard.len(), 300_000);
    // This client never ends its direction. Kennel does not wait for it.
    assert!(ends("kennel run", &mut run.child).success());
    assert!(is_closed(SocketAddr::from(([127, 0, 0, 1], port))));
}

#[test]
fn kennel_says_which_port_the_kernel_chose() {
    let report = TempDir::new("kennel-report-", "/tmp");
    let file = report.path().join("report.json");
    let json = ["--json", file.to_str().unwrap()];
    let mut run = Run::new(
        &[&json[..], &["--quiet", "--publish", "0:8000,0:8001"]].concat(),
        &["127.0.0.1:8000", "echo", "1"],
    );
    let mut chosen = Vec::new();
    for inside in [8000, 8001] {
        let mut line = String::new();
        run.stderr.read_line(&mut line).unwrap();
        let address = line
            .trim_end()
            .strip_prefix("kennel: published ")
            .and_then(|rest| rest.strip_suffix(&format!("->{inside}")));
        chosen.push(address.unwrap_or_else(|| panic!("{line}")).parse::<SocketAddr>().unwrap());
    }
    assert_eq!(exchange(connect(chosen[0]), b"hello"), b"hello");
    assert!(ends("kennel run", &mut run.child).success());
    assert_eq!(run.rest(), "");
    let report: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let told: Vec<_> = report["published"]
        .as_array()
        .unwrap()
        .iter()
        .map(|port| port["address"].as_str().unwrap().parse::<SocketAddr>().unwrap())
        .collect();
    assert_eq!(told, chosen);
    assert_eq!(report["published"][1]["inside"], 8001);
}

#[test]
fn a_port_that_is_taken_is_an_error_before_anything_runs() {
    let workspace = workspace();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    for mode in ["none", "proxy"] {
        let said = refused(workspace.path(), &["--net", mode, "--publish", &format!("{port}:8000")]);
        let expected = format!("kennel: publish 127.0.0.1:{port}: Address already in use");
        assert!(
            said.starts_with(&expected) && said.contains("hint: another program listens there"),
            "{said}"
        );
    }
    // The other program still has it.
    assert!(!is_closed(taken.local_addr().unwrap()));
}

#[test]
fn what_cannot_be_published_is_refused_in_words() {
    let workspace = workspace();
    let refuses = |flags: &[&str], words: &str| {
        let said = refused(workspace.path(), flags);
        assert!(said.contains(words), "{flags:?}: {said}");
    };
    for (port, words) in [
        ("70000", "network.publish `70000`: 70000 is no port: the highest is 65535"),
        ("", "network.publish: expected PORT, PORT:INSIDE or ADDRESS:PORT:INSIDE"),
        ("a b", "expected PORT"),
        ("localhost:8080", "`localhost` is no address"),
        ("8080:80", "no command can listen below 1024"),
        ("0", "name the port inside"),
        ("8080/udp", "only TCP"),
        ("[::1]:8080:80:90", "expected PORT"),
        ("8080,8080:9000", "published already"),
        ("8080:3128", "the port of the proxy"),
        ("192.0.2.7:8080", "publish 192.0.2.7:8080: Cannot assign requested address"),
    ] {
        refuses(&["--publish", port], words);
    }
    refuses(
        &["--net", "host", "--publish", "8080"],
        "with the host's network, a server of the command listens on the host",
    );
    refuses(&["--profile", "full-dev", "--publish", "8080"], "with the host's network");
    // Else everybody who reaches the published port would reach the service of the host.
    refuses(
        &["--allow", "localhost:5432", "--publish", "0.0.0.0:0:5432"],
        "this port leads to the host's own service",
    );
    let many = (1..=101).map(|inside| format!("0:{}", 2000 + inside)).collect::<Vec<_>>().join(",");
    refuses(&["--publish", &many], "at most 100 ports");
}

#[test]
fn an_address_of_every_interface_gets_a_note() {
    let workspace = workspace();
    let noted = |publish: &str| stderr(&shell(workspace.path(), &["--publish", publish], "true"));
    let note = noted("0.0.0.0:0:8000");
    assert!(
        note.contains("kennel: note: publish 0.0.0.0:0:8000: other machines can connect to it"),
        "{note}"
    );
    assert!(!noted("[::1]:0:8000").contains("note:"));
    assert!(!noted("0:8000").contains("note:"));
}

#[test]
fn a_policy_that_publishes_runs_only_with_a_network_namespace() {
    let policy = Policy::default().on_unavailable(kennel::OnUnavailable::Degrade);
    let of = |policy: &Policy| policy.effective_requirement(kennel::report::Protection::NetworkNamespace);
    assert_eq!(of(&policy), kennel::Requirement::IfAvailable);
    assert_eq!(of(&policy.publish("8080")), kennel::Requirement::Required);
}

#[test]
fn each_connection_is_in_the_audit_log() {
    let logs = TempDir::new("kennel-audit-", "/tmp");
    let log = logs.path().join("log");
    let flags = ["--audit", log.to_str().unwrap(), "--publish", "0:8000,0:8001"];
    for closed in [&[][..], &["--audit-closed"]] {
        let mut run = Run::new(&[&flags[..], closed].concat(), &["127.0.0.1:8000", "echo", "1"]);
        let mut address = || {
            let mut line = String::new();
            run.stderr.read_line(&mut line).unwrap();
            let (_, rest) = line.rsplit_once(' ').unwrap();
            rest.split("->").next().unwrap().parse::<SocketAddr>().unwrap()
        };
        let [served, unserved] = [address(), address()];
        let _ = connect(unserved).read(&mut [0]);
        let stream = connect(served);
        let from = stream.local_addr().unwrap().to_string();
        assert_eq!(exchange(stream, b"hello"), b"hello");
        assert!(ends("kennel run", &mut run.child).success());
        let text = fs::read_to_string(&log).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of = |decision: &str| {
            let is_it = |line: &&Value| line["event"] == "ingress" && line["decision"] == decision;
            lines.iter().find(is_it).unwrap_or_else(|| panic!("no {decision}: {text}"))
        };
        let (allowed, failed) = (of("allowed"), of("failed"));
        assert_eq!(
            (&allowed["from"], &allowed["port"], &allowed["exec"]),
            (&from.into(), &8000.into(), &1.into())
        );
        assert_eq!((&allowed["bytes_up"], &allowed["bytes_down"]), (&5.into(), &5.into()));
        assert_eq!((&failed["port"], &failed["bytes_up"]), (&8001.into(), &0.into()));
        if !closed.is_empty() {
            assert_eq!(of("begun")["port"], 8000);
        }
        fs::remove_file(&log).unwrap();
    }
}

#[test]
fn an_ordinary_web_server_is_reached() {
    require!(has("python3"), "python3");
    let workspace = workspace();
    fs::write(workspace.path().join("page"), "from inside").unwrap();
    let port = free_port();
    let mut child = Command::new(kennel_path())
        .current_dir(workspace.path())
        .args(["run", "--publish", &format!("{port}:8000"), "--", "python3", "-m", "http.server", "8000"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let at = SocketAddr::from(([127, 0, 0, 1], port));
    let mut page = String::new();
    crate::support::until("the server answers", || {
        page.clear();
        let Ok(mut stream) = TcpStream::connect(at) else { return false };
        let _ = stream.write_all(b"GET /page HTTP/1.0\r\n\r\n");
        stream.read_to_string(&mut page).is_ok() && !page.is_empty()
    });
    assert!(page.ends_with("from inside"), "{page}");
    child.kill().unwrap();
    child.wait().unwrap();
}
