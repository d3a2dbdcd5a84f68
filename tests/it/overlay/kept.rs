//! Changes that outlive a command: several commands add to them; `kennel diff`, `kennel commit` and `kennel
//! discard` review them.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Stdio,
};

use serde_json::{Value, json};

use super::place::require_kept;
use crate::support::{
    has, is_root, kennel_path, only_as_root, past_the_tick, require, stderr, stdout, until, workspace_on_disk,
};

#[test]
fn several_commands_add_to_the_same_changes() {
    let kept = require_kept!();
    kept.write("old", "1\n");
    assert_eq!(kept.run(&[], "echo a > a; echo 2 >> old"), "A a\nM old");
    assert_eq!(kept.run(&[], "cat a old > b"), "A a\nA b\nM old");
    assert!(!kept.exists("a") && !kept.exists("b"));
    assert_eq!(kept.read("old"), "1\n");
    assert_eq!(kept.succeeds(&["commit"]), "A a\nA b\nM old\n3 changes committed");
    assert_eq!(kept.read("b"), "a\n1\n2\n");
    assert_eq!(kept.layers(), Vec::<PathBuf>::new());
    let output = kept.output(&["diff"]);
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(stderr(&output).contains("nothing is kept for"), "{output:?}");
}

#[test]
fn the_list_ends_with_what_can_be_done() {
    let kept = require_kept!();
    let output = kept.output(&["run", "--overlay", "--", "touch", "a"]);
    let said = stderr(&output);
    for word in ["A a\n", "kennel diff", "kennel commit", "kennel discard"] {
        assert!(said.contains(word), "{said}");
    }
    kept.succeeds(&["discard"]);
    let output = kept.output(&["run", "--overlay", "--", "true"]);
    assert!(!stderr(&output).contains("kennel diff"), "{output:?}");
}

#[test]
fn of_many_changes_the_first_are_listed_and_the_others_counted() {
    let kept = require_kept!();
    for name in ["a1", "a2", "z1"] {
        kept.write(name, "old\n");
    }
    let script = "for n in $(seq 100 130); do echo > n$n; done; rm a1; echo 2 > a2; echo 2 > z1";
    let output = kept.output(&["run", "--overlay", "--", "sh", "-c", script]);
    let said = stderr(&output);
    let listed = said.lines().filter(|line| !line.starts_with("kennel: ")).count();
    assert_eq!(listed, 20, "{said}");
    assert!(said.starts_with("D a1\nM a2\nA n100\n"), "{said}");
    assert!(said.contains("kennel: and 14 more changes: 13 added, 1 modified\n"), "{said}");
    let twenty = kept.succeeds(&["discard", "n120", "n121", "n122", "n123", "n124", "n125", "n126"]);
    assert!(twenty.ends_with("7 changes discarded; 27 left: kennel diff"), "{twenty}");
    kept.succeeds(&["discard"]);
}

/// As git: on a terminal only, and not if somebody does without.
#[test]
fn a_diff_goes_through_a_pager_on_a_terminal() {
    require!(has("script"), "script of util-linux");
    let kept = require_kept!();
    kept.run(&[], "echo new > a");
    let seen = |flags: &[&str], pager: Option<&str>| {
        let line = [&[kennel_path().to_str().unwrap(), "--color", "never", "diff"], flags].concat().join(" ");
        let mut script = kept.command("script");
        script
            .args(["-qefc", &line, "/dev/null"])
            .stdin(Stdio::null())
            .env_remove("PAGER")
            .env_remove("LESS");
        script.env_remove("KENNEL_PAGER").env("TERM", "dumb");
        if let Some(pager) = pager {
            script.env("KENNEL_PAGER", pager);
        }
        let output = script.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        stdout(&output).replace('\r', "")
    };
    assert!(seen(&[], Some("sed 's/^/paged: /'")).contains("paged: +new"));
    assert!(!seen(&["--no-pager"], Some("sed 's/^/paged: /'")).contains("paged: "));
    assert!(seen(&["--no-pager"], None).contains("+new"));
    assert!(seen(&[], Some("cat")).contains("+new") && seen(&[], Some("")).contains("+new"));
    // A reader may leave at once.
    assert!(!seen(&[], Some("true")).contains("+new"));
    // With less, and without it.
    assert!(seen(&[], None).contains("+new"));
    let plain = kept.kennel(&["diff"]).env("KENNEL_PAGER", "sed 's/^/paged: /'").output().unwrap();
    assert!(plain.status.success() && !stdout(&plain).contains("paged: "), "no terminal: {plain:?}");
    kept.succeeds(&["discard"]);
}

