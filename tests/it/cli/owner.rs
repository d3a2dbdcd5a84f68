//! `--as-owner`: root becomes the owner of the workspace. Without it, root is told.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink},
    path::Path,
    process::{Command, Output, Stdio},
};

use crate::support::{
    TempDir, children, kennel, kennel_path, only_as_root, refused, report, stderr, stdout, workspace,
};

const OWNER: u32 = 1000;

/// A workspace of another user.
fn of_another() -> TempDir {
    let dir = workspace();
    chown(dir.path(), Some(OWNER), Some(OWNER)).unwrap();
    dir
}

fn run(dir: &Path, flags: &[&str], script: &str) -> Output {
    kennel(dir, flags, &["sh", "-c", script]).output().unwrap()
}

#[test]
fn root_in_a_workspace_of_another_user_is_told_at_once() {
    only_as_root!();
    let dir = of_another();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let output = run(dir.path(), &[], "touch x");
    let said = stderr(&output);
    assert!(!output.status.success() && said.contains("Permission denied"), "{said}");
    assert!(
        said.contains("belongs to uid 1000: root in a sandbox has no power") && said.contains("--as-owner"),
        "{said}"
    );
    let (_, report) = report(dir.path(), &[], &["true"]);
    assert_eq!(report["enforcement"]["notes"][0]["remedy"], "run as its owner: --as-owner");
    for quiet in [&["--profile", "read-only"][..], &["--as-owner"]] {
        let output = run(dir.path(), quiet, "true");
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let output = run(dir.path(), &[], "touch x");
    assert!(output.status.success() && output.stderr.is_empty(), "all may write: {output:?}");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let said = refused(dir.path(), &[]);
    assert!(
        said.contains("Permission denied") && said.contains("hint: run as its owner: --as-owner"),
        "{said}"
    );
}

#[test]
fn what_is_made_and_written_belongs_to_the_owner() {
    only_as_root!();
    let dir = of_another();
    let output = run(dir.path(), &["--as-owner", "--json", "report.json"], "id -u; touch made");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(stdout(&output), "1000");
    for name in ["made", "report.json"] {
        assert_eq!(fs::metadata(dir.path().join(name)).unwrap().uid(), OWNER, "{name}");
    }
    let elsewhere = ["--as-owner", "--workspace", dir.path().to_str().unwrap()];
    assert_eq!(stdout(&run(Path::new("/"), &elsewhere, "id -u")), "1000");
    // The command's own words are not Kennel's.
    let echo = kennel(dir.path(), &["--as-owner"], &["echo", "--as-owner"]).output().unwrap();
    assert_eq!(stdout(&echo), "--as-owner");
    let words = ["run", "-q", "--as-owner", "echo", "--as-owner", "x"];
    let echo = Command::new(kennel_path()).args(words).current_dir(dir.path()).output().unwrap();
    assert_eq!(stdout(&echo), "--as-owner x");
    let root = workspace();
    assert_eq!(stdout(&run(root.path(), &["--as-owner"], "id -u")), "0", "its own workspace");
    // An owner without an account, in a directory of root's group.
    chown(root.path(), Some(54_321), Some(0)).unwrap();
    assert_eq!(stdout(&run(root.path(), &["--as-owner"], "id -u; id -g")), "54321\n54321");
}

#[test]
fn nothing_of_root_is_left() {
    only_as_root!();
    let dir = of_another();
    let home = workspace();
    let inside = home.path().join("bin");
    let mut command = kennel(
        dir.path(),
        &["--as-owner", "--env", "inherit"],
        &["sh", "-c", "env; echo ready; exec sleep 100"],
    );
    command.env("HOME", home.path()).env("CARGO_HOME", home.path().join(".cargo"));
    command
        .env("XDG_RUNTIME_DIR", "/run/user/0")
        .env("SSH_AUTH_SOCK", "/run/user/0/agent")
        .env("KEPT", "yes");
    command.env("PATH", format!("{}:/usr/bin:/bin", inside.display()));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut seen: Vec<String> =
        lines.by_ref().map(Result::unwrap).take_while(|line| line != "ready").collect();
    // Below root's own process and the leader of the terminal's session.
    let owner = children(children(child.id())[0])[0];
    let status = fs::read_to_string(format!("/proc/{owner}/status")).unwrap();
    let of_process = fs::read(format!("/proc/{owner}/environ")).unwrap();
    seen.extend(String::from_utf8_lossy(&of_process).split('\0').map(str::to_owned));
    child.kill().unwrap();
    child.wait().unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(field("Uid:"), ["1000"; 4]);
    assert!(
        !field("Gid:").contains(&"0".to_owned()) && !field("Groups:").contains(&"0".to_owned()),
        "{status}"
    );
    for capabilities in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(field(capabilities), ["0000000000000000"], "{capabilities}");
    }
    let root = home.path().to_str().unwrap();
    let of_root = |line: &&String| line.contains(root) || line.contains("/run/user/0");
    assert_eq!(seen.iter().find(of_root), None);
    assert!(
        seen.contains(&"KEPT=yes".to_owned()) && seen.contains(&"PATH=/usr/bin:/bin".to_owned()),
        "{seen:?}"
    );
}

