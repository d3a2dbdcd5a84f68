//! Files with several names: a command that changes one name changes the others, and nothing else.

use std::{fs, path::Path};

use super::{CONFLICT, commit, is_without_temporaries, overlaid, refusals, require_overlay, shell};
use crate::support::World;

/// A workspace with files. The first of each list of names is the file, the others are links to it.
fn with_links(files: &[&[&str]]) -> World {
    let world = overlaid();
    let at = |name: &str| world.at(name);
    for names in files {
        names.iter().for_each(|name| fs::create_dir_all(at(name).parent().unwrap()).unwrap());
        fs::write(at(names[0]), "before").unwrap();
        names[1..].iter().for_each(|name| fs::hard_link(at(names[0]), at(name)).unwrap());
    }
    world
}

fn exists(dir: &Path, name: &str) -> bool {
    fs::symlink_metadata(dir.join(name)).is_ok()
}

#[tokio::test]
async fn every_name_of_a_file_is_committed() {
    require_overlay!();
    let world = with_links(&[&["a", "b", "c", "gone/y"]]);
    fs::write(world.at("gone/x"), "x").unwrap();
    let session = world.session().await;
    shell(&session, "for f in a b; do echo $f > t; cat t > $f; done; rm -r t c gone").await;
    assert_eq!(commit(&session).await, ["M a", "M b", "D c", "D gone/"]);
    let read = |name: &str| fs::read_to_string(world.at(name)).unwrap();
    assert_eq!((read("a"), read("b")), ("a\n".into(), "b\n".into()));
    assert!(!exists(world.path(), "c") && !exists(world.path(), "gone"));
}

#[tokio::test]
async fn a_name_removed_with_its_directory_changes_no_other_name() {
    require_overlay!();
    for (script, expected) in [
        ("rm -r d x", &["D d/", "D x"][..]),
        ("rm -r d e", &["D d/", "D e/"]),
        ("rm -r d e x", &["D d/", "D e/", "D x"]),
        ("rm -r d x; echo > d", &["M d", "D x"]),
        ("rm -r d x; mkdir d; echo > d/new", &["D d/a", "D d/b", "A d/new", "D x"]),
        ("rm -r d; echo new > x", &["D d/", "M x"]),
    ] {
        let world = with_links(&[&["d/a", "d/b", "e/deep/a", "x", "stays"]]);
        let session = world.session().await;
        shell(&session, script).await;
        assert_eq!(commit(&session).await, expected, "{script}");
        shell(&session, "rm stays").await;
        assert_eq!(commit(&session).await, ["D stays"], "nor later, after {script}");
    }
}

#[tokio::test]
async fn changes_of_others_to_a_file_of_several_names_are_kept() {
    require_overlay!();
    let world = with_links(&[&["d/a", "x"], &["e/a", "y"]]);
    let session = world.session().await;
    shell(&session, "rm -r d x e y").await;
    fs::write(world.at("x"), "theirs").unwrap();
    let refused = ["D d/", "D x"].map(|change| format!("{change}: {CONFLICT}"));
    assert_eq!(refusals(&session).await, refused);
    assert_eq!(fs::read_to_string(world.at("d/a")).unwrap(), "theirs");
    assert!(!exists(world.path(), "e") && !exists(world.path(), "y") && is_without_temporaries(world.path()));
}

/// More links than may be held open.
#[tokio::test]
async fn a_directory_may_have_as_many_links_as_it_likes() {
    require_overlay!();
    let world = overlaid();
    fs::create_dir(world.at("d")).unwrap();
    for number in 0..2000 {
        let names = ["d/", ""].map(|above| world.at(format!("{above}{number}")));
        fs::write(&names[0], "").unwrap();
        fs::hard_link(&names[0], &names[1]).unwrap();
    }
    let session = world.session().await;
    shell(&session, "rm -r d 1*").await;
    assert_eq!(commit(&session).await.len(), 1112);
}
