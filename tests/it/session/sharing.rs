//! The commands of a session share the workspace and other grants, the loopback, and private directories if
//! the policy says so.

use std::fs;

use kennel::{Session, TmpLife};

use super::{attempt, check, fails, ready, said, shell};
use crate::support::{World, policy_at, workspace};

/// A listening TCP server as system calls. Its address is 127.0.0.1:`port`.
pub fn server(port: u16) -> String {
    let address = format!("0200{port:04x}7f0000010000000000000000");
    // pause(2), which has no name there.
    format!("call socket 2 1 0 + bind $ x:{address} 16 + listen $ 5 + {}", libc::SYS_pause)
}

#[tokio::test]
async fn the_workspace_is_shared_by_all_commands() {
    let world = World::new();
    let session = world.session().await;
    let script = "echo ready; until [ -e there ]; do sleep 0.01; done; echo seen > answer";
    let mut waiting = ready(session.command("sh").args(["-c", script]), 1).await;
    shell(&session, "echo x > there").await;
    assert!(super::in_time(waiting.wait()).await.unwrap().status.success());
    assert_eq!(shell(&session, "cat there answer").await, "x\nseen\n");
    assert_eq!(fs::read_to_string(world.at("answer")).unwrap(), "seen\n");
    fs::write(world.at("from outside"), "new\n").unwrap();
    assert_eq!(shell(&session, "cat 'from outside'").await, "new\n", "also to workers that waited already");
}

#[tokio::test]
async fn loopback_is_shared_by_all_commands() {
    let world = World::new();
    let session = world.probing().await;
    assert_eq!(said(&mut attempt(&session, "connect 127.0.0.1:7001")).await, "ECONNREFUSED\n");
    let server = ready(&mut attempt(&session, &server(7001)), 3).await;
    for _ in 0..3 {
        assert_eq!(said(&mut attempt(&session, "connect 127.0.0.1:7001")).await, "ok\n");
    }
    drop(server);
    let mut client = attempt(&session, "connect 127.0.0.1:7001");
    for _ in 0..100 {
        if said(&mut client).await == "ECONNREFUSED\n" {
            return;
        }
    }
    panic!("the server outlives its command");
}

#[tokio::test]
async fn loopback_of_two_sessions_is_not_the_same() {
    let world = World::new();
    let (one, other) = (world.probing().await, world.probing().await);
    let _server = ready(&mut attempt(&one, &server(7002)), 3).await;
    assert_eq!(said(&mut attempt(&one, "connect 127.0.0.1:7002")).await, "ok\n");
    assert_eq!(said(&mut attempt(&other, "connect 127.0.0.1:7002")).await, "ECONNREFUSED\n");
    let outside = std::net::TcpStream::connect("127.0.0.1:7002").unwrap_err();
    assert_eq!(outside.kind(), std::io::ErrorKind::ConnectionRefused);
}

const LEAVE: &str = "for d in /tmp /var/tmp /dev/shm ~ /data; do echo x > $d/left || exit; done";
const LOOK: &str = "for d in /tmp /var/tmp /dev/shm ~ /data; do [ -e $d/left ] && echo $d; done; true";

#[tokio::test]
async fn private_places_are_each_command_s_own() {
    let world = World::new();
    let session = Session::prepare(&world.policy().tmpfs("/data", None)).await.unwrap();
    for _ in 0..4 {
        shell(&session, LEAVE).await;
        assert_eq!(shell(&session, LOOK).await, "");
    }
    let script = format!("{LEAVE}; echo ready; sleep 60");
    let _holding = ready(session.command("sh").args(["-c", &script]), 1).await;
    assert_eq!(shell(&session, LOOK).await, "", "nor while the other one runs");
}

#[tokio::test]
async fn private_places_are_shared_where_the_policy_says_so() {
    let world = World::new();
    let policy = world.policy().tmpfs("/data", None).tmp(TmpLife::Session);
    let session = Session::prepare(&policy).await.unwrap();
    shell(&session, LEAVE).await;
    let home = std::env::var("HOME").unwrap();
    for _ in 0..4 {
        let seen = shell(&session, LOOK).await;
        assert_eq!(seen, format!("/tmp\n/var/tmp\n{home}\n/data\n"), "all but shared memory");
    }
    let other = Session::prepare(&policy).await.unwrap();
    assert_eq!(shell(&other, LOOK).await, "", "another session has its own");
    drop(session);
    let next = Session::prepare(&policy).await.unwrap();
    assert_eq!(shell(&next, LOOK).await, "");
}

#[tokio::test]
async fn a_shared_place_is_there_while_both_commands_run() {
    let world = World::new();
    let session = Session::prepare(&world.policy().tmp(TmpLife::Session)).await.unwrap();
    let script = "mkfifo /tmp/pipe; echo ready; cat /tmp/pipe > got";
    let mut reader = ready(session.command("sh").args(["-c", script]), 1).await;
    shell(&session, "echo through > /tmp/pipe").await;
    assert!(super::in_time(reader.wait()).await.unwrap().status.success());
    assert_eq!(fs::read_to_string(world.at("got")).unwrap(), "through\n");
}

