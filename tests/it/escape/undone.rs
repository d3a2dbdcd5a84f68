//! Attempts to keep Kennel from removing what a command left: by permissions, names, lengths, memory.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::Path,
    process::{Command, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use super::protected::denials;
use crate::support::{
    TempDir, has, kennel_path, may_mount, mount, only_as_root, only_once, repository, require, run, stderr,
    until, workspace,
};

/// Makes the directory `at` so deep that Kennel moves it instead of removing it, with a hook in it.
fn deep(at: &str) -> String {
    format!(
        "mkdir {at}; echo x >{at}/pre-commit; chmod 755 {at}/pre-commit; \
         (cd {at}; i=0; while [ $i -lt 205 ]; do mkdir d && cd d; i=$((i+1)); done)"
    )
}

pub(super) fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// A workspace with a `.git` that has no hooks.
pub(super) fn bare() -> TempDir {
    let ws = workspace();
    fs::create_dir(ws.path().join(".git")).unwrap();
    ws
}

#[test]
fn a_closed_parent_does_not_prevent_the_rename() {
    let ws = bare();
    let told = denials(ws.path(), &[], &format!("{}; chmod 555 .git", deep(".git/hooks")));
    assert!(!is_there(&ws.path().join(".git/hooks")), "{told}");
    assert!(told.contains(".refused-by-kennel"), "{told}");
    let ws = bare();
    fs::create_dir(ws.path().join(".git/info")).unwrap();
    fs::write(ws.path().join(".git/info/pre-commit"), "").unwrap();
    let told = denials(ws.path(), &[], "mv .git/info .git/hooks; chmod 555 .git");
    assert!(!is_there(&ws.path().join(".git/hooks")), "{told}");
    assert!(ws.path().join(".git/hooks.refused-by-kennel.0/pre-commit").exists(), "{told}");
}

#[test]
fn a_closed_parent_does_not_keep_the_replacement_of_a_link() {
    for script in
        ["rm .git/hooks; mkdir .git/hooks; chmod 555 .git", "rm .git/hooks; mkdir .git/hooks; chmod 0 .git"]
    {
        let ws = bare();
        symlink("../shared", ws.path().join(".git/hooks")).unwrap();
        let told = denials(ws.path(), &[], script);
        assert!(
            told.contains("it was removed; the link that was there led to ../shared"),
            "{script}: {told}"
        );
        assert!(!is_there(&ws.path().join(".git/hooks")), "{script}");
    }
}

#[test]
fn taken_names_do_not_prevent_the_rename() {
    only_once!();
    let ws = bare();
    let taken = "seq -f .git/hooks.refused-by-kennel.%g 0 9999 | xargs touch";
    let told = denials(ws.path(), &[], &format!("{}; {taken}", deep(".git/hooks")));
    assert!(!is_there(&ws.path().join(".git/hooks")), "{told}");
    assert!(told.contains(".refused-by-kennel"), "{told}");
}

#[test]
fn a_name_of_the_longest_length_is_renamed_too() {
    let (ws, name) = (bare(), "n".repeat(245));
    let told = denials(ws.path(), &["--protect", &name], &deep(&name));
    assert!(!is_there(&ws.path().join(&name)), "{told}");
    assert!(told.contains("it was renamed"), "{told}");
}

/// If the process that removes files ran out of memory and died, all of them would stay.
#[test]
fn more_names_than_fit_in_memory_are_cleared() {
    only_once!();
    let long = "n".repeat(240);
    let fill = format!("seq -f .git/hooks/{long}%g 20000 | xargs touch; : >.git/hooks/pre-commit");
    // In a directory that exists, and in one that the command makes.
    for (git, make) in [(true, "mkdir .git/hooks"), (false, "mkdir -p .git/hooks")] {
        let ws = if git { bare() } else { workspace() };
        let script = format!("{make}; {fill}");
        let limited = "ulimit -d 5000 && exec \"$0\" run -- sh -c \"$1\"";
        let mut kennel = Command::new("sh");
        kennel.args(["-c", limited]).arg(kennel_path()).arg(&script).current_dir(ws.path());
        let output = kennel.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(!is_there(&ws.path().join(".git/hooks/pre-commit")), "{output:?}");
        // Nothing is left but the new names.
        assert!(stderr(&output).contains("it was renamed"), "{output:?}");
        assert_eq!(fs::read_dir(ws.path().join(".git")).unwrap().count(), 1, "{output:?}");
    }
}

/// The thread that removes files is the one that a whole session waits for.
#[test]
fn a_full_disk_does_not_prevent_clearing() {
    only_as_root!();
    require!(has("unshare"), "unshare");
    let test = "escape::undone::a_full_disk_does_not_prevent_clearing";
    if !may_mount(test) {
        return;
    }
    let place = workspace();
    mount(&["-t", "tmpfs", "-o", "size=4m,nr_inodes=2000", "none"], place.path());
    let ws = place.path();
    fs::create_dir(ws.join(".git")).unwrap();
    symlink("../shared", ws.join(".git/config")).unwrap();
    let plant = "echo ../evil >.git/commondir; rm .git/config; echo evil >.git/config";
    let fill = "cat /dev/zero >full; i=0; while true >$i; do i=$((i+1)); done";
    let told = denials(ws, &[], &format!("{}; {plant}; ({fill}) 2>/dev/null; true", deep(".git/hooks")));
    assert!(ws.join("100").exists() && fs::metadata(ws.join("full")).unwrap().len() > 1 << 20, "{told}");
    for path in [".git/hooks", ".git/commondir", ".git/config"] {
        assert!(!is_there(&ws.join(path)), "{path}: {told}");
        assert!(told.contains(&format!("/{path}\"")), "{path}: {told}");
    }
}

#[test]
fn a_large_tree_is_renamed_as_a_whole() {
    only_once!();
    let fill = "mkdir -p $at; seq -f $at/%g$end 4500 | xargs touch";
    // The second is in a repository made inside, whose sample hooks stay.
    for (at, end, around) in [("a/b/c", "", "a/b"), (".git/hooks", ".sample", "")] {
        let ws = workspace();
        fs::create_dir_all(ws.path().join(around)).unwrap();
        let script = format!("at={at}; end={end}; {fill}; echo x >$at/pre-commit");
        let told = denials(ws.path(), &["--protect", "a/b/c"], &script);
        let aside = ws.path().join(format!("{at}.refused-by-kennel.0"));
        assert!(told.contains("it was renamed") && !is_there(&ws.path().join(at)), "{told}");
        assert!(fs::read_dir(&aside).unwrap().count() >= 4500, "{told}");
    }
    // Everything that one command left counts together. Each path is still cleared.
    let ws = bare();
    let others = "mkdir y .git/hooks; echo x >z; echo x >.git/commondir";
    let script = format!("end=; at=x; {fill}; {others}");
    let told = denials(ws.path(), &["--protect", "x", "--protect", "y", "--protect", "z"], &script);
    for name in ["x", "y", "z", ".git/commondir", ".git/hooks"] {
        assert!(!is_there(&ws.path().join(name)), "{name}: {told}");
    }
}

/// Runs a script that waits until the test has done something outside.
pub(super) fn meanwhile(ws: &Path, script: &str, outside: impl FnOnce()) -> Output {
    meanwhile_with(ws, &[], script, outside)
}

pub(super) fn meanwhile_with(ws: &Path, flags: &[&str], script: &str, outside: impl FnOnce()) -> Output {
    fs::set_permissions(ws, fs::Permissions::from_mode(0o777)).unwrap();
    let script = format!("{script}; touch runs; while [ ! -e done ]; do sleep 0.05; done");
    let mut kennel = Command::new(kennel_path());
    kennel.current_dir(ws).arg("run").args(flags).args(["--", "sh", "-c", &script]);
    let child = kennel.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while !ws.join("runs").exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the command has not started");
        sleep(Duration::from_millis(20));
    }
    outside();
    child.wait_with_output().unwrap()
}

