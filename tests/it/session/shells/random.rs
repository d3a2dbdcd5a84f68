//! Random snippets: a shell in a session and a bash outside have the same state and say the same.

use std::{fs, path::Path, process::Command};

use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, TestRunner},
};

use super::{kinds, run};
use crate::support::{has, require};

/// What one snippet is made of. None of them ends the shell, tells a path outside of the workspace, or a PID.
const PIECES: [&str; 36] = [
    "mkdir -p a/b 'c d'",
    "cd a 2>/dev/null",
    "cd ..; cd \"$TOP\"",
    "cd 'c d' 2>/dev/null || cd \"$TOP\"",
    "x=$((x + 1)); echo x=$x",
    "export E=\"$E.\"; env | while read -r line; do case $line in E=*) echo \"$line\";; esac; done",
    "unset x",
    "f() { echo \"f $# ${1-none}\"; return ${2:-0}; }",
    "f one 3",
    "g() { local x=local; f \"$x\"; }; g",
    "unset -f g",
    "alias say='echo said'",
    "say it",
    "unalias say 2>/dev/null",
    "echo \"status $?\"",
    "(exit 7)",
    "false || echo or; true && echo and",
    "set -- one 'two  words' three",
    "shift 2>/dev/null; echo \"$# <$1>\"",
    "set -u; echo ${nothing-unset}; set +u",
    "echo $undefined_under_u",
    "set -u",
    "set +u",
    "list=(1 2 'three four'); echo ${#list[@]} \"${list[2]}\"",
    "declare -A map; map[k]=\"$x\"; echo \"${map[k]}\"",
    "shopt -s nullglob; echo no-such-*; shopt -u nullglob",
    "set -f; echo *; set +f",
    "umask 077; umask; umask 022",
    "cat <<END\n$x $E\nEND",
    "read -r one two <<< 'first second third'; echo \"$two\"",
    "for i in 1 2 3; do [ $i = 2 ] && continue; echo $i; done",
    "printf 'no line end'; echo >&2 error; printf '\\001\\377'",
    "sleep 0.01 & wait $!; echo waited $?",
    "exec 8>>log; echo logged >&8; exec 8>&-; cat \"$PWD/log\" | head -n 3",
    "trap 'echo usr1' USR1; kill -USR1 $$; :",
    "if then",
];

/// Runs the snippets one after the other in one bash outside, each from a file. Returns what it wrote and its
/// states.
fn model(snippets: &[String], place: &Path) -> Vec<(Vec<u8>, i32, String)> {
    let files = place.join("files");
    fs::create_dir(&files).unwrap();
    let top = place.join("top");
    fs::create_dir(&top).unwrap();
    let mut input = String::from("PS1= PS2=; set +o history +o histexpand\n");
    for (number, snippet) in snippets.iter().enumerate() {
        let file = |kind: &str| files.join(format!("{kind}{number}")).display().to_string();
        fs::write(file("in"), snippet).unwrap();
        let status = if number > 0 {
            format!("(exit $(<{}))\n", files.join(format!("status{}", number - 1)).display())
        } else {
            String::new()
        };
        input += &format!("{status}. {} </dev/null >{} 2>/dev/null\n", file("in"), file("out"));
        input += &format!("echo $? >{}; echo ${{PWD#\"$TOP\"}} >{}\n", file("status"), file("dir"));
    }
    let script = files.join("script");
    fs::write(&script, input).unwrap();
    let mut bash = Command::new("bash");
    bash.args(["--norc", "--noprofile", "--noediting", "-i"]).stdin(fs::File::open(script).unwrap());
    bash.current_dir(&top)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("TOP", &top)
        .env("HOME", "/")
        .env("HISTFILE", "");
    bash.output().unwrap();
    let read = |kind: &str, number: usize| fs::read(files.join(format!("{kind}{number}"))).unwrap();
    let text = |kind: &str, number| String::from_utf8(read(kind, number)).unwrap().trim().to_owned();
    (0..snippets.len())
        .map(|number| (read("out", number), text("status", number).parse().unwrap(), text("dir", number)))
        .collect()
}

#[tokio::test]
async fn a_shell_has_the_state_that_a_bash_outside_has() {
    require!(has("bash"), "bash");
    let snippet = proptest::collection::vec(proptest::sample::select(&PIECES[..]), 1..4)
        .prop_map(|pieces| pieces.join("\n"));
    let snippets = proptest::collection::vec(snippet, 1..25);
    let mut runner = TestRunner::new(Config::default());
    let [kind, ..] = kinds().await;
    for round in 0..12 {
        let snippets = snippets.new_tree(&mut runner).unwrap().current();
        let place = kind.path().join(format!("round{round}"));
        let top = place.join("inside");
        fs::create_dir_all(&top).unwrap();
        let expected = model(&snippets, &place);
        let shell = kind.session.shell();
        run(&shell, &format!("cd {0}; TOP={0}", top.display())).await;
        for (number, snippet) in snippets.iter().enumerate() {
            let out = run(&shell, snippet).await;
            assert!(!out.has_ended, "{snippets:#?}");
            let directory = out.directory.clone().unwrap();
            let below = directory.strip_prefix(&top).unwrap().display().to_string();
            let found = (out.stdout.clone(), out.outcome.status.code().unwrap(), below);
            let (stdout, status, place) = &expected[number];
            let wanted = (stdout.clone(), *status, place.trim_start_matches('/').to_owned());
            assert_eq!(found, wanted, "snippet {number} of {:#?}", &snippets[..=number]);
        }
    }
}
