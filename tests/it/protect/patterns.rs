//! Patterns under `protect`: what they match when the sandbox is prepared is as read-only as a path that is
//! named.

use std::{
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{PermissionsExt, symlink},
    },
};

use kennel::{Profile, Session};

use super::denials;
use crate::support::{
    TempDir, World, fails, filled, kennel, notes, refused, report, stderr, succeeds, workspace,
};

/// A workspace with these files; each holds `s`.
fn with_files(files: &[&str]) -> TempDir {
    filled(workspace(), files, |_| "s")
}

#[test]
fn what_a_pattern_matches_is_read_only_and_the_rest_is_not() {
    let dir = with_files(&[
        "a.key",
        "d/e/b.key",
        "sub/.env",
        ".env",
        "sub/other",
        "src/x.rs",
        "src/d/y.rs",
        "z.rs",
    ]);
    for (pattern, matches, others) in [
        ("*.key", &["a.key", "d/e/b.key"][..], &["sub/other", "d/e/c", "src/x.rs"][..]),
        ("**/.env", &[".env", "sub/.env"], &["sub/other", "a.key"]),
        ("sub/**", &["sub/.env", "sub/other", "sub/new"], &[".env"]),
        ("src/*.rs", &["src/x.rs"], &["src/d/y.rs", "z.rs", "src/new"]),
        ("{sub,src}/?*r", &["sub/other"], &["sub/.env"]),
    ] {
        let flags = ["--protect", pattern];
        for path in matches {
            let said = fails(dir.path(), &flags, &format!("echo x > {path}"));
            assert!(said.contains("Read-only file system"), "{pattern} {path}: {said}");
        }
        others.iter().for_each(|path| drop(succeeds(dir.path(), &flags, &format!("echo x > {path}"))));
        for path in matches.iter().filter(|path| dir.path().join(path).exists()) {
            assert_eq!(fs::read_to_string(dir.path().join(path)).unwrap(), "s", "{pattern} {path}");
        }
        // As before, for the next pattern.
        others.iter().for_each(|path| fs::write(dir.path().join(path), "s").unwrap());
    }
    let said = fails(dir.path(), &["--protect", "*.key"], "mv d other || rm -f a.key || mv a.key b");
    assert_eq!(said.matches("Device or resource busy").count(), 3, "{said}");
}