#[test]
fn a_failed_clearing_is_no_success() {
    only_as_root!();
    for (end, status) in [("true", 125), ("exit 3", 3)] {
        let ws = bare();
        let output = meanwhile(ws.path(), &format!("{}; trap '{end}' EXIT", deep(".git/hooks")), || {
            // Nothing in it can be renamed or removed without the rights of root.
            chown(ws.path().join(".git"), Some(1000), Some(1000)).unwrap();
            fs::write(ws.path().join("done"), "").unwrap();
        });
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert!(stderr(&output).contains("it could not be undone"), "{output:?}");
        let hooks = ws.path().join(".git/hooks");
        assert!(!is_there(&hooks.join("pre-commit")), "what can be removed is removed: {output:?}");
        assert_eq!(fs::metadata(&hooks).unwrap().permissions().mode() & 0o7777, 0, "and nobody goes there");
    }
}

#[test]
fn a_clearing_is_a_success() {
    let ws = bare();
    assert_eq!(run(ws.path(), &[], &["mkdir", ".git/hooks"]).status.code(), Some(0));
}

/// Starts a script with a report, and waits until it runs.
fn started(ws: &Path, name: &str, script: &str) -> std::process::Child {
    let script = format!("touch {name}; {script}");
    let mut kennel = Command::new(kennel_path());
    kennel.current_dir(ws).args(["run", "--", "sh", "-c", &script]);
    let child = kennel.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the command runs", || ws.join(name).exists());
    child
}

