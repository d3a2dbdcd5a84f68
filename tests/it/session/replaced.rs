//! What a policy grants is replaced outside while a session lives: the next command is refused with the
//! reason. A sandbox shows what is there now.

use std::{
    fs,
    io::Read,
    os::unix::{fs::symlink, net::UnixListener},
    path::{Path, PathBuf},
};

use kennel::{Error, Mount, Sandbox, Session, TmpLife};

use super::{in_time, ready, shell};
use crate::support::{TempDir, World, workspace};

/// A workspace, and beside it a directory for grants.
struct Host {
    world: World,
    granted: TempDir,
}

impl Host {
    fn new() -> Self {
        Self { world: World::new(), granted: workspace() }
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
        mounts.into_iter().fold(self.world.policy(), kennel::Policy::mount)
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

/// The session refuses commands and file calls because of this path, and says what helps.
async fn refuses(session: &Session, path: &Path) {
    for _ in 0..2 {
        let error = error_of(session).await;
        assert!(matches!(&error, Error::Grant { path: named, .. } if named == path), "{error:?}");
        assert!(
            error.remedy().is_some_and(|remedy| remedy.to_string().contains("prepare a new session")),
            "{error:?}"
        );
        assert!(session.read(path).await.is_err(), "no old contents");
    }
}

#[tokio::test]
async fn a_replaced_file_is_refused() {
    let host = Host::new();
    for name in ["ro", "rw", "moved"] {
        host.save(name, "old");
    }
    let target = Some(PathBuf::from("/elsewhere"));
    let moved = Mount::ReadOnly { source: host.at("moved"), target };
    for life in [TmpLife::Exec, TmpLife::Session] {
        let policy = host.policy([ro(&host.at("ro")), rw(&host.at("rw")), moved.clone()]).tmp(life);
        let session = Session::prepare(&policy).await.unwrap();
        shell(&session, "echo kept > /tmp/file").await;
        for name in ["ro", "rw", "moved"] {
            let before = host.at(&format!("before-{life}-{name}"));
            fs::hard_link(host.at(name), &before).unwrap();
            host.save(name, "new");
            refuses(&session, &host.at(name)).await;
            if life == TmpLife::Exec {
                break;
            }
            fs::rename(before, host.at(name)).unwrap();
            assert_eq!(shell(&session, "cat /elsewhere /tmp/file").await, "oldkept\n");
        }
        session.shutdown().await;
        assert!(matches!(error_of(&session).await, Error::SessionEnded));
    }
}

#[tokio::test]
async fn whatever_takes_the_place_of_a_grant_is_refused() {
    let host = Host::new();
    let make = |name: &str| match name {
        "directory" => fs::create_dir(host.at(name)).unwrap(),
        "socket" => drop(UnixListener::bind(host.at(name)).unwrap()),
        _ => symlink("directory", host.at(name)).unwrap(),
    };
    let names = ["directory", "socket", "link"];
    names.iter().for_each(|name| make(name));
    for name in names {
        let session = host.session([rw(&host.at(name))]).await;
        shell(&session, "true").await;
        let before = host.at("before");
        fs::rename(host.at(name), &before).unwrap();
        let error = error_of(&session).await;
        assert!(
            error.remedy().is_some_and(|remedy| remedy.to_string().contains("have it there again")),
            "{error:?}"
        );
        match name {
            "link" => symlink("/", host.at(name)).unwrap(),
            name => make(name),
        }
        refuses(&session, &host.at(name)).await;
        match name {
            "directory" => fs::remove_dir(host.at(name)).unwrap(),
            _ => fs::remove_file(host.at(name)).unwrap(),
        }
        fs::rename(before, host.at(name)).unwrap();
        shell(&session, "true").await;
    }
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
async fn while_commands_run_a_replaced_grant_is_refused_too() {
    let host = Host::new();
    host.save("conf", "old");
    let session = host.session([ro(&host.at("conf"))]).await;
    let mut running = session.command("sh");
    let running = ready(running.args(["-c", "echo ready; exec sleep 60"]), 1).await;
    host.save("conf", "new");
    refuses(&session, &host.at("conf")).await;
    drop(running);
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
