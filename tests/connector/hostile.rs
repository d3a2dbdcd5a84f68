//! Programs that want to harm the runtime.

use std::fs;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Request, Response};
use kennel::connector::{Call, CallLimits, ConnectorError, HttpClient, Runtime, Sending};
use kennel::{Audit, report::Class};
use serde_json::json;
use tokio::task::JoinSet;

use crate::steps::Guest;
use crate::support::{NOTHING, call, connector, failure, manifest, module, of, runtime, says};

/// The functions of `aileron_host`, each with a range that is not in memory.
const BAD_RANGES: [(&str, &str, &[&str]); 6] = [
    (
        "log",
        "(param i32 i32 i32 i32)",
        &["-1 1 0 0", "0 0 0 -1", "0 131073 0 0", "-1 -1 -1 -1", "0 0 131072 1"],
    ),
    (
        "http_request",
        "(param i32 i32) (result i32)",
        &["-1 1", "0 -1", "131072 1", "131000 1000", "-2147483648 2147483647"],
    ),
    ("http_response_read", "(param i32 i32) (result i32)", &[]),
    ("spawn", "(param i32 i32) (result i32)", &["-1 1", "0 -1", "131072 1"]),
    ("spawn_op", "(param i32 i32 i32 i32) (result i32)", &["-1 1 0 0", "0 0 0 -1", "131072 1 0 0"]),
    ("spawn_output_read", "(param i32 i32 i32) (result i32)", &[]),
];

const ALL: &str = "[capabilities.network]\nhosts = ['127.0.0.1:1']\n\
    [capabilities.spawn]\nprograms = [{ path = '/bin/true' }]";

#[tokio::test]
async fn a_range_outside_of_memory_ends_the_call_and_nothing_else() {
    let (runtime, manifest) = (runtime(), manifest(ALL));
    for (function, signature, bad) in BAD_RANGES {
        for ranges in bad {
            let import = format!("(import \"aileron_host\" \"{function}\" (func $f {signature}))");
            let arguments: String = ranges.split(' ').map(|number| format!("(i32.const {number})")).collect();
            let drop = if signature.contains("result") { "drop" } else { "" };
            let program = module(&import, "", &format!("(call $f {arguments}) {drop}"));
            let connector = runtime.compile(&manifest, &program).unwrap();
            let error = connector.invoke(Call::new("op")).await.unwrap_err();
            assert_eq!(error.failure().class, Class::RuntimeError);
            let expected = format!("{function}: the range is not in the memory of the program");
            assert_eq!(error.failure().message, expected, "{ranges}");
        }
    }
}

#[tokio::test]
async fn a_program_without_memory_can_call_nothing_that_needs_it() {
    let text = r#"(module (import "aileron_host" "log" (func $log (param i32 i32 i32 i32)))
        (func (export "_start") (call $log (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0))))"#;
    let (class, message) = failure(&wat::parse_str(text).unwrap()).await;
    assert_eq!((class, &*message), (Class::RuntimeError, "log: the program exports no memory"));
}

#[tokio::test]
async fn endless_recursion_overflows_its_own_stack_only() {
    let recursion = module("", "", "(call $start)");
    for _ in 0..20 {
        let (class, message) = failure(&recursion).await;
        assert_eq!(class, Class::RuntimeError);
        assert!(message.contains("call stack exhausted"), "{message}");
    }
    // A host function at the end of the stack.
    let import = r#"(import "aileron_host" "log" (func $log (param i32 i32 i32 i32)))"#;
    let logs = module(
        import,
        "",
        "(call $log (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)) (call $start)",
    );
    let (class, message) = failure(&logs).await;
    assert!(class == Class::RuntimeError && message.contains("call stack exhausted"), "{message}");
}

#[tokio::test]
async fn megabytes_of_output_are_refused_and_of_stderr_are_forgotten() {
    let loops = |fd: u32| {
        format!(
            "(local $i i32) (loop $more
        (call $write (i32.const {fd}) (i32.const 0) (i32.const 131072))
        (br_if $more (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 200))))"
        )
    };
    let (class, message) = failure(&module("", "", &loops(1))).await;
    assert_eq!((class, &*message), (Class::ResourceLimitExceeded, "the output has more than 1048576 bytes"));
    assert_eq!(call(&module("", "", &loops(2))).await.unwrap().output, None);
}

