//! What a policy grants is replaced outside while a session lives: the next command sees what is there now, or it is
//! refused with the reason.

use std::{
    fs,
    io::Read,
    os::unix::{
        fs::symlink,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use kennel::{Error, Mount, Sandbox, Session, TmpLife};

use super::{in_time, policy, ready, shell};
use crate::support::{TempDir, eventually, has, require, workspace};

/// A workspace, and beside it a directory for grants.
struct Host {
    workspace: TempDir,
    granted: TempDir,
}

impl Host {
    fn new() -> Self {
        Self { workspace: workspace(), granted: workspace() }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.granted.path().join(name)
    }

    /// Writes a file as editors do: another one takes its name.
    fn save(&self, name: &str, text: &str) {
        fs::write(self.at("new"), text).unwrap();
        fs::rename(self.at("new"), self.at(name)).unwrap();
    }

    fn policy(&self, mounts: impl IntoIterator<Item = Mount>) -> kennel::Policy {
        mounts.into_iter().fold(policy(self.workspace.path()), kennel::Policy::mount)
    }

    async fn session(&self, mounts: impl IntoIterator<Item = Mount>) -> Session {
        Session::prepare(&self.policy(mounts)).await.unwrap()
    }
}

fn ro(source: &Path) -> Mount {
    Mount::ReadOnly { source: source.to_owned(), target: None }
}

fn rw(source: &Path) -> Mount {
    Mount::ReadWrite { source: source.to_owned(), target: None }
}

async fn error_of(session: &Session) -> Error {
    in_time(session.command("true").output()).await.unwrap_err()
}

#[tokio::test]
async fn files_that_were_replaced_are_shown_anew_and_no_write_is_lost() {
    let host = Host::new();
    host.save("ro", "old");
    host.save("rw", "old");
    let target = Some(PathBuf::from("/elsewhere"));
    let moved = Mount::ReadOnly { source: host.at("ro"), target };
    let session = host.session([ro(&host.at("ro")), rw(&host.at("rw")), moved]).await;
    shell(&session, "true").await;
    let (ro, rw) = (host.at("ro").display().to_string(), host.at("rw").display().to_string());
    for text in ["one", "two"] {
        host.save("ro", text);
        host.save("rw", text);
        assert_eq!(shell(&session, &format!("cat {ro} {rw} /elsewhere")).await, text.repeat(3));
        shell(&session, &format!("echo inside > {rw}")).await;
        assert_eq!(fs::read_to_string(host.at("rw")).unwrap(), "inside\n");
        host.save("ro", &format!("file {text}"));
        assert_eq!(session.read(&ro).await.unwrap(), format!("file {text}").into_bytes());
    }
    assert_eq!(session.stats().served, 5, "the numbers go on");
    session.shutdown().await;
    assert!(matches!(error_of(&session).await, Error::SessionEnded));
}

#[tokio::test]
async fn directories_that_were_made_again_are_shown_anew() {
    let host = Host::new();
    let (data, out) = (host.at("data"), host.at("out"));
    let make = |text: &str| {
        for dir in [&data, &out] {
            fs::create_dir(dir).unwrap();
            fs::write(dir.join("file"), text).unwrap();
        }
    };
    make("old");
    let session = host.session([ro(&data), rw(&out)]).await;
    shell(&session, "true").await;
    for dir in [&data, &out] {
        fs::remove_dir_all(dir).unwrap();
    }
    make("new");
    let script = format!("cat {0}/file {1}/file; echo more > {1}/made", data.display(), out.display());
    assert_eq!(shell(&session, &script).await, "newnew");
    assert_eq!(fs::read_to_string(out.join("made")).unwrap(), "more\n");
}

/// As an agent for keys does when it is started again.
#[tokio::test]
async fn a_socket_that_was_made_again_is_reached() {
    require!(has("python3"), "python3");
    let host = Host::new();
    let path = host.at("agent");
    let listen = |said: &'static str| {
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || {
            use std::io::Write;
            for mut client in listener.incoming().map_while(Result::<UnixStream, _>::ok) {
                let _ = client.write_all(said.as_bytes());
            }
        });
    };
    listen("first");
    let session = host.session([rw(&path)]).await;
    let ask = format!(
        "python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.connect(\"{}\"); print(s.recv(9).decode())'",
        path.display()
    );
    assert_eq!(shell(&session, &ask).await, "first\n");
    fs::remove_file(&path).unwrap();
    listen("second");
    assert_eq!(shell(&session, &ask).await, "second\n");
}

