//! Runs all tests of a binary again as an ordinary user, if root runs them: root's sandboxes leak first, but users'
//! sandboxes are refused first.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use super::{TempDir, has, is_root, is_second_pass, require};

/// The ordinary user. It needs no account.
const USER: u32 = 1000;

/// The time limit of the second pass, in case it hangs. Two idle processors take four minutes.
const LONGEST: Duration = Duration::from_secs(420);

/// The second pass. `programs` are programs or directories that the tests also need, by the variables that name them.
pub fn second_pass(programs: &[(&str, PathBuf)]) {
    if is_second_pass() || !is_root() {
        return;
    }
    require!(has("setpriv"), "setpriv of util-linux");
    let dir = TempDir::new("kennel-second-", "/tmp");
    let place = |name: &str| dir.path().join(name);
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    // This works even if a build has replaced the file meanwhile.
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

/// Copies a program, or a directory with its contents, to a place that everybody may use.
fn copy(from: &Path, to: &Path) {
    let script = "cp -rL \"$0\" \"$1\" && chmod -R a+rX \"$1\" && chmod 755 \"$1\"";
    assert!(Command::new("sh").args(["-c", script]).args([from, to]).status().unwrap().success());
}

/// Returns the exit status, or `None` if it took too long, and the output.
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

/// The number of tests that passed, according to the summary.
fn passed(said: &str) -> u32 {
    let count = |line: &str| line.strip_prefix("test result: ok. ")?.split(' ').next()?.parse().ok();
    said.lines().find_map(count).unwrap_or(0)
}

/// The failures and their reasons: the output without the tests that passed.
fn tail(said: &str) -> String {
    let lines: Vec<&str> = said.lines().filter(|line| !line.ends_with(" ... ok")).collect();
    lines[lines.len().saturating_sub(200)..].join("\n")
}
