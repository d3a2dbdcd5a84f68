//! Every command sees the mounts below a private directory, though the directory itself is new.

use std::{collections::BTreeSet, fs, path::PathBuf};

use kennel::{Mount, Policy, Profile, Sandbox, Session, Size, TmpLife};

use super::{check, fails, said, shell};
use crate::support::{TempDir, World, runs, workspace};

fn home() -> PathBuf {
    std::env::var_os("HOME").expect("a home").into()
}

/// Mounts of every kind below private directories, in nested private directories, and beside each other.
fn nested(policy: Policy, ro: &std::path::Path, rw: &std::path::Path) -> Policy {
    let file = |target: PathBuf, executable| Mount::File {
        target,
        contents: "#!/bin/sh\necho ran\n".into(),
        executable,
    };
    let link = |target: PathBuf| Mount::Symlink { target, points_to: "/etc/hostname".into() };
    policy
        .read_only(ro)
        .read_write(rw)
        .mount(Mount::ReadOnly { source: ro.to_owned(), target: Some(home().join(".tool/deep/ro")) })
        .mount(Mount::ReadWrite { source: rw.to_owned(), target: Some(home().join(".cache/rw")) })
        .mount(Mount::ReadOnly { source: ro.join("file"), target: Some("/dev/shm/one/file".into()) })
        .mount(file(home().join(".config/x/conf"), false))
        .mount(file("/tmp/bin/run".into(), true))
        .mount(link(home().join(".link")))
        .mount(link("/tmp/links/link".into()))
        .mount(Mount::Tmpfs { target: "/tmp/scratch".into(), size: Some(Size::from_bytes(64 << 10)) })
        .mount(Mount::Tmpfs {
            target: "/tmp/scratch/inner/small".into(),
            size: Some(Size::from_bytes(8 << 10)),
        })
        .mount(Mount::ReadOnly { source: ro.join("file"), target: Some("/tmp/scratch/inner/file".into()) })
        .mount(Mount::Proc { target: "/tmp/proc".into() })
}

#[tokio::test]
async fn mounts_below_private_directories_exist_for_every_command() {
    let (world, ro, rw) = (World::new(), workspace(), workspace());
    fs::write(ro.path().join("file"), "granted\n").unwrap();
    let script = format!(
        "set -e; cat {ro}/file ~/.tool/deep/ro/file /dev/shm/one/file /tmp/scratch/inner/file
        cat ~/.config/x/conf; /tmp/bin/run; readlink ~/.link /tmp/links/link; cat ~/.link; cat /tmp/proc/self/comm
        echo x >> {rw}/log; cat ~/.cache/rw/log | wc -l; echo y > here; cat {dir}/here
        touch /tmp/mine ~/mine ~/.config/mine /tmp/scratch/mine /tmp/scratch/inner/small/mine",
        ro = ro.path().display(),
        rw = rw.path().display(),
        dir = world.path().display(),
    );
    for life in [TmpLife::Exec, TmpLife::Session] {
        let policy = nested(world.policy(), ro.path(), rw.path()).tmp(life);
        let session = Session::prepare(&policy).await.unwrap();
        fs::write(rw.path().join("log"), "").unwrap();
        for round in 1..=4 {
            assert_eq!(
                shell(&session, &script).await,
                format!(
                    "{}#!/bin/sh\necho ran\nran\n/etc/hostname\n/etc/hostname\nkennel\ncat\n{round}\ny\n",
                    "granted\n".repeat(4)
                ),
                "{life}"
            );
        }
    }
}