#[test]
fn a_part_is_committed_and_a_part_discarded() {
    let kept = require_kept!();
    fs::create_dir_all(kept.dir.path().join("src")).unwrap();
    kept.write("src/old", "1\n");
    kept.run(&[], "mkdir -p new/deep; echo x > new/deep/f; echo y > new/g; echo 2 > src/old; echo z > z");
    assert_eq!(
        kept.succeeds(&["commit", "new/deep/f"]),
        "A new/\nA new/deep/\nA new/deep/f\n3 changes committed; 3 left: kennel diff"
    );
    assert!(kept.exists("new/deep/f") && !kept.exists("new/g") && !kept.exists("z"));
    assert_eq!(kept.read("src/old"), "1\n");
    assert_eq!(kept.succeeds(&["discard", "z"]), "A z\n1 change discarded; 2 left: kennel diff");
    // What is committed belongs to the user: commands see what the user makes of it.
    kept.write("new/deep/f", "mine\n");
    assert_eq!(kept.run(&[], "cat new/deep/f; grep -q mine new/deep/f && test ! -e z"), "A new/g\nM src/old");
    assert_eq!(kept.succeeds(&["commit", "src", "new"]), "A new/g\nM src/old\n2 changes committed");
    assert_eq!((kept.read("new/deep/f"), kept.read("src/old")), ("mine\n".into(), "2\n".into()));
    assert_eq!(kept.layers(), Vec::<PathBuf>::new());
}

#[test]
fn a_file_in_a_closed_directory_is_committed() {
    let kept = require_kept!();
    let closed = kept.dir.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::write(closed.join("f"), "old").unwrap();
    let mode = |mode| fs::set_permissions(&closed, PermissionsExt::from_mode(mode)).unwrap();
    mode(0o000);
    kept.run(&[], "chmod 700 closed; echo new > closed/f; chmod 0 closed");
    assert_eq!(kept.succeeds(&["commit"]), "M closed/f\n1 change committed");
    mode(0o700);
    assert_eq!(kept.read("closed/f"), "new\n");
}

#[test]
fn paths_start_at_the_current_directory() {
    let kept = require_kept!();
    fs::create_dir_all(kept.dir.path().join("d/e")).unwrap();
    kept.run(&[], "echo x > d/e/x; echo y > d/y; echo z > z");
    let below = |arguments: &[&str]| {
        let output = kept.kennel(arguments).current_dir(kept.dir.path().join("d/e")).output().unwrap();
        (output.status.code(), stdout(&output), stderr(&output))
    };
    assert_eq!(below(&["commit", "x"]).1, "A d/e/x\n1 change committed; 2 left: kennel diff");
    assert_eq!(below(&["discard", "../y"]).1, "A d/y\n1 change discarded; 1 left: kennel diff");
    let (code, said, told) = below(&["commit", "../../.."]);
    assert_eq!((code, said), (Some(125), String::new()));
    assert!(told.contains("not in the workspace"), "{told}");
    let (code, _, told) = below(&["discard", "nothing"]);
    assert!(code == Some(125) && told.contains("d/e/nothing: nothing was changed there"), "{told}");
    assert_eq!(below(&["diff", "--stat", "../.."]).1.lines().count(), 2);
}

#[test]
fn a_commit_overwrites_nothing_that_others_changed() {
    let kept = require_kept!();
    kept.write("f", "1\n");
    kept.write("later", "1\n");
    kept.run(&[], "echo command > f; echo x > x");
    past_the_tick();
    kept.write("f", "user\n");
    kept.write("later", "user\n");
    // This command sees what the user wrote.
    kept.run(&[], "grep -q user later; echo command >> later; echo more >> f");
    let [done, said] = kept.fails(&["commit"]);
    let hint = "kennel: hint: kennel commit --force PATH replaces what others wrote there, kennel discard PATH keeps it";
    assert_eq!(said, format!("kennel: not committed: M f: the workspace changed there meanwhile\n{hint}"));
    assert_eq!(done, "M later\nA x\n2 changes committed, 1 not committed; 1 left: kennel diff");
    assert_eq!((kept.read("f"), kept.read("later")), ("user\n".into(), "user\ncommand\n".into()));
    // It stays refused, and can be dropped.
    kept.fails(&["commit"]);
    assert_eq!(kept.succeeds(&["discard", "f"]), "M f\n1 change discarded");
    assert_eq!(kept.read("f"), "user\n");
}

