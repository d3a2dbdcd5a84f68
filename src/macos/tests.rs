//! Commands on a stand-in for `sandbox-exec`, which decides by the profile what a command could do. It is
//! built as an example: `cargo test` builds those first, `cargo test --lib` does not.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::caller::Caller;
use crate::caller::runtime::{Directory, SessionName};
use crate::macos::cell::Cell;
use crate::macos::places::Places;
use crate::macos::probe::Probe;
use crate::macos::record::{HeldSession, RecordedSession, SessionRecord, names};
use crate::macos::session::{Sandbox, Session};
use crate::macos::work_tree;
use crate::policy::Policy;
use crate::policy::audit::Audit;
use crate::policy::cgroup::Cgroup;
use crate::policy::env::{Env, EnvBase};
use crate::policy::limits::Limits;
use crate::policy::mount::Mount;
use crate::policy::network::NetworkMode;
use crate::policy::profile::{Caches, Git, Isolation, Profile, TmpLife};
use crate::policy::require::Requirement;
use crate::policy::units::Size;
use crate::process::stdio::Stdio;
use crate::report::enforcement::{Level, Protection, State};
use crate::report::error::Error;
use crate::report::error::listen::ListenError;
use crate::report::failure::Limit;
use crate::report::finding::{Area, Found, Verdict};
use crate::report::in_force::PlaceAccess;
use crate::report::outcome::{Ended, Output};
use crate::seatbelt::tests::judge::{self, Subject};
use crate::sys::signal::Signal;

/// The stand-in, in the directory of examples beside that of this test.
fn stand_in() -> PathBuf {
    let own = std::env::current_exe().expect("a path");
    let place = own.parent().and_then(Path::parent).expect("a directory").join("examples/sandbox-exec");
    assert!(place.exists(), "cargo build --example sandbox-exec");
    place
}

/// A workspace with a program that attempts what its arguments say.
struct World {
    _directory: TempDir,
    workspace: PathBuf,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let workspace = fs::canonicalize(directory.path()).expect("a path").join("w");
        fs::create_dir(&workspace).expect("a workspace");
        let world = Self { _directory: directory, workspace };
        world.program("attempt", "");
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.workspace.join(name)
    }

    /// What is beside the workspace.
    fn beside(&self, name: &str) -> PathBuf {
        self.workspace.with_file_name(name)
    }

    fn program(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("a program");
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).expect("a mode");
    }

    fn policy(&self) -> Policy {
        Policy::profile(Profile::RepoWrite, &self.workspace)
    }

    fn cell(policy: &Policy) -> Cell {
        Cell::with(policy, stand_in()).expect("a policy")
    }

    fn sandbox(policy: &Policy) -> Sandbox {
        Sandbox::of(Self::cell(policy))
    }
}

async fn run(sandbox: &Sandbox, script: &str) -> Output {
    sandbox.command("/bin/sh").args(["-c", script]).output().await.expect("it runs")
}

/// Whether a command could do this.
async fn may(world: &World, policy: &Policy, operation: &str, subject: impl AsRef<Path>) -> bool {
    let mut command = World::sandbox(policy).command(world.path("attempt"));
    let output = command.arg(operation).arg(subject.as_ref()).output().await.expect("an answer");
    output.outcome.exit_code() == 0
}

fn refusal(policy: &Policy) -> Error {
    Cell::with(policy, stand_in()).expect_err("refused")
}

