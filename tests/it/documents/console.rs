//! Runs the console blocks of documents, and compares what they print. The tests of connectors compile this
//! file, too.

use std::{
    env,
    fs::{self, File},
    os::unix::{fs::symlink, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::{
        signal::{Signal, killpg},
        wait::{Id, WaitPidFlag, WaitStatus, waitid},
    },
    unistd::Pid,
};

use crate::support::{kennel_path, patient};

/// A fenced block of a document.
#[derive(Default)]
pub(super) struct Block {
    /// The word after the opening fence.
    pub(super) language: String,
    /// The number of its first line.
    pub(super) line: usize,
    pub(super) lines: Vec<String>,
    pub(super) prepare: String,
    pub(super) needs: Vec<String>,
}

/// A command of a console block and its expected output.
#[derive(Default)]
struct Step {
    line: usize,
    command: String,
    output: Vec<String>,
}

/// The directory of the documents. The second pass has a copy, because it may not be able to enter this
/// directory.
pub(super) fn root() -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    env::var_os("KENNEL_DOCUMENTS").map_or_else(|| sources.unwrap().to_owned(), PathBuf::from)
}

pub(super) fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The fenced blocks of a document, with the comments directly above them.
pub(super) fn blocks(file: &str) -> Vec<Block> {
    let text = read(file);
    let mut lines = text.lines().zip(1..);
    let (mut found, mut next) = (Vec::new(), Block::default());
    while let Some((line, number)) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            (next.language, next.line) = (language.to_owned(), number + 1);
            next.lines =
                lines.by_ref().map(|(line, _)| line.to_owned()).take_while(|line| line != "```").collect();
            found.push(std::mem::take(&mut next));
        } else if line == "<!-- prepare:" {
            let script = lines.by_ref().map(|(line, _)| line).take_while(|line| *line != "-->");
            next.prepare = script.collect::<Vec<_>>().join("\n");
        } else if let Some(needs) =
            line.strip_prefix("<!-- needs: ").and_then(|line| line.strip_suffix(" -->"))
        {
            next.needs = needs.split(", ").map(str::to_owned).collect();
        } else {
            let comment = !next.prepare.is_empty() || !next.needs.is_empty();
            assert!(!comment, "{file}:{number}: only a block may follow the comment above");
            assert!(!line.trim_start().starts_with("```"), "{file}:{number}: an indented block is not run");
        }
    }
    found
}

/// The commands of a console block.
fn steps(file: &str, block: &Block) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (line, number) in block.lines.iter().zip(block.line..) {
        let last = steps.last_mut();
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { line: number, command: command.to_owned(), output: Vec::new() });
            assert!(!command.contains("  #"), "{file}:{number}: a comment belongs into the text");
        } else {
            let last = last.unwrap_or_else(|| panic!("{file}:{number}: the block does not begin with `$ `"));
            match line.strip_prefix("> ") {
                Some(more) if last.output.is_empty() => last.command += &format!("\n{more}"),
                _ => last.output.push(line.clone()),
            }
        }
    }
    steps
}

