//! All of it once more as an ordinary user, when root runs the tests.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, chown},
    process::Command,
};

use crate::support::{has, is_root, is_second_pass, require, stderr, stdout};

/// The ordinary user. Needs no account.
const USER: u32 = 1000;

#[test]
fn all_tests_pass_as_an_ordinary_user() {
    if is_second_pass() || !is_root() {
        return;
    }
    require!(has("setpriv") && has("timeout"), "setpriv of util-linux and timeout of coreutils");
    let dir = tempfile::Builder::new().prefix("kennel-second-").tempdir_in("/tmp").unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let (program, home) = (dir.path().join("adapters"), dir.path().join("home"));
    // Also when a build has replaced the file meanwhile.
    fs::copy("/proc/self/exe", &program).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(&home).unwrap();
    chown(&home, Some(USER), Some(USER)).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid", &USER.to_string(), "--regid", &USER.to_string(), "--clear-groups", "--"])
        .args(["timeout", "--signal=KILL", "240"])
        .arg(&program)
        .current_dir(&home)
        .env("KENNEL_SECOND_PASS", "1")
        .env("HOME", &home)
        .env("TMPDIR", "/tmp")
        .env_remove("XDG_RUNTIME_DIR")
        .output()
        .unwrap();
    let said = stdout(&output);
    let lines: Vec<&str> = said.lines().filter(|line| !line.ends_with(" ... ok")).collect();
    assert!(output.status.success(), "{}\n{}", lines.join("\n"), stderr(&output));
    let count = |line: &str| line.strip_prefix("test result: ok. ")?.split(' ').next()?.parse::<u32>().ok();
    assert!(said.lines().find_map(count).unwrap_or(0) > 20, "{said}");
}
