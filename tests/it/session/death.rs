//! Somebody outside kills the zygote, a worker or a command: no hang, a clear error, and the rest goes on.

use std::{
    os::unix::process::ExitStatusExt,
    time::{Duration, Instant},
};

use kennel::{Ended, Error, Session, Signal, Stdio};
use nix::sys::signal::Signal::{SIGCONT, SIGKILL, SIGSTOP, SIGTERM};
use tokio::time::sleep;

use super::{
    alone, eventually, in_time, ready, shell,
    tree::{children, descendants, lives, signal, workers, zygote},
};
use crate::support::{World, patient, until};

/// The workers that appear during `what`.
async fn new_worker(before: &[u32]) -> u32 {
    let new = || workers().into_iter().filter(|pid| !before.contains(pid)).collect::<Vec<_>>();
    eventually("a new worker", || !new().is_empty()).await;
    new()[0]
}

/// Waits until two workers are ready.
async fn settled(session: &Session) {
    eventually("ready workers", || session.stats().ready == 2).await;
}

#[test]
fn a_killed_zygote_ends_everything_at_once() {
    alone("death::a_killed_zygote_ends_everything_at_once", async || {
        let world = World::new();
        for settle in [true, false] {
            let session = world.session().await;
            let mut child = ready(session.command("sh").args(["-c", "echo ready; sleep 60"]), 1).await;
            if settle {
                settled(&session).await;
            }
            let below = descendants(std::process::id());
            let start = Instant::now();
            let zygote = zygote();
            signal(zygote, SIGKILL);
            let error = in_time(child.wait()).await.unwrap_err();
            assert!(matches!(error, Error::SessionEnded | Error::Lost), "{error:?}");
            let error = in_time(session.command("true").output()).await.unwrap_err();
            assert!(matches!(error, Error::SessionEnded | Error::Lost), "at once: {error:?}");
            eventually("its end", || !lives(zygote)).await;
            for _ in 0..3 {
                let error = in_time(session.command("true").output()).await.unwrap_err();
                assert!(matches!(error, Error::SessionEnded), "{error:?}");
            }
            assert!(start.elapsed() < patient(Duration::from_secs(2)), "{:?}", start.elapsed());
            assert!(below.iter().all(|&pid| !lives(pid)));
            let stats = session.stats();
            assert_eq!((stats.ready, stats.running), (0, 0));
            in_time(session.shutdown()).await;
            drop(session);
            eventually("no zombie is left", || children(std::process::id()).is_empty()).await;
        }
    });
}

#[test]
fn a_zygote_that_is_killed_with_unread_orders_ends_the_session_clearly() {
    alone("death::a_zygote_that_is_killed_with_unread_orders_ends_the_session_clearly", async || {
        let world = World::new();
        for ready_workers in [0, 2] {
            let policy = world.policy();
            let session = Session::builder(&policy).ready_workers(ready_workers).prepare().await.unwrap();
            let zygote = zygote();
            shell(&session, "true").await;
            eventually("ready workers", || session.stats().ready == ready_workers).await;
            signal(zygote, SIGSTOP);
            // Each used worker leaves an order for the next one. If none is left, the caller waits.
            for _ in 0..ready_workers {
                shell(&session, "true").await;
            }
            let mut waiting = session.command("true");
            let waits = tokio::time::timeout(Duration::from_millis(100), waiting.output()).await;
            assert!(waits.is_err(), "{waits:?}");
            signal(zygote, SIGKILL);
            eventually("its end", || !lives(zygote)).await;
            for _ in 0..3 {
                let error = in_time(session.command("true").output()).await.unwrap_err();
                assert!(matches!(error, Error::SessionEnded), "{ready_workers}: {}", error.chain());
            }
        }
    });
}

#[test]
fn a_caller_that_waits_for_a_worker_learns_that_the_zygote_was_killed() {
    alone("death::a_caller_that_waits_for_a_worker_learns_that_the_zygote_was_killed", async || {
        let world = World::new();
        let session = Session::builder(&world.policy()).ready_workers(0).prepare().await.unwrap();
        let zygote = zygote();
        signal(zygote, SIGSTOP);
        let kill = async {
            sleep(Duration::from_millis(100)).await;
            signal(zygote, SIGKILL);
        };
        let mut command = session.command("true");
        let (result, ()) = tokio::join!(in_time(command.output()), kill);
        assert!(matches!(result, Err(Error::SessionEnded | Error::Lost)), "{result:?}");
    });
}

#[test]
fn a_stopped_zygote_delays_and_breaks_nothing() {
    alone("death::a_stopped_zygote_delays_and_breaks_nothing", async || {
        let world = World::new();
        let session = world.session().await;
        settled(&session).await;
        signal(zygote(), SIGSTOP);
        shell(&session, "true").await;
        shell(&session, "true").await;
        let error = in_time(session.command("true").fail_fast(true).output()).await.unwrap_err();
        assert!(matches!(error, Error::Busy), "{error:?}");
        let go_on = async {
            sleep(Duration::from_millis(100)).await;
            signal(zygote(), SIGCONT);
        };
        tokio::join!(shell(&session, "true"), go_on);
    });
}

/// Init and payload of each waiting worker, oldest first.
fn waiting() -> Vec<(u32, u32)> {
    workers().into_iter().filter_map(|init| Some((init, *children(init).first()?))).collect()
}

#[test]
fn a_waiting_worker_that_is_killed_is_replaced() {
    alone("death::a_waiting_worker_that_is_killed_is_replaced", async || {
        let world = World::new();
        let session = world.session().await;
        for round in 0..12 {
            settled(&session).await;
            for (init, payload) in waiting().into_iter().take(1 + round / 6) {
                signal(if round % 2 == 0 { init } else { payload }, SIGKILL);
                eventually("it is dead", || !lives(init)).await;
            }
            assert_eq!(shell(&session, "echo served").await, "served\n", "{round}");
        }
    });
}