#[test]
fn a_failed_command_commits_nothing_and_its_changes_are_kept() {
    let kept = require_kept!();
    let output = kept.output(&["run", "--overlay", "--commit", "--", "sh", "-c", "echo x > x; exit 3"]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(3));
    assert!(said.contains("A x\nkennel: nothing was committed, because the command failed"), "{said}");
    assert!(!kept.exists("x"));
    // The next command that succeeds commits them too.
    assert_eq!(kept.run(&["--commit"], "cat x"), "");
    assert!(kept.exists("x"));
}

#[test]
fn the_diff_is_shown_before_the_commit() {
    let kept = require_kept!();
    kept.write("f", "old\n");
    let said = kept.run(&["--diff", "--commit"], "echo new > f");
    for line in ["diff --git a/f b/f", "-old", "+new", "1 file changed, +1 −1"] {
        assert!(said.lines().any(|said| said == line), "{line}: {said}");
    }
    assert_eq!(kept.read("f"), "new\n");
    let said = kept.run(&["--diff"], "echo newer > f");
    assert!(said.starts_with("M f\ndiff --git") && said.contains("+newer"), "{said}");
    assert_eq!(kept.read("f"), "new\n");
}

#[test]
fn a_diff_has_renames_modes_links_and_binary_files() {
    let kept = require_kept!();
    let text: String = (0..40).map(|number| format!("line {number}\n")).collect();
    fs::create_dir(kept.dir.path().join("d")).unwrap();
    kept.write("d/one", &text);
    kept.write("two", &text.replace("line", "other"));
    kept.write("script", "x\n");
    fs::set_permissions(kept.dir.path().join("script"), PermissionsExt::from_mode(0o644)).unwrap();
    symlink("two", kept.dir.path().join("link")).unwrap();
    fs::write(kept.dir.path().join("bin"), b"a\0b").unwrap();
    kept.write("end", "no end");
    kept.run(
        &[],
        "mv d e; sed -i 's/other 7$/seven/' two; mv two three; chmod 755 script; ln -sfn three link; \
         printf 'a\\0c' > bin; printf 'no end\\n' > end; mkdir empty",
    );
    let diff = kept.succeeds(&["diff", "-U", "1"]);
    let has = |lines: &str| assert!(diff.contains(lines), "{lines}\n---\n{diff}");
    has("diff --git a/d/one b/e/one\nsimilarity index 100%\nrename from d/one\nrename to e/one\n");
    has(
        "rename from two\nrename to three\n--- a/two\n+++ b/three\n@@ -7,3 +7,3 @@\n other 6\n-other 7\n+seven\n other 8\n",
    );
    has("diff --git a/script b/script\nold mode 100644\nnew mode 100755\ndiff ");
    has("--- a/link\n+++ b/link\n@@ -1 +1 @@\n-two\n\\ No newline at end of file\n+three\n");
    has("Binary files a/bin and b/bin differ");
    has("-no end\n\\ No newline at end of file\n+no end\n");
    has("new directory mode 040");
    assert!(diff.ends_with("7 files changed (2 renamed), +3 −3"), "{diff}");
    let stat = kept.succeeds(&["diff", "--stat"]);
    assert!(stat.contains("R two → three      2 +-\n") && stat.contains("M bin"), "{stat}");
    assert!(!stat.contains("@@"), "{stat}");
    // A path of either side finds a rename.
    for path in ["two", "three"] {
        assert!(kept.succeeds(&["diff", path]).contains("rename from two"), "{path}");
    }
    let colored = kept.succeeds(&["diff", "--color", "always", "two"]);
    assert!(colored.contains("\u{1b}[31m-other 7\u{1b}[0m"), "{colored:?}");
    kept.succeeds(&["commit"]);
    assert_eq!(fs::read_link(kept.dir.path().join("link")).unwrap(), Path::new("three"));
    assert!(kept.exists("e/one") && !kept.exists("d") && !kept.exists("two"));
}

