//! Modes and owners that a seccomp filter cannot judge: calls have the effect and the errno that they have
//! outside.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
    path::Path,
};

use kennel::{Isolation, Policy, Profile, Session};

use crate::support::{
    TempDir, attempt, has, is_root, only_as_root, payload_path, require, shell, stderr, stdout, succeeds,
    workspace,
};

/// Runs calls of the payload inside and outside, each time in a workspace of its own, and compares them.
fn same(prepare: impl Fn(&Path), calls: &[&str]) {
    let line = calls.join(" + ");
    let words: Vec<&str> = line.split_whitespace().collect();
    let (inside, outside) = (workspace(), workspace());
    [&inside, &outside].into_iter().for_each(|ws| prepare(ws.path()));
    let said = attempt(inside.path(), &[], "call", &words);
    let mut bare = std::process::Command::new(payload_path());
    let expected = stdout(&bare.current_dir(outside.path()).arg("call").args(&words).output().unwrap());
    let with = |said: &str| {
        calls.iter().zip(said.lines()).map(|(call, answer)| format!("{call} = {answer}")).collect::<Vec<_>>()
    };
    assert_eq!(with(&said), with(&expected));
    assert_eq!(state(&inside), state(&outside));
}

/// The mode, user and group of every entry.
fn state(ws: &TempDir) -> Vec<(String, u32, u32, u32)> {
    let entries = fs::read_dir(ws.path()).unwrap().flatten();
    let mut all: Vec<_> = entries
        .map(|entry| {
            let of = entry.metadata().unwrap();
            (entry.file_name().into_string().unwrap(), of.mode(), of.uid(), of.gid())
        })
        .collect();
    all.sort();
    all
}

fn tree(ws: &Path) {
    fs::create_dir_all(ws.join("d/e")).unwrap();
    fs::create_dir(ws.join("closed")).unwrap();
    fs::create_dir(ws.join("closed/in")).unwrap();
    fs::write(ws.join("f"), "").unwrap();
    symlink("d", ws.join("link")).unwrap();
    symlink("link", ws.join("chain")).unwrap();
    symlink("loop", ws.join("loop")).unwrap();
    symlink(ws.join("d/e"), ws.join("absolute")).unwrap();
    symlink("../f", ws.join("d/up")).unwrap();
}

#[test]
fn a_directory_gives_its_group_to_new_entries() {
    for call in [
        "chmod s:d 0x5fd",
        "chmod s:d/ 0x5fd",
        "chmod s:./d/e/../../d/. 0x5fd",
        "chmod s:link 0x5fd",
        "chmod s:link/ 0x5fd",
        "chmod s:chain/e 0x5fd",
        "chmod s:absolute 0x5fd",
        "fchmodat -100 s:d 0x5fd",
        "fchmodat2 -100 s:d 0x5fd 0x100",
        "openat -100 s:d 0x10000 + fchmod $ 0x5fd",
        "openat -100 s:d 0 + fchmodat $ s:e 0x5fd",
        "openat -100 s:d 0x200000 + fchmodat $ s:../d/../link/e 0x5fd",
        "openat -100 s:d 0x200000 + fchmodat2 $ s: 0x5fd 0x1000",
        "openat -100 s:d 0 + chmod s:/proc/self/fd/3 0x5fd",
        "chdir s:d/e + chmod s:.. 0xdfd0000000005fd",
        "chdir s:d/e + chmod s:../../link 0x5fd",
        "chmod s:d 0x5fd + mkdir s:d/new 0x1ff + chmod s:d/new 0x5ff",
        "chmod s:d 0xfff000005fd + chmod s:d 0x1fd",
    ] {
        same(tree, &call.split(" + ").collect::<Vec<_>>());
    }
    let ws = workspace();
    tree(ws.path());
    succeeds(ws.path(), &[], "chmod 2775 d && mkdir d/new && chmod g+s \"$PWD/d/e\"");
    for name in ["d", "d/new", "d/e"] {
        assert_eq!(fs::metadata(ws.path().join(name)).unwrap().mode() & 0o2000, 0o2000, "{name}");
    }
}

/// Kennel's thread ends when nothing is asked for a second, and the next question starts another one.
#[test]
fn questions_are_answered_after_a_pause() {
    let ws = workspace();
    let several = "mkdir a b c; for d in a b a b a b; do chmod 2755 $d || exit; sleep 0.02; done";
    let said = succeeds(ws.path(), &[], &format!("{several}; sleep 1.5; chmod 2755 c && stat -c %a c"));
    assert_eq!(said, "2755");
}

