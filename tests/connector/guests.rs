//! Real programs: in C, in Go, and a component in Python. Each serves calls from its input to its output.

use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use std::{env, fs};

use bytes::Bytes;
use hyper::{Request, Response};
use kennel::connector::{
    Call, CallLimits, Connector, HttpClient, Runtime, Sending, SpawnExecutor, Spawned, Spawning,
};
use kennel::{
    Audit, Secret,
    broker::{CheckedSpawn, CredentialResolver, Resolving},
    report::Class,
};
use serde_json::{Value, json};

use crate::built::{Built, issues, mail, notes, weather};
use crate::credentials::granting;
use crate::server::{Authority, Server};
use crate::spawns::Home;
use crate::support::{manifest, of};
use crate::traces;

const MAIL: &str = "[connector]\nname = 'mail'\n[capabilities.network]\nhosts = ['mail.example:443']\n\
    [capabilities.credential]\nkind = 'api_key'";
const NOTES: &str = "[connector]\nname = 'notes'\n[capabilities.spawn]\nprograms = [{ path = '/bin/printf' }]\n\
    [capabilities.spawn.operations]\nnote_list = '/bin/printf {format}'";
const WEATHER: &str =
    "[connector]\nname = 'weather'\n[capabilities.network]\nhosts = ['weather.example:443']";

/// What a server answers, and what it was asked: a line for each request.
#[derive(Clone)]
struct Canned(&'static str, Arc<Mutex<Vec<String>>>);

impl HttpClient for Canned {
    fn send(&self, request: Request<Bytes>) -> Sending<'_> {
        let header = |name: &str| request.headers().get(name).map_or("", |value| value.to_str().unwrap());
        let line = format!("{} {} {}", request.uri(), header("accept"), header("authorization"));
        self.1.lock().unwrap().push(line);
        let response = Response::new(Bytes::from_static(self.0.as_bytes()));
        Box::pin(async move { Ok(response) })
    }
}

/// Writes the arguments of each spawn, and runs nothing.
struct Prints;

impl SpawnExecutor for Prints {
    fn spawn<'s>(&'s self, spawn: &'s CheckedSpawn, _: &'s dyn CredentialResolver) -> Spawning<'s> {
        let stdout = format!("{}: a \"note\"\n", spawn.arguments().join(" ")).into_bytes();
        Box::pin(async { Ok(Spawned { status: 3, stdout, stderr: Vec::new() }) })
    }
}

struct Key;

impl CredentialResolver for Key {
    fn resolve<'r>(&'r self, kind: &'r str) -> Resolving<'r> {
        Box::pin(async move { Ok((kind == "api_key").then(|| Secret::from(b"k-123".to_vec()))) })
    }
}

/// A guest that is loaded, and what its server was asked.
struct Loaded {
    connector: Connector,
    asked: Arc<Mutex<Vec<String>>>,
}

/// The program of a guest. `None` if its tools are missing, which is an error in CI.
#[expect(clippy::print_stderr, reason = "a test says that it is skipped")]
fn program(built: Built) -> Option<Vec<u8>> {
    match built {
        Ok(path) => Some(fs::read(path).unwrap()),
        Err(missing) => {
            let must = ["CI", "KENNEL_MUST_RUN"].iter().any(|name| env::var_os(name).is_some());
            assert!(!must, "required here, but missing: {missing}");
            eprintln!("SKIP {}: {missing}", module_path!());
            None
        }
    }
}

/// Loads a guest. `None` if its tools are missing.
fn load(built: Built, manifest_text: &str, answer: &'static str) -> Option<Loaded> {
    let program = program(built)?;
    let asked = Arc::default();
    let runtime = Runtime::builder()
        .at_once(16)
        .http_client(Canned(answer, Arc::clone(&asked)))
        .spawn_executor(Prints)
        .build()
        .unwrap();
    let connector = runtime.compile(&manifest(manifest_text), &program).unwrap();
    Some(Loaded { connector, asked })
}

/// The guests in C, Go and Python, each loaded once. Ends a test without them.
macro_rules! guest {
    ($built:expr, $manifest:expr, $answer:expr) => {{
        static LOADED: OnceLock<Option<Loaded>> = OnceLock::new();
        LOADED.get_or_init(|| load($built, $manifest, $answer)).as_ref()
    }};
}

fn the_mail() -> Option<&'static Loaded> {
    let answer =
        r#"{"messages": [{"from": "a", "subject": "x", "unread": true}, {"from": "a", "subject": "é"}]}"#;
    guest!(mail(), MAIL, answer)
}

fn the_notes() -> Option<&'static Loaded> {
    guest!(notes(), NOTES, "")
}

fn the_weather() -> Option<&'static Loaded> {
    guest!(weather(), WEATHER, r#"{"degrees": 21.5}"#)
}

fn memory(bytes: u64) -> CallLimits {
    CallLimits { memory_bytes: Some(bytes), wall_time: Some(Duration::from_secs(200)) }
}

