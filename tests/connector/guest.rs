//! Components as text: an interface of the host, functions that are imported, and what `invoke` does.

/// The records of `connector.wit`, as an instance type exports them.
const RECORDS: &str = r#"
    (type $request' (record (field "method" (option string)) (field "url" string)
        (field "headers" (list (tuple string string))) (field "body" (option string))
        (field "credential" (option string))))
    (export "request" (type $request (eq $request')))
    (type $response' (record (field "status" u16) (field "body" (list u8))))
    (export "response" (type $response (eq $response')))
    (type $failure' (record (field "class" string) (field "message" string)))
    (export "failure" (type $failure (eq $failure')))
    (type $envelope' (record (field "program" string) (field "argv" (list string))
        (field "env" (list (tuple string string))) (field "cwd" (option string)) (field "stdin" (option string))
        (field "credential-env-keys" (list string))))
    (export "envelope" (type $envelope (eq $envelope')))
    (type $output' (record (field "status" s32) (field "stdout" (list u8)) (field "stderr" (list u8))))
    (export "output" (type $output (eq $output')))"#;

/// The functions of `connector.wit`: their names, their types, and how many integers they take in core
/// WebAssembly.
const FUNCTIONS: [(&str, &str, usize); 4] = [
    ("log", r#"(param "level" string) (param "message" string)"#, 4),
    ("http-request", r#"(param "request" $request) (result (result $response (error $failure)))"#, 14),
    ("spawn", r#"(param "envelope" $envelope) (result (result $output (error $failure)))"#, 15),
    (
        "spawn-op",
        r#"(param "operation" string) (param "arguments" (list (tuple string string)))
           (result (result $output (error $failure)))"#,
        5,
    ),
];

/// The type of `invoke`.
pub(crate) const INVOKE: &str =
    r#"(param "op" string) (param "args-json" string) (result (result string (error $error)))"#;

/// A component under construction.
pub(crate) struct Guest {
    data: Vec<u8>,
    imports: String,
    lowered: String,
    passed: String,
    taken: String,
    pub(crate) export: (&'static str, String),
}

impl Guest {
    pub(crate) fn new() -> Self {
        let none = String::new;
        let export = ("invoke", INVOKE.to_owned());
        Self { data: Vec::new(), imports: none(), lowered: none(), passed: none(), taken: none(), export }
    }

    /// Imports functions of `connector.wit`.
    pub(crate) fn host(functions: &[&str]) -> Self {
        Self::host_at("kennel:connector/host@1.0.0", functions)
    }

    /// The same, with another name of the interface.
    pub(crate) fn host_at(interface: &str, functions: &[&str]) -> Self {
        let mut guest = Self::new();
        let mut exports = RECORDS.to_owned();
        let used = FUNCTIONS.into_iter().filter(|(name, ..)| functions.contains(name));
        for (name, kind, integers) in used {
            exports.push_str(&format!("(export \"{name}\" (func {kind}))"));
            guest.lower("host", name, &format!("(param {})", "i32 ".repeat(integers)));
        }
        guest.import(&format!(r#"(import "{interface}" (instance $host {exports}))"#));
        guest
    }

    /// Adds imports of the component.
    pub(crate) fn import(&mut self, text: &str) {
        self.imports.push_str(text);
    }

    /// Makes a function of an imported instance one of the core module, by the same name.
    pub(crate) fn lower(&mut self, instance: &str, name: &str, signature: &str) {
        self.lowered.push_str(&format!(
            r#"(alias export ${instance} "{name}" (func ${name}))
            (core func ${name} (canon lower (func ${name}) (memory $pages) (realloc $realloc)))"#
        ));
        self.passed.push_str(&format!(r#"(export "{name}" (func ${name}))"#));
        self.taken.push_str(&format!(r#"(import "host" "{name}" (func ${name} {signature}))"#));
    }

    /// The start and the length of a text in memory.
    pub(crate) fn text(&mut self, text: &str) -> String {
        let start = 1024 + self.data.len();
        self.data.extend_from_slice(text.as_bytes());
        format!("(i32.const {start}) (i32.const {})", text.len())
    }

    /// Stores texts at `at`: for each, its start and its length.
    pub(crate) fn texts(&mut self, at: usize, texts: &[&str]) -> String {
        let mut stores = String::new();
        for (number, text) in texts.iter().enumerate() {
            let (start, at) = (1024 + self.data.len(), at + 8 * number);
            self.data.extend_from_slice(text.as_bytes());
            stores.push_str(&format!(
                "(i32.store (i32.const {at}) (i32.const {start}))
                 (i32.store (i32.const {}) (i32.const {}))",
                at + 4,
                text.len()
            ));
        }
        stores
    }

    /// The component. `body` ends `invoke` with `$ok` or `$error`. What host functions return is at 512.
    pub(crate) fn build(&self, body: &str) -> Vec<u8> {
        let Self { data, imports, lowered, passed, taken, export: (name, kind) } = self;
        let data: String = data.iter().map(|byte| format!("\\{byte:02x}")).collect();
        let text = format!(
            r#"(component
            (type $error' (record (field "class" string) (field "message" string)))
            (import "error" (type $error (eq $error')))
            {imports}
            (core module $memory
                (memory (export "memory") 3)
                (data (i32.const 1024) "{data}")
                (global $next (mut i32) (i32.const 65536))
                (func (export "realloc") (param i32 i32 i32) (param $size i32) (result i32)
                    (local $start i32)
                    (local.set $start (i32.and (i32.add (global.get $next) (i32.const 15)) (i32.const -16)))
                    (global.set $next (i32.add (local.get $start) (local.get $size)))
                    (block $fits (loop $grow
                        (br_if $fits (i32.le_u (global.get $next) (i32.mul (memory.size) (i32.const 65536))))
                        (br_if $grow (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))
                        unreachable))
                    (local.get $start)))
            (core instance $memory (instantiate $memory))
            (alias core export $memory "memory" (core memory $pages))
            (alias core export $memory "realloc" (core func $realloc))
            {lowered}
            (core module $main
                (import "env" "memory" (memory 1))
                {taken}
                (func $ok (param $from i32) (param $length i32) (result i32)
                    (i32.store (i32.const 256) (i32.const 0))
                    (i32.store (i32.const 260) (local.get $from))
                    (i32.store (i32.const 264) (local.get $length))
                    (i32.const 256))
                (func $error (param $class i32) (param $l i32) (param $message i32) (param $m i32) (result i32)
                    (i32.store (i32.const 256) (i32.const 1))
                    (i32.store (i32.const 260) (local.get $class))
                    (i32.store (i32.const 264) (local.get $l))
                    (i32.store (i32.const 268) (local.get $message))
                    (i32.store (i32.const 272) (local.get $m))
                    (i32.const 256))
                ;; A result with two texts, or bytes after an integer.
                (func $passed_on (result i32)
                    (if (result i32) (i32.load8_u (i32.const 512))
                        (then (call $error (i32.load (i32.const 516)) (i32.load (i32.const 520))
                            (i32.load (i32.const 524)) (i32.load (i32.const 528))))
                        (else (call $ok (i32.load (i32.const 520)) (i32.load (i32.const 524))))))
                (func (export "invoke") (param $op i32) (param $op_length i32) (param $args i32)
                    (param $args_length i32) (result i32)
                    {body}))
            (core instance $main (instantiate $main
                (with "env" (instance $memory))
                (with "host" (instance {passed}))))
            (alias core export $main "invoke" (core func $lifted))
            (func $invoke {kind} (canon lift (core func $lifted) (memory $pages) (realloc $realloc)))
            (export "{name}" (func $invoke)))"#
        );
        wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }
}
