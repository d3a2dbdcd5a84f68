//! All tests of a binary once more as an ordinary user, when root runs them: root's sandboxes leak first, but users' are
//! refused first.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use super::{TempDir, has, is_root, is_second_pass, require};

/// The ordinary user. Needs no account.
const USER: u32 = 1000;

/// How long the second pass may take: it is for one that hangs. Two idle processors take four minutes.
const LONGEST: Duration = Duration::from_secs(420);

/// The second pass. `programs` are what the tests need besides, programs or directories, by the variables that name them.
pub fn second_pass(programs: &[(&str, PathBuf)]) {
    if is_second_pass() || !is_root() {
        return;
    }
    require!(has("setpriv"), "setpriv of util-linux");
    let dir = TempDir::new("kennel-second-", "/tmp");
    let place = |name: &str| dir.path().join(name);
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    // Also when a build has replaced the file meanwhile.
    copy(&PathBuf::from(format!("/proc/{}/exe", std::process::id())), &place("tests"));
    fs::create_dir(place("home")).unwrap();
    chown(place("home"), Some(USER), Some(USER)).unwrap();
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", &USER.to_string(), "--regid", &USER.to_string(), "--clear-groups", "--"])
        .arg(place("tests"))
        .current_dir(place("home"))
        .env("KENNEL_SECOND_PASS", "1")
        .env("HOME", place("home"))
        .env("TMPDIR", "/tmp")
        .env("RUST_BACKTRACE", "0")
        .env_remove("XDG_RUNTIME_DIR");
    for (variable, program) in programs {
        let there = dir.path().join(program.file_name().unwrap());
        copy(program, &there);
        command.env(variable, there);
    }
    let (status, said) = run(command, &place("log"));
    assert_eq!(status, Some(0), "{}", tail(&said));
    assert!(passed(&said) > 20, "{}", tail(&said));
}

/// Copies a program, or a directory with what is in it, to where everybody may use it.
fn copy(from: &Path, to: &Path) {
    let script = "cp -rL \"$0\" \"$1\" && chmod -R a+rX \"$1\" && chmod 755 \"$1\"";
    assert!(Command::new("sh").args(["-c", script]).args([from, to]).status().unwrap().success());
}

/// Answers the exit status, `None` when it took too long, and what was said.
fn run(mut command: Command, log: &Path) -> (Option<i32>, String) {
    let file = File::create(log).unwrap();
    let mut child = command.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        if start.elapsed() > LONGEST {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    (status, String::from_utf8_lossy(&fs::read(log).unwrap()).into_owned())
}

/// How many tests the summary says have passed.
fn passed(said: &str) -> u32 {
    let count = |line: &str| line.strip_prefix("test result: ok. ")?.split(' ').next()?.parse().ok();
    said.lines().find_map(count).unwrap_or(0)
}

/// What failed and why: the output without the tests that passed.
fn tail(said: &str) -> String {
    let lines: Vec<&str> = said.lines().filter(|line| !line.ends_with(" ... ok")).collect();
    lines[lines.len().saturating_sub(200)..].join("\n")
}
