//! Limits on a disk and on swap. Virtual machines have both (`KENNEL_DISK`). Elsewhere the workspace is in
//! /tmp, and if that is on no disk, the test asserts that the report says so.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use kennel::{IoLimits, Limits, Session, Size};
use serde_json::{Value, json};

use super::{attempt, protection, require_groups, says_no_disk, with_limits};
use crate::support::{report, stderr, workspace, workspace_on_disk};

/// The bytes that each of the commands below moves, and the limit per second.
const BYTES: u64 = 4 << 20;
const RATE: &str = "1M";
/// The time that the limit makes of it, less one second for bytes that pass before the counting starts.
const LEAST: Duration = Duration::from_secs(3);

/// One test at a time uses the disk: a journal that waits for a throttled writer delays everybody who syncs.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a script with a limit. Returns `None` if there is no disk, after it has checked that the report says
/// so.
fn limited(workspace: &Path, io: &str, script: &str) -> Option<Value> {
    let (output, said) = report(workspace, &["--io", io], &["sh", "-c", script]);
    assert!(output.status.success(), "{script}: {output:?}");
    let (state, detail) = protection(&said, "io");
    if state != "enforced" {
        assert!(env::var_os("KENNEL_DISK").is_none(), "there is a disk here: {detail}");
        assert!(says_no_disk(&said), "{said}");
        return None;
    }
    assert_eq!(detail, format!("io.max {io}, with all that the command starts"));
    Some(said)
}

/// The same without a limit, in a group that counts.
fn free(workspace: &Path, script: &str) -> Value {
    let (output, said) = report(workspace, &["--memory", "1G"], &["sh", "-c", script]);
    assert!(output.status.success(), "{script}: {}", stderr(&output));
    said
}

fn took(report: &Value) -> Duration {
    Duration::from_millis(report["duration_ms"].as_u64().unwrap())
}

/// Asserts that the limit made a command take that long, and that it would have taken less without.
fn is_slowed(script: &str, limited: &Value, free: &Value) {
    eprintln!("{script}: {:?} with the limit, {:?} without", took(limited), took(free));
    assert!(took(limited) >= LEAST, "{script}: {limited}");
    assert!(
        took(free) * 2 < took(limited),
        "{script}: the limit is not why it took {:?}: {free}",
        took(limited)
    );
}

fn moved(report: &Value, key: &str) -> u64 {
    report["usage"][key].as_u64().unwrap_or_else(|| panic!("no {key}: {report}"))
}

/// Each write goes to a new file: later writes to an old file count for the group that wrote to it first,
/// with its limit.
#[test]
fn writing_takes_the_time_that_the_limit_says() {
    require_groups!();
    let _turn = turn();
    let dir = workspace_on_disk();
    for how in ["oflag=direct", "conv=fsync"] {
        let script = format!("dd if=/dev/zero of=$(mktemp ./XXXXXX) bs=64k count=64 {how}");
        // This one first: writeback of a limited group delays everybody who syncs after it.
        let free = free(dir.path(), &script);
        let Some(limited) = limited(dir.path(), &format!("write={RATE}"), &script) else { return };
        is_slowed(&script, &limited, &free);
        for report in [&limited, &free] {
            assert!(moved(report, "io_write_bytes") >= BYTES, "{script}: {report}");
        }
    }
}

#[test]
fn reading_takes_the_time_that_the_limit_says() {
    require_groups!();
    let _turn = turn();
    let dir = workspace_on_disk();
    fs::write(dir.path().join("large"), vec![7; usize::try_from(BYTES).unwrap()]).unwrap();
    let script = "dd if=large of=/dev/null bs=64k iflag=direct";
    let Some(limited) = limited(dir.path(), &format!("read={RATE}"), script) else { return };
    let free = free(dir.path(), script);
    is_slowed(script, &limited, &free);
    for report in [&limited, &free] {
        assert!(moved(report, "io_read_bytes") >= BYTES, "{report}");
        assert!(moved(report, "io_write_bytes") < BYTES / 2, "{report}");
    }
}

#[test]
fn operations_are_counted_whatever_their_size() {
    require_groups!();
    let _turn = turn();
    let dir = workspace_on_disk();
    let script = "dd if=/dev/zero of=written bs=4k count=80 oflag=direct";
    let Some(limited) = limited(dir.path(), "write_ops=20", script) else { return };
    is_slowed(script, &limited, &free(dir.path(), script));
}

