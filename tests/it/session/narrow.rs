//! A command may do less than its policy allows: fewer grants, read-only, no network. The next command has
//! everything again.

use std::{fs, path::Path};

use kennel::{Command, Error, Mount, Policy, Sandbox, Session};

use super::{attempt, in_time, ready, said, sharing::server};
use crate::support::{World, has, payload, policy_at, require, workspace};

/// The results of creating and of overwriting a file at each path.
async fn writes(command: &mut Command, paths: &[&Path]) -> Vec<String> {
    let calls: Vec<String> =
        paths.iter().map(|path| format!("open s:{} 0x41 0x1b6", path.display())).collect();
    said(command.args(calls.join(" + ").split(' '))).await.lines().map(str::to_owned).collect()
}

fn call(session: &Session) -> Command {
    attempt(session, "call")
}

#[tokio::test]
async fn a_read_only_workspace_is_so_for_one_command() {
    let world = World::new();
    fs::write(world.at("old"), "kept").unwrap();
    let session = world.probing().await;
    let (old, new) = (world.at("old"), world.at("new"));
    for _ in 0..3 {
        assert_eq!(writes(call(&session).read_only(world.path()), &[&old, &new]).await, ["EROFS", "EROFS"]);
        assert!(!new.exists());
        let mut reads = attempt(&session, &format!("read {}", old.display()));
        assert_eq!(said(reads.read_only(world.path())).await, "[kept]\n");
        assert_eq!(writes(&mut call(&session), &[&old, &new]).await, ["ok", "ok"], "the next may write");
        fs::remove_file(&new).unwrap();
    }
}

#[tokio::test]
async fn a_read_only_repository_is_so_for_one_command() {
    require!(has("git"), "git");
    let dir = workspace();
    let script =
        "git init -q r; git -C r -c user.name=me -c user.email=me@example.com commit -q --allow-empty -m one
                  git clone -q --bare r b.git; git -C b.git worktree add -q f";
    let made =
        std::process::Command::new("sh").args(["-ec", script]).current_dir(dir.path()).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let policy = policy_at(dir.path().join("b.git/f")).mount(payload());
    let session = Session::prepare(&policy).await.unwrap();
    let top = dir.path().join("b.git");
    let at = |name: &str| format!("s:{}", top.join(name).display());
    let (lock, new, refs) = (at("packed-refs.lock"), at("packed-refs.new"), at("packed-refs"));
    // What git does to pack refs, and what is like it.
    let calls = [
        format!("open {lock} 0xc1 0x1b6"),
        format!("openat -100 {new} 0xc2 0x1b6"),
        format!("open {new} 0xc2 0x1b6"),
        format!("chmod {new} 0x1a4"),
        format!("chmod {new} 0xda4"),
        format!("rename {new} {}", at("HEAD")),
        format!("rename {new} {}", at(".envrc")),
        format!("rename {lock} {new}"),
        format!("rename {} {lock}", at("f/.git")),
        format!("link {} {}", at("f/.git"), at("shallow.lock")),
        format!("symlink s:/etc {}", at("shallow.lock")),
        format!("mkdir {} 0x1ff", at("shallow.lock")),
        format!("open {} 0xc1 0x1b6", at("Cargo.lock")),
        format!("open {} 0xc1 0x1b6", at("other/shallow.lock")),
        format!("open {new} 0x2"),
        format!("unlink {refs}"),
        format!("rename {new} {refs}"),
        format!("unlink {lock}"),
    ]
    .join(" + ");
    let answers = [
        "ok", "ok", "EEXIST", "ok", "EPERM", "EROFS", "EROFS", "EROFS", "EXDEV", "EROFS", "EROFS", "EROFS",
        "EROFS", "ENOENT", "EROFS", "EROFS", "ok", "ok",
    ];
    for _ in 0..2 {
        assert_eq!(said(call(&session).args(calls.split(' '))).await.lines().collect::<Vec<_>>(), answers);
        assert_eq!(fs::read(top.join("packed-refs")).unwrap(), b"", "it was replaced");
        for grant in [top.clone(), top.join("refs")] {
            let calls = format!("open {lock} 0xc1 0x1b6 + rename {new} {refs}");
            let mut narrowed = call(&session);
            let answers = said(narrowed.args(calls.split(' ')).read_only(&grant)).await;
            assert_eq!(answers, "EROFS\nEROFS\n", "{}", grant.display());
        }
    }
}

#[tokio::test]
async fn a_command_beside_a_narrowed_one_may_write() {
    let world = World::new();
    let session = world.probing().await;
    let mut narrowed = session.command("sh");
    let script = "echo ready; until [ -e go ]; do sleep 0.01; done; touch new";
    let mut narrowed =
        ready(narrowed.args(["-c", script]).read_only(world.path()).stderr(kennel::Stdio::null()), 1).await;
    assert_eq!(writes(&mut call(&session), &[&world.at("go")]).await, ["ok"]);
    assert_eq!(in_time(narrowed.wait()).await.unwrap().exit_code(), 1);
    assert!(!world.at("new").exists());
}