#[test]
fn a_mode_that_cannot_be_set_has_the_errno_of_outside() {
    for call in [
        "chmod s:none 0x5fd",
        "chmod s:none/e 0x5fd",
        "chmod s:f/e 0x5fd",
        "chmod s:f/ 0x5fd",
        "chmod s:loop 0x5fd",
        "chmod s: 0x5fd",
        "chmod 0 0x5fd",
        "chmod 0xfffffffffffff000 0x5fd",
        "fchmod 99 0x5fd",
        "fchmod -1 0x5fd",
        "fchmodat 99 s:d 0x5fd",
        "fchmodat2 -100 s:d 0x5fd 0x4000",
        "fchmodat2 -100 s:link 0x5fd 0x100",
        "openat -100 s:d 0x200000 + fchmod $ 0x5fd",
        "openat -100 s:f 0 + fchmodat $ s:d 0x5fd",
        "chmod s:/proc/self/fd/99 0x5fd",
    ] {
        same(tree, &call.split(" + ").collect::<Vec<_>>());
    }
    let long = format!("chmod s:{} 0x5fd", "d/../".repeat(900));
    same(tree, &[&long]);
    if !is_root() {
        let closed = |ws: &Path| {
            tree(ws);
            fs::set_permissions(ws.join("closed"), fs::Permissions::from_mode(0o0)).unwrap();
        };
        same(closed, &["chmod s:closed/in 0x5fd", "fchmodat -100 s:closed/../d 0x5fd"]);
    }
    // What the sandbox shows read-only.
    let ws = workspace();
    tree(ws.path());
    let d = ws.path().join("d");
    let flags = ["--profile", "read-only"];
    let calls =
        ["chmod s:d 0x5fd", "+", "chmod s:f 0x5fd", "+", "chmod s:/usr 0x5fd", "+", "chown s:d 12345 -1"];
    let words: Vec<&str> = calls.iter().flat_map(|call| call.split(' ')).collect();
    assert_eq!(attempt(ws.path(), &flags, "call", &words), "EROFS\nEROFS\nEROFS\nEROFS");
    assert_eq!(fs::metadata(d).unwrap().mode() & 0o2000, 0);
}

/// The supervisor is outside, where `/` and `..` would lead to the host.
#[test]
fn a_path_leads_to_what_the_command_sees() {
    let hidden = workspace();
    fs::create_dir(hidden.path().join("d")).unwrap();
    let ws = workspace();
    symlink(hidden.path().join("d"), ws.path().join("out")).unwrap();
    let absolute = hidden.path().join("d").display().to_string();
    let up = format!("{}{absolute}", "../".repeat(30));
    for path in [&absolute, &up, "out", "/proc/1/root/tmp", "/proc/self/root/none"] {
        let said = attempt(ws.path(), &[], "call", &["chmod", &format!("s:{path}"), "0x5fd"]);
        assert_ne!(said, "ok", "{path}");
    }
    assert_eq!(fs::metadata(hidden.path().join("d")).unwrap().mode() & 0o2000, 0);
    // A directory of the sandbox that the host has too.
    succeeds(
        ws.path(),
        &[],
        "mkdir /tmp/x && chmod 2777 /tmp/x && test -g /tmp/x && cd /tmp/x && chmod 2777 ../../tmp/x",
    );
}

#[test]
fn an_owner_that_nobody_may_give_has_the_errno_of_outside() {
    if is_root() {
        return;
    }
    for call in [
        "chown s:f 12345 -1",
        "chown s:f -1 12345",
        "chown s:f 0 0",
        "lchown s:link 0 -1",
        "fchownat -100 s:link 0 0 0x100",
        "fchownat -100 s:f 0 0 0x4000",
        "chown s:none 0 0",
        "chown s:loop 0 0",
        "fchown 99 0 0",
        "openat -100 s:f 0 + fchown $ 0 0",
        "openat -100 s:f 0x200000 + fchown $ 0 0",
        "openat -100 s:f 0x200000 + fchownat $ s: 0 0 0x1000",
        "chown s:f 0xffffffff 0xffffffff",
    ] {
        same(tree, &call.split(" + ").collect::<Vec<_>>());
    }
}

#[test]
fn root_is_told_that_owners_are_set() {
    only_as_root!();
    let ws = workspace();
    tree(ws.path());
    let calls = [
        ("chown s:f 1000 1000", "ok"),
        ("chown s:f 0 12345", "ok"),
        ("lchown s:link 1000 -1", "ok"),
        ("fchownat -100 s:d 1000 1000 0", "ok"),
        ("chown s:none 1000 1000", "ENOENT"),
        ("chown s:/usr 1000 1000", "EROFS"),
        ("fchown 99 1000 1000", "EBADF"),
    ];
    let line = calls.map(|(call, _)| call).join(" + ");
    let said = attempt(ws.path(), &[], "call", &line.split(' ').collect::<Vec<_>>());
    assert_eq!(said.lines().collect::<Vec<_>>(), calls.map(|(_, answer)| answer));
    let owners: Vec<_> = state(&ws).into_iter().map(|(name, _, user, group)| (name, user, group)).collect();
    assert!(owners.iter().all(|(_, user, group)| (*user, *group) == (0, 0)), "{owners:?}");
    // A file of another user stays theirs.
    chown(ws.path().join("f"), Some(1000), Some(1000)).unwrap();
    assert_eq!(attempt(ws.path(), &[], "call", &["chown", "s:f", "33", "33"]), "ok");
    assert_eq!(fs::metadata(ws.path().join("f")).unwrap().uid(), 1000);
}

