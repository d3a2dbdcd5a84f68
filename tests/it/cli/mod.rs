//! Flags, exit statuses and `--json`: what scripts depend on.

mod ask;
mod beside;
mod completions;
mod config;
mod harmless;
mod hints;
mod keys;
mod learn;
mod looks;
mod manual;
mod output;
mod owner;
mod plain;
mod relay;
mod report;
mod session;
mod shortage;
mod unread;
mod words;

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    path::Path,
    process::{Command, Output},
    thread,
};

use serde_json::Value;

use crate::support::{has, kennel, kennel_path, require, require_ci_only, stderr, stdout, workspace};

/// A server of the host that answers each request, and its port.
fn origin() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ =
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello");
        }
    });
    port
}

fn cli(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(kennel_path()).current_dir(dir).args(arguments).output().unwrap()
}

/// Changes in memory would be lost with the session.
#[test]
fn a_session_is_offered_no_overlay_in_memory() {
    let dir = workspace();
    let output = cli(dir.path(), &["session", "start", "--help"]);
    let help = String::from_utf8_lossy(&output.stdout);
    assert!(help.contains("--overlay") && !help.contains("--overlay-size"), "{help}");
}

#[test]
fn help_is_on_stdout_and_succeeds() {
    let dir = workspace();
    for (arguments, words) in [
        (&["--help"][..], &["run", "probe", "policy", "Usage: kennel"][..]),
        (&["-h"], &["Usage: kennel"]),
        (&["help", "run"], &["Usage: kennel run"]),
        (
            &["run", "--help"],
            &[
                "--profile",
                "--workspace",
                "--policy",
                "--ro",
                "--rw",
                "--tmpfs",
                "--mask",
                "--net",
                "--allow",
            ],
        ),
        (
            &["run", "--help"],
            &["--toolchains", "--env", "--pass-env", "--setenv", "--cwd", "--hostname", "--memory", "--pids"],
        ),
        (
            &["run", "--help"],
            &[
                "--cpus",
                "--cpuset",
                "--io",
                "--cgroup",
                "--cpu-time",
                "--timeout",
                "--max-output",
                "--tmp-size",
                "--on-unavailable",
                "--tty",
                "--json",
            ],
        ),
        (&["run", "--help"], &["124", "125", "126", "127", "128+N"]),
        (&["probe", "--help"], &["--json", "--profile"]),
        (&["policy", "--help"], &["show", "check"]),
        (&["policy", "show", "--help"], &["--ro"]),
        (&["policy", "check", "--help"], &["--ro"]),
    ] {
        let output = cli(dir.path(), arguments);
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
        let text = stdout(&output);
        for word in words {
            assert!(text.contains(word), "{arguments:?} lacks {word}: {text}");
        }
    }
}

#[test]
fn version_is_the_package_s() {
    let dir = workspace();
    let output = cli(dir.path(), &["--version"]);
    assert_eq!(
        (output.status.code(), stdout(&output)),
        (Some(0), format!("kennel {}", env!("CARGO_PKG_VERSION")))
    );
}

#[test]
fn wrong_usage_is_125_on_stderr() {
    let dir = workspace();
    for arguments in [
        &[][..],
        &["run"],
        &["run", "--"],
        &["run", "--bogus", "--", "true"],
        &["run", "--profile"],
        &["bogus"],
        &["policy"],
        &["policy", "bogus"],
        &["run", "--timeout", "1s", "--timeout", "2s", "--", "true"],
    ] {
        let output = cli(dir.path(), arguments);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {output:?}");
        assert!(output.stdout.is_empty() && stderr(&output).contains("--help"), "{arguments:?}: {output:?}");
    }
}

#[test]
fn everything_after_the_dashes_belongs_to_the_command() {
    let dir = workspace();
    let output = cli(dir.path(), &["run", "--", "echo", "--help", "--version", "--", "-x"]);
    assert_eq!(stdout(&output), "--help --version -- -x", "{output:?}");
}

