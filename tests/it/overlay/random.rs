//! Any sequence of changes, made in an overlay and committed, has the same result as in a plain directory.
//! Changes that others made there meanwhile stay.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
    process::Command,
};

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tokio::runtime::{Builder, Runtime};

use kennel::{Policy, Profile, Session};

use super::{is_without_temporaries, overlaid, require_overlay, workspace};
use crate::support::{has, random_cases, require};

/// A script that makes one change, or fails and makes none. In an overlay `mv` of a directory is a copy,
/// which leaves entries that it may not remove: so the script moves no directory that it could not empty. The
/// result of `cp` into itself, or over links, depends on the order of names, which an overlay has of its own.
fn operation() -> impl Strategy<Value = String> {
    let path = || "[abc](/[abc]){0,2}";
    let attribute = |(path, value): (String, u8)| {
        format!("python3 -c \"import os; os.setxattr('{path}', 'user.k{}', b'{value}')\"", value % 2)
    };
    // The kernel answers EXDEV to the rename of a directory of the workspace.
    let exchange = |(from, to): (String, String)| {
        let call = format!("ctypes.CDLL(None).renameat2(-100, b'{from}', -100, b'{to}', 2)");
        format!("[ ! -d {from} ] && [ ! -d {to} ] && python3 -c \"import ctypes; {call}\"")
    };
    prop_oneof![
        4 => (path(), any::<u8>()).prop_map(|(path, byte)| format!("echo {byte} > {path}")),
        2 => (path(), any::<u8>()).prop_map(|(path, byte)| format!("[ -f {path} ] && echo {byte} >> {path}")),
        3 => path().prop_map(|path| format!("mkdir {path}")),
        2 => path().prop_map(|path| format!("rm -rf {path}")),
        1 => (path(), "[abc]").prop_map(|(path, name)| format!("rm -rf {path} && mkdir -p {path}/{name}")),
        2 => (path(), path()).prop_map(|(from, to)| {
            format!("[ -z \"$(find {from} -type d ! -perm -u=rwx)\" ] && mv -T {from} {to}")
        }),
        1 => (path(), path()).prop_map(|(from, to)| format!("case {to}/ in {from}/*) ;; *) cp -rT --remove-destination {from} {to};; esac")),
        1 => (path(), path()).prop_map(|(to, at)| format!("ln -sfn {to} {at}")),
        1 => (path(), path()).prop_map(|(from, to)| format!("[ -f {from} ] && [ ! -L {from} ] && ln -T {from} {to}")),
        1 => (path(), path()).prop_map(exchange),
        1 => (path(), prop::sample::select(vec!["700", "755", "500"]))
            .prop_map(|(path, mode)| format!("[ ! -L {path} ] && chmod {mode} {path}")),
        1 => (path(), 1..9_u32).prop_map(|(path, megabytes)| format!("[ -f {path} ] && truncate -s {megabytes}M {path}")),
        1 => (path(), any::<u8>()).prop_map(attribute),
    ]
}

/// One script of several, any of which may fail.
fn all(scripts: &[String]) -> String {
    format!("umask 022; exec 2>/dev/null\n{}\n:", scripts.join("\n"))
}

/// What a tree is, by path.
fn tree(base: &Path) -> BTreeMap<String, String> {
    let mut tree = BTreeMap::new();
    let mut left = vec![base.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap().flatten() {
            let (path, metadata) = (entry.path(), entry.metadata().unwrap());
            let what = if metadata.is_symlink() {
                format!("-> {}", fs::read_link(&path).unwrap().display())
            } else {
                let mut attributes: Vec<_> = xattr::list(&path)
                    .unwrap()
                    .map(|name| (name.clone(), xattr::get(&path, &name).unwrap()))
                    .collect();
                attributes.retain(|(name, _)| name.to_string_lossy().starts_with("user."));
                attributes.sort();
                let contents = if metadata.is_dir() { None } else { Some(fs::read(&path).unwrap()) };
                let size = metadata.is_file().then_some(metadata.len());
                let hash = contents.map(|contents| {
                    contents.iter().fold(0_u64, |hash, byte| hash.rotate_left(5) ^ u64::from(*byte))
                });
                format!("{:o} {size:?} {hash:?} {attributes:?}", metadata.mode())
            };
            if metadata.is_dir() {
                left.push(path.clone());
            }
            tree.insert(path.strip_prefix(base).unwrap().display().to_string(), what);
        }
    }
    tree
}

