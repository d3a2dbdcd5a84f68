//! Credentials are in no log, report, process list, memory or core file, and in no environment but that of
//! their program.

use std::{
    fmt::Debug,
    fs::{self, File, OpenOptions},
    io::{BufRead, BufReader, Read, Write},
    os::unix::{
        fs::{FileExt, OpenOptionsExt},
        process::ExitStatusExt,
    },
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
};

use kennel::{
    Audit,
    broker::{Envelope, NoCredentials},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use super::{Home, keys, said, tool, tool_with_token};
use crate::support::{
    copy_program, has as has_program, is_alone, is_root, kennel_path, only_as_root, require, until,
};

/// Each test makes its own credential, so that it does not report another test's credential as a leak.
fn secret(name: &str) -> String {
    // The test builds it at run time: its program file, and memory mapped from that file, must not contain it
    // in one piece.
    ["ken", "nel", "-", name, "-", "sec", "ret", "-", &std::process::id().to_string()].concat()
}

/// Collects all tracing events, at every level, with every field.
#[derive(Clone, Default)]
struct Everything(Arc<Mutex<String>>);

impl Visit for &Everything {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.lock().unwrap().push_str(&format!("{field}={value:?}\n"));
    }
}

impl Subscriber for Everything {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        attributes.record(&mut &*self);
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        values.record(&mut &*self);
    }
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut &*self);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// In a process of its own: while other tests trace nothing, a call that is traced may be taken for one that
/// nobody asks for.
#[test]
fn tracing_shows_no_arguments_and_no_credentials() {
    if !is_alone("broker::secrets::tracing_shows_no_arguments_and_no_credentials", "exec \"$@\"") {
        return;
    }
    let home = Home::new("test \"$TOKEN\" = hidden-credential && echo it is");
    let policy = home.spawn_policy("credential_env_keys = ['TOKEN']\nenv_passthrough = ['V']");
    let traced = Everything::default();
    let envelope = {
        let mut envelope = tool_with_token(&["hidden-argument"]);
        envelope.env.insert("V".to_owned(), "hidden-variable".to_owned());
        envelope
    };
    tracing::subscriber::with_default(traced.clone(), || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            assert_eq!(said(policy.spawn(&envelope, &keys("hidden-credential")).await), "it is\n");
            policy.spawn(&envelope, &NoCredentials).await.unwrap_err();
            let refused =
                home.spawn_policy("").spawn(&envelope, &keys("hidden-credential")).await.unwrap_err();
            assert!(!format!("{refused:?} {:?}", refused.failure()).contains("hidden"));
        });
    });
    let text = traced.0.lock().unwrap().clone();
    assert!(text.contains("bin/tool"), "it was traced: {text}");
    assert!(!text.contains("hidden"), "{text}");
}

/// If a variable appears twice, programs read the first one.
#[tokio::test]
async fn a_credential_takes_the_place_of_a_variable_of_its_name() {
    let home = Home::new("tr '\\0' '\\n' < /proc/$$/environ | grep ^HOME=");
    let policy = home.spawn_policy("credential_env_keys = ['HOME']");
    let envelope = Envelope { credential_env_keys: vec!["HOME".to_owned()], ..tool(&[]) };
    assert_eq!(said(policy.spawn(&envelope, &keys("given")).await), "HOME=given\n");
}

/// A program started by `kennel op` that has its credential and waits.
struct Waiting {
    home: Home,
    op: Child,
    secret: String,
}

impl Waiting {
    fn start(name: &str, by_file: bool) -> Self {
        Self::with(secret(name), by_file)
    }

    fn with(secret: String, by_file: bool) -> Self {
        // A single process that starts no other and keeps no copy of what it compares.
        let home = Home::new("printf '%s' \"${#TOKEN}\" > \"$1\"; read -r word < \"$2\"; exit 3");
        let (said, fifo) = (home.at("out/said"), home.at("out/fifo"));
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let manifest = home.manifest(
            "credential_env_keys = ['TOKEN']\nfs_write = ['~/out']\ncwd = '~/out'\n\
             limits.max_wall_seconds = 300\noperations.wait = 'tool {said} {fifo}'",
        );
        let arguments = [format!("said={}", said.display()), format!("fifo={}", fifo.display())];
        let mut command = home.op(&manifest, &["wait", "--arg", &arguments[0], "--arg", &arguments[1]]);
        command
            .args(["--json", "report.json", "--audit", "audit.log"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if by_file {
            fs::write(home.at("token"), &secret).unwrap();
            command.args(["--credential", "TOKEN=token"]);
        } else {
            command.env("TOKEN", &secret);
        }
        let op = command.spawn().unwrap();
        let length = secret.len().to_string();
        until("the program has its credential", || {
            fs::read_to_string(&said).is_ok_and(|said| said == length)
        });
        let _ = fs::remove_file(home.at("token"));
        Self { home, op, secret }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.op.id()).unwrap())
    }

