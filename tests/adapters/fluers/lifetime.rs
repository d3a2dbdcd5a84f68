//! Nothing is left, whoever ends it and when.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use fluers_runtime::{
    ProcessSandbox,
    SandboxProfile::{CiOnly, NoNetwork, ReadOnly, RepoWrite},
};
use kennel_adapters::fluers::KennelSandbox;

use super::{commands::quiet, context, harness, says, wrapped};
use crate::support::{HEARTBEAT, beats, is_alone, own_children, stdout, until, workspace};

/// Where a sandbox puts its sockets.
fn place(kennel: &KennelSandbox, context: &fluers_runtime::ExecSandboxContext) -> PathBuf {
    let wrapped = kennel.wrap(&["true".to_owned()], context).unwrap();
    Path::new(&wrapped.argv[1]).parent().unwrap().to_owned()
}

/// Starts a heartbeat that is hard to stop.
async fn heart(kennel: &KennelSandbox, workspace: &Path) -> std::process::Child {
    let context = context(workspace, NoNetwork);
    kennel.prepare(&context).await.unwrap();
    let script = format!("trap '' TERM HUP INT; (setsid sh -c '{HEARTBEAT}') & {HEARTBEAT}");
    let child = wrapped(kennel, &context, &["sh", "-c", &script]).spawn().unwrap();
    while beats(workspace) < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    child
}

#[tokio::test]
async fn sockets_do_not_lie_where_commands_can_write() {
    let (dir, kennel) = (workspace(), KennelSandbox::new());
    let context = context(dir.path(), RepoWrite);
    kennel.prepare(&context).await.unwrap();
    let above = place(&kennel, &context).parent().unwrap().to_owned();
    let kennel = KennelSandbox::with_policy(kennel::Policy::default().read_write(&above));
    let error = kennel.prepare(&context).await.unwrap_err();
    assert!(error.to_string().contains("through a writable grant"), "{error}");
    kennel.wrap(&["true".to_owned()], &context).unwrap_err();
}

#[tokio::test]
async fn sockets_lie_where_nobody_else_can_enter() {
    let (dir, kennel) = (workspace(), KennelSandbox::new());
    let (one, two) = (context(dir.path(), RepoWrite), context(dir.path(), ReadOnly));
    kennel.prepare(&one).await.unwrap();
    kennel.prepare(&two).await.unwrap();
    let place = place(&kennel, &one);
    assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o7777, 0o700);
    assert_eq!(self::place(&kennel, &two), place);
}

