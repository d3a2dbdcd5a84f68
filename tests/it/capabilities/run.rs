//! The timeout and the output cap hold in every layer.

use std::{fs, time::Duration};

use kennel::{
    Ended, Error, Output,
    capabilities::{Capabilities, Layer, RunLimits},
    report::Level,
};

use super::{Place, offline};
use crate::{
    session::tree::children,
    support::{HEARTBEAT, beats, is_alone, is_silent, patient, until},
};

async fn run(place: &Place, caps: &Capabilities, script: &str, limits: &RunLimits) -> Output {
    let (output, layer) = place.wrapper.run("sh", ["-c", script], place.path(), caps, limits).await.unwrap();
    assert_eq!(layer == Layer::Lightweight, caps.net);
    assert_eq!(output.outcome.enforcement.level() == Level::None, caps.net, "what is reported is so");
    output
}

fn both() -> [Capabilities; 2] {
    [offline(), Capabilities::default()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_status_and_usage_come_back() {
    let place = Place::new();
    for caps in both() {
        let script = "echo out; echo err >&2; read x || echo end; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; exit 5";
        let output = run(&place, &caps, script, &RunLimits::default()).await;
        assert_eq!((output.outcome.exit_code(), output.stdout.as_slice()), (5, &b"out\nend\n"[..]));
        assert_eq!((output.stderr.as_slice(), output.outcome.ended), (&b"err\n"[..], Ended::Exited));
        assert_eq!((output.outcome.stdout_bytes, output.outcome.truncated), (Some(8), false));
        assert!(
            output.outcome.usage.max_rss_bytes > 100_000 && output.outcome.usage.user_us > 0,
            "{:?}",
            output.outcome.usage
        );
        let output = run(&place, &caps, "kill -9 $$", &RunLimits::default()).await;
        assert_eq!((output.outcome.exit_code(), output.outcome.ended), (137, Ended::Signaled));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_is_124_and_kills_all_of_it() {
    let place = Place::new();
    let timeout = patient(Duration::from_millis(400));
    let limits = RunLimits { timeout: Some(timeout), ..RunLimits::default() };
    for caps in both() {
        let output =
            run(&place, &caps, &format!("trap '' TERM; ({HEARTBEAT}) & echo said; wait"), &limits).await;
        assert_eq!((output.outcome.exit_code(), output.outcome.ended), (124, Ended::TimedOut));
        assert_eq!(output.stdout, b"said\n");
        let message = output.outcome.failure().unwrap().message;
        assert_eq!(message, format!("command timed out after {}ms", timeout.as_millis()));
        assert!(output.outcome.duration < Duration::from_secs(10));
        assert!(beats(place.path()) > 0 && is_silent(place.path()), "{caps:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_beyond_the_cap_is_dropped_and_counted() {
    let place = Place::new();
    let limits = RunLimits { output: Some(10), ..RunLimits::default() };
    for caps in both() {
        let script = "printf 0123456789abcdef; printf 12345 >&2; head -c 3000000 /dev/zero; exit 3";
        let output = run(&place, &caps, script, &limits).await;
        assert_eq!(output.outcome.exit_code(), 3, "the command is not disturbed");
        let said = String::from_utf8(output.stdout.clone()).unwrap();
        assert_eq!(said, "0123456789\n[kennel: output truncated, 3000006 bytes dropped]\n");
        assert_eq!((output.stderr.as_slice(), output.outcome.truncated), (&b"12345"[..], true));
    }
}

/// A cap of zero or a timeout of zero is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_that_no_policy_could_have_are_errors() {
    let place = Place::new();
    for caps in both() {
        for limits in [
            RunLimits { output: Some(0), ..RunLimits::default() },
            RunLimits { timeout: Some(Duration::ZERO), ..RunLimits::default() },
            RunLimits { timeout: Some(Duration::MAX), ..RunLimits::default() },
        ] {
            let result = place.wrapper.run("true", [""; 0], place.path(), &caps, &limits).await;
            assert!(matches!(result, Err(Error::Policy(_))), "{limits:?}: {result:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_future_kills_it() {
    let place = Place::new();
    for caps in both() {
        let before = beats(place.path());
        let script = format!("({HEARTBEAT}) & wait");
        let limits = RunLimits::default();
        tokio::select! {
            output = run(&place, &caps, &script, &limits) => panic!("{output:?}"),
            () = async { while beats(place.path()) < before + 3 { tokio::time::sleep(Duration::from_millis(5)).await } } => {}
        }
        until("it stops beating", || is_silent(place.path()));
    }
}

#[test]
fn a_hundred_runs_leave_no_process_and_no_handler() {
    let test = "capabilities::run::a_hundred_runs_leave_no_process_and_no_handler";
    if !is_alone(test, "exec \"$@\"") {
        return;
    }
    let handlers = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let kept = |line: &&str| line.starts_with("SigCgt") || line.starts_with("SigIgn");
        status.lines().filter(kept).map(str::to_owned).collect::<Vec<_>>()
    };
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    let before = handlers();
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let place = Place::new();
        let caps = Capabilities::default();
        let warm = run(&place, &caps, "exit 3", &RunLimits::default()).await;
        assert_eq!(warm.outcome.exit_code(), 3);
        let descriptors = open();
        for round in 0..100u64 {
            let limits = RunLimits { timeout: Some(Duration::from_millis(20)), ..RunLimits::default() };
            let script = if round % 2 == 0 { "sleep 60 & sleep 60" } else { "exit 3" };
            let given = run(&place, &caps, script, &limits);
            let _ = tokio::time::timeout(Duration::from_micros(round * 300), given).await;
        }
        for _ in 0..500 {
            if children(std::process::id()).is_empty() && open() == descriptors {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!((children(std::process::id()).len(), open()), (0, descriptors));
    });
    assert_eq!(handlers(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn background_processes_end_with_the_run() {
    let place = Place::new();
    for caps in both() {
        let script = format!("({HEARTBEAT}) & until [ -s beat ]; do sleep 0.01; done; echo done");
        let output = run(&place, &caps, &script, &RunLimits::default()).await;
        assert_eq!(output.stdout, b"done\n");
        assert!(is_silent(place.path()), "{caps:?}");
        fs::remove_file(place.path().join("beat")).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_error_says_why_a_program_cannot_run() {
    let place = Place::new();
    fs::write(place.path().join("plain"), "no program").unwrap();
    for caps in both() {
        for (program, code) in [("kennel-absent", 127), ("/absent/x", 127), ("./plain", 126)] {
            let limits = RunLimits::default();
            let refused = place.wrapper.run(program, [""; 0], place.path(), &caps, &limits).await;
            let error: Error = refused.unwrap_err();
            assert_eq!(error.exit_code(), code, "{}", error.chain());
            assert!(error.chain().contains(program));
        }
    }
}