#[tokio::test]
async fn private_places_have_the_modes_of_a_one_shot() {
    let world = World::new();
    for life in [TmpLife::Exec, TmpLife::Session] {
        let session = Session::prepare(&world.policy().tmp(life)).await.unwrap();
        for _ in 0..2 {
            let modes = shell(&session, "stat -c %a /tmp /var/tmp /dev/shm ~").await;
            assert_eq!(modes, "1777\n1777\n1777\n700\n", "{life}");
            // A change of a command to one of its own directories stays with it.
            if life == TmpLife::Exec {
                shell(&session, "chmod 0 ~ /tmp /dev/shm").await;
            }
        }
    }
}

#[tokio::test]
async fn size_of_private_places_holds_for_each_command() {
    let world = World::new();
    let mut policy = world.with_payload();
    policy.limits.tmp_size = Some(kennel::Size::from_bytes(1 << 20));
    for life in [TmpLife::Exec, TmpLife::Session] {
        let session = Session::prepare(&policy.clone().tmp(life)).await.unwrap();
        for place in ["/tmp", "/dev/shm", "/var/tmp"] {
            let script = format!("head -c 2M /dev/zero > {place}/large");
            let said = fails(&mut session.command("sh"), &script).await;
            assert!(said.ends_with("No space left on device"), "{life} {place}: {said}");
            shell(
                &session,
                &format!("rm -f {place}/large; head -c 512K /dev/zero > {place}/x; rm {place}/x"),
            )
            .await;
        }
        shell(&session, "head -c 2M /dev/zero > large; rm large").await;
    }
    let session = Session::prepare(&policy).await.unwrap();
    let full = "head -c 900K /dev/zero > /tmp/x; echo ready; sleep 60";
    let _full = ready(session.command("sh").args(["-c", full]), 1).await;
    shell(&session, "head -c 900K /dev/zero > /tmp/x").await;
}

#[tokio::test]
async fn the_host_name_is_shared_and_cannot_be_changed() {
    let world = World::new();
    let session = Session::prepare(&world.with_payload().hostname("here")).await.unwrap();
    check(&session, &[("sethostname s:other 5", "EPERM"), ("setdomainname s:other 5", "EPERM")]).await;
    assert_eq!(shell(&session, "uname -n; cat /etc/hostname").await, "here\nhere\n");
}

#[tokio::test]
async fn the_shared_loopback_cannot_be_taken_down() {
    let world = World::new();
    let session = world.probing().await;
    // SIOCSIFFLAGS of `lo` without IFF_UP; SIOCSIFADDR.
    let down = format!("ioctl $ 0x8914 x:6c6f{}", "00".repeat(38));
    let address = format!("ioctl $ 0x8916 x:6c6f{}0200{}", "00".repeat(14), "00".repeat(22));
    check(&session, &[("socket 2 2 0", "ok"), (&down, "EPERM"), (&address, "EPERM")]).await;
    assert_eq!(said(&mut attempt(&session, "loopback")).await.lines().next(), Some("ok"));
}

/// A command that closes a private directory must not close it, or the workspace in it, for later commands.
#[tokio::test]
async fn a_command_that_closes_a_private_place_closes_it_for_no_other() {
    let dir = workspace();
    let inner = dir.path().join("deep/down");
    fs::create_dir_all(&inner).unwrap();
    let policy = policy_at(&inner).tmp(TmpLife::Session);
    let session = Session::prepare(&policy).await.unwrap();
    for closed in ["/tmp", "\"$HOME\"", &format!("{} /tmp", dir.path().display())] {
        shell(&session, &format!("cd /; chmod 000 {closed}")).await;
        // Nor for workers that waited already.
        for _ in 0..4 {
            assert_eq!(shell(&session, "pwd; stat -c %a /tmp").await, format!("{}\n1777\n", inner.display()));
        }
    }
}

/// Workers get ready while it runs, and their views lead through what it closes again and again.
#[tokio::test]
async fn a_command_that_keeps_a_private_place_closed_stops_no_other() {
    let dir = workspace();
    let inner = dir.path().join("deep/down");
    fs::create_dir_all(&inner).unwrap();
    let session = Session::prepare(&policy_at(&inner).tmp(TmpLife::Session)).await.unwrap();
    let places = format!("{} \"$HOME\" /tmp", dir.path().display());
    let script = format!("cd /; echo ready; while :; do chmod 000 {places} 2>/dev/null; done");
    let closing = ready(session.command("sh").args(["-c", &script]), 1).await;
    for round in 0..40 {
        let output = super::in_time(session.command("true").current_dir("/").output()).await;
        assert!(output.as_ref().is_ok_and(|output| output.outcome.status.success()), "{round}: {output:?}");
    }
    drop(closing);
    assert_eq!(shell(&session, "pwd").await, format!("{}\n", inner.display()));
}
