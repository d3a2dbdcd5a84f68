//! Which programs load.

use kennel::report::Class;

use crate::support::{NOTHING, manifest, module, of, runtime};

fn refused(manifest_text: &str, program: &[u8]) -> String {
    let error = runtime().compile(&manifest(manifest_text), program).unwrap_err();
    assert_eq!(error.to_wire()["class"], "connector_load_failed");
    let (class, message) = of(&error);
    assert_eq!(class, Class::LoadFailed);
    message
}

#[test]
fn what_is_no_program_is_refused() {
    for bytes in [
        &b""[..],
        b"\0",
        b"\0asm",
        b"\0asm\x01\0\0\0\xff",
        b"\0asm\x0d\0\x01\0\xff",
        b"#!/bin/sh\n",
        &[0xff; 4096],
    ] {
        assert!(refused(NOTHING, bytes).starts_with("test cannot be loaded: "));
    }
    let no_start = wat::parse_str("(module (memory (export \"memory\") 1))").unwrap();
    assert_eq!(refused(NOTHING, &no_start), "test exports no function _start without arguments");
    let odd_start = wat::parse_str("(module (func (export \"_start\") (param i32)))").unwrap();
    assert!(refused(NOTHING, &odd_start).contains("_start"));
}

#[test]
fn an_import_that_is_not_offered_is_named() {
    for import in [
        r#"(import "env" "system" (func (param i32) (result i32)))"#,
        r#"(import "aileron_host" "exec" (func))"#,
        r#"(import "aileron_host" "log" (func (param i32)))"#,
        r#"(import "wasi_snapshot_preview1" "thread_spawn" (func))"#,
        r#"(import "env" "memory" (memory 1))"#,
    ] {
        let message = refused(
            NOTHING,
            &wat::parse_str(format!("(module {import} (func (export \"_start\")))")).unwrap(),
        );
        let name = import.split('"').nth(3).unwrap();
        assert!(message.contains(name), "{message}");
    }
}

#[test]
fn an_import_that_the_manifest_does_not_cover_is_named() {
    let hosts = "[capabilities.network]\nhosts = ['a.example:443']";
    let programs = "[capabilities.spawn]\nprograms = [{ path = '/bin/true' }]";
    for (import, covered, table) in [
        (r#""http_request" (func (param i32 i32) (result i32))"#, hosts, "capabilities.network.hosts"),
        (r#""http_response_size" (func (result i32))"#, hosts, "capabilities.network.hosts"),
        (r#""spawn" (func (param i32 i32) (result i32))"#, programs, "capabilities.spawn.programs"),
        (
            r#""spawn_op" (func (param i32 i32 i32 i32) (result i32))"#,
            programs,
            "capabilities.spawn.programs",
        ),
        (r#""spawn_status" (func (result i32))"#, programs, "capabilities.spawn.programs"),
    ] {
        let program = module(&format!("(import \"aileron_host\" {import})"), "", "");
        let message = refused(NOTHING, &program);
        let name = import.split('"').nth(1).unwrap();
        assert!(message.contains(&format!("aileron_host.{name}")) && message.contains(table), "{message}");
        runtime().compile(&manifest(covered), &program).unwrap();
    }
}
