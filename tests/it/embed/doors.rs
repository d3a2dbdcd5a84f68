//! What holds for every command of the library: of a sandbox, which starts anew for each command, and of a
//! session, which goes on afterwards.

use std::{fs, time::Duration};

use kennel::{Command, Ended, Error, Output, Policy, Sandbox, Session, Size, Stdio};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    time::timeout,
};

use crate::support::{
    World, patient,
    session::{in_time, said},
};

/// What makes commands.
enum Door {
    Sandbox(Sandbox),
    Session(Session),
}

impl Door {
    /// Both, with the same policy.
    async fn both(policy: &Policy) -> [Self; 2] {
        [Self::Sandbox(Sandbox::new(policy).unwrap()), Self::Session(Session::prepare(policy).await.unwrap())]
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Sandbox(_) => "a sandbox",
            Self::Session(_) => "a session",
        }
    }

    fn command(&self, program: &str) -> Command {
        match self {
            Self::Sandbox(sandbox) => sandbox.command(program),
            Self::Session(session) => session.command(program),
        }
    }

    fn script(&self, script: &str) -> Command {
        let mut command = self.command("sh");
        command.args(["-c", script]);
        command
    }

    /// It runs the next command, and no other is left.
    async fn goes_on(&self) {
        assert_eq!(said(&mut self.script("echo on")).await, "on\n", "{}", self.name());
        if let Self::Session(session) = self {
            assert_eq!(session.stats().running, 0);
        }
    }
}

#[tokio::test]
async fn both_streams_are_collected_apart() {
    let world = World::new();
    for door in Door::both(&world.policy()).await {
        let out = in_time(door.script("echo out; echo err >&2; cat; exit 3").output()).await.unwrap();
        let name = door.name();
        assert_eq!((&*out.stdout, &*out.stderr), (&b"out\n"[..], &b"err\n"[..]), "{name}: and no input");
        assert_eq!(
            (out.outcome.status.code(), out.outcome.exit_code(), out.outcome.ended),
            (Some(3), 3, Ended::Exited),
            "{name}"
        );
        assert_eq!(
            (out.outcome.stdout_bytes, out.outcome.stderr_bytes, out.outcome.truncated),
            (Some(4), Some(4), false),
            "{name}"
        );
        assert!(
            out.outcome.limit.is_none() && out.outcome.failure().is_none() && out.outcome.denials.is_empty(),
            "{name}: {out:?}"
        );
        assert!(
            out.outcome.duration > Duration::ZERO && out.outcome.usage.max_rss_bytes > 0,
            "{name}: {out:?}"
        );
    }
}

#[tokio::test]
async fn pipes_are_live_in_both_directions() {
    let world = World::new();
    for door in Door::both(&world.policy()).await {
        let mut command = door.script("echo first; read answer; echo got $answer; cat >&2");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = in_time(command.spawn()).await.unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(in_time(lines.next_line()).await.unwrap().unwrap(), "first", "{}", door.name());
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"it\nrest").await.unwrap();
        assert_eq!(in_time(lines.next_line()).await.unwrap().unwrap(), "got it", "{}", door.name());
        drop(stdin);
        let mut rest = String::new();
        in_time(child.stderr.take().unwrap().read_to_string(&mut rest)).await.unwrap();
        assert_eq!(rest, "rest", "{}", door.name());
        assert!(in_time(child.wait()).await.unwrap().status.success(), "{}", door.name());
    }
}

#[tokio::test]
async fn input_is_written_while_output_is_read() {
    let world = World::new();
    let input = vec![b'x'; 10 << 20];
    for door in Door::both(&world.policy()).await {
        let name = door.name();
        let out = in_time(door.command("cat").output_with_input(&input)).await.unwrap();
        assert!(out.stdout == input && out.outcome.status.success(), "{name}");
        let out = in_time(door.command("true").output_with_input(&input)).await.unwrap();
        assert!(out.outcome.status.success(), "{name}: to read nothing of it is no error");
        let out = in_time(door.command("head").args(["-c", "3"]).output_with_input(&input)).await.unwrap();
        assert_eq!(out.stdout, b"xxx", "{name}");
        let out = in_time(door.command("cat").output_with_input(b"")).await.unwrap();
        assert!(out.stdout.is_empty() && out.outcome.status.success(), "{name}");
    }
}

