//! Each call has its own output, whole and apart, whatever is in it and whoever goes on writing.

use std::time::Duration;

use kennel::{Error, Limits, Policy, Profile, Session, Size};

use super::{kind, kinds, run, said, told};
use crate::{
    session::{eventually, in_time},
    support::{World, has, require},
};

#[tokio::test]
async fn stdout_and_stderr_are_apart_and_exact() {
    for kind in kinds().await {
        let shell = kind.session.shell();
        assert_eq!(told(&shell, "echo out; echo err >&2").await, (0, "out\n".into(), "err\n".into()));
        assert_eq!(told(&shell, "printf 'no end'").await.1, "no end");
        let out = run(&shell, "printf 'a\\000b\\377\\n\\n'; printf '\\000' >&2").await;
        assert_eq!((&*out.stdout, &*out.stderr), (&b"a\0b\xff\n\n"[..], &b"\0"[..]));
        assert_eq!((out.outcome.stdout_bytes, out.outcome.stderr_bytes), (Some(6), Some(1)));
        assert_eq!(said(&shell, "echo one > /dev/stdout; echo two > /dev/fd/1").await, "one\ntwo\n");
        assert_eq!(said(&shell, "cat <<'END'\n$HOME `x`\nEND\n").await, "$HOME `x`\n");
        assert_eq!(said(&shell, "cat; read -r x || echo no input").await, "no input\n");
        // A command that reads everything does not eat the next snippet.
        assert_eq!(said(&shell, "echo still").await, "still\n");
    }
}

#[tokio::test]
async fn megabytes_arrive_whole() {
    for kind in kinds().await {
        let shell = kind.session.shell();
        let out = run(&shell, "head -c 5000000 /dev/zero; head -c 3000000 /dev/zero >&2").await;
        assert_eq!((out.stdout.len(), out.stderr.len()), (5_000_000, 3_000_000), "{}", kind.name);
        let text = "x".repeat(1 << 20);
        let out = run(&shell, &format!("var={text}; echo ${{#var}}")).await;
        assert_eq!(out.stdout, format!("{}\n", 1 << 20).as_bytes(), "a snippet of more than 1 MiB");
        let many: String = (0..20_000).map(|number| format!("n={number}\n")).collect();
        assert_eq!(said(&shell, &(many + "echo $n")).await, "19999\n");
    }
}

#[tokio::test]
async fn a_nul_byte_in_a_snippet_is_refused_and_runs_nothing() {
    let [kind, ..] = kinds().await;
    let shell = kind.session.shell();
    let refused = shell.run("touch made\0").await.unwrap_err();
    assert!(matches!(refused, Error::Command { what: "snippet", .. }), "{refused:?}");
    assert!(!kind.path().join("made").exists());
    assert_eq!(said(&shell, "echo on").await, "on\n");
}

#[tokio::test]
async fn beyond_a_cap_output_is_counted_and_dropped() {
    let kind = kind("bash", |policy| {
        policy.limits(Limits { output: Some(Size::from_bytes(1000)), ..Limits::default() })
    })
    .await;
    let shell = kind.session.shell();
    let out = run(&shell, "head -c 300000 /dev/zero; echo e >&2").await;
    let marker = b"\n[kennel: output truncated, 299000 bytes dropped]\n";
    assert!(out.outcome.truncated && out.stdout.ends_with(marker) && out.stdout.len() == 1000 + marker.len());
    assert_eq!((out.outcome.stdout_bytes, &*out.stderr), (Some(300_000), &b"e\n"[..]));
    let out = in_time(shell.snippet("head -c 20 /dev/zero").output_cap(10).output()).await.unwrap();
    assert!(out.outcome.truncated && out.outcome.stdout_bytes == Some(20), "{out:?}");
    let out = in_time(shell.snippet("head -c 2000 /dev/zero").output_cap(5000).output()).await.unwrap();
    assert!(out.outcome.truncated, "the policy's cap is the upper bound");
    assert!(!run(&shell, "head -c 1000 /dev/zero").await.outcome.truncated, "each call has its own");
}

/// Nobody waits for it, it is not in the next call's output, and it is not ended by SIGPIPE.
#[tokio::test]
async fn what_the_background_writes_belongs_to_no_later_call() {
    for kind in kinds().await {
        let shell = kind.session.shell();
        let script =
            "(while :; do echo noise; echo noise >&2; echo beat >>beats; sleep 0.01; done) & echo started";
        let out = run(&shell, script).await;
        assert!(String::from_utf8_lossy(&out.stdout).contains("started"), "{}", kind.name);
        let beats = || std::fs::read_to_string(kind.path().join("beats")).unwrap_or_default().len();
        for _ in 0..20 {
            assert_eq!(told(&shell, "echo mine; sleep 0.02").await, (0, "mine\n".into(), String::new()));
        }
        let before = beats();
        eventually("a beat", || beats() > before).await;
        assert_eq!(said(&shell, "kill $!; echo killed").await, "killed\n");
    }
}

