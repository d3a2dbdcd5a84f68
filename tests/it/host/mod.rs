//! Hosts that refuse something: the message, the remedy, and what is missing without it. A test starts
//! `kennel` through programs that change its surroundings: namespaces with limits of their own, filters of
//! system calls (`tests/payload` as `refuse`), covered paths. Only virtual machines have settings of the
//! whole machine changed.
//!
//! | module | what the host lacks |
//! | --- | --- |
//! | `namespaces` | namespaces of one kind, or of all |
//! | `calls` | system calls that a filter refuses, as container engines do |
//! | `places` | a complete /proc, /dev, HOME, a place to execute from |
//! | `nested` | the outermost place: sandboxes, containers, PID 1 |
//! | `root` | user namespaces, for real root, who runs without |
//! | `machines` | settings of a whole machine, and AppArmor profiles, in virtual ones |
//! | `remarks` | nothing worth a remark |

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

use crate::support::{
    TempDir, is_emulated, is_root, kennel_path, payload_path, protection, stderr, stdout, workspace,
};

mod calls;
mod machines;
mod namespaces;
mod nested;
mod places;
mod remarks;
mod root;

/// The programs and arguments that start `kennel`. The last program executes the words that follow it.
type Before = Vec<String>;

/// A shell script that executes `"$@"` at its end, started by these words.
fn script(starter: &[&str], script: &str) -> Before {
    let script = format!("{script}; exec \"$@\"");
    starter.iter().chain(&["sh", "-ec", &script, "sh"]).map(|word| (*word).to_owned()).collect()
}

/// Refuses system calls. The rules are those of `tests/payload/surroundings.rs`.
fn refusing(rules: &[&str]) -> Before {
    let payload = payload_path();
    let words = [payload.to_str().unwrap(), "refuse"].into_iter().chain(rules.iter().copied()).chain(["--"]);
    words.map(str::to_owned).collect()
}

/// Refuses new user namespaces. The flags of clone3(2) are in memory, where no filter can look, so engines
/// hide the call.
fn no_user_namespaces(errno: &str) -> Before {
    let [clone, unshare] = ["clone", "unshare"].map(|call| format!("{call}/0&0x10000000={errno}"));
    refusing(&[&clone, &unshare, "clone3=ENOSYS"])
}

/// `kennel` in these surroundings, not yet started.
fn kennel(before: &Before, dir: &Path, arguments: &[&str]) -> Command {
    let words: Vec<&str> = before.iter().map(String::as_str).collect();
    let kennel = kennel_path();
    let mut command = match words.as_slice() {
        [] => Command::new(&kennel),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(&kennel);
            command
        }
    };
    command.args(arguments).current_dir(dir).env("LC_ALL", "C");
    command
}

/// `kennel run FLAGS -- sh -c 'echo ran'` in these surroundings.
fn run(before: &Before, dir: &Path, flags: &[&str]) -> Output {
    let arguments: Vec<&str> = [&["run"], flags, &["--", "sh", "-c", "echo ran"]].concat();
    kennel(before, dir, &arguments).output().unwrap()
}

/// `kennel session WORDS` in these surroundings, its sockets beside `dir`.
fn session(before: &Before, dir: &Path, words: &[&str]) -> Output {
    let sockets = runtime_directory(dir);
    let mut command = kennel(before, dir, &[&["session"], words].concat());
    command.env("XDG_RUNTIME_DIR", &sockets).output().unwrap()
}

/// A directory for sockets outside any workspace.
fn runtime_directory(dir: &Path) -> PathBuf {
    let sockets = dir.with_extension("sockets");
    fs::create_dir_all(&sockets).unwrap();
    fs::set_permissions(&sockets, fs::Permissions::from_mode(0o700)).unwrap();
    sockets
}

/// The result under `--on-unavailable degrade`.
#[derive(Clone, Copy)]
enum Degraded {
    /// Kennel refuses anyway: nothing would hold without it.
    Refused,
    /// The command runs without these protections.
    Off(&'static [&'static str]),
}

/// A host that refuses something.
struct Row<'r> {
    before: Before,
    /// The protection that it takes away.
    protection: &'r str,
    /// The start of the message, after `kennel: `.
    says: &'r str,
    /// Words of the remedy.
    remedy: &'r str,
    degraded: Degraded,
}

const DEGRADE: [&str; 2] = ["--on-unavailable", "degrade"];

