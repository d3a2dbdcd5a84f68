//! Runs tests of this binary again in other circumstances.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use super::{TempDir, has, is_root, is_second_pass, patient, require};

/// The ordinary user. It needs no account.
const USER: u32 = 1000;

/// A pass hangs if no test has ended for so long.
const LONGEST: Duration = Duration::from_secs(180);

/// The second pass: `tests` again, as an ordinary user, if root runs them. `programs` are programs or
/// directories that they also need, by the variables that name them.
pub fn second_pass(tests: &[&str], programs: &[(&str, PathBuf)]) {
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
        .arg("--exact")
        .args(tests)
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
    pass(command, &place("log"), tests.len().max(1));
}

/// Copies a program, or a directory with its contents, to a place that everybody may use.
fn copy(from: &Path, to: &Path) {
    let script = "cp -rL \"$0\" \"$1\" && chmod -R a+rX \"$1\" && chmod 755 \"$1\"";
    assert!(Command::new("sh").args(["-c", script]).args([from, to]).status().unwrap().success());
}

/// Runs tests, with their output in `log`. At least `least` must pass and none may fail.
pub fn pass(mut tests: Command, log: &Path, least: usize) {
    let file = File::create(log).unwrap();
    let mut child = tests.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
    let (mut size, mut grown) = (0, Instant::now());
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        let now = fs::metadata(log).unwrap().len();
        if now > size {
            (size, grown) = (now, Instant::now());
        }
        if grown.elapsed() > patient(LONGEST) {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let said = String::from_utf8_lossy(&fs::read(log).unwrap()).into_owned();
    let (passed, rest): (Vec<&str>, Vec<&str>) = said.lines().partition(|line| line.ends_with(" ... ok"));
    assert_eq!(status, Some(0), "{}", rest[rest.len().saturating_sub(200)..].join("\n"));
    assert!(passed.len() >= least, "{said}");
}
