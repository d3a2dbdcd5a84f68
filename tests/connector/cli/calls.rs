//! A call: its arguments, its output, its exit status.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{Home, fails, told};
use crate::support::{NOTHING, echo, module, says};

const LOG: &str = r#"(import "aileron_host" "log" (func $log (param i32 i32 i32 i32)))"#;

/// Logs a text, and then does `start`.
fn logs(level: &str, text: &str, output: &str, start: &str) -> Vec<u8> {
    let (at, length) = (1024 + level.len(), text.len());
    let log = format!(
        "(call $log (i32.const 1024) (i32.const {}) (i32.const {at}) (i32.const {length}))",
        level.len()
    );
    let print = format!("(call $print (i32.const {}) (i32.const {}))", at + length, output.len());
    module(LOG, format!("{level}{text}{output}"), &format!("{log} {print} {start}"))
}

#[test]
fn output_goes_to_stdout_and_log_lines_to_stderr() {
    let program = logs("warn", "it is late", r#"{"output": {"b": [1, {}], "a": "é"}}"#, "");
    for home in Home::for_all(NOTHING, &program) {
        let (status, stdout, stderr) = told(&home.run(&["--json", "r.json"]));
        assert_eq!((status, &*stderr), (Some(0), "kennel: log: warn: it is late\n"));
        assert_eq!(stdout, "{\n  \"a\": \"é\",\n  \"b\": [\n    1,\n    {}\n  ]\n}\n");
        let report: Value = serde_json::from_str(&home.read("r.json")).unwrap();
        let expected = json!({
            "output": {"a": "é", "b": [1, {}]},
            "logs": [{"level": "warn", "message": "it is late"}],
            "failure": null,
        });
        assert_eq!(report, expected);
        // Again, from the cache; without the log.
        assert_eq!(home.kept().len(), 1);
        assert_eq!(told(&home.run(&["-q"])), (Some(0), stdout, String::new()));
    }
    let (status, stdout, stderr) = told(&Home::new(&says("")).run(&[]));
    assert_eq!((status, &*stdout, &*stderr), (Some(0), "", ""), "no output");
}

#[test]
fn arguments_are_texts_or_the_members_of_a_json_object() {
    let home = Home::new(&echo());
    home.write("a.json", "{\"n\": 3, \"list\": [null]}");
    for (words, expected) in [
        (&[][..], json!({})),
        (&["--arg", "a=b=c", "--arg", "n=3", "--arg", "e="], json!({"a": "b=c", "n": "3", "e": ""})),
        (&["--args-json", "{\"n\": 3.5}", "--arg", "a=b"], json!({"n": 3.5, "a": "b"})),
        (&["--args-json", " {}"], json!({})),
        (&["--args-json", "a.json"], json!({"n": 3, "list": [null]})),
    ] {
        let (status, stdout, stderr) = told(&home.run(words));
        assert_eq!(status, Some(0), "{stderr}");
        let output: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(output["in"], json!({"op": "op", "args": expected}), "{words:?}");
    }
    let words = ["run", "c.wasm", "list", "--manifest", "m.toml", "--args-json", "-"];
    let mut kennel = home.kennel(&words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    kennel.stdin.take().unwrap().write_all(b"{\"from\": \"stdin\"}").unwrap();
    let output: Value = serde_json::from_slice(&kennel.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(output["in"], json!({"op": "list", "args": {"from": "stdin"}}));
}

#[test]
fn arguments_that_are_no_object_are_refused() {
    let home = Home::new(&echo());
    home.write("list.json", "[1]");
    home.write("bad.json", "{\"a\": \"secret");
    for (words, said) in [
        (&["--args-json", "list.json"][..], "--args-json `list.json`: expected a JSON object"),
        (&["--args-json", "bad.json"], "--args-json `bad.json`: not valid JSON at line 1"),
        (&["--args-json", "{\"a\": secret}"], "--args-json `{…}`: not valid JSON at line 1 column"),
        (&["--args-json", "-"], "--args-json `-`: not valid JSON"),
        (&["--args-json", "none.json"], "read arguments from none.json: No such file"),
        (&["--args-json", "{\"a\": 1}", "--arg", "a=2"], "--arg `a`: is given twice"),
        (&["--arg", "a=2", "--arg", "a=2"], "--arg `a`: is given twice"),
        (&["--memory", "x"], "--memory"),
        (&["--allow", "x"], "allowed host x: the port is missing"),
        (&["--allow-address", "10.0.0.0/99"], "allow_addresses"),
        (&["--ca", "list.json"], "read the certificates in list.json: it has no certificate"),
    ] {
        let output = home.run(words);
        let (status, stdout, stderr) = told(&output);
        assert_eq!((status, &*stdout), (Some(125), ""), "{words:?}: {stderr}");
        assert!(stderr.contains(said) && !stderr.contains("secret"), "{words:?}: {stderr}");
    }
    let (_, _, stderr) = told(&home.run(&["--arg", "a"]));
    assert!(stderr.contains("write NAME=VALUE"), "{stderr}");
}

#[test]
fn the_status_tells_whose_fault_it_is() {
    let denied = r#"{"url": "http://a.example/"}"#;
    let request = format!("(drop (call $request (i32.const 1024) (i32.const {})))", denied.len());
    let http = r#"(import "aileron_host" "http_request" (func $request (param i32 i32) (result i32)))"#;
    let hosts =
        "[connector]\nname = 'test'\n[capabilities.network]\nhosts = ['a.example:80', 'b.example:80']";
    let grow = "(if (i32.eq (memory.grow (i32.const 100)) (i32.const -1)) (then unreachable))";
    let reported = r#"{"error": {"class": "not_found", "message": "no such mail"}}"#;
    let (spin, trap) = ("(loop $again (br $again))", "unreachable");
    for (manifest, program, words, code, said, class) in [
        (NOTHING, says(reported), &[][..], 1, &["kennel: not_found: no such mail\n"][..], "runtime_error"),
        (NOTHING, says("x"), &[], 1, &["kennel: its output is not {\"output\": {…}}"], "runtime_error"),
        (NOTHING, module("", "", trap), &[], 1, &["kennel: the program trapped: "], "runtime_error"),
        (
            NOTHING,
            module("", "", spin),
            &["--timeout", "100ms"],
            124,
            &["kennel: the call took longer than 100ms\n", "hint: give the call more time: --timeout TIME"],
            "resource_limit_exceeded",
        ),
        (
            NOTHING,
            module("", "", grow),
            &["--memory", "1M"],
            125,
            &[
                "kennel: the program needs more memory than 1048576 bytes\n",
                "hint: give the call more memory",
            ],
            "resource_limit_exceeded",
        ),
        (
            NOTHING,
            module(http, "", ""),
            &[],
            125,
            &[
                "kennel: test imports aileron_host.http_request: the manifest has no capabilities.network.hosts\n",
            ],
            "load_failed",
        ),
        (
            hosts,
            module(http, denied, &request),
            &["--allow", "b.example:80"],
            125,
            &[
                "kennel: request to a.example:80: the call does not grant this host\n",
                "hint: if this call may",
            ],
            "capability_denied",
        ),
    ] {
        let home = Home::with(manifest, &program);
        let output = home.run(&[words, &["--json", "r.json"]].concat());
        fails(&output, code, said);
        let report: Value = serde_json::from_str(&home.read("r.json")).unwrap();
        assert_eq!((&report["output"], &report["failure"]["class"]), (&Value::Null, &json!(class)));
        assert_eq!(report.as_object().unwrap().len(), 3);
    }
}

#[test]
fn nothing_that_a_connector_says_is_obeyed_by_a_terminal_or_imitates_kennel() {
    let text = "a\nkennel: all is well\u{1b}[2J\u{9b}2J\u{202e}";
    let output = r#"{"output": {"\u001b]0;x\u0007": "\u009b2J\u202e\u007f"}}"#;
    let home = Home::new(&logs("info", text, output, ""));
    let (status, stdout, stderr) = told(&home.run(&[]));
    assert_eq!(status, Some(0));
    assert_eq!(stdout, "{\n  \"\\u001b]0;x\\u0007\": \"\\u009b2J\\u202e\\u007f\"\n}\n");
    assert_eq!(stderr, "kennel: log: info: a\\nkennel: all is well\\u{1b}[2J\\u{9b}2J\\u{202e}\n");
    let error = r#"{"error": {"class": "\u001b[2J", "message": "\nkennel: all is well\u009b"}}"#;
    fails(&Home::new(&says(error)).run(&[]), 1, &["kennel: \\u{1b}[2J: \\nkennel: all is well\\u{9b}\n"]);
    let name = NOTHING.replace("'test'", "\"a\\u001b[2J\\nkennel: x\"");
    fails(&Home::with(&name, b"").run(&[]), 125, &["kennel: a\\u{1b}[2J\\nkennel: x cannot be loaded"]);
}

#[test]
fn a_signal_ends_the_call() {
    // Its line says that the call has begun.
    for home in Home::for_all(NOTHING, &logs("info", "begun", "", "(loop $again (br $again))")) {
        for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
            let words = ["run", "c.wasm", "op", "--manifest", "m.toml", "--timeout", "5m"];
            let mut kennel = home.kennel(&words).stderr(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            std::io::BufRead::read_line(
                &mut std::io::BufReader::new(kennel.stderr.take().unwrap()),
                &mut line,
            )
            .unwrap();
            assert_eq!(line, "kennel: log: info: begun\n");
            let start = Instant::now();
            kill(Pid::from_raw(kennel.id().cast_signed()), signal).unwrap();
            assert_eq!(kennel.wait().unwrap().code(), Some(code));
            assert!(start.elapsed() < Duration::from_secs(60));
        }
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let home = Home::new(&says(r#"{"output": {"a": 1}}"#));
    let words = ["run", "c.wasm", "op", "--manifest", "m.toml"];
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = home.kennel(&words).stdout(full).output().unwrap();
    fails(&output, 125, &["kennel: write to stdout: No space left on device"]);
    // Somebody who has read enough is none.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(home.kennel(&words).stdout(writer).status().unwrap().code(), Some(0));
    fails(&home.run(&["--json", "none/r.json"]), 125, &["kennel: report none/r.json: No such file"]);
}

#[test]
fn operations_of_the_manifest_run_in_a_sandbox() {
    let spawn = r#"(import "aileron_host" "spawn_op" (func $op (param i32 i32 i32 i32) (result i32)))
        (import "aileron_host" "spawn_output_read" (func $out (param i32 i32 i32) (result i32)))"#;
    // {"output":{"said":"…"}} with what the program wrote; it writes no line end.
    let start = r#"(if (call $op (i32.const 1024) (i32.const 3) (i32.const 1027) (i32.const 16)) (then (call $exit (i32.const 9))))
        (call $print (i32.const 1043) (i32.const 19))
        (call $print (i32.const 8192) (call $out (i32.const 0) (i32.const 8192) (i32.const 1000)))
        (call $print (i32.const 1062) (i32.const 3))"#;
    let data = r#"say{"word": "hello"}{"output":{"said":""}}"#;
    let data = data.replace(r#"{"word": "hello"}"#, r#"{"word":"hello"}"#);
    let manifest = "[connector]\nname = 'test'\n[capabilities.spawn]\n\
        programs = [{ path = '/usr/bin/printf' }, { path = '/usr/bin/true' }]\n\
        [capabilities.spawn.operations]\nsay = '/usr/bin/printf %s {word}'";
    for home in Home::for_all(manifest, &module(spawn, data, start)) {
        let (status, stdout, stderr) = told(&home.run(&[]));
        assert_eq!((status, &*stdout), (Some(0), "{\n  \"said\": \"hello\"\n}\n"), "{stderr}");
        let narrowed = home.run(&["--program", "true", "-q"]);
        fails(&narrowed, 125, &["kennel: program /usr/bin/printf: ", "hint: if this call may have that"]);
        assert_eq!(home.run(&["--program", "printf"]).status.code(), Some(0));
    }
}