impl Row<'_> {
    /// Checks every promise for such a host. By default each way to start is refused, with the cause and the
    /// remedy. With `degrade` the given protections are missing. The probe says the same. Nothing is left
    /// behind.
    fn holds(&self) {
        let dir = place();
        self.is_refused(&run(&self.before, dir.path(), &[]), &[]);
        // The workers of a session make this, so the first command reports it, not the start.
        if self.protection != "ipc_namespace" {
            self.is_refused(&session(&self.before, dir.path(), &["start", "--name", "hosts"]), &["session"]);
        }
        self.failure(dir.path());
        let degraded = run(&self.before, dir.path(), &DEGRADE);
        match self.degraded {
            Degraded::Refused => self.is_refused(&degraded, &DEGRADE),
            Degraded::Off(protections) => self.runs_without(&degraded, protections, dir.path()),
        }
        // Each row starts a dozen sandboxes. An emulated machine runs only the rows that the probe needs.
        if !is_emulated() || self.protection == "user_namespace" {
            self.probe(dir.path());
        }
        let left: Vec<_> =
            fs::read_dir(dir.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert!(left.is_empty(), "{}: {left:?} are left", self.says);
        fs::remove_dir_all(runtime_directory(dir.path())).unwrap();
    }

    fn is_refused(&self, output: &Output, flags: &[&str]) {
        let (said, what) = (stderr(output), format!("{} {flags:?}: {output:?}", self.says));
        assert_eq!(output.status.code(), Some(125), "{what}");
        assert!(output.stdout.is_empty(), "something ran: {what}");
        let lines: Vec<&str> = said.lines().collect();
        let [first, second] = lines.as_slice() else { panic!("an error and a remedy: {what}") };
        assert!(first.starts_with(&format!("kennel: {}", self.says)), "{what}");
        assert!(second.starts_with("kennel: hint: ") && second.contains(self.remedy), "{what}");
    }

    /// The same for programs.
    fn failure(&self, dir: &Path) {
        let report = report(&self.before, dir, &[]);
        let failure = &report["failure"];
        assert_eq!(failure["class"], "spawn_sandbox_unavailable", "{report}");
        assert!(failure["message"].as_str().unwrap().starts_with(self.says), "{report}");
        assert!(failure["details"]["remedy"].as_str().unwrap().contains(self.remedy), "{report}");
    }

    fn runs_without(&self, output: &Output, protections: &[&str], dir: &Path) {
        assert!(output.status.success() && stdout(output) == "ran", "{}: {output:?}", self.says);
        let report = report(&self.before, dir, &DEGRADE);
        assert_eq!(report["enforcement"]["level"], "partial");
        for name in protections {
            assert_eq!(protection(&report, name).0, "off", "{name}: {report}");
            assert!(stderr(output).contains(&format!("kennel: {name} off: ")), "{output:?}");
        }
    }

    /// The probe degrades what may be missing, and reports it as the sandbox does.
    fn probe(&self, dir: &Path) {
        let output = kennel(&self.before, dir, &["probe", "--json"]).output().unwrap();
        let probe: Value = serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{output:?}"));
        let verdict = match self.degraded {
            Degraded::Refused => "unavailable",
            Degraded::Off(_) => "partial",
        };
        assert_eq!(probe["verdict"], verdict, "{}: {probe}", self.says);
        let findings = probe["findings"].as_array().unwrap();
        let finding = findings.iter().find(|finding| finding["name"] == self.protection).unwrap();
        assert_eq!(finding["state"], "missing", "{}: {finding}", self.says);
        let remedy = finding["remedy"].as_str().unwrap();
        assert!(remedy.contains(self.remedy), "{}: {finding}", self.says);
    }
}

/// A workspace that the user of the tests can also use from a user namespace.
fn place() -> TempDir {
    let dir = workspace();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    dir
}

/// The report of such a run.
fn report(before: &Before, dir: &Path, flags: &[&str]) -> Value {
    let file = tempfile::NamedTempFile::new_in("/tmp").unwrap();
    let flags: Vec<&str> = [&["--json", file.path().to_str().unwrap()], flags].concat();
    let output = run(before, dir, &flags);
    let text = fs::read_to_string(file.path()).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}; {output:?}"))
}

/// The result for root, who may run without a user namespace. Nobody else may.
fn root_goes_without() -> Degraded {
    if is_root() { Degraded::Off(&["user_namespace"]) } else { Degraded::Refused }
}
