//! The programs of `examples/` run, and print what they promise.

use std::{
    env, fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use crate::support::{only_once, require, workspace};

/// Runs an example in a directory, with this standard input. Returns what it printed.
fn example(name: &str, words: &[&str], dir: &Path, input: &str) -> String {
    let own = env::current_exe().unwrap();
    let path = own.parent().unwrap().parent().unwrap().join("examples").join(name);
    let mut command = Command::new(&path);
    command.args(words).current_dir(dir).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{name}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[test]
fn one_shot() {
    only_once!();
    let dir = workspace();
    let said = example("one_shot", &["sh", "-c", "echo from inside; touch made"], dir.path(), "");
    assert!(said.starts_with("from inside\nstatus Some(0), "), "{said}");
    assert!(dir.path().join("made").exists());
}

#[test]
fn agent() {
    only_once!();
    require!(crate::support::has("bash"), "bash");
    let dir = workspace();
    let said = example("agent", &[], dir.path(), "cd /tmp; x=kept\necho $PWD $x\nfalse\n");
    assert_eq!(
        said,
        "[status Some(0), Exited]\n/tmp kept\n[status Some(0), Exited]\n[status Some(1), Exited]\n"
    );
}

#[test]
fn pool() {
    only_once!();
    let dir = workspace();
    let said = example("pool", &[], dir.path(), "");
    assert_eq!(said.matches("found 0 files of others").count(), 8, "{said}");
}

#[test]
fn overlay() {
    only_once!();
    require!(crate::overlay::available(), "an overlay in memory");
    let dir = workspace();
    fs::write(dir.path().join("old"), "old").unwrap();
    let said = example("overlay", &["sh", "-c", "echo new > added; rm old"], dir.path(), "");
    assert_eq!(said, "status Some(0)\nAdded added\nDeleted old\napplied 1\n");
    assert!(dir.path().join("added").exists() && dir.path().join("old").exists());
}

#[test]
fn ask() {
    only_once!();
    require!(crate::support::has("curl"), "curl");
    let dir = workspace();
    let script = "curl -s -o /dev/null http://host.invalid/; echo $? > status";
    let said = example("ask", &["sh", "-c", script], dir.path(), "n\n");
    assert!(said.starts_with("may it reach host.invalid:80? (y/n)\n"), "{said}");
    assert!(said.contains("refused: host.invalid:80"), "{said}");
}
