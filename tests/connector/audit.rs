//! The audit log has every call, connection, use of a credential and spawn of a connector. If it fails
//! closed, nothing happens that it does not have.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kennel::connector::{Call, CallLimits, Connector, Runtime, RuntimeBuilder};
use kennel::{Audit, broker::Manifest, report::Class};
use nix::fcntl::{Flock, FlockArg};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::credentials::{OAUTH2, Vault, granting};
use crate::server::Server;
use crate::spawns::Home;
use crate::steps::{Guest, run};

/// A log in a directory of its own.
struct Log(TempDir);

impl Log {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("log")
    }

    fn open(&self) -> RuntimeBuilder {
        Runtime::builder().at_once(4).audit(Audit::new(self.path()))
    }

    /// One that fails closed. It has a chain, so that nothing can be written while the log is locked.
    fn closed(&self) -> RuntimeBuilder {
        let audit = Audit { fail_closed: true, chain: true, ..Audit::new(self.path()) };
        Runtime::builder().at_once(4).audit(audit)
    }

    fn text(&self) -> String {
        fs::read_to_string(self.path()).unwrap()
    }

    /// The lines of one event.
    fn lines(&self, event: &str) -> Vec<Value> {
        let all = self.text();
        let all = all.lines().map(|line| serde_json::from_str(line).unwrap());
        all.filter(|line: &Value| line["event"] == event).collect()
    }

    /// These fields of the lines of one event.
    fn fields<const N: usize>(&self, event: &str, names: [&str; N]) -> Vec<[Value; N]> {
        self.lines(event).iter().map(|line| names.map(|name| line[name].clone())).collect()
    }

    /// Locks it, as a writer does.
    fn lock(&self) -> Flock<File> {
        Flock::lock(File::open(self.path()).unwrap(), FlockArg::LockExclusive).unwrap()
    }
}

fn compiled(builder: RuntimeBuilder, manifest: &Manifest, guest: Guest) -> Connector {
    builder.build().unwrap().compile(manifest, &guest.program()).unwrap()
}

