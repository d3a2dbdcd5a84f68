//! A proxy that is not Kennel's, on a Unix socket of the host: every connection leads to it, and nowhere
//! else.

use std::{
    fs,
    io::{self, Read},
    net::{Shutdown, TcpStream},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use kennel::{Error, ForeignProxy, Network, NetworkMode, Policy, Profile, Session};

use super::{Origin, stderr, stdout, upstream::Upstream};
use crate::support::{TempDir, has, kennel, patient, require, workspace};

/// A Unix socket that leads to an upstream proxy of the test.
struct Foreign {
    upstream: Upstream,
    dir: TempDir,
    connections: Arc<AtomicUsize>,
}

impl Foreign {
    /// Every request leads to one port of the host's loopback.
    fn to(port: u16) -> Self {
        let (upstream, dir) = (Upstream::to(port), workspace());
        let connections = Arc::default();
        listen(&dir.path().join("proxy.sock"), upstream.server.port, &connections);
        Self { upstream, dir, connections }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("proxy.sock")
    }

    fn through_proxy(&self, workspace: &Path) -> Policy {
        let network = Network {
            mode: Some(NetworkMode::Proxy),
            proxy: Some(ForeignProxy { unix: self.socket() }),
            ..Network::default()
        };
        Policy { network, ..Policy::profile(Profile::RepoWrite, workspace) }
    }

    fn says(&self, script: &str) -> String {
        let dir = workspace();
        let socket = self.socket();
        let flags = ["--proxy-socket", socket.to_str().unwrap(), "--timeout", "30s"];
        let output = kennel(dir.path(), &flags, &["sh", "-c", script]).output().unwrap();
        assert!(output.status.success(), "{script}: {}\n{}", stdout(&output), stderr(&output));
        stdout(&output)
    }
}

fn listen(path: &Path, port: u16, connections: &Arc<AtomicUsize>) {
    let listener = UnixListener::bind(path).unwrap();
    let connections = Arc::clone(connections);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            connections.fetch_add(1, Relaxed);
            thread::spawn(move || lead(client, port));
        }
    });
}

fn lead(client: UnixStream, port: u16) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", port))?;
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    let (mut from, mut to) = (server, client);
    io::copy(&mut from, &mut to)?;
    to.shutdown(Shutdown::Write)
}

/// Without the variables that name the proxy.
const BARE: &str = "env -u http_proxy -u https_proxy -u all_proxy -u HTTP_PROXY -u HTTPS_PROXY -u ALL_PROXY";

#[test]
fn everything_leads_to_it_and_it_decides() {
    require!(has("curl"), "curl");
    let origin = Origin::named("one");
    let foreign = Foreign::to(origin.port());
    let said = foreign.says("curl -sS http://a.test/plain && curl -sS -p http://b.test/tunnel");
    assert_eq!(said, "upstream: http://a.test/plain\none: /tunnel");
    assert_eq!(foreign.upstream.lines(), ["GET http://a.test/plain HTTP/1.1", "CONNECT b.test:80 HTTP/1.1"]);
}

#[test]
fn programs_that_know_no_proxy_are_led_to_it() {
    require!(has("curl"), "curl");
    let origin = Origin::named("one");
    let foreign = Foreign::to(origin.port());
    assert_eq!(foreign.says(&format!("{BARE} curl -sS http://any.test/bare")), "one: /bare");
    assert_eq!(foreign.upstream.lines(), ["CONNECT any.test:80 HTTP/1.1"]);
}

#[test]
fn a_socket_in_the_place_of_the_proxy_gets_nothing() {
    require!(has("curl"), "curl");
    let origin = Origin::named("one");
    let foreign = Foreign::to(origin.port());
    let dir = workspace();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let session = Session::prepare(&foreign.through_proxy(dir.path())).await.unwrap();
        let wrong = Arc::default();
        let other = foreign.dir.path().join("other.sock");
        listen(&other, foreign.upstream.server.port, &wrong);
        fs::rename(&other, foreign.socket()).unwrap();
        for script in ["curl -sS -p http://a.test/x", &format!("{BARE} curl -sS http://a.test/x")] {
            let output = session.command("sh").args(["-c", script]).output().await.unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(said.trim_end(), "one: /x", "{script}: {}", String::from_utf8_lossy(&output.stderr));
        }
        assert_eq!((wrong.load(Relaxed), foreign.connections.load(Relaxed)), (0, 2));
        session.shutdown().await;
    });
}