#[tokio::test]
async fn a_flood_of_log_lines_is_cut() {
    let import = r#"(import "aileron_host" "log" (func $log (param i32 i32 i32 i32)))"#;
    let flood = |length: u32| {
        format!(
            "(local $i i32) (loop $more
        (call $log (i32.const 1024) (i32.const 4) (i32.const 0) (i32.const {length}))
        (br_if $more (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 10000))))"
        )
    };
    let result = call(&module(import, "info", &flood(10))).await.unwrap();
    assert_eq!(result.logs.len(), 1001);
    assert!(result.logs[1000].message.starts_with("9000 further log lines were dropped"));
    let result = call(&module(import, "info", &flood(100_000))).await.unwrap();
    assert_eq!(result.logs.len(), 3);
    // Of a longer line, the start is kept. Nothing makes a copy of the rest.
    let long = "(drop (memory.grow (i32.const 400))) (call $log (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 20000000))";
    let result = call(&module(import, "", long)).await.unwrap();
    assert_eq!(result.logs.len(), 1);
    assert_eq!(result.logs[0].message.len(), "\\u{0}".len() * (256 << 10));
    // What is no UTF-8 is replaced.
    let result = call(&module(
        import,
        b"info\xff\xfe",
        "(call $log (i32.const 1024) (i32.const 6) (i32.const 1026) (i32.const 4))",
    ))
    .await
    .unwrap();
    assert_eq!(result.logs[0].message, "fo\u{fffd}\u{fffd}");
}

#[tokio::test]
async fn large_json_is_refused_or_read_in_bounded_memory() {
    let wide = format!("{{\"output\":{{\"a\":[{}0]}}}}", "[],".repeat(10_000));
    let output = call(&says(&wide)).await.unwrap().output.unwrap();
    assert_eq!(output["a"].as_array().unwrap().len(), 10_001);
    let nested = format!("{{\"output\":{}", "{\"a\":".repeat(10_000));
    assert_eq!(failure(&says(&nested)).await.0, Class::RuntimeError);
    let number = format!("{{\"output\":{{\"a\":1e{}}}}}", "9".repeat(10_000));
    assert_eq!(failure(&says(&number)).await.0, Class::RuntimeError);
}

