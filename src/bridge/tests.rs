//! Real bridges between loopback listeners and Unix sockets in temporary directories: what passes, what ends, what the
//! process is confined to. All of it once more as an ordinary user when root runs it.

use std::{
    fs,
    future::Future,
    io::{self, Write},
    net::SocketAddr,
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, PermissionsExt},
    },
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use kennel_helper::plan::entries;
use nix::{
    sys::socket::{
        AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, bind, listen, send,
        sendmsg, socket,
    },
    unistd::Pid,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpStream, UnixListener, UnixStream},
    task::JoinSet,
    time::{sleep, timeout},
};

use super::*;
use crate::{Host, Policy, Profile, caller::Caller, compile::bridge::compile};

/// Longer than anything here may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Descriptors of a bridge without connections: control socket, listener, epoll, four pipes.
const FILES_OF_NONE: usize = 11;

/// A prime, so that nothing that moves in blocks fits it.
const PERIOD: usize = 65_521;

/// A bridge that serves, and the socket that it leads to.
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

    /// With a plan changed by `change`, and a proxy with that backlog.
    async fn with(change: impl FnOnce(&mut BridgePlan), backlog: i32) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let proxy = proxy_at(&dir.path().join("proxy.sock"), backlog);
        let mut plan = plan(&dir.path().join("proxy.sock"));
        change(&mut plan);
        let bridge = Bridge::start(&Images::new(crate::sys::Users::Own).expect("an image"), &Arc::new(plan))
            .expect("a bridge");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = listener.local_addr().expect("its address");
        let mut told = Enforcement::default();
        bridge.serve(listener.into(), &mut told).await.expect("ready");
        assert_eq!(told, Enforcement::default(), "every wall stands");
        Self { bridge, address, proxy: Some(proxy), dir }
    }

    async fn client(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("connects")
    }

    /// The proxy's end of the connection that came next.
    async fn accepted(&self) -> UnixStream {
        soon(self.proxy.as_ref().expect("listens").accept()).await.expect("accepts").0
    }

    /// A connection, both ends.
    async fn pair(&self) -> (TcpStream, UnixStream) {
        let client = self.client().await;
        (client, self.accepted().await)
    }

    /// Has every connection echo.
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
        let pidfd = self.bridge.inside.pidfd().expect("a child").as_raw_fd();
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{pidfd}")).expect("there");
        let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")).expect("a pidfd");
        Pid::from_raw(pid.trim().parse().expect("a number"))
    }

    /// A file of the process.
    fn proc(&self, name: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{name}", self.pid())).expect("there")
    }

    /// How many descriptors it has. Only root may look.
    fn files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("root may").count()
    }

    /// Processor time that the bridge has used, in ticks of 10 ms.
    fn ticks(&self) -> u64 {
        let stat = self.proc("stat");
        let fields = stat.rsplit(')').next().expect("after the name").split(' ');
        fields.skip(12).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
    }

    /// That it is there and still does its work.
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