/// The same beginning for both.
fn begin(directory: &Path) {
    for (name, mode) in [("a", 0o755), ("a/b", 0o755), ("b", 0o750), ("c", 0o755), ("c/a", 0o700)] {
        fs::create_dir(directory.join(name)).unwrap();
        fs::set_permissions(directory.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for name in ["a/a", "a/b/a", "a/b/c", "b/a", "c/a/b", "c/b"] {
        fs::write(directory.join(name), name).unwrap();
    }
    symlink("a/b", directory.join("a/c")).unwrap();
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn runner() -> TestRunner {
    let most = if std::env::var_os(super::UPPERS).is_some() { 12 } else { 40 };
    TestRunner::new(Config {
        cases: random_cases(most).max(3),
        failure_persistence: None,
        ..Config::default()
    })
}

#[test]
fn a_commit_has_the_result_of_its_changes() {
    require_overlay!();
    require!(has("python3"), "python3");
    let runtime = runtime();
    let scripts = prop::collection::vec(prop::collection::vec(operation(), 1..12), 1..3);
    let check = |scripts: Vec<Vec<String>>| {
        let (overlaid, plain) = (overlaid(), workspace());
        begin(overlaid.path());
        begin(plain.path());
        let done: Result<(), TestCaseError> = runtime.block_on(async {
            let session = overlaid.session().await;
            let policy = Policy::profile(Profile::NoNetwork, plain.path());
            let direct = Session::prepare(&policy).await.unwrap();
            for script in &scripts {
                let script = all(script);
                super::shell(&session, &script).await;
                super::shell(&direct, &script).await;
                let committed = session.commit().await.unwrap();
                prop_assert!(committed.refused.is_empty(), "{:?}", committed.refused);
                prop_assert_eq!(tree(overlaid.path()), tree(plain.path()));
                let left = session.changes().await.unwrap();
                prop_assert!(left.is_empty(), "{left:?}");
            }
            Ok(())
        });
        done?;
        prop_assert!(is_without_temporaries(overlaid.path()));
        Ok(())
    };
    runner().run(&scripts, check).unwrap();
}

/// A change of the workspace by a process outside. The contents name that process.
fn meanwhile() -> impl Strategy<Value = String> {
    let path = || "[abc](/[abc]){0,2}";
    prop_oneof![
        3 => (path(), any::<u8>()).prop_map(|(path, byte)| format!("echo outside {byte} > {path}")),
        2 => path().prop_map(|path| format!("mkdir {path}")),
        1 => path().prop_map(|path| format!("rm -rf {path}")),
        1 => (path(), path()).prop_map(|(from, to)| format!("mv -T {from} {to}")),
        1 => (path(), path()).prop_map(|(from, to)| format!("ln -T {from} {to}")),
        1 => (path(), prop::sample::select(vec!["700", "755"]))
            .prop_map(|(path, mode)| format!("[ ! -L {path} ] && chmod {mode} {path}")),
    ]
}

/// The files that the process outside wrote, by path.
fn of_others(base: &Path) -> BTreeMap<String, String> {
    let mut files = tree(base);
    files.retain(|path, _| {
        let path = base.join(path);
        path.is_file() && !path.is_symlink() && fs::read(path).unwrap().starts_with(b"outside")
    });
    files
}

#[test]
fn a_commit_keeps_everything_that_others_wrote_meanwhile() {
    require_overlay!();
    require!(has("python3"), "python3");
    let runtime = runtime();
    let some = |most| prop::collection::vec(operation(), 1..most);
    // One commit: after it a command may have copied a file of the outside process, and the copy is the
    // command's.
    let scripts = (some(8), prop::collection::vec(meanwhile(), 1..5), some(4));
    let check = |(before, outside, after): (Vec<String>, Vec<String>, Vec<String>)| {
        let world = overlaid();
        begin(world.path());
        let done: Result<(), TestCaseError> = runtime.block_on(async {
            let session = world.session().await;
            super::shell(&session, &all(&before)).await;
            let others = Command::new("sh").args(["-c", &all(&outside)]).current_dir(world.path()).status();
            prop_assert!(others.unwrap().success());
            super::shell(&session, &all(&after)).await;
            let written = of_others(world.path());
            let committed = session.commit().await.unwrap();
            let mut left = of_others(world.path());
            // A command may have copied it.
            left.retain(|path, _| written.contains_key(path));
            prop_assert_eq!(left, written, "{:?}", committed);
            Ok(())
        });
        done?;
        prop_assert!(is_without_temporaries(world.path()));
        Ok(())
    };
    runner().run(&scripts, check).unwrap();
}