#[tokio::test]
async fn outputs_beyond_the_cap_are_dropped_and_counted() {
    let world = World::new();
    let mut policy = world.policy();
    policy.limits.output = Some(Size::from_bytes(10));
    for door in Door::both(&policy).await {
        let name = door.name();
        for _ in 0..2 {
            let mut command = door.script("head -c 1000000 /dev/zero; printf 0123456789 >&2");
            let out = in_time(command.output()).await.unwrap();
            assert!(
                out.outcome.status.success() && out.outcome.truncated,
                "{name}: no EPIPE: {:?}",
                out.outcome.status
            );
            let marker = b"\n[kennel: output truncated, 999990 bytes dropped]\n";
            assert_eq!(out.stdout, [&[0u8; 10][..], marker].concat(), "{name}");
            assert_eq!(out.stderr, b"0123456789", "{name}");
            assert_eq!(
                (out.outcome.stdout_bytes, out.outcome.stderr_bytes),
                (Some(1_000_000), Some(10)),
                "{name}"
            );
        }
        let out = in_time(door.command("printf").arg("0123456789").output()).await.unwrap();
        assert!(!out.outcome.truncated && out.stdout == b"0123456789", "{name}");
    }
}

#[tokio::test]
async fn output_before_a_timeout_is_kept() {
    let world = World::new();
    for door in Door::both(&world.policy()).await {
        let mut command = door.script("echo early; sleep 60");
        let out = in_time(command.timeout(patient(Duration::from_millis(300))).output()).await.unwrap();
        assert_eq!((out.outcome.ended, &*out.stdout), (Ended::TimedOut, &b"early\n"[..]), "{}", door.name());
    }
}

#[tokio::test]
async fn a_command_can_be_started_again() {
    let world = World::new();
    for door in Door::both(&world.policy()).await {
        let mut command = door.command("echo");
        command.arg("again");
        for _ in 0..3 {
            assert_eq!(said(&mut command).await, "again\n", "{}", door.name());
        }
    }
}

#[tokio::test]
async fn variables_are_those_of_the_policy_and_the_command() {
    let world = World::new();
    let policy = world.policy().set_env("A", "policy").set_env("B", "policy");
    for door in Door::both(&policy).await {
        let run = async |change: &dyn Fn(&mut Command)| {
            let mut command = door.command("/bin/sh");
            change(command.args(["-c", "echo \"$A $B $C ${PATH:+path}\""]));
            said(&mut command).await
        };
        let name = door.name();
        assert_eq!(
            run(&|command| _ = command.env("A", "mine").env("C", "new")).await,
            "mine policy new path\n",
            "{name}"
        );
        assert_eq!(
            run(&|command| _ = command.env_remove("A").env_remove("none")).await,
            " policy  path\n",
            "{name}"
        );
        assert_eq!(run(&|_| {}).await, "policy policy  path\n", "{name}: the next has the policy's");
        let cleared = run(&|command| _ = command.env_clear().env("C", "only")).await;
        assert!(cleared.starts_with("  only"), "{name}: {cleared}");
        let mut env = door.command("/usr/bin/env");
        assert_eq!(said(env.env_clear().env("ONLY", "this")).await, "ONLY=this\n", "{name}");
        assert_eq!(said(door.command("/usr/bin/env").env_clear()).await, "", "{name}");
    }
}