#[tokio::test]
async fn a_link_that_leads_elsewhere_is_followed_anew() {
    let host = Host::new();
    for name in ["v1", "v2"] {
        fs::create_dir(host.at(name)).unwrap();
        fs::write(host.at(name).join("version"), name).unwrap();
    }
    symlink("v1", host.at("current")).unwrap();
    let session = host.session([ro(&host.at("current"))]).await;
    let read = format!("cat {}/version", host.at("current").display());
    assert_eq!(shell(&session, &read).await, "v1");
    symlink("v2", host.at("next")).unwrap();
    fs::rename(host.at("next"), host.at("current")).unwrap();
    assert_eq!(shell(&session, &read).await, "v2");
}

/// A command of another sandbox may have made the link.
#[tokio::test]
async fn a_link_in_place_of_a_grant_or_above_it_is_refused() {
    let host = Host::new();
    for name in ["a/data", "private/data"] {
        fs::create_dir_all(host.at(name)).unwrap();
        fs::write(host.at(name).join("file"), name).unwrap();
    }
    fs::write(host.at("conf"), "conf").unwrap();
    let session = host.session([rw(&host.at("a/data")), ro(&host.at("conf"))]).await;
    let data = host.at("a/data").display().to_string();
    assert_eq!(shell(&session, &format!("cat {data}/file")).await, "a/data");
    for (replaced, target) in [("a/data", "../private/data"), ("a", "private"), ("conf", "private/data/file")]
    {
        fs::rename(host.at(replaced), host.at("old")).unwrap();
        symlink(target, host.at(replaced)).unwrap();
        for _ in 0..2 {
            let error = error_of(&session).await;
            assert!(matches!(error, Error::Grant { .. }), "{error:?}");
            assert!(
                error.remedy().is_some_and(|remedy| remedy.to_string().contains("prepare a new session")),
                "{error:?}"
            );
        }
        assert!(session.read(format!("{data}/file")).await.is_err());
        fs::remove_file(host.at(replaced)).unwrap();
        fs::rename(host.at("old"), host.at(replaced)).unwrap();
        assert_eq!(shell(&session, &format!("cat {data}/file")).await, "a/data");
    }
    assert_eq!(fs::read_to_string(host.at("private/data/file")).unwrap(), "private/data");
}

#[tokio::test]
async fn while_commands_run_a_replaced_grant_is_refused_with_the_reason() {
    let host = Host::new();
    host.save("conf", "old");
    let session = host.session([ro(&host.at("conf"))]).await;
    let mut running = session.command("sh");
    let running = ready(running.args(["-c", "echo ready; exec sleep 60"]), 1).await;
    host.save("conf", "new");
    let error = error_of(&session).await;
    let Error::Grant { what: "read-only grant", path, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*path, host.at("conf"));
    let remedy = error.remedy().unwrap().to_string();
    assert!(remedy.contains("another file is in its place") && remedy.contains("still use"), "{remedy}");
    assert!(session.read(host.at("conf")).await.is_err(), "no old contents");
    drop(running);
    eventually("the command is gone", || session.stats().running == 0).await;
    assert_eq!(shell(&session, &format!("cat {}", host.at("conf").display())).await, "new");
}