#[test]
fn a_shown_policy_is_a_valid_policy() {
    let (dir, beside) = (workspace(), workspace());
    let own = dir.path().to_str().unwrap();
    let flags = [
        "--profile",
        "repo-write",
        "--workspace",
        own,
        "--ro",
        "/usr/share:/share",
        "--tmpfs",
        "/scratch:1M",
        "--net",
        "host",
        "--setenv",
        "A=b",
        "--pass-env",
        "C",
        "--timeout",
        "1.5s",
        "--memory",
        "1G",
        "--cpus",
        "0.5",
        "--cpuset",
        "0",
        "--io",
        "read=1G,write_ops=1000",
        "--cgroup",
        "off",
        "--protect",
        ".env",
        "--hostname",
        "h",
        "--cwd",
        "/tmp",
        "--toolchains",
        "none",
        "--max-output",
        "1M",
        "--pids",
        "100",
        "--cpu-time",
        "10s",
        "--tmp-size",
        "64M",
        "--on-unavailable",
        "degrade",
        "--env",
        "inherit",
    ];
    let shown = cli(dir.path(), &[&["policy", "show", "--as-file"], &flags[..]].concat());
    assert!(shown.status.success(), "{shown:?}");
    let policy: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(
        (&policy["profile"], &policy["workspace"], &policy["hostname"]),
        (&"repo-write".into(), &own.into(), &"h".into())
    );
    let file = beside.path().join("p.json");
    fs::write(&file, &shown.stdout).unwrap();
    let again = cli(beside.path(), &["policy", "show", "--as-file", "--policy", file.to_str().unwrap()]);
    assert_eq!(String::from_utf8(again.stdout).unwrap(), String::from_utf8(shown.stdout).unwrap());
    let output = kennel(
        beside.path(),
        &["--policy", file.to_str().unwrap(), "--quiet"],
        &["sh", "-c", "pwd; uname -n; echo $A; ls /share > /dev/null"],
    );
    assert_eq!(stdout(&{ output }.output().unwrap()), "/tmp\nh\nb");
}

#[test]
fn a_shown_policy_has_presets_in_full() {
    let dir = workspace();
    let shown = cli(
        dir.path(),
        &["policy", "show", "--as-file", "--allow", "@cargo,a.example:1", "--deny", "@gitlab"],
    );
    let policy: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let hosts = ["index.crates.io:443", "static.crates.io:443", "a.example:1"];
    assert_eq!(policy["network"]["allow"], Value::from(hosts.to_vec()));
    assert_eq!(policy["network"]["deny"], Value::from(vec!["gitlab.com:443"]));
}

#[test]
fn policy_show_validates_too() {
    let dir = workspace();
    let output = cli(dir.path(), &["policy", "show", "--pids", "0"]);
    assert!(output.status.code() == Some(125) && output.stdout.is_empty(), "{output:?}");
    assert!(stderr(&output).contains("limits.pids `0`: must be at least 1"), "{output:?}");
}

