//! No group is left, whatever ends and however.

use std::{
    env, fs,
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use kennel::{Sandbox, Session};
use nix::{
    fcntl::{Flock, FlockArg},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{Ground, ground, running, with_limits};
use crate::support::{kennel, kennel_path, patient, stderr, succeeds, until, workspace};

/// Variables that give the host below its workspace and its cgroup.
const HOST: &str = "KENNEL_TEST_GROUPS";

#[test]
fn nothing_is_left_of_commands_that_end() {
    let ground = ground!();
    let dir = workspace();
    for (flags, script, status) in [
        (&[][..], "true", Some(0)),
        (&[], "exit 7", Some(7)),
        (&[], "kill -9 $$", Some(137)),
        (&[], "(setsid sleep 60) & exit 0", Some(0)),
        (&["--timeout", "300ms"], "(setsid sleep 60) & sleep 60", Some(124)),
    ] {
        let flags = [&ground.flags()[..], flags].concat();
        let output = kennel(dir.path(), &flags, &["sh", "-c", script]).output().unwrap();
        assert_eq!(crate::support::shown(output.status), status, "{script}: {output:?}");
        ground.is_empty();
    }
    let output = kennel(dir.path(), &ground.flags(), &["/nonexistent"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    ground.is_empty();
}

#[test]
fn nothing_is_left_of_kennel_run_that_is_killed_at_any_moment() {
    let ground = ground!();
    let dir = workspace();
    for round in 0..30u32 {
        let mut child = running(dir.path(), &ground.flags(), "(setsid sleep 60) & sleep 60");
        std::thread::sleep(patient(Duration::from_micros(900)) * round);
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        ground.is_empty();
    }
}

/// The process that removes a group if nobody else does: a child of `pid` outside the group.
fn reaper(pid: u32) -> Option<i32> {
    let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let beside = |child: &&str| {
        let same = |name: &str| {
            let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{name}")).ok();
            // It is not dumpable, so only root may look. An ordinary user recognises it by its system calls.
            of(child).is_none() || of(child) == of(&pid.to_string())
        };
        let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        let levels = status
            .lines()
            .find(|line| line.starts_with("NSpid:"))
            .map(|line| line.split_whitespace().count());
        let own = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let ours =
            own.lines().find(|line| line.starts_with("NSpid:")).map(|line| line.split_whitespace().count());
        same("pid") && levels == ours
    };
    listed.split_whitespace().find(beside).and_then(|child| child.parse().ok())
}

#[test]
fn nothing_is_left_where_the_reaper_is_killed() {
    let ground = ground!();
    let dir = workspace();
    let mut child = running(dir.path(), &ground.flags(), "sleep 1; exit 3");
    let mut found = None;
    until("a reaper", || {
        found = reaper(child.id());
        found.is_some()
    });
    kill(Pid::from_raw(found.unwrap()), Signal::SIGKILL).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3), "the command goes on");
    // Kennel itself removes the group, or the next Kennel.
    let output = kennel(dir.path(), &ground.flags(), &["true"]).output().unwrap();
    assert!(output.status.success());
    ground.is_empty();
}

/// Kennel decides a name before it makes the group, so the group may belong to another program by the time
/// the reaper acts.
#[test]
fn the_reaper_spares_a_group_that_another_program_holds() {
    let ground = ground!();
    let dir = workspace();
    let mut child = running(dir.path(), &ground.flags(), "sleep 60");
    let mut found = None;
    until("a reaper", || {
        found = reaper(child.id());
        found.is_some()
    });
    until("a command", || ground.groups().len() == 2);
    let reaper = Pid::from_raw(found.unwrap());
    kill(reaper, Signal::SIGSTOP).unwrap();
    let group = ground.groups().into_iter().find(|group| group.parent() == Some(&*ground.0)).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let held = fs::File::open(&group).unwrap();
    let mut lock = None;
    until("its lock is let go", || {
        let held = held.try_clone().unwrap();
        lock = Flock::lock(held, FlockArg::LockExclusiveNonblock).ok();
        lock.is_some()
    });
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    // A group with controllers and groups below it takes no process itself.
    let leaf = ground.groups().into_iter().find(|leaf| leaf.parent() == Some(&*group)).unwrap();
    fs::write(leaf.join("cgroup.procs"), other.id().to_string()).unwrap();
    kill(reaper, Signal::SIGCONT).unwrap();
    std::thread::sleep(patient(Duration::from_millis(200)));
    assert!(other.try_wait().unwrap().is_none(), "it was killed");
    assert!(group.is_dir());
    // Its holder is gone now, and the reaper has waited.
    drop((lock, held));
    until("it is killed", || other.try_wait().unwrap().is_some());
    ground.is_empty();
}

/// A lock needs only a directory that can be read, and a locked group counts as alive.
#[test]
fn nobody_else_can_open_a_group() {
    let ground = ground!();
    let dir = workspace();
    let mut child = running(dir.path(), &ground.flags(), "sleep 60");
    until("a group", || !ground.groups().is_empty());
    for group in ground.groups() {
        let mode = fs::metadata(&group).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, 0o700, "{}", group.display());
    }
    child.kill().unwrap();
    child.wait().unwrap();
    ground.is_empty();
}

#[test]
fn kennel_run_returns_when_its_groups_are_gone() {
    let ground = ground!();
    let dir = workspace();
    for (round, script) in
        ["true", "exit 3", "(setsid sleep 60) & exit 0"].iter().cycle().take(12).enumerate()
    {
        let output = kennel(dir.path(), &ground.flags(), &["sh", "-c", script]).output().unwrap();
        assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
        assert!(ground.groups().is_empty(), "{round}: {:?}", ground.groups());
    }
    let output = kennel(dir.path(), &ground.flags(), &["/nonexistent"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    assert!(ground.groups().is_empty(), "{:?}", ground.groups());
}

#[test]
fn the_next_kennel_sweeps_up_after_both_were_killed() {
    let ground = ground!();
    let dir = workspace();
    for round in 0..4u32 {
        let mut child = running(dir.path(), &ground.flags(), "sleep 60");
        let mut found = None;
        until("a reaper", || {
            found = reaper(child.id());
            found.is_some()
        });
        std::thread::sleep(patient(Duration::from_millis(3)) * round);
        kill(Pid::from_raw(found.unwrap()), Signal::SIGKILL).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        // The next Kennel kills processes that still live, however often that takes.
        until("it is swept up", || {
            let output = kennel(dir.path(), &ground.flags(), &["true"]).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            std::thread::sleep(Duration::from_millis(20));
            ground.groups().is_empty()
        });
    }
}

#[test]
fn a_living_group_is_not_swept() {
    let ground = ground!();
    let dir = workspace();
    let mut child = running(dir.path(), &ground.flags(), "sleep 1; exit 5");
    until("its group", || !ground.groups().is_empty());
    for _ in 0..5 {
        let output = kennel(dir.path(), &ground.flags(), &["true"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(child.wait().unwrap().code(), Some(5), "it was let live");
    ground.is_empty();
}

/// Not a test: a program that keeps sessions and is killed.
#[test]
fn host() {
    let Some(place) = env::var_os(HOST) else { return };
    let place = place.into_string().unwrap();
    let (dir, ground) = place.split_once('\n').unwrap();
    let limits = kennel::Limits { cgroup: kennel::Cgroup::At(ground.into()), ..kennel::Limits::default() };
    let policy = with_limits(Path::new(dir), limits);
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
        let (one, other) =
            (Session::prepare(&policy).await.unwrap(), Session::prepare(&policy).await.unwrap());
        let sandbox = Sandbox::new(&policy).unwrap();
        let _alone = sandbox.command("sleep").arg("60").spawn().await.unwrap();
        let _running = one.command("sleep").arg("60").spawn().await.unwrap();
        loop {
            let _ = other.command("true").status().await;
        }
    });
}

#[test]
fn nothing_is_left_of_a_program_that_is_killed() {
    let ground = ground!();
    let dir = workspace();
    for round in 0..8u32 {
        let mut host = Command::new("/proc/self/exe")
            .args(["--exact", "launch::cgroups::left::host", "--nocapture"])
            .env(HOST, format!("{}\n{}", dir.path().display(), ground.path()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("a group", || !ground.groups().is_empty());
        std::thread::sleep(patient(Duration::from_millis(4)) * round);
        host.kill().unwrap();
        host.wait().unwrap();
        ground.is_empty();
    }
}

#[tokio::test]
async fn nothing_is_left_of_sessions_that_are_dropped_or_shut_down() {
    let ground = ground!();
    let dir = workspace();
    let policy = with_limits(dir.path(), ground.limits());
    for round in 0..6 {
        let session = Session::prepare(&policy).await.unwrap();
        assert!(session.command("true").status().await.unwrap().status.success());
        let running = session.command("sleep").arg("60").spawn().await.unwrap();
        match round % 3 {
            0 => drop(running),
            1 => std::mem::drop((session.clone(), running)),
            _ => {
                session.shutdown().await;
                assert!(ground.groups().is_empty(), "shutdown waits: {:?}", ground.groups());
                drop(running);
            }
        }
        drop(session);
        settle(&ground).await;
    }
}

#[tokio::test]
async fn futures_that_are_dropped_half_way_leave_no_group() {
    let ground = ground!();
    let dir = workspace();
    let policy = with_limits(dir.path(), ground.limits());
    for step in 0..20u64 {
        let within = patient(Duration::from_micros(500)) * u32::try_from(step).unwrap();
        let _ = tokio::time::timeout(within, async {
            let session = Session::prepare(&policy).await?;
            session.command("sleep").arg("60").status().await
        })
        .await;
        let sandbox = Sandbox::new(&policy).unwrap();
        let _ = tokio::time::timeout(within, sandbox.command("sleep").arg("60").status()).await;
        drop(sandbox);
        settle(&ground).await;
    }
}

#[tokio::test]
async fn leaves_are_removed_while_a_session_goes_on() {
    let ground = ground!();
    let dir = workspace();
    let session = Session::prepare(&with_limits(dir.path(), ground.limits())).await.unwrap();
    for _ in 0..40 {
        assert!(session.command("true").status().await.unwrap().status.success());
    }
    // The groups of the session, of its zygote, of two waiting workers, and of the last commands. Those go
    // with the next command.
    let groups = ground.groups();
    assert!(groups.len() <= 9, "{groups:?}");
    session.shutdown().await;
    assert!(ground.groups().is_empty());
}

#[test]
fn nothing_is_left_of_a_start_that_lacks_descriptors() {
    let ground = ground!();
    let dir = workspace();
    for most in 4..40 {
        let script = format!(
            "ulimit -n {most}; exec {} run --cgroup {} -- true",
            kennel_path().display(),
            ground.path()
        );
        let output = Command::new("sh").args(["-c", &script]).current_dir(dir.path()).output().unwrap();
        assert!(matches!(output.status.code(), Some(0 | 125..=127)), "{most}: {output:?}");
        ground.is_empty();
    }
}

#[test]
fn a_host_without_more_groups_is_reported_and_keeps_none() {
    let ground = ground!();
    let dir = workspace();
    for most in ["0", "1"] {
        fs::write(ground.0.join("cgroup.max.descendants"), most).unwrap();
        let output = kennel(dir.path(), &ground.flags(), &["true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{most}: {output:?}");
        let said = stderr(&output);
        assert!(said.contains("kennel: make a cgroup") && said.contains("cgroup.max.descendants"), "{said}");
        ground.is_empty();
    }
    fs::write(ground.0.join("cgroup.max.descendants"), "2").unwrap();
    succeeds(dir.path(), &ground.flags(), "true");
}

async fn settle(ground: &Ground) {
    let start = std::time::Instant::now();
    while !ground.groups().is_empty() {
        assert!(start.elapsed() < patient(Duration::from_secs(10)), "left: {:?}", ground.groups());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