#[tokio::test]
async fn every_call_has_a_line_however_it_ends() {
    let log = Log::new();
    let good = Guest::new().print(r#"{"output":{"secret":"of-the-output"}}"#);
    let fails = Guest::new().print(r#"{"error":{"class":"a","message":"b\nc"}}"#);
    let loops = Guest::new().run("(loop $l (br $l))");
    let runtime = log.open().build().unwrap();
    let compiled = |guest: Guest| runtime.compile(&granting(&[], ""), &guest.program()).unwrap();
    let (good, fails, loops) = (compiled(good), compiled(fails), compiled(loops));

    good.invoke(Call::new("list").argument("name", "of-the-arguments")).await.unwrap();
    let error = fails.invoke(Call::new("o\np")).await.unwrap_err();
    let limits = CallLimits { wall_time: Some(Duration::from_millis(100)), ..CallLimits::default() };
    loops.invoke(Call::new("loop").limits(limits)).await.unwrap_err();
    let dropped = tokio::time::timeout(Duration::from_millis(100), loops.invoke(Call::new("left"))).await;
    dropped.unwrap_err();
    runtime.close().await;
    good.invoke(Call::new("late")).await.unwrap_err();

    let fields = ["connector", "operation", "decision", "class", "reason"];
    assert_eq!(
        json!(log.fields("connector", fields)),
        json!([
            ["test", "list", "ended", null, null],
            ["test", "o\np", "failed", "runtime_error", "a: b\\nc"],
            ["test", "loop", "failed", "resource_limit_exceeded", "the call took longer than 100ms"],
            ["test", "left", "dropped", null, null],
            ["test", "late", "failed", "cancelled", "the runtime is closed"],
        ])
    );
    let lines = log.lines("connector");
    assert_eq!(Some(&lines[1]["id"]), error.failure().audit_id.clone().map(Value::from).as_ref());
    assert!(lines[2]["duration_ms"].as_u64().unwrap() >= 100, "{}", lines[2]);
    assert!(!log.text().contains("of-the-"));
}

#[tokio::test]
async fn every_connection_has_a_line_and_every_refusal() {
    let (log, server) = (Log::new(), Server::http().await);
    let (own, port) = (server.authority(), server.port);
    let guest = Guest::new()
        .request(&json!({"url": "http://127.0.0.2:1/"}))
        .request(&json!({"url": "http://a.example/"}))
        .request(&json!({"url": "http://some.localhost:1/"}))
        .request(&json!({"url": "no URL"}))
        .request(&json!({"url": server.url("/redirect/302//hello")}));
    let hosts = [&*own, "a.example:80", "some.localhost:1"];
    let connector = compiled(log.open(), &granting(&hosts, ""), guest);
    let call = Call::new("op").allow_hosts([&*own, hosts[2]]);
    run(&connector, call).await.ended.unwrap();
    let fields = ["host", "port", "address", "decision", "reason", "class"];
    let allowed = json!(["127.0.0.1", port, "127.0.0.1", "allowed", "allowed", null]);
    assert_eq!(
        json!(log.fields("egress", fields)),
        json!([
            ["127.0.0.2", 1, null, "denied", "not-allowed", "capability_denied"],
            ["a.example", 80, null, "denied", "not-allowed", "capability_denied"],
            ["some.localhost", 1, null, "denied", "address-blocked", "capability_denied"],
            allowed,
            allowed,
        ])
    );
    let line = &log.lines("egress")[3];
    assert!(line["bytes_up"].as_u64() > Some(20) && line["bytes_down"].as_u64() > Some(20), "{line}");
}

#[tokio::test]
async fn every_use_of_a_credential_has_a_line() {
    let (log, server) = (Log::new(), Server::http().await);
    let request = |kind: &str, url: &str| json!({"url": url, "credential": kind});
    let url = server.url("/");
    let guest = || {
        Guest::new()
            .request(&request("api_key", &url))
            .request(&request(&"k\n".repeat(1000), &url))
            .request(&request("oauth2", "http://a.example/"))
            .request(&request("oauth2", "http://not-granted.example/"))
            .request(&request("oauth2", "no URL"))
            .request(&request("oauth2", &url))
    };
    let hosts = [&*server.authority(), "a.example:80"];
    let connector = compiled(log.open(), &granting(&hosts, OAUTH2), guest());
    run(&connector, Call::new("op").credentials(Vault::with("of-the-vault"))).await.ended.unwrap();
    run(&connector, Call::new("op")).await.ended.unwrap_err();
    let lines = log.fields("credential", ["connector", "kind", "decision", "class"]);
    let denied = |kind: &str| json!(["test", kind, "denied", "capability_denied"]);
    assert_eq!(json!(lines[0]), denied("api_key"));
    assert!(lines[1][1].as_str().unwrap().len() < 1000, "{:?}", lines[1]);
    assert_eq!(json!(lines[2]), denied("oauth2"));
    assert_eq!(json!(lines[3]), json!(["test", "oauth2", "allowed", null]));
    assert_eq!(json!(lines[7]), json!(["test", "oauth2", "failed", "binding_required"]));
    assert_eq!(lines.len(), 8, "the resolver is not asked for what is refused before");
    assert!(!log.text().contains("of-the-vault"));
}

#[tokio::test]
async fn every_spawn_has_a_line() {
    let (log, home) = (Log::new(), Home::new("exit 3"));
    let more = "credential_env_keys = ['TOKEN']\n[capabilities.spawn.operations]\nop = 'tool {word}'";
    let guest = Guest::new()
        .spawn(&json!({"program": "/bin/sh", "argv": ["sh", "-c", "of-the-arguments"]}))
        .operation("other", &json!({}))
        .operation("op", &json!({"word": "of-the-arguments"}));
    let connector = compiled(log.open(), &home.manifest(more), guest);
    run(&connector, Call::new("op").credentials(Vault::with("of-the-vault"))).await.ended.unwrap();
    let fields = ["program", "decision", "operation", "credentials", "class"];
    assert_eq!(
        json!(log.fields("spawn", fields)),
        json!([
            ["/bin/sh", "denied", null, [], "capability_denied"],
            ["", "denied", null, [], "capability_denied"],
            ["tool", "allowed", "op", ["TOKEN"], null],
        ])
    );
    // The program runs in a sandbox, with lines of its own.
    assert_eq!(json!(log.fields("exec", ["arguments"])), json!([[1]]));
    assert_eq!(json!(log.fields("exit", ["exit_code"])), json!([[3]]));
    assert!(!log.text().contains("of-the-"));
}

#[tokio::test]
async fn one_id_joins_the_lines_of_a_spawn_and_each_names_the_connector() {
    let log = Log::new();
    let home = Home::new(
        "p=${http_proxy##*:}; exec bash -c \"exec 3<>/dev/tcp/127.0.0.1/${p%/}; \
         printf 'CONNECT b.example:443 HTTP/1.1\\r\\n\\r\\n' >&3; head -n 1 <&3\"",
    );
    let guest = Guest::new()
        .request(&json!({"url": "http://b.example/"}))
        .spawn(&json!({"program": "tool", "argv": ["tool"]}))
        .spawn(&json!({"program": "/bin/sh", "argv": ["sh"]}))
        .spawn(&json!({"program": "tool", "argv": ["tool"]}))
        .request(&json!({"url": "http://b.example/"}));
    let connector = compiled(log.open(), &home.manifest(""), guest);
    run(&connector, Call::new("op")).await.ended.unwrap_err();
    let lines: Vec<Value> = log.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["connector"] == "test"), "{lines:?}");
    let spawns = log.lines("spawn");
    assert_eq!(spawns.len(), 3);
    for spawn in &spawns {
        assert_eq!(spawn["spawn"], spawn["id"]);
        let joined = lines.iter().filter(|line| line["spawn"] == spawn["id"]);
        let events: Vec<_> = joined.map(|line| line["event"].as_str().unwrap()).collect();
        match spawn["decision"].as_str() {
            Some("allowed") => {
                assert_eq!(events, ["spawn", "exec", "egress", "exit"]);
            }
            _ => assert_eq!(events, ["spawn"]),
        }
    }
    // The request of the connector itself belongs to no spawn.
    let egress = log.lines("egress");
    assert!(egress.len() == 4 && [0, 3].iter().all(|at| egress[*at].get("spawn").is_none()), "{egress:?}");
}