#[test]
fn a_diff_of_hostile_changes_is_harmless() {
    let kept = require_kept!();
    kept.write("victim", "secret of the host\n");
    let outside = kept.state.path().join("outside");
    fs::write(&outside, "secret of the host\n").unwrap();
    let script = format!(
        r#"printf 'a\033[2Jb\rc\n' > text; touch -- "$(printf 'n\033[31m\nname')"; mkfifo fifo; truncate -s 1G huge;
           ln -s {} link; printf '\377\n' > latin; printf '%05000d\n' 0 > long"#,
        outside.display()
    );
    kept.run(&[], &script);
    let diff = kept.succeeds(&["diff"]);
    assert!(!diff.contains('\u{1b}') && !diff.contains('\r'), "{diff:?}");
    for line in [
        "+a\\u{1b}[2Jb\\rc",
        "diff --git a/n\\u{1b}[31m\\nname b/n\\u{1b}[31m\\nname",
        "FIFOs, sockets and devices are neither shown nor committed",
        "+\\xff",
    ] {
        assert!(diff.lines().any(|said| said == line), "{line}: {diff}");
    }
    assert!(diff.contains("too large to show (1G)") && diff.contains("a line of 5000 bytes"), "{diff}");
    assert!(!diff.contains("secret of the host"), "{diff}");
    let list = kept.succeeds(&["diff", "--stat"]);
    assert!(!list.contains('\u{1b}'), "{list:?}");
    let [done, said] = kept.fails(&["commit"]);
    assert!(said.contains("A fifo: only files, directories and links"), "{said}");
    assert!(!done.contains('\u{1b}'), "{done:?}");
    assert_eq!(kept.succeeds(&["discard"]), "A fifo\n1 change discarded");
}

#[test]
fn a_part_of_a_replaced_directory_is_discarded() {
    let kept = require_kept!();
    fs::create_dir_all(kept.dir.path().join("d/sub")).unwrap();
    for name in ["d/x", "d/y", "d/sub/z", "d/sub/w"] {
        kept.write(name, "old\n");
    }
    let listed = kept.run(&[], "rm -r d; mkdir -p d/sub; echo new > d/x; echo new > d/sub/z; echo new > d/n");
    assert_eq!(listed, "A d/n\nD d/sub/w\nM d/sub/z\nM d/x\nD d/y");
    assert_eq!(kept.succeeds(&["discard", "d/x"]), "M d/x\n1 change discarded; 4 left: kennel diff");
    assert_eq!(kept.succeeds(&["discard", "d/y"]), "D d/y\n1 change discarded; 3 left: kennel diff");
    assert_eq!(kept.succeeds(&["discard", "d/sub/w"]), "D d/sub/w\n1 change discarded; 2 left: kennel diff");
    let seen = kept.output(&[
        "run",
        "--quiet",
        "--overlay",
        "--",
        "sh",
        "-c",
        "cat d/x d/y d/sub/w d/sub/z d/n; ls d",
    ]);
    assert_eq!(stdout(&seen), "old\nold\nold\nnew\nnew\nn\nsub\nx\ny", "{seen:?}");
    assert_eq!(kept.succeeds(&["commit"]), "A d/n\nM d/sub/z\n2 changes committed");
    assert_eq!(
        (kept.read("d/x"), kept.read("d/sub/z"), kept.read("d/n")),
        ("old\n".into(), "new\n".into(), "new\n".into())
    );
}

#[test]
fn a_part_of_a_deletion_is_named_as_such() {
    let kept = require_kept!();
    fs::create_dir(kept.dir.path().join("d")).unwrap();
    kept.write("d/x", "x\n");
    assert_eq!(kept.run(&[], "rm -r d"), "D d/");
    let [_, said] = kept.fails(&["discard", "d/x"]);
    assert!(said.contains("d/x: it is a part of the change D d/; name that path"), "{said}");
    // The diff shows its files.
    assert!(kept.succeeds(&["diff"]).contains("deleted file mode 100644\n--- a/d/x\n+++ /dev/null\n"));
    assert_eq!(kept.succeeds(&["discard", "d"]), "D d/\n1 change discarded");
}

#[test]
fn files_that_a_command_only_opened_are_not_kept() {
    let kept = require_kept!();
    kept.write("f", "1\n");
    kept.write("g", "1\n");
    assert_eq!(kept.run(&[], ": >> f; echo 2 > g"), "M g");
    kept.write("f", "user\n");
    assert_eq!(kept.run(&[], "grep -q user f"), "M g");
    assert_eq!(kept.succeeds(&["commit"]), "M g\n1 change committed");
    assert_eq!(kept.read("f"), "user\n");
}