#[tokio::test]
async fn a_grant_that_is_gone_is_refused_until_it_is_back() {
    let host = Host::new();
    host.save("conf", "old");
    let session = host.session([ro(&host.at("conf"))]).await;
    shell(&session, "true").await;
    fs::remove_file(host.at("conf")).unwrap();
    for _ in 0..2 {
        let error = error_of(&session).await;
        assert!(matches!(&error, Error::Grant { path, .. } if *path == host.at("conf")), "{error:?}");
        assert!(
            error.remedy().is_some_and(|remedy| remedy.to_string().contains("have it there again")),
            "{error:?}"
        );
    }
    host.save("conf", "back");
    assert_eq!(shell(&session, &format!("cat {}", host.at("conf").display())).await, "back");
}

/// Another zygote would begin with empty ones.
#[tokio::test]
async fn a_session_with_shared_private_directories_keeps_them_and_refuses() {
    let host = Host::new();
    host.save("conf", "old");
    let policy = host.policy([ro(&host.at("conf"))]).tmp(TmpLife::Session);
    let session = Session::prepare(&policy).await.unwrap();
    shell(&session, "echo kept > /tmp/file").await;
    let old = host.at("old");
    fs::hard_link(host.at("conf"), &old).unwrap();
    host.save("conf", "new");
    let error = error_of(&session).await;
    assert!(
        error.remedy().is_some_and(|remedy| remedy.to_string().contains("prepare a new session")),
        "{error:?}"
    );
    fs::rename(old, host.at("conf")).unwrap();
    assert_eq!(shell(&session, "cat /tmp/file").await, "kept\n");
}

/// What a command can put in place of a grant, a later command must not see.
#[tokio::test]
async fn a_link_that_a_command_puts_in_place_of_a_grant_shows_nothing() {
    let host = Host::new();
    fs::create_dir(host.at("dir")).unwrap();
    host.save("dir/data", "data");
    host.save("secret", "secret");
    let target = Some(PathBuf::from("/data"));
    let shown = Mount::ReadOnly { source: host.at("dir/data"), target };
    let session = host.session([rw(&host.at("dir")), shown]).await;
    let (dir, secret) = (host.at("dir").display().to_string(), host.at("secret").display().to_string());
    shell(&session, &format!("rm -f {dir}/data; ln -s {secret} {dir}/data; readlink {dir}/data")).await;
    let error = error_of(&session).await;
    assert!(matches!(error, Error::Grant { .. } | Error::View { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_commands_at_once_never_see_old_contents() {
    let host = Host::new();
    host.save("conf", "0");
    let session = host.session([ro(&host.at("conf"))]).await;
    let read = format!("cat {}", host.at("conf").display());
    for round in 1..=4 {
        host.save("conf", &round.to_string());
        let commands = (0..8).map(|_| {
            let mut command = session.command("sh");
            command.args(["-c", &read]);
            tokio::spawn(async move { command.output().await })
        });
        let mut seen = 0;
        for command in commands.collect::<Vec<_>>() {
            // A command that runs already keeps the others of this round from another zygote.
            match in_time(command).await.unwrap() {
                Ok(output) => {
                    assert_eq!(output.stdout, round.to_string().into_bytes(), "{output:?}");
                    seen += 1;
                }
                Err(error) => assert!(matches!(error, Error::Grant { .. }), "{error:?}"),
            }
        }
        assert!(seen > 0, "{round}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn every_command_of_a_sandbox_sees_the_file_of_its_start() {
    let host = Host::new();
    host.save("conf", "old");
    let sandbox = Sandbox::new(&host.policy([ro(&host.at("conf"))])).unwrap();
    for text in ["old", "new", "newest"] {
        host.save("conf", text);
        let output = in_time(sandbox.command("cat").arg(host.at("conf")).output()).await.unwrap();
        assert_eq!(output.stdout, text.as_bytes(), "{output:?}");
    }
    let mut now = String::new();
    fs::File::open(host.at("conf")).unwrap().read_to_string(&mut now).unwrap();
    assert_eq!(now, "newest");
}