/// A policy with nested grants: `rw` in the workspace, at two places, and a file.
fn grants(world: &World, other: &Path) -> Policy {
    let mount = |target: &str| Mount::ReadWrite { source: other.to_owned(), target: Some(target.into()) };
    let file = Mount::ReadOnly { source: other.join("file"), target: Some("/etc/granted".into()) };
    fs::create_dir(world.at("sub")).unwrap();
    fs::create_dir_all(world.at(".git/hooks")).unwrap();
    let below = Mount::ReadWrite { source: other.to_owned(), target: Some(world.at("sub")) };
    world.with_payload().mount(mount("/data")).mount(mount("/tmp/data")).mount(below).mount(file)
}

#[tokio::test]
async fn read_only_covers_everything_below_and_nothing_beside() {
    let (world, other) = (World::new(), workspace());
    fs::write(other.path().join("file"), "text").unwrap();
    let session = Session::prepare(&grants(&world, other.path())).await.unwrap();
    let paths = ["/data/x".into(), "/tmp/data/x".into(), world.at("sub/x"), world.at("x"), "/tmp/x".into()];
    let paths: Vec<&Path> = paths.iter().map(|path: &std::path::PathBuf| path.as_path()).collect();
    let (ok, no) = ("ok", "EROFS");
    assert_eq!(writes(call(&session).read_only("/data"), &paths).await, [no, ok, ok, ok, ok]);
    assert_eq!(writes(call(&session).read_only("/tmp/data/"), &paths).await, [ok, no, ok, ok, ok]);
    assert_eq!(writes(call(&session).read_only(world.path()), &paths).await, [ok, ok, no, no, ok]);
    assert_eq!(writes(call(&session).read_only(world.at("sub")), &paths).await, [ok, ok, no, ok, ok]);
    let mut all = call(&session);
    all.read_only(world.path()).read_only("/data").read_only("/tmp/data");
    assert_eq!(writes(&mut all, &paths).await, [no, no, no, no, ok]);
    assert_eq!(writes(&mut call(&session), &paths).await, [ok; 5]);
}

/// It can be written through the open descriptor, but not opened again.
#[tokio::test]
async fn a_passed_descriptor_opens_no_other_file() {
    require!(kennel::probe::Host::detect().landlock_abi > 0, "Landlock");
    let (world, other) = (World::new(), workspace());
    let mount = Mount::ReadWrite { source: other.path().to_owned(), target: Some("/data".into()) };
    let session = Session::prepare(&world.with_payload().mount(mount)).await.unwrap();
    let mut narrow = attempt(&session, "use-stdout passed");
    let mut narrow = in_time(narrow.read_only("/data").stdout(kennel::Stdio::piped()).spawn()).await.unwrap();
    let mut wide = session.command("sh");
    let outcome =
        in_time(wide.args(["-c", "/payload give-stdout passed > /data/file"]).output()).await.unwrap();
    assert!(outcome.outcome.status.success());
    let mut answer = String::new();
    let mut stdout = narrow.stdout.take().unwrap();
    in_time(tokio::io::AsyncReadExt::read_to_string(&mut stdout, &mut answer)).await.unwrap();
    assert_eq!(answer, "EACCES\n");
    assert_eq!(fs::read_to_string(other.path().join("file")).unwrap(), "ok\n", "it was given that to say so");
}

#[tokio::test]
async fn a_hidden_grant_is_empty_for_one_command() {
    let (world, other) = (World::new(), workspace());
    fs::write(other.path().join("file"), "text").unwrap();
    fs::write(world.at("source"), "text").unwrap();
    let session = Session::prepare(&grants(&world, other.path())).await.unwrap();
    let list = format!("list {} /data /tmp/data", world.path().display());
    let list = || attempt(&session, &list);
    let whole = said(&mut list()).await;
    assert_eq!(whole, "[.git source sub]\n[file]\n[file]\n");
    assert_eq!(said(list().hide(world.path())).await, "[]\n[file]\n[file]\n");
    assert_eq!(said(list().hide("/data")).await, "[.git source sub]\n[]\n[file]\n");
    assert_eq!(said(list().hide("/tmp/data").hide("/data").hide(world.path())).await, "[]\n[]\n[]\n");
    assert_eq!(said(&mut list()).await, whole, "nothing sticks");
    let hidden = writes(call(&session).hide(world.path()), &[&world.at("x"), &world.at("sub/x")]).await;
    assert_eq!(hidden, ["EROFS", "ENOENT"]);
    let mut file = attempt(&session, "read /etc/granted");
    assert_ne!(said(file.hide("/etc/granted")).await, "[text]\n");
    assert_eq!(said(&mut attempt(&session, "read /etc/granted")).await, "[text]\n");
    let mut system = attempt(&session, "list /usr");
    assert_eq!(said(system.hide("/usr")).await, "[]\n", "what the profile grants can be hidden too");
}