#[tokio::test]
async fn programs_cannot_write_to_the_log() {
    let home = Home::new("");
    let runtime = Runtime::builder().at_once(1).audit(Audit::new(home.at("out/log"))).build().unwrap();
    let error = runtime.compile(&home.manifest(""), &Guest::new().program()).unwrap_err();
    assert!(error.to_string().contains("fs_write"), "{error}");
}

#[tokio::test]
async fn a_log_that_fails_closed_has_a_line_before_anything_happens() {
    let (log, server) = (Log::new(), Server::http().await);
    let request = json!({"url": server.url("/"), "credential": "oauth2"});
    let manifest = granting(&[&server.authority()], OAUTH2);
    let connector = compiled(log.closed(), &manifest, Guest::new().request(&request));
    run(&connector, Call::new("op").credentials(Vault::with("k1"))).await.ended.unwrap();
    let lines: Vec<Value> = log.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let decisions = lines.iter().map(|line| [line["event"].clone(), line["decision"].clone()]);
    assert_eq!(
        json!(decisions.collect::<Vec<_>>()),
        json!([
            ["connector", "begun"],
            ["credential", "allowed"],
            ["egress", "begun"],
            ["egress", "allowed"],
            ["connector", "ended"],
        ])
    );
}

#[tokio::test]
async fn a_log_that_fails_closed_and_cannot_be_written_refuses_everything() {
    let (log, server, home) = (Arc::new(Log::new()), Server::http().await, Home::new("touch ran"));
    let more = format!(
        "[capabilities.credential]\nkind = 'oauth2'\n[capabilities.network]\nhosts = [{:?}]",
        server.authority()
    );
    let text = format!(
        "[connector]\nname = 'test'\n{more}\n[capabilities.spawn]\nprograms = [{{ path = {:?} }}]\n\
        fs_write = [{1:?}]\ncwd = {1:?}",
        home.at("tool"),
        home.at("out")
    );
    let manifest = Manifest::from_toml(&text).unwrap();
    let url = server.url("/");
    // The first line of a program locks the log.
    let locks = || Guest::new().run("(call $line)");
    let programs = [
        locks().request(&json!({"url": url})),
        locks().request(&json!({"url": url, "credential": "oauth2"})),
        locks().spawn(&json!({"program": "tool", "argv": ["tool"]})),
        locks().print("{\"output\":{}}"),
    ];
    let (lock, ran) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(0)));
    for program in programs {
        let (own, held, count) = (Arc::clone(&log), Arc::clone(&lock), Arc::clone(&ran));
        let builder = log.closed().log_sink(move |_, _| {
            *count.lock().unwrap() += 1;
            held.lock().unwrap().get_or_insert_with(|| own.lock());
        });
        let connector = compiled(builder, &manifest, program);
        let vault = Vault::with("k1");
        let call = || Call::new("op").credentials(vault.clone());
        let ended = run(&connector, call()).await;
        assert_eq!(ended.error().failure().class, Class::RuntimeError);
        assert!(ended.error().to_string().contains("audit log"), "{}", ended.error());
        // The next call does not even begin.
        *ran.lock().unwrap() = 0;
        let refused = run(&connector, call()).await;
        assert!(refused.error().to_string().contains("audit log"), "{}", refused.error());
        assert_eq!(*ran.lock().unwrap(), 0);
        lock.lock().unwrap().take();
    }
    assert!(server.take().is_empty() && !home.at("out/ran").exists());
}

