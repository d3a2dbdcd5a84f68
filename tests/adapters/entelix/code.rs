//! Code in four languages.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use entelix_core::{
    Error, Result,
    context::ExecutionContext,
    sandbox::{CodeSpec, CommandOutput, SandboxLanguage},
};
use kennel::{Policy, Profile};

use super::{Shared, sandbox, says, with_policy};
use crate::support::{has, require, workspace};

async fn code(sandbox: &Shared, language: SandboxLanguage, source: &str) -> Result<CommandOutput> {
    sandbox.run_code(CodeSpec::new(language, source), &ExecutionContext::new()).await
}

/// Runs source that must succeed. Returns its stdout, trimmed.
async fn writes(sandbox: &Shared, language: SandboxLanguage, source: &str) -> String {
    let output = code(sandbox, language, source).await.unwrap();
    assert_eq!(output.exit_code, 0, "{source}: {}", output.stderr_lossy());
    output.stdout_lossy().trim_end().to_owned()
}

/// Programs in the place of interpreters. Each prints its arguments and its input.
async fn with_stand_ins(workspace: &Path, programs: &[(&str, &str)]) -> Shared {
    let bin = workspace.join("bin");
    fs::create_dir(&bin).unwrap();
    for (name, version) in programs {
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = --version ] && {{ echo {version}; exit; }}\necho \"{name} $*\"\nPATH=/usr/bin:/bin cat\n"
        );
        fs::write(bin.join(name), script).unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    with_policy(&Policy::profile(Profile::RepoWrite, workspace).set_env("PATH", bin.to_str().unwrap())).await
}

#[tokio::test]
async fn bash_is_bash() {
    require!(has("bash"), "bash");
    let dir = workspace();
    let sandbox = sandbox(dir.path()).await;
    let source =
        "a=(1 2 3)\nfor x in \"${a[@]}\"; do\n  echo \"$x\"\ndone | tail -1\nread -r line; echo \"[$line]\"";
    assert_eq!(writes(&sandbox, SandboxLanguage::Bash, source).await, "3\n[]");
    let output = code(&sandbox, SandboxLanguage::Bash, "echo out; cat; echo err >&2; exit 3").await.unwrap();
    assert_eq!((output.exit_code, &*output.stdout, &*output.stderr), (3, &b"out\n"[..], &b"err\n"[..]));
    assert_eq!(writes(&sandbox, SandboxLanguage::Bash, "").await, "");
    let wrong = code(&sandbox, SandboxLanguage::Bash, "if").await.unwrap();
    assert!(wrong.exit_code != 0 && wrong.stderr_lossy().contains("syntax error"), "{wrong:?}");
}

#[tokio::test]
async fn source_is_in_no_argument_and_no_file() {
    require!(has("bash") && has("python3"), "bash and python3");
    let dir = workspace();
    let sandbox = sandbox(dir.path()).await;
    let bash = "tr '\\0' ' ' < /proc/$$/cmdline; find / -xdev -type f -newer /proc/1 2>/dev/null; : s3cret";
    let said = writes(&sandbox, SandboxLanguage::Bash, bash).await;
    assert!(said.starts_with("bash ") && !said.contains("s3cret"), "{said}");
    let python = "print(open('/proc/self/cmdline').read()) # s3cret";
    let said = writes(&sandbox, SandboxLanguage::Python, python).await;
    assert!(said.contains("python3") && !said.contains("s3cret"), "{said}");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}

#[tokio::test]
async fn source_of_any_length_goes_in() {
    require!(has("bash") && has("python3"), "bash and python3");
    let dir = workspace();
    let sandbox = sandbox(dir.path()).await;
    let bash = format!("{}\necho end", ": comment\n".repeat(300_000));
    assert_eq!(writes(&sandbox, SandboxLanguage::Bash, &bash).await, "end");
    let python = format!("{}\nprint('end')", "# comment\n".repeat(300_000));
    assert_eq!(writes(&sandbox, SandboxLanguage::Python, &python).await, "end");
}

#[tokio::test]
async fn python_is_python_3() {
    require!(has("python3"), "python3");
    let dir = workspace();
    let sandbox = sandbox(dir.path()).await;
    let source = "import sys\nprint(sys.version_info[0], repr(sys.stdin.read()))\nopen('made', 'w').write('x')\nsys.exit(4)";
    let output = code(&sandbox, SandboxLanguage::Python, source).await.unwrap();
    assert_eq!((output.exit_code, output.stdout_lossy().trim_end()), (4, "3 ''"), "{output:?}");
    assert_eq!(says(&sandbox, "cat made").await, "x");
    let output = code(&sandbox, SandboxLanguage::Python, "1 / 0").await.unwrap();
    assert!(output.exit_code == 1 && output.stderr_lossy().contains("ZeroDivisionError"), "{output:?}");
}