#[test]
fn one_direction_leaves_the_other_alone() {
    require_groups!();
    let _turn = turn();
    let dir = workspace_on_disk();
    let script = "dd if=/dev/zero of=written bs=64k count=64 oflag=direct";
    let Some(said) = limited(dir.path(), "read=64K", script) else { return };
    assert!(moved(&said, "io_write_bytes") >= BYTES, "{said}");
    // A minute with the limit, on any machine.
    assert!(took(&said) < Duration::from_secs(BYTES >> 17), "{said}");
}

/// The test does not sync. The overlay is mounted volatile: a sync writes nothing there, and later writeback
/// at the rate of the limit would delay other syncs.
#[test]
fn changes_that_an_overlay_keeps_on_a_disk_are_limited_too() {
    require_groups!();
    let _turn = turn();
    // In a virtual machine /tmp is on no disk.
    let (dir, upper) = (workspace(), workspace_on_disk());
    fs::set_permissions(upper.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let upper = ["--overlay-upper", upper.path().to_str().unwrap(), "--discard"];
    let script = "dd if=/dev/zero of=written bs=64k count=64 oflag=direct";
    let flags = format!("write={RATE}");
    let (output, said) = report(dir.path(), &[&upper[..], &["--io", &flags]].concat(), &["sh", "-c", script]);
    assert!(output.status.success(), "{output:?}");
    let (state, detail) = protection(&said, "io");
    assert!(state == "enforced" || env::var_os("KENNEL_DISK").is_none(), "{detail}");
    assert!(state != "enforced" || took(&said) >= LEAST, "{said}");
}

#[test]
fn commands_of_a_session_share_the_disk() {
    require_groups!();
    let _turn = turn();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(two_commands_of_a_session());
}

async fn two_commands_of_a_session() {
    let dir = workspace_on_disk();
    let io = IoLimits { write: Some(Size::from_bytes(1 << 20)), ..IoLimits::default() };
    let limits = Limits { io: Some(io), ..Limits::default() };
    let session = Session::prepare(&with_limits(dir.path(), limits)).await.unwrap();
    let enforcement = session.enforcement();
    let entry = enforcement.get(kennel::report::Protection::Io);
    let enforced = entry.is_some_and(|entry| entry.state == kennel::report::State::Enforced);
    assert!(enforced || env::var_os("KENNEL_DISK").is_none(), "{enforcement:?}");
    let start = Instant::now();
    let write = |name: &str| {
        let mut command = session.command("dd");
        let name = format!("of={name}");
        command.args(["if=/dev/zero", &name, "bs=64k", "count=32", "oflag=direct"]);
        async move { command.output().await.unwrap() }
    };
    for out in <[_; 2]>::from(tokio::join!(write("one"), write("other"))) {
        assert!(out.outcome.status.success(), "{out:?}");
        assert!(!enforced || out.outcome.usage.io_write_bytes.unwrap() >= BYTES / 2, "{out:?}");
    }
    assert!(!enforced || start.elapsed() >= LEAST, "2 MiB each in {:?}", start.elapsed());
    session.shutdown().await;
}

/// The swap of this machine that can be used.
fn has_swap() -> bool {
    let found = fs::read_to_string("/proc/swaps").unwrap_or_default().lines().count() > 1;
    assert!(found || env::var_os("KENNEL_DISK").is_none(), "there must be swap here");
    found
}

#[test]
fn swap_is_available_up_to_the_limit() {
    require_groups!();
    for (flags, hog, lives) in [
        (&["--memory", "64M"][..], "hog 100", false),
        (&["--memory", "64M", "--swap", "100M"], "hog 100", has_swap()),
        (&["--memory", "64M", "--swap", "16M"], "hog 100", false),
        (&["--memory", "64M", "--swap", "100M"], "hog 200", false),
    ] {
        let (status, said, report) = attempt(flags, hog);
        let swap = flags.get(3).unwrap_or(&"none");
        let detail = format!("memory.max 64M, swap {swap}, with all that the command starts");
        assert_eq!(protection(&report, "memory"), ("enforced", &*detail));
        if lives {
            assert_eq!((status, &report["limit"], &*said), (Some(0), &json!(null), "has 100"), "{report}");
            assert_eq!(report["usage"]["oom_kills"], 0, "{report}");
        } else {
            assert_eq!(
                (status, &report["limit"]),
                (Some(137), &json!("memory")),
                "{flags:?} {hog}: {report}"
            );
            assert!(report["usage"]["oom_kills"].as_u64().unwrap() > 0, "{report}");
        }
    }
}