#[tokio::test]
async fn walls_below_private_directories_hold_for_every_command() {
    let (world, ro, rw) = (World::new(), workspace(), workspace());
    fs::write(ro.path().join("file"), "granted\n").unwrap();
    let session = Session::prepare(&nested(world.with_payload(), ro.path(), rw.path())).await.unwrap();
    let home = home();
    let calls = [
        format!("open s:{}/file 1", ro.path().display()),
        format!("open s:{}/new 0x41 0x1b6", ro.path().display()),
        format!("open s:{}/.tool/deep/ro/new 0x41 0x1b6", home.display()),
        format!("unlink s:{}/file", ro.path().display()),
        "open s:/tmp/scratch/inner/file 1".to_owned(),
        "open s:/dev/shm/one/file 1".to_owned(),
    ];
    let refused: Vec<(&str, &str)> = calls.iter().map(|call| (&**call, "EROFS")).collect();
    // The grants stay where they are, and the directories around them move only with them.
    let moved = [
        (format!("rmdir s:{}", ro.path().display()), "EBUSY"),
        (format!("rename s:{} s:/tmp/away", ro.path().display()), "EBUSY"),
        (format!("umount2 s:{} 2", ro.path().display()), "EPERM"),
        ("rename s:/tmp/scratch s:/tmp/away".to_owned(), "EBUSY"),
    ];
    let moved: Vec<(&str, &str)> = moved.iter().map(|(call, errno)| (&**call, *errno)).collect();
    for _ in 0..3 {
        check(&session, &refused).await;
        check(&session, &moved).await;
    }
    assert_eq!(fs::read_to_string(ro.path().join("file")).unwrap(), "granted\n");
    assert_eq!(fs::read_dir(ro.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn granted_tmpfs_is_new_for_each_command_and_as_large_as_granted() {
    let (world, ro, rw) = (World::new(), workspace(), workspace());
    fs::write(ro.path().join("file"), "").unwrap();
    let session = Session::prepare(&nested(world.policy(), ro.path(), rw.path())).await.unwrap();
    for _ in 0..3 {
        assert_eq!(shell(&session, "ls -A /tmp/scratch/inner/small; ls -A /tmp/scratch").await, "inner\n");
        for (place, fits, too_much) in
            [("/tmp/scratch", "48K", "80K"), ("/tmp/scratch/inner/small", "8K", "9K")]
        {
            shell(&session, &format!("head -c {fits} /dev/zero > {place}/x")).await;
            let said =
                fails(&mut session.command("sh"), &format!("head -c {too_much} /dev/zero > {place}/x")).await;
            assert!(said.ends_with("No space left on device"), "{place}: {said}");
        }
    }
}

/// Mount points and their attributes, as a command sees them.
fn table(mountinfo: &str) -> BTreeSet<(String, String)> {
    let field = |line: &str, number: usize| line.split(' ').nth(number).expect("a field").to_owned();
    mountinfo.lines().map(|line| (field(line, 4), field(line, 5))).collect()
}

/// What a command sees: its mounts, and what is in directories that have no grant of their own.
#[derive(PartialEq)]
struct View {
    mounts: BTreeSet<(String, String)>,
    names: String,
}

impl View {
    async fn of(mut command: kennel::Command) -> View {
        let script = "cat /proc/self/mountinfo; echo names
            ls -ld / /* ~ ~/.* /tmp/* /var/tmp /dev/* /etc/* 2>/dev/null |
            awk '{print $1, $9, $10, $11}' | grep -v /dev/fd";
        let said = said(command.args(["-c", script])).await;
        let (mounts, names) = said.split_once("names\n").expect("both parts");
        View { mounts: table(mounts), names: names.to_owned() }
    }

    /// How this view of a command in a session differs from that of a one-shot.
    fn differs_from(&self, expected: &View, life: TmpLife) -> Option<String> {
        // In directories that commands share, the directories above a mount are mounts too.
        let is_pin = |entry: &(String, String)| {
            let below = format!("{}/", entry.0);
            life == TmpLife::Session && expected.mounts.iter().any(|(at, _)| at.starts_with(&below))
        };
        let new: Vec<_> = self.mounts.difference(&expected.mounts).filter(|entry| !is_pin(entry)).collect();
        let gone: Vec<_> = expected.mounts.difference(&self.mounts).collect();
        let same = new.is_empty() && gone.is_empty() && self.names == expected.names;
        (!same)
            .then(|| format!("new {new:?}, gone {gone:?}, names {}\nexpected {}", self.names, expected.names))
    }
}

#[tokio::test]
async fn every_command_has_the_view_of_a_one_shot() {
    let (dir, ro, rw) = (workspace(), workspace(), workspace());
    fs::write(ro.path().join("file"), "").unwrap();
    fs::create_dir_all(dir.path().join(".git/hooks")).unwrap();
    fs::write(dir.path().join(".git/config"), "").unwrap();
    for profile in [Profile::NoNetwork, Profile::ReadOnly, Profile::CiOnly, Profile::FullDev]
        .into_iter()
        .filter(|profile| runs(&profile.to_string()))
    {
        let mut plain = Policy::profile(profile, dir.path());
        if profile == Profile::NoNetwork {
            plain = nested(plain, ro.path(), rw.path());
        }
        let one_shot = async || View::of(Sandbox::new(&plain).unwrap().command("sh")).await;
        for life in [TmpLife::Exec, TmpLife::Session] {
            let mut expected = one_shot().await;
            // Other tests and programs change directories of the host meanwhile: then it is compared again.
            'again: for attempt in 1.. {
                let session = Session::prepare(&plain.clone().tmp(life)).await.unwrap();
                for round in 0..3 {
                    let view = View::of(session.command("sh")).await;
                    let Some(difference) = view.differs_from(&expected, life) else { continue };
                    let before = std::mem::replace(&mut expected, one_shot().await);
                    let host_is_same = before == expected;
                    assert!(!host_is_same && attempt < 10, "{profile} {life} {round}: {difference}");
                    continue 'again;
                }
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_workspace_in_the_home_is_writable_in_every_command() {
    let home = home();
    let world = World::of(TempDir::new(".kennel-test-", &home));
    let session = world.session().await;
    for round in 1..=4 {
        assert_eq!(shell(&session, "echo x >> log; wc -l < log; touch ~/mine").await, format!("{round}\n"));
    }
    assert!(!home.join("mine").exists());
}
