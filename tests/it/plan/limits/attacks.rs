//! Commands of a session that take everything they can, while another session runs one command after the
//! other. A limit or the timeout ends each attack, nothing of it is left, and the other session hardly
//! notices.
//!
//! The attacks take seconds and less than a gigabyte of memory. Without cgroups all processes share the
//! processors, so the tests assert only that the other session goes on, and print how much slower it is.

use std::{
    fs,
    time::{Duration, Instant},
};

use kennel::{Ended, Error, Limits, Output, Session, Size, report::Limit};

use super::has_pid_max;
use crate::support::{World, is_root, patient, until};

/// Far longer than an attack takes that a limit ends, even on a busy machine.
const AMPLE: Duration = Duration::from_secs(300);

/// Limits for an attack that does not end by itself: its timeout is short.
fn endless() -> Limits {
    Limits { timeout: Some(patient(Duration::from_millis(400)).into()), ..limits() }
}

fn limits() -> Limits {
    Limits {
        memory: Some(Size::from_bytes(64 << 20)),
        pids: Some(64),
        timeout: Some(AMPLE.into()),
        output: Some(Size::from_bytes(1 << 20)),
        output_ends: true,
        tmp_size: Some(Size::from_bytes(16 << 20)),
        tmp_inodes: Some(500),
        open_files: Some(64),
        file_size: Some(Size::from_bytes(8 << 20)),
        ..Limits::default()
    }
}

fn world() -> World {
    // Before Linux 6.14, nothing holds it for root.
    World::new()
        .with(|policy| policy.require(kennel::report::Protection::Pids, kennel::Requirement::IfAvailable))
}

/// Runs `attack` while a session beside it runs one command after the other, which must all succeed. Returns
/// how long one took before and meanwhile.
async fn beside<T>(name: &str, attack: impl Future<Output = T>) -> T {
    let world = world();
    let sibling = world.session().await;
    let once = async || {
        let begun = Instant::now();
        let outcome = sibling.command("true").status().await.unwrap();
        assert!(outcome.status.success(), "{name}: {outcome:?}");
        begun.elapsed()
    };
    let mut before = Vec::new();
    for _ in 0..20 {
        before.push(once().await);
    }
    let mut attack = std::pin::pin!(attack);
    let mut meanwhile = Vec::new();
    let came = loop {
        tokio::select! {
            biased;
            came = &mut attack => break came,
            took = once() => meanwhile.push(took),
        }
    };
    assert!(once().await < patient(Duration::from_secs(2)), "{name}: the sibling is slow after it");
    if !meanwhile.is_empty() {
        let (before, during) = (median(before), median(meanwhile.clone()));
        let ratio = during.as_secs_f64() / before.as_secs_f64();
        eprintln!(
            "{name}: {} commands beside it, {before:?} before, {during:?} meanwhile: {ratio:.1}",
            meanwhile.len()
        );
        assert!(during < patient(Duration::from_millis(500)), "{name}: the sibling stands still: {during:?}");
    }
    came
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// A command of a session with limits, beside another session. Afterwards nothing of it is left, and its
/// session goes on.
async fn attack(words: &[&str], limits: Limits) -> Output {
    let world = world();
    let session = Session::prepare(&world.with_payload().limits(limits)).await.unwrap();
    let mark = format!("attack-{}-{}", std::process::id(), words.join("-").len());
    let mark = format!("{mark}-{}", world.path().file_name().unwrap().display());
    let (program, arguments) = words.split_first().unwrap();
    let mut command = session.command(program);
    command.args(arguments).arg(&mark);
    let out = beside(&words.join(" "), command.output()).await.unwrap();
    until("nothing of it is left", || !is_there(&mark));
    let after = session.command("sh").args(["-c", "echo on | cat"]).output().await.unwrap();
    assert_eq!(after.stdout, b"on\n", "{words:?}: {after:?}");
    out
}

/// Whether a process of this machine has `mark` among its arguments.
fn is_there(mark: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .any(|line| line.split(|byte| *byte == 0).any(|argument| argument == mark.as_bytes()))
}

fn text(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).trim_end().to_owned()
}

/// Whether anything limits the number of processes.
fn holds_pids() -> bool {
    !is_root() || has_pid_max() || crate::launch::cgroups::has_groups()
}