#[tokio::test]
async fn a_hidden_program_cannot_be_executed() {
    let world = World::new();
    let session = world.probing().await;
    let error = in_time(attempt(&session, "descriptors").hide("/payload").output()).await.unwrap_err();
    let Error::NotExecutable { source, .. } = &error else { panic!("{error:?}") };
    assert_eq!(source.raw_os_error(), Some(libc::EACCES));
    said(&mut attempt(&session, "descriptors")).await;
}

#[tokio::test]
async fn no_network_is_out_of_reach_of_the_session_s_loopback() {
    let world = World::new();
    let session = world.probing().await;
    let _server = ready(&mut attempt(&session, &server(7003)), 3).await;
    let connect = || attempt(&session, "connect 127.0.0.1:7003");
    for _ in 0..3 {
        assert_eq!(said(connect().no_network()).await, "ECONNREFUSED\n");
        assert_eq!(said(&mut connect()).await, "ok\n");
    }
    let own = said(attempt(&session, "loopback").no_network()).await;
    assert_eq!(own.lines().next(), Some("ok"), "it has a loopback of its own");
    let mut both = attempt(&session, &format!("call open s:{}/x 0x41 0x1b6", world.path().display()));
    assert_eq!(said(both.no_network().read_only(world.path())).await, "EROFS\n");
}

#[tokio::test]
async fn only_grants_can_be_named() {
    let world = World::new();
    fs::create_dir(world.at("sub")).unwrap();
    let session = world.probing().await;
    let sub = world.at("sub");
    for path in [Path::new("/absent"), Path::new("/"), Path::new("relative"), Path::new(""), &sub] {
        let narrowed: [fn(&mut Command, &Path); 2] =
            [|command, path| _ = command.hide(path), |command, path| _ = command.read_only(path)];
        for narrow in narrowed {
            let mut command = attempt(&session, "descriptors");
            narrow(&mut command, path);
            let error = in_time(command.output()).await.unwrap_err();
            let Error::Command { what: "grant", value, reason } = &error else { panic!("{error:?}") };
            assert_eq!(value, &path.display().to_string());
            assert_eq!(reason, "the policy has no such grant: name it by its path in the sandbox");
        }
    }
    let stats = session.stats();
    assert_eq!((stats.running, stats.served), (0, 0), "no worker was used up");
}

/// `Policy::tmpfs` makes a grant, like `read_write`.
#[tokio::test]
async fn a_tmpfs_of_the_policy_can_be_narrowed() {
    let world = World::new();
    let session = Session::prepare(&world.with_payload().tmpfs("/data", None)).await.unwrap();
    assert_eq!(writes(call(&session).read_only("/data"), &[Path::new("/data/x")]).await, ["EROFS"]);
    assert_eq!(writes(&mut call(&session), &[Path::new("/data/x")]).await, ["ok"]);
}

#[tokio::test]
async fn a_narrowed_command_that_does_not_wait_changes_nothing_for_the_next() {
    let world = World::new();
    let session = world.probing().await;
    let new = world.at("new");
    for _ in 0..5 {
        let mut hurried = call(&session);
        hurried.args(["open", &format!("s:{}", new.display()), "0x41", "0x1b6"]);
        // Kennel keeps no narrowed workers ready. Either answer will do.
        match in_time(hurried.read_only(world.path()).fail_fast(true).output()).await {
            Ok(out) => assert_eq!(out.stdout, b"EROFS\n"),
            Err(error) => assert!(matches!(error, Error::Busy), "{error:?}"),
        }
        for _ in 0..3 {
            assert_eq!(writes(&mut call(&session), &[&new]).await, ["ok"]);
        }
    }
}

#[tokio::test]
async fn a_one_shot_can_be_narrowed_too() {
    let world = World::new();
    let new = world.at("new");
    for start in [Sandbox::new, Sandbox::eager] {
        let sandbox = start(&world.with_payload()).unwrap();
        let call = || {
            let mut command = sandbox.command("/payload");
            command.arg("call");
            command
        };
        assert_eq!(writes(call().read_only(world.path()), &[&new]).await, ["EROFS"]);
        assert_eq!(writes(call().hide(world.path()), &[&new]).await, ["EROFS"]);
        assert_eq!(writes(call().no_network(), &[&new]).await, ["ok"]);
    }
}
