//! A table of programs, `programs.json`. Each is executed and run warm in the same session, and both have the
//! same output and the same end. A program whose name begins with `executed`, and those in [`EXECUTED`], need
//! a start of their own and get it, also if an interpreter waits.

use std::{collections::BTreeMap, fs, os::unix::fs::symlink};

use kennel::{Isolation, Output, Session, Start};
use serde::Deserialize;

use super::{SILENT, in_time, require_python, waiting};
use crate::support::World;

const PROGRAMS: &str = include_str!("programs.json");

/// Programs that are executed, and whose names do not say so.
const EXECUTED: [&str; 3] = ["no such script", "directory as program", "archive as program"];

/// Programs that show which modules were imported.
const ABOUT_MODULES: [&str; 5] = ["all modules", "debugger", "importers", "modules", "site"];

/// Programs that tell the difference.
const DIFFERENT: [&str; 1] = [
    // The calls of C that begin the program count for the limit of recursion: some five are missing.
    "deep traceback",
];

/// The files of the programs.
const FILES: &[(&str, &str)] = &[
    (
        "script.py",
        "import sys\nprint(sys.argv, __name__, __file__, __spec__ and __spec__.name, __package__, sorted(globals()), sys.path[0])\n",
    ),
    ("sub/script.py", "import sys\nprint(__file__, sys.path[0])\n"),
    ("package/__init__.py", ""),
    (
        "package/__main__.py",
        "import sys\nprint(sys.argv, __name__, __file__, __spec__.name, __package__, sys.path[0])\n",
    ),
    ("package/fails.py", "def f():\n    raise ValueError('p')\nf()\n"),
    ("fails.py", "import sys\ndef f():\n    raise ValueError('p')\nprint('before')\nf()\n"),
    ("broken.py", "x = 1\nprint(\n"),
    ("interrupt.py", "print('before')\nraise KeyboardInterrupt\n"),
    (
        "source.py",
        "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f), inspect.getsourcefile(f))\n",
    ),
    (
        "again.py",
        "import subprocess, sys\nprint(sys.argv, flush=True)\n\
         if len(sys.argv) < 3: subprocess.run([sys.executable, *sys.argv, 'x', 'y'])\n",
    ),
    (
        "cases.py",
        "import unittest\nclass Cases(unittest.TestCase):\n    def test_one(self): '>>> 1 + 1'\n    \
         def test_two(self): self.assertEqual(1, 2)\n",
    ),
    (
        "many.py",
        "import multiprocessing, sys\ndef double(x): return 2 * x\nif __name__ == '__main__':\n    \
         with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool: print(pool.map(double, [1, 2, 3]))\n",
    ),
];

/// Makes the files of the programs that are no plain text.
const MAKE: &str = r"
import py_compile, zipfile
zipfile.ZipFile('archive.zip', 'w').writestr('__main__.py', 'import sys; print(sys.argv, __file__)')
py_compile.compile('script.py', 'compiled.pyc')
for name, text in {
    'bom.py': b'\xef\xbb\xbfprint(1)\n',
    'latin.py': b'# coding: latin-1\nprint(ascii(\'\xe9\'))\n',
    'crlf.py': b'print(1)\r\nif 1:\r\n\tprint(2)\r\n',
    'zero.py': b'print(1)\nprint(\'a\0b\')\n',
    'short.py': b'print(1)',
    'empty.py': b'',
}.items():
    with open(name, 'wb') as file: file.write(text)
";

#[derive(Deserialize)]
struct Row {
    name: String,
    args: Vec<String>,
    #[serde(default)]
    stdin: String,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

impl Row {
    fn is_executed(&self) -> bool {
        self.name.starts_with("executed") || EXECUTED.contains(&&*self.name)
    }

    async fn run(&self, session: &Session, python: &str, is_warm: bool) -> Output {
        let mut command = session.command(python);
        command.args(&self.args).warm(is_warm);
        for (name, value) in &self.env {
            command.env(name, value);
        }
        in_time(command.output_with_input(self.stdin.as_bytes())).await.expect("a command")
    }

    /// Runs it with an interpreter that waits. On a busy machine one may not answer in time.
    async fn run_warm(&self, session: &Session, python: &str) -> Output {
        loop {
            in_time(session.interpreters_started()).await;
            let output = self.run(session, python, true).await;
            if output.outcome.start.reason() != Some(SILENT) {
                return output;
            }
        }
    }
}

/// How it ended, and what it said, without the addresses of objects.
fn result(output: &Output) -> (String, String, String) {
    let text = |bytes: &[u8]| {
        let text = bytes.iter().map(|&byte| char::from(byte)).collect::<String>();
        let mut parts = text.split("0x");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| text + "0x" + part.trim_start_matches(|c: char| c.is_ascii_hexdigit()))
    };
    (output.outcome.status.to_string(), text(&output.stdout), text(&output.stderr))
}

/// A workspace with the files of the programs.
fn world(python: &str) -> World {
    let world = World::new();
    for (name, contents) in FILES {
        fs::create_dir_all(world.at(name).parent().unwrap()).unwrap();
        fs::write(world.at(name), contents).unwrap();
    }
    symlink("sub/script.py", world.at("link.py")).unwrap();
    let mut make = world.command(python);
    assert!(make.args(["-c", MAKE]).status().unwrap().success());
    world
}

async fn compare(isolation: Isolation, variables: &[(&str, &str)], modules: &[&str]) {
    let python = require_python!();
    let world = world(python);
    let policy = world.policy().set_env("LC_ALL", "C.UTF-8").isolation(isolation);
    let policy = variables.iter().fold(policy, |policy, (name, value)| policy.set_env(*name, *value));
    let session = waiting(policy, python, modules).await;
    let rows: Vec<Row> = serde_json::from_str(PROGRAMS).expect("a table");
    let mut different = Vec::new();
    for row in &rows {
        if !modules.is_empty() && ABOUT_MODULES.contains(&&*row.name) {
            continue;
        }
        let executed = row.run(&session, python, false).await;
        assert_eq!(executed.outcome.start, Start::default(), "{}", row.name);
        let warm = row.run_warm(&session, python).await;
        let start = &warm.outcome.start;
        assert_eq!(row.is_executed(), start.reason().is_some(), "{}: {start:?}", row.name);
        if result(&executed) != result(&warm) && !DIFFERENT.contains(&&*row.name) {
            different.push(format!("{}\n  {:?}\n  {:?}", row.name, result(&executed), result(&warm)));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[tokio::test]
async fn warm_programs_do_what_executed_ones_do_among_shared_processes() {
    compare(Isolation::Session, &[], &[]).await;
}

#[tokio::test]
async fn warm_programs_do_what_executed_ones_do_in_processes_of_their_own() {
    compare(Isolation::Command, &[], &[]).await;
}

/// With modules that do much at their import.
#[tokio::test]
async fn warm_programs_do_what_executed_ones_do_after_imports() {
    let modules = ["asyncio", "concurrent.futures", "decimal", "http.client", "json", "logging", "unittest"];
    compare(Isolation::Session, &[], &modules).await;
}

/// A policy may have variables that act when Python starts. They are the same for both.
#[tokio::test]
async fn warm_programs_do_what_executed_ones_do_with_variables_of_python() {
    let variables = [
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("PYTHONHASHSEED", "7"),
        ("PYTHONUNBUFFERED", "1"),
        ("PYTHONSAFEPATH", "1"),
        ("PYTHONIOENCODING", "latin-1:replace"),
        ("PYTHONWARNINGS", "error"),
    ];
    compare(Isolation::Session, &variables, &[]).await;
}