#[tokio::test]
async fn bombs_end_by_the_limit_or_their_time() {
    // Not longer on a slow machine: only the timeout bounds it there.
    let limits = match holds_pids() {
        true => limits(),
        false => Limits { timeout: Some(Duration::from_millis(500).into()), ..limits() },
    };
    let out = attack(&["/payload", "fork-bomb"], limits).await;
    if holds_pids() {
        assert_eq!((text(&out).as_str(), out.outcome.exit_code()), ("EAGAIN", 0), "{out:?}");
        // A process that was refused nothing more: 64, or as many more as the report says.
        assert!((50..64 + 320).contains(&out.outcome.usage.killed), "{out:?}");
    } else {
        assert_eq!(out.outcome.ended, Ended::TimedOut, "{out:?}");
    }
}

#[tokio::test]
async fn bombs_that_never_give_up_end_by_their_time() {
    if !holds_pids() {
        crate::support::skip(module_path!(), "it is about an ordinary user");
        return;
    }
    for words in [&["/payload", "fork-tree"][..], &["sh", "-c", "b() { b | b & }; b; while :; do b; done"]] {
        let out = attack(words, endless()).await;
        let ended = (out.outcome.ended, out.outcome.limit);
        let by_refusal =
            words[0] == "sh" && out.outcome.ended == Ended::Exited && !out.outcome.status.success();
        // So many processes may take more memory than a cgroup allows for all of them.
        let by_memory = out.outcome.limit == Some(Limit::Memory) && crate::launch::cgroups::has_groups();
        assert!(
            by_refusal || by_memory || ended == (Ended::TimedOut, Some(Limit::WallTime)),
            "{words:?}: {out:?}"
        );
    }
}

#[tokio::test]
async fn threads_and_zombies_are_counted_as_processes() {
    if !holds_pids() {
        crate::support::skip(module_path!(), "it is about an ordinary user");
        return;
    }
    for (what, most) in [("threads", 64 + 320), ("zombies", 64 + 320)] {
        let out = attack(&["/payload", what, "1000"], limits()).await;
        let said = text(&out);
        let mut words = said.split(' ');
        let (errno, count) = (words.next().unwrap(), words.next().unwrap().parse::<u32>().unwrap());
        assert!(errno == "EAGAIN" && (50..most).contains(&count), "{what}: {said}");
    }
}

#[tokio::test]
async fn memory_hogs_are_refused() {
    let out = attack(&["/payload", "hold", "private", "900"], limits()).await;
    if crate::launch::cgroups::has_groups() {
        assert_eq!(out.outcome.limit, Some(Limit::Memory), "{out:?}");
    } else {
        assert!(text(&out).starts_with("ENOMEM "), "{out:?}");
    }
    assert!(out.outcome.usage.max_rss_bytes < 80 << 20, "{:?}", out.outcome.usage);
}

#[tokio::test]
async fn a_process_that_takes_all_descriptors_runs_out() {
    let out = attack(&["/payload", "open-all", "5000"], limits()).await;
    assert_eq!(text(&out), "EMFILE 61 descriptors");
}

#[tokio::test]
async fn private_directories_fill_up() {
    let out = attack(&["/payload", "files", "/tmp", "100000"], limits()).await;
    let count: u32 = text(&out)
        .strip_prefix("ENOSPC ")
        .and_then(|rest| rest.strip_suffix(" files"))
        .unwrap()
        .parse()
        .unwrap();
    assert!((400..=510).contains(&count), "{out:?}");
    assert_eq!(out.outcome.limit, Some(Limit::Tmpfs));
    let out = attack(&["/payload", "depth", "/dev/shm", "100000"], limits()).await;
    assert!(text(&out).starts_with("ENOSPC ") && out.outcome.limit == Some(Limit::Tmpfs), "{out:?}");
    let fill = "i=0; while head -c 4M /dev/zero > /tmp/$i; do i=$((i+1)); done; exit 1";
    let out = attack(&["sh", "-c", fill], limits()).await;
    assert_eq!((out.outcome.limit, out.outcome.exit_code()), (Some(Limit::Tmpfs), 1), "{out:?}");
}

/// They use no space, but look large.
#[tokio::test]
async fn sparse_files_are_no_larger_than_a_file_may_be() {
    let out = attack(&["sh", "-c", "exec truncate -s 1T /tmp/sparse"], limits()).await;
    assert_eq!(out.outcome.limit, Some(Limit::FileSize), "{out:?}");
    let free = Limits { file_size: None, ..limits() };
    let script = "truncate -s 1T /tmp/sparse && cat /tmp/sparse > /tmp/copy";
    let out = attack(&["sh", "-c", script], free).await;
    assert_eq!(out.outcome.limit, Some(Limit::Tmpfs), "what is written of it takes room: {out:?}");
}