#[tokio::test]
async fn a_command_has_its_streams_its_directory_and_its_status() {
    let world = World::new();
    let sandbox = World::sandbox(&world.policy());
    let output = run(&sandbox, "pwd; echo err >&2; cat; exit 3").await;
    assert_eq!(output.stdout, format!("{}\n", world.workspace.display()).into_bytes());
    assert_eq!(output.stderr, b"err\n");
    assert_eq!((output.outcome.exit_code(), output.outcome.ended), (3, Ended::Exited));
    assert_eq!(output.outcome.stdout_bytes, Some(output.stdout.len() as u64));
    let echoed = sandbox.command("cat").output_with_input(b"typed").await.expect("it runs");
    assert_eq!(echoed.stdout, b"typed");
    let signaled = run(&sandbox, "kill -TERM $$").await;
    assert_eq!(signaled.outcome.exit_code(), 128 + 15);
    let mut child =
        sandbox.command("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().await.expect("it");
    child.stdin.take().expect("a pipe").write_all(b"more").await.expect("it reads");
    let output = child.wait_with_output().await.expect("its end");
    assert_eq!(output.stdout, b"more");
}

#[tokio::test]
async fn what_is_not_granted_is_refused() {
    let world = World::new();
    fs::create_dir(world.beside("granted")).expect("a directory");
    fs::create_dir(world.beside("readable")).expect("a directory");
    let policy = world.policy().read_write(world.beside("granted")).read_only(world.beside("readable"));
    for (operation, path, expected) in [
        ("file-write-create", world.path("new"), true),
        ("file-read-data", world.path("attempt"), true),
        ("file-write-create", world.beside("granted/new"), true),
        ("file-read-data", world.beside("readable/x"), true),
        ("file-write-create", world.beside("readable/x"), false),
        ("file-read-data", world.beside("other"), false),
        ("file-write-create", world.beside("other"), false),
        ("file-write-create", "/usr/bin/x".into(), false),
        ("file-read-data", "/usr/bin/env".into(), true),
        ("file-write-create", "/tmp/x".into(), false),
        ("file-read-data", "/Users/you/x".into(), false),
        ("file-write-data", "/dev/null".into(), true),
    ] {
        assert_eq!(may(&world, &policy, operation, &path).await, expected, "{operation} {}", path.display());
    }
    assert!(!may(&world, &policy, "signal", "1").await);
    assert!(!may(&world, &policy, "mach-lookup", "com.apple.securityd").await);
    let read = Policy::profile(Profile::ReadOnly, &world.workspace);
    assert!(!may(&world, &read, "file-write-create", world.path("new")).await);
    let all = Policy::profile(Profile::FullDev, &world.workspace);
    assert!(may(&world, &all, "file-read-data", world.beside("other")).await);
    assert!(!may(&world, &all, "file-write-create", world.beside("other")).await);
}

#[tokio::test]
async fn links_lead_nowhere_else() {
    let world = World::new();
    fs::write(world.beside("secret"), "x").expect("a file");
    symlink(world.beside("secret"), world.path("link")).expect("a link");
    symlink(&world.workspace, world.beside("way")).expect("a link");
    assert!(!may(&world, &world.policy(), "file-read-data", world.path("link")).await);
    let by_link = Policy::profile(Profile::RepoWrite, world.beside("way"));
    assert!(may(&world, &by_link, "file-write-create", world.path("new")).await, "the real path counts");
}

#[tokio::test]
async fn hostile_names_grant_nothing_more() {
    let world = World::new();
    let name = "a\")(allow default)(\"\n(allow file-write*)";
    let granted = world.beside(name);
    fs::create_dir(&granted).expect("a directory");
    let policy = world.policy().read_write(&granted);
    assert!(may(&world, &policy, "file-write-create", granted.join("x")).await);
    assert!(!may(&world, &policy, "file-write-create", world.beside("other")).await);
}

#[tokio::test]
async fn secrets_masks_and_protected_paths_hold_in_what_is_granted() {
    let world = World::new();
    for name in ["keys", "docs", ".git/hooks"] {
        fs::create_dir_all(world.path(name)).expect("a directory");
    }
    fs::write(world.path("docs/policy"), "").expect("a file");
    let policy = world.policy().mask(world.path("keys")).protect("docs").mask(world.path("later"));
    for (operation, name, expected) in [
        ("file-read-data", "keys/a", false),
        ("file-read-data", "later", false),
        ("file-write-create", "later", false),
        ("file-read-data", "docs/policy", true),
        ("file-write-data", "docs/policy", false),
        ("file-write-create", ".git/hooks/pre-commit", false),
        ("file-write-create", ".GIT/hooks/pre-commit", false),
        ("file-write-create", ".git/index", true),
        ("file-write-unlink", ".git", false),
    ] {
        assert_eq!(may(&world, &policy, operation, world.path(name)).await, expected, "{operation} {name}");
    }
    let trusted = world.policy().git(Git::Trust);
    assert!(may(&world, &trusted, "file-write-create", world.path(".git/hooks/pre-commit")).await);
    let home = std::env::var_os("HOME").map(PathBuf::from).expect("a home");
    if home.join(".ssh").is_dir() {
        let policy = Policy::profile(Profile::FullDev, &world.workspace);
        assert!(!may(&world, &policy, "file-read-data", home.join(".ssh/id_rsa")).await);
    }
}

/// The caller with a home beside the workspace, and nothing on PATH.
fn at_home(world: &World) -> Caller {
    let home = world.beside("home");
    fs::create_dir_all(&home).expect("a home");
    let mut caller = Caller { homes: vec![home.clone()], home, ..Caller::current() };
    caller.environment.clear();
    caller
}

/// What a command of this caller may do.
struct Allowed(judge::Profile);

impl Allowed {
    fn of(policy: &Policy, caller: &Caller) -> Self {
        let places = Places::of(policy, caller).expect("a policy");
        Self(judge::Profile::parse(&places.grants.profile()))
    }

    fn may(&self, operation: &str, path: &Path) -> bool {
        let seen = match path.starts_with("/tmp") || path.starts_with("/var") {
            true => Path::new("/private").join(path.strip_prefix("/").expect("absolute")),
            false => path.to_owned(),
        };
        let seen = seen.to_str().expect("UTF-8");
        match operation.strip_suffix(":link") {
            Some(operation) => self.0.allows(operation, &Subject::Link(seen)),
            None => self.0.allows(operation, &Subject::File(seen)),
        }
    }
}

#[tokio::test]
async fn what_the_policy_names_is_not_exchanged() {
    let world = World::new();
    fs::create_dir_all(world.beside("granted/deep")).expect("a directory");
    fs::write(world.beside("file"), "").expect("a file");
    symlink(world.beside("granted"), world.path("link")).expect("a link");
    symlink("link", world.path("second")).expect("a link");
    let policy = world.policy().read_write(world.beside("file")).read_only(world.path("second/deep"));
    for path in [world.workspace.clone(), world.beside("file"), world.path("link"), world.path("second")] {
        let named = path.display();
        assert!(!may(&world, &policy, "file-write-create:link", &path).await, "{named}");
        assert!(!may(&world, &policy, "file-write-unlink:link", &path).await, "{named}");
    }
    assert!(!may(&world, &policy, "file-write-unlink", &world.beside("file")).await);
    assert!(may(&world, &policy, "file-write-data", &world.beside("file")).await);
    assert!(may(&world, &policy, "file-write-create:link", &world.path("other")).await);
    assert!(may(&world, &policy, "file-write-unlink:link", &world.path("other")).await);
}

#[test]
fn a_link_in_the_place_of_a_grant_shows_no_secret() {
    let world = World::new();
    let caller = at_home(&world);
    fs::create_dir(caller.home.join(".ssh")).expect("a directory");
    fs::rename(&world.workspace, world.beside("moved")).expect("moved");
    symlink(caller.home.join(".ssh"), &world.workspace).expect("a link");
    let error = Places::of(&world.policy(), &caller).expect_err("it is hidden");
    assert!(error.chain().contains("not visible"), "{error:?}");
    let moved = Policy::profile(Profile::RepoWrite, world.beside("moved"));
    let key = caller.home.join(".ssh/id_ed25519");
    for (granted, expected) in [(world.workspace.clone(), false), (caller.home.join(".ssh"), true)] {
        let allowed = Allowed::of(&moved.clone().read_write(&granted), &caller);
        assert_eq!(allowed.may("file-read-data", &key), expected, "{}", granted.display());
    }
}

#[test]
fn in_a_writable_home_secrets_and_what_programs_obey_are_closed() {
    let world = World::new();
    let caller = at_home(&world);
    symlink(world.path("shell"), caller.home.join(".zshenv")).expect("a link");
    let policy = world.policy().read_write(&caller.home);
    let allowed = Allowed::of(&policy, &caller);
    let home = |name: &str| caller.home.join(name);
    for name in [".zshrc", ".gitconfig", ".config/git/config", "Library/LaunchAgents/x.plist", ".local/bin/x"]
    {
        assert!(allowed.may("file-read-data", &home(name)), "{name}");
        assert!(!allowed.may("file-write-create", &home(name)), "{name}");
    }
    assert!(!allowed.may("file-write-create", &world.path("shell")), "a link leads there");
    assert!(!allowed.may("file-write-unlink:link", &home(".zshenv")));
    for name in [".ssh/id_ed25519", ".zsh_sessions/x", "Library/Containers/x", ".netrc"] {
        assert!(!allowed.may("file-read-data", &home(name)), "{name} may come later");
        assert!(!allowed.may("file-write-create", &home(name)), "{name}");
    }
    assert!(!allowed.may("network-outbound", &home(".docker/run/docker.sock")));
    assert!(allowed.may("network-outbound", &home("own.sock")));
    assert!(allowed.may("file-write-create", &home("notes")));
    fs::write(home(".zshrc"), "").expect("a file");
    let named = Allowed::of(&policy.read_write(home(".zshrc")), &caller);
    assert!(named.may("file-write-data", &home(".zshrc")) && !named.may("file-write-data", &home(".zlogin")));
}

#[test]
fn of_toolchains_the_parts_without_secrets_are_shown() {
    let world = World::new();
    let mut caller = at_home(&world);
    let home = |name: &str| world.beside("home").join(name);
    for name in [".cargo/bin", ".cargo/registry", ".local/share/uv/python", ".local/share/uv/credentials"] {
        fs::create_dir_all(home(name)).expect("a directory");
    }
    for name in ["go/src", "go/bin", "Documents", "tools"] {
        fs::create_dir_all(home(name)).expect("a directory");
    }
    symlink(home("Documents"), world.path("bin")).expect("a link");
    let path = [world.path("bin"), home("tools"), caller.home.clone()];
    let path = std::env::join_paths(path).expect("a list");
    caller.environment.insert("PATH".into(), path);
    let allowed = Allowed::of(&world.policy(), &caller);
    for (name, expected) in [
        (".cargo/bin/cargo", true),
        (".cargo/registry/x", true),
        (".cargo/credentials.toml", false),
        (".cargo/config.toml", false),
        (".local/share/uv/python/x", true),
        (".local/share/uv/credentials/x", false),
        ("go/bin/x", true),
        ("go/src/private", false),
        ("tools/x", true),
        ("Documents/x", false),
        ("x", false),
    ] {
        assert_eq!(allowed.may("file-read-data", &home(name)), expected, "{name}");
        assert!(!allowed.may("file-write-data", &home(name)), "{name}");
    }
}

#[test]
fn what_is_protected_need_not_be_there_and_shows_nothing_more() {
    let world = World::new();
    let caller = at_home(&world);
    fs::create_dir_all(world.path("real")).expect("a directory");
    symlink("real", world.path("way")).expect("a link");
    symlink(world.beside("outside"), world.path("out")).expect("a link");
    let policy =
        world.policy().protect("later").protect("way/rules").protect("out").mask(world.path("way/keys"));
    let policy = Policy { files: vec![world.beside("policy.toml")], ..policy };
    let policy = policy.audit(Audit::new(world.path("way/log")));
    let allowed = Allowed::of(&policy, &caller);
    for name in ["later", "later/x", "real/rules", "real/keys", "real/log"] {
        assert!(!allowed.may("file-write-create", &world.path(name)), "{name}");
    }
    for name in ["way", "out"] {
        assert!(!allowed.may("file-write-unlink:link", &world.path(name)), "{name}");
    }
    assert!(!allowed.may("file-read-data", &world.path("real/log")));
    assert!(!allowed.may("file-read-data", &world.beside("outside")));
    assert!(!allowed.may("file-read-data", &world.beside("policy.toml")));
}

#[tokio::test]
async fn secrets_of_the_system_are_hidden_in_what_every_program_reads() {
    let world = World::new();
    for path in ["/etc/ssh/ssh_host_ed25519_key", "/private/etc/master.passwd", "/etc/sudoers", "/etc/shadow"]
    {
        assert!(!may(&world, &world.policy(), "file-read-data", path).await, "{path}");
    }
    assert!(may(&world, &world.policy(), "file-read-data", "/etc/hosts").await);
}

#[tokio::test]
async fn a_command_has_three_descriptors() {
    let world = World::new();
    let file = fs::File::open("/dev/null").expect("a descriptor");
    // dup(2) makes one that commands inherit.
    let inherited = nix::unistd::dup(&file).expect("a descriptor");
    let number = std::os::fd::AsRawFd::as_raw_fd(&inherited);
    let script = format!("test -e /dev/fd/1 && test ! -e /dev/fd/{number}");
    let output = run(&World::sandbox(&world.policy()), &script).await;
    assert_eq!(output.outcome.exit_code(), 0, "{output:?}");
}

#[tokio::test]
async fn each_command_has_a_temporary_directory_which_goes_with_it() {
    let world = World::new();
    let sandbox = World::sandbox(&world.policy());
    let script = "test -d \"$TMPDIR\" && test \"$TMPDIR\" = \"$TMP\" && touch $TMPDIR/x && echo $TMPDIR";
    let path = |output: Output| PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim_end());
    let (first, second) = (path(run(&sandbox, script).await), path(run(&sandbox, script).await));
    assert!(first.is_absolute() && first != second && !first.exists() && !second.exists());
    let shared = World::sandbox(&world.policy().tmp(TmpLife::Session));
    let (first, second) = (path(run(&shared, script).await), path(run(&shared, script).await));
    assert!(first == second && first.join("x").exists());
    drop(shared);
    assert!(!first.exists());
}

