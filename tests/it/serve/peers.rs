//! The session serves its own user, outside every sandbox.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use super::{Hosted, hostile, runtime};
use crate::support::{copy_program, has, kennel_path, only_as_root, require, stderr, stdout};

#[test]
fn payload_of_any_session_cannot_use_the_socket() {
    for profile in ["full-dev", "repo-write"] {
        let runtime = runtime();
        let place = runtime.path().display().to_string();
        for grant in ["--ro", "--rw"] {
            let target = super::runtime();
            let victim = Hosted::start_in(target, &[]);
            let shown = victim.runtime.path().display().to_string();
            let attacker = Hosted::start(&["--profile", profile, grant, &shown, "--rw", &place]);
            let client = victim.client().display().to_string();
            let socket = victim.socket.display().to_string();
            let output =
                attacker.exec(&[&client, &socket, "--", "sh", "-c", "echo got in"]).output().unwrap();
            assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(125), ""), "{output:?}");
            let said = stderr(&output);
            assert!(said.contains("sandbox") || said.contains("permission denied"), "{said}");
            assert!(victim.is_well(), "an allowed client is served");
        }
    }
}

#[test]
fn payload_cannot_use_the_socket_of_its_own_session() {
    let runtime = runtime();
    let shown = runtime.path().display().to_string();
    let session = Hosted::start_in(runtime, &["--ro", &shown]);
    let (client, socket) = (session.client().display().to_string(), session.socket.display().to_string());
    let output = session.exec(&[&client, &socket, "--", "echo", "got in"]).output().unwrap();
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(125), ""), "{output:?}");
    assert!(session.is_well());
}

/// The message keeps its reader from looking for a fault of the host.
#[test]
fn a_client_in_a_sandbox_is_told_why() {
    let session = Hosted::start(&[]);
    let runtime = session.runtime.path().display().to_string();
    let directory = session.socket.parent().unwrap().display().to_string();
    let kennel = format!("{}:/kennel", kennel_path().display());
    let client = format!("{}:/kennel-exec", session.client().display());
    let socket = session.socket.display().to_string();
    let unseen = &["--ro", &kennel, "--ro", &client, "--setenv", &format!("XDG_RUNTIME_DIR={runtime}")];
    for flags in [&unseen[..], &[&unseen[..], &["--ro", &directory]].concat()] {
        for command in [&["/kennel", "exec", "s", "--", "true"][..], &["/kennel-exec", &socket, "--", "true"]]
        {
            let run = [&["run", "-q"], flags, &["--"], command].concat();
            let output = session.kennel(&run).output().unwrap();
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(125), "{command:?}: {said}");
            let hint = "hint: this runs in a sandbox, where sessions outside of it are out of reach";
            assert!(said.contains(hint) && !said.contains("session start"), "{command:?}: {said}");
        }
    }
    let output = Command::new(session.client()).args(["/tmp/kennel-absent.sock", "true"]).output().unwrap();
    assert!(stderr(&output).contains("hint: start a session there"), "{output:?}");
}

#[test]
fn many_refused_clients_delay_nobody() {
    let runtime = runtime();
    let shown = runtime.path().display().to_string();
    let session = Hosted::start_in(runtime, &["--ro", &shown]);
    let script = format!(
        "while :; do for i in 1 2 3 4 5 6 7 8; do {} {} -- true 2>/dev/null & done; wait; done",
        session.client().display(),
        session.socket.display()
    );
    let mut flood = session.exec(&["sh", "-c", &script]).stderr(Stdio::null()).spawn().unwrap();
    for _ in 0..10 {
        assert!(session.is_well());
    }
    flood.kill().unwrap();
    flood.wait().unwrap();
}

