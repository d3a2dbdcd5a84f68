//! The confinement of a bridge.

use std::os::unix::fs::MetadataExt;

use super::*;

#[tokio::test]
async fn socket_that_is_another_by_now_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("proxy.sock");
    let _first = proxy_at(&path, 1);
    let plan = plan(&path);
    fs::rename(&path, dir.path().join("old")).expect("renamed");
    let _second = proxy_at(&path, 1);
    let bridge =
        Bridge::start(&Images::new(SpawnOptions::of(Users::Own)).expect("an image"), &Arc::new(plan))
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

/// The owner of a user namespace can look into it from outside.
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
