//! A day of an agent's work through one session, and the same without a sandbox: same outputs, same statuses,
//! same files.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use kennel::Session;
use tokio::runtime::Runtime;

/// The parts of a round. The first word names the program; if it is not installed, both runs leave the part
/// out.
const ROUND: &[(&str, &str)] = &[
    (
        "sh",
        "mkdir -p src && for n in 1 2 3 4 5; do echo \"line $n of $ROUND\" >> src/notes.txt; done; wc -l src/notes.txt",
    ),
    ("grep", "grep -rn 'line 3' src | sort"),
    (
        "git",
        "echo c/target > .gitignore; git init -q . 2>/dev/null; git add -A && git -c user.name=a -c user.email=a@b commit -qm \"round $ROUND\" && git log --format=%s | head -3",
    ),
    ("git", "git status --short; git diff HEAD --stat; git ls-files | sort"),
    ("git", "git rev-parse --verify -q no-such-branch; echo status $?"),
    ("python3", "python3 -c 'import json,sys; print(json.dumps({str(n): n*n for n in range(20)}))'"),
    (
        "python3",
        "printf 'import sys\\nprint(sum(map(int, sys.stdin)))\\n' > src/sum.py; seq 100 | python3 src/sum.py",
    ),
    ("python3", "python3 -c 'raise SystemExit(7)'; echo status $?"),
    (
        "gcc",
        "printf '#include <stdio.h>\\nint main(void) { printf(\"%%d\\\\n\", 6 * 7); }\\n' > src/a.c && gcc -O1 -o a.out src/a.c && ./a.out",
    ),
    ("gcc", "gcc -c src/no-such-file.c -o /dev/null 2>/dev/null; echo status $?"),
    (
        "cargo",
        "mkdir -p c/src && printf '[package]\\nname = \"c\"\\nedition = \"2021\"\\n[workspace]\\n' > c/Cargo.toml && printf 'fn main() { println!(\"hello\"); }\\n' > c/src/main.rs && cd c && cargo run --offline --quiet",
    ),
    ("sed", "sed -i 's/line 2/LINE 2/' src/notes.txt && grep -c LINE src/notes.txt"),
    ("sh", "false; echo $?; cat no-such-file 2>&1; ls src"),
];

pub(crate) fn work(runtime: &Runtime, rounds: u32) {
    let (confined, bare) = (workspace(), workspace());
    let work: Vec<&str> =
        ROUND.iter().filter(|(tool, _)| is_there(tool)).map(|(_, script)| *script).collect();
    runtime.block_on(async {
        let session = Session::prepare(&crate::policy(confined.path())).await.expect("a session");
        for round in 0..rounds {
            for script in &work {
                let ours = in_session(&session, round, script).await;
                assert_eq!(ours, without(bare.path(), round, script), "round {round}: {script}");
            }
        }
        println!("{} commands", session.stats().served);
        session.shutdown().await;
    });
    let mut same = Command::new("diff");
    same.args(["-r", "--exclude=.git", "--exclude=target"]);
    let status = same.arg(confined.path()).arg(bare.path()).stdout(Stdio::null()).status();
    assert!(status.expect("diff").success(), "the same files");
}

fn workspace() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn is_there(tool: &str) -> bool {
    Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Status, standard output.
type Result = (Option<i32>, String);

async fn in_session(session: &Session, round: u32, script: &str) -> Result {
    let mut command = session.command("sh");
    let out = command.args(["-c", script]).env("ROUND", round.to_string()).output().await.expect("a command");
    (out.outcome.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
}

fn without(workspace: &Path, round: u32, script: &str) -> Result {
    let mut command = Command::new("sh");
    command.args(["-c", script]).env("ROUND", round.to_string()).current_dir(workspace).stdin(Stdio::null());
    let out = command.output().expect("a command");
    (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
}
