//! Another process has the inside's end of a control socket, for example a child that the embedding program
//! forked while it made the socket. The session still sees each end. These tests need root, who can take the
//! descriptor.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use kennel::{
    Error, Overlay, Sandbox, Session,
    overlay::OverlayError,
    probe::{Host, Version},
};
use nix::sys::signal::Signal::{SIGKILL, SIGSTOP};
use tokio::time::timeout;

use super::{
    PATIENCE, alone, eventually, in_time, ready,
    tree::{children, signal, workers, zygote},
};
use crate::support::{World, only_as_root, patient, payload_path, require};

/// A process that holds the socket of the process `pid` of the inside, until it is dropped.
struct Forked(Child);

impl Forked {
    /// `None` if the kernel does not hand the descriptor out.
    async fn of(pid: u32) -> Option<Self> {
        let is_socket = |fd: &fs::DirEntry| {
            fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
        };
        let sockets = || {
            let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten().filter(is_socket);
            fds.map(|fd| fd.file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        // A zygote has that of a worker, too, for a moment after it has forked it.
        eventually("one socket", || sockets().len() == 1).await;
        let socket = &sockets()[0];
        let calls = format!("pidfd_open {pid} 0 + pidfd_getfd $ {socket} 0 + read 0 buf 1");
        let mut payload = Command::new(payload_path());
        payload.arg("call").args(calls.split(' ')).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut forked = Self(payload.spawn().unwrap());
        let said = BufReader::new(forked.0.stdout.as_mut().unwrap()).lines();
        let said: Vec<String> = said.take(2).map(Result::unwrap).collect();
        (said == ["ok", "ok"]).then_some(forked)
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

#[test]
fn the_end_of_a_zygote_is_seen() {
    only_as_root!();
    alone("forked::the_end_of_a_zygote_is_seen", async || {
        let world = World::new();
        let session = world.session().await;
        eventually("ready workers", || session.stats().ready == 2).await;
        let zygote = zygote();
        let forked = Forked::of(zygote).await;
        require!(forked.is_some(), "pidfd_getfd(2)");
        signal(zygote, SIGKILL);
        eventually("its end", || session.has_ended()).await;
        // The waiting workers are gone, and an order for another one reaches nobody.
        for _ in 0..4 {
            let error = in_time(session.command("true").output()).await.unwrap_err();
            assert!(matches!(error, Error::SessionEnded), "{error:?}");
            let error = in_time(session.list(".")).await.unwrap_err();
            assert!(matches!(error, Error::SessionEnded), "{error:?}");
        }
        in_time(session.shutdown()).await;
    });
}

#[test]
fn the_end_of_a_zygote_is_seen_by_a_waiting_caller() {
    only_as_root!();
    alone("forked::the_end_of_a_zygote_is_seen_by_a_waiting_caller", async || {
        let world = World::new();
        let session = world.session().await;
        eventually("ready workers", || session.stats().ready == 2).await;
        let zygote = zygote();
        let forked = Forked::of(zygote).await;
        require!(forked.is_some(), "pidfd_getfd(2)");
        signal(zygote, SIGSTOP);
        // As many callers as there were ready workers, and one that waits for the zygote.
        for _ in 0..2 {
            in_time(session.command("true").output()).await.unwrap();
        }
        let mut command = session.command("true");
        let mut waits = std::pin::pin!(command.output());
        timeout(Duration::from_millis(50), &mut waits).await.unwrap_err();
        signal(zygote, SIGKILL);
        let error = in_time(waits).await.unwrap_err();
        assert!(matches!(error, Error::SessionEnded), "{error:?}");
    });
}

#[test]
fn the_end_of_a_worker_is_seen() {
    only_as_root!();
    alone("forked::the_end_of_a_worker_is_seen", async || {
        let world = World::new();
        let session = world.session().await;
        eventually("ready workers", || session.stats().ready == 2).await;
        let before = workers();
        let mut child = ready(session.command("sh").args(["-c", "echo ready; sleep 60"]), 1).await;
        // The oldest worker has it.
        let forked = Forked::of(before[0]).await;
        require!(forked.is_some(), "pidfd_getfd(2)");
        signal(before[0], SIGKILL);
        let error = in_time(child.wait()).await.unwrap_err();
        assert!(matches!(error, Error::Lost), "{error:?}");
        assert!(in_time(session.command("true").output()).await.unwrap().outcome.status.success());
    });
}

#[test]
fn the_end_of_background_processes_is_seen() {
    only_as_root!();
    require!(Host::detect().kernel >= Version(6, 6), "overlays in memory");
    alone("forked::the_end_of_background_processes_is_seen", async || {
        let world = World::new();
        let policy = world.policy().overlay(Overlay::default());
        let session = Session::prepare(&policy).await.unwrap();
        eventually("ready workers", || session.stats().ready == 2).await;
        let init = workers()[0];
        let mut command = session.command("sh");
        command.args(["-c", "sleep 60 >/dev/null 2>&1 & exit 0"]).background(true);
        assert!(in_time(command.output()).await.unwrap().outcome.status.success());
        let forked = Forked::of(init).await;
        require!(forked.is_some(), "pidfd_getfd(2)");
        let running = in_time(session.commit()).await;
        assert!(matches!(running, Err(Error::Overlay(OverlayError::Running))), "{running:?}");
        signal(init, SIGKILL);
        in_time(session.commit()).await.unwrap();
    });
}

#[test]
fn the_end_of_a_one_shot_is_seen() {
    only_as_root!();
    alone("forked::the_end_of_a_one_shot_is_seen", async || {
        let world = World::new();
        let sandbox = Sandbox::new(&world.policy()).unwrap();
        for timed in [false, true] {
            let mut command = sandbox.command("sh");
            command.args(["-c", "echo ready; sleep 60"]);
            if timed {
                command.timeout(patient(PATIENCE) * 6);
            }
            let mut child = ready(&mut command, 1).await;
            let [init] = children(std::process::id())[..] else { panic!("one init") };
            let forked = Forked::of(init).await;
            require!(forked.is_some(), "pidfd_getfd(2)");
            signal(init, SIGKILL);
            let error = in_time(child.wait()).await.unwrap_err();
            assert!(matches!(error, Error::Lost), "{error:?}");
        }
    });
}