#[test]
fn a_session_belongs_to_the_owner() {
    only_as_root!();
    let dir = of_another();
    let name = format!("owner-{}", std::process::id());
    let start = |flags: &[&str]| {
        let mut command = Command::new(kennel_path());
        command.current_dir(dir.path()).args(["session", "start", "--name", &name]).args(flags);
        command.output().unwrap()
    };
    let output = start(&["--as-owner"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let socket = stdout(&output);
    assert_eq!(fs::metadata(&socket).unwrap().uid(), OWNER);
    let as_owner = |words: &[&str]| {
        let runtime = Path::new(&socket).ancestors().nth(2).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "1000", "--regid", "1000", "--clear-groups"]).arg(kennel_path()).args(words);
        if runtime.starts_with("/run") {
            command.env("XDG_RUNTIME_DIR", runtime)
        } else {
            command.env_remove("XDG_RUNTIME_DIR")
        };
        command.output().unwrap()
    };
    assert_eq!(stdout(&as_owner(&["exec", &name, "--", "sh", "-c", "touch x; id -u"])), "1000");
    assert_eq!(fs::metadata(dir.path().join("x")).unwrap().uid(), OWNER);
    assert!(as_owner(&["session", "stop", &name]).status.success());
}

/// Whoever makes a link chooses what it leads to. So another user's link does not choose as whom Kennel runs.
#[test]
fn a_link_of_another_user_does_not_choose_the_owner() {
    only_as_root!();
    let (root, other, place) = (workspace(), of_another(), workspace());
    let link = |name: &str, to: &Path, uid| {
        symlink(to, place.path().join(name)).unwrap();
        lchown(place.path().join(name), Some(uid), Some(uid)).unwrap();
    };
    link("project", root.path(), OWNER);
    link("own", root.path(), 0);
    link("theirs", other.path(), OWNER);
    fs::create_dir(root.path().join("sub")).unwrap();
    link("through", Path::new("project/sub/.."), 0);
    for name in ["project", "project/", "project/sub", "through", "./project/sub/../sub"] {
        let said = refused(place.path(), &["--as-owner", "--workspace", name]);
        assert!(said.contains("project belongs to uid 1000"), "{name}: {said}");
        assert!(said.contains("hint: name the directory itself"), "{name}: {said}");
    }
    for (name, uid) in [("own", "0"), ("theirs", "1000"), ("own/sub", "0")] {
        let output = run(place.path(), &["--as-owner", "--workspace", name], "id -u");
        assert_eq!(stdout(&output), uid, "{name}: {output:?}");
    }
}

/// An ordinary user is the owner, or cannot become another one.
#[test]
fn only_root_becomes_another_user() {
    crate::support::only_as_user!();
    let dir = workspace();
    let own = nix::unistd::geteuid().to_string();
    assert_eq!(stdout(&run(dir.path(), &["--as-owner"], "id -u")), own);
    let said = refused(dir.path(), &["--as-owner", "--workspace", "/usr/share"]);
    assert!(
        said.contains("only root can run as another user") && said.contains("hint: run kennel as root"),
        "{said}"
    );
    let said = refused(dir.path(), &["--as-owner", "--workspace", "/nowhere"]);
    assert!(said.contains("/nowhere") && said.contains("No such file"), "{said}");
}
