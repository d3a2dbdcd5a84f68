//! Kennel's own routes: a command with its files in one request, blobs, reports, changes.

use std::fs;
use std::io::Write;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::server::{Answer, STREAM, Server, events, start, token, wait_until};

fn run(server: &Server, body: &Value) -> Answer {
    server.ask("POST", "/v1/run", body)
}

/// The answer of a command that ran.
fn ran(server: &Server, body: &Value) -> Value {
    let answer = run(server, body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn sandboxes(server: &Server) -> usize {
    fs::read_dir(server.state().join("sandboxes")).unwrap().count()
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_command_runs_with_its_files_and_leaves_nothing() {
    let server = Server::start("");
    let answer = ran(
        &server,
        &json!({
            "argv": ["sh", "-c", "cat; cat in/a.txt > out.txt; printf '\\377' > raw; echo $X; pwd; echo no >&2; exit 3"],
            "stdin": { "text": "first\n" },
            "env": { "X": "y" },
            "files": [{ "path": "in/a.txt", "content": { "base64": "YWJj" } }],
            "outputs": ["out.txt", "raw", "missing"],
        }),
    );
    assert_eq!(answer["stdout"], json!({ "text": "first\ny\n/home/user\n" }));
    assert_eq!(answer["stderr"], json!({ "text": "no\n" }));
    let files = json!([
        { "path": "out.txt", "content": { "text": "abc" } },
        { "path": "raw", "content": { "base64": "/w==" } },
    ]);
    assert_eq!(answer["files"], files);
    let report = &answer["report"];
    assert_eq!((&report["ended"], &report["exit_code"]), (&json!("exited"), &json!(3)));
    assert_eq!((&report["stdout_bytes"], &report["truncated"]), (&json!(19), &json!(false)));
    wait_until("the sandbox ends with its command", || sandboxes(&server) == 0);
    assert_eq!(server.ask("GET", "/v2/sandboxes", &Value::Null).json(), json!([]));
}

/// Asks the sandbox's proxy for a host.
const CONNECT: &str = r"proxy=${https_proxy##*:}; exec 3<>/dev/tcp/127.0.0.1/${proxy%/}
    printf 'CONNECT other.example:443 HTTP/1.1\r\nHost: other.example:443\r\n\r\n' >&3; head -1 <&3";

/// A server whose sandboxes may connect to one host.
fn with_network() -> Server {
    let dir = tempfile::tempdir().unwrap().keep();
    let policy = dir.join("policy.toml");
    fs::write(&policy, "profile = 'repo-write'\n[network]\nallow = ['a.example:443']\n").unwrap();
    let server = Server::start(&format!("[template.base]\npolicy = '{}'", policy.display()));
    fs::remove_dir_all(dir).unwrap();
    server
}

#[test]
fn what_the_sandbox_refuses_is_in_the_report() {
    let server = with_network();
    let answer = ran(&server, &json!({ "argv": ["bash", "-c", CONNECT] }));
    assert!(answer["stdout"]["text"].as_str().unwrap().contains(" 403 "), "{answer}");
    assert_eq!(answer["report"]["denials"][0]["subject"], "other.example:443", "{answer}");
}

#[test]
fn a_program_that_cannot_start_has_a_report() {
    let server = Server::start("");
    let answer = ran(&server, &json!({ "argv": ["no-such-program"] }));
    let report = &answer["report"];
    assert_eq!((&report["ended"], &report["exit_code"]), (&json!("failed"), &json!(127)));
    assert!(report["failure"]["message"].as_str().unwrap().contains("no-such-program"));
}

#[test]
fn a_command_is_killed_when_its_time_is_over() {
    let server = Server::start("");
    let answer = ran(&server, &json!({ "argv": ["sh", "-c", "echo a; sleep 60"], "timeout": 0.3 }));
    assert_eq!(
        (&answer["report"]["ended"], &answer["stdout"]),
        (&json!("timed_out"), &json!({ "text": "a\n" }))
    );
}

#[test]
fn output_has_a_limit_and_the_report_says_how_much_there_was() {
    let server = Server::start("");
    let limits = json!({ "output": "1K" });
    let answer = ran(&server, &json!({ "argv": ["seq", "100000"], "limits": limits }));
    assert_eq!(answer["stdout"]["text"].as_str().unwrap().len(), 1024);
    assert_eq!(
        (&answer["report"]["stdout_bytes"], &answer["report"]["truncated"]),
        (&json!(588_895), &json!(true))
    );
}

#[test]
fn a_client_that_goes_away_takes_its_command_with_it() {
    let server = Server::start("");
    let body = json!({ "argv": ["sleep", "1000"], "timeout": 2000 }).to_string();
    let mut stream = server.connect();
    let head = format!(
        "POST /v1/run HTTP/1.1\r\nHost: x\r\nX-API-KEY: {}\r\nContent-Length: {}\r\n\r\n{body}",
        server.key,
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    wait_until("it runs", || sandboxes(&server) == 1);
    drop(stream);
    wait_until("it ends", || sandboxes(&server) == 0);
}

#[test]
fn a_request_can_only_narrow_its_template() {
    let server = Server::start("[template.base]\nlife = '5m'\nlimits = { memory = '256M' }");
    for (body, words) in [
        (json!({ "argv": [] }), "argv: a program"),
        (json!({ "argv": ["true"], "extra": 1 }), "unknown field `extra`"),
        (json!({ "argv": ["true"], "limits": { "extra": 1 } }), "unknown field `extra`"),
        (json!({ "argv": ["true"], "files": [{ "path": "a", "content": {} }] }), "the body"),
        (
            json!({ "argv": ["true"], "files": [{ "path": "a", "content": { "text": "", "base64": "" } }] }),
            "the body",
        ),
        (
            json!({ "argv": ["true"], "files": [{ "path": "", "content": { "text": "" } }] }),
            "files[0].path: missing",
        ),
        (json!({ "argv": ["true"], "stdin": { "base64": "!" } }), "stdin: base64"),
        (json!({ "argv": ["true"], "stdin": { "sha256": "../seed" } }), "stdin: sha256"),
        (
            json!({ "argv": ["true"], "timeout": 301 }),
            "timeout: 301 s is longer than 300 s, the limit of template base",
        ),
        (json!({ "argv": ["true"], "timeout": 0 }), "timeout: 0"),
        (
            json!({ "argv": ["true"], "limits": { "memory": "257M" } }),
            "limits.memory: 257M is more than 256M, the limit of template base",
        ),
        (
            json!({ "argv": ["true"], "limits": { "pids": 1_000_000 } }),
            "limits.pids: 1000000 is more than 8192",
        ),
        (
            json!({ "argv": ["true"], "network": { "allow": ["crates.io"] } }),
            "network: crates.io: the policy of template base",
        ),
        (json!([]), "the body"),
    ] {
        let answer = run(&server, &body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
        assert!(answer.message().contains(words), "{body}: {}", answer.message());
    }
    assert_eq!(run(&server, &json!({ "argv": ["true"], "template": "other" })).status, 404);
    let limits = json!({ "memory": "128M", "pids": 50, "tmp_size": "1M" });
    let answer = ran(&server, &json!({ "argv": ["sh", "-c", "df -k /tmp | tail -1"], "limits": limits }));
    assert!(answer["stdout"]["text"].as_str().unwrap().contains(" 1024 "), "{answer}");
    assert_eq!(sandboxes_end(&server), 0);
}

fn sandboxes_end(server: &Server) -> usize {
    wait_until("sandboxes end", || sandboxes(server) == 0);
    sandboxes(server)
}

#[test]
fn a_blob_is_sent_once_and_belongs_to_its_token() {
    let server = Server::with_tokens("blobs = '1M'", &format!("{}{}", token("me", ""), token("you", "")));
    let name = hash(b"print(6 * 7)");
    let path = format!("/v1/blobs/{name}");
    let put = |key: &str, path: &str, bytes: &[u8]| server.request("PUT", path, &[("x-api-key", key)], bytes);
    assert_eq!(server.ask("HEAD", &path, &Value::Null).status, 404);
    assert_eq!(put("key-of-me", &path, b"print(6 * 7)").status, 201);
    assert_eq!(put("key-of-me", &path, b"print(6 * 7)").status, 200);
    assert_eq!(server.ask("HEAD", &path, &Value::Null).status, 200);
    // Another token has to send it itself.
    let order = json!({
        "argv": ["sh", "-c", "cat; cat sub/file"],
        "stdin": { "sha256": name },
        "files": [{ "path": "sub/file", "content": { "sha256": name.to_uppercase() } }],
    });
    assert_eq!(ran(&server, &order)["stdout"]["text"], "print(6 * 7)print(6 * 7)");
    assert_eq!(server.ask_as("key-of-you", "HEAD", &path, &Value::Null).status, 404);
    let refused = server.ask_as("key-of-you", "POST", "/v1/run", &order);
    assert_eq!(refused.status, 404);
    assert!(
        refused.message().contains(&format!("send it with PUT /v1/blobs/{name}")),
        "{}",
        refused.message()
    );
    // What is not what it says.
    assert_eq!(put("key-of-me", &path, b"other").status, 400);
    assert_eq!(put("key-of-me", &format!("/v1/blobs/{}", hash(b"")), &vec![0; (1 << 20) + 1]).status, 413);
    assert_eq!(put("key-of-me", "/v1/blobs/x", b"").status, 400);
    assert_eq!(put("wrong", &path, b"print(6 * 7)").status, 401);
    let left = fs::read_dir(server.state().join("blobs/of-me")).unwrap().count();
    assert_eq!(left, 1, "nothing is left of refused uploads");
}

#[test]
fn keys_come_in_each_usual_way() {
    let server = Server::start("");
    let body = json!({ "argv": ["true"] }).to_string();
    let basic =
        base64::Engine::encode(&base64::engine::general_purpose::STANDARD, format!("me:{}", server.key));
    for (value, status) in [
        (format!("Bearer {}", server.key), 200),
        (format!("Basic {basic}"), 200),
        ("Bearer x".to_owned(), 401),
        ("Basic !".to_owned(), 401),
        (server.key.clone(), 401),
    ] {
        let answer = server.request("POST", "/v1/run", &[("authorization", &*value)], body.as_bytes());
        assert_eq!(answer.status, status, "{value}");
    }
    assert_eq!(server.request("POST", "/v1/run", &[], body.as_bytes()).status, 401);
}

#[test]
fn a_command_runs_in_a_sandbox_that_is_there() {
    let server = Server::with_tokens("", &format!("{}{}", token("me", ""), token("you", "")));
    let made = server.create();
    let path = format!("/v1/sandboxes/{}/run", made.id);
    let body = json!({ "argv": ["sh", "-c", "echo a >> kept; cat kept"] });
    for text in ["a\n", "a\na\n"] {
        let answer = server.ask("POST", &path, &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()["stdout"]["text"], text);
    }
    assert_eq!(server.ask_as("key-of-you", "POST", &path, &body).status, 404);
    assert_eq!(server.ask("POST", &path, &json!({ "argv": ["true"], "template": "base" })).status, 400);
    server.ask("DELETE", &format!("/sandboxes/{}", made.id), &Value::Null);
    let gone = server.ask("POST", &path, &body);
    assert_eq!((gone.status, gone.header("x-kennel-reason")), (404, Some("ended")));
}

#[test]
fn a_quota_of_commands_counts_these_too() {
    let server = Server::with_tokens("", &token("me", "commands = 1"));
    let made = server.create();
    let sleeping = server.of(&made, "POST", "/process.Process/Start", STREAM, &start("sleep 1000 & echo $!"));
    assert_eq!(sleeping.status, 200);
    let _stream = server.begin(&made, "sleep 1000");
    wait_until("the quota is used", || run(&server, &json!({ "argv": ["true"] })).status == 429);
}

#[test]
fn a_report_is_there_after_the_end() {
    let server = with_network();
    let made = server.create();
    let command = format!("{CONNECT}; exit 4");
    let answer = server.of(&made, "POST", "/process.Process/Start", STREAM, &start(&command));
    let pid = events(&answer.body)[0]["event"]["start"]["pid"].as_u64().unwrap();
    let path = |pid: u64| format!("/v1/sandboxes/{}/commands/{pid}/report", made.id);
    let report = server.ask("GET", &path(pid), &Value::Null);
    assert_eq!((report.status, &report.json()["exit_code"]), (200, &json!(4)));
    assert_eq!(report.json()["denials"][0]["subject"], "other.example:443");
    assert_eq!(server.ask("GET", &path(99), &Value::Null).status, 404);
    // While it runs there is none.
    let mut stream = server.connect();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let headers = [("x-access-token", &*made.token), ("e2b-sandbox-id", &*made.id), ("content-type", STREAM)];
    crate::server::send(&mut stream, "POST", "/process.Process/Start", &headers, &start("sleep 1000"));
    wait_until("it runs", || server.ask("GET", &path(pid + 1), &Value::Null).status == 409);
}

#[test]
fn changes_of_an_overlay_are_listed_and_applied_if_the_template_says_so() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("old"), "1").unwrap();
    let files = dir.path().display();
    let server = Server::start(&format!(
        "[template.base]\n[template.kept]\nfiles = '{files}'\n[template.open]\nfiles = '{files}'\ncommit = true"
    ));
    let made = |template: &str| server.create_from(&json!({ "templateID": template }));
    let path = |id: &str, what: &str| format!("/v1/sandboxes/{id}/{what}");
    let (plain, kept, open) = (made("base"), made("kept"), made("open"));
    assert_eq!(server.ask("GET", &path(&plain.id, "changes"), &Value::Null).status, 409);
    for sandbox in [&kept, &open] {
        server.run(sandbox, "echo 2 > old; echo 3 > new");
        let changes = server.ask("GET", &path(&sandbox.id, "changes"), &Value::Null).json();
        let expected = json!([
            { "path": "new", "kind": "added", "file": "file" },
            { "path": "old", "kind": "modified", "file": "file" },
        ]);
        assert_eq!(changes, json!({ "changes": expected }));
    }
    let refused = server.ask("POST", &path(&kept.id, "commit"), &json!({}));
    assert_eq!(refused.status, 403);
    assert!(refused.message().contains("commit = true"));
    assert!(!dir.path().join("new").exists());
    let some = server.ask("POST", &path(&open.id, "commit"), &json!({ "paths": ["new"] }));
    assert_eq!(some.status, 200, "{}", some.text());
    assert_eq!(some.json()["applied"][0]["path"], "new");
    assert_eq!(fs::read_to_string(dir.path().join("new")).unwrap(), "3\n");
    assert_eq!(server.ask("POST", &path(&open.id, "commit"), &json!({ "path": 1 })).status, 400);
    let all = server.ask("POST", &path(&open.id, "commit"), &json!({}));
    assert_eq!((all.status, fs::read_to_string(dir.path().join("old")).unwrap()), (200, "2\n".to_owned()));
}

#[test]
fn the_description_needs_no_key_and_names_every_route() {
    let server = Server::start("");
    let answer = server.request("GET", "/v1/openapi.json", &[], b"");
    assert_eq!(answer.status, 200);
    let document = answer.json();
    let paths = document["paths"].as_object().unwrap();
    for (path, methods) in paths {
        for method in methods.as_object().unwrap().keys() {
            let path = path.replace("{id}", "kennel-aaaaaaaaaaaaaaaa").replace("{pid}", "1");
            let path = path.replace("{sha256}", &"a".repeat(64));
            let answer = server.ask(&method.to_uppercase(), &path, &json!({}));
            assert_ne!(answer.status, 501, "{method} {path}");
        }
    }
    assert_eq!(paths.len(), 6);
    assert_eq!(server.ask("GET", "/v1/other", &Value::Null).status, 501);
}