#[tokio::test]
async fn the_environment_is_that_of_linux() {
    let world = World::new();
    let policy = world.policy().set_env("MINE", "1");
    let printed = run(&World::sandbox(&policy), "env").await;
    let printed = String::from_utf8(printed.stdout).expect("text");
    assert!(printed.contains("MINE=1\n") && printed.contains("HOME="));
    assert!(!printed.contains("CARGO_PKG_NAME="), "the scrubbed base");
    assert!(printed.contains("https_proxy=http://127.0.0.1:"), "a proxy that only refuses");
    let env = Env { base: EnvBase::Inherit, ..Env::default() };
    let printed = run(&World::sandbox(&world.policy().env(env)), "env").await;
    assert!(String::from_utf8(printed.stdout).expect("text").contains("CARGO_PKG_NAME="));
    let mut bare = World::sandbox(&policy).command("/usr/bin/env");
    let printed = bare.env_clear().env("A", "b").output().await.expect("it runs");
    assert_eq!(printed.stdout, b"A=b\n");
}

#[tokio::test]
async fn a_timeout_kills_the_group() {
    let world = World::new();
    let policy = world.policy().timeout(Duration::from_millis(300));
    let output = run(&World::sandbox(&policy), "sleep 60 & echo $! >pid; sleep 60").await;
    assert_eq!((output.outcome.exit_code(), output.outcome.ended), (124, Ended::TimedOut));
    assert_eq!(output.outcome.limit, Some(Limit::WallTime));
    is_gone(&world.path("pid")).await;
    let mut short = World::sandbox(&world.policy()).command("sleep");
    let outcome = short.arg("60").timeout(Duration::from_millis(50)).status().await.expect("its end");
    assert_eq!(outcome.exit_code(), 124);
}

