//! Completions and manual pages say what the flags are.

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

use crate::support::{has, kennel_path, require, stderr, stdout};

fn kennel(arguments: &[&str]) -> Output {
    Command::new(kennel_path()).args(arguments).output().unwrap()
}

#[test]
fn completions_are_scripts_that_know_the_verbs() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = kennel(&["completions", shell]);
        let text = stdout(&output);
        assert!(output.status.success() && output.stderr.is_empty(), "{shell}: {output:?}");
        for word in ["run", "session", "exec", "probe", "policy", "audit-chain", "workspace"] {
            assert!(text.contains(word), "{shell}: {word}");
        }
    }
    // The words that a flag takes are offered, not files.
    let bash = stdout(&kennel(&["completions", "bash"]));
    for words in ["read-only repo-write no-network full-dev ci-only", "none proxy host", "refuse degrade"] {
        assert!(bash.contains(&format!("compgen -W \"{words}\"")), "{words}");
    }
    require!(has("bash"), "bash");
    let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
    bash.stdin.take().unwrap().write_all(&kennel(&["completions", "bash"]).stdout).unwrap();
    assert!(bash.wait().unwrap().success());
    assert_eq!(kennel(&["completions", "csh"]).status.code(), Some(125));
}

#[test]
fn every_verb_has_a_page_with_its_flags() {
    let whole = stdout(&kennel(&["man"]));
    for verb in ["run", "session", "exec", "probe", "policy", "audit", "completions", "man"] {
        assert!(whole.contains(&format!("\\fBkennel {verb}\\fR")), "{verb}");
        let page = kennel(&["man", verb]);
        assert!(page.status.success() && stdout(&page).contains(".SH SYNOPSIS"), "{verb}: {page:?}");
    }
    assert!(stdout(&kennel(&["man", "run"])).contains("workspace"));
    for (page, title, synopsis) in [
        (&["exec"][..], "\"kennel exec\"", "\\fBkennel exec\\fR [OPTIONS] <NAME> [CMD]..."),
        (
            &["session", "start"],
            "\"kennel session start\"",
            "\\fBkennel session start\\fR [OPTIONS] \\-\\-name <NAME>",
        ),
        (&[], "kennel", "\\fBkennel\\fR [OPTIONS] <COMMAND>"),
    ] {
        let text = stdout(&kennel(&[&["man"], page].concat()));
        let version = env!("CARGO_PKG_VERSION");
        assert!(text.contains(&format!(".TH {title} 1  \"kennel {version}\"")), "{text}");
        assert!(text.contains(&format!(".SH SYNOPSIS\n{synopsis}\n")), "{text}");
    }
    let run = stdout(&kennel(&["man", "run"]));
    assert!(
        run.contains(".SH EXAMPLES\n.nf\n  kennel run make test   ")
            && [".SH EXIT STATUS\n", ".SH ENVIRONMENT\n.TP\n", ".SH FILES\n.TP\n"]
                .iter()
                .all(|part| run.contains(part)),
        "{run}"
    );
    for absent in [&["man", "jump"][..], &["man", "session", "host"], &["man", "run", "x"]] {
        let output = kennel(absent);
        assert_eq!(output.status.code(), Some(125), "{absent:?}");
        assert!(stderr(&output).contains("no such command"), "{output:?}");
    }
}
