//! Completions know what this machine has. bash runs them; `crates/cli/src/parse/completions.rs` looks at the
//! text for zsh.

use std::{fs, process::Command};

use super::cli;
use crate::support::{has, require, stdout, workspace};

/// What bash offers for the last word of each line.
const OFFERS: &[(&str, &str)] = &[
    ("kennel exec ", "agent-1 build"),
    ("kennel exec --timeout 3s a", "agent-1"),
    ("kennel exec agent-1 own-pro", "own-program"),
    ("kennel exec agent-1 cat some-f", "some-file"),
    ("kennel session stop b", "build"),
    ("kennel session logs ", "agent-1 build"),
    ("kennel session st", "start stop"),
    ("kennel run --policy st", "strict"),
    ("kennel run --profile read", "read-only"),
    ("kennel run --profile read-only own-pro", "own-program"),
    ("kennel run -q -- own-pro", "own-program"),
    ("kennel run cat some-f", "some-file"),
    ("kennel run --on-un", "--on-unavailable"),
    ("kennel diff bu", "build"),
    ("kennel pol", "policy"),
];

#[test]
fn bash_completes_sessions_policies_and_programs() {
    require!(has("bash"), "bash");
    let dir = workspace();
    let place = |name: &str| dir.path().join(name);
    for name in ["run/kennel", "config/kennel", "bin"] {
        fs::create_dir_all(place(name)).unwrap();
    }
    for name in [
        "run/kennel/agent-1.sock",
        "run/kennel/build.sock",
        "config/kennel/strict.toml",
        "bin/own-program",
        "some-file",
    ] {
        fs::write(place(name), "").unwrap();
    }
    let program = place("bin/own-program");
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    fs::write(place("script"), cli(dir.path(), &["completions", "bash"]).stdout).unwrap();
    let ask = ". ./script; function=$(complete -p kennel | grep -o '_kennel[a-z_]*'); \
               IFS=' ' read -ra COMP_WORDS <<<\"$1.\"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); \
               COMP_WORDS[COMP_CWORD]=${COMP_WORDS[COMP_CWORD]%.}; \
               \"$function\" kennel \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"; \
               printf '%s\\n' \"${COMPREPLY[@]}\" | sort | paste -sd ' '";
    for (line, expected) in OFFERS {
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", ask, "bash", line]).current_dir(dir.path());
        bash.env("XDG_RUNTIME_DIR", place("run")).env("XDG_CONFIG_HOME", place("config"));
        let path = std::env::var("PATH").unwrap();
        bash.env("PATH", format!("{}:{path}", place("bin").display()));
        let output = bash.output().unwrap();
        assert_eq!(stdout(&output), *expected, "{line}: {output:?}");
    }
}