/// Waits until the process in a file has ended.
async fn is_gone(file: &Path) {
    let number: i32 = fs::read_to_string(file).expect("a number").trim().parse().expect("a number");
    for _ in 0..200 {
        let state = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        // A zombie waits for its parent, whoever that is now.
        if state.is_empty() || state.contains(") Z ") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{number} still runs");
}

#[tokio::test]
async fn dropping_and_killing_a_child_ends_its_group() {
    let world = World::new();
    let sandbox = World::sandbox(&world.policy());
    let spawn = async || {
        let script = "sleep 60 & echo $! >pid; echo ready; wait";
        let mut command = sandbox.command("/bin/sh");
        let mut child = command.args(["-c", script]).stdout(Stdio::piped()).spawn().await.expect("it runs");
        let mut ready = [0; 6];
        child.stdout.as_mut().expect("a pipe").read_exact(&mut ready).await.expect("it says so");
        child
    };
    drop(spawn().await);
    is_gone(&world.path("pid")).await;
    let mut child = spawn().await;
    let outcome = child.kill().await.expect("its end");
    assert_eq!(outcome.ended, Ended::Killed);
    assert_eq!(child.wait().await.expect("the same"), outcome);
    is_gone(&world.path("pid")).await;
    let mut child = spawn().await;
    child.signal(Signal::TERM).expect("sent");
    assert_eq!(child.wait().await.expect("its end").exit_code(), 128 + 15);
    child.signal(Signal::TERM).expect("it has ended");
}

#[tokio::test]
async fn limits_hold_that_a_process_can_have() {
    let world = World::new();
    let limits = Limits {
        open_files: Some(20),
        file_size: Some(Size::from_bytes(4096)),
        output: Some(Size::from_bytes(10)),
        ..Limits::default()
    };
    let policy = world.policy().limits(limits);
    let output = run(&World::sandbox(&policy), "ulimit -n; ulimit -c; yes | head -c 100").await;
    assert!(output.outcome.truncated && output.stdout.starts_with(b"20\n0\n"), "{output:?}");
    let state = |name| output.outcome.enforcement.get(name).expect("an entry").state;
    assert_eq!(state(Protection::OpenFiles), State::Enforced);
    let output = run(&World::sandbox(&policy), "head -c 10000 /dev/zero >big").await;
    assert!(
        !output.outcome.status.success() && fs::metadata(world.path("big")).expect("a file").len() == 4096
    );
    let ends = Limits { output: Some(Size::from_bytes(10)), output_ends: true, ..Limits::default() };
    let output = run(&World::sandbox(&world.policy().limits(ends)), "yes; sleep 60").await;
    assert_eq!(output.outcome.limit, Some(Limit::Output));
}

#[tokio::test]
async fn the_proxy_lets_through_what_is_allowed() {
    let world = World::new();
    let origin = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = origin.local_addr().expect("an address").port();
    let policy = world.policy().allow(format!("127.0.0.1:{port}"));
    let cell = Arc::new(World::cell(&policy));
    let proxy = cell.proxy().await.expect("a proxy").expect("a proxy").port;
    let connect = async |destination: String| {
        let mut stream = TcpStream::connect(("127.0.0.1", proxy)).await.expect("the proxy");
        let request = format!("CONNECT {destination} HTTP/1.1\r\nHost: {destination}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.expect("an answer");
        (String::from_utf8_lossy(&answer[9..]).into_owned(), stream)
    };
    let (status, mut stream) = connect(format!("127.0.0.1:{port}")).await;
    assert_eq!(status, "200");
    stream.write_all(b"hello").await.expect("sent");
    let (mut served, _) = origin.accept().await.expect("a connection");
    let mut heard = [0; 5];
    served.read_exact(&mut heard).await.expect("bytes");
    assert_eq!(&heard, b"hello");
    assert_eq!(connect("127.0.0.1:1".to_owned()).await.0, "403");
    let reaches =
        async |policy: &Policy, address: &str| may(&world, policy, "network-outbound", address).await;
    assert!(!reaches(&policy, &format!("localhost:{port}")).await, "only the proxy, at a port of its own");
    assert!(!reaches(&policy, "192.0.2.1:443").await);
    assert!(!reaches(&world.policy().network_mode(NetworkMode::None), "localhost:80").await);
    assert!(reaches(&world.policy().network_mode(NetworkMode::Host), "192.0.2.1:443").await);
}

#[tokio::test]
async fn what_the_proxy_refuses_is_in_the_outcome() {
    let world = World::new();
    let policy = world.policy().allow("example.com:443");
    let script = "printf 'CONNECT 192.0.2.9:443 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' | \
         python3 -c 'import socket, sys, os; \
         s = socket.create_connection((\"127.0.0.1\", int(os.environ[\"http_proxy\"].split(\":\")[-1].strip(\"/\")))); \
         s.sendall(sys.stdin.buffer.read()); print(s.recv(100)[9:12].decode())'";
    let output = run(&World::sandbox(&policy), script).await;
    assert_eq!(output.stdout, b"403\n", "{output:?}");
    assert!(output.outcome.denials.iter().any(|denial| denial.subject == "192.0.2.9:443"), "{output:?}");
}

#[tokio::test]
async fn the_report_says_what_macos_lacks() {
    let world = World::new();
    let outcome = run(&World::sandbox(&world.policy()), "true").await.outcome;
    assert_eq!(outcome.enforcement.level(), Level::Partial);
    for (name, state) in [
        (Protection::UserNamespace, State::Off),
        (Protection::Seccomp, State::Off),
        (Protection::Landlock, State::Off),
        (Protection::Root, State::Degraded),
        (Protection::NetworkNamespace, State::Degraded),
        (Protection::Proxy, State::Degraded),
        (Protection::ProtectedPaths, State::Degraded),
        (Protection::CoreDumps, State::Enforced),
    ] {
        assert_eq!(outcome.enforcement.get(name).expect("an entry").state, state, "{name}");
    }
    for name in Protection::ALL {
        assert!(outcome.enforcement.get(name).is_some() || name == Protection::Proxy, "{name} has no entry");
    }
}

#[test]
fn what_macos_cannot_hold_is_refused() {
    let world = World::new();
    let usual = || world.policy();
    let ci = refusal(&Policy::profile(Profile::CiOnly, &world.workspace));
    assert!(matches!(ci, Error::Unavailable { .. }) && ci.remedy().is_some(), "{ci:?}");
    for name in [Protection::Seccomp, Protection::Landlock, Protection::PidNamespace] {
        let error = refusal(&usual().require(name, Requirement::Required));
        assert!(matches!(error, Error::Unavailable { protection, .. } if protection == name), "{error:?}");
    }
    let memory = Limits { memory: Some(Size::from_bytes(64 << 20)), ..Limits::default() };
    let error = refusal(&usual().limits(memory.clone()));
    assert!(matches!(error, Error::Unavailable { protection: Protection::Memory, .. }), "{error:?}");
    let optional = usual().limits(memory).require(Protection::Memory, Requirement::IfAvailable);
    let cell = World::cell(&optional);
    assert_eq!(cell.enforcement.get(Protection::Memory).expect("an entry").state, State::Off);
    let elsewhere = Mount::ReadOnly { source: "/usr".into(), target: Some("/data".into()) };
    for (policy, key) in [
        (usual().mount(elsewhere), "mounts[0]"),
        (usual().tmpfs("/data", None), "mounts[0]"),
        (usual().mask("*.key"), "mounts[0]"),
        (usual().protect("*.key"), "protect"),
        (usual().publish("3000"), "network.publish"),
        (usual().network_mode(NetworkMode::Host).allow("*:443"), "network.allow"),
        (usual().isolation(Isolation::Session), "isolation"),
        (usual().warm("python3", ["json"]), "warm"),
        (usual().hostname("box"), "hostname"),
        (usual().git(Git::ReadOnly), "git"),
        (usual().explain(true), "explain"),
        (usual().caches(Caches::Keep), "caches"),
        (usual().caches(Caches::None), "caches"),
        (
            usual().limits(Limits { tmp_size: Some(Size::from_bytes(1 << 20)), ..Limits::default() }),
            "tmp_size",
        ),
        (usual().limits(Limits { tmp_inodes: Some(100), ..Limits::default() }), "tmp_inodes"),
        (usual().limits(Limits { cgroup: Cgroup::At("/x".into()), ..Limits::default() }), "cgroup"),
        (Policy { learn: true, ..usual() }, "learn"),
    ] {
        let error = refusal(&policy);
        assert!(matches!(error, Error::Policy(_)) && error.chain().contains(key), "{key}: {}", error.chain());
    }
}

#[tokio::test]
async fn errors_of_a_start_are_those_of_linux() {
    let world = World::new();
    let sandbox = World::sandbox(&world.policy());
    fs::write(world.path("text"), "").expect("a file");
    let error = async |program: &str| sandbox.command(program).output().await.expect_err("no program");
    assert!(matches!(error("absent").await, Error::NotFound { .. }));
    assert!(matches!(error("./text").await, Error::NotExecutable { .. }));
    assert!(matches!(error("").await, Error::Command { .. }));
    assert!(matches!(error("a\0b").await, Error::Command { .. }));
    for directory in ["/Users", "absent", "attempt", "/"] {
        let error = sandbox.command("true").current_dir(directory).output().await.expect_err(directory);
        assert!(matches!(error, Error::Command { .. }), "{error:?}");
    }
    let cell = Cell::with(&world.policy(), "/absent/sandbox-exec".into()).expect("a policy");
    let error = Session::with(cell).await.expect_err("no sandbox-exec");
    assert!(error.chain().contains("/absent/sandbox-exec is missing"), "{error:?}");
    for policy in [Policy::profile(Profile::RepoWrite, "/absent"), world.policy().read_only("/absent")] {
        assert!(matches!(refusal(&policy), Error::Grant { .. }));
    }
}

#[tokio::test]
async fn a_session_is_tried_and_audited() {
    let world = World::new();
    let log = world.path("log");
    let policy = world.policy().audit(Audit::new(&log));
    let session = Session::with(World::cell(&policy)).await.expect("a session");
    assert_eq!(session.directory(), world.workspace);
    let output = session.command("true").output().await.expect("it runs");
    assert!(output.outcome.audit_id.is_some());
    let lines = fs::read_to_string(&log).expect("a log");
    assert!(lines.lines().filter(|line| line.contains("\"exit\"")).count() == 2, "{lines}");
    assert!(!may(&world, &policy, "file-write-data", &log).await, "commands do not write it");
}

/// A runtime directory, and a name.
fn named(world: &World, name: &str) -> (Directory, SessionName) {
    let directory = Directory::make(&world.beside("run")).expect("a directory");
    (directory, SessionName::new(name).expect("a name"))
}

#[tokio::test]
async fn a_command_of_another_process_has_what_the_session_has() {
    let world = World::new();
    let policy = world.policy().set_env("MINE", "1").allow("example.com:443").tmp(TmpLife::Session);
    let session = Session::with(World::cell(&policy)).await.expect("a session");
    let output = session.command("/bin/sh").args(["-c", "touch $TMPDIR/x; env"]).output().await.expect("it");
    let record = SessionRecord::of(&session).await.expect("a record");
    let (directory, name) = named(&world, "work");
    let mut held = HeldSession::in_directory(directory, name.clone()).expect("the name");
    held.publish(&record).expect("written");
    let mode = fs::metadata(held.path()).expect("a file").permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    let (directory, _) = named(&world, "work");
    let found = RecordedSession::in_directory(&directory, &name).expect("it runs");
    assert_eq!(found.record.process, std::process::id().cast_signed());
    // What the policy grants is not looked for again: a command may have put a link there.
    fs::rename(&world.workspace, world.beside("moved")).expect("moved");
    symlink(world.beside("moved"), &world.workspace).expect("a link");
    let other = found.record.session_by(stand_in()).expect("a session");
    let mut bare = other.command(world.beside("moved/attempt"));
    let refused = bare.arg("file-read-data").arg(world.path("attempt")).current_dir("/usr").output().await;
    assert_ne!(refused.expect("an answer").outcome.exit_code(), 0);
    fs::remove_file(&world.workspace).expect("removed");
    fs::rename(world.beside("moved"), &world.workspace).expect("moved");
    let same = other.command("/bin/sh").args(["-c", "test -e $TMPDIR/x && env"]).output().await.expect("it");
    let sorted = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&output.stdout), sorted(&same.stdout));
    drop(other);
    assert!(world_of(&output.stdout, "TMPDIR").exists(), "the other process removes it");
    drop(session);
    assert!(!world_of(&output.stdout, "TMPDIR").exists());
}