#[test]
fn protected_paths_are_those_of_every_command_and_of_now() {
    let kept = require_kept!();
    kept.run(
        &["--protect", ".env"],
        "echo x > .env; mkdir -p .git/modules/sub/hooks; echo x > .git/modules/sub/hooks/post-checkout",
    );
    kept.run(&[], "echo more >> .env; echo y > y");
    // Only now does git obey the hook.
    for repository in [".git", ".git/modules/sub"] {
        crate::support::make_repository(&kept.dir.path().join(repository));
    }
    let [done, said] = kept.fails(&["commit"]);
    assert!(said.contains("A .env: it is protected"), "{said}");
    assert!(said.contains("A .git/modules/sub/hooks/post-checkout: it is protected"), "{said}");
    assert!(done.contains("A y") && kept.exists("y"), "{done}");
    assert!(!kept.exists(".env") && !kept.exists(".git/modules/sub/hooks/post-checkout"));
    kept.succeeds(&["discard"]);
}

#[test]
fn nothing_is_left_of_a_command_that_keeps_nothing() {
    let kept = require_kept!();
    assert_eq!(kept.run(&["--discard"], "echo x > x"), "");
    assert_eq!(kept.run(&[], "true"), "");
    kept.run(&["--commit"], "echo y > y");
    let output = kept.output(&["run", "--overlay", "--", "no-such-program"]);
    assert_eq!(output.status.code(), Some(127));
    assert_eq!(kept.layers(), Vec::<PathBuf>::new());
    assert!(!kept.exists("x") && kept.exists("y"));
    // It neither sees nor drops what others keep.
    kept.run(&[], "echo z > z");
    kept.run(&["--discard"], "test ! -e z; echo x > x");
    assert_eq!(kept.succeeds(&["discard"]), "A z\n1 change discarded");
}

