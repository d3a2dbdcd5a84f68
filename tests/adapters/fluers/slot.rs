//! The trait by itself: what the harness starts, where, and with which variables.

use std::{fs, path::PathBuf, process::Stdio, sync::Arc, time::Instant};

use fluers_runtime::{
    ExecSandboxContext, ProcessSandbox,
    SandboxProfile::{CiOnly, FullDev, NoNetwork, ReadOnly, RepoWrite},
};
use kennel::Policy;
use kennel_adapters::fluers::KennelSandbox;

use super::{commands::quiet, context, wrapped};
use crate::support::{HEARTBEAT, beats, stderr, stdout, workspace};

/// Runs the answered command. It does not block the runtime that serves the command.
async fn run(mut command: std::process::Command) -> std::process::Output {
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

#[tokio::test]
async fn no_directory_is_the_workspace() {
    let (dir, kennel) = (workspace(), KennelSandbox::new());
    let context = context(dir.path(), RepoWrite);
    kennel.prepare(&context).await.unwrap();
    let mut command = wrapped(&kennel, &context, &["pwd"]);
    command.current_dir("/");
    let output = run(command).await;
    assert_eq!(stdout(&output), dir.path().to_str().unwrap(), "{output:?}");
}

#[tokio::test]
async fn directory_is_taken_as_it_is_named() {
    let (dir, kennel) = (workspace(), KennelSandbox::new());
    fs::create_dir(dir.path().join("sub")).unwrap();
    let plain = context(dir.path(), RepoWrite);
    kennel.prepare(&plain).await.unwrap();
    let sub = dir.path().join("sub");
    for (cwd, place) in [(sub.clone(), sub.clone()), ("sub".into(), sub), ("/usr".into(), "/usr".into())] {
        let context = ExecSandboxContext { cwd: Some(cwd), ..plain.clone() };
        let output = run(wrapped(&kennel, &context, &["pwd"])).await;
        assert_eq!(PathBuf::from(stdout(&output)), place, "{output:?}");
    }
}

#[tokio::test]
async fn directory_that_is_not_visible_is_an_error() {
    let (dir, other, kennel) = (workspace(), workspace(), KennelSandbox::new());
    for profile in [ReadOnly, RepoWrite, NoNetwork, CiOnly] {
        let plain = context(dir.path(), profile);
        kennel.prepare(&plain).await.unwrap();
        for cwd in ["/srv", "/boot", "/boot/x", "/etc/passwd", "..", "sub/../.."] {
            let context = ExecSandboxContext { cwd: Some(cwd.into()), ..plain.clone() };
            let error = kennel.wrap(&["pwd".to_owned()], &context).expect_err(cwd).to_string();
            assert!(error.contains("cwd /"), "{error}");
        }
        // A path may turn out to be missing when the command starts. Then nothing runs in another place.
        let cwds = [dir.path().join("missing"), other.path().to_owned()];
        for cwd in cwds {
            let context = ExecSandboxContext { cwd: Some(cwd.clone()), ..plain.clone() };
            let output = run(wrapped(&kennel, &context, &["sh", "-c", "echo ran"])).await;
            assert_eq!(output.status.code(), Some(125), "{output:?}");
            assert!(output.stdout.is_empty(), "{output:?}");
            assert!(stderr(&output).contains(cwd.to_str().unwrap()), "{output:?}");
        }
    }
}

#[tokio::test]
async fn variables_are_the_sessions() {
    let (dir, kennel) = (workspace(), KennelSandbox::with_policy(Policy::default().set_env("OWN", "a b")));
    let context =
        ExecSandboxContext { egress: vec!["a.example:443".into()], ..context(dir.path(), RepoWrite) };
    kennel.prepare(&context).await.unwrap();
    let wrap = kennel.wrap(&["env".to_owned()], &context).unwrap();
    assert!(wrap.env["https_proxy"].starts_with("http://127.0.0.1:"), "{:?}", wrap.env);
    assert_eq!(wrap.env["HTTPS_PROXY"], wrap.env["https_proxy"]);
    assert_eq!(wrap.env["OWN"], "a b");
    assert!(wrap.env.contains_key("PATH") && wrap.env.contains_key("HOME"));
    let inside = stdout(&run(wrapped(&kennel, &context, &["env"])).await);
    for (name, value) in &wrap.env {
        assert!(inside.lines().any(|line| line == format!("{name}={value}")), "{name}: {inside}");
    }
    assert_eq!(inside.lines().count(), wrap.env.len(), "{inside}");
}

#[tokio::test]
async fn nothing_of_the_harness_comes_in() {
    let (dir, kennel) = (workspace(), KennelSandbox::new());
    for profile in [ReadOnly, RepoWrite, FullDev, CiOnly] {
        let context = context(dir.path(), profile);
        kennel.prepare(&context).await.unwrap();
        let mut command = wrapped(&kennel, &context, &["sh", "-c", "env; ls /proc/self/fd"]);
        command
            .env("OPENAI_API_KEY", "sk-secret")
            .env("HOME", "/nowhere")
            .env("https_proxy", "http://evil:1");
        let said = stdout(&run(command).await);
        assert!(!said.contains("sk-secret") && !said.contains("/nowhere"), "{said}");
        assert!(!said.contains("evil"), "{said}");
        assert!(said.contains("\n0\n1\n2\n3"), "{said}");
    }
}

#[tokio::test]
async fn commands_that_cannot_be_wrapped_are_errors() {
    let (dir, kennel) = (workspace(), KennelSandbox::new());
    let context = context(dir.path(), RepoWrite);
    let argv = ["true".to_owned()];
    let said = kennel.wrap(&argv, &context).expect_err("not prepared").to_string();
    assert!(said.contains("not prepared") && said.contains(dir.path().to_str().unwrap()), "{said}");
    kennel.prepare(&context).await.unwrap();
    kennel.wrap(&argv, &context).unwrap();
    let said = kennel.wrap(&[], &context).expect_err("no command").to_string();
    assert!(said.contains("empty"), "{said}");
    for other in [
        ExecSandboxContext { profile: ReadOnly, ..context.clone() },
        ExecSandboxContext { egress: vec!["a:1".into()], ..context.clone() },
        ExecSandboxContext { workspace_path: dir.path().join("sub"), ..context.clone() },
    ] {
        kennel.wrap(&argv, &other).expect_err("another context");
    }
}

#[tokio::test]
async fn failed_preparation_is_an_error_and_leaves_nothing() {
    let (dir, kennel) = (workspace(), KennelSandbox::new());
    let missing = context(&dir.path().join("missing"), RepoWrite);
    let said = kennel.prepare(&missing).await.expect_err("missing").to_string();
    assert!(said.contains("workspace") && said.contains("No such file"), "{said}");
    for (profile, entry, words) in [
        (NoNetwork, "a.example:443", "has no network"),
        (NoNetwork, "*", "has no network"),
        (ReadOnly, "a.example:443", "has no network"),
        (RepoWrite, "a.example", "write `a.example:443`"),
        (CiOnly, "http://a.example", "not a URL"),
        (FullDev, "a.example:443", "by port only"),
    ] {
        let context = ExecSandboxContext { egress: vec![entry.into()], ..context(dir.path(), profile) };
        let said = kennel.prepare(&context).await.expect_err(entry).to_string();
        assert!(said.contains(entry) && said.contains(words), "{said}");
        kennel.wrap(&["true".to_owned()], &context).expect_err("not prepared");
    }
}

#[tokio::test]
async fn contexts_live_side_by_side() {
    let (one, two, kennel) = (workspace(), workspace(), KennelSandbox::new());
    let contexts =
        [context(one.path(), RepoWrite), context(two.path(), RepoWrite), context(one.path(), ReadOnly)];
    for context in &contexts {
        kennel.prepare(context).await.unwrap();
    }
    let script = ["sh", "-c", "touch new; pwd; ls"];
    let [first, second, third] = &contexts;
    assert_eq!(
        stdout(&run(wrapped(&kennel, first, &script)).await),
        format!("{}\nnew", one.path().display())
    );
    assert_eq!(
        stdout(&run(wrapped(&kennel, second, &script)).await),
        format!("{}\nnew", two.path().display())
    );
    fs::remove_file(one.path().join("new")).unwrap();
    let output = run(wrapped(&kennel, third, &script)).await;
    assert!(stderr(&output).contains("Read-only file system"), "{output:?}");
    assert!(!one.path().join("new").exists());
    let other = two.path().to_str().unwrap();
    let output = run(wrapped(&kennel, first, &["ls", other])).await;
    assert!(stderr(&output).contains("No such file"), "{output:?}");
}

#[tokio::test]
async fn killed_client_kills_the_command() {
    let (dir, kennel) = (workspace(), KennelSandbox::new());
    let context = context(dir.path(), NoNetwork);
    kennel.prepare(&context).await.unwrap();
    let mut command = wrapped(&kennel, &context, &["sh", "-c", HEARTBEAT]);
    let mut child = command.stdin(Stdio::null()).spawn().unwrap();
    while beats(dir.path()) < 3 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    quiet(dir.path()).await;
}

#[tokio::test]
async fn wrapping_is_cheap() {
    let (dir, kennel) = (workspace(), Arc::new(KennelSandbox::new()));
    let context = context(dir.path(), RepoWrite);
    kennel.prepare(&context).await.unwrap();
    let argv = ["sh", "-c", "true"].map(str::to_owned);
    let start = Instant::now();
    for _ in 0..1000 {
        kennel.wrap(&argv, &context).unwrap();
    }
    let each = start.elapsed() / 1000;
    eprintln!("wrap: {each:?}");
    assert!(each.as_micros() < 1000, "{each:?}");
}