    /// The processes of the sandbox: the children of `kennel op` and their children.
    fn inside(&self) -> Vec<u32> {
        let mut found = vec![self.op.id()];
        let mut at = 0;
        while let Some(&pid) = found.get(at) {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            found.extend(children.split_whitespace().map(|pid| pid.parse::<u32>().unwrap()));
            at += 1;
        }
        found.split_off(1)
    }

    fn finish(mut self) -> (Home, String) {
        go_on(&self.home.at("out/fifo"));
        let status = self.op.wait().unwrap();
        let mut said = String::new();
        self.op.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        self.op.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(status.code(), Some(3), "{said}");
        said.push_str(&fs::read_to_string(self.home.at("report.json")).unwrap());
        assert!(!said.contains(&self.secret), "{said}");
        (self.home, self.secret)
    }
}

fn has(mut haystack: &[u8], needle: &str) -> bool {
    let (first, rest) = needle.as_bytes().split_first().unwrap();
    // The search covers whole memories, from one first byte to the next.
    while haystack.skip_until(*first).unwrap() > 0 {
        if haystack.starts_with(rest) {
            return true;
        }
    }
    false
}

/// Tells the program to go on. Opening a pipe that nobody reads would block for ever.
fn go_on(fifo: &Path) {
    let mut open = OpenOptions::new();
    open.write(true).custom_flags(nix::libc::O_NONBLOCK);
    until("the program listens", || open.open(fifo).is_ok_and(|mut fifo| fifo.write_all(b"go\n").is_ok()));
}

/// The processes whose file in /proc is readable and contains `needle`.
fn with(file: &str, needle: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let shows = |pid: &u32| fs::read(format!("/proc/{pid}/{file}")).is_ok_and(|bytes| has(&bytes, needle));
    pids.filter(shows).collect()
}

/// Whether the memory of a process contains `needle`. Reading it needs the right to trace it.
fn is_in_memory(pid: u32, needle: &str) -> bool {
    let maps = BufReader::new(File::open(format!("/proc/{pid}/maps")).unwrap()).lines();
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut read = 0;
    let found = maps.map_while(Result::ok).any(|line| {
        let (range, rest) = line.split_once(' ').unwrap();
        let (from, to) = range.split_once('-').unwrap();
        let [from, to] = [from, to].map(|text| u64::from_str_radix(text, 16).unwrap_or(0));
        if !rest.starts_with('r') || line.ends_with("[vvar]") || line.ends_with("[vsyscall]") {
            return false;
        }
        let mut bytes = vec![0; usize::try_from(to - from).unwrap().min(64 << 20)];
        let count = memory.read_at(&mut bytes, from).unwrap_or(0);
        read += count;
        has(&bytes[..count], needle)
    });
    assert!(found || read > 4096, "nothing of the memory of {pid} could be read");
    found
}

#[test]
fn only_the_child_has_the_credential() {
    for by_file in [false, true] {
        let waiting = Waiting::start(if by_file { "file" } else { "variable" }, by_file);
        let inside = waiting.inside();
        assert!(inside.len() >= 2, "init and the program: {inside:?}");
        let program = *inside.last().unwrap();
        assert_eq!(with("cmdline", &waiting.secret), [0u32; 0]);
        assert_eq!(with("environ", &waiting.secret), [program], "{inside:?}");
        if is_root() {
            // A tracer of everything finds it in the program alone.
            assert!(is_in_memory(program, &waiting.secret), "the search works");
            for &other in inside.iter().filter(|pid| **pid != program).chain(&[waiting.op.id()]) {
                // The program may run before it is wiped there.
                until(&format!("process {other}, of {inside:?}, keeps nothing"), || {
                    !is_in_memory(other, &waiting.secret)
                });
            }
        } else {
            let memory = File::open(format!("/proc/{}/mem", waiting.op.id()));
            assert_eq!(memory.unwrap_err().raw_os_error(), Some(libc_eacces()), "it cannot be traced");
        }
        let (home, secret) = waiting.finish();
        assert!(!is_in_files(home.dir.path(), &secret));
    }
}