/// That many descriptors and connections.
fn room_for(plan: &mut BridgePlan, files: u64, connections: u32) {
    let mut walls = crate::compile::Section::default();
    for (index, entry) in (0..).zip(entries(&plan.walls.bytes)) {
        let (protection, _) = plan.walls.step(index).expect("there");
        walls.push(
            protection,
            &match entry.expect("whole").step {
                Step::Limit { resource, .. } if resource == libc::RLIMIT_NOFILE => {
                    Step::Limit { resource, soft: files, hard: files }
                }
                step => step,
            },
        );
    }
    plan.walls = walls;
    plan.connections = connections;
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

/// Reads to the end; answers how many bytes came, all as they were sent.
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

#[tokio::test]
async fn what_a_client_says_arrives_and_is_answered() {
    let mut world = World::new().await;
    world.echo();
    for said in [&b"x"[..], b"hello", &[7; 100_000]] {
        echoes(&mut world.client().await, said).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_passes_whole_in_both_directions_at_once() {
    const SIZE: usize = 64 << 20;
    let world = World::new().await;
    let (client, proxy) = world.pair().await;
    let ((client_in, client_out), (proxy_in, proxy_out)) = (client.into_split(), proxy.into_split());
    let sending =
        [tokio::spawn(send_pattern(client_out, SIZE)), tokio::spawn(send_pattern(proxy_out, SIZE - 1))];
    let received = [tokio::spawn(receive_pattern(proxy_in)), tokio::spawn(receive_pattern(client_in))];
    for (received, expected) in received.into_iter().zip([SIZE, SIZE - 1]) {
        assert_eq!(soon(received).await.expect("no panic"), expected);
    }
    for sending in sending {
        soon(sending).await.expect("no panic");
    }
}

#[tokio::test]
async fn client_that_has_said_all_still_hears_the_answer() {
    let world = World::new().await;
    let (mut client, mut proxy) = world.pair().await;
    exchange(&mut client, b"question").await;
    client.shutdown().await.expect("half closes");
    let mut said = Vec::new();
    soon(proxy.read_to_end(&mut said)).await.expect("reads to the end");
    assert_eq!(said, b"question");
    proxy.write_all(b"answer").await.expect("takes it");
    drop(proxy);
    let mut said = Vec::new();
    soon(client.read_to_end(&mut said)).await.expect("reads to the end");
    assert_eq!(said, b"answer");
}

#[tokio::test]
async fn proxy_that_has_said_all_still_hears_the_client() {
    let world = World::new().await;
    let (mut client, mut proxy) = world.pair().await;
    proxy.write_all(b"first").await.expect("takes it");
    proxy.shutdown().await.expect("half closes");
    let mut said = Vec::new();
    soon(client.read_to_end(&mut said)).await.expect("reads to the end");
    assert_eq!(said, b"first");
    exchange(&mut client, b"then").await;
    drop(client);
    let mut said = Vec::new();
    soon(proxy.read_to_end(&mut said)).await.expect("reads to the end");
    assert_eq!(said, b"then");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_at_once_are_served_beside_a_bulk_stream() {
    const CLIENTS: u32 = 2000;
    let mut world = World::new().await;
    world.echo();
    let (mut bulk_in, mut bulk_out) = world.client().await.into_split();
    let bulk = [
        tokio::spawn(async move { while bulk_out.write_all(&[1; 1 << 16]).await.is_ok() {} }),
        tokio::spawn(
            async move { while bulk_in.read(&mut [0; 1 << 16]).await.is_ok_and(|count| count > 0) {} },
        ),
    ];
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(soon(world.client()).await);
    }
    let mut all = JoinSet::new();
    for (number, mut client) in (0..CLIENTS).zip(clients) {
        all.spawn(async move {
            for round in 0..3 {
                echoes(&mut client, format!("{number} {round}").as_bytes()).await;
            }
            client
        });
    }
    let clients = soon(all.join_all()).await;
    drop(clients);
    for task in bulk {
        task.abort();
    }
    let mut last = world.client().await;
    echoes(&mut last, b"again").await;
}

#[tokio::test]
async fn refused_connection_is_reset_and_nothing_else() {
    let mut world = World::new().await;
    let (mut open, mut proxy) = world.pair().await;
    drop(world.proxy.take());
    for _ in 0..3 {
        // The reset may be there before connect(2) has been answered.
        let refused = async { TcpStream::connect(world.address).await?.read(&mut [0; 8]).await };
        let error = soon(refused).await.expect_err("reset");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
    exchange(&mut open, b"still").await;
    soon(proxy.read_exact(&mut [0; 5])).await.expect("arrives");
    assert!(timeout(Duration::from_millis(50), world.bridge.ended()).await.is_err());
}

#[tokio::test]
async fn proxy_that_dies_takes_its_connection_and_no_other() {
    let world = World::new().await;
    let (mut client, mut proxy) = world.pair().await;
    proxy.write_all(b"half of").await.expect("takes it");
    // What it did not read makes its end a reset.
    exchange(&mut client, &[1; 1 << 16]).await;
    proxy.readable().await.expect("arrives");
    drop(proxy);
    let mut said = Vec::new();
    if let Err(error) = soon(client.read_to_end(&mut said)).await {
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
    assert_eq!(said, b"half of");
    world.assert_alive().await;
}

#[tokio::test]
async fn client_that_dies_is_told_to_the_proxy() {
    let world = World::new().await;
    let (client, mut proxy) = world.pair().await;
    client.set_zero_linger().expect("set");
    drop(client);
    assert_eq!(soon(proxy.read(&mut [0; 8])).await.expect("the end"), 0);
    // Also one that had said all before.
    let (mut client, mut proxy) = world.pair().await;
    client.shutdown().await.expect("half closes");
    assert_eq!(soon(proxy.read(&mut [0; 8])).await.expect("the end"), 0);
    client.set_zero_linger().expect("set");
    drop(client);
    let error = soon(async {
        loop {
            if let Err(error) = proxy.write_all(&[0; 1 << 16]).await {
                return error;
            }
        }
    });
    assert_eq!(error.await.kind(), io::ErrorKind::BrokenPipe);
    world.assert_alive().await;
}

#[tokio::test]
async fn proxy_that_is_gone_ends_a_silent_client() {
    let world = World::new().await;
    let (mut client, proxy) = world.pair().await;
    drop(proxy);
    assert_eq!(soon(client.read(&mut [0; 8])).await.expect("the end"), 0);
    // Both directions are over: what is sent now finds nobody.
    let error = soon(async {
        loop {
            if let Err(error) = client.write_all(&[0; 1 << 10]).await {
                return error;
            }
            sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(matches!(error.await.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe));
}

#[tokio::test]
async fn full_backlog_of_the_proxy_keeps_clients_waiting_without_a_spin() {
    let mut world = World::with(|_| {}, 1).await;
    let mut clients = Vec::new();
    for number in 0..40u8 {
        let mut client = world.client().await;
        exchange(&mut client, &[number]).await;
        clients.push(client);
    }
    let before = world.ticks();
    sleep(Duration::from_secs(1)).await;
    assert!(world.ticks() - before <= 10, "{} ticks in a second", world.ticks() - before);
    world.echo();
    for (number, mut client) in (0..).zip(clients) {
        assert_eq!(soon(client.read_u8()).await.expect("answers"), number);
    }
}

#[tokio::test]
async fn who_finds_no_room_waits_until_somebody_is_done() {
    // Fewer descriptors than connections are promised: the kernel itself refuses. Then fewer connections.
    for (files, connections) in [(30, 1000), (1000, 5)] {
        let mut world = World::with(|plan| room_for(plan, files, connections), 1024).await;
        world.echo();
        let mut clients = Vec::new();
        for _ in 0..60 {
            clients.push(world.client().await);
        }
        let before = world.ticks();
        sleep(Duration::from_millis(500)).await;
        assert!(world.ticks() - before <= 5, "{} ticks in half a second", world.ticks() - before);
        for (number, mut client) in (0u8..).zip(clients) {
            echoes(&mut client, &[number]).await;
        }
    }
}

#[tokio::test]
async fn nothing_is_left_of_connections_that_ended() {
    let world = World::with(|plan| room_for(plan, 100, 4), 1024).await;
    for round in 0..1000 {
        let (mut client, mut proxy) = world.pair().await;
        exchange(&mut client, &[1; 100]).await;
        match round % 3 {
            0 => soon(proxy.read_exact(&mut [0; 100])).await.map(drop).expect("arrives"),
            1 => client.set_zero_linger().expect("set"),
            _ => {}
        }
    }
    world.assert_alive().await;
    if nix::unistd::geteuid().is_root() {
        soon(async {
            while world.files() > FILES_OF_NONE {
                sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn receiver_that_takes_nothing_holds_up_nobody_else() {
    let world = World::new().await;
    let mut stuck = Vec::new();
    for _ in 0..50 {
        let (client, proxy) = world.pair().await;
        while timeout(Duration::from_millis(5), client.writable()).await.is_ok() {
            let _ = client.try_write(&[1; 1 << 16]);
        }
        stuck.push((client, proxy));
    }
    let before = world.ticks();
    world.assert_alive().await;
    sleep(Duration::from_millis(500)).await;
    assert!(world.ticks() - before <= 5, "{} ticks in half a second", world.ticks() - before);
    let (client, mut proxy) = stuck.pop().expect("fifty");
    drop(client);
    soon(proxy.read_to_end(&mut Vec::new())).await.expect("all that was sent");
}

#[tokio::test]
async fn urgent_bytes_and_descriptors_end_one_connection_at_most() {
    let world = World::new().await;
    let (client, proxy) = world.pair().await;
    send(client.as_raw_fd(), b"!", MsgFlags::MSG_OOB).expect("sent");
    let _ = send(proxy.as_raw_fd(), b"!", MsgFlags::MSG_OOB);
    let numbers = [0; 10];
    let rights = [ControlMessage::ScmRights(&numbers)];
    sendmsg::<()>(proxy.as_raw_fd(), &[io::IoSlice::new(b"x")], &rights, MsgFlags::empty(), None)
        .expect("sent");
    sleep(Duration::from_millis(50)).await;
    let before = world.ticks();
    sleep(Duration::from_millis(500)).await;
    assert!(world.ticks() - before <= 5, "{} ticks in half a second", world.ticks() - before);
    world.assert_alive().await;
}

#[tokio::test]
async fn bridge_that_is_let_go_is_gone_with_its_connections() {
    let world = World::new().await;
    let (mut client, mut proxy) = world.pair().await;
    let (pid, address) = (world.pid(), world.address);
    let World { bridge, proxy: _proxy, dir: _dir, .. } = world;
    drop(bridge);
    soon(async {
        while nix::sys::signal::kill(pid, None).is_ok() {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    assert_eq!(soon(proxy.read(&mut [0; 8])).await.expect("the end"), 0);
    let error = soon(client.read(&mut [0; 8])).await.expect_err("not all there was");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    TcpStream::connect(address).await.expect_err("nobody listens");
}

/// A connection by which that much was sent, with nobody left at the client's end.
async fn sent_and_left(world: &World, count: usize) -> UnixStream {
    let (client, proxy) = world.pair().await;
    soon(send_pattern(client, count)).await;
    proxy
}

#[tokio::test]
async fn bridge_that_finishes_passes_on_what_was_sent() {
    const SIZE: usize = 1_000_000;
    let world = World::with(|plan| plan.connections = 3, 1024).await;
    let mut first = sent_and_left(&world, SIZE).await;
    let second = sent_and_left(&world, SIZE).await;
    let third = world.pair().await;
    // There is no room for them yet.
    for number in 0..100u8 {
        exchange(&mut world.client().await, &[number]).await;
    }
    drop(third.0);
    world.bridge.finish();
    assert_eq!(soon(receive_pattern(&mut first)).await, SIZE);
    assert_eq!(soon(receive_pattern(second)).await, SIZE);
    for expected in 0..100 {
        let mut said = Vec::new();
        soon(world.accepted().await.read_to_end(&mut said)).await.expect("reads to the end");
        assert_eq!(said, [expected]);
    }
    // Although `first` never ended.
    assert!(matches!(soon(world.bridge.ended()).await, Error::Lost));
    assert!(world.bridge.is_finishing());
}

#[tokio::test]
async fn bridge_without_connections_finishes_at_once() {
    let world = World::new().await;
    let (client, proxy) = world.pair().await;
    drop((client, proxy));
    world.bridge.finish();
    world.bridge.finish();
    assert!(matches!(timeout(Duration::from_secs(1), world.bridge.ended()).await, Ok(Error::Lost)));
}

#[tokio::test]
async fn bridge_that_finishes_waits_for_a_proxy_that_does_not_read() {
    let world = World::new().await;
    let proxy = sent_and_left(&world, 1_000_000).await;
    world.bridge.finish();
    let before = world.ticks();
    assert!(timeout(Duration::from_millis(500), world.bridge.ended()).await.is_err());
    assert!(world.ticks() - before <= 5, "{} ticks in half a second", world.ticks() - before);
    assert_eq!(soon(receive_pattern(proxy)).await, 1_000_000);
    soon(world.bridge.ended()).await;
}

#[tokio::test]
async fn bridge_ends_by_itself_with_the_control_socket() {
    let world = World::new().await;
    let pid = world.pid();
    let control = world.bridge.inside.as_raw_fd();
    nix::sys::socket::shutdown(control, nix::sys::socket::Shutdown::Write).expect("as if closed");
    assert!(matches!(soon(world.bridge.ended()).await, Error::Lost));
    world.bridge.gone().await;
    assert!(nix::sys::signal::kill(pid, None).is_err());
}

#[tokio::test]
async fn bridge_that_was_killed_says_so() {
    let world = World::new().await;
    nix::sys::signal::kill(world.pid(), nix::sys::signal::Signal::SIGKILL).expect("ours");
    assert!(matches!(soon(world.bridge.ended()).await, Error::Lost));
}

#[tokio::test]
async fn socket_that_is_another_by_now_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("proxy.sock");
    let _first = proxy_at(&path, 1);
    let plan = plan(&path);
    fs::rename(&path, dir.path().join("old")).expect("renamed");
    let _second = proxy_at(&path, 1);
    let bridge = Bridge::start(&Images::new(crate::sys::Users::Own).expect("an image"), &Arc::new(plan))
        .expect("a bridge");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let error = soon(bridge.serve(listener.into(), &mut Enforcement::default())).await.expect_err("refused");
    let Error::Step { step, source, .. } = error else { panic!("{error:?}") };
    assert_eq!(step, format!("bind {} at /proxy", fs::canonicalize(&path).expect("there").display()));
    assert_eq!(source.raw_os_error(), Some(libc::ESTALE));
}

#[tokio::test]
async fn bridge_has_no_privilege_and_sees_one_socket() {
    let world = World::new().await;
    let (_client, _proxy) = world.pair().await;
    let status = world.proc("status");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("{name} is not in {status}")).trim().to_owned()
    };
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!((&*field("NoNewPrivs"), &*field("Seccomp"), &*field("Threads")), ("1", "2", "1"));
    assert_eq!(field("NSpid").split_whitespace().last(), Some("1"));
    let limits = world.proc("limits");
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("there");
    assert_eq!(core.split_whitespace().collect::<Vec<_>>()[4..6], ["1", "1"]);
    assert_sees_one_socket(&world);
}

/// The owner of its user namespace can look into it, from outside.
fn assert_sees_one_socket(world: &World) {
    let root = format!("/proc/{}/root", world.pid());
    let names: Vec<_> =
        fs::read_dir(&root).expect("the owner may").map(|entry| entry.expect("there").file_name()).collect();
    assert_eq!(names, ["proxy"]);
    let (inside, outside) =
        (fs::metadata(format!("{root}/proxy")), fs::metadata(world.dir.path().join("proxy.sock")));
    assert_eq!(inside.expect("there").ino(), outside.expect("there").ino());
    let mounts = world.proc("mountinfo");
    assert_eq!(mounts.lines().count(), 2, "{mounts}");
    assert!(mounts.lines().all(|line| line.contains(" ro,nosuid,nodev,noexec")), "{mounts}");
    let devices = world.proc("net/dev");
    assert_eq!(devices.lines().skip(2).count(), 1, "a loopback device, and nothing else: {devices}");
    for namespace in ["user", "pid", "mnt", "ipc", "uts", "cgroup", "net"] {
        let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{namespace}")).expect("there");
        assert_ne!(of(&world.pid().to_string()), of("self"), "{namespace}");
    }
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    assert_eq!(world.files(), FILES_OF_NONE + 2, "the two sockets of the connection");
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
        .args(["bridge::tests", "compile::bridge"])
        .current_dir("/tmp")
        .env("TMPDIR", "/tmp")
        .output()
        .expect("setpriv of util-linux");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.matches(" ... ok").count() > 15, "{said}");
}

/// `cargo test --release --lib bridge::tests::throughput -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, for an idle machine and an optimized build"]
async fn throughput_beside_direct_loopback() {
    const SIZE: usize = 2 << 30;
    let world = World::new().await;
    let mut ratios = Vec::new();
    for _ in 0..7 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().expect("its address");
        let (client, server) = tokio::join!(TcpStream::connect(address), listener.accept());
        let direct = timed(server.expect("accepts").0, client.expect("connects"), SIZE).await;
        let (client, proxy) = world.pair().await;
        let bridged = timed(proxy, client, SIZE).await;
        let (client, proxy) = world.pair().await;
        let upwards = timed(client, proxy, SIZE).await;
        ratios.push((direct / bridged, direct / upwards, direct));
    }
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (down, up, direct) in ratios {
        let rate = 2.0 / direct;
        writeln!(io::stderr(), "down {down:.2} up {up:.2} of direct loopback at {rate:.2} GiB/s")
            .expect("said");
    }
}

/// Seconds from one end to the other.
async fn timed<W, R>(mut from: W, mut to: R, size: usize) -> f64
where
    W: tokio::io::AsyncWrite + Unpin + Send + 'static,
    R: tokio::io::AsyncRead + Unpin + Send + 'static,
{
    let begun = Instant::now();
    let sending = tokio::spawn(async move {
        let block = vec![0; 1 << 18];
        for _ in 0..size >> 18 {
            from.write_all(&block).await.expect("takes it");
        }
        from.shutdown().await.expect("ends");
    });
    let (mut buffer, mut count) = (vec![0; 1 << 18], 0);
    while let Ok(came @ 1..) = to.read(&mut buffer).await {
        count += came;
    }
    assert_eq!(count, size);
    sending.await.expect("no panic");
    begun.elapsed().as_secs_f64()
}
