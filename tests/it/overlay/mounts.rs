//! Other programs mount something in the workspace while a session has changes of it. A commit changes none
//! of that.
//!
//! Each test has mounts of its own, so that none is left when it ends.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
};

use super::{CONFLICT, is_without_temporaries, overlaid, refusals, require_overlay, shell, workspace};
use crate::support::{TempDir, World, has, is_alone, require, unmount};

const BUSY: &str = "Device or resource busy";
const OTHER_MOUNT: &str = "Invalid cross-device link";

/// Executes a process that may mount and has mounts of its own.
const APART: &str = r#"exec 7<"$1"; shift; set -- /proc/self/fd/7 "$@"
[ "$(id -u)" = 0 ] && exec unshare -m "$@"; exec unshare --user --map-root-user -m "$@""#;

/// Ends the test if that is impossible, or if it ran in such a process.
macro_rules! apart {
    ($test:literal) => {
        require_overlay!();
        require!(has("unshare"), "unshare");
        if !is_alone(concat!("overlay::mounts::", $test), APART) {
            return;
        }
    };
}

/// A directory that is older than every session, with `deep/file` and `file` in it.
fn precious() -> TempDir {
    let dir = workspace();
    fs::create_dir(dir.path().join("deep")).unwrap();
    fs::write(dir.path().join("file"), "keep").unwrap();
    fs::write(dir.path().join("deep/file"), "keep").unwrap();
    dir
}

fn is_whole(precious: &TempDir) -> bool {
    ["file", "deep/file"].iter().all(|name| is_kept(&precious.path().join(name)))
}

fn is_kept(file: &Path) -> bool {
    fs::read(file).is_ok_and(|read| read == b"keep")
}

/// A workspace with `f`, `d/f` and `d/sub/deep/f`.
fn filled() -> World {
    let world = overlaid();
    fs::create_dir_all(world.at("d/sub/deep")).unwrap();
    for name in ["f", "d/f", "d/sub/deep/f"] {
        fs::write(world.at(name), "keep").unwrap();
    }
    world
}

/// Mounts one directory or file on another. Returns whether it could.
fn bind(from: &Path, to: &Path) -> bool {
    Command::new("mount")
        .arg("--bind")
        .args([from, to])
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap()
        .success()
}

#[tokio::test]
async fn a_mount_in_a_deleted_directory_is_kept() {
    apart!("a_mount_in_a_deleted_directory_is_kept");
    for (place, from, script, refused) in [
        ("d/sub", "", "rm -r d", format!("D d/: {CONFLICT}")),
        ("d/sub", "", "rm -r d; echo x > d", format!("M d: {CONFLICT}")),
        ("d/sub", "", "rm -r d; mkdir d", format!("D d/sub/: {BUSY}")),
        ("d/sub/deep", "", "rm -r d", format!("D d/: {CONFLICT}")),
        ("d/sub/deep", "", "rm -r d; ln -s x d", format!("M d: {CONFLICT}")),
        ("d/f", "file", "rm -r d", format!("D d/: {CONFLICT}")),
        ("d/f", "file", "rm -r d; echo x > d", format!("M d: {CONFLICT}")),
        ("d/f", "file", "rm d/f", format!("D d/f: {BUSY}")),
        ("d", "", "rm -r d", format!("D d/: {BUSY}")),
        ("d", "", "rm -r d; echo x > d", format!("M d: {BUSY}")),
        ("f", "file", "rm f", format!("D f: {BUSY}")),
        ("f", "file", "rm f; mkdir f", format!("M f/: {BUSY}")),
    ] {
        let (world, precious) = (filled(), precious());
        let session = world.session().await;
        shell(&session, script).await;
        let (from, to) = (precious.path().join(from), world.at(place));
        assert!(bind(&from, &to));
        assert_eq!(refusals(&session).await, [refused], "{script}");
        assert!(is_whole(&precious), "{script}, {place}");
        unmount(&to);
        let all = ["f", "d/sub/deep/f", "d/f"];
        let kept: Vec<_> = all.iter().filter(|name| is_kept(&world.at(name))).collect();
        // In a directory that was made again the other names go one by one.
        let left = if script.ends_with("mkdir d") { 2 } else { all.len() };
        assert_eq!(kept.len(), left, "{script}, {place}: {kept:?}");
        assert!(is_without_temporaries(world.path()), "{script}, {place}");
    }
}

#[tokio::test]
async fn a_directory_that_is_mounted_on_itself_is_kept() {
    apart!("a_directory_that_is_mounted_on_itself_is_kept");
    for (place, refused) in [("d", BUSY), ("d/sub", CONFLICT), ("d/f", CONFLICT)] {
        let world = filled();
        let session = world.session().await;
        shell(&session, "rm -r d").await;
        let place = world.at(place);
        assert!(bind(&place, &place));
        assert_eq!(refusals(&session).await, [format!("D d/: {refused}")]);
        unmount(&place);
        assert!(is_kept(&world.at("d/f")) && is_kept(&world.at("d/sub/deep/f")));
        assert!(is_without_temporaries(world.path()));
    }
}

/// Waits until the commit empties the directory with a temporary name, and mounts `from` on `place`, its last
/// entry. Returns whether it could.
fn mount_while_removing(
    base: &Path,
    from: PathBuf,
    place: &'static str,
    stop: &Arc<AtomicBool>,
) -> JoinHandle<bool> {
    let (base, stop) = (base.to_owned(), Arc::clone(stop));
    std::thread::spawn(move || {
        while !stop.load(Relaxed) {
            let mut names = fs::read_dir(&base).unwrap().flatten().map(|entry| entry.path());
            let is_it = |path: &PathBuf| {
                path.to_string_lossy().contains("/.kennel-")
                    && path.join("z").exists()
                    && !path.join("0").exists()
            };
            let Some(found) = names.find(is_it) else { continue };
            return bind(&from, &found.join(place));
        }
        false
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_made_while_a_directory_is_removed_is_kept() {
    apart!("a_mount_made_while_a_directory_is_removed_is_kept");
    for (place, from, script, refused) in [
        ("z", "", "rm -r build", format!("D build/: {OTHER_MOUNT}")),
        ("z", "", "rm -r build; echo x > build", format!("M build: {OTHER_MOUNT}")),
        ("zz", "file", "rm -r build", format!("D build/: {BUSY}")),
        ("zz", "file", "rm -r build; echo x > build", format!("M build: {BUSY}")),
    ] {
        // Sometimes everything is gone before there is a mount.
        let seen = async {
            for _ in 0..20 {
                let (world, precious) = (overlaid(), precious());
                fs::create_dir_all(world.at("build/z")).unwrap();
                (0..4000).for_each(|i| fs::write(world.at(format!("build/{i}")), "").unwrap());
                fs::write(world.at("build/zz"), "").unwrap();
                let session = world.session().await;
                shell(&session, script).await;
                let stop = Arc::default();
                let mount = mount_while_removing(world.path(), precious.path().join(from), place, &stop);
                let said = refusals(&session).await;
                stop.store(true, Relaxed);
                if mount.join().unwrap() {
                    return (world, precious, said);
                }
            }
            panic!("nothing was ever mounted in time");
        };
        let (world, precious, said) = seen.await;
        assert_eq!(said, [refused], "{script}");
        assert!(is_whole(&precious), "{script}, {place}");
        assert!(is_without_temporaries(world.path()), "what is left has its name again");
        unmount(&world.at("build").join(place));
    }
}