/// For example a key or a certificate. Kennel also wipes buffers that became too small for it.
#[test]
fn no_piece_of_a_long_credential_stays() {
    only_as_root!();
    for by_file in [false, true] {
        let piece = secret("piece");
        let waiting = Waiting::with(piece.repeat((100 << 10) / piece.len()), by_file);
        assert!(is_in_memory(*waiting.inside().last().unwrap(), &piece), "the search works");
        // The program may run before Kennel has wiped what it sent.
        until("Kennel keeps no piece", || !is_in_memory(waiting.op.id(), &piece));
        waiting.finish();
    }
}

fn libc_eacces() -> i32 {
    nix::errno::Errno::EACCES as i32
}

/// Whether any file below contains `needle`.
fn is_in_files(directory: &Path, needle: &str) -> bool {
    fs::read_dir(directory).unwrap().flatten().any(|entry| {
        let kind = entry.file_type().unwrap();
        (kind.is_dir() && is_in_files(&entry.path(), needle))
            || (kind.is_file() && has(&fs::read(entry.path()).unwrap(), needle))
    })
}

#[test]
fn kennel_writes_no_core() {
    let mut waiting = Waiting::start("core", false);
    kill(waiting.pid(), Signal::SIGABRT).unwrap();
    let status = waiting.op.wait().unwrap();
    assert_eq!((status.signal(), status.core_dumped()), (Some(6), false), "{status:?}");
    assert!(!is_in_files(waiting.home.dir.path(), &waiting.secret));
    until("the program goes with it", || with("environ", &waiting.secret).is_empty());
}

#[test]
fn the_program_writes_no_core() {
    let home = Home::new("ulimit -c unlimited 2>/dev/null; kill -ABRT $$");
    let manifest = home.manifest(
        "credential_env_keys = ['TOKEN']\nfs_write = ['~/out']\ncwd = '~/out'\noperations.x = 'tool'",
    );
    let secret = secret("abort");
    // With a shell around it that allows a core, as people have it.
    let mut op = home.op(&manifest, &[]);
    let kennel = op.get_program().to_owned();
    op = Command::new("sh");
    op.current_dir(home.dir.path()).env("HOME", home.dir.path()).env("TOKEN", &secret);
    op.args(["-c", "ulimit -c unlimited 2>/dev/null; exec \"$0\" op manifest.toml x -q"]).arg(kennel);
    let output = op.output().unwrap();
    assert_eq!(crate::support::shown(output.status), Some(128 + 6), "{output:?}");
    assert!(!is_in_files(home.dir.path(), &secret), "a core");
    std::io::stderr().flush().unwrap();
}

