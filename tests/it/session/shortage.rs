//! The embedding program runs out of descriptors or processes: errors, no hang, and afterwards it goes on.

use std::{collections::HashSet, fs, process::Command};

use kennel::{Error, Session};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::{
    alone, eventually, in_time, ready, shell,
    tree::{children, zygote},
};
use crate::support::{World, has, only_as_user, require};

/// Whether the call succeeded. An error must be about `errno`.
fn worked<T: std::fmt::Debug>(result: Result<T, Error>, errno: i32) -> bool {
    let Err(error) = result else { return true };
    let mut cause: Option<&dyn std::error::Error> = Some(&error);
    while let Some(error) = cause {
        if error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error) == Some(errno) {
            return false;
        }
        cause = error.source();
    }
    panic!("not about {}: {}", std::io::Error::from_raw_os_error(errno), error.chain());
}

/// Lets this process open `more` descriptors, even if there are gaps between its numbers.
fn room_for(more: usize) -> u64 {
    let (before, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let entries = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = entries.filter_map(|entry| Some((entry.file_name(), fs::read_link(entry.path()).ok()?)));
    let open: HashSet<u64> = links
        .filter(|(_, to)| !to.starts_with("/proc"))
        .filter_map(|(name, _)| name.to_str()?.parse().ok())
        .collect();
    // All numbers below the next gap: `more` of them are free.
    let limit = (0..).filter(|number| !open.contains(number)).nth(more).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, limit, hard).unwrap();
    before
}

fn restore(soft: u64) {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
}

#[test]
fn commands_without_descriptors_are_errors_and_the_session_goes_on() {
    alone("shortage::commands_without_descriptors_are_errors_and_the_session_goes_on", async || {
        let world = World::new();
        for ready_workers in [0, 2] {
            let policy = world.policy();
            let session = Session::builder(&policy).ready_workers(ready_workers).prepare().await.unwrap();
            let mut ran = Vec::new();
            for more in 0..24 {
                eventually("ready workers", || session.stats().ready == ready_workers).await;
                let before = room_for(more);
                let result = in_time(session.command("true").output()).await;
                ran.push(worked(result, libc::EMFILE));
                let result = in_time(session.command("true").arg("x".repeat(100_000)).output()).await;
                worked(result, libc::EMFILE);
                restore(before);
                // An error from before may reach the next command.
                shell(&session, "true").await;
            }
            assert!(!ran[0] && ran[23], "{ran:?}");
            assert_eq!(session.stats().running, 0);
        }
    });
}

/// A terminal that could not be opened is an error, and not silently missing.
#[test]
fn terminals_without_descriptors_are_errors() {
    alone("shortage::terminals_without_descriptors_are_errors", async || {
        let world = World::new();
        let session = world.session().await;
        let mut ran = Vec::new();
        for more in 0..24 {
            shell(&session, "true").await;
            let mut command = session.command("sleep");
            command.arg("60").terminal(24, 80);
            let before = room_for(more);
            let result = in_time(command.spawn()).await;
            restore(before);
            assert!(!result.as_ref().is_ok_and(|child| child.terminal.is_none()), "{more}");
            ran.push(worked(result, libc::EMFILE));
        }
        assert!(!ran[0] && ran[23], "{ran:?}");
        assert_eq!(session.stats().running, 0);
    });
}

#[test]
fn sessions_without_descriptors_are_errors_that_leave_nothing() {
    alone("shortage::sessions_without_descriptors_are_errors_that_leave_nothing", async || {
        let world = World::new();
        let policy = world.policy();
        shell(&world.session().await, "true").await;
        eventually("nothing is left", || children(std::process::id()).is_empty()).await;
        let mut ran = Vec::new();
        for more in 0..32 {
            let before = room_for(more);
            let prepared = in_time(Session::prepare(&policy)).await;
            // If it could be prepared, it is a session.
            let result = match prepared {
                Ok(session) => in_time(session.command("true").output())
                    .await
                    .map(|out| assert!(out.outcome.status.success())),
                Err(error) => Err(error),
            };
            restore(before);
            ran.push(worked(result, libc::EMFILE));
            eventually("nothing is left", || children(std::process::id()).is_empty()).await;
        }
        assert!(!ran[0] && ran[31], "{ran:?}");
    });
}