/// The second command finds what the first made and takes it for the user's. When Kennel removes it, the
/// mount of the second goes with it.
#[test]
fn clearing_by_another_sandbox_is_reported_where_it_removed_a_wall() {
    let ws = bare();
    let wait = "while [ ! -e done ]; do sleep 0.05; done";
    let first = started(
        ws.path(),
        "first",
        "echo . >.git/commondir; touch made; while [ ! -e second ]; do sleep 0.05; done",
    );
    until("the first has made it", || ws.path().join("made").exists());
    let second = started(ws.path(), "second", &format!("{wait}; echo ../evil >.git/commondir"));
    let first = first.wait_with_output().unwrap();
    assert!(stderr(&first).contains("commondir") && stderr(&first).contains("it was renamed"), "{first:?}");
    fs::write(ws.path().join("done"), "").unwrap();
    let second = second.wait_with_output().unwrap();
    // If the mount stayed, nothing could be made there.
    assert!(stderr(&second).contains("commondir: "), "{second:?}");
    assert!(stderr(&second).contains("while the command ran"), "{second:?}");
}

#[test]
fn a_wall_that_is_replaced_outside_is_reported() {
    let ws = repository();
    let output = meanwhile(ws.path(), "true", || {
        fs::write(ws.path().join("new"), "[core]\n").unwrap();
        fs::rename(ws.path().join("new"), ws.path().join(".git/config")).unwrap();
        fs::remove_dir_all(ws.path().join(".git/hooks")).unwrap();
        fs::write(ws.path().join("done"), "").unwrap();
    });
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "it may be the user's: {said}");
    assert!(
        said.contains(".git/config: ") && said.contains("replaced or changed it while the command ran"),
        "{said}"
    );
    assert!(
        said.contains(".git/hooks: ") && said.contains("another program removed it while the command ran"),
        "{said}"
    );
    // Besides the lines about what a host may lack.
    assert_eq!(said.matches("kennel: denied: ").count(), 2, "{said}");
    assert!(is_there(&ws.path().join(".git/config")));
}

#[test]
fn a_wall_that_stayed_is_not_mentioned() {
    let ws = repository();
    let told = denials(ws.path(), &["--protect", "a/b"], "echo x >.git/index; chmod 700 .git");
    assert_eq!(told, "[]");
    fs::create_dir_all(ws.path().join("a")).unwrap();
    fs::write(ws.path().join("a/b"), "").unwrap();
    let told = denials(ws.path(), &["--protect", "a/b"], "touch a/c; chmod 711 a");
    assert_eq!(told, "[]");
}

/// The first command makes a link and still runs when the second takes it for the user's. When Kennel removes
/// the first command's link, the second does not restore it.
#[test]
fn a_link_that_another_sandbox_clears_is_not_restored() {
    for (made, link) in [(true, ".git/hooks"), (false, ".git")] {
        let ws = workspace();
        if made {
            fs::create_dir(ws.path().join(".git")).unwrap();
        }
        let wait = |name: &str| format!("while [ ! -e {name} ]; do sleep 0.05; done");
        let first =
            started(ws.path(), "first", &format!("ln -s ../evil {link}; touch made; {}", wait("second")));
        until("the first has made it", || ws.path().join("made").exists());
        let second = started(ws.path(), "second", &wait("done"));
        let first = first.wait_with_output().unwrap();
        assert!(stderr(&first).contains("it was removed"), "{first:?}");
        fs::write(ws.path().join("done"), "").unwrap();
        let second = second.wait_with_output().unwrap();
        assert!(!is_there(&ws.path().join(link)), "{second:?}");
        assert!(stderr(&second).contains("it is gone; the link that was there led to ../evil"), "{second:?}");
    }
}

/// The second name of a file has the same inode and birth time.
#[test]
fn a_second_name_does_not_hide_that_a_wall_was_taken_away() {
    let ws = bare();
    let first = started(
        ws.path(),
        "first",
        "echo ../evil >.git/commondir; touch made; while [ ! -e second ]; do sleep 0.05; done; ln .git/commondir .git/x",
    );
    until("the first has made it", || ws.path().join("made").exists());
    let again = "while [ ! -e done ]; do sleep 0.05; done; ln .git/x .git/commondir";
    let second = started(ws.path(), "second", again);
    assert!(stderr(&first.wait_with_output().unwrap()).contains("it was renamed"));
    fs::write(ws.path().join("done"), "").unwrap();
    let second = second.wait_with_output().unwrap();
    assert!(is_there(&ws.path().join(".git/commondir")), "{second:?}");
    assert!(
        stderr(&second).contains("commondir: ") && stderr(&second).contains("while the command ran"),
        "{second:?}"
    );
}