#[test]
fn no_core_handler_is_started_for_the_program_either() {
    // The kernel gives a handler behind a pipe the core even if the limit of the process is 0. Only a limit
    // of 1 stops it.
    let home =
        Home::new("read -r _ _ _ _ soft hard _ <<E\n$(grep core /proc/self/limits)\nE\necho $soft $hard");
    let output = home.run_op(&home.manifest("operations.x = 'tool'"), &["x"]);
    assert_eq!(crate::support::stdout(&output), "1 1", "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("core_dumps"), "{output:?}");
}

#[test]
fn an_ordinary_user_s_kennel_has_no_credential_in_its_environment() {
    // Only root can look there; the second pass cannot.
    only_as_root!();
    require!(has_program("setpriv"), "setpriv of util-linux");
    let home = Home::new("echo > \"$1\"; read -r _ < \"$2\"");
    let (said, fifo) = (home.at("out/said"), home.at("out/fifo"));
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for path in [&home.at("out"), &fifo] {
        std::os::unix::fs::chown(path, Some(1000), Some(1000)).unwrap();
    }
    copy_program(kennel_path(), home.at("kennel"));
    let manifest = home.manifest(
        "credential_env_keys = ['TOKEN']\nfs_write = ['~/out']\nlimits.max_wall_seconds = 300\n\
         operations.wait = 'tool {said} {fifo}'",
    );
    fs::write(home.at("manifest.toml"), manifest).unwrap();
    fs::write(home.at("in/token"), "of a file").unwrap();
    // A file is used before the variable, too.
    for file in [&[][..], &["--credential", "TOKEN=in/token"]] {
        let mut op = Command::new("setpriv");
        op.args(["--reuid", "1000", "--regid", "1000", "--clear-groups", "--"]).arg(home.at("kennel"));
        op.args(["op", "manifest.toml", "wait", "--arg", &format!("said={}", said.display())]).args(file);
        op.args(["--arg", &format!("fifo={}", fifo.display())]).current_dir(home.dir.path());
        let secret = secret("user");
        let mut op = op.env("HOME", home.at("out")).env("TOKEN", &secret).spawn().unwrap();
        until("the program has its credential", || said.exists());
        let environment = fs::read(format!("/proc/{}/environ", op.id())).unwrap();
        go_on(&fifo);
        assert!(op.wait().unwrap().success());
        assert!(has(&environment, "TOKEN=") && !has(&environment, &secret), "{file:?}");
        fs::remove_file(&said).unwrap();
    }
}

#[tokio::test]
async fn the_audit_log_has_every_decision_and_no_value_of_a_credential() {
    let home = Home::new("exit 0");
    let log = home.at("spawn.log");
    let policy = home.spawn_policy(
        "env_passthrough = ['V']\ncredential_env_keys = ['TOKEN']\noperations.say = 'tool say {word} [{more}]'",
    );
    let audit = Audit { arguments: true, fail_closed: true, ..Audit::new(&log) };
    let policy = policy.audit(audit).unwrap();
    let mut envelope = tool_with_token(&["say", "hidden-argument"]);
    envelope.env.insert("V".to_owned(), "hidden-variable".to_owned());
    envelope.stdin = Some("hidden-input".to_owned());
    said(policy.spawn(&envelope, &keys("hidden-credential")).await);
    policy.spawn(&envelope, &NoCredentials).await.unwrap_err();
    let other = kennel::broker::Envelope { argv: vec!["hidden-argument".to_owned(); 3], ..envelope.clone() };
    let failure = policy.spawn(&other, &keys("hidden-credential")).await.unwrap_err().failure();
    let failed = policy.operation("say", &[("word", "--hidden")]).unwrap_err().failure();
    let text = fs::read_to_string(&log).unwrap();
    assert!(!text.contains("hidden"), "{text}");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let spawns: Vec<&serde_json::Value> = lines.iter().filter(|line| line["event"] == "spawn").collect();
    let decisions: Vec<&str> = spawns.iter().map(|line| line["decision"].as_str().unwrap()).collect();
    assert_eq!(decisions, ["allowed", "allowed", "failed", "denied", "denied"], "{text}");
    let first = spawns[0];
    assert_eq!((&first["program"], &first["operation"]), (&"tool".into(), &"say".into()));
    assert_eq!(first["shape"]["pattern"], "tool say {word} [{more}]");
    assert_eq!((&first["variables"][0], &first["credentials"][0]), (&"V".into(), &"TOKEN".into()));
    assert_eq!(spawns[2]["class"], "binding_required");
    assert_eq!(spawns[3]["shape"]["lengths"], serde_json::json!([15, 15]));
    let id = |line: &serde_json::Value| line["id"].as_str().map(str::to_owned);
    assert_eq!((failure.audit_id, failed.audit_id), (id(spawns[3]), id(spawns[4])), "{text}");
    assert!(
        lines.iter().any(|line| line["event"] == "exec") && lines.iter().any(|line| line["event"] == "exit")
    );
}

#[tokio::test]
async fn a_program_that_cannot_be_logged_is_not_spawned() {
    let home = Home::new("echo ran > \"$1\"");
    let policy = home.spawn_policy("fs_write = ['~/out']");
    let audit = Audit { fail_closed: true, ..Audit::new("/dev/full") };
    let ran = home.at("out/ran").display().to_string();
    let error = match policy.audit(audit) {
        Ok(policy) => policy.spawn(&tool(&[&ran]), &NoCredentials).await.unwrap_err(),
        Err(error) => error,
    };
    assert!(error.chain().contains("/dev/full"), "{error:?}");
    assert!(!home.at("out/ran").exists());
}
