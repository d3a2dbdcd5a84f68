//! Programs as text, and a runtime to call them in.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use kennel::connector::{Call, CallResult, Connector, ConnectorError, Runtime};
use kennel::{broker::Manifest, report::Class};

/// A manifest without capabilities.
pub(crate) const NOTHING: &str = "[connector]\nname = 'test'\n[capabilities]";

/// A core module. `data` lies in memory at 1024, and `start` is what `_start` does. It may call `$print`,
/// `$read` and the functions of `imports`.
pub(crate) fn module(imports: &str, data: impl AsRef<[u8]>, start: &str) -> Vec<u8> {
    let data: String = data.as_ref().iter().map(|byte| format!("\\{byte:02x}")).collect();
    let text = format!(
        r#"(module
            (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            {imports}
            (memory (export "memory") 2)
            (data (i32.const 1024) "{data}")
            ;; Writes to a descriptor.
            (func $write (param $fd i32) (param $from i32) (param $length i32)
                (i32.store (i32.const 0) (local.get $from))
                (i32.store (i32.const 4) (local.get $length))
                (drop (call $fd_write (local.get $fd) (i32.const 0) (i32.const 1) (i32.const 8))))
            (func $print (param $from i32) (param $length i32)
                (call $write (i32.const 1) (local.get $from) (local.get $length)))
            ;; Reads the input to 32768, and returns its length.
            (func $read (result i32)
                (i32.store (i32.const 0) (i32.const 32768))
                (i32.store (i32.const 4) (i32.const 32768))
                (drop (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
                (i32.load (i32.const 8)))
            (func $start (export "_start") {start}))"#
    );
    wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// A module that writes `{"output":{"in":…}}` around what it reads.
pub(crate) fn echo() -> Vec<u8> {
    module(
        "",
        r#"{"output":{"in":}}"#,
        "(local $length i32)
         (local.set $length (call $read))
         (call $print (i32.const 1024) (i32.const 16))
         (call $print (i32.const 32768) (local.get $length))
         (call $print (i32.const 1040) (i32.const 2))",
    )
}

/// A module that writes a text.
pub(crate) fn says(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    module("", text, &format!("(call $print (i32.const 1024) (i32.const {}))", text.len()))
}

pub(crate) fn runtime() -> Runtime {
    Runtime::builder().at_once(64).build().unwrap()
}

pub(crate) fn manifest(text: &str) -> Manifest {
    Manifest::from_toml(text).unwrap()
}

pub(crate) fn connector(program: &[u8]) -> Connector {
    runtime().compile(&manifest(NOTHING), program).unwrap()
}

pub(crate) async fn call(program: &[u8]) -> Result<CallResult, ConnectorError> {
    connector(program).invoke(Call::new("op")).await
}

/// The failure of a program.
pub(crate) async fn failure(program: &[u8]) -> (Class, String) {
    of(&call(program).await.unwrap_err())
}

pub(crate) fn of(error: &ConnectorError) -> (Class, String) {
    (error.failure().class, error.failure().message.clone())
}

/// Ends the test if an ordinary user runs it.
macro_rules! only_as_root {
    () => {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIP {}: it is about root", module_path!());
            return;
        }
    };
}
pub(crate) use only_as_root;

/// The `kennel` command.
pub(crate) fn kennel_path() -> PathBuf {
    env!("CARGO_BIN_EXE_kennel").into()
}

/// A time limit for something that must happen. `KENNEL_TIME_FACTOR` makes it longer on a slow machine.
pub(crate) fn patient(time: Duration) -> Duration {
    let factor = env::var("KENNEL_TIME_FACTOR").ok().map(|factor| factor.parse().expect("a number"));
    time * factor.unwrap_or(1)
}

/// Whether a program is on PATH.
pub(crate) fn has(program: &str) -> bool {
    env::split_paths(&env::var_os("PATH").unwrap_or_default()).any(|dir| dir.join(program).is_file())
}