/// The path that a variable has in what env(1) prints.
fn world_of(printed: &[u8], name: &str) -> PathBuf {
    let text = String::from_utf8_lossy(printed).into_owned();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    value.expect("a variable").into()
}

#[tokio::test]
async fn a_session_lasts_as_long_as_its_lock() {
    let world = World::new();
    let (directory, name) = named(&world, "work");
    let is_running = || RecordedSession::in_directory(&named(&world, "work").0, &name);
    let not_running = |found: Result<RecordedSession, Error>| {
        matches!(found, Err(Error::Listen(ListenError::NotRunning { .. })))
    };
    assert!(not_running(is_running()));
    let mut held = HeldSession::in_directory(directory, name.clone()).expect("the name");
    assert!(not_running(is_running()), "it is being prepared");
    let taken = HeldSession::in_directory(named(&world, "work").0, name.clone()).expect_err("taken");
    assert!(matches!(taken, Error::Listen(ListenError::Running { .. })), "{taken:?}");
    let session = Session::with(World::cell(&world.policy())).await.expect("a session");
    held.publish(&SessionRecord::of(&session).await.expect("a record")).expect("written");
    held.touch();
    assert_eq!(names(&named(&world, "work").0).expect("names"), ["work"]);
    let life = is_running().expect("it runs").life;
    let path = held.path();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("a mode");
    assert!(matches!(is_running(), Err(Error::Listen(ListenError::Io { .. }))), "others may read it");
    drop(held);
    life.ended().expect("it has ended");
    assert!(!path.exists() && not_running(is_running()));
    // One whose process was killed leaves its file.
    fs::write(&path, "{}").expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a mode");
    assert!(not_running(is_running()));
    drop(HeldSession::in_directory(named(&world, "work").0, name).expect("the name is free"));
}