#[test]
fn archives_and_trees_of_others_are_unpacked() {
    require!(has("tar") && has("cp") && has("install"), "tar, cp, install");
    let ws = workspace();
    let script = "mkdir t && echo x > t/f && tar --owner=12345 --group=12345 -cf t.tar t && mkdir out && \
        tar xf t.tar -C out && cp -a out/t again && chmod 2755 again && cp -a again third && test -g third && \
        tar cf g.tar third && rm -r third && tar xpf g.tar && test -g third && install -d -m 2775 made && test -g made";
    succeeds(ws.path(), &[], script);
    only_as_root!();
    fs::create_dir(ws.path().join("theirs")).unwrap();
    fs::write(ws.path().join("theirs/f"), "x").unwrap();
    for path in ["theirs/f", "theirs"] {
        chown(ws.path().join(path), Some(1000), Some(1000)).unwrap();
    }
    let script = "cp -a theirs copy && cp -p theirs/f g && install -o 1000 -g 1000 -m 644 theirs/f h && \
        tar cf - theirs | tar xf - -C out && chown -R 1000:1000 copy";
    succeeds(ws.path(), &[], script);
}

#[test]
fn many_threads_ask_at_once() {
    let ws = workspace();
    fs::create_dir(ws.path().join("d")).unwrap();
    assert_eq!(attempt(ws.path(), &[], "crowd-modes", &["16"]), "ok");
    assert_eq!(fs::metadata(ws.path().join("d")).unwrap().mode() & 0o7777, 0o2775);
}

#[test]
fn explain_says_which_owner_was_not_set_and_which_mode_was_refused() {
    let ws = workspace();
    tree(ws.path());
    let output = shell(ws.path(), &["--explain"], "chmod 2775 d && chown 12345 f; chmod 2755 f");
    let said = stderr(&output);
    assert!(said.contains("mode 0o2000"), "{said}");
    assert_eq!(said.contains("answered as done"), is_root(), "{said}");
    assert_eq!(fs::metadata(ws.path().join("d")).unwrap().mode() & 0o2000, 0o2000);
    assert_eq!(fs::metadata(ws.path().join("f")).unwrap().mode() & 0o2000, 0);
}

/// What a command does from a thread or process that this program cannot look at is refused, as without a
/// supervisor.
#[test]
fn a_caller_that_hides_its_memory_gets_an_answer() {
    let ws = workspace();
    tree(ws.path());
    let answer = attempt(ws.path(), &[], "call", &["prctl", "4", "0", "+", "chmod", "s:d", "0x5fd"]);
    assert!(["ok\nEPERM", "ok\nok"].contains(&&*answer), "{answer}");
}

#[tokio::test]
async fn commands_of_a_session_ask_too() {
    let ws = workspace();
    tree(ws.path());
    for isolation in [Isolation::Command, Isolation::Session] {
        let policy = Policy::profile(Profile::RepoWrite, ws.path()).isolation(isolation);
        let session = Session::prepare(&policy).await.unwrap();
        let shell = |script: &str| {
            let mut command = session.command("sh");
            command.args(["-c", script]);
            command
        };
        for turn in 0..3 {
            let script = "chmod 2775 d && chmod 755 d && chmod 2755 d/e && chmod 0755 d/e && chmod 2755 f";
            let output = shell(script).output().await.unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("'f'") && said.contains("not permitted"), "{turn} {said}");
            assert_eq!(fs::metadata(ws.path().join("f")).unwrap().mode() & 0o2000, 0);
        }
        let mut crowd = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let mut command = shell("for i in 1 2 3 4 5; do chmod 2775 d || exit 1; done");
            crowd.spawn(async move { command.status().await.unwrap() });
        }
        assert!(crowd.join_all().await.iter().all(|outcome| outcome.status.success()));
    }
}

/// A session outlives the runtime that prepared it.
#[test]
fn a_session_has_its_supervisor_when_the_runtime_is_gone() {
    let ws = workspace();
    tree(ws.path());
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let session =
        runtime().block_on(Session::prepare(&Policy::profile(Profile::RepoWrite, ws.path()))).unwrap();
    let second = runtime();
    for _ in 0..2 {
        let mut command = session.command("chmod");
        let outcome = second.block_on(command.args(["2775", "d"]).status()).unwrap();
        assert!(outcome.status.success());
    }
    assert_eq!(fs::metadata(ws.path().join("d")).unwrap().mode() & 0o7777, 0o2775);
}
