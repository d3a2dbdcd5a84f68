//! Credentials reach the host and nothing else; programs of the manifest cannot redirect what Kennel reads
//! and writes.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::symlink;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use super::{Home, fails, files, told};
use crate::support::{module, says};

const SECRET: &str = "hunter2-secret";

/// A server that tells the header `X-Key` of each request.
fn server() -> (SocketAddr, Receiver<Option<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (tell, told) = channel();
    thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            let lines = BufReader::new(&connection).lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let key =
                head.iter().find_map(|line| line.to_lowercase().strip_prefix("x-key: ").map(str::to_owned));
            let _ = tell.send(key);
            let _ =
                write!(&connection, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        }
    });
    (at, told)
}

/// Makes two requests with the credential, and fails if one of them does.
fn asks(at: SocketAddr) -> Vec<u8> {
    let request = format!(r#"{{"url": "http://{at}/x", "credential": "api_key"}}"#);
    let import = r#"(import "aileron_host" "http_request" (func $request (param i32 i32) (result i32)))"#;
    let once =
        format!("(if (call $request (i32.const 1024) (i32.const {})) (then unreachable))", request.len());
    module(import, request, &once.repeat(2))
}

fn manifest(at: SocketAddr) -> String {
    format!(
        "[connector]\nname = 'test'\n[capabilities.network]\nhosts = ['{at}']\n\
         [capabilities.credential]\nkind = 'api_key'\nheader = 'X-Key'\nformat = 'k {{key}}'"
    )
}

#[test]
fn a_credential_reaches_the_host_and_nothing_else() {
    let (at, told_keys) = server();
    for home in Home::for_all(&manifest(at), &asks(at)) {
        home.write("key", format!("{SECRET}\n"));
        let words = ["run", "c.wasm", "op", "--manifest", "m.toml", "--json", "r.json", "--audit", "a.log"];
        let from_file = home.output(&[&words[..], &["--credential", "api_key=key"]].concat());
        let from_variable = home.kennel(&words).env("api_key", SECRET).output().unwrap();
        for output in [from_file, from_variable] {
            assert_eq!(told(&output), (Some(0), String::new(), String::new()));
            for _ in 0..2 {
                assert_eq!(told_keys.recv().unwrap(), Some(format!("k {SECRET}")));
            }
        }
        for file in files(&home.at("")).iter().filter(|file| file.is_file() && !file.ends_with("key")) {
            let text = String::from_utf8_lossy(&fs::read(file).unwrap()).into_owned();
            assert!(!text.contains("hunter2"), "{}", file.display());
        }
        assert!(home.read("a.log").lines().count() > 3, "{}", home.read("a.log"));
    }
}

#[test]
fn a_credential_that_is_missing_or_wrong_is_named() {
    let (at, told_keys) = server();
    let home = Home::with(&manifest(at), &asks(at));
    fails(
        &home.run(&[]),
        125,
        &[
            "kennel: credential api_key is required and was not given\nkennel: hint: give it to",
            "--credential",
        ],
    );
    home.write("key", SECRET);
    home.write("lines", format!("{SECRET}\r\nx"));
    for (words, said) in [
        (&["--credential", "other=key"][..], "--credential `other`: it takes no credential of that name"),
        (&["--credential", "api_key=key", "--credential", "api_key=key"], "`api_key`: is given twice"),
        (&["--credential", "api_key=none"], "credential api_key: none: No such file"),
        (&["--credential", "api_key=lines"], "credential api_key: its value cannot be in a header"),
    ] {
        fails(&home.run(words), 125, &[said]);
    }
    assert!(told_keys.try_recv().is_err(), "nobody came");
}

/// Programs of this manifest can write to `out`.
const WRITES: &str = "[connector]\nname = 'test'\n[capabilities.credential]\nkind = 'api_key'\n\
    [capabilities.spawn]\nprograms = [{ path = '/bin/true' }]\nfs_write = ['~/out']";

fn writable_home() -> Home {
    let home = Home::with(WRITES, &says(r#"{"output": {}}"#));
    fs::create_dir(home.at("out")).unwrap();
    home.write("key", SECRET);
    symlink(home.at("key"), home.at("out/link")).unwrap();
    fs::copy(home.at("c.wasm"), home.at("out/c.wasm")).unwrap();
    home.write("out/args.json", "{}");
    home
}

#[test]
fn what_programs_could_replace_is_not_read_or_written() {
    let home = writable_home();
    let refused = |words: &[&str], what: &str| {
        let said = "programs could replace it, because it is in fs_write or is reached through it\nkennel: hint: keep";
        fails(&home.output(words), 125, &[&format!("kennel: {what} "), said]);
    };
    let with = |words: &[&'static str]| [&["run", "c.wasm", "op", "--manifest", "m.toml"], words].concat();
    refused(&with(&["--credential", "api_key=out/link"]), "credential file");
    refused(&with(&["--args-json", "out/args.json"]), "file of arguments");
    refused(&with(&["--ca", "out/ca.pem"]), "file of certificates");
    refused(&with(&["--audit", "out/log"]), "audit log");
    refused(&with(&["--json", "out/below/r.json"]), "directory of the report");
    refused(&["run", "out/c.wasm", "op", "--manifest", "m.toml"], "connector");
    assert!(!home.at("out/log").exists());
    assert_eq!(
        told(&home.run(&["--credential", "api_key=key", "-q"])).0,
        Some(0),
        "what is elsewhere is read"
    );
}

#[test]
fn code_is_not_kept_where_programs_could_write() {
    let manifest = WRITES.replace("~/out", "~/.cache");
    let home = Home::with(&manifest, &says(r#"{"output": {}}"#));
    let (status, _, stderr) = told(&home.run(&[]));
    assert_eq!(status, Some(0), "{stderr}");
    let said = "kennel: note: cache: compiled code is not kept: compiled code ";
    assert!(stderr.starts_with(said) && stderr.contains("fs_write"), "{stderr}");
    assert!(home.kept().is_empty(), "{:?}", home.kept());
}

/// Who decides which servers are trusted gets the credential.
#[test]
fn the_environment_names_no_certificates_that_programs_could_replace() {
    let home = writable_home();
    home.write("m.toml", format!("{WRITES}\n[capabilities.network]\nhosts = ['a.example:443']"));
    for name in ["SSL_CERT_FILE", "SSL_CERT_DIR"] {
        let words = ["run", "c.wasm", "op", "--manifest", "m.toml", "-q"];
        let run = |place: &str| home.kennel(&words).env(name, home.at(place)).output().unwrap();
        let said = "kennel: certificates of the environment ";
        fails(&run("out/ca"), 125, &[said, "programs could replace it, because it is in fs_write"]);
        assert_eq!(run("ca").status.code(), Some(0), "{name}");
    }
}
