//! A commit that takes longer than a second says so on a terminal, and nowhere else.

use std::{fs::File, time::Duration};

use nix::fcntl::{Flock, FlockArg};

use super::place::require_kept;
use crate::support::Screen;

const SHOWN: &str = "committing changes, 1 s";

#[test]
fn a_commit_that_takes_long_says_so_on_a_terminal_and_not_in_a_pipe() {
    let kept = require_kept!();
    kept.run(&[], "echo x > x");
    let [layer] = &kept.layers()[..] else { panic!("one") };
    // The commit waits for two seconds until somebody else has finished.
    let lock = || Flock::lock(File::open(layer).unwrap(), FlockArg::LockExclusive).unwrap();
    let held = lock();
    let [_, said] = kept.fails(&["commit"]);
    assert!(said.contains("another session uses it") && !said.contains("committing"), "{said:?}");
    assert!(!said.contains(['\r', '\u{1b}']), "{said:?}");
    drop(held);
    let (status, seen) = loop {
        let held = lock();
        let mut screen =
            Screen::start(kept.kennel(&["commit"]).env("TERM", "xterm"), Duration::from_secs(60));
        screen.until(SHOWN, |seen| seen.contains(SHOWN) || seen.contains("another session uses it"));
        drop(held);
        let (status, seen) = screen.end();
        // A busy machine may take longer than the commit waits.
        if !seen.contains("another session uses it") {
            break (status, seen);
        }
    };
    assert_eq!(status, Some(0), "{seen}");
    // The line is erased before the result is printed.
    let (_, result) = seen.rsplit_once("\r\u{1b}[K").unwrap();
    assert!(result.contains("A x") && result.contains("1 change committed"), "{seen:?}");
    assert!(kept.exists("x"));
}