#[test]
fn a_match_is_protected_whatever_its_name_and_kind() {
    let dir = workspace();
    let long = format!("{}.key", "x".repeat(251));
    for name in [&b"new\nline.key"[..], b"\xff\xfe.key", b" .key", b"-rf.key", long.as_bytes()] {
        fs::write(dir.path().join(std::ffi::OsStr::from_bytes(name)), "s").unwrap();
    }
    fs::create_dir(dir.path().join("d.key")).unwrap();
    nix::unistd::mkfifo(&dir.path().join("fifo.key"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = "for f in *.key; do rm -rf -- \"$f\" 2> /dev/null && echo \"$f\"; done; : > d.key/x; true";
    let output = kennel(dir.path(), &["--protect", "*.key"], &["sh", "-c", script]).output().unwrap();
    assert!(output.stdout.is_empty(), "removed: {output:?}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 7);
    assert_eq!(fs::read_dir(dir.path().join("d.key")).unwrap().count(), 0);
}

#[test]
fn a_matching_link_is_watched_and_its_target_read_only() {
    let dir = with_files(&["shared/real"]);
    symlink("shared/real", dir.path().join("a.key")).unwrap();
    let flags = ["--protect", "*.key"];
    assert!(fails(dir.path(), &flags, "echo x > a.key").contains("Read-only file system"));
    assert!(fails(dir.path(), &flags, "echo x > shared/real").contains("Read-only file system"));
    let (_, report) = report(dir.path(), &flags, &["sh", "-c", "rm a.key; echo x > a.key"]);
    let denied = denials(&report, dir.path());
    assert!(denied[0].1.contains("the link that was there led to shared/real"), "{denied:?}");
    assert!(!dir.path().join("a.key").exists());
}

#[test]
fn a_search_follows_no_link() {
    let (dir, outside) = (with_files(&["a.key"]), with_files(&["b.key"]));
    symlink(outside.path(), dir.path().join("out")).unwrap();
    symlink(".", dir.path().join("loop")).unwrap();
    let grant = outside.path().to_str().unwrap();
    succeeds(dir.path(), &["--protect", "*.key", "--rw", grant], "echo x > out/b.key");
    assert_eq!(fs::read_to_string(outside.path().join("b.key")).unwrap(), "x\n");
}

/// A command of an earlier sandbox could make a file of that name.
#[test]
fn a_file_with_the_name_of_the_pattern_does_not_replace_the_pattern() {
    let dir = with_files(&["*.key", "a.key", "[id]", "i"]);
    for (pattern, path) in [("*.key", "a.key"), ("*.key", "'*.key'"), ("[id]", "'[id]'"), ("[id]", "i")] {
        let said = fails(dir.path(), &["--protect", pattern], &format!("echo x > {path}"));
        assert!(said.contains("Read-only file system"), "{pattern} {path}: {said}");
    }
}

#[test]
fn what_a_wildcard_matches_leaves_git_alone() {
    let dir = crate::support::repository();
    let script = "echo x > .git/index && echo x > .git/refs/a.key";
    succeeds(dir.path(), &["--protect", "*", "--protect", "**/*.key"], script);
    let said = fails(dir.path(), &["--protect", ".git/refs/*.key"], "echo y > .git/refs/a.key");
    assert!(said.contains("Read-only file system"), "{said}");
}

#[test]
fn a_pattern_or_a_path_that_names_nothing_is_noted() {
    let dir = with_files(&["a.key"]);
    let flags = ["--protect", "*.none", "--protect", "absent", "--protect", "*.key", "--protect", "a.key"];
    let (output, report) = report(dir.path(), &flags, &["true"]);
    let found = notes(&report);
    let subjects: Vec<&str> = found.iter().map(|(subject, _)| *subject).collect();
    assert_eq!(subjects, ["absent", "*.none"], "{found:?}");
    let said = stderr(&output);
    assert!(said.contains("kennel: note: *.none: nothing in the workspace matches"), "{said}");
    assert!(said.contains("kennel: note: absent: nothing is there to protect"), "{said}");
    let quiet = kennel(dir.path(), &[&flags[..], &["--quiet"]].concat(), &["true"]).output().unwrap();
    assert!(quiet.stderr.is_empty(), "{quiet:?}");
}

#[test]
fn what_is_no_pattern_is_refused_and_so_is_what_matches_too_much() {
    let dir = workspace();
    for (pattern, words) in [
        ("[a", "is no pattern"),
        ("{a/b,c}", "in the same part of the path"),
        ("a/../*", "must not contain `..`"),
        ("**", "choose profile read-only"),
        ("/elsewhere/*", "must be below the workspace"),
    ] {
        let said = refused(dir.path(), &["--protect", pattern]);
        assert!(said.contains("protect `") && said.contains(words), "{pattern}: {said}");
    }
    fs::create_dir(dir.path().join("many")).unwrap();
    (0..513).for_each(|number| fs::write(dir.path().join(format!("many/{number}.key")), "").unwrap());
    let said = refused(dir.path(), &["--protect", "*.key"]);
    assert!(said.contains("protected path *.key: there are more than 512 matches"), "{said}");
    assert!(said.contains("hint: name the directory around them"), "{said}");
    let said = fails(dir.path(), &["--protect", "many/**"], "echo x > many/1.key");
    assert!(said.contains("Read-only file system"), "{said}");
}

/// Commands can make directories in which nobody can search.
#[test]
fn what_cannot_be_searched_is_read_only_as_a_whole_and_noted() {
    let dir = workspace();
    let script = "mkdir closed; echo s > closed/a.key; chmod 0 closed; \
                  i=0; while [ $i -lt 100 ]; do mkdir d; cd d; i=$((i + 1)); done";
    succeeds(dir.path(), &[], script);
    let flags = ["--protect", "*.key"];
    let (output, report) = report(dir.path(), &flags, &["true"]);
    assert!(output.status.success(), "{output:?}");
    let found = notes(&report);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].1.contains("all of it is read-only; 1 more as well"), "{found:?}");
    let said = fails(dir.path(), &flags, "chmod 700 closed && echo x > closed/a.key");
    assert!(said.contains("Read-only file system"), "{said}");
    let deep = "d/".repeat(70);
    let said = fails(dir.path(), &flags, &format!("echo x > {deep}a.key"));
    assert!(said.contains("Read-only file system"), "{said}");
    fs::set_permissions(dir.path().join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(fs::read_to_string(dir.path().join("closed/a.key")).unwrap(), "s\n");
}

/// Whether a script succeeds, and its stderr.
async fn tries(session: &Session, script: &str) -> (bool, String) {
    let out = session.command("sh").args(["-c", script]).output().await.unwrap();
    (out.outcome.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
}

#[tokio::test]
async fn what_appears_in_a_session_is_protected_from_the_next_command_on() {
    let world = World::of(with_files(&["d/other"]));
    let policy = world.policy_of(Profile::RepoWrite).protect("**/.env").protect("later");
    let session = Session::prepare(&policy).await.unwrap();
    let subjects = |session: &Session| -> Vec<String> {
        session.enforcement().notes().iter().map(|note| note.subject.clone()).collect()
    };
    assert_eq!(subjects(&session), ["later", "**/.env"]);
    crate::support::past_the_tick();
    assert!(tries(&session, "mkdir -p new/deep; echo one > new/deep/.env").await.0, "nothing was there");
    let (written, said) = tries(&session, "echo two > new/deep/.env").await;
    assert!(!written && said.contains("Read-only file system"), "{said}");
    crate::support::past_the_tick();
    fs::write(world.at("d/.env"), "mine").unwrap();
    let (written, said) = tries(&session, "echo two > d/.env").await;
    assert!(!written && said.contains("Read-only file system"), "{said}");
    assert_eq!(fs::read_to_string(world.at("d/.env")).unwrap(), "mine");
    assert!(tries(&session, "echo x > d/other").await.0);
    assert_eq!(subjects(&session), ["later"], "the notes are those of now");
}

#[tokio::test]
async fn a_later_one_shot_of_a_sandbox_protects_what_the_first_one_made() {
    let world = World::new();
    let policy = world.policy_of(Profile::RepoWrite).protect("*.key");
    let sandbox = kennel::Sandbox::new(&policy).unwrap();
    crate::support::past_the_tick();
    for (script, is_written) in [("echo one > a.key", true), ("echo two > a.key", false)] {
        let out = sandbox.command("sh").args(["-c", script]).output().await.unwrap();
        assert_eq!(out.outcome.status.success(), is_written, "{script}: {out:?}");
    }
    assert_eq!(fs::read_to_string(world.at("a.key")).unwrap(), "one\n");
}
