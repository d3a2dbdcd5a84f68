//! Components: the interface of `connector.wit`, WASI, and hostile ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Request, Response};
use kennel::connector::{
    Call, CallLimits, CallResult, Connector, ConnectorError, HttpClient, Runtime, Sending, SpawnExecutor,
    Spawned, Spawning,
};
use kennel::{
    broker::{CheckedSpawn, CredentialResolver},
    report::Class,
};
use serde_json::json;

use crate::guest::{Guest, INVOKE};
use crate::support::{NOTHING, manifest, of, runtime};

/// Absent options and empty lists.
const NONE: &str = "(i32.const 0) (i32.const 0) (i32.const 0)";
const EMPTY: &str = "(i32.const 0) (i32.const 0)";

const HOSTS: &str = "[connector]\nname = 'test'\n[capabilities.network]\nhosts = ['api.example:443']";
const PROGRAMS: &str =
    "[connector]\nname = 'test'\n[capabilities.spawn]\nprograms = [{ path = '/bin/true' }]";

/// Answers each request with what it asks for.
#[derive(Clone, Default)]
struct Echo(Arc<AtomicUsize>);

impl HttpClient for Echo {
    fn send(&self, request: Request<Bytes>) -> Sending<'_> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let headers: Vec<_> = request.headers().keys().map(|name| name.as_str().to_owned()).collect();
        let (method, path) = (request.method().as_str(), request.uri().path());
        let body = String::from_utf8_lossy(request.body());
        let text = json!({"method": method, "path": path, "headers": headers, "body": body}).to_string();
        Box::pin(async move { Ok(Response::new(Bytes::from(text))) })
    }
}

/// Runs nothing: answers with what was checked.
struct DryRun;

impl SpawnExecutor for DryRun {
    fn spawn<'s>(&'s self, spawn: &'s CheckedSpawn, _: &'s dyn CredentialResolver) -> Spawning<'s> {
        let stdout = json!({"program": spawn.called(), "argv": spawn.argv()}).to_string().into_bytes();
        Box::pin(async { Ok(Spawned { status: 7, stdout, stderr: b"e".to_vec() }) })
    }
}

fn compiled(text: &str, program: &[u8]) -> Connector {
    let runtime = Runtime::builder().at_once(8).http_client(Echo::default()).spawn_executor(DryRun);
    runtime.build().unwrap().compile(&manifest(text), program).unwrap()
}

async fn call(text: &str, program: &[u8]) -> Result<CallResult, ConnectorError> {
    compiled(text, program).invoke(Call::new("op")).await
}

/// Why a call of a component without capabilities fails.
async fn failure(program: &[u8]) -> (Class, String) {
    of(&call(NOTHING, program).await.unwrap_err())
}

/// Why a component does not load.
fn refused(text: &str, program: &[u8]) -> String {
    let (class, message) = of(&runtime().compile(&manifest(text), program).unwrap_err());
    assert_eq!(class, Class::LoadFailed, "{message}");
    message
}

/// A component that returns a text.
fn says(text: &str) -> Vec<u8> {
    let mut guest = Guest::new();
    let text = guest.text(text);
    guest.build(&format!("(call $ok {text})"))
}

