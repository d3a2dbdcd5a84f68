//! Names that say what Kennel would say, or that a terminal obeys: in every door they stay on their line and
//! do nothing.

use std::{fs, process::Output};

use serde_json::Value;

use super::cli;
use crate::support::{kennel, stderr, stdout, workspace};

/// A name for files, with a line of Kennel's, a new screen in both forms, another direction and invisible
/// characters.
const NAME: &str =
    "a\nkennel: forged\r\u{1b}[2J\u{9b}2J\u{202e}\u{2028}\u{2066}\u{200b}\u{feff}\u{7f}\u{e0041}";

/// What a terminal obeys, what reorders, ends or hides text.
fn is_unsafe(c: char) -> bool {
    c.is_control() && c != '\n' || NAME.chars().any(|other| other == c && !other.is_ascii())
}

fn assert_harmless(what: &str, output: &Output) {
    for text in [stdout(output), stderr(output)] {
        assert!(!text.contains(is_unsafe), "{what}: {text:?}");
        assert!(!text.lines().any(|line| line.starts_with("kennel: forged")), "{what}: {text}");
    }
    let said = [stdout(output), stderr(output)].concat();
    assert!(said.contains("forged"), "the name is not in it: {what}: {output:?}");
}

#[test]
fn names_do_nothing_wherever_kennel_prints_them() {
    let place = workspace();
    let dir = place.path();
    let log = dir.join(NAME);
    let inside = dir.join("w");
    fs::create_dir(&inside).unwrap();
    let audit = log.to_str().unwrap();
    let program = format!("./{NAME}");
    let output = kennel(&inside, &["--audit", audit], &[&program]).output().unwrap();
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    assert_harmless("a program that does not exist", &output);
    let output =
        kennel(&inside, &["--audit", audit, "--json", "/dev/stdout"], &["true", NAME]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let records = fs::read_to_string(&log).unwrap();
    assert!(!records.contains(is_unsafe) && records.contains("forged"), "{records:?}");
    let is_named = |line: &str| {
        let record: Value = serde_json::from_str(line).unwrap();
        record.to_string().contains(&serde_json::to_string(NAME).unwrap()[1..20])
    };
    assert!(records.lines().any(is_named), "{records}");
    assert_harmless("audit verify", &cli(dir, &["audit", "verify", audit]));
    assert_harmless("audit verify of none", &cli(dir, &["audit", "verify", &format!("{NAME}/none")]));
    let missing = format!("{NAME}-none");
    for flags in [
        ["run", "--ro", &missing, "--", "true"].as_slice(),
        &["run", "--cwd", &missing, "--", "true"],
        &["run", "--allow", &missing, "--", "true"],
        &["run", "--setenv", &missing, "--", "true"],
        &["run", "--policy", &missing, "--", "true"],
        &["run", "--workspace", &missing, "--", "true"],
        &["run", "--profile", NAME, "--", "true"],
        &["policy", "show", "--mask", &missing],
        &["policy", "show", "--as-file", "--mask", &missing],
        &["policy", "show", "--json", "--mask", &missing],
        &["exec", NAME, "--", "true"],
        &["session", "stop", NAME],
        &["trust", NAME],
        &["op", &missing, "x"],
    ] {
        assert_harmless(&format!("{flags:?}"), &cli(&inside, flags));
    }
    let command = ["touch", "/usr/\u{9b}forged"];
    let mut report = kennel(&inside, &["--json", "/dev/stdout", "--explain"], &command);
    let output = report.output().unwrap();
    assert!(stdout(&output).contains("forged"), "{output:?}");
    assert!(!stdout(&output).contains(is_unsafe), "{output:?}");
}
