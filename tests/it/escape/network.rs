//! No network, and the host's network.

use std::{
    net::{SocketAddr, TcpListener, UdpSocket},
    process::Command,
    time::Duration,
};

use kennel::{Mount, NetworkMode, Policy, Profile, Session};

use super::{check, landlock_abi, lines};
use crate::support::{address_of_host, attempt, payload_path, require, runs, shell, stdout, workspace};

#[test]
fn a_listener_of_the_host_is_not_reached() {
    let ws = workspace();
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let local = format!("127.0.0.1:{port}");
    assert_eq!(attempt(ws.path(), &[], "connect", &[&local]), "ECONNREFUSED");
    assert_eq!(attempt(ws.path(), &[], "connect", &[&format!("127.1.2.3:{port}")]), "ECONNREFUSED");
    assert_eq!(attempt(ws.path(), &[], "connect", &[&format!("0.0.0.0:{port}")]), "ECONNREFUSED");
    assert_eq!(attempt(ws.path(), &[], "connect", &[&format!("[::ffff:127.0.0.1]:{port}")]), "ECONNREFUSED");
    if let Some(ip) = address_of_host() {
        assert_eq!(
            attempt(ws.path(), &[], "connect", &[&SocketAddr::new(ip, port).to_string()]),
            "ENETUNREACH"
        );
    }
    assert!(listener.accept().is_err(), "nobody came");
    let outside = Command::new(payload_path()).args(["connect", &local]).output().unwrap();
    assert_eq!(lines(&outside), ["ok"]);
    assert_eq!(attempt(ws.path(), &["--net", "host"], "connect", &[&local]), "ok");
}

#[test]
fn nothing_beyond_the_machine_is_reached() {
    let ws = workspace();
    let addresses = [
        "169.254.169.254:80",
        "10.0.0.1:80",
        "172.16.0.1:80",
        "192.168.0.1:80",
        "1.1.1.1:443",
        "8.8.8.8:53",
        "255.255.255.255:80",
        "[2606:4700:4700::1111]:443",
        "[fd00:ec2::254]:80",
    ];
    for profile in ["repo-write", "no-network", "read-only", "ci-only"].into_iter().filter(|it| runs(it)) {
        let said = attempt(ws.path(), &["--profile", profile, "--net", "none"], "connect", &addresses);
        assert_eq!(said, ["ENETUNREACH"; 9].join("\n"), "{profile}");
    }
    let addresses = ["8.8.8.8:53", "169.254.169.254:80", "224.0.0.251:5353", "[ff02::fb]:5353"];
    assert_eq!(attempt(ws.path(), &[], "send", &addresses), ["ENETUNREACH"; 4].join("\n"));
}

#[test]
fn a_datagram_does_not_reach_the_host() {
    let ws = workspace();
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let to = format!("127.0.0.1:{}", socket.local_addr().unwrap().port());
    assert_eq!(attempt(ws.path(), &[], "send", &[&to]), "ok");
    assert!(socket.recv(&mut [0; 8]).is_err(), "it arrived");
    assert_eq!(attempt(ws.path(), &["--net", "host"], "send", &[&to]), "ok");
    assert_eq!(socket.recv(&mut [0; 8]).unwrap(), 3);
}

#[test]
fn the_own_loopback_works() {
    let ws = workspace();
    assert_eq!(attempt(ws.path(), &[], "loopback", &[]), "ok\nok");
}

#[test]
fn there_is_only_the_loopback_device() {
    let ws = workspace();
    let devices = stdout(&shell(ws.path(), &[], "tail -n +3 /proc/net/dev | cut -d: -f1"));
    assert_eq!(devices.split_whitespace().collect::<Vec<_>>(), ["lo"]);
    check(
        ws.path(),
        &[],
        &[
            ("socket 2 2 0", "ok"),
            // SIOCSIFADDR, SIOCSIFFLAGS on lo, SIOCADDRT: the command may not set up the namespace.
            ("ioctl $ 0x8916 x:6c6f0000000000000000000000000000020000000a000001", "EPERM"),
            ("ioctl $ 0x8914 x:6c6f00000000000000000000000000000000", "EPERM"),
            ("ioctl $ 0x890b buf", "EPERM"),
            ("socket 2 2 1", "EACCES"), // Ping sockets are for the groups that ping_group_range names.
        ],
    );
}

