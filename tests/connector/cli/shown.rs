//! `kennel connector check`, and help.

use serde_json::{Value, json};

use super::{Home, told};
use crate::support::{NOTHING, module};

const MANIFEST: &str = r#"
[connector]
name = "mail"
version = "1.2"
publisher = "Example"
[capabilities.network]
hosts = ["API.example.com:443"]
[capabilities.credential]
kind = "api_key"
header = "X-Key"
format = "key {key}"
[capabilities.credential.oauth2]
url = "https://example.com"
[capabilities.limits]
memory_bytes = 1048576
wall_seconds = 7
[capabilities.spawn]
programs = [{ path = "/usr/bin/git" }]
credential_env_keys = ["GIT_TOKEN"]
fs_read = ["~/work"]
fs_write = ["~/work/out"]
[capabilities.spawn.operations]
log = "git log [-n {count}]"
"#;

const HTTP: &str = r#"(import "aileron_host" "http_request" (func (param i32 i32) (result i32)))"#;
const SPAWN: &str = r#"(import "aileron_host" "spawn_op" (func (param i32 i32 i32 i32) (result i32)))"#;

const CHECK: [&str; 4] = ["check", "c.wasm", "--manifest", "m.toml"];

#[test]
fn check_says_what_a_connector_could_do() {
    for home in Home::for_all(MANIFEST, &module(&format!("{HTTP}{SPAWN}"), "", "")) {
        let (status, stdout, stderr) = told(&home.output(&CHECK));
        assert_eq!((status, &*stderr), (Some(0), ""));
        let expected = "  connector            mail 1.2 by Example\n  \
            program              core module\n  \
            imports              wasi_snapshot_preview1: fd_read, fd_write, proc_exit\n  \
            imports              aileron_host: http_request, spawn_op\n  \
            requests             to api.example.com:443\n  \
            credential           api_key, sent as `X-Key: key {key}` in requests that ask for it, over https\n  \
            spawns               /usr/bin/git\n  \
            operation            log: git log [-n {count}]\n  \
            credentials          GIT_TOKEN\n  \
            may read             ~/work\n  \
            may write            ~/work/out\n  \
            may reach            api.example.com:443\n  \
            limits of a call     1M of memory, 7 s\n";
        assert_eq!(stdout, expected);
    }
}

#[test]
fn check_tells_what_a_connector_cannot_use() {
    let (status, stdout, _) = told(&Home::with(MANIFEST, &module("", "", "")).output(&CHECK));
    assert_eq!(status, Some(0));
    for said in [
        "requests             none, although the manifest grants api.example.com:443\n",
        "credential           api_key, which nothing uses\n",
        "spawns               none, although the manifest grants /usr/bin/git\n",
    ] {
        assert!(stdout.contains(said), "{stdout}");
    }
    assert!(!stdout.contains("GIT_TOKEN"), "{stdout}");
}

#[test]
fn check_fails_if_the_manifest_does_not_cover_an_import() {
    let home = Home::with(NOTHING, &module(&format!("{HTTP}{SPAWN}"), "", ""));
    let (status, stdout, stderr) = told(&home.output(&CHECK));
    assert_eq!(status, Some(125));
    let first = "aileron_host.http_request: the manifest has no capabilities.network.hosts\n";
    assert!(stdout.contains(&format!("not covered          {first}")), "{stdout}");
    assert!(
        stdout.contains("not covered          aileron_host.spawn_op: the manifest has no capabilities"),
        "{stdout}"
    );
    assert!(
        stderr.starts_with(&format!("kennel: test imports {first}kennel: hint: if the connector may")),
        "{stderr}"
    );
    // One that nobody offers.
    let home = Home::new(&module(r#"(import "env" "system" (func (param i32) (result i32)))"#, "", ""));
    let (status, _, stderr) = told(&home.output(&CHECK));
    assert_eq!(status, Some(125));
    assert!(stderr.contains("unknown import: `env::system`"), "{stderr}");
}

#[test]
fn check_as_json_has_everything() {
    let home = Home::with(MANIFEST, &module(HTTP, "", ""));
    let (status, stdout, _) = told(&home.output(&[&CHECK[..], &["--json"]].concat()));
    assert_eq!(status, Some(0));
    let expected = json!({
        "name": "mail", "version": "1.2", "publisher": "Example", "kind": "core module",
        "imports": ["wasi_snapshot_preview1.fd_read", "wasi_snapshot_preview1.fd_write",
            "wasi_snapshot_preview1.proc_exit", "aileron_host.http_request"],
        "missing": [], "can_request": true, "can_spawn": false, "failure": null,
        "grants": {
            "hosts": ["api.example.com:443"],
            "credential": {"kind": "api_key", "header": "X-Key", "format": "key {key}"},
            "programs": [{"path": "/usr/bin/git", "hash": null}],
            "operations": {"log": "git log [-n {count}]"},
            "variables": [], "credential_variables": ["GIT_TOKEN"],
            "read": ["~/work"], "write": ["~/work/out"], "memory_bytes": 1048576, "wall_seconds": 7,
        },
    });
    assert_eq!(serde_json::from_str::<Value>(&stdout).unwrap(), expected);
    let home = Home::with(NOTHING, &module(HTTP, "", ""));
    let (status, stdout, _) = told(&home.output(&[&CHECK[..], &["--json"]].concat()));
    let found: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(status, Some(125));
    assert_eq!(found["failure"]["class"], "load_failed");
    assert_eq!(found["missing"][0]["import"], "aileron_host.http_request");
}

#[test]
fn help_is_there() {
    let home = Home::new(b"");
    for (words, said) in [
        (&["--help"][..], &["check", "run", "compile", "Examples:"][..]),
        (&["run", "-h"], &["--args-json", "--credential", "Exit status: 0 if the operation gave its output"]),
        (&["run", "--help"], &["The exit status is then 124", "--no-cache"]),
        (&["check", "--help"], &["Exit status: 0 if the program loads"]),
        (&["compile", "--help"], &["Exit status: 0 if the code of every program is there"]),
    ] {
        let (status, stdout, stderr) = told(&home.output(words));
        assert_eq!((status, &*stderr), (Some(0), ""));
        said.iter().for_each(|said| assert!(stdout.contains(said), "{said}: {stdout}"));
    }
}