#[tokio::test]
async fn go_makes_a_request_with_a_credential_that_it_never_sees() {
    let Some(Loaded { connector, asked }) = the_mail() else { return };
    let call = Call::new("list").argument("count", 2).credentials(Key);
    let result = connector.invoke(call).await.unwrap();
    assert_eq!(Value::from(result.output.unwrap()), json!({"count": 2, "unread": 1, "from": {"a": 2}}));
    assert_eq!((&*result.logs[0].level, &*result.logs[0].message), ("debug", "status 200, 93 bytes"));
    assert_eq!(
        *asked.lock().unwrap(),
        ["https://mail.example/messages?count=2 application/json Bearer k-123"]
    );
    let error = connector.invoke(Call::new("list")).await.unwrap_err();
    assert_eq!(of(&error).0, Class::BindingRequired, "{error}");
}

#[tokio::test]
async fn go_asks_an_https_server_with_a_credential_that_nothing_else_shows() {
    let Some(program) = program(mail()) else { return };
    traces::keep();
    let (authority, place) = (Authority::new(), tempfile::tempdir().unwrap());
    let (server, log) = (Server::https(&authority).await, place.path().join("audit.log"));
    let runtime = Runtime::builder()
        .at_once(4)
        .certificate_authority(authority.file())
        .audit(Audit { arguments: true, ..Audit::new(&log) })
        .build()
        .unwrap();
    let manifest = granting(&[&server.authority()], "[capabilities.credential]\nkind = 'api_key'");
    let connector = runtime.compile(&manifest, &program).unwrap();
    let call = || Call::new("list").argument("count", 2).argument("server", server.url("")).credentials(Key);
    let result = connector.invoke(call()).await.unwrap();
    assert_eq!(result.output.as_ref().unwrap()["from"], json!({"a": 1, "b": 1}), "{result:?}");
    let seen = server.only();
    assert_eq!(seen.headers["authorization"], "Bearer k-123", "{seen:?}");
    assert_eq!(seen.headers["accept"], "application/json");
    // Without the authority, nothing is sent.
    let untrusting = Runtime::builder().at_once(4).build().unwrap();
    let error = untrusting.compile(&manifest, &program).unwrap().invoke(call()).await.unwrap_err();
    assert_eq!(of(&error).0, Class::NetworkError, "{error:?}");
    assert!(server.take().is_empty());
    let written = fs::read_to_string(&log).unwrap();
    assert!(
        written.contains("\"event\":\"credential\"") && written.contains("\"event\":\"egress\""),
        "{written}"
    );
    for shown in
        [written, traces::all(), format!("{result:?} {error:?} {connector:?} {runtime:?} {:?}", call())]
    {
        assert!(!shown.contains("k-123"), "{shown}");
    }
}

#[tokio::test]
async fn go_reads_and_writes_large_json_within_the_default_memory() {
    let Some(Loaded { connector, .. }) = the_mail() else { return };
    let messages: Vec<_> =
        (0..20_000).map(|n| json!({"from": format!("f{}", n % 7), "subject": "s".repeat(50)})).collect();
    let call = Call::new("summarize").argument("messages", messages);
    let output = connector.invoke(call).await.unwrap().output.unwrap();
    assert_eq!((&output["count"], &output["from"]["f6"]), (&json!(20_000), &json!(2857)));
}

#[tokio::test]
async fn a_panic_of_go_is_a_fault_with_the_end_of_its_trace() {
    let Some(Loaded { connector, .. }) = the_mail() else { return };
    let (class, message) = of(&connector.invoke(Call::new("panic").argument("count", 4)).await.unwrap_err());
    assert_eq!(class, Class::RuntimeError);
    assert!(message.starts_with("the program exited with status 2; its stderr ends: "), "{message}");
    assert!(message.contains("main.main()"), "{message}");
    let (class, message) = of(&connector.invoke(Call::new("dance")).await.unwrap_err());
    assert_eq!((class, &*message), (Class::RuntimeError, "unknown_operation: dance"));
}

#[tokio::test]
async fn go_and_c_and_python_that_hoard_memory_exceed_their_limit() {
    for guest in [the_mail(), the_notes(), the_weather()].into_iter().flatten() {
        let call = Call::new("hoard").limits(memory(128 << 20));
        let error = guest.connector.invoke(call).await.unwrap_err();
        let (class, message) = of(&error);
        assert_eq!(
            (class, &*message),
            (Class::ResourceLimitExceeded, "the program needs more memory than 134217728 bytes"),
            "{}",
            guest.connector.name()
        );
    }
}

#[tokio::test]
async fn c_spawns_an_operation_and_reads_its_output_in_pieces() {
    let Some(Loaded { connector, .. }) = the_notes() else { return };
    let result = connector.invoke(Call::new("list")).await.unwrap();
    let expected = json!({"status": 3, "notes": "%s: a \"note\"\n"});
    assert_eq!(Value::from(result.output.unwrap()), expected);
    assert_eq!(result.logs[0].message, "listed");
    let error = connector.invoke(Call::new("list").allow_programs(["/bin/other"])).await.unwrap_err();
    assert_eq!(of(&error).0, Class::CapabilityDenied);
    let (class, message) = of(&connector.invoke(Call::new("dance")).await.unwrap_err());
    assert_eq!(class, Class::RuntimeError);
    assert_eq!(message, "the program exited with status 2; its stderr ends: unknown operation");
}

