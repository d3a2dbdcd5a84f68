//! Real bridges between loopback listeners and Unix sockets in temporary directories: data, ends of streams,
//! confinement. If root runs the tests, all of them run again as an ordinary user.

pub(crate) mod end;
pub(crate) mod many;
pub(crate) mod streams;
pub(crate) mod throughput;
pub(crate) mod walls;

use std::fs;
use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::time::{sleep, timeout};

use super::*;
use crate::caller::Caller;
use crate::host::Host;
use crate::plan::bridge::compile;
use crate::policy::Policy;
use crate::policy::profile::Profile;
use crate::sys::birth::{SpawnOptions, Users};

/// Longer than any test may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Descriptors of a bridge without connections: control socket, listener, epoll, four pipes.
const FILES_OF_NONE: usize = 11;

/// A prime, so that no block size divides it.
const PERIOD: usize = 65_521;

/// A serving bridge and the socket that it connects to.
struct World {
    bridge: Bridge,
    address: SocketAddr,
    proxy: Option<UnixListener>,
    dir: TempDir,
}

impl World {
    async fn new() -> Self {
        Self::with(|_| {}, 1024).await
    }

    /// With a plan changed by `change`, and a proxy with this backlog.
    async fn with(change: impl FnOnce(&mut BridgePlan), backlog: i32) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let proxy = proxy_at(&dir.path().join("proxy.sock"), backlog);
        let mut plan = plan(&dir.path().join("proxy.sock"));
        change(&mut plan);
        let bridge =
            Bridge::start(&Images::new(SpawnOptions::of(Users::Own)).expect("an image"), &Arc::new(plan))
                .expect("a bridge");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = listener.local_addr().expect("its address");
        let mut missing = Enforcement::default();
        bridge.serve(listener.into(), &mut missing).await.expect("ready");
        assert_eq!(missing, Enforcement::default(), "every wall stands");
        Self { bridge, address, proxy: Some(proxy), dir }
    }

    async fn client(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("connects")
    }

    /// The proxy's end of the next connection.
    async fn accepted(&self) -> UnixStream {
        soon(self.proxy.as_ref().expect("listens").accept()).await.expect("accepts").0
    }

    /// Both ends of a connection.
    async fn pair(&self) -> (TcpStream, UnixStream) {
        let client = self.client().await;
        (client, self.accepted().await)
    }

    /// Echoes on every connection.
    fn echo(&mut self) {
        let proxy = self.proxy.take().expect("listens");
        tokio::spawn(async move {
            while let Ok((stream, _)) = proxy.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.into_split();
                    copy(&mut from, &mut to).await
                });
            }
        });
    }

    fn pid(&self) -> Pid {
        let pidfd = self.bridge.init.pidfd().expect("a child").as_raw_fd();
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{pidfd}")).expect("there");
        let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")).expect("a pidfd");
        Pid::from_raw(pid.trim().parse().expect("a number"))
    }

    /// A file of the bridge in `/proc`.
    fn proc(&self, name: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{name}", self.pid())).expect("there")
    }

    /// The number of its descriptors. Only root may read it.
    fn files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("root may").count()
    }

    /// CPU time of the bridge, in ticks of 10 ms.
    fn ticks(&self) -> u64 {
        let stat = self.proc("stat");
        let fields = stat.rsplit(')').next().expect("after the name").split(' ');
        fields.skip(12).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
    }

    /// Checks that the bridge is alive and serves connections.
    async fn assert_alive(&self) {
        let (mut client, mut proxy) = self.pair().await;
        exchange(&mut client, b"are you there").await;
        let mut said = [0; 13];
        soon(proxy.read_exact(&mut said)).await.expect("arrives");
        assert_eq!(&said, b"are you there");
    }
}

fn plan(path: &Path) -> BridgePlan {
    let policy = Policy::profile(Profile::RepoWrite, "/tmp");
    compile(&policy, &Host::detect(), &Caller::current(), path).expect("compiles")
}

fn proxy_at(path: &Path, backlog: i32) -> UnixListener {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None).expect("a socket");
    bind(fd.as_raw_fd(), &UnixAddr::new(path).expect("a short path")).expect("binds");
    listen(&fd, Backlog::new(backlog).expect("in range")).expect("listens");
    UnixListener::from_std(fd.into()).expect("listens")
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("in time")
}

async fn exchange(stream: &mut TcpStream, bytes: &[u8]) {
    soon(stream.write_all(bytes)).await.expect("takes it");
}

/// Sends `said` and expects it back.
async fn echoes(stream: &mut TcpStream, said: &[u8]) {
    exchange(stream, said).await;
    let mut back = vec![0; said.len()];
    soon(stream.read_exact(&mut back)).await.expect("answers");
    assert_eq!(back, said);
}

fn pattern() -> Arc<[u8]> {
    (0..PERIOD).map(|at| u8::try_from(at * 7 % 251).expect("a byte")).collect()
}

async fn send_pattern(mut to: impl AsyncWriteExt + Unpin, count: usize) {
    let pattern = pattern();
    let mut left = count;
    while left > 0 {
        let part = &pattern[..left.min(PERIOD)];
        to.write_all(part).await.expect("takes it");
        left -= part.len();
    }
    to.shutdown().await.expect("ends");
}

/// Reads to the end and compares with the pattern. Returns the number of bytes.
async fn receive_pattern(mut from: impl AsyncReadExt + Unpin) -> usize {
    let pattern = [&*pattern(), &*pattern()].concat();
    let (mut buffer, mut count) = (vec![0; PERIOD], 0);
    loop {
        let came = from.read(&mut buffer).await.expect("comes");
        if came == 0 {
            return count;
        }
        let expected = &pattern[count % PERIOD..][..came];
        assert!(buffer[..came] == *expected, "bytes differ after {count}");
        count += came;
    }
}

#[test]
fn all_of_it_as_an_ordinary_user() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let dir = tempfile::Builder::new().prefix("kennel-bridge-").tempdir_in("/tmp").expect("a directory");
    let copy = dir.path().join("tests");
    fs::copy("/proc/self/exe", &copy).expect("copied");
    for path in [dir.path(), &copy] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("for everybody");
    }
    let output = Command::new("setpriv")
        .args(["--reuid", "1000", "--regid", "1000", "--clear-groups", "--"])
        .arg(&copy)
        .args(["bridge::tests", "plan::bridge"])
        .current_dir("/tmp")
        .env("TMPDIR", "/tmp")
        .output()
        .expect("setpriv of util-linux");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.matches(" ... ok").count() > 15, "{said}");
}