#[tokio::test]
async fn jobs_of_an_earlier_call_can_be_waited_for() {
    for kind in kinds().await {
        let shell = kind.session.shell();
        said(&shell, "(sleep 0.1; exit 5) & job=$!").await;
        assert_eq!(told(&shell, "wait $job").await.0, 5, "{}", kind.name);
    }
}

/// A snippet can write to the report of its own call. Then its own result is wrong, and that is all.
#[tokio::test]
async fn a_forged_report_spoils_only_its_own_result() {
    for kind in kinds().await {
        let shell = kind.session.shell();
        for forged in [
            "head -c 3000000 /dev/zero",
            "seq 1 500000",
            "printf '0 0\\n/\\n\\000'",
            "printf '99999999999999999999999 0\\n/\\n\\000'",
            "printf '1 999\\n\\n\\000'",
        ] {
            let report = "/proc/$PPID/fd/20";
            let out = in_time(shell.run(format!("{{ {forged}; }} >{report}; echo real"))).await.unwrap();
            assert_eq!((&*out.stdout, out.has_ended), (&b"real\n"[..], false), "{}: {forged}", kind.name);
            assert_eq!(said(&shell, "echo next").await, "next\n", "{}: {forged}", kind.name);
        }
        // It has the number of no report, so it ends nothing.
        let early = "printf '999999 42\\n/forged\\n\\000' >/proc/$PPID/fd/20; sleep 0.2; echo late";
        let out = in_time(shell.run(early)).await.unwrap();
        assert_eq!((out.outcome.exit_code(), &*out.stdout), (0, &b"late\n"[..]), "{}", kind.name);
        assert_eq!(said(&shell, "echo next").await, "next\n", "{}", kind.name);
    }
}

#[tokio::test]
async fn calls_at_the_same_time_run_one_after_the_other() {
    let [kind, ..] = kinds().await;
    let shell = kind.session.shell();
    let calls = (0..8).map(|number| {
        let shell = shell.clone();
        tokio::spawn(async move { shell.run(format!("echo {number}; list=\"$list {number}\"")).await })
    });
    let calls: Vec<_> = calls.collect();
    for (number, call) in calls.into_iter().enumerate() {
        let out = in_time(call).await.unwrap().unwrap();
        assert_eq!(out.stdout, format!("{number}\n").as_bytes());
    }
    assert_eq!(said(&shell, "set -- $list; echo $#").await, "8\n");
}

/// With `output_ends` a policy ends what writes too much. In a shell that is the snippet.
#[tokio::test]
async fn output_that_must_end_interrupts_the_snippet() {
    let world = World::new();
    let limits = Limits { output: Some(Size::from_bytes(1000)), output_ends: true, ..Limits::default() };
    let policy = world.policy().limits(limits);
    let session = Session::prepare(&policy).await.unwrap();
    let shell = session.shell();
    said(&shell, "kept=1").await;
    let out =
        in_time(shell.snippet("while :; do echo yes; done").timeout(Duration::from_secs(60)).output()).await;
    let out = out.unwrap();
    assert_eq!((out.outcome.limit, out.has_ended), (Some(kennel::report::Limit::Output), false), "{out:?}");
    assert_eq!(said(&shell, "echo $kept").await, "1\n");
}

/// Each snippet hears of its own requests, in a shell that outlives them.
#[tokio::test]
async fn what_the_proxy_refuses_is_told_by_the_snippet_that_asked() {
    require!(has("curl"), "curl");
    for kind in kinds().await {
        let policy = Policy::profile(Profile::RepoWrite, kind.path()).allow("allowed.example:443");
        let session = Session::prepare(&(kind.with)(policy)).await.unwrap();
        let shell = session.shell();
        for host in ["one.example", "two.example"] {
            let out = run(&shell, &format!("/usr/bin/curl -sS https://{host}/")).await;
            let told: Vec<_> = out.outcome.denials.iter().map(|denial| &*denial.subject).collect();
            assert_eq!(told, [format!("{host}:443")], "{}: {out:?}", kind.name);
        }
        assert_eq!(run(&shell, "true").await.outcome.denials, [], "{}", kind.name);
    }
}