#[tokio::test]
async fn thousands_of_calls_at_once_do_not_disturb_each_other() {
    let runtime = runtime();
    let good = runtime.compile(&manifest(NOTHING), &says(r#"{"output":{"a":1}}"#)).unwrap();
    let traps = runtime.compile(&manifest(NOTHING), &module("", "", "unreachable")).unwrap();
    let loops = runtime.compile(&manifest(NOTHING), &module("", "", "(loop $l (br $l))")).unwrap();
    let mut calls = JoinSet::new();
    for number in 0..3000 {
        let (connector, limits) = match number % 100 {
            0 => (&loops, CallLimits { wall_time: Some(Duration::from_millis(20)), ..CallLimits::default() }),
            1..10 => (&traps, CallLimits::default()),
            _ => (&good, CallLimits { wall_time: Some(Duration::from_secs(200)), ..CallLimits::default() }),
        };
        let connector = connector.clone();
        calls.spawn(async move { (number % 100, connector.invoke(Call::new("op").limits(limits)).await) });
    }
    while let Some(ended) = calls.join_next().await {
        match ended.unwrap() {
            (0, ended) => assert_eq!(ended.unwrap_err().failure().class, Class::ResourceLimitExceeded),
            (1..10, ended) => assert_eq!(ended.unwrap_err().failure().class, Class::RuntimeError),
            (_, ended) => assert_eq!(ended.unwrap().output.unwrap()["a"], 1),
        }
    }
}

#[tokio::test]
async fn a_dropped_call_ends_and_its_slot_is_free() {
    let runtime = Runtime::builder().at_once(1).build().unwrap();
    let loops = runtime.compile(&manifest(NOTHING), &module("", "", "(loop $l (br $l))")).unwrap();
    let good = runtime.compile(&manifest(NOTHING), &says("")).unwrap();
    for _ in 0..10 {
        let call = loops.invoke(Call::new("op"));
        tokio::time::timeout(Duration::from_millis(20), call).await.unwrap_err();
        good.invoke(Call::new("op")).await.unwrap();
    }
    assert_eq!(connector(&says("")).name(), "test");
}

#[tokio::test]
async fn a_module_that_waits_for_very_much_at_once_is_refused() {
    let import = r#"(import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))"#;
    // Subscriptions to the clock, for now: memory is zero.
    let polls = |number: u32| {
        let start = format!(
            "(drop (memory.grow (i32.const 200)))
             (if (call $poll (i32.const 131072) (i32.const 8388608) (i32.const {number}) (i32.const 8)) (then unreachable))"
        );
        module(import, "", &start)
    };
    call(&polls(500)).await.unwrap();
    for number in [2000, 100_000] {
        let (class, message) = failure(&polls(number)).await;
        assert_eq!(class, Class::RuntimeError);
        assert!(message.contains("resource table has no free keys"), "{message}");
    }
}

/// Fills a request with headers by itself, because it is larger than its data could be.
#[tokio::test]
async fn more_headers_than_a_map_can_have_are_malformed() {
    let import = r#"(import "aileron_host" "http_request" (func $request (param i32 i32) (result i32)))"#;
    // {"url":"http://127.0.0.1:1","headers":{"x00000":"", … "a":""}}
    let (head, tail) = (r#"{"url":"http://127.0.0.1:1","headers":{"#, r#""a":""}}"#);
    let asks = |headers: u32| {
        let (length, end) = (head.len(), tail.len());
        let start = format!(
            r#"(local $i i32) (local $at i32) (local $digit i32) (local $rest i32)
            (drop (memory.grow (i32.const 100)))
            (local.set $at (i32.const 131072))
            (memory.copy (local.get $at) (i32.const 1024) (i32.const {length}))
            (local.set $at (i32.add (local.get $at) (i32.const {length})))
            (loop $more
                (memory.copy (local.get $at) (i32.const {name}) (i32.const 12))
                (local.set $rest (local.get $i))
                (local.set $digit (i32.add (local.get $at) (i32.const 6)))
                (loop $digits
                    (i32.store8 (local.get $digit)
                        (i32.add (i32.const 48) (i32.rem_u (local.get $rest) (i32.const 10))))
                    (local.set $digit (i32.sub (local.get $digit) (i32.const 1)))
                    (br_if $digits (local.tee $rest (i32.div_u (local.get $rest) (i32.const 10)))))
                (local.set $at (i32.add (local.get $at) (i32.const 12)))
                (br_if $more (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const {headers}))))
            (memory.copy (local.get $at) (i32.const {tail_at}) (i32.const {end}))
            (if (i32.ne (i32.const -2) (call $request (i32.const 131072)
                (i32.sub (i32.add (local.get $at) (i32.const {end})) (i32.const 131072)))) (then unreachable))"#,
            name = 1024 + length,
            tail_at = 1024 + length + 12,
        );
        module(import, format!("{head}\"x00000\":\"\",{tail}"), &start)
    };
    for headers in [1000, 24_576, 32_768, 40_000] {
        let connector = runtime().compile(&manifest(ALL), &asks(headers)).unwrap();
        let result = connector.invoke(Call::new("op")).await.unwrap();
        assert_eq!(result.logs[0].message, "http_request: it has more than 1000 headers");
    }
}

/// What a program says is in messages, which are in records: it is cut.
#[tokio::test]
async fn a_message_is_short_whatever_a_program_says() {
    fn is_short(error: &ConnectorError) {
        let text = format!("{:?}{:?}", error.failure(), error.logs());
        assert!(text.len() < 30_000, "{} bytes: {}", text.len(), &text[..200]);
    }
    let long = "xy\u{7f}".repeat(20_000);
    for text in [
        format!(r#"{{"output":"{long}"}}"#),
        format!(r#"{{"{long}":1}}"#),
        format!(r#"{{"error":{{"class":"{long}","message":"{long}"}}}}"#),
        format!(r#"{{"error":"{long}"}}"#),
        format!(r#""{long}""#),
    ] {
        is_short(&call(&says(&text)).await.unwrap_err());
    }
    let import = r#"(import "aileron_host" "http_request" (func $request (param i32 i32) (result i32)))
        (import "aileron_host" "spawn" (func $spawn (param i32 i32) (result i32)))
        (import "aileron_host" "spawn_op" (func $op (param i32 i32 i32 i32) (result i32)))"#;
    let url = "http://127.0.0.1:1";
    let calls = [
        ("$request", format!(r#"{{"url":"{long}"}}"#)),
        ("$request", format!(r#"{{"url":"{url}","method":"{long}"}}"#)),
        ("$request", format!(r#"{{"url":"{url}","credential":"{long}"}}"#)),
        ("$request", format!(r#"{{"url":"http://{}"}}"#, "a.".repeat(10_000))),
        ("$request", format!(r#"{{"url":"{url}","headers":{{"{}":"\u0000"}}}}"#, "b".repeat(60_000))),
        ("$spawn", format!(r#"{{"program":"{long}"}}"#)),
        ("$spawn", format!(r#"{{"program":"/{long}"}}"#)),
        ("$spawn", format!(r#"{{"program":"true","argv":["true"],"cwd":"{long}"}}"#)),
        ("$spawn", format!(r#"{{"program":"true","argv":["true"],"cwd":"/{long}"}}"#)),
        ("$spawn", format!(r#"{{"program":"true","argv":["true"],"env":{{"{long}":""}}}}"#)),
        ("$spawn", format!(r#"{{"program":"true","argv":["true"],"credential_env_keys":["{long}"]}}"#)),
        ("$spawn", format!(r#"{{"{long}":1}}"#)),
        ("$op", long),
    ];
    for (function, text) in calls {
        let arguments = if function == "$op" { "(i32.const 1024) (i32.const 2)" } else { "" };
        let length = text.len() + 2;
        let start =
            format!("(drop (call {function} (i32.const 1026) (i32.const {length}) {arguments})) unreachable");
        let program = module(import, format!("{{}}{text}  "), &start);
        let connector = runtime().compile(&manifest(ALL), &program).unwrap();
        let error = connector.invoke(Call::new("op")).await.unwrap_err();
        assert!(!error.failure().message.contains("out of bounds"), "{error:?}");
        is_short(&error);
    }
}

#[tokio::test]
async fn a_panic_in_a_host_function_ends_the_call_and_nothing_else() {
    /// A client with a bug that a program reaches.
    struct Panics;
    impl HttpClient for Panics {
        fn send(&self, request: Request<Bytes>) -> Sending<'_> {
            Box::pin(async move {
                assert_ne!(request.uri().path(), "/panic", "on purpose");
                Ok(Response::default())
            })
        }
    }
    let place = tempfile::tempdir().unwrap();
    let log = place.path().join("audit.log");
    // One slot: it must be free again.
    let runtime = Runtime::builder().at_once(1).http_client(Panics).audit(Audit::new(&log)).build().unwrap();
    for _ in 0..3 {
        for (path, is_caught) in [("/panic", true), ("/", false)] {
            let guest = Guest::new().request(&json!({"url": format!("http://127.0.0.1:1{path}")}));
            let connector = runtime.compile(&manifest(ALL), &guest.program()).unwrap();
            let ended = connector.invoke(Call::new("op")).await;
            let message = ended.map_err(|error| of(&error));
            let expected = (Class::RuntimeError, "a function of the host panicked".to_owned());
            assert_eq!(message.err(), is_caught.then_some(expected));
        }
    }
    assert_eq!(fs::read_to_string(log).unwrap().matches(r#""decision":"failed""#).count(), 3);
}
