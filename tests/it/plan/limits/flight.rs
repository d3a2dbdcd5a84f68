//! Descriptors in messages that nobody has received. The kernel counts them by user: unix(7), `ETOOMANYREFS`.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    process::{Command, Stdio},
};

use crate::support::{
    TempDir, copy_program, kennel_path, only_as_root, payload_path, require, stderr, stdout, until,
};

/// No other process here has this user.
const SOMEONE: u32 = 4243;

/// Runs `program` with `arguments` as that user, with few descriptors. Its home, its runtime directory and
/// the workspace `w` are in `place`.
fn by_someone(place: &Path, program: &str, arguments: &[&str]) -> Command {
    let id = SOMEONE.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "sh", "-c"]);
    command.args(["ulimit -Sn 256; ulimit -Hn 2048; exec \"$0\" \"$@\"", program]).args(arguments);
    command.current_dir(place.join("w")).env("HOME", place).env("XDG_RUNTIME_DIR", place).env("LC_ALL", "C");
    command
}

#[test]
fn one_command_stops_no_other_of_its_user() {
    only_as_root!();
    require!(crate::support::has("setpriv"), "setpriv of util-linux");
    let dir = TempDir::new("kennel-test-", "/tmp");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    fs::create_dir(dir.path().join("w")).unwrap();
    for (from, name) in [(kennel_path(), "program"), (payload_path(), "w/payload")] {
        copy_program(from, dir.path().join(name));
    }
    for owned in [dir.path(), &dir.path().join("w")] {
        chown(owned, Some(SOMEONE), Some(SOMEONE)).unwrap();
    }
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (kennel, payload) = (at("program"), at("w/payload"));
    let install = ["session", "start", "--name", "s"];
    let mut session = by_someone(dir.path(), &kennel, &install).stdout(Stdio::null()).spawn().unwrap();
    let echo = |program: &str, arguments: &[&str]| {
        let arguments = [arguments, &["--", "sh", "-c", "ulimit -n; ulimit -Hn"]].concat();
        by_someone(dir.path(), program, &arguments).output().unwrap()
    };
    until("the session serves", || stdout(&echo(&kennel, &["exec", "s"])).starts_with("256"));

    let mut greedy = by_someone(dir.path(), &kennel, &["run", "-q", "--", &payload, "in-flight"]);
    let mut greedy = greedy.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut from_greedy = BufReader::new(greedy.stdout.take().unwrap());
    from_greedy.read_line(&mut said).unwrap();
    assert!(said.starts_with("ETOOMANYREFS"), "{said}");
    let (client, socket) = (at("kennel/kennel-exec"), at("kennel/s.sock"));
    for (program, arguments) in [(&kennel, &["run"][..]), (&kennel, &["exec", "s"]), (&client, &[&*socket])] {
        let output = echo(program, arguments);
        assert_eq!(stdout(&output), "256\n1536", "{arguments:?}: {}", stderr(&output));
    }
    drop(greedy.stdin.take());
    from_greedy.read_to_string(&mut said).unwrap();
    assert!(greedy.wait().unwrap().success());
    let stop = by_someone(dir.path(), &kennel, &["session", "stop", "s"]).output().unwrap();
    assert!(stop.status.success(), "{stop:?}");
    assert!(session.wait().unwrap().success());
}
