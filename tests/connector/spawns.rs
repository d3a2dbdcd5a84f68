//! Spawns: real programs in the sandbox, as the manifest and the call allow them.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kennel::connector::{
    Call, CallLimits, Connector, Runtime, RuntimeBuilder, SpawnExecutor, Spawned, Spawning,
};
use kennel::{
    Error,
    broker::{CheckedSpawn, CredentialResolver, Manifest},
    report::{Boundary, Class, Failure, Protection},
};
use nix::sys::stat::Mode;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::credentials::Vault;
use crate::steps::{Guest, Ran, Said, run};
use crate::traces;

/// A directory with the script `tool`, and the directory `out` that it may write to.
pub(crate) struct Home(TempDir);

impl Home {
    pub(crate) fn new(script: &str) -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        fs::create_dir(home.at("out")).unwrap();
        fs::write(home.at("tool"), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(home.at("tool"), PermissionsExt::from_mode(0o755)).unwrap();
        home
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A manifest with `tool`, git, and these lines of `[capabilities.spawn]`.
    pub(crate) fn manifest(&self, more: &str) -> Manifest {
        let (tool, out) = (self.at("tool"), self.at("out"));
        let text = format!(
            "[connector]\nname = 'test'\n[capabilities.network]\nhosts = ['a.example:443']\n[capabilities.spawn]\n\
            programs = [{{ path = {tool:?} }}, {{ path = '/usr/bin/git' }}]\n\
            fs_write = [{out:?}]\ncwd = {out:?}\n{more}"
        );
        Manifest::from_toml(&text).unwrap()
    }

    fn connector(&self, builder: RuntimeBuilder, more: &str, guest: Guest) -> Connector {
        builder.build().unwrap().compile(&self.manifest(more), &guest.program()).unwrap()
    }

    async fn run(&self, more: &str, guest: Guest, call: Call) -> Ran {
        run(&self.connector(builder(), more, guest), call).await
    }
}

fn builder() -> RuntimeBuilder {
    Runtime::builder().at_once(4)
}

fn call() -> Call {
    Call::new("op")
}

/// `tool` with these arguments.
fn tool(argv: &[&str]) -> Value {
    let argv = [&["tool"], argv].concat();
    json!({"program": "tool", "argv": argv})
}

/// What a program says of a spawn that ran.
fn ended(status: i32, stdout: &str, stderr: &str) -> Said {
    let size = |text: &str| i32::try_from(text.len()).unwrap();
    Said {
        numbers: vec![0, status, size(stdout), 0, size(stderr), 0],
        texts: vec![stdout.to_owned(), stderr.to_owned()],
    }
}

/// What it says of one that did not run.
fn not_run(code: i32) -> Said {
    Said { numbers: vec![code, -1, -1, -1, -1, -1], texts: vec![String::new(), String::new()] }
}

fn details(ran: &Ran) -> Value {
    serde_json::to_value(Failure::from(ran.error()).details).unwrap()
}

#[tokio::test]
async fn an_operation_runs_git_in_the_sandbox() {
    let home = Home::new("");
    let operations = "[capabilities.spawn.operations]\nversion = 'git --version'\ninit = 'git init {dir}'";
    let guest = Guest::new()
        .operation("version", &json!({}))
        .operation("init", &json!({"dir": "project"}))
        .operation("init", &json!({"dir": "/etc/project"}));
    let ran = home.run(operations, guest, call()).await;
    let [version, init, outside] = &ran.said[..] else { panic!("{ran:?}") };
    assert!(version.texts[0].starts_with("git version "), "{version:?}");
    assert_eq!((init.numbers[0], init.numbers[1]), (0, 0), "{init:?}");
    assert!(home.at("out/project/.git/HEAD").is_file());
    // The sandbox shows nothing that could be written to there.
    assert!(outside.numbers[0] == 0 && outside.numbers[1] > 0, "{outside:?}");
    assert!(!Path::new("/etc/project").exists());
    ran.ended.unwrap();
}

#[tokio::test]
async fn a_program_reads_the_status_and_both_outputs() {
    let home = Home::new("printf '%s' \"out:$1\"; printf '%s' err: >&2; cat >&2; exit \"$2\"");
    let envelope = json!({"program": "tool", "argv": ["tool", "a  b\n", "0"], "stdin": "given"});
    let (path, out) = (home.at("tool"), home.at("out"));
    let other = json!({"program": path, "argv": ["any", "é", "7"], "env": {}, "cwd": out});
    let guest = Guest::new().spawned().spawn(&envelope).spawn(&other).spawn(&tool(&["", "300"]));
    let ran = home.run("", guest, call()).await;
    let nothing = Said { numbers: vec![-1; 5], texts: vec![String::new(), String::new()] };
    // A shell takes the status modulo 256.
    let all =
        [nothing, ended(0, "out:a  b\n", "err:given"), ended(7, "out:é", "err:"), ended(44, "out:", "err:")];
    assert_eq!(ran.said, all);
    // A status other than 0 is no failure of the call.
    ran.ended.unwrap();
}

#[tokio::test]
async fn null_is_what_an_absent_key_is() {
    let home = Home::new("echo $#");
    let envelope = json!({"program": "tool", "argv": ["tool"], "env": null, "cwd": null, "stdin": null, "credential_env_keys": null});
    let operation = "[capabilities.spawn.operations]\nop = 'tool [{word}]'";
    let guest = Guest::new().spawn(&envelope).operation("op", &json!(null));
    let ran = home.run(operation, guest, call()).await;
    assert_eq!(ran.said, [ended(0, "0\n", ""), ended(0, "0\n", "")]);
}

#[tokio::test]
async fn a_spawned_program_reaches_no_host_that_the_call_does_not_allow() {
    let home = Home::new("echo ${HTTPS_PROXY:+proxy}");
    for (hosts, said) in [(&[][..], "proxy\n"), (&["a.example:443"], "proxy\n"), (&["b.example:443"], "\n")] {
        let guest = Guest::new().spawn(&tool(&[]));
        let ran = home.run("", guest, call().allow_hosts(hosts.iter().copied())).await;
        assert_eq!(ran.said, [ended(0, said, "")], "{hosts:?}");
    }
}

#[tokio::test]
async fn a_signal_is_128_and_its_number() {
    let home = Home::new("kill -TERM $$");
    assert_eq!(home.run("", Guest::new().spawn(&tool(&[])), call()).await.said[0].numbers[1], 143);
}

#[tokio::test]
async fn outputs_have_only_two_numbers_and_need_room() {
    let home = Home::new("echo hello");
    let guest = Guest::new().spawn(&tool(&[])).run(
        "(call $number (call $output_size (i32.const 2)))
         (call $number (call $output_size (i32.const -1)))
         (call $number (call $output_read (i32.const 2) (i32.const 0) (i32.const 10)))
         (call $line)",
    );
    let ran = home.run("", guest, call()).await;
    assert_eq!(ran.said[1].numbers, [-1, -1, -1]);
    let guest = Guest::new()
        .raw_spawn(tool(&[]).to_string())
        .run("(drop (call $output_read (i32.const 0) (i32.const 0) (i32.const -1)))");
    let ran = home.run("", guest, call()).await;
    assert_eq!(ran.error().to_string(), "spawn_output_read: the range is not in the memory of the program");
}

#[tokio::test]
async fn long_outputs_are_cut_at_the_limit_of_the_manifest() {
    let home = Home::new("printf 0123456789abcdef; printf 0123456789 >&2");
    let limits = "[capabilities.spawn.limits]\nmax_stdout_bytes = 10";
    let ran = home.run(limits, Guest::new().spawn(&tool(&[])), call()).await;
    let cut = "0123456789\n[kennel: output truncated, 6 bytes dropped]\n";
    assert_eq!(ran.said, [ended(0, cut, "0123456789")]);
}

#[tokio::test]
async fn credentials_are_in_the_environment_of_the_child_only() {
    const SECRET: &str = "correct-horse-battery";
    traces::keep();
    let home = Home::new("printf %s \"${#TOKEN} ${OTHER-none}\"");
    let keys = "env_passthrough = ['OTHER']\ncredential_env_keys = ['TOKEN']\n\
        [capabilities.spawn.operations]\nop = 'tool {word}'";
    let with = json!({"program": "tool", "argv": ["tool", "a"], "env": {"OTHER": "x"}, "credential_env_keys": ["TOKEN"]});
    let without = tool(&["a"]);
    let vault = Vault::with(SECRET);
    let guest = Guest::new().spawn(&with).spawn(&without).operation("op", &json!({"word": "w"})).dump();
    let ran = home.run(keys, guest, call().credentials(vault.clone())).await;
    let length = SECRET.len();
    let expected = [
        ended(0, &format!("{length} x"), ""),
        ended(0, "0 none", ""),
        ended(0, &format!("{length} none"), ""),
    ];
    assert_eq!(ran.said, expected);
    assert_eq!(vault.asked(), ["TOKEN", "TOKEN"]);
    let memory = ran.ended.as_ref().unwrap().output.as_ref().unwrap()["memory"].as_str().unwrap().to_owned();
    let memory = String::from_utf8_lossy(&crate::steps::bytes(&memory)).into_owned();
    assert!(memory.contains("credential_env_keys"), "the memory was read");
    for text in [format!("{ran:?}"), traces::all(), memory] {
        assert!(!text.contains("correct-horse"));
    }
}

#[tokio::test]
async fn a_credential_that_is_not_there_runs_nothing() {
    let home = Home::new("touch ran");
    let keys = "credential_env_keys = ['TOKEN']";
    let asks = json!({"program": "tool", "argv": ["tool"], "credential_env_keys": ["TOKEN"]});
    let other = json!({"program": "tool", "argv": ["tool"], "credential_env_keys": ["PATH"]});
    for (envelope, vault, class, message) in [
        (&asks, None, Class::BindingRequired, "credential TOKEN is required and was not given"),
        (&asks, Some(Ok(None)), Class::BindingRequired, "credential TOKEN is required and was not given"),
        (&asks, Some(Err("it is locked")), Class::BindingFailed, "credential TOKEN: it is locked"),
        (&other, Some(Ok(Some("x"))), Class::CapabilityDenied, "credential PATH: "),
    ] {
        let mut call = call();
        if let Some(answer) = vault {
            call = call.credentials(Vault::answering(answer));
        }
        let ran = home.run(keys, Guest::new().spawn(envelope), call).await;
        assert_eq!(ran.error().failure().class, class);
        assert!(ran.error().to_string().starts_with(message), "{}", ran.error());
        assert_eq!(ran.said, [not_run(-1)]);
    }
    assert!(!home.at("out/ran").exists());
}

#[tokio::test]
async fn what_the_manifest_does_not_grant_is_denied() {
    let home = Home::new("touch ran");
    let operations = "[capabilities.spawn.operations]\nop = 'tool {word}'";
    for (guest, requested, granted) in [
        (Guest::new().spawn(&json!({"program": "/bin/sh", "argv": ["sh", "-c", "true"]})), "/bin/sh", None),
        (
            Guest::new()
                .spawn(&json!({"program": "tool", "argv": ["tool", "w"], "env": {"LD_PRELOAD": "x"}})),
            "LD_PRELOAD",
            None,
        ),
        (Guest::new().spawn(&json!({"program": "tool", "argv": ["tool", "w"], "cwd": "/etc"})), "/etc", None),
        (Guest::new().spawn(&tool(&["a", "b"])), "2 arguments", None),
        // The pattern is matched from its program on.
        (
            Guest::new().spawn(&json!({"program": "tool", "argv": ["w"]})),
            "0 arguments",
            Some(json!(["tool {word}"])),
        ),
        (Guest::new().spawn(&json!({"program": "tool", "argv": []})), "0 arguments", Some(json!([]))),
        (Guest::new().operation("other", &json!({})), "other", Some(json!(["op"]))),
        (Guest::new().operation("op", &json!({})), "op", None),
        (Guest::new().operation("op", &json!({"word": "w", "more": "x"})), "op", None),
        (Guest::new().operation("op", &json!({"word": "--option"})), "op", None),
    ] {
        let ran = home.run(operations, guest, call()).await;
        assert_eq!(ran.error().failure().class, Class::CapabilityDenied, "{ran:?}");
        assert_eq!(ran.said, [not_run(-1)]);
        let details = details(&ran);
        assert!(details["requested"].as_str().unwrap().contains(requested), "{details}");
        if let Some(granted) = granted {
            assert_eq!(details["granted"], granted);
        }
    }
    assert!(!home.at("out/ran").exists());
}

#[tokio::test]
async fn a_call_narrows_the_programs_of_the_manifest() {
    let home = Home::new("echo ran");
    let path = home.at("tool").display().to_string();
    for allowed in [&[][..], &["tool"], &[&*path], &["git", "tool"]] {
        let call = call().allow_programs(allowed.iter().copied());
        let ran = home.run("", Guest::new().spawn(&tool(&[])), call).await;
        assert_eq!(ran.said, [ended(0, "ran\n", "")]);
    }
    let operations = "[capabilities.spawn.operations]\nop = 'tool'";
    let operation = || Guest::new().operation("op", &json!({}));
    for guest in [Guest::new().spawn(&tool(&[])), operation()] {
        let ran = home.run(operations, guest, call().allow_programs(["git", "/bin/tool"])).await;
        let failure = ran.error().failure();
        assert_eq!((failure.class, failure.boundary), (Class::CapabilityDenied, Boundary::Action));
        assert_eq!(details(&ran), json!({"requested": "tool", "granted": ["git", "/bin/tool"]}));
        assert_eq!(ran.said, [not_run(-1)]);
    }
    // A call does not widen the manifest.
    let guest = Guest::new().spawn(&json!({"program": "/bin/sh"}));
    let ran = home.run("", guest, call().allow_programs(["/bin/sh"])).await;
    assert_eq!(ran.error().failure().boundary, Boundary::Manifest);
}

#[tokio::test]
async fn malformed_envelopes_are_told_and_are_no_failure_of_the_call() {
    let home = Home::new("touch ran");
    let operations = "[capabilities.spawn.operations]\nop = 'tool {word}'";
    for envelope in [
        "",
        "[]",
        "null",
        "{}",
        r#"{"program": 1}"#,
        r#"{"program": "tool", "argv": "x"}"#,
        r#"{"program": "tool", "argv": [1]}"#,
        r#"{"program": "tool"} x"#,
        r#"{"program": "tool", "env": {"A": "1", "A": "2"}}"#,
    ] {
        let ran = home.run(operations, Guest::new().raw_spawn(envelope), call()).await;
        assert_eq!(ran.said, [not_run(-2)], "{envelope}");
        assert!(ran.told[0].starts_with("spawn: envelope:1:"), "{:?}", ran.told);
        ran.ended.unwrap();
    }
    for arguments in [" ", "[]", r#"{"word": 1}"#, r#"{"word": null}"#, r#"{"word": ["a"]}"#, "\u{fffd}"] {
        let ran = home.run(operations, Guest::new().raw_operation("op", arguments), call()).await;
        assert_eq!(ran.said, [not_run(-2)], "{arguments}");
        assert_eq!(ran.told, ["spawn_op: its arguments are no JSON object of strings"]);
        ran.ended.unwrap();
    }
    assert!(!home.at("out/ran").exists());
}

#[tokio::test]
async fn a_key_that_kennel_does_not_know_is_ignored_and_logged() {
    let home = Home::new("echo ran");
    let envelope = r#"{"program": "tool", "argv": ["tool"], "forwarder": {"a": 1}, "\u001b[2J": 2}"#;
    let ran = home.run("", Guest::new().raw_spawn(envelope), call()).await;
    assert_eq!(ran.said, [ended(0, "ran\n", "")]);
    assert_eq!(ran.told, ["spawn: Kennel ignores unknown keys of the envelope: \\u{1b}[2J, forwarder"]);

    let told = Arc::new(Mutex::new(Vec::new()));
    let own = Arc::clone(&told);
    let builder = builder().log_sink(move |name, line| {
        own.lock().unwrap().push(format!("{name}: {}: {}", line.level, line.message));
    });
    home.connector(builder, "forwarder = 'ssh'", Guest::new().spawn(&tool(&[])));
    let expected = "test: warn: manifest:9:1: Kennel does not know the key `forwarder` and ignores it";
    assert_eq!(*told.lock().unwrap(), [expected]);
}

#[tokio::test]
async fn no_arguments_and_empty_ones_are_what_is_left_out() {
    let home = Home::new("echo $#");
    let operations = "[capabilities.spawn.operations]\nop = 'tool [--word {word}]'";
    let guest = Guest::new()
        .raw_operation("op", "")
        .operation("op", &json!({"word": ""}))
        .operation("op", &json!({"word": "w"}));
    let ran = home.run(operations, guest, call()).await;
    assert_eq!(ran.said, [ended(0, "0\n", ""), ended(0, "0\n", ""), ended(0, "2\n", "")]);
}

#[tokio::test]
async fn a_spawn_forgives_spawns_only() {
    let home = Home::new("echo ran");
    let (good, denied) = (tool(&[]), json!({"program": "/bin/sh"}));
    let request = json!({"url": "http://127.0.0.1:1/"});
    let output = r#"{"output":{}}"#;
    for (guest, class) in [
        (Guest::new().spawn(&denied).print(output), true),
        (Guest::new().spawn(&good).spawn(&denied).print(output), true),
        (Guest::new().request(&request).spawn(&good).print(output), true),
        (Guest::new().spawn(&denied).raw_spawn("").print(output), true),
        (Guest::new().spawn(&denied).spawn(&good).print(output), false),
    ] {
        let ran = home.run("", guest, call()).await;
        match class {
            true => assert_eq!(ran.error().failure().class, Class::CapabilityDenied),
            false => assert!(ran.ended.unwrap().output.is_some()),
        }
    }
}

#[tokio::test]
async fn the_limit_of_the_manifest_ends_a_spawn() {
    let home = Home::new("echo begun; sleep 1000");
    let limits = "[capabilities.spawn.limits]\nmax_wall_seconds = 1";
    let ran = home.run(limits, Guest::new().spawn(&tool(&[])), call()).await;
    assert_eq!(ran.said, [ended(124, "begun\n", "")]);
    ran.ended.unwrap();
}

/// A script that says something on a FIFO, and keeps it open as long as any of its processes lives.
const HOLDS: &str = "exec 3>pipe; echo begun >&3; sleep 1000 & sleep 1000";

/// Opens the FIFO of [`HOLDS`] for reading. It waits for no writer.
fn pipe(home: &Home) -> File {
    nix::unistd::mkfifo(&home.at("out/pipe"), Mode::S_IRWXU).unwrap();
    OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(home.at("out/pipe")).unwrap()
}

/// Waits until the pipe has a line, or until nothing has it open.
async fn read(pipe: &mut File, line: Option<&str>) {
    let mut text = String::new();
    loop {
        let mut bytes = [0; 64];
        match (pipe.read(&mut bytes), line) {
            (Ok(0), None) => return,
            (Ok(count), _) => text.push_str(std::str::from_utf8(&bytes[..count]).unwrap()),
            (Err(error), _) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        if line.is_some_and(|line| text == line) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn the_wall_time_of_the_call_ends_a_spawn_with_all_its_processes() {
    let home = Home::new(HOLDS);
    let mut pipe = pipe(&home);
    let limits = CallLimits { wall_time: Some(Duration::from_secs(3)), ..CallLimits::default() };
    let connector = home.connector(builder(), "", Guest::new().spawn(&tool(&[])));
    let (ran, ()) = tokio::join!(run(&connector, call().limits(limits)), read(&mut pipe, Some("begun\n")));
    assert_eq!(ran.error().failure().class, Class::ResourceLimitExceeded);
    assert_eq!(details(&ran), json!({"limit": "wall_time", "configured": "3s"}));
    read(&mut pipe, None).await;
}

#[tokio::test]
async fn dropping_a_call_ends_its_spawn_with_all_its_processes() {
    let home = Home::new(HOLDS);
    let mut pipe = pipe(&home);
    let connector = home.connector(builder().at_once(1), "", Guest::new().spawn(&tool(&[])));
    for _ in 0..3 {
        tokio::select! {
            ended = connector.invoke(call()) => unreachable!("{ended:?}"),
            () = read(&mut pipe, Some("begun\n")) => {}
        }
        read(&mut pipe, None).await;
    }
}

/// What an executor was asked to run.
#[derive(Clone, Debug, PartialEq)]
struct Asked {
    program: PathBuf,
    argv: Vec<String>,
    operation: Option<String>,
    fs_write: Vec<PathBuf>,
    cwd: Option<PathBuf>,
    hosts: Vec<String>,
    caps: [u64; 2],
}

/// Runs nothing: answers, and keeps what it was asked.
#[derive(Clone)]
struct Fake {
    answer: fn() -> Result<Spawned, kennel::broker::SpawnError>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl SpawnExecutor for Fake {
    fn spawn<'s>(&'s self, spawn: &'s CheckedSpawn, credentials: &'s dyn CredentialResolver) -> Spawning<'s> {
        let asked = Asked {
            program: spawn.program().to_owned(),
            argv: spawn.argv().to_vec(),
            operation: spawn.operation().map(str::to_owned),
            fs_write: spawn.fs_write().to_vec(),
            cwd: spawn.cwd().map(Path::to_owned),
            hosts: spawn.hosts().to_vec(),
            caps: [spawn.stdout_cap(), spawn.stderr_cap()],
        };
        self.asked.lock().unwrap().push(asked);
        Box::pin(async {
            credentials.resolve("TOKEN").await.unwrap();
            (self.answer)()
        })
    }
}

#[tokio::test]
async fn another_executor_runs_what_passed_the_gate() {
    let home = Home::new("touch ran");
    let fake = |answer| Fake { answer, asked: Arc::default() };
    let operations = "[capabilities.spawn.operations]\nop = 'tool {word}'\n[capabilities.spawn.limits]\n\
        max_stdout_bytes = 9\nmax_stderr_bytes = 0";
    let guest = || Guest::new().operation("op", &json!({"word": "w"}));

    let says = fake(|| Ok(Spawned { status: -5, stdout: b"o".to_vec(), stderr: b"e".to_vec() }));
    let vault = Vault::with("x");
    let log = home.at("audit.log");
    let connector = home.connector(builder().spawn_executor(says.clone()).audit(&log), operations, guest());
    let ran = run(&connector, call().credentials(vault.clone())).await;
    assert_eq!(ran.said, [ended(-5, "o", "e")]);
    assert_eq!(vault.asked(), ["TOKEN"]);
    let real = |name: &str| fs::canonicalize(home.at(name)).unwrap();
    let asked = Asked {
        program: real("tool"),
        argv: vec!["tool".to_owned(), "w".to_owned()],
        operation: Some("op".to_owned()),
        fs_write: vec![real("out")],
        cwd: Some(real("out")),
        hosts: vec!["a.example:443".to_owned()],
        caps: [9, 256 << 10],
    };
    assert_eq!(says.asked.lock().unwrap()[..], *std::slice::from_ref(&asked));
    // The call narrows what it gets, and the gate asks it nothing that is not allowed.
    run(&connector, call().allow_hosts(["b.example:443"])).await.ended.unwrap();
    assert_eq!(says.asked.lock().unwrap()[1], Asked { hosts: Vec::new(), ..asked });
    let ran = run(&connector, call().allow_programs(["git"])).await;
    assert_eq!(ran.error().failure().boundary, Boundary::Action);
    let denied = Guest::new().spawn(&json!({"program": "/bin/sh", "argv": ["sh"]})).spawn(&tool(&["w", "x"]));
    let connector = home.connector(builder().spawn_executor(says.clone()).audit(&log), operations, denied);
    assert_eq!(run(&connector, call()).await.said, [not_run(-1), not_run(-1)]);
    assert_eq!(says.asked.lock().unwrap().len(), 2);
    let written = fs::read_to_string(&log).unwrap();
    let lines = written.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let decisions: Vec<_> = lines
        .filter(|line| line["event"] == "spawn")
        .map(|line| line["decision"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(decisions, ["allowed", "allowed", "denied", "denied", "denied"], "{written}");

    let lacks = fake(|| {
        let (protection, reason) = (Protection::Root, "no user namespaces".to_owned());
        Err(Error::Unavailable { protection, reason, remedy: Some("turn them on".into()) }.into())
    });
    let connector = home.connector(builder().spawn_executor(lacks), operations, guest());
    let ran = run(&connector, call()).await;
    assert_eq!(ran.said, [not_run(-3)]);
    assert_eq!(ran.error().failure().class, Class::SpawnSandboxUnavailable);
    assert_eq!(details(&ran)["remedy"], "turn them on");
    assert!(!home.at("out/ran").exists());
}
