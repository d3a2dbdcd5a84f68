//! Equal declarations share a session. Sessions are bounded, and end with the program that made them.

use std::{fs, process::Command, time::Duration};

use kennel::capabilities::{Capabilities, Wrapper};
use tokio::runtime::{Builder, Runtime};

use super::{Place, list, offline, writing};
use crate::{
    serve::runtime as runtime_directory,
    session::counts::Counts,
    support::{HEARTBEAT, beats, eventually, is_alone, is_silent, stdout, until, workspace},
};

fn single() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn a_hundred_wraps_leave_nothing() {
    if !is_alone("capabilities::kept::a_hundred_wraps_leave_nothing", "exec \"$@\"") {
        return;
    }
    single().block_on(async {
        let place = Place::new();
        let spawned = async |round: usize| {
            let (mut command, _) =
                place.wrapper.wrap("true", [""; 0], place.path(), &offline()).await.unwrap();
            match round % 4 {
                0 => drop(command),
                1 => command.spawn().unwrap().kill().await.unwrap(),
                _ => assert!(command.status().await.unwrap().success()),
            }
        };
        for round in 0..8 {
            spawned(round).await;
        }
        eventually("the zygote and two workers", || Counts::now().processes == 5).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let before = Counts::now();
        for round in 0..100 {
            spawned(round).await;
        }
        Counts::back_to(&before, || {}).await;
        assert_eq!(place.wrapper.sessions(), 1);
        place.wrapper.shutdown().await;
        eventually("no process", || Counts::now().processes == 0).await;
        assert_eq!(place.left(), ["kennel-exec"]);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_equal_declarations_share_a_session() {
    let (place, other) = (Place::new(), workspace());
    let sessions = async |dir: &std::path::Path, caps: &Capabilities| {
        place.wrapper.wrap("true", [""; 0], dir, caps).await.unwrap();
        place.wrapper.sessions()
    };
    assert_eq!(sessions(place.path(), &offline()).await, 1);
    assert_eq!(sessions(&place.path().join("."), &offline()).await, 1);
    assert_eq!(sessions(other.path(), &offline()).await, 2, "another directory");
    assert_eq!(sessions(place.path(), &writing(&[&"cwd"])).await, 3, "with the network");
    let twice = Capabilities { write_paths: list(&[&"cwd", &place.path()]), ..Capabilities::default() };
    assert_eq!(sessions(place.path(), &twice).await, 3, "the same said twice");
    let further = Capabilities { write_paths: list(&[&other.path()]), ..offline() };
    assert_eq!(sessions(place.path(), &further).await, 4);
    assert_eq!(sessions(place.path(), &Capabilities { write_paths: Vec::new(), ..further }).await, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_made_again_gets_a_session_of_its_own() {
    let place = Place::new();
    let dir = place.path().join("w");
    let script = ["-c", "cat new; echo x > out"];
    for round in 0..2 {
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("new"), format!("round {round}")).unwrap();
        let (mut command, _) = place.wrapper.wrap("sh", script, &dir, &offline()).await.unwrap();
        let said = String::from_utf8(command.output().await.unwrap().stdout).unwrap();
        assert_eq!((said, dir.join("out").exists()), (format!("round {round}"), true));
        fs::remove_dir_all(&dir).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_sessions_are_bounded_and_busy_ones_stay() {
    let place = Place::new();
    let (mut command, _) =
        place.wrapper.wrap("sh", ["-c", HEARTBEAT], place.path(), &offline()).await.unwrap();
    let mut busy = command.kill_on_drop(true).spawn().unwrap();
    until("it beats", || beats(place.path()) > 2);
    let mut first = None;
    for number in 0..20 {
        let dir = place.path().join(number.to_string());
        fs::create_dir(&dir).unwrap();
        let (command, _) = place.wrapper.wrap("true", [""; 0], &dir, &offline()).await.unwrap();
        first = first.or(Some(command));
    }
    assert_eq!(place.wrapper.sessions(), 16);
    let before = beats(place.path());
    until("it runs on", || beats(place.path()) > before);
    let sockets = place.left().iter().filter(|name| name.ends_with(".sock")).count();
    assert_eq!(sockets, 16, "{:?}", place.left());
    // A wrapped command that is started too late fails. It runs in no other session.
    let output = first.unwrap().output().await.unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no session listens here"), "{output:?}");
    busy.kill().await.unwrap();
}

#[test]
fn a_runtime_that_ends_takes_its_sessions_with_it() {
    if !is_alone("capabilities::kept::a_runtime_that_ends_takes_its_sessions_with_it", "exec \"$@\"") {
        return;
    }
    let place = Place::new();
    for _ in 0..3 {
        let runtime = single();
        runtime.block_on(async {
            assert_eq!(place.shell(&offline(), "echo well").await, "well");
            assert_eq!(place.wrapper.sessions(), 1, "none of an earlier runtime");
        });
        drop(runtime);
        assert_eq!(place.left(), ["kennel-exec"], "without anybody looking");
        until("no process", || Counts::now().processes == 0);
        assert_eq!(place.wrapper.sessions(), 0);
    }
    let (one, two) = (single(), single());
    for runtime in [&one, &two] {
        runtime.block_on(async { assert_eq!(place.shell(&offline(), "echo well").await, "well") });
    }
    assert_eq!(place.wrapper.sessions(), 2, "each is served by its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_was_killed_is_replaced() {
    let test = "capabilities::kept::a_session_that_was_killed_is_replaced";
    if !is_alone(test, "exec \"$@\"") {
        return;
    }
    let place = Place::new();
    assert_eq!(place.shell(&offline(), "echo well").await, "well");
    crate::session::tree::signal(crate::session::tree::zygote(), nix::sys::signal::Signal::SIGKILL);
    eventually("it is noticed", || place.wrapper.sessions() == 0).await;
    assert_eq!(place.shell(&offline(), "echo again").await, "again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_at_once_get_their_own_answers() {
    let place = std::sync::Arc::new(Place::new());
    let all: Vec<_> = (0..20)
        .map(|number| {
            let place = place.clone();
            tokio::spawn(async move { place.shell(&offline(), &format!("echo {number}")).await })
        })
        .collect();
    for (number, said) in all.into_iter().enumerate() {
        assert_eq!(said.await.unwrap(), number.to_string());
    }
    assert_eq!(place.wrapper.sessions(), 1);
}

/// The killed program: it wraps, spawns and prints a line.
const VICTIM: &str = "KENNEL_VICTIM";

#[test]
fn a_program_that_was_killed_leaves_nothing_to_the_next() {
    let test = "capabilities::kept::a_program_that_was_killed_leaves_nothing_to_the_next";
    if let Some(places) = std::env::var_os(VICTIM) {
        let places = places.into_string().unwrap();
        let (runtime, dir) = places.split_once(':').unwrap();
        let wrapper = Wrapper::in_directory(runtime);
        single().block_on(async {
            let (mut command, _) = wrapper.wrap("sh", ["-c", HEARTBEAT], dir, &offline()).await.unwrap();
            let mut child = command.spawn().unwrap();
            child.wait().await.unwrap();
        });
        return;
    }
    let (runtime, dir) = (runtime_directory(), workspace());
    let place = runtime.path().join("w");
    let mut victim = Command::new(format!("/proc/{}/exe", std::process::id()))
        .args(["--exact", test, "--nocapture"])
        .env(VICTIM, format!("{}:{}", place.display(), dir.path().display()))
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    until("it beats", || beats(dir.path()) > 2);
    victim.kill().unwrap();
    victim.wait().unwrap();
    until("it stops beating", || is_silent(dir.path()));
    let names = || {
        let mut names: Vec<_> =
            fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names().len(), 3, "nobody was left to remove them");
    let foreign = std::os::unix::net::UnixListener::bind(place.join("foreign.sock")).unwrap();
    single().block_on(async {
        let wrapper = Wrapper::in_directory(&place);
        let (mut command, _) = wrapper.wrap("true", [""; 0], dir.path(), &offline()).await.unwrap();
        assert!(command.status().await.unwrap().success());
        assert_eq!(names().len(), 4, "the new one's socket and lock, the client, and what has no lock");
        wrapper.shutdown().await;
        assert_eq!(names(), ["foreign.sock", "kennel-exec"]);
    });
    drop(foreign);
}

#[test]
fn dropping_the_wrapper_ends_all() {
    if !is_alone("capabilities::kept::dropping_the_wrapper_ends_all", "exec \"$@\"") {
        return;
    }
    single().block_on(async {
        let Place { wrapper, runtime, dir } = Place::new();
        let (mut command, _) = wrapper.wrap("sh", ["-c", HEARTBEAT], dir.path(), &offline()).await.unwrap();
        let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
        eventually("it beats", || beats(dir.path()) > 2).await;
        drop(wrapper);
        assert_eq!(child.wait().await.unwrap().code(), Some(125));
        eventually("no process", || Counts::now().processes == 0).await;
        let left: Vec<_> = fs::read_dir(runtime.path().join("w")).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "the client: {left:?}");
    });
}

#[test]
fn a_runtime_directory_that_others_can_enter_is_refused() {
    let (runtime, dir) = (runtime_directory(), workspace());
    let open = runtime.path().join("w");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    single().block_on(async {
        let wrapper = Wrapper::in_directory(&open);
        let error = wrapper.wrap("true", [""; 0], dir.path(), &offline()).await.unwrap_err();
        assert!(error.chain().contains("open to others") && error.remedy().is_some(), "{}", error.chain());
        assert_eq!(wrapper.sessions(), 0);
    });
}

#[test]
fn process_wide_sessions_lie_below_the_usual_directory() {
    let test = "capabilities::kept::process_wide_sessions_lie_below_the_usual_directory";
    let runtime = runtime_directory();
    if !is_alone(test, &format!("exec env XDG_RUNTIME_DIR={} \"$@\"", runtime.path().display())) {
        return;
    }
    let dir = workspace();
    let usual = std::path::PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR").unwrap()).join("kennel");
    single().block_on(async {
        let (mut command, _) =
            kennel::capabilities::wrap_command("true", [""; 0], dir.path(), &offline()).await.unwrap();
        assert!(command.status().await.unwrap().success());
        assert_eq!(fs::read_dir(usual.join("wrapped")).unwrap().count(), 3);
        let list = Command::new(crate::support::kennel_path()).args(["session", "list"]).output().unwrap();
        assert!(!stdout(&list).contains(".sock"), "nobody can name them: {list:?}");
    });
    assert_eq!(fs::read_dir(usual.join("wrapped")).unwrap().count(), 1, "gone with the runtime");
}

/// Puts a program of its own in the place of the client, if it can reach it.
const TAKE_OVER: &str = r#"
    for client in $(find "$1" -name kennel-exec 2> /dev/null); do
        cp /bin/false "$client.mine" && mv -f "$client.mine" "$client"
    done
    touch "$1/mine""#;

#[test]
fn commands_do_not_reach_the_client_that_runs_the_next_one() {
    let test = "capabilities::kept::commands_do_not_reach_the_client_that_runs_the_next_one";
    let runtime = runtime_directory();
    if !is_alone(test, &format!("exec env XDG_RUNTIME_DIR={} \"$@\"", runtime.path().display())) {
        return;
    }
    let (dir, runtime) =
        (workspace(), std::path::PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR").unwrap()));
    let caps = writing(&[&runtime]);
    single().block_on(async {
        assert!(!runtime.join("kennel").exists(), "nothing is there yet that could be covered");
        let args = ["-c", TAKE_OVER, "sh", runtime.to_str().unwrap()];
        let (mut command, _) =
            kennel::capabilities::wrap_command("sh", args, dir.path(), &caps).await.unwrap();
        assert!(command.status().await.unwrap().success());
        assert!(runtime.join("mine").exists(), "it may write around it");
        let client = fs::read(runtime.join("kennel/wrapped/kennel-exec")).unwrap();
        assert!(client != fs::read("/bin/false").unwrap(), "the client was exchanged");
        let (mut command, _) =
            kennel::capabilities::wrap_command("true", [""; 0], dir.path(), &caps).await.unwrap();
        assert!(command.status().await.unwrap().success());
    });
}

#[test]
fn a_runtime_directory_that_commands_could_write_to_is_refused() {
    let (dir, elsewhere, other) = (workspace(), runtime_directory(), workspace());
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(elsewhere.path(), &link).unwrap();
    single().block_on(async {
        for directory in [dir.path().join("w"), link.join("w")] {
            let wrapper = Wrapper::in_directory(&directory);
            let error = wrapper.wrap("true", [""; 0], dir.path(), &offline()).await.unwrap_err();
            assert!(error.chain().contains("through a writable grant"), "{}", error.chain());
            assert!(error.remedy().is_some() && wrapper.sessions() == 0);
            // Any other directory will do.
            let (mut command, _) = wrapper.wrap("true", [""; 0], other.path(), &offline()).await.unwrap();
            assert!(command.status().await.unwrap().success());
        }
    });
}