/// Runs all console blocks of a document for which everything is here. Fails if an example hides in another
/// kind of block.
pub(super) fn examples_run(file: &str, is_provided: impl Fn(&mut Block) -> bool) {
    let mut wrong = String::new();
    for mut block in blocks(file) {
        if block.language == "console" {
            if is_provided(&mut block) {
                wrong += &differences(file, &block);
            }
        } else if ["", "sh", "bash", "shell"].contains(&&*block.language) {
            let shown = block.lines.iter().find(|line| line.trim_start_matches("$ ").starts_with("kennel "));
            if let Some(line) = shown {
                wrong += &format!("{file}:{}: not a console block, so nothing runs `{line}`\n", block.line);
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// Runs one block. Returns the lines where its output differs from the document.
fn differences(file: &str, block: &Block) -> String {
    let steps = steps(file, block);
    let (said, ended) = run(&block.prepare, &steps);
    let mut said = said.split(MARK);
    let prepared = said.next().unwrap_or_default();
    let mut wrong = String::new();
    for step in &steps {
        let got = said.next().unwrap_or("(it did not run)");
        let lines: Vec<&str> = got.lines().collect();
        let expected: Vec<&str> = step.output.iter().map(String::as_str).collect();
        if !lines_match(&expected, &lines) {
            let (command, expected) = (&step.command, step.output.join("\n"));
            wrong += &format!("{file}:{}: $ {command}\nexpected:\n{expected}\ngot:\n{got}\n", step.line);
        }
    }
    if !ended {
        wrong += &format!("{file}:{}: the block did not end in time\n", block.line);
    }
    if !wrong.is_empty() && !prepared.is_empty() {
        wrong += &format!("the preparation of line {} printed:\n{prepared}\n", block.line);
    }
    wrong
}

/// Bash prints this between two commands.
const MARK: char = '\u{1e}';

/// How long one block may take. One compiles a program of 18 megabytes, and builds may run beside it.
const LONGEST: Duration = Duration::from_secs(240);

/// Runs a block. Returns its output, and whether it ended in time. Ends all processes that it left running.
fn run(prepare: &str, steps: &[Step]) -> (String, bool) {
    let dir = tempfile::Builder::new().prefix("kennel-test-").tempdir_in("/tmp").unwrap();
    let place = |name: &str| dir.path().join(name);
    for name in ["bin", "run", "home", "home/project"] {
        fs::create_dir(place(name)).unwrap();
    }
    symlink(kennel_path(), place("bin/kennel")).unwrap();
    let mut script = format!("{prepare}\n");
    for step in steps {
        // `$?` is the status of the command before.
        script += &format!("__status=$?; printf '\\036'; (exit $__status)\n{}\n", step.command);
    }
    let output = File::create(place("output")).unwrap();
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", &script, "bash"]).current_dir(place("home/project")).process_group(0);
    in_environment(&mut bash, dir.path());
    bash.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
    let mut bash = bash.spawn().unwrap();
    let pid = Pid::from_raw(bash.id().try_into().unwrap());
    let start = Instant::now();
    // The block is reaped only after its group is killed: until then no other process can get the number.
    let waiting = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let is_running = || waitid(Id::Pid(pid), waiting).unwrap() == WaitStatus::StillAlive;
    while is_running() && start.elapsed() < patient(LONGEST) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let ended = !is_running();
    killpg(pid, Signal::SIGKILL).unwrap();
    bash.wait().unwrap();
    stop_sessions(dir.path());
    (String::from_utf8_lossy(&fs::read(place("output")).unwrap()).into_owned(), ended)
}

/// Gives a command the environment of a plain login, with HOME in `dir`.
fn in_environment(command: &mut Command, dir: &Path) {
    let path =
        format!("{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", dir.join("bin").display());
    command.env_clear().env("PATH", path).env("LC_ALL", "C.UTF-8").env("HOME", dir.join("home"));
    command.env("XDG_RUNTIME_DIR", dir.join("run"));
}

/// Stops the sessions that a block left running.
fn stop_sessions(dir: &Path) {
    if !dir.join("run/kennel").exists() {
        return;
    }
    let kennel = |arguments: &[&str]| {
        let mut kennel = Command::new(kennel_path());
        in_environment(&mut kennel, dir);
        kennel.arg("session").args(arguments).output().unwrap().stdout
    };
    let listed: serde_json::Value = serde_json::from_slice(&kennel(&["list", "--json"])).unwrap();
    for session in listed.as_array().unwrap() {
        kennel(&["stop", session["name"].as_str().unwrap()]);
    }
}

/// Whether lines are as expected; a line `…` stands for any number of lines.
fn lines_match(expected: &[&str], got: &[&str]) -> bool {
    match expected {
        [] => got.is_empty(),
        ["…", rest @ ..] => (0..=got.len()).any(|skipped| lines_match(rest, &got[skipped..])),
        [line, rest @ ..] => {
            got.first().is_some_and(|got| line_matches(line, got)) && lines_match(rest, &got[1..])
        }
    }
}

/// Whether a line is as expected; `…` stands for any text.
fn line_matches(expected: &str, got: &str) -> bool {
    match expected.split_once('…') {
        None => expected == got,
        Some((start, rest)) => got.strip_prefix(start).is_some_and(|got| {
            let mut ends = got.char_indices().map(|(at, _)| at).chain([got.len()]);
            ends.any(|at| line_matches(rest, &got[at..]))
        }),
    }
}

#[test]
fn output_is_compared() {
    let same = |expected: &str, got: &str| {
        lines_match(&expected.lines().collect::<Vec<_>>(), &got.lines().collect::<Vec<_>>())
    };
    assert!(same("", "") && same("a\nb", "a\nb") && same("…", "") && same("…\nb\n…", "a\nb\nb"));
    assert!(same("a … c…", "a b b c") && same("…a", "ba"));
    assert!(!same("", "a") && !same("a", "") && !same("a\nb", "a") && !same("…\nb", "a"));
    assert!(!same("a…c", "ab") && !same("a …", "a"));
    let step = |command: &str| Step { command: command.to_owned(), ..Step::default() };
    let steps = [step("echo a; echo b >&2; false"), step("echo $? $PWD"), step("greet"), step("sleep 9 &")];
    let (said, ended) = run("greet() { echo hello; }", &steps);
    assert!(ended);
    assert!(same("a\nb\n1 …/home/project\nhello", &said.replace(MARK, "")), "{said:?}");
}