#[test]
fn with_the_hosts_network_signals_and_abstract_sockets_stay_inside() {
    require!(landlock_abi() >= 6, "Landlock scopes");
    let ws = workspace();
    // Abstract sockets work between processes inside.
    let script = "import socket,os\ns=socket.socket(socket.AF_UNIX)\ns.bind('\\0kennel-own')\ns.listen()\n\
                  c=socket.socket(socket.AF_UNIX)\nc.connect('\\0kennel-own')\nprint('ok')";
    require!(crate::support::has("python3"), "python3");
    let output = crate::support::run(ws.path(), &["--net", "host"], &["python3", "-c", script]);
    assert_eq!(stdout(&output), "ok", "{output:?}");
    let own = std::process::id();
    check(ws.path(), &["--net", "host"], &[(&format!("kill {own} 0"), "ESRCH"), ("kill 1 15", "EPERM")]);
}

#[test]
fn with_the_hosts_network_nothing_is_configured() {
    let ws = workspace();
    check(
        ws.path(),
        &["--net", "host"],
        &[
            ("socket 2 2 0", "ok"),
            ("ioctl $ 0x8914 x:6c6f00000000000000000000000000000000", "EPERM"),
            ("ioctl $ 0x890b buf", "EPERM"),
            ("socket 16 3 16", "EAFNOSUPPORT"),
            ("open s:/proc/sys/net/ipv4/ip_forward 0", "ok"),
            ("setns $ 0", "EPERM"),
        ],
    );
}

/// A listener on the host's loopback that counts connections.
fn listener() -> (TcpListener, u16, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address.port(), address.to_string())
}

/// How many connections came.
fn came(listener: &TcpListener) -> usize {
    std::iter::from_fn(|| listener.accept().ok()).count()
}

/// Multipath TCP, then TCP Fast Open three times.
const DETOURS: [&str; 4] = ["EPROTONOSUPPORT", "EOPNOTSUPP", "EOPNOTSUPP", "EOPNOTSUPP"];

/// Whether all detours work on the host itself.
fn host_has_detours() -> bool {
    let (listener, _, address) = listener();
    let outside = Command::new(payload_path()).args(["detours", &address]).output().unwrap();
    lines(&outside) == ["ok"; 4] && came(&listener) == 4
}

#[test]
fn no_detour_leads_to_a_port_that_is_not_allowed() {
    require!(landlock_abi() >= 4, "Landlock rules for TCP ports");
    require!(host_has_detours(), "Multipath TCP and TCP Fast Open");
    let ws = workspace();
    let ((allowed, port, to_allowed), (other, _, to_other)) = (listener(), listener());
    let rule = format!("*:{port}");
    let flags = ["--net", "host", "--allow", &rule];
    assert_eq!(attempt(ws.path(), &flags, "connect", &[&to_allowed, &to_other]), "ok\nEACCES");
    assert_eq!(came(&allowed), 1);
    // Nor to an allowed port: programs then connect by plain TCP.
    let expected = [DETOURS, DETOURS].concat().join("\n");
    assert_eq!(attempt(ws.path(), &flags, "detours", &[&to_other, &to_allowed]), expected);
    assert_eq!((came(&other), came(&allowed)), (0, 0));
}

#[test]
fn no_detour_leads_out_of_a_session() {
    require!(landlock_abi() >= 4, "Landlock rules for TCP ports");
    require!(host_has_detours(), "Multipath TCP and TCP Fast Open");
    let ws = workspace();
    let ((allowed, port, to_allowed), (other, _, to_other)) = (listener(), listener());
    let policy = Policy::profile(Profile::RepoWrite, ws.path())
        .network_mode(NetworkMode::Host)
        .allow(format!("*:{port}"))
        .mount(Mount::ReadOnly { source: payload_path(), target: Some("/payload".into()) });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let session = Session::prepare(&policy).await.unwrap();
        for (words, expected) in [
            (["connect", &to_allowed, &to_other], &["ok", "EACCES"][..]),
            (["detours", &to_other, &to_allowed], &[DETOURS, DETOURS].concat()),
        ] {
            let output = session.command("/payload").args(words).output().await.unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout).lines().collect::<Vec<_>>(), expected);
        }
        session.shutdown().await;
    });
    assert_eq!((came(&other), came(&allowed)), (0, 1));
}
