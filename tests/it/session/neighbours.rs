//! Commands that run side by side cannot see, reach or trace each other.

use std::{os::unix::fs::MetadataExt, time::Duration};

use kennel::{Child, Session};
use tokio::time::timeout;

use super::{attempt, check, in_time, ready, said, shell};
use crate::support::World;

/// A command that runs until it is killed.
async fn neighbour(session: &Session) -> Child {
    ready(&mut attempt(session, "stubborn"), 1).await
}

async fn lives(child: &mut Child) -> bool {
    timeout(Duration::from_millis(50), child.wait()).await.is_err()
}

#[tokio::test]
async fn a_command_sees_its_own_processes_alone() {
    let world = World::new();
    let session = world.probing().await;
    let mut neighbours = Vec::new();
    for _ in 0..3 {
        neighbours.push(neighbour(&session).await);
    }
    let list = said(&mut attempt(&session, "list /proc")).await;
    let processes: Vec<&str> =
        list.trim().trim_matches(['[', ']']).split(' ').filter(|name| name.parse::<u32>().is_ok()).collect();
    assert_eq!(processes, ["1", "2"]);
    assert_eq!(shell(&session, "set -- /proc/[0-9]*; echo $#; echo $$ $PPID").await, "2\n2 1\n");
    for child in &mut neighbours {
        assert!(lives(child).await);
    }
}

#[tokio::test]
async fn a_command_cannot_signal_or_trace_another() {
    let world = World::new();
    let session = world.probing().await;
    let (mut one, mut other) = (neighbour(&session).await, neighbour(&session).await);
    for pid in [3, 4, 10, 100, std::process::id()] {
        let calls = [
            format!("kill {pid} 9"),
            format!("tgkill {pid} {pid} 9"),
            format!("ptrace 16 {pid} 0 0"),
            format!("process_vm_readv {pid} p:0x10000,8 1 p:0x10000,8 1 0"),
            format!("process_vm_writev {pid} p:0x10000,8 1 p:0x10000,8 1 0"),
            format!("pidfd_open {pid} 0"),
            format!("prlimit64 {pid} 7 0 buf"),
        ];
        let expected: Vec<(&str, &str)> = calls.iter().map(|call| (&**call, "ESRCH")).collect();
        check(&session, &expected).await;
    }
    assert_eq!(said(&mut attempt(&session, "kill-everyone")).await, "ok\n");
    assert!(lives(&mut one).await && lives(&mut other).await);
}

#[tokio::test]
async fn a_command_finds_nothing_of_another_below_proc() {
    let world = World::new();
    let session = world.probing().await;
    // A file of the neighbour's own /tmp, which it keeps open.
    let script = "echo private > /tmp/secret; exec 5</tmp/secret; stat -c '%d %i' /tmp/secret > id; echo ready; sleep 60";
    let _neighbour = ready(session.command("sh").args(["-c", script]), 1).await;
    let id = std::fs::read_to_string(world.at("id")).unwrap();
    assert_eq!(said(&mut attempt(&session, &format!("hunt {id}"))).await, "nowhere\n");
    // The reverse: the search finds a file that exists.
    let own = std::fs::metadata(world.at("id")).unwrap().ino();
    let device = shell(&session, "stat -c %d id").await;
    let found = said(&mut attempt(&session, &format!("hunt {} {own}", device.trim()))).await;
    assert!(found.starts_with("/tmp/") && found.ends_with("/id\n"), "{found}");
}

#[tokio::test]
async fn a_terminal_of_another_command_is_not_there() {
    let world = World::new();
    let session = world.probing().await;
    let mut command = session.command("sleep");
    let with_terminal = in_time(command.arg("60").terminal(24, 80).spawn()).await.unwrap();
    assert!(with_terminal.terminal.is_some());
    assert_eq!(said(&mut attempt(&session, "list /dev/pts")).await, "[ptmx]\n");
    check(&session, &[("open s:/dev/pts/0 2", "ENOENT"), ("open s:/dev/tty 2", "ENXIO")]).await;
    // A command with a terminal has another one of the same name.
    let mut other = session.command("sh");
    let mut child =
        in_time(other.args(["-c", "echo over >/dev/pts/0"]).terminal(24, 80).spawn()).await.unwrap();
    assert!(in_time(child.wait()).await.unwrap().status.success());
    let mut terminal = with_terminal.terminal.clone().unwrap();
    let mut bytes = [0; 16];
    let read = tokio::io::AsyncReadExt::read(&mut terminal, &mut bytes);
    assert!(timeout(Duration::from_millis(100), read).await.is_err(), "nothing came: {bytes:?}");
}

#[tokio::test]
async fn mounts_and_places_of_another_command_are_not_reached_through_a_directory_entered_before() {
    let world = World::new();
    let session = world.probing().await;
    let holding = "echo x > /tmp/mine; mkdir /dev/shm/dir; cd /dev/shm/dir; echo ready; sleep 60";
    let _neighbour = ready(session.command("sh").args(["-c", holding]), 1).await;
    check(
        &session,
        &[
            ("open s:/tmp/mine 0", "ENOENT"),
            ("open s:/dev/shm/dir 0", "ENOENT"),
            ("open s:/proc/3/cwd 0", "ENOENT"),
            ("open s:/proc/3/root/tmp/mine 0", "ENOENT"),
            ("open s:/proc/1/root/tmp/mine 0", "EACCES"),
            ("open s:/proc/1/cwd 0", "EACCES"),
        ],
    )
    .await;
}

#[tokio::test]
async fn the_end_of_one_command_does_not_touch_another() {
    let world = World::new();
    let session = world.probing().await;
    let mut one = neighbour(&session).await;
    for script in ["exit 1", "kill -9 $$", "kill -9 -1; exit 0", "sleep 60 & exit 0"] {
        in_time(session.command("sh").args(["-c", script]).output()).await.unwrap();
        assert!(lives(&mut one).await, "{script}");
    }
    assert_eq!(in_time(one.kill()).await.unwrap().exit_code(), 137);
}