/// A request for numbers takes nothing away from the commands that follow.
#[test]
fn numbers_without_descriptors_do_no_harm() {
    alone("shortage::numbers_without_descriptors_do_no_harm", async || {
        let world = World::new();
        let session = Session::builder(&world.policy()).ready_workers(3).prepare().await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        for _ in 0..3 {
            let before = room_for(0);
            let _ = session.stats();
            restore(before);
            for _ in 0..4 {
                shell(&session, "true").await;
            }
        }
    });
}

#[test]
fn many_commands_beyond_the_descriptors_are_errors_and_not_hangs() {
    alone("shortage::many_commands_beyond_the_descriptors_are_errors_and_not_hangs", async || {
        let world = World::new();
        let session = world.session().await;
        shell(&session, "true").await;
        let before = room_for(60);
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let mut command = session.command("true");
            all.spawn(async move { command.output().await });
        }
        let mut ran = 0;
        while let Some(ended) = in_time(all.join_next()).await {
            ran += usize::from(worked(ended.unwrap(), libc::EMFILE));
        }
        restore(before);
        assert!(ran > 0, "some had room");
        for _ in 0..5 {
            shell(&session, "true").await;
        }
        assert_eq!(session.stats().running, 0);
    });
}

/// A mount that must be restored is not forgotten because there was no descriptor for it once.
#[test]
fn mounts_that_could_not_be_restored_without_descriptors_are_restored_later() {
    alone("shortage::mounts_that_could_not_be_restored_without_descriptors_are_restored_later", async || {
        let world = World::new();
        let config = world.at(".git/config");
        fs::create_dir(world.at(".git")).unwrap();
        fs::write(&config, "[core]\n").unwrap();
        let session = world.session().await;
        let running = ready(session.command("sh").args(["-c", "echo ready; sleep 60"]), 1).await;
        let mut ran = Vec::new();
        for more in 0..24 {
            eventually("ready workers", || session.stats().ready == 2).await;
            fs::write(world.at("new"), "[user]\n").unwrap();
            fs::rename(world.at("new"), &config).unwrap();
            let before = room_for(more);
            ran.push(worked(in_time(session.command("true").output()).await, libc::EMFILE));
            restore(before);
            for _ in 0..3 {
                let script = "echo x >> .git/config";
                let output = in_time(session.command("sh").args(["-c", script]).output()).await.unwrap();
                assert!(!output.outcome.status.success(), "{more}");
            }
        }
        assert!(!ran[0] && ran[23], "{ran:?}");
        drop(running);
        assert_eq!(fs::read_to_string(&config).unwrap(), "[user]\n");
    });
}

/// Sets how many processes the zygote may add.
fn processes(zygote: u32, limit: &str) {
    let set =
        Command::new("prlimit").args(["--pid", &zygote.to_string(), &format!("--nproc={limit}")]).output();
    assert!(set.as_ref().unwrap().status.success(), "{set:?}");
}

#[test]
fn commands_without_processes_are_errors_and_the_session_goes_on() {
    only_as_user!();
    require!(has("prlimit"), "prlimit of util-linux");
    alone("shortage::commands_without_processes_are_errors_and_the_session_goes_on", async || {
        let world = World::new();
        for ready_workers in [0, 2] {
            let policy = world.policy();
            let session = Session::builder(&policy).ready_workers(ready_workers).prepare().await.unwrap();
            eventually("ready workers", || session.stats().ready == ready_workers).await;
            processes(zygote(), "1:");
            let mut failed = 0;
            for _ in 0..6 {
                let result = in_time(session.command("true").output()).await;
                failed += usize::from(!worked(result, libc::EAGAIN));
            }
            assert!(failed >= 6 - ready_workers, "{failed}");
            processes(zygote(), "4000:");
            // An earlier refusal may still be reported.
            for _ in 0..=ready_workers {
                let _ = in_time(session.command("true").output()).await;
            }
            for _ in 0..5 {
                shell(&session, "true").await;
            }
            assert_eq!(session.stats().running, 0);
        }
    });
}

#[test]
fn a_shortage_that_is_over_is_not_reported_to_later_commands() {
    only_as_user!();
    require!(has("prlimit"), "prlimit of util-linux");
    alone("shortage::a_shortage_that_is_over_is_not_reported_to_later_commands", async || {
        let world = World::new();
        let session = world.session().await;
        eventually("ready workers", || session.stats().ready == 2).await;
        processes(zygote(), "1:");
        // Both run, and leave orders behind that cannot be carried out.
        shell(&session, "exec true").await;
        shell(&session, "exec true").await;
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        processes(zygote(), "4000:");
        for _ in 0..4 {
            shell(&session, "true").await;
        }
    });
}