#[tokio::test]
async fn nul_bytes_are_refused_and_values_not_repeated() {
    let world = World::new();
    for door in Door::both(&world.policy()).await {
        let name = door.name();
        let refused = |result: Result<Output, Error>, begin: &str, end: &str| {
            let error = result.unwrap_err();
            let chain = error.chain();
            assert!(chain.starts_with(begin) && chain.ends_with(end), "{name}: {chain}");
            assert!(
                !chain.contains("hidden") && !format!("{error:?}").contains("hidden"),
                "{name}: {error:?}"
            );
        };
        let nul = "contains a NUL byte";
        refused(in_time(door.command("a\0b").output()).await, "program", nul);
        refused(in_time(door.command("true").arg("a\0b").output()).await, "argument", nul);
        let hidden = in_time(door.command("true").env("A", "hidden\0").output()).await;
        refused(hidden, "environment variable `A`", nul);
        refused(in_time(door.command("true").current_dir("a\0b").output()).await, "working directory", nul);
        for variable in ["", "A=B"] {
            let error = in_time(door.command("true").env(variable, "hidden").output()).await.unwrap_err();
            let chain = error.chain();
            assert!(chain.contains("is not a name") && !chain.contains("hidden"), "{name}: {error:?}");
        }
        refused(in_time(door.command("").output()).await, "program ``", ": is empty");
        if let Door::Session(session) = &door {
            assert_eq!(session.stats().served, 0, "no worker was used");
        }
        door.goes_on().await;
    }
}

#[tokio::test]
async fn arguments_that_are_too_long_are_not_executable() {
    let world = World::new();
    for door in Door::both(&world.policy()).await {
        let mut one = door.command("true");
        one.arg("x".repeat(2 << 20));
        let mut many = door.command("true");
        many.args((0..400).map(|_| "x".repeat(10 << 10)));
        for command in [&mut one, &mut many] {
            let error = in_time(command.output()).await.unwrap_err();
            let Error::NotExecutable { source, .. } = &error else { panic!("{}: {error:?}", door.name()) };
            assert_eq!(source.raw_os_error(), Some(libc::E2BIG), "{}", door.name());
            door.goes_on().await;
        }
        let mut printf = door.command("printf");
        let longest = said(printf.args(["%s", &"x".repeat(100 << 10)])).await;
        assert_eq!(longest.len(), 100 << 10, "{}", door.name());
    }
}

#[tokio::test]
async fn wait_can_be_cancelled_and_called_again() {
    let world = World::new();
    for door in Door::both(&world.policy()).await {
        let mut child = in_time(door.script("sleep 0.3; exit 5").spawn()).await.unwrap();
        let mut rounds = 0;
        let outcome = loop {
            rounds += 1;
            if let Ok(outcome) = timeout(Duration::from_millis(20), child.wait()).await {
                break outcome.unwrap();
            }
        };
        assert_eq!(outcome.status.code(), Some(5), "{}", door.name());
        assert!((3..100).contains(&rounds), "{}: {rounds}: {outcome:?}", door.name());
    }
}

#[tokio::test]
async fn files_and_null_are_streams() {
    let world = World::new();
    fs::write(world.at("in"), "from file").unwrap();
    for door in Door::both(&world.policy()).await {
        let (input, output) =
            (fs::File::open(world.at("in")).unwrap(), fs::File::create(world.at("out")).unwrap());
        let mut command = door.script("cat; echo lost >&2");
        command.stdin(input).stdout(output).stderr(Stdio::null());
        assert!(in_time(command.status()).await.unwrap().status.success(), "{}", door.name());
        assert_eq!(fs::read_to_string(world.at("out")).unwrap(), "from file", "{}", door.name());
    }
}

#[tokio::test]
async fn debug_output_shows_no_values() {
    let world = World::new();
    let policy = world.policy().set_env("FROM_POLICY", "hidden-value");
    for door in Door::both(&policy).await {
        let mut command = door.command("sleep");
        command.arg("60").arg("visible-argument").env("TOKEN", "hidden-value");
        let text = format!("{command:?}");
        for shown in ["TOKEN", "FROM_POLICY", "visible-argument"] {
            assert!(text.contains(shown), "{}: {text}", door.name());
        }
        let child = in_time(door.command("sleep").arg("60").spawn()).await.unwrap();
        let made = match &door {
            Door::Sandbox(sandbox) => format!("{sandbox:?}"),
            Door::Session(session) => format!("{session:?}"),
        };
        let all = format!("{text} {child:?} {made}");
        assert!(!all.contains("hidden-value"), "{}: {all}", door.name());
    }
}
