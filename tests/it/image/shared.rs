//! Several processes at one store, and processes that are killed.

use std::{fs, process::Stdio};

use super::fixtures::{Image, Images, Tar};
use crate::support::{ends, stdout};

/// A root file system that takes a while.
fn large() -> Vec<u8> {
    let tar = Tar::new().dir("etc/");
    (0..5_000).fold(tar, |tar, at| tar.file(&format!("etc/{at}"), format!("{at}"))).bytes()
}

#[test]
fn processes_that_import_the_same_at_once_all_succeed() {
    let Some(images) = Images::new() else { return };
    let image = Image::new(vec![large(), Tar::new().dir("etc/").file("etc/.wh.7", "").bytes()]);
    let file = images.file("it", image.oci_archive(Some("a:1")));
    let start = || {
        let mut command = images.command(&["import", &file]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let started: Vec<_> = (0..4).map(|_| start()).collect();
    for child in started {
        let output = child.wait_with_output().unwrap();
        assert_eq!(stdout(&output), format!("{}  a:1", image.digest()), "{output:?}");
    }
    assert_eq!(images.list(), [(image.digest(), "a:1".to_owned())]);
    assert_eq!(images.left(), Vec::<std::path::PathBuf>::new());
    assert_eq!(
        fs::read_dir(images.store().join("layers")).unwrap().count(),
        4,
        "two layers and their records"
    );
    assert_eq!(images.layers("a:1")[0].len(), 5_002);
}

#[test]
fn what_a_killed_import_left_goes_with_the_next_command() {
    let Some(images) = Images::new() else { return };
    let file = images.file("it", large());
    let mut was_killed = false;
    for _ in 0..50 {
        let mut child =
            images.command(&["import", &file, "--name", "a:1"]).stdout(Stdio::null()).spawn().unwrap();
        // A layer is being made.
        while images.left().iter().all(|path| !path.join("tree/etc/9").exists()) {
            if child.try_wait().unwrap().is_some() {
                break;
            }
        }
        child.kill().unwrap();
        ends("it is killed", &mut child);
        was_killed = !images.left().is_empty();
        if was_killed {
            break;
        }
        images.run(&["remove", "a:1"]);
    }
    assert!(was_killed, "no import was killed in the middle of a layer");
    assert_eq!(images.list(), [], "half an image never counts");
    assert_eq!(images.ok(&["prune"]), "freed 0 layers, 0");
    assert_eq!(images.left(), Vec::<std::path::PathBuf>::new());
    assert_eq!(fs::read_dir(images.store().join("layers")).unwrap().count(), 0);
    images.ok(&["import", &file, "--name", "a:1"]);
    assert_eq!(images.layers("a:1")[0].len(), 5_002);
}