#[tokio::test]
async fn leftovers_of_a_killed_process_are_removed() {
    let (dir, first, second) = (workspace(), KennelSandbox::new(), KennelSandbox::new());
    let context = context(dir.path(), RepoWrite);
    first.prepare(&context).await.unwrap();
    let used = place(&first, &context);
    let make = |name: &str| {
        let path = used.with_file_name(format!("kennel-fluers-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("0.sock"), "").unwrap();
        path
    };
    let (left, young) = (make("left"), make("young"));
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(100);
    for old in [&left, &used] {
        fs::File::open(old).unwrap().set_modified(long_ago).unwrap();
    }
    second.prepare(&context).await.unwrap();
    assert!(!left.exists());
    assert!(young.exists() && used.exists(), "one may be about to be locked, one is");
    fs::remove_dir_all(young).unwrap();
}

#[tokio::test]
async fn shutdown_ends_everything() {
    let (dir, kennel) = (workspace(), KennelSandbox::new());
    let mut child = heart(&kennel, dir.path()).await;
    let context = context(dir.path(), NoNetwork);
    let place = place(&kennel, &context);
    kennel.shutdown().await.unwrap();
    quiet(dir.path()).await;
    assert!(!place.exists(), "{}", place.display());
    let status = tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
    assert_eq!(status.code(), Some(125), "the client does not hang");
    let said = kennel.wrap(&["true".to_owned()], &context).expect_err("shut down").to_string();
    assert!(said.contains("was shut down"), "{said}");
    kennel.shutdown().await.unwrap();
    // The sandbox can be used again.
    kennel.prepare(&context).await.unwrap();
    let mut command = wrapped(&kennel, &context, &["echo", "again"]);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert_eq!(stdout(&output), "again");
}

#[tokio::test]
async fn dropped_sandbox_ends_everything() {
    let (dir, kennel) = (workspace(), KennelSandbox::new());
    let mut child = heart(&kennel, dir.path()).await;
    let place = place(&kennel, &context(dir.path(), NoNetwork));
    drop(kennel);
    assert!(!place.exists(), "{}", place.display());
    quiet(dir.path()).await;
    tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
}

#[test]
fn sandbox_dropped_outside_of_its_runtime_ends_everything() {
    let (dir, kennel) = (workspace(), KennelSandbox::new());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut child = runtime.block_on(heart(&kennel, dir.path()));
    let place = place(&kennel, &context(dir.path(), NoNetwork));
    drop(kennel);
    assert!(!place.exists(), "{}", place.display());
    until("the heart stands still", || crate::support::is_silent(dir.path()));
    drop(runtime);
    child.wait().unwrap();
}

#[tokio::test]
async fn prepared_twice_is_prepared_once() {
    let (dir, kennel) = (workspace(), KennelSandbox::new());
    let context = context(dir.path(), RepoWrite);
    let socket = || kennel.wrap(&["true".to_owned()], &context).unwrap().argv.swap_remove(1);
    kennel.prepare(&context).await.unwrap();
    let first = socket();
    kennel.prepare(&context).await.unwrap();
    assert_eq!(socket(), first);
    let (one, two, three) =
        tokio::join!(kennel.prepare(&context), kennel.prepare(&context), kennel.prepare(&context));
    one.and(two).and(three).unwrap();
    assert_eq!(socket(), first);
}

#[tokio::test]
async fn recreated_workspace_gets_a_new_session() {
    let (dir, kennel) = (workspace(), Arc::new(KennelSandbox::new()));
    let inner = dir.path().join("inner");
    let env = harness(&kennel, &inner, RepoWrite, &[]).await;
    says(&env, "touch old").await;
    fs::remove_dir_all(&inner).unwrap();
    // The new directory must not get the inode of the old one.
    fs::create_dir(dir.path().join("between")).unwrap();
    let env = harness(&kennel, &inner, RepoWrite, &[]).await;
    assert_eq!(says(&env, "touch new; ls").await, "new");
    assert!(inner.join("new").exists());
}

#[tokio::test]
async fn killed_session_is_prepared_again() {
    let (dir, kennel) = (workspace(), Arc::new(KennelSandbox::new()));
    let env = harness(&kennel, dir.path(), RepoWrite, &[]).await;
    says(&env, "true").await;
    // Only children of this process count: other tests run in it too.
    let argv = kennel.wrap(&["true".to_owned()], &context(dir.path(), RepoWrite)).unwrap().argv;
    let name = Path::new(&argv[1]).file_stem().unwrap().to_str().unwrap().to_owned();
    let client = kennel::client::Client::connect_in(Path::new(&argv[1]).parent().unwrap(), &name).unwrap();
    tokio::task::spawn_blocking(move || client.stop().unwrap()).await.unwrap();
    let gone = super::shell(&env, "true").await;
    assert_eq!(gone.exit_code, 125, "{gone:?}");
    let env = harness(&kennel, dir.path(), RepoWrite, &[]).await;
    assert_eq!(says(&env, "echo anew").await, "anew");
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn nothing_is_left_in_the_process() {
    if !is_alone("fluers::lifetime::nothing_is_left_in_the_process", "exec \"$@\"") {
        return;
    }
    let dir = workspace();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (before, was) = (descriptors(), own_children());
    runtime.block_on(async {
        for profile in [RepoWrite, ReadOnly, NoNetwork, CiOnly] {
            let kennel = Arc::new(KennelSandbox::new());
            let env = harness(&kennel, dir.path(), profile, &[]).await;
            says(&env, "echo x").await;
            kennel.shutdown().await.unwrap();
        }
        // A preparation that is dropped at any moment, and a probe.
        for delay in 0..20u64 {
            let kennel = KennelSandbox::new();
            let context = context(dir.path(), RepoWrite);
            let _ = tokio::time::timeout(Duration::from_micros(delay * 200), kennel.prepare(&context)).await;
            let _ = tokio::time::timeout(Duration::from_millis(delay), kennel.probe(&NoNetwork)).await;
        }
    });
    drop(runtime);
    until("no child is left", || own_children() == was);
    until("no descriptor is left", || descriptors() <= before);
}