#[test]
fn a_session_ends_with_its_bridge() {
    let foreign = Foreign::to(1);
    let dir = workspace();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let before = children();
        let session = Session::prepare(&foreign.through_proxy(dir.path())).await.unwrap();
        assert_eq!(children(), before + 2, "zygote and bridge");
        session.shutdown().await;
        assert_eq!(children(), before);
        let session = Session::prepare(&foreign.through_proxy(dir.path())).await.unwrap();
        drop(session);
        for _ in 0..200 {
            if children() == before {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("{} children, {before} before", children());
    });
}

/// Children of this thread. No other thread starts any here.
fn children() -> usize {
    let tid = nix::unistd::gettid();
    let text = fs::read_to_string(format!("/proc/self/task/{tid}/children")).unwrap();
    text.split_whitespace().count()
}

#[test]
fn a_proxy_that_is_gone_refuses_connections_only() {
    require!(has("curl"), "curl");
    let (dir, elsewhere) = (workspace(), workspace());
    let path = elsewhere.path().join("proxy.sock");
    // The socket is bound, and nobody listens on it any more.
    drop(UnixListener::bind(&path).unwrap());
    let flags = ["--proxy-socket", path.to_str().unwrap(), "--timeout", "30s"];
    let script = format!("curl -sS -p http://a.test/; echo $?; {BARE} curl -sS http://a.test/; echo $?");
    let output = kennel(dir.path(), &flags, &["sh", "-c", &script]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    // The connection failed or was reset: while it connected, before it sent, before the answer.
    let codes: Vec<String> = stdout(&output).lines().map(str::to_owned).collect();
    assert!(
        codes.len() == 2 && codes.iter().all(|code| ["7", "35", "52", "55", "56"].contains(&&**code)),
        "{codes:?}"
    );
}

/// The bytes that reach a slow proxy from a command that sends and ends.
fn sends(script: &str) -> (Vec<u8>, Duration) {
    let (dir, elsewhere) = (workspace(), workspace());
    let path = elsewhere.path().join("proxy.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let proxy = thread::spawn(move || {
        let mut client = listener.accept().unwrap().0;
        thread::sleep(Duration::from_millis(300));
        let mut said = Vec::new();
        client.read_to_end(&mut said).map(|_| said)
    });
    let flags = ["--proxy-socket", path.to_str().unwrap(), "--timeout", "30s"];
    let begun = Instant::now();
    let output = kennel(dir.path(), &flags, &["bash", "-c", script]).output().unwrap();
    let took = begun.elapsed();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!stderr(&output).contains("bridge"), "{}", stderr(&output));
    (proxy.join().unwrap().unwrap(), took)
}

#[test]
fn the_last_bytes_of_a_command_arrive() {
    require!(has("bash"), "bash");
    let (said, took) = sends("exec 3<>/dev/tcp/127.0.0.1/3128 && yes kennel | head -c 1000000 >&3");
    assert_eq!(said.len(), 1_000_000);
    assert_eq!(said, "kennel\n".repeat(150_000).as_bytes()[..1_000_000]);
    assert!(took < patient(Duration::from_secs(2)), "{took:?}");
}

#[test]
fn a_path_without_a_proxy_is_an_error_of_the_start() {
    let (workspace, dir) = (workspace(), workspace());
    let policy = |unix: PathBuf| {
        let network = Network {
            mode: Some(NetworkMode::Proxy),
            proxy: Some(ForeignProxy { unix }),
            ..Network::default()
        };
        Policy { network, ..Policy::profile(Profile::RepoWrite, workspace.path()) }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    for name in ["absent", "file", "."] {
        let path = dir.path().join(name);
        let prepared = runtime.block_on(Session::prepare(&policy(path.clone())));
        match prepared {
            Err(Error::Grant { what: "proxy socket", path: named, .. }) => assert_eq!(named, path),
            other => panic!("{name}: {other:?}"),
        }
    }
}
