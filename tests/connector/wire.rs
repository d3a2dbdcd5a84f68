//! What a program reads and writes.

use kennel::connector::{Call, LogLevel};
use kennel::report::Class;
use serde_json::json;

use crate::support::{NOTHING, call, connector, echo, failure, manifest, module, runtime, says};

#[tokio::test]
async fn a_program_reads_its_operation_and_its_arguments() {
    let connector = connector(&echo());
    let result = connector.invoke(Call::new("list").argument("count", 3).argument("who", "é")).await.unwrap();
    let output = result.output.unwrap();
    assert_eq!(output["in"], json!({"op": "list", "args": {"count": 3, "who": "é"}}));
    assert_eq!(
        connector.invoke(Call::new("")).await.unwrap().output.unwrap()["in"],
        json!({"op": "", "args": {}})
    );
}

#[tokio::test]
async fn no_output_is_none_and_an_error_of_the_program_is_its_fault() {
    for nothing in ["", " \n"] {
        assert_eq!(call(&says(nothing)).await.unwrap().output, None);
    }
    assert_eq!(call(&says("{\"output\": {}}\n")).await.unwrap().output.unwrap(), serde_json::Map::new());
    let error = call(&says(r#"{"error": {"class": "not_found", "message": "no such mail\u001b[2J"}}"#))
        .await
        .unwrap_err();
    assert_eq!(error.failure().message, "not_found: no such mail\\u{1b}[2J");
    assert_eq!(error.to_wire()["class"], "connector_runtime_error");
    assert_eq!(error.failure().class, Class::RuntimeError);
}

#[tokio::test]
async fn any_other_output_is_a_fault() {
    for bad in [
        "x",
        "[]",
        "{}",
        "null",
        r#"{"output": null}"#,
        r#"{"output": []}"#,
        r#"{"output": {}} {"output": {}}"#,
        r#"{"output": {}, "error": {"class": "a", "message": "b"}}"#,
        r#"{"error": {"class": "a"}}"#,
        r#"{"result": {}}"#,
    ] {
        let (class, message) = failure(&says(bad)).await;
        assert_eq!(class, Class::RuntimeError, "{bad}");
        assert!(message.starts_with("its output is not {\"output\": "), "{bad}: {message}");
    }
    assert_eq!(failure(&says(b"\xff")).await.1, "its output is not UTF-8");
    let deep = format!("{{\"output\":{{\"a\":{}", "[".repeat(20_000));
    assert!(failure(&says(&deep)).await.1.contains("recursion limit"));
}

#[tokio::test]
async fn exits_and_traps_are_faults_that_show_the_end_of_stderr() {
    let exits = |status: u32| {
        module(
            "",
            "gone wrong\n",
            &format!(
                "(call $write (i32.const 2) (i32.const 1024) (i32.const 11)) (call $exit (i32.const {status}))"
            ),
        )
    };
    assert_eq!(call(&exits(0)).await.unwrap().output, None);
    let (class, message) = failure(&exits(3)).await;
    assert_eq!(
        (class, &*message),
        (Class::RuntimeError, "the program exited with status 3; its stderr ends: gone wrong")
    );
    let long = module(
        "",
        "x".repeat(1000),
        "(call $write (i32.const 2) (i32.const 1024) (i32.const 1000)) unreachable",
    );
    let message = failure(&long).await.1;
    assert!(message.starts_with("the program trapped: ") && message.contains("unreachable"), "{message}");
    assert!(message.ends_with(&format!(": {}", "x".repeat(256))), "{message}");
    let zero = module("", "", "(drop (i32.div_u (i32.const 1) (i32.const 0)))");
    assert!(failure(&zero).await.1.contains("divide by zero"));
}

#[tokio::test]
async fn log_lines_come_with_the_result_and_with_an_error() {
    let import = r#"(import "aileron_host" "log" (func $log (param i32 i32 i32 i32)))"#;
    let log = "(call $log (i32.const 1024) (i32.const 4) (i32.const 1028) (i32.const 5))";
    let result = call(&module(import, "warnhello", log)).await.unwrap();
    assert_eq!((&*result.logs[0].level, &*result.logs[0].message), ("warn", "hello"));
    assert_eq!(result.logs[0].severity(), LogLevel::Warn);
    let result = call(&module(import, "auDIhello", log)).await.unwrap();
    assert_eq!((&*result.logs[0].level, result.logs[0].severity()), ("auDI", LogLevel::Info));
    let error = call(&module(import, "infohello", &format!("{log} unreachable"))).await.unwrap_err();
    assert_eq!((&*error.logs()[0].level, &*error.logs()[0].message), ("info", "hello"));

    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let own = std::sync::Arc::clone(&seen);
    let sink = move |name: &str, line: &kennel::connector::LogLine| {
        own.lock().unwrap().push((name.to_owned(), line.clone()))
    };
    let runtime = kennel::connector::Runtime::builder().at_once(1).log_sink(sink).build().unwrap();
    let connector = runtime.compile(&manifest(NOTHING), &module(import, "infohello", log)).unwrap();
    connector.invoke(Call::new("op")).await.unwrap();
    assert_eq!(seen.lock().unwrap()[0].0, "test");
}

#[tokio::test]
async fn nothing_is_carried_over_to_the_next_call() {
    let counts = module(
        "(global $count (mut i32) (i32.const 0))",
        "01",
        r"(global.set $count (i32.add (global.get $count) (i32.const 1)))
          (i32.store8 (i32.const 5000) (i32.add (i32.load8_u (i32.const 5000)) (i32.const 1)))
          (if (i32.ne (i32.const 2) (i32.add (global.get $count) (i32.load8_u (i32.const 5000)))) (then unreachable))",
    );
    let connector = connector(&counts);
    for _ in 0..50 {
        connector.invoke(Call::new("op")).await.unwrap();
    }
}

#[tokio::test]
async fn wasi_has_no_argument_no_variable_no_directory_and_no_socket() {
    let imports = r#"
        (import "wasi_snapshot_preview1" "args_sizes_get" (func $args (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "environ_sizes_get" (func $environ (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_prestat_get" (func $prestat (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "path_open" (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "sock_accept" (func $accept (param i32 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "clock_time_get" (func $time (param i32 i64 i32) (result i32)))"#;
    let start = "
        (drop (call $args (i32.const 16) (i32.const 20)))
        (if (i32.load (i32.const 16)) (then unreachable))
        (drop (call $environ (i32.const 16) (i32.const 20)))
        (if (i32.load (i32.const 16)) (then unreachable))
        (if (i32.ne (call $prestat (i32.const 3) (i32.const 16)) (i32.const 8)) (then unreachable))
        (if (i32.eqz (call $open (i32.const 3) (i32.const 0) (i32.const 1024) (i32.const 1) (i32.const 0)
            (i64.const 0) (i64.const 0) (i32.const 0) (i32.const 16))) (then unreachable))
        (if (i32.eqz (call $accept (i32.const 3) (i32.const 0) (i32.const 16))) (then unreachable))
        (if (call $random (i32.const 16) (i32.const 16)) (then unreachable))
        (if (i64.eqz (i64.or (i64.load (i32.const 16)) (i64.load (i32.const 24)))) (then unreachable))
        (if (call $time (i32.const 0) (i64.const 1) (i32.const 16)) (then unreachable))
        (if (i64.lt_u (i64.load (i32.const 16)) (i64.const 1700000000000000000)) (then unreachable))";
    call(&module(imports, "/", start)).await.unwrap();
}

#[tokio::test]
async fn a_closed_runtime_refuses_calls_and_programs() {
    let runtime = runtime();
    let connector = runtime.compile(&manifest(NOTHING), &says("")).unwrap();
    connector.invoke(Call::new("op")).await.unwrap();
    runtime.close().await;
    let called = connector.invoke(Call::new("op")).await.unwrap_err();
    let compiled = runtime.compile(&manifest(NOTHING), &says("")).unwrap_err();
    for error in [called, compiled] {
        assert_eq!((error.failure().class, &*error.to_string()), (Class::Cancelled, "the runtime is closed"));
    }
    connector.close().await;
    runtime.close().await;
}

#[tokio::test]
async fn a_closed_connector_refuses_calls_and_leaves_the_others() {
    let runtime = runtime();
    let compiled = || runtime.compile(&manifest(NOTHING), &says("")).unwrap();
    let (closed, other) = (compiled(), compiled());
    let clone = closed.clone();
    closed.close().await;
    let error = clone.invoke(Call::new("op")).await.unwrap_err();
    assert_eq!((error.failure().class, &*error.to_string()), (Class::Cancelled, "the connector is closed"));
    other.invoke(Call::new("op")).await.unwrap();
    compiled().invoke(Call::new("op")).await.unwrap();
    closed.close().await;
}