#[test]
fn policy_check_lists_protections_and_runs_nothing() {
    let dir = workspace();
    let output = cli(dir.path(), &["policy", "check", "--cgroup", "off", "--memory", "1G"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let text = stdout(&output);
    for name in ["user_namespace", "root", "landlock", "seccomp", "capabilities", "protected_paths"] {
        let line = text.lines().find(|line| line.starts_with(name));
        assert!(line.is_some_and(|line| line.contains(" enforced ")), "{name}: {text}");
    }
    assert!(text.lines().any(|line| line.starts_with("memory ") && line.contains(" degraded ")), "{text}");
    let output = cli(dir.path(), &["policy", "check", "--ro", "/absent"]);
    assert!(
        output.status.code() == Some(125) && stderr(&output).contains("/absent: No such file"),
        "{output:?}"
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// No probe of features finds this limit.
#[test]
fn policy_check_starts_a_sandbox() {
    require_ci_only!();
    require!(has("unshare"), "unshare of util-linux");
    let dir = workspace();
    let script = "echo 0 > /proc/sys/user/max_user_namespaces; exec \"$0\" policy check --profile ci-only";
    let mut unshare = Command::new("unshare");
    unshare.args(["-Ur", "sh", "-c", script]).arg(kennel_path()).current_dir(dir.path());
    let output = unshare.output().unwrap();
    assert!(output.status.code() == Some(125) && output.stdout.is_empty(), "{output:?}");
    assert!(stderr(&output).contains("user.max_user_namespaces"), "{output:?}");
}

#[test]
fn policy_check_leaves_nothing_behind() {
    let (dir, beside) = (workspace(), workspace());
    let audit = beside.path().join("log");
    let all = ["policy", "check", "--audit", audit.to_str().unwrap(), "--overlay"];
    // Overlays in memory came with it.
    let flags = if kennel::probe::Host::detect().kernel < kennel::probe::Version(6, 6) {
        &all[..4]
    } else {
        &all[..]
    };
    let output = cli(dir.path(), flags);
    assert!(output.status.success(), "{output:?}");
    assert!(fs::read(&audit).is_ok_and(|log| log.is_empty()), "nothing ran that would be logged");
}

#[test]
fn a_shown_policy_means_the_same_elsewhere() {
    let (dir, beside) = (workspace(), workspace());
    let shown = cli(dir.path(), &["policy", "show", "--as-file", "--ro", "./sub/x"]);
    let policy: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(policy["workspace"].as_str().map(Path::new), Some(&*fs::canonicalize(dir.path()).unwrap()));
    assert!(
        policy["mounts"].to_string().contains("/sub/x\"") && !policy.to_string().contains("\"./"),
        "{policy}"
    );
    let file = beside.path().join("p.json");
    fs::write(&file, stdout(&cli(dir.path(), &["policy", "show", "--as-file"]))).unwrap();
    let mut command = kennel(beside.path(), &["-q", "--policy", file.to_str().unwrap()], &["touch", "made"]);
    assert!(command.status().unwrap().success());
    assert!(dir.path().join("made").exists() && !beside.path().join("made").exists());
}

#[test]
fn a_tilde_in_flags_is_the_home_directory_for_every_command() {
    let (dir, home) = (workspace(), workspace());
    fs::create_dir(home.path().join("sub")).unwrap();
    let flags = ["--ro=~/sub:~/seen", "--tmpfs=~/empty:1M", "--protect=./~"];
    let at_home = |arguments: &[&str]| {
        let mut command = Command::new(kennel_path());
        command.current_dir(dir.path()).env("HOME", home.path()).args(arguments).output().unwrap()
    };
    let shown = at_home(&[&["policy", "show", "--as-file"], &flags[..]].concat());
    let policy: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let path = |name: &str| Value::from(home.path().join(name).to_str().unwrap());
    let [bound, empty] = [&policy["mounts"][0], &policy["mounts"][1]];
    assert_eq!((&bound["source"], &bound["target"]), (&path("sub"), &path("seen")));
    assert_eq!((&empty["target"], &policy["protect"][0]), (&path("empty"), &"./~".into()));
    assert!(at_home(&[&["policy", "check"], &flags[..]].concat()).status.success());
    let script = ["--", "sh", "-c", "cd ~/seen && cd ~/empty"];
    let ran = at_home(&[&["run", "-q"], &flags[..], &script].concat());
    assert!(ran.status.success(), "{ran:?}");
    let mut homeless = Command::new(kennel_path());
    let refused = homeless.args(["run", "--mask=~/x", "true"]).env_remove("HOME").output().unwrap();
    assert!(
        refused.status.code() == Some(125) && stderr(&refused).contains("write the path in full"),
        "{refused:?}"
    );
}

#[test]
fn remarks_go_to_stderr_and_never_to_stdout() {
    let dir = workspace();
    let output =
        kennel(dir.path(), &["--cgroup", "off", "--memory", "1G"], &["echo", "out"]).output().unwrap();
    assert_eq!((output.stdout.as_slice(), stderr(&output).lines().count()), (&b"out\n"[..], 1), "{output:?}");
    assert!(stderr(&output).starts_with("kennel: memory degraded: "), "{output:?}");
}

/// The status is the command's, even if Kennel can write no message.
#[test]
fn a_full_or_closed_stderr_changes_no_status() {
    let dir = workspace();
    for (script, status) in [("exit 3", 3), ("true", 0)] {
        // The limit is reported as a remark if no cgroup holds it.
        let mut command = kennel(dir.path(), &["--memory", "100M"], &["sh", "-c", script]);
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        assert_eq!(command.stderr(full).status().unwrap().code(), Some(status), "{script}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(command.stderr(writer).status().unwrap().code(), Some(status), "{script}");
    }
    for words in [
        &["policy", "show"][..],
        &["policy", "check"],
        &["probe"],
        &["--help"],
        &["run", "--help"],
        &["--version"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = Command::new(kennel_path()).args(words).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{words:?}: {output:?}");
        assert!(stderr(&output).contains("write to stdout: No space left on device"), "{output:?}");
    }
}
