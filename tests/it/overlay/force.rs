//! `kennel commit --force`: the version of the sandbox replaces what others wrote, at the named paths alone.

use std::fs;

use super::place::require_kept;
use crate::support::past_the_tick;

const CONFLICT: &str = "the workspace changed there meanwhile";

#[test]
fn the_named_paths_alone_are_replaced() {
    let kept = require_kept!();
    kept.write("f", "1\n");
    kept.write("g", "1\n");
    kept.run(&[], "echo command > f; echo command > g; echo x > x");
    past_the_tick();
    kept.write("f", "user\n");
    kept.write("g", "user\n");
    let [_, said] = kept.fails(&["commit", "f", "g"]);
    assert_eq!(said.matches(CONFLICT).count(), 2, "{said}");
    let [_, said] = kept.fails(&["commit", "--force"]);
    assert!(said.contains("--force") && said.contains("it needs a PATH"), "{said}");
    assert_eq!((kept.read("f"), kept.read("g")), ("user\n".into(), "user\n".into()));
    assert_eq!(kept.succeeds(&["commit", "--force", "f"]), "M f\n1 change committed; 2 left: kennel diff");
    assert_eq!((kept.read("f"), kept.read("g")), ("command\n".into(), "user\n".into()));
    // What was not named is refused as before.
    let [done, said] = kept.fails(&["commit"]);
    assert!(said.contains("M g") && said.contains(CONFLICT), "{said}");
    assert_eq!(done, "A x\n1 change committed, 1 not committed; 1 left: kennel diff");
    // The other answer to a conflict.
    assert_eq!(kept.succeeds(&["discard", "g"]), "M g\n1 change discarded");
    assert_eq!(kept.read("g"), "user\n");
}

#[test]
fn what_others_deleted_or_put_into_a_deleted_directory_is_replaced() {
    let kept = require_kept!();
    for name in ["gone", "emptied", "lost"] {
        fs::create_dir(kept.dir.path().join(name)).unwrap();
        kept.write(&format!("{name}/f"), "1\n");
    }
    kept.run(&[], "echo 2 > gone/f; rm -r emptied; echo 2 > lost/f");
    past_the_tick();
    kept.write("emptied/new", "user\n");
    fs::remove_dir_all(kept.dir.path().join("gone")).unwrap();
    fs::remove_file(kept.dir.path().join("lost/f")).unwrap();
    let [done, said] = kept.fails(&["commit"]);
    assert!(done.starts_with("0 changes committed") && said.contains(CONFLICT), "{done} {said}");
    assert!(kept.exists("emptied/f") && !kept.exists("gone") && !kept.exists("lost/f"));
    assert_eq!(
        kept.succeeds(&["commit", "--force", "gone/f", "emptied"]),
        "D emptied/\nA gone/\nA gone/f\n3 changes committed; 1 left: kennel diff"
    );
    assert!(!kept.exists("emptied") && !kept.exists("lost/f"));
    assert_eq!(kept.read("gone/f"), "2\n");
    assert_eq!(kept.succeeds(&["commit", "--force", "."]), "A lost/f\n1 change committed");
    assert_eq!(kept.read("lost/f"), "2\n");
}

#[test]
fn what_is_protected_stays() {
    let kept = require_kept!();
    kept.write("open", "1\n");
    kept.run(&["--protect", ".env"], "echo x > .env; echo command > open");
    past_the_tick();
    kept.write("open", "user\n");
    kept.write(".env", "user\n");
    let [done, said] = kept.fails(&["commit", "--force", ".env", "open"]);
    assert!(said.contains(".env: it is protected"), "{said}");
    assert!(done.starts_with("M open\n1 change committed"), "{done}");
    assert_eq!((kept.read(".env"), kept.read("open")), ("user\n".into(), "command\n".into()));
}