#[tokio::test]
async fn a_command_that_sees_everything_sees_no_records_of_sessions() {
    let world = World::new();
    let policy = Policy::profile(Profile::FullDev, &world.workspace);
    let places = World::cell(&policy).in_force().places;
    let directory = Directory::default_path();
    if directory.exists() {
        let hidden = places.iter().find(|place| place.path == directory).expect("a place");
        assert_eq!(hidden.access, PlaceAccess::Hidden);
    }
    let places = World::cell(&world.policy()).in_force().places;
    let of = |path: &Path| places.iter().find(|place| place.path == path).map(|place| place.access);
    assert_eq!(of(&world.workspace), Some(PlaceAccess::Write));
    assert_eq!(of(Path::new("/usr")), Some(PlaceAccess::Read));
}

#[tokio::test]
async fn a_probe_says_what_holds() {
    let probe = Probe::with(Profile::RepoWrite, stand_in()).await.expect("a probe");
    assert_eq!(probe.verdict, Verdict::Partial);
    for area in [Area::Host, Area::Protection, Area::Attempt] {
        assert!(probe.findings.iter().any(|finding| finding.area == area), "{area}");
    }
    // The stand-in confines nothing, and the probe sees that.
    let attempts = || probe.findings.iter().filter(|finding| finding.area == Area::Attempt);
    assert!(attempts().all(|finding| finding.state == Found::Missing && finding.remedy.is_some()));
    let none = Probe::with(Profile::RepoWrite, "/absent".into()).await.expect("a probe");
    assert_eq!((none.verdict, none.findings.len()), (Verdict::Unavailable, 1));
    let strict = Probe::with(Profile::CiOnly, stand_in()).await.expect("a probe");
    assert_eq!(strict.verdict, Verdict::Unavailable);
}

#[test]
fn the_work_tree_around_a_directory_is_found() {
    let world = World::new();
    let below = world.path("a/b");
    fs::create_dir_all(&below).expect("a directory");
    let mut caller = Caller::current();
    let top = |caller: &Caller| work_tree::around(&below, caller);
    assert_eq!(top(&caller), None);
    fs::create_dir(world.path(".git")).expect("a repository");
    assert_eq!(top(&caller).as_deref(), Some(&*world.workspace));
    caller.homes = vec![world.path("a")];
    assert_eq!(top(&caller), None, "it holds a home");
    caller.homes = vec![];
    caller.uid += 1;
    assert_eq!(top(&caller), None, "it belongs to another user");
}