#[tokio::test]
async fn floods_end_by_the_limit_of_output() {
    for script in ["yes", "yes >&2", "cat /dev/zero | cat", "while :; do yes; done"] {
        let out = attack(&["sh", "-c", script], limits()).await;
        assert_eq!(
            (out.outcome.limit, out.outcome.ended),
            (Some(Limit::Output), Ended::Signaled),
            "{script}: {:?}",
            out.outcome
        );
        assert!(out.stdout.len().max(out.stderr.len()) < (1 << 20) + 100, "{script}");
    }
    let out = attack(&["sh", "-c", "yes > out"], limits()).await;
    assert_eq!(out.outcome.limit, Some(Limit::FileSize), "{out:?}");
}

/// A gigabyte is read, counted and dropped.
#[tokio::test]
async fn floods_are_drained_if_output_ends_nothing() {
    let cut = Limits { output_ends: false, ..limits() };
    let bytes: u64 =
        if patient(Duration::from_secs(1)) > Duration::from_secs(1) { 64 << 20 } else { 1 << 30 };
    let out = attack(&["sh", "-c", &format!("head -c {bytes} /dev/zero")], cut).await;
    assert_eq!(
        (out.outcome.exit_code(), out.outcome.stdout_bytes, out.outcome.truncated),
        (0, Some(bytes), true),
        "{:?}",
        out.outcome
    );
    assert!(out.stdout.len() < (1 << 20) + 100);
}

/// Nobody reads: the writer waits until its timeout.
#[tokio::test]
async fn floods_that_nobody_reads_wait() {
    let world = world();
    let session = Session::prepare(&world.with_payload().limits(endless())).await.unwrap();
    let mut command = session.command("yes");
    let mut child =
        command.stdout(kennel::Stdio::piped()).stderr(kennel::Stdio::null()).spawn().await.unwrap();
    let outcome = beside("yes, unread", child.wait()).await.unwrap();
    assert_eq!(outcome.limit, Some(Limit::WallTime), "{outcome:?}");
    let uncounted = Limits { output_ends: false, ..endless() };
    let session = Session::prepare(&world.with_payload().limits(uncounted)).await.unwrap();
    let mut command = session.command("yes");
    let mut child = command.terminal(24, 80).spawn().await.unwrap();
    let outcome = beside("yes, on a terminal", child.wait()).await.unwrap();
    assert_eq!(outcome.limit, Some(Limit::WallTime), "{outcome:?}");
}

#[tokio::test]
async fn busy_loops_end_by_the_limit_of_processor_time() {
    let busy = Limits { cpu_time: Some(Duration::from_secs(1).into()), ..limits() };
    let out = attack(&["sh", "-c", "while :; do :; done"], busy.clone()).await;
    assert_eq!(out.outcome.limit, Some(Limit::CpuTime), "{out:?}");
    // Each process has a limit of its own, as the report says. So does a process that was left behind.
    let script = "for i in 1 2; do (while :; do :; done) & done; wait; exit 0";
    let out = attack(&["sh", "-c", script], busy).await;
    assert!(out.outcome.status.success(), "{out:?}");
}

#[tokio::test]
async fn stopped_trees_end_by_their_time() {
    for (words, ended) in [
        (&["/payload", "stopped-tree", "4"][..], Ended::TimedOut),
        (&["/payload", "stop-self"], Ended::TimedOut),
        (&["/payload", "stop-and-leave"], Ended::Exited),
    ] {
        let out = attack(words, endless()).await;
        assert_eq!(out.outcome.ended, ended, "{words:?}: {out:?}");
    }
}

#[tokio::test]
async fn arguments_and_variables_are_bounded() {
    let world = world();
    let session = Session::prepare(&world.with_payload().limits(limits())).await.unwrap();
    let long = "x".repeat(200_000);
    let many: Vec<String> = (0..300_000).map(|number| format!("argument-{number}")).collect();
    for result in [
        session.command("true").arg(&long).output().await,
        session.command("true").env("LONG", &long).output().await,
        session.command("true").args(&many).output().await,
    ] {
        let error = result.unwrap_err();
        assert!(
            matches!(error, Error::NotExecutable { .. } | Error::Command { .. } | Error::Io { .. }),
            "{error:?}"
        );
        assert!(error.chain().contains("Argument list too long"), "{error:?}");
    }
    let input = vec![0u8; 64 << 20];
    for program in ["true", "cat"] {
        let quiet = Limits { output: Some(Size::from_bytes(10)), output_ends: false, ..Limits::default() };
        let mut command = session.command("sh");
        command.args(["-c", &format!("{program} > /dev/null")]).limits(quiet);
        let out = beside(program, command.output_with_input(&input)).await.unwrap();
        assert!(out.outcome.status.success(), "{program}: {out:?}");
    }
}