/// Connects and asks for numbers. Returns the first byte and the text of the answer.
fn ask(socket: &str) -> String {
    let answer = hostile::ask(socket.as_ref(), &hostile::question(r#"{"do":"stats"}"#));
    format!("answer {:?} {}", answer.first(), String::from_utf8_lossy(&answer).replace('\0', ""))
}

/// The process that listened may have ended, and another process may have its number by now. A client must
/// not trust that one.
#[test]
fn a_dead_listener_is_not_confused_with_a_process_of_the_same_number() {
    only_as_root!();
    require!(has("python3"), "python3");
    require!(
        kennel::probe::Host::detect().kernel >= kennel::probe::Version(6, 5),
        "Linux 6.5 (SO_PEERPIDFD)"
    );
    let last = Path::new("/proc/sys/kernel/ns_last_pid");
    require!(last.exists(), "a kernel that can choose numbers of processes");
    let session = Hosted::start(&[]);
    let place = runtime();
    let (socket, got) = (place.path().join("s"), place.path().join("got"));
    let script = "import os, socket, sys\n\
                  s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.bind(sys.argv[1]); s.listen()\n\
                  if os.fork(): print(os.getpid()); sys.exit()\n\
                  null = os.open('/dev/null', os.O_RDWR); os.dup2(null, 1); os.dup2(null, 2)\n\
                  c, _ = s.accept(); open(sys.argv[2], 'wb').write(c.recv(65536))\n";
    let made = Command::new("python3").args(["-c", script]).args([&socket, &got]).output().unwrap();
    let number: u32 = stdout(&made).parse().unwrap();
    let mut other = (0..1000).find_map(|_| {
        fs::write(last, (number - 1).to_string()).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        if child.id() == number {
            return Some(child);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        None
    });
    let other = other.as_mut().expect("its number");
    let output = Command::new(session.client()).arg(&socket).args(["--", "true"]).output().unwrap();
    other.kill().unwrap();
    other.wait().unwrap();
    let said = stderr(&output);
    assert!(output.status.code() == Some(125) && said.contains("is another user's"), "{output:?}");
    assert_eq!(fs::read(&got).unwrap_or_default(), b"", "it was given nothing");
}

#[test]
fn another_user_is_refused_even_if_the_directory_is_open() {
    // This code runs in the copy below, which has become another user.
    if let Ok(socket) = env::var("KENNEL_ASK") {
        return eprintln!("{}", ask(&socket));
    }
    only_as_root!();
    require!(has("setpriv"), "setpriv of util-linux");
    let session = Hosted::start(&[]);
    let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    open(session.runtime.path(), 0o755);
    open(session.socket.parent().unwrap(), 0o755);
    open(&session.socket, 0o666);
    let copy = session.workspace.path().join("it");
    copy_program(format!("/proc/{}/exe", std::process::id()), &copy);
    open(&copy, 0o755);
    let ask = |user: &str| {
        let output = Command::new("setpriv")
            .args(["--reuid", user, "--clear-groups", "--"])
            .arg(&copy)
            .args([
                "--exact",
                "serve::peers::another_user_is_refused_even_if_the_directory_is_open",
                "--nocapture",
            ])
            .env("KENNEL_ASK", &session.socket)
            .output()
            .unwrap();
        stderr(&output)
    };
    assert!(ask("0").contains("answer Some(50)"), "numbers");
    let said = ask("1000");
    assert!(said.contains("own user only") || said.contains("answer None"), "{said}");
    // The client checks who listens before it gives anything away.
    let copy = session.workspace.path().join("client");
    copy_program(session.client(), &copy);
    open(&copy, 0o755);
    let output = Command::new("setpriv")
        .args(["--reuid", "1000", "--clear-groups", "--"])
        .arg(&copy)
        .arg(&session.socket)
        .args(["--", "true"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("is another user's"), "{output:?}");
}

/// The session itself checks, whatever client the other user has.
#[test]
fn a_client_in_another_user_namespace_is_refused() {
    if let Ok(socket) = env::var("KENNEL_ASK_FROM_NAMESPACE") {
        return eprintln!("{}", ask(&socket));
    }
    require!(has("unshare"), "unshare of util-linux");
    let session = Hosted::start(&[]);
    let mut ask = Command::new("unshare");
    ask.args(["--user", "--map-root-user"]).arg(env::current_exe().unwrap());
    ask.args(["--exact", "serve::peers::a_client_in_another_user_namespace_is_refused", "--nocapture"]);
    let output = ask.env("KENNEL_ASK_FROM_NAMESPACE", &session.socket).output().unwrap();
    let said = stderr(&output);
    assert!(said.contains("no process in a sandbox or another user namespace"), "{said}");
    assert!(session.is_well());
}

/// Root's sandboxes may have no user namespace of their own (`host::root`), but each has a pid namespace.
#[test]
fn root_in_another_pid_namespace_is_refused() {
    if let Ok(socket) = env::var("KENNEL_ASK_FROM_PIDS") {
        return eprintln!("{}", ask(&socket));
    }
    only_as_root!();
    require!(has("unshare"), "unshare of util-linux");
    let session = Hosted::start(&[]);
    let mut ask = Command::new("unshare");
    ask.args(["--pid", "--fork"]).arg(env::current_exe().unwrap());
    ask.args(["--exact", "serve::peers::root_in_another_pid_namespace_is_refused", "--nocapture"]);
    let output = ask.env("KENNEL_ASK_FROM_PIDS", &session.socket).output().unwrap();
    let said = stderr(&output);
    assert!(said.contains("no process in a sandbox or another user namespace"), "{said}");
    assert!(session.is_well());
}