/// A command that comes at that very moment may get the error that its worker is lost, but never that it was
/// killed: it has not run.
#[test]
fn a_worker_that_is_killed_as_its_command_comes_gives_a_true_error() {
    alone("death::a_worker_that_is_killed_as_its_command_comes_gives_a_true_error", async || {
        let world = World::new();
        let session = Session::builder(&world.policy()).ready_workers(1).prepare().await.unwrap();
        for round in 0..100 {
            eventually("a ready worker", || session.stats().ready == 1 && !waiting().is_empty()).await;
            let (init, payload) = waiting()[0];
            signal(if round % 4 == 0 { init } else { payload }, SIGKILL);
            let mut command = session.command("sh");
            match in_time(command.args(["-c", "echo x >> ran; echo served"]).output()).await {
                Ok(out) => {
                    assert_eq!((out.outcome.exit_code(), &*out.stdout), (0, &b"served\n"[..]), "{round}")
                }
                Err(error) => assert!(matches!(error, Error::Lost), "{round}: {error:?}"),
            }
        }
    });
}

#[test]
fn a_caller_that_does_not_wait_gets_no_dead_worker() {
    alone("death::a_caller_that_does_not_wait_gets_no_dead_worker", async || {
        let world = World::new();
        let session = world.session().await;
        settled(&session).await;
        let worker = workers()[0];
        signal(worker, SIGKILL);
        eventually("it is dead", || !lives(worker)).await;
        let mut command = session.command("echo");
        let out = in_time(command.arg("served").fail_fast(true).output()).await.unwrap();
        assert_eq!(out.stdout, b"served\n");
    });
}

#[test]
fn a_running_command_whose_init_is_killed_is_lost_and_the_session_goes_on() {
    alone("death::a_running_command_whose_init_is_killed_is_lost_and_the_session_goes_on", async || {
        let world = World::new();
        let session = Session::builder(&world.policy()).ready_workers(0).prepare().await.unwrap();
        let mut other = ready(session.command("sh").args(["-c", "echo ready; sleep 1; exit 7"]), 1).await;
        for _ in 0..3 {
            let before = workers();
            let mut child =
                ready(session.command("sh").args(["-c", "echo ready; sleep 60 & sleep 60"]), 1).await;
            let init = new_worker(&before).await;
            eventually("the shell and its two", || descendants(init).len() == 3).await;
            let below = descendants(init);
            signal(init, SIGKILL);
            let error = in_time(child.wait()).await.unwrap_err();
            assert!(matches!(error, Error::Lost), "{error:?}");
            assert!(below.iter().all(|&pid| !lives(pid)));
            assert!(matches!(in_time(child.wait()).await, Err(Error::Lost)), "told again");
            shell(&session, "true").await;
        }
        assert_eq!(in_time(other.wait()).await.unwrap().status.code(), Some(7));
    });
}

#[test]
fn a_command_that_is_killed_from_outside_was_signaled() {
    alone("death::a_command_that_is_killed_from_outside_was_signaled", async || {
        let world = World::new();
        let session = Session::builder(&world.policy()).ready_workers(0).prepare().await.unwrap();
        let mut child = ready(session.command("sh").args(["-c", "echo ready; sleep 60"]), 1).await;
        signal(children(workers()[0])[0], SIGKILL);
        assert_eq!(in_time(child.wait()).await.unwrap().status.signal(), Some(9));
        shell(&session, "true").await;
    });
}

/// Init ends with an order unread. The kernel reports that before it hands over init's last message.
#[test]
fn an_end_is_reported_even_if_an_order_came_too_late() {
    alone("death::an_end_is_reported_even_if_an_order_came_too_late", async || {
        let world = World::new();
        let session = Session::builder(&world.policy()).ready_workers(0).prepare().await.unwrap();
        for order in [Signal::CONT, Signal::KILL] {
            let mut child = ready(session.command("sh").args(["-c", "echo ready; exec sleep 60"]), 1).await;
            let init = workers()[0];
            signal(init, SIGSTOP);
            let payload = children(init)[0];
            signal(payload, SIGTERM);
            until("the command's end", || !lives(payload));
            child.signal(order).unwrap();
            signal(init, SIGCONT);
            // Not the runtime's sleep: the test reads nothing before init is gone.
            until("its end", || !lives(init));
            let outcome = in_time(child.wait()).await.unwrap();
            assert_eq!((outcome.status.signal(), outcome.ended), (Some(15), Ended::Signaled));
        }
    });
}

#[test]
fn a_zygote_killed_at_any_moment_is_reported_without_a_hang() {
    alone("death::a_zygote_killed_at_any_moment_is_reported_without_a_hang", async || {
        let world = World::new();
        let policy = world.policy();
        for round in 0..60u64 {
            let kill = tokio::task::spawn_blocking(move || {
                let own = std::process::id();
                let start = Instant::now();
                while children(own).is_empty() && start.elapsed() < patient(Duration::from_secs(5)) {}
                std::thread::sleep(Duration::from_micros(round * 100));
                children(own).into_iter().for_each(|zygote| signal(zygote, SIGKILL));
            });
            let life = async {
                let session = Session::prepare(&policy).await?;
                loop {
                    session.command("true").stdin(Stdio::null()).status().await?;
                }
            };
            let error: Result<(), Error> = in_time(life).await;
            let error = error.unwrap_err();
            assert!(matches!(error, Error::SessionEnded | Error::Lost), "{round}: {}", error.chain());
            in_time(kill).await.unwrap();
            eventually("nothing is left", || children(std::process::id()).is_empty()).await;
        }
    });
}
