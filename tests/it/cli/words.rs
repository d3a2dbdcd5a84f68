//! Where a command begins, and what people type instead of one.

use std::{fs, process::Command};

use super::cli;
use crate::{
    serve::Hosted,
    support::{kennel_path, runtime, stderr, stdout, workspace, write_program},
};

#[test]
fn the_first_word_that_is_no_flag_begins_the_command() {
    let (dir, session) = (workspace(), Hosted::start(&[]));
    for (words, said) in [
        (&["echo", "--help", "-q"][..], "--help -q"),
        (&["echo", "a", "--", "b"], "a -- b"),
        (&["--", "echo", "--", "-x"], "-- -x"),
        (&["--setenv", "A=b", "sh", "-c", "echo $A"], "b"),
        (&["--setenv=A=b", "--", "sh", "-c", "echo $A --setenv"], "b --setenv"),
    ] {
        let ran = cli(dir.path(), &[&["run"], words].concat());
        let joined = session.kennel(&[&["exec", "s"], words].concat()).output().unwrap();
        for output in [ran, joined] {
            assert_eq!(
                (output.status.code(), stdout(&output)),
                (Some(0), said.to_owned()),
                "{words:?}: {output:?}"
            );
        }
    }
    // A flag before the command is Kennel's.
    let output = cli(dir.path(), &["run", "--help", "echo"]);
    assert!(stdout(&output).contains("Usage: kennel run"), "{output:?}");
}

#[test]
fn each_mistake_with_a_command_has_its_sentence() {
    let (dir, session) = (workspace(), Hosted::start(&[]));
    for place in [dir.path(), session.workspace.path()] {
        for (name, text) in [("text", "echo hi\n"), ("script", "#!/absent/interpreter\n")] {
            write_program(place.join(name), text);
        }
    }
    for (words, status, cause, hint) in [
        (&["ls -la"][..], 127, "not found", "leave out the quotes"),
        (&["cd", "/tmp"], 127, "not found", "use --cwd DIR"),
        (&["export", "A=b"], 127, "not found", "--setenv NAME=VALUE"),
        (&["source", "x"], 127, "not found", "sh -c '. ./FILE && COMMAND'"),
        (&["alias"], 127, "not found", "aliases belong to your shell"),
        (&["ulimit", "-n"], 127, "not found", "run a shell"),
        (&["A=b", "make"], 127, "not found", "begin the command with env"),
        (&["absent-tool"], 127, "not found", "check the name and PATH"),
        (&["./script"], 127, "the interpreter that it names was not found", "correct the first line"),
        (&["./text"], 126, "Exec format error", "begin a script with a line such as #!/bin/sh"),
    ] {
        let ran = cli(dir.path(), &[&["run"], words].concat());
        let joined = session.kennel(&[&["exec", "s"], words].concat()).output().unwrap();
        let by_client = session.exec(words).output().unwrap();
        for output in [ran, joined, by_client] {
            assert_eq!(output.status.code(), Some(status), "{words:?}: {output:?}");
            let said = stderr(&output);
            let (first, second) = said.split_once('\n').unwrap_or_default();
            assert!(first.starts_with(&format!("kennel: {}: ", words[0])) && first.contains(cause), "{said}");
            assert!(second.starts_with("kennel: hint: ") && second.contains(hint), "{said}");
        }
    }
}

/// Following the tip runs the command.
#[test]
fn a_command_without_run_is_shown_with_it() {
    let dir = workspace();
    for words in
        [&["echo", "hi  there"][..], &["--", "echo", "hi  there"], &["--net", "none", "echo", "hi  there"]]
    {
        let output = cli(dir.path(), words);
        assert!(output.status.code() == Some(125) && output.stdout.is_empty(), "{output:?}");
        let said = stderr(&output);
        let tip = said
            .lines()
            .find_map(|line| line.split_once("write: kennel "))
            .unwrap_or_else(|| panic!("{said}"))
            .1;
        let again = Command::new("sh")
            .args(["-c", &format!("exec \"$0\" {tip}")])
            .arg(kennel_path())
            .current_dir(dir.path())
            .output()
            .unwrap();
        assert_eq!(stdout(&again), "hi  there", "{tip}: {again:?}");
    }
}

#[test]
fn a_variable_that_is_not_set_is_noted_and_no_other() {
    let dir = workspace();
    let said = |flags: &[&str]| {
        let mut command = Command::new(kennel_path());
        command.current_dir(dir.path()).env_remove("ABSENT").env("PRESENT", "").arg("run").args(flags);
        let output = command.arg("true").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        stderr(&output)
    };
    let noted = said(&["--pass-env", "ABSENT"]);
    assert!(noted.starts_with("kennel: note: --pass-env ABSENT: it is not set here;"), "{noted}");
    for flags in [
        &["--pass-env", "PRESENT"][..],
        &["--pass-env", "ABSENT", "--quiet"],
        &["--pass-env", "ABSENT", "--setenv", "ABSENT=x"],
    ] {
        assert_eq!(said(flags), "", "{flags:?}");
    }
}

/// The report has it as stderr says it, once.
#[test]
fn notes_about_the_command_line_are_in_the_report() {
    let (dir, runtime) = (workspace(), runtime());
    fs::write(dir.path().join("kennel.toml"), "hostname = 'mine'\n").unwrap();
    let texts = |file: &str| {
        let report: serde_json::Value =
            serde_json::from_slice(&fs::read(dir.path().join(file)).unwrap()).unwrap();
        let text = |note: &serde_json::Value| {
            let word = |key: &str| note[key].as_str().unwrap().to_owned();
            format!("kennel: note: {}: {}; {}", word("subject"), word("text"), word("remedy"))
        };
        report["enforcement"]["notes"].as_array().unwrap().iter().map(text).collect::<Vec<_>>()
    };
    let expected = [
        format!(
            "kennel: note: {}/kennel.toml: not used, because you have not trusted it; look at it, then run `kennel trust`",
            dir.path().canonicalize().unwrap().display()
        ),
        "kennel: note: --pass-env ABSENT: it is not set here; export ABSENT first, or set it with --setenv ABSENT=VALUE"
            .to_owned(),
    ];
    let run = |words: &[&str]| {
        let mut command = Command::new(kennel_path());
        command
            .current_dir(dir.path())
            .env_remove("ABSENT")
            .env("XDG_RUNTIME_DIR", runtime.path())
            .args(words);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = stderr(&output);
        said.lines().filter(|line| line.starts_with("kennel: note: ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let flags = ["--pass-env", "ABSENT"];
    assert_eq!(run(&[&["run", "--json", "ran"], &flags[..], &["true"]].concat()), expected);
    assert_eq!(texts("ran"), expected);
    // The session says it, and the report of each command has it.
    assert_eq!(run(&[&["session", "start", "--name", "s"], &flags[..]].concat()), expected);
    assert_eq!(run(&["exec", "--json", "joined", "s", "true"]), Vec::<String>::new());
    assert_eq!(texts("joined"), expected);
    run(&["session", "stop", "s"]);
}