/// Connectors that others have written pass the whole argument vector.
#[tokio::test]
async fn go_spawns_with_argv_0_and_reads_what_the_program_wrote() {
    let Some(program) = program(issues()) else { return };
    let home = Home::new("");
    let gh = home.at("gh");
    fs::write(&gh, "#!/bin/sh\nprintf '%s|' \"$@\"; pwd\n").unwrap();
    fs::set_permissions(&gh, PermissionsExt::from_mode(0o755)).unwrap();
    let out = fs::canonicalize(home.at("out")).unwrap();
    let manifest = |operations: &str| {
        manifest(&format!(
            "[connector]\nname = 'issues'\n[capabilities.spawn]\nprograms = [{{ path = {gh:?} }}]\nfs_write = [{out:?}]\n\
             cwd = {out:?}\n[capabilities.spawn.operations]\n{operations}"
        ))
    };
    let with = "list = 'gh issue list [--state {state}]'\nversion = 'gh --version'";
    let ran = |stdout: &str| {
        let stdout = format!("{stdout}{}\n", out.display());
        (json!({"code": 0, "status": 0, "stdout": stdout, "stderr": ""}), None)
    };
    let denied = |message: &str| (Value::Null, Some(format!("argument list of {message}")));
    let not_one = |count: u32| denied(&format!("{count} arguments: is not one of the manifest's operations"));
    for (operations, operation, argv, expected) in [
        ("", "spawn", &["gh", "issue", "list"][..], ran("issue|list|")),
        ("", "spawn", &["anything", "a  b"], ran("a  b|")),
        ("", "spawn", &[], denied("0 arguments: argv is required")),
        (with, "spawn", &["gh", "issue", "list"], ran("issue|list|")),
        (with, "spawn", &["gh", "issue", "list", "--state", "open"], ran("issue|list|--state|open|")),
        (with, "spawn", &["issue", "list"], not_one(1)),
        (with, "spawn", &["gh", "issue", "list", "--web"], not_one(3)),
        (with, "spawn", &[], denied("0 arguments: argv is required")),
        (with, "operation", &[], ran("--version|")),
    ] {
        let runtime = Runtime::builder().at_once(1).build().unwrap();
        let connector = runtime.compile(&manifest(operations), &program).unwrap();
        let ended = connector.invoke(Call::new(operation).argument("argv", argv.to_vec())).await;
        let logs = match &ended {
            Ok(result) => &result.logs[..],
            Err(error) => error.logs(),
        };
        let levels: Vec<_> = logs.iter().map(|line| &*line.level).collect();
        let told = if operation == "spawn" { &["warn"][..] } else { &[] };
        let last = if ended.is_ok() { "notice" } else { "warn" };
        assert_eq!(levels, [told, &[last]].concat(), "{logs:?}");
        let found = match ended {
            Ok(result) => (result.output.map_or(Value::Null, Value::from), None),
            Err(error) => (Value::Null, Some(error.to_string())),
        };
        assert_eq!(found, expected, "{operation} {argv:?}");
    }
}

#[tokio::test]
async fn python_makes_requests_and_has_nothing_of_the_host() {
    let Some(Loaded { connector, asked }) = the_weather() else { return };
    let result = connector.invoke(Call::new("forecast").argument("city", "oslo")).await.unwrap();
    assert_eq!(Value::from(result.output.unwrap()), json!({"city": "oslo", "degrees": 21.5}));
    assert_eq!(result.logs[0].message, "status 200");
    assert_eq!(*asked.lock().unwrap(), ["https://weather.example/oslo application/json "]);
    let output = connector.invoke(Call::new("surroundings")).await.unwrap().output.unwrap();
    assert_eq!(Value::from(output), json!({"variables": {}, "socket": "", "name": "", "file": ""}));

    let denied = Call::new("forecast").argument("city", "oslo").allow_hosts(["other.example:443"]);
    assert_eq!(of(&connector.invoke(denied).await.unwrap_err()).0, Class::CapabilityDenied);
    let (class, message) = of(&connector.invoke(Call::new("dance")).await.unwrap_err());
    assert_eq!((class, &*message), (Class::RuntimeError, "unknown_operation: dance"));
    let error = connector.invoke(Call::new("divide").argument("by", 0)).await.unwrap_err();
    assert!(error.to_string().contains("ZeroDivisionError"), "{error}");
}

#[tokio::test]
async fn real_programs_run_side_by_side() {
    for guest in [the_mail(), the_notes()].into_iter().flatten() {
        let mut calls = tokio::task::JoinSet::new();
        let limits = CallLimits { wall_time: Some(Duration::from_secs(200)), ..CallLimits::default() };
        for number in 0..40 {
            let connector = guest.connector.clone();
            let call = Call::new("list").argument("count", number).credentials(Key).limits(limits);
            calls.spawn(async move { connector.invoke(call).await });
        }
        while let Some(ended) = calls.join_next().await {
            ended.unwrap().unwrap();
        }
    }
}