#[test]
fn changes_of_a_killed_run_are_found() {
    let kept = require_kept!();
    let mut run = kept
        .kennel(&["run", "--overlay", "--", "sh", "-c", "echo x > x; sync; touch ready; sleep 60"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let is_ready = || stdout(&kept.output(&["diff", "--stat"])).contains("ready");
    until("the command has written", is_ready);
    let said = kept.fails(&["run", "--overlay", "--", "true"])[1].clone();
    assert!(said.contains("another session uses it"), "one at a time: {said}");
    let said = kept.fails(&["commit"])[1].clone();
    assert!(said.contains("another session uses it"), "one at a time: {said}");
    run.kill().unwrap();
    run.wait().unwrap();
    until("the changes are free", || kept.output(&["discard", "ready"]).status.success());
    assert_eq!(kept.run(&[], "cat x"), "A x");
    assert_eq!(kept.succeeds(&["commit"]), "A x\n1 change committed");
}

#[test]
fn a_directory_that_is_moved_or_replaced_is_told() {
    let kept = require_kept!();
    let (one, two) = (kept.dir.path().join("one"), kept.dir.path().join("two"));
    fs::create_dir(&one).unwrap();
    let within = |dir: &Path, arguments: &[&str]| {
        let output = kept.kennel(arguments).current_dir(dir).output().unwrap();
        (output.status.code(), stdout(&output), stderr(&output))
    };
    within(&one, &["run", "--overlay", "--", "touch", "x"]);
    fs::rename(&one, &two).unwrap();
    for arguments in [&["diff"][..], &["commit"], &["run", "--overlay", "--", "true"]] {
        let (code, _, said) = within(&two, arguments);
        assert!(code == Some(125) && said.contains("was moved to"), "{arguments:?}: {said}");
    }
    fs::create_dir(&one).unwrap();
    for arguments in [&["diff"][..], &["commit"], &["run", "--overlay", "--", "true"]] {
        let (code, _, said) = within(&one, arguments);
        assert!(
            code == Some(125) && said.contains("another directory is there now"),
            "{arguments:?}: {said}"
        );
    }
    assert!(fs::read_dir(&one).unwrap().next().is_none());
    fs::remove_dir(&one).unwrap();
    fs::rename(&two, &one).unwrap();
    assert_eq!(within(&one, &["commit"]), (Some(0), "A x\n1 change committed".into(), String::new()));
    // Changes of a directory that is gone can be dropped.
    within(&one, &["run", "--overlay", "--", "touch", "y"]);
    fs::remove_dir_all(&one).unwrap();
    assert!(kept.succeeds(&["discard", "--workspace", one.to_str().unwrap()]).contains("discarded"));
    assert_eq!(kept.layers(), Vec::<PathBuf>::new());
}

#[test]
fn changes_of_another_user_are_refused() {
    only_as_root!();
    let kept = require_kept!();
    kept.run(&[], "touch x");
    let [layer] = &kept.layers()[..] else { panic!("one") };
    std::os::unix::fs::chown(layer, Some(1000), Some(1000)).unwrap();
    for arguments in [&["diff"][..], &["commit"], &["discard"], &["run", "--overlay", "--", "true"]] {
        kept.fails(arguments);
    }
    std::os::unix::fs::chown(layer, Some(0), Some(0)).unwrap();
    fs::set_permissions(layer, PermissionsExt::from_mode(0o755)).unwrap();
    assert!(kept.fails(&["commit"])[1].contains("accessible to other users"));
    assert!(!kept.exists("x"));
}

#[test]
fn commands_cannot_reach_where_changes_are_kept() {
    let kept = require_kept!();
    let state = kept.state.path().to_str().unwrap();
    kept.run(&[], &format!("! ls {state}; ! touch {state}/x"));
    let [_, said] = kept.fails(&["run", "--overlay", "--rw", state, "--", "true"]);
    assert!(said.contains("overlaps a writable grant"), "{said}");
    assert!(is_root() || !said.is_empty());
}

#[test]
fn no_other_command_forges_kept_changes() {
    let kept = require_kept!();
    let state = kept.state.path().to_str().unwrap();
    kept.run(&[], "echo x > x");
    let elsewhere = workspace_on_disk();
    let granted = [
        "run",
        "--quiet",
        "--workspace",
        elsewhere.path().to_str().unwrap(),
        "--rw",
        state,
        "--",
        "sh",
        "-c",
    ];
    let script = format!("! touch {state}/kennel/changes/*/record.json; ! rm -rf {state}/kennel");
    kept.succeeds(&[&granted[..], &[&script]].concat());
    assert_eq!(kept.succeeds(&["commit"]), "A x\n1 change committed");
    // What is made there before Kennel makes it is moved aside.
    fs::remove_dir_all(kept.state.path().join("kennel")).unwrap();
    kept.output(&[&granted[..], &[&format!("mkdir -p {state}/kennel/changes/run-0")]].concat());
    assert!(!kept.state.path().join("kennel").exists());
}

#[test]
fn sessions_keep_changes_by_name() {
    let kept = require_kept!();
    let name = format!("kept-{}", std::process::id());
    let session = |arguments: &[&str]| kept.succeeds(arguments);
    session(&["session", "start", "--quiet", "--name", &name, "--overlay"]);
    session(&["exec", &name, "--", "sh", "-c", "echo x > x"]);
    session(&["exec", &name, "--", "sh", "-c", "cat x > y"]);
    assert!(session(&["diff", "--stat", &name]).contains("2 files changed, +2 −0"));
    // A command without the session has changes of its own.
    kept.run(&[], "test ! -e x; echo z > z");
    session(&["session", "stop", &name]);
    until("the session is gone", || kept.output(&["discard", &name, "y"]).status.success());
    session(&["session", "start", "--quiet", "--name", &name, "--overlay"]);
    session(&["exec", &name, "--", "sh", "-c", "test ! -e y; cat x > w"]);
    session(&["session", "stop", &name]);
    until("the session is gone", || kept.output(&["commit", &name]).status.success());
    assert!(kept.exists("x") && kept.exists("w") && !kept.exists("y") && !kept.exists("z"));
    assert_eq!(kept.succeeds(&["commit"]), "A z\n1 change committed");
}

#[test]
fn a_report_lists_what_is_kept() {
    let kept = require_kept!();
    let file = kept.state.path().join("report.json");
    kept.run(&["--json", file.to_str().unwrap()], "echo x > x");
    let report: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(report["changes"], json!([{ "path": "x", "kind": "added", "file": "file" }]));
    kept.succeeds(&["discard"]);
}
