//! The chain of hashes stays whole with many writers, and any change breaks it.

use std::process::{Command, Output};

use super::*;
use crate::support::{World, kennel_path, patient, stdout};

fn verify(flags: &[&str], file: &Path) -> Output {
    Command::new(kennel_path()).args(["audit", "verify"]).args(flags).arg(file).output().unwrap()
}

#[test]
fn many_programs_write_one_chain() {
    let (place, log) = (workspace(), Log::new());
    let flags = ["-q", "--audit", &log.text(), "--audit-chain"];
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    assert!(shell(place.path(), &flags, "true").status.success());
                }
            });
        }
    });
    let output = verify(&[], &log.path());
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).contains(": 80 records, 80 chained, head "), "{}", stdout(&output));
}

#[test]
fn changes_are_found() {
    let (place, log) = (workspace(), Log::new());
    let flags = ["-q", "--audit", &log.text(), "--audit-chain"];
    for _ in 0..3 {
        shell(place.path(), &flags, "true");
    }
    let text = fs::read_to_string(log.path()).unwrap();
    let said = stdout(&verify(&[], &log.path()));
    let head = said.rsplit(' ').next().unwrap();
    assert_eq!(verify(&["--head", head], &log.path()).status.code(), Some(0));
    let lines: Vec<&str> = text.lines().collect();
    let (cut, gone) = (lines[..4].join("\n") + "\n", [&lines[..2], &lines[3..]].concat().join("\n") + "\n");
    for (changed, flags, line) in [
        (text.replacen("\"sh\"", "\"no\"", 1), &[][..], "line 2"),
        (gone, &[], "line 3"),
        (cut, &["--head", head], "cut off"),
    ] {
        fs::write(log.path(), changed).unwrap();
        let output = verify(flags, &log.path());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(stderr(&output).contains(line) && stderr(&output).contains("hint:"), "{output:?}");
    }
    // Hashes in other spellings, and text that is no hash.
    fs::write(log.path(), &text).unwrap();
    assert_eq!(verify(&["--head", &head.to_uppercase()], &log.path()).status.code(), Some(0));
    for typed in ["", "zz", &head[..8]] {
        let output = verify(&["--head", typed], &log.path());
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert!(stderr(&output).contains("is not a SHA-256 hash: expected 64"), "{output:?}");
    }
    // A hash belongs to one log.
    let output = verify(&["--head", head, log.path().to_str().unwrap()], &log.path());
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("name one FILE"), "{output:?}");
    let output = verify(&[], Path::new("/nonexistent/log"));
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("/nonexistent/log: No such file"), "{output:?}");
    // An unreadable log does not keep the check from looking at the others.
    let broken = log.place.path().join("broken");
    fs::write(&broken, text.replacen("\"sh\"", "\"no\"", 1)).unwrap();
    let output = verify(&["/nonexistent/log", broken.to_str().unwrap()], &log.path());
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("line 2") && stdout(&output).contains("6 records"), "{output:?}");
}

#[tokio::test]
async fn a_chain_goes_on_after_lines_of_other_programs() {
    let (world, log) = (World::new(), Log::new());
    shell(world.path(), &["--audit", &log.text()], "true");
    let audit = Audit { chain: true, ..log.plain() };
    let session = Session::prepare(&world.policy_of(Profile::RepoWrite).audit(audit)).await.unwrap();
    session.command("true").status().await.unwrap();
    shell(world.path(), &["--audit", &log.text(), "--audit-chain"], "true");
    session.command("true").status().await.unwrap();
    let said = stdout(&verify(&[], &log.path()));
    assert!(said.contains(": 9 records, 7 chained"), "{said}");
}

#[tokio::test]
async fn a_lock_that_is_never_released_delays_nobody_for_long() {
    let (world, log) = (World::new(), Log::new());
    let audit = Audit { chain: true, fail_closed: true, ..log.plain() };
    let session = Session::prepare(&world.policy_of(Profile::RepoWrite).audit(audit)).await.unwrap();
    let file = fs::File::open(log.path()).unwrap();
    let held = nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusive).unwrap();
    let begun = std::time::Instant::now();
    let error = session.command("true").status().await.unwrap_err();
    assert!(error.chain().contains("Resource temporarily unavailable"), "{}", error.chain());
    assert!(begun.elapsed() < patient(Duration::from_secs(5)));
    drop(held);
    session.command("true").status().await.unwrap();
}