/// Runs this test in namespaces of its own, as root of them. Returns whether this is that process.
fn is_alone(test: &str) -> bool {
    if std::env::var_os("KENNEL_ALONE").is_some_and(|alone| alone == test) {
        return true;
    }
    // The path of its program leads through /proc of another namespace, so the shell opens it first.
    let start = "exec 7<\"$1\"; shift; exec unshare --user --map-root-user --mount /proc/self/fd/7 \"$@\"";
    let own = format!("/proc/{}/exe", std::process::id());
    let output = Command::new("sh")
        .args(["-c", start, "sh", &own, "--exact", test, "--nocapture"])
        .env("KENNEL_ALONE", test)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{output:?}");
    false
}

#[tokio::test]
async fn a_full_disk_refuses_calls_if_the_log_fails_closed() {
    if !is_alone("audit::a_full_disk_refuses_calls_if_the_log_fails_closed") {
        return;
    }
    let log = Log::new();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=16k", "none"]).arg(log.0.path()).status();
    assert!(mounted.unwrap().success());
    let output = r#"{"output":{}}"#;
    let closed = compiled(log.closed(), &granting(&[], ""), Guest::new().print(output));
    let open = compiled(log.open(), &granting(&[], ""), Guest::new().print(output));
    closed.invoke(Call::new("op")).await.unwrap();
    // No page is left, and the last one of the log is full.
    let end = fs::read(log.path()).unwrap().len();
    let mut text = log.text();
    text.push_str(&"\n".repeat(4096 - end));
    fs::write(log.path(), text).unwrap();
    fs::write(log.0.path().join("ballast"), vec![0; 64 << 10]).unwrap_err();
    let error = closed.invoke(Call::new("op")).await.unwrap_err();
    assert_eq!(error.failure().class, Class::RuntimeError);
    assert!(error.to_string().contains("No space left on device"), "{error}");
    assert!(error.remedy().unwrap().to_string().contains("room"), "{error:?}");
    // One that fails open goes on.
    open.invoke(Call::new("op")).await.unwrap();
}