#[tokio::test]
async fn javascript_is_node() {
    require!(has("node"), "node");
    let dir = workspace();
    let sandbox = sandbox(dir.path()).await;
    let source =
        "const fs = require('fs'); console.log([1, 2].map(x => x * 2).join(), fs.readFileSync(0).length)";
    assert_eq!(writes(&sandbox, SandboxLanguage::JavaScript, source).await, "2,4 0");
    let output = code(&sandbox, SandboxLanguage::JavaScript, "process.exit(5)").await.unwrap();
    assert_eq!(output.exit_code, 5);
}

/// The version of node on PATH, if there is one.
fn node() -> Option<(u32, u32)> {
    let output = std::process::Command::new("node").arg("--version").output().ok()?;
    let version = String::from_utf8(output.stdout).ok()?;
    let mut numbers = version.trim_start_matches('v').split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[tokio::test]
async fn typescript_runs_or_the_error_names_what_is_missing() {
    let dir = workspace();
    let sandbox = sandbox(dir.path()).await;
    let source = "interface Point { x: number }\nconst at: Point = { x: 4 };\nconst twice = (of: number): number => of * 2;\n\
                  console.log(twice(at.x));";
    if node() >= Some((22, 6)) || ["tsx", "ts-node", "deno", "bun"].iter().any(|program| has(program)) {
        for _ in 0..2 {
            assert_eq!(writes(&sandbox, SandboxLanguage::TypeScript, source).await, "8");
        }
        return;
    }
    crate::support::skip(module_path!(), &format!("nothing runs TypeScript here, node is {:?}", node()));
    let said =
        code(&sandbox, SandboxLanguage::TypeScript, source).await.expect_err("nothing runs it").to_string();
    assert!(said.contains("node 22") && said.contains("tsx") && said.contains("bun"), "{said}");
}

#[tokio::test]
async fn typescript_uses_the_best_interpreter() {
    let all = [("node", "v20.0.0"), ("tsx", "1"), ("ts-node", "1"), ("deno", "1"), ("bun", "1")];
    for (programs, call) in [
        (&[("node", "v22.10.0"), ("tsx", "1")][..], "node --no-warnings --experimental-strip-types -"),
        (&[("node", "v24.1.0"), ("tsx", "1")], "node -"),
        (&all, "tsx /dev/shm/code.ts"),
        (&all[2..], "ts-node --transpileOnly"),
        (&all[3..], "deno run --quiet --allow-all --ext=ts -"),
        (&all[4..], "bun run -"),
    ] {
        let dir = workspace();
        let sandbox = with_stand_ins(dir.path(), programs).await;
        for _ in 0..2 {
            let said = writes(&sandbox, SandboxLanguage::TypeScript, "the source").await;
            assert!(said.starts_with(call), "{call}: {said}");
            assert!(said.ends_with("\nthe source") || call.starts_with("tsx"), "{call}: {said}");
        }
    }
}

#[tokio::test]
async fn missing_interpreter_is_named() {
    let dir = workspace();
    let sandbox = with_stand_ins(dir.path(), &[]).await;
    for (language, words) in [
        (SandboxLanguage::Bash, &["bash"][..]),
        (SandboxLanguage::Python, &["python3"]),
        (SandboxLanguage::JavaScript, &["node"]),
        (SandboxLanguage::TypeScript, &["node 22", "tsx", "ts-node", "deno", "bun"]),
    ] {
        match code(&sandbox, language, "x").await {
            Err(Error::InvalidRequest(said)) => {
                assert!(words.iter().all(|word| said.contains(word)), "{said}");
                assert!(said.contains("not in the sandbox"), "{said}");
            }
            other => panic!("{language:?}: {other:?}"),
        }
    }
    // An interpreter that is installed later is found.
    fs::write(dir.path().join("bin/bun"), "#!/bin/sh\necho bun\n").unwrap();
    fs::set_permissions(dir.path().join("bin/bun"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(writes(&sandbox, SandboxLanguage::TypeScript, "x").await, "bun");
}