#[tokio::test]
async fn a_component_gets_its_operation_and_its_arguments_and_returns_its_output() {
    let arguments = Guest::new().build("(call $ok (local.get $args) (local.get $args_length))");
    let connector = compiled(NOTHING, &arguments);
    let result = connector.invoke(Call::new("op").argument("a", json!([1, "é"]))).await.unwrap();
    assert_eq!(serde_json::Value::from(result.output.unwrap()), json!({"a": [1, "é"]}));
    assert_eq!(connector.invoke(Call::new("op")).await.unwrap().output.unwrap().len(), 0);
    let operation = Guest::new().build("(call $ok (local.get $op) (local.get $op_length))");
    let call = Call::new(r#"{"list": 1}"#);
    assert_eq!(compiled(NOTHING, &operation).invoke(call).await.unwrap().output.unwrap()["list"], 1);
}

#[tokio::test]
async fn no_output_is_none_and_any_other_output_is_a_fault() {
    for nothing in ["", " \n"] {
        assert_eq!(call(NOTHING, &says(nothing)).await.unwrap().output, None);
    }
    for bad in ["x", "[]", "null", "1", "{} {}", "{\"a\":"] {
        let (class, message) = failure(&says(bad)).await;
        assert_eq!(class, Class::RuntimeError, "{bad}");
        assert!(message.starts_with("its output is not a JSON object: "), "{bad}: {message}");
    }
    let deep = format!("{{\"a\":{}", "[".repeat(20_000));
    assert!(failure(&says(&deep)).await.1.contains("recursion limit"));
}

#[tokio::test]
async fn an_error_that_a_component_returns_is_its_fault() {
    let mut guest = Guest::new();
    let error = [guest.text("not_found"), guest.text("no such mail\u{1b}[2J")].join(" ");
    let error = call(NOTHING, &guest.build(&format!("(call $error {error})"))).await.unwrap_err();
    assert_eq!(of(&error), (Class::RuntimeError, "not_found: no such mail\\u{1b}[2J".to_owned()));
    assert_eq!(error.to_wire()["class"], "connector_runtime_error");
    // One of megabytes is cut.
    let long = "(drop (memory.grow (i32.const 100)))
        (memory.fill (i32.const 131072) (i32.const 7) (i32.const 5000000))
        (call $error (i32.const 131072) (i32.const 5000000) (i32.const 131072) (i32.const 5000000))";
    let (class, message) = failure(&Guest::new().build(long)).await;
    assert_eq!((class, message.matches("\\u{7}").count()), (Class::RuntimeError, 2 * 4096));
}

#[tokio::test]
async fn traps_and_texts_that_are_none_are_faults() {
    let (class, message) = failure(&Guest::new().build("unreachable")).await;
    assert!(class == Class::RuntimeError && message.starts_with("the program trapped: "), "{message}");
    // Ranges outside of memory, and bytes that are no UTF-8.
    for bad in ["-1) (i32.const 1", "0) (i32.const -1", "196608) (i32.const 1", "-8) (i32.const 16"] {
        let (class, message) = failure(&Guest::new().build(&format!("(call $ok (i32.const {bad}))"))).await;
        assert_eq!(class, Class::RuntimeError, "{message}");
    }
    let no_text = "(i32.store8 (i32.const 2000) (i32.const 255)) (call $ok (i32.const 2000) (i32.const 1))";
    let (class, message) = failure(&Guest::new().build(no_text)).await;
    assert!(class == Class::RuntimeError && message.contains("utf-8"), "{message}");
    // A result outside of memory.
    assert_eq!(failure(&Guest::new().build("(i32.const -4)")).await.0, Class::RuntimeError);
}

#[tokio::test]
async fn log_lines_come_with_the_result() {
    let mut guest = Guest::host(&["log"]);
    let line = [guest.text("warn"), guest.text("hello\u{1b}")].join(" ");
    let program = guest.build(&format!("(call $log {line}) (call $ok {EMPTY})"));
    let result = call(NOTHING, &program).await.unwrap();
    assert_eq!((&*result.logs[0].level, &*result.logs[0].message), ("warn", "hello\\u{1b}"));
    let program = guest.build(&format!("(loop $l (call $log {line}) (br $l)) unreachable"));
    let limits = CallLimits { wall_time: Some(Duration::from_millis(300)), ..CallLimits::default() };
    let ended = compiled(NOTHING, &program).invoke(Call::new("op").limits(limits)).await.unwrap_err();
    assert_eq!(of(&ended).0, Class::ResourceLimitExceeded);
    assert_eq!(ended.logs().len(), 1001);
}

/// A component that makes a request and passes on what it gets. `more` is the method, or nothing.
fn requests(url: &str, body: &str) -> Vec<u8> {
    let mut guest = Guest::host(&["http-request"]);
    let (method, url, body) = (guest.text("PUT"), guest.text(url), guest.text(body));
    let some = "(i32.const 1)";
    let call =
        format!("(call $http-request {some} {method} {url} {EMPTY} {some} {body} {NONE} (i32.const 512))");
    guest.build(&format!("{call} (call $passed_on)"))
}

#[tokio::test]
async fn a_component_makes_requests_to_granted_hosts_only() {
    let output = call(HOSTS, &requests("https://api.example/a", "bö")).await.unwrap().output.unwrap();
    assert_eq!(
        (&output["method"], &output["path"], &output["body"]),
        (&json!("PUT"), &json!("/a"), &json!("bö"))
    );
    let client = Echo::default();
    let runtime = Runtime::builder().at_once(2).http_client(client.clone()).build().unwrap();
    let denied = runtime.compile(&manifest(HOSTS), &requests("https://other.example/", "")).unwrap();
    let error = denied.invoke(Call::new("op")).await.unwrap_err();
    assert_eq!(error.failure().class, Class::CapabilityDenied, "{error}");
    assert!(error.to_string().contains("other.example"), "{error}");
    let granted = runtime.compile(&manifest(HOSTS), &requests("https://api.example/", "")).unwrap();
    let error = granted.invoke(Call::new("op").allow_hosts(["x.example:443"])).await.unwrap_err();
    assert_eq!(error.failure().class, Class::CapabilityDenied, "{error}");
    assert_eq!(client.0.load(Ordering::SeqCst), 0);
    // The failure of a malformed request is the program's own: it may go on.
    let error = call(HOSTS, &requests("no URL", "")).await.unwrap_err();
    assert_eq!(error.failure().class, Class::RuntimeError, "{error}");
    assert_eq!(error.logs()[0].level, "warn");
}

#[tokio::test]
async fn a_denied_request_decides_whatever_the_component_returns() {
    let mut guest = Guest::host(&["http-request"]);
    let (url, fine) = (guest.text("https://other.example/"), guest.text("{}"));
    let request = format!("(call $http-request {NONE} {url} {EMPTY} {NONE} {NONE} (i32.const 512))");
    let program = guest.build(&format!("{request} (call $ok {fine})"));
    assert_eq!(of(&call(HOSTS, &program).await.unwrap_err()).0, Class::CapabilityDenied);
    let good = guest.text("https://api.example/");
    let later = format!("(call $http-request {NONE} {good} {EMPTY} {NONE} {NONE} (i32.const 512))");
    let program = guest.build(&format!("{request} {later} (call $passed_on)"));
    assert_eq!(call(HOSTS, &program).await.unwrap().output.unwrap()["path"], "/");
    assert_eq!(call(HOSTS, &program).await.unwrap().output.unwrap()["method"], "GET");
}

#[tokio::test]
async fn a_component_spawns_what_the_manifest_grants() {
    let spawns = |program: &str| {
        let mut guest = Guest::host(&["spawn"]);
        let (program, stores) = (guest.text(program), guest.texts(300, &[program]));
        // A list of one text, at 300.
        let lists = format!("(i32.const 300) (i32.const 1) {EMPTY} {NONE} {NONE} {EMPTY}");
        guest.build(&format!("{stores} (call $spawn {program} {lists} (i32.const 512)) (call $passed_on)"))
    };
    let output = call(PROGRAMS, &spawns("/bin/true")).await.unwrap().output.unwrap();
    assert_eq!(serde_json::Value::from(output), json!({"program": "/bin/true", "argv": ["/bin/true"]}));
    let error = call(PROGRAMS, &spawns("/bin/false")).await.unwrap_err();
    assert_eq!(error.failure().class, Class::CapabilityDenied, "{error}");
}

#[tokio::test]
async fn a_component_runs_operations_of_the_manifest() {
    let runs = |operation: &str, name: &str| {
        let mut guest = Guest::host(&["spawn-op"]);
        // A list of one tuple, at 300.
        let (operation, stores) = (guest.text(operation), guest.texts(300, &["name", name]));
        let list = "(i32.const 300) (i32.const 1)";
        guest
            .build(&format!("{stores} (call $spawn-op {operation} {list} (i32.const 512)) (call $passed_on)"))
    };
    let manifest =
        &format!("{PROGRAMS}\n[capabilities.spawn.operations]\ngreet = '/bin/true hello {{name}}'");
    let output = call(manifest, &runs("greet", "w")).await.unwrap().output.unwrap();
    assert_eq!(output["argv"], json!(["/bin/true", "hello", "w"]));
    for (operation, name) in [("other", "w"), ("greet", "a\0b")] {
        assert!(call(manifest, &runs(operation, name)).await.is_err(), "{operation}");
    }
}

#[test]
fn an_import_that_the_manifest_does_not_cover_is_named() {
    for (function, covered, table) in [
        ("http-request", HOSTS, "capabilities.network.hosts"),
        ("spawn", PROGRAMS, "capabilities.spawn.programs"),
        ("spawn-op", PROGRAMS, "capabilities.spawn.programs"),
    ] {
        // Another version of the interface is the same interface.
        for interface in ["kennel:connector/host@1.0.0", "kennel:connector/host@1.7.0"] {
            let guest = Guest::host_at(interface, &["log", function]);
            let program = guest.build(&format!("(call $ok {EMPTY})"));
            let message = refused(NOTHING, &program);
            assert!(message.contains(&format!("{interface}.{function}: ")), "{message}");
            assert!(message.contains(table), "{message}");
            let error = runtime().compile(&manifest(NOTHING), &program).unwrap_err();
            let remedy = error.remedy().unwrap().to_string();
            assert!(remedy.contains("delete the function from the connector.wit"), "{remedy}");
        }
        let program = Guest::host(&[function]).build(&format!("(call $ok {EMPTY})"));
        runtime().compile(&manifest(covered), &program).unwrap();
    }
}

#[test]
fn an_import_that_is_not_offered_is_named() {
    for (import, name) in [
        (
            r#"(import "wasi:http/outgoing-handler@0.2.0" (instance (export "handle" (func))))"#,
            "outgoing-handler",
        ),
        (r#"(import "kennel:connector/host@2.0.0" (instance (export "log" (func))))"#, "host@2.0.0"),
        (r#"(import "kennel:connector/host@1.0.0" (instance (export "exec" (func))))"#, "exec"),
        (
            r#"(import "kennel:connector/host@1.0.0" (instance (export "log" (func (param "level" string)))))"#,
            "log",
        ),
        (r#"(import "system" (func (param "command" string)))"#, "system"),
        (r#"(import "m" (core module))"#, "m"),
    ] {
        let mut guest = Guest::new();
        guest.import(import);
        let message = refused(NOTHING, &guest.build(&format!("(call $ok {EMPTY})")));
        assert!(message.contains(name), "{message}");
    }
}

#[test]
fn an_export_that_is_not_invoke_is_refused() {
    let mut guest = Guest::new();
    let body = format!("(call $ok {EMPTY})");
    runtime().compile(&manifest(NOTHING), &guest.build(&body)).unwrap();
    guest.export.0 = "other";
    let missing = "test cannot be loaded: it exports no function invoke with the type of connector.wit";
    assert_eq!(refused(NOTHING, &guest.build(&body)), missing);
    guest.export.0 = "invoke";
    for kind in [
        INVOKE.replace("(error $error)", ""),
        INVOKE.replace("(error $error)", "(error string)"),
        INVOKE.replace("result string", "result (list u8)"),
        INVOKE.replace(r#"(param "op" string)"#, r#"(param "op" (list u8))"#),
    ] {
        guest.export.1 = kind;
        assert_eq!(refused(NOTHING, &guest.build(&body)), missing, "{}", guest.export.1);
    }
    let instance = wat::parse_str(r#"(component (instance $i) (export "invoke" (instance $i)))"#).unwrap();
    assert_eq!(refused(NOTHING, &instance), missing);
}

#[tokio::test]
async fn memory_and_time_have_limits() {
    let loops = compiled(NOTHING, &Guest::new().build("(loop $l (br $l)) unreachable"));
    let limits = CallLimits { wall_time: Some(Duration::from_millis(100)), ..CallLimits::default() };
    let (class, message) = of(&loops.invoke(Call::new("op").limits(limits)).await.unwrap_err());
    assert_eq!(class, Class::ResourceLimitExceeded);
    assert!(message.contains("100ms"), "{message}");

    let grows = Guest::new().build(&format!(
        "(if (i32.eq (memory.grow (i32.const 100)) (i32.const -1)) (then unreachable)) (call $ok {EMPTY})"
    ));
    let connector = compiled(NOTHING, &grows);
    connector.invoke(Call::new("op")).await.unwrap();
    let limits = CallLimits { memory_bytes: Some(1 << 20), ..CallLimits::default() };
    let (class, message) = of(&connector.invoke(Call::new("op").limits(limits)).await.unwrap_err());
    assert_eq!(class, Class::ResourceLimitExceeded);
    assert_eq!(message, "the program needs more memory than 1048576 bytes");
    // Arguments that do not fit.
    let call = Call::new("op").argument("a", "x".repeat(2 << 20)).limits(limits);
    assert_eq!(of(&connector.invoke(call).await.unwrap_err()).0, Class::ResourceLimitExceeded);
}

/// The interfaces of WASI that say what a program has.
const SURROUNDINGS: &str = r#"
    (import "wasi:cli/environment@0.2.0" (instance $environment
        (export "get-environment" (func (result (list (tuple string string)))))
        (export "get-arguments" (func (result (list string))))))
    (import "wasi:filesystem/types@0.2.0" (instance $types (export "descriptor" (type (sub resource)))))
    (alias export $types "descriptor" (type $descriptor))
    (import "wasi:filesystem/preopens@0.2.0" (instance $preopens
        (export "descriptor" (type $d (eq $descriptor)))
        (export "get-directories" (func (result (list (tuple (own $d) string)))))))
    (import "wasi:sockets/network@0.2.0" (instance $network
        (type $error' (enum "unknown" "access-denied" "not-supported" "invalid-argument" "out-of-memory" "timeout"
            "concurrency-conflict" "not-in-progress" "would-block" "invalid-state" "new-socket-limit"
            "address-not-bindable" "address-in-use" "remote-unreachable" "connection-refused" "connection-reset"
            "connection-aborted" "datagram-too-large" "name-unresolvable" "temporary-resolver-failure"
            "permanent-resolver-failure"))
        (export "error-code" (type (eq $error')))
        (type $family' (enum "ipv4" "ipv6"))
        (export "ip-address-family" (type (eq $family')))
        (export "network" (type (sub resource)))))
    (alias export $network "error-code" (type $error-code))
    (alias export $network "ip-address-family" (type $family))
    (alias export $network "network" (type $net))
    (import "wasi:sockets/tcp@0.2.0" (instance $tcp (export "tcp-socket" (type (sub resource)))))
    (alias export $tcp "tcp-socket" (type $tcp-socket))
    (import "wasi:sockets/tcp-create-socket@0.2.0" (instance $tcp-create
        (export "error-code" (type $e (eq $error-code)))
        (export "ip-address-family" (type $f (eq $family)))
        (export "tcp-socket" (type $s (eq $tcp-socket)))
        (export "create-tcp-socket" (func (param "address-family" $f) (result (result (own $s) (error $e)))))))
    (import "wasi:sockets/udp@0.2.0" (instance $udp (export "udp-socket" (type (sub resource)))))
    (alias export $udp "udp-socket" (type $udp-socket))
    (import "wasi:sockets/udp-create-socket@0.2.0" (instance $udp-create
        (export "error-code" (type $e (eq $error-code)))
        (export "ip-address-family" (type $f (eq $family)))
        (export "udp-socket" (type $s (eq $udp-socket)))
        (export "create-udp-socket" (func (param "address-family" $f) (result (result (own $s) (error $e)))))))
    (import "wasi:sockets/instance-network@0.2.0" (instance $instance-network
        (export "network" (type $n (eq $net)))
        (export "instance-network" (func (result (own $n))))))
    (import "wasi:sockets/ip-name-lookup@0.2.0" (instance $lookup
        (export "error-code" (type $e (eq $error-code)))
        (export "network" (type $n (eq $net)))
        (export "resolve-address-stream" (type $stream (sub resource)))
        (export "resolve-addresses" (func (param "network" (borrow $n)) (param "name" string)
            (result (result (own $stream) (error $e)))))))"#;

#[tokio::test]
async fn wasi_has_no_variable_no_argument_no_directory_no_socket_and_no_name() {
    let mut guest = Guest::new();
    guest.import(SURROUNDINGS);
    let name = guest.text("localhost");
    guest.lower("environment", "get-environment", "(param i32)");
    guest.lower("environment", "get-arguments", "(param i32)");
    guest.lower("preopens", "get-directories", "(param i32)");
    guest.lower("tcp-create", "create-tcp-socket", "(param i32 i32)");
    guest.lower("udp-create", "create-udp-socket", "(param i32 i32)");
    guest.lower("instance-network", "instance-network", "(result i32)");
    guest.lower("lookup", "resolve-addresses", "(param i32 i32 i32 i32)");
    let no_list = |function: &str| {
        format!("(call ${function} (i32.const 512)) (if (i32.load (i32.const 516)) (then unreachable))")
    };
    // An error, and its number: access-denied.
    let is_denied = "(if (i32.ne (i32.load8_u (i32.const 512)) (i32.const 1)) (then unreachable))
        (if (i32.ne (i32.load8_u (i32.const 516)) (i32.const 1)) (then unreachable))";
    let body = format!(
        "{} {} {}
        (call $create-tcp-socket (i32.const 0) (i32.const 512)) {is_denied}
        (call $create-udp-socket (i32.const 1) (i32.const 512)) {is_denied}
        (call $resolve-addresses (call $instance-network) {name} (i32.const 512))
        (if (i32.eqz (i32.load8_u (i32.const 512))) (then unreachable))
        (call $ok {EMPTY})",
        no_list("get-environment"),
        no_list("get-arguments"),
        no_list("get-directories")
    );
    let program = guest.build(&body);
    call(NOTHING, &program).await.unwrap();
}

#[tokio::test]
async fn resources_without_end_are_refused() {
    let mut guest = Guest::new();
    guest.import(
        r#"(import "wasi:io/poll@0.2.0" (instance $poll (export "pollable" (type (sub resource)))))
        (alias export $poll "pollable" (type $pollable))
        (import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock
            (export "pollable" (type $p (eq $pollable)))
            (export "subscribe-duration" (func (param "when" u64) (result (own $p))))))
        (import "wasi:io/streams@0.2.0" (instance $streams (export "output-stream" (type (sub resource)))))
        (alias export $streams "output-stream" (type $stream))
        (import "wasi:cli/stdout@0.2.0" (instance $stdout
            (export "output-stream" (type $s (eq $stream)))
            (export "get-stdout" (func (result (own $s))))))"#,
    );
    guest.lower("clock", "subscribe-duration", "(param i64) (result i32)");
    guest.lower("stdout", "get-stdout", "(result i32)");
    for creates in ["(call $subscribe-duration (i64.const 1000000000000))", "(call $get-stdout)"] {
        let times = |number: u32| {
            format!(
                "(local $i i32) (loop $more (drop {creates})
                 (br_if $more (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const {number}))))
                 (call $ok {EMPTY})"
            )
        };
        call(NOTHING, &guest.build(&times(500))).await.unwrap();
        let (class, message) = failure(&guest.build(&times(2000))).await;
        assert_eq!((class, &*message), (Class::RuntimeError, "resource table has no free keys"), "{creates}");
    }
}

#[tokio::test]
async fn texts_and_lists_that_are_too_large_for_the_host_are_refused() {
    let mut guest = Guest::host(&["log"]);
    let level = guest.text("info");
    let grow = "(drop (memory.grow (i32.const 600)))";
    let logs =
        |size: u32| format!("{grow} (call $log {level} (i32.const 0) (i32.const {size})) (call $ok {EMPTY})");
    call(NOTHING, &guest.build(&logs(15 << 20))).await.unwrap();
    let (class, message) = failure(&guest.build(&logs(17 << 20))).await;
    assert!(class == Class::RuntimeError && message.contains("too much data"), "{message}");
    // Elements of lists count, even empty ones.
    let mut guest = Guest::host(&["http-request"]);
    let url = guest.text("https://api.example/");
    let list = "(i32.const 131072) (i32.const 1100000)";
    let request = format!("(call $http-request {NONE} {url} {list} {NONE} {NONE} (i32.const 512))");
    let error = call(HOSTS, &guest.build(&format!("{grow} {request} (call $passed_on)"))).await.unwrap_err();
    assert!(error.to_string().contains("too much data"), "{error}");
    // An output of megabytes.
    let output = |size: u32| format!("{grow} (call $ok (i32.const 131072) (i32.const {size}))");
    let (class, message) = failure(&Guest::new().build(&output(2 << 20))).await;
    assert_eq!((class, &*message), (Class::ResourceLimitExceeded, "the output has more than 1048576 bytes"));
    let (class, message) = failure(&Guest::new().build(&output(20 << 20))).await;
    assert!(class == Class::RuntimeError && message.contains("too much data"), "{message}");
}

#[tokio::test]
async fn random_bytes_come_in_bounded_pieces() {
    let mut guest = Guest::new();
    guest.import(
        r#"(import "wasi:random/random@0.2.0" (instance $random
            (export "get-random-bytes" (func (param "len" u64) (result (list u8))))))"#,
    );
    guest.lower("random", "get-random-bytes", "(param i64 i32)");
    let gets =
        |size: u64| format!("(call $get-random-bytes (i64.const {size}) (i32.const 512)) (call $ok {EMPTY})");
    call(NOTHING, &guest.build(&gets(64 << 10))).await.unwrap();
    let (class, message) = failure(&guest.build(&gets(1 << 40))).await;
    assert!(class == Class::RuntimeError && message.contains("exceeds limit"), "{message}");
}

#[tokio::test]
async fn a_component_of_many_instances_or_memories_does_not_load() {
    let many = |module: &str, number: usize| {
        let mut guest = Guest::new();
        let instances = "(core instance (instantiate $extra))".repeat(number);
        guest.import(&format!("(core module $extra {module}) {instances}"));
        guest.build(&format!("(call $ok {EMPTY})"))
    };
    runtime().compile(&manifest(NOTHING), &many("", 60)).unwrap();
    assert!(refused(NOTHING, &many("", 63)).contains("core module instances"));
    runtime().compile(&manifest(NOTHING), &many("(memory 1)", 1)).unwrap();
    assert!(refused(NOTHING, &many("(memory 1)", 2)).contains("memories"));
    assert!(refused(NOTHING, &many("(table 1 funcref)", 9)).contains("tables"));
}

#[tokio::test]
async fn many_components_run_at_once_and_wait_for_a_slot() {
    let mut guest = Guest::new();
    guest.import(&format!("(core module $extra) {}", "(core instance (instantiate $extra))".repeat(60)));
    let connector = compiled(NOTHING, &guest.build(&format!("(call $ok {EMPTY})")));
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let connector = connector.clone();
        calls.spawn(async move { connector.invoke(Call::new("op")).await });
    }
    while let Some(ended) = calls.join_next().await {
        ended.unwrap().unwrap();
    }
}
