//! A program that makes requests and spawns, and tells what it got: each step is a log line, which exists
//! also if the call fails.

use std::fmt::Write;

use kennel::connector::{Call, CallResult, Connector, ConnectorError, LogLevel};
use serde_json::Value;

use crate::support::module;

const REQUESTS: &str = r#"
    (import "aileron_host" "http_request" (func $request (param i32 i32) (result i32)))
    (import "aileron_host" "http_response_status" (func $response_status (result i32)))
    (import "aileron_host" "http_response_size" (func $response_size (result i32)))
    (import "aileron_host" "http_response_read" (func $response_read (param i32 i32) (result i32)))"#;

const SPAWNS: &str = r#"
    (import "aileron_host" "spawn" (func $spawn (param i32 i32) (result i32)))
    (import "aileron_host" "spawn_op" (func $spawn_op (param i32 i32 i32 i32) (result i32)))
    (import "aileron_host" "spawn_status" (func $spawn_status (result i32)))
    (import "aileron_host" "spawn_output_size" (func $output_size (param i32) (result i32)))
    (import "aileron_host" "spawn_output_read" (func $output_read (param i32 i32 i32) (result i32)))"#;

/// A line is made at 196608 and logged. Answers are read to 131072.
const FUNCTIONS: &str = r#"
    (import "aileron_host" "log" (func $log (param i32 i32 i32 i32)))
    (global $at (mut i32) (i32.const 196608))
    (func $byte (param $byte i32)
        (i32.store8 (global.get $at) (local.get $byte))
        (global.set $at (i32.add (global.get $at) (i32.const 1))))
    ;; A number and a space.
    (func $number (param $number i32)
        (if (i32.lt_s (local.get $number) (i32.const 0)) (then
            (call $byte (i32.const 45))
            (local.set $number (i32.sub (i32.const 0) (local.get $number)))))
        (call $digits (local.get $number))
        (call $byte (i32.const 32)))
    (func $digits (param $number i32)
        (if (i32.ge_u (local.get $number) (i32.const 10)) (then
            (call $digits (i32.div_u (local.get $number) (i32.const 10)))))
        (call $byte (i32.add (i32.const 48) (i32.rem_u (local.get $number) (i32.const 10)))))
    (func $hex_digit (param $digit i32)
        (call $byte (i32.add (local.get $digit)
            (select (i32.const 48) (i32.const 87) (i32.lt_u (local.get $digit) (i32.const 10))))))
    (func $hex (param $from i32) (param $length i32)
        (local.set $length (i32.add (local.get $from) (local.get $length)))
        (loop $more (if (i32.lt_u (local.get $from) (local.get $length)) (then
            (call $hex_digit (i32.shr_u (i32.load8_u (local.get $from)) (i32.const 4)))
            (call $hex_digit (i32.and (i32.load8_u (local.get $from)) (i32.const 15)))
            (local.set $from (i32.add (local.get $from) (i32.const 1)))
            (br $more)))))
    (func $line
        (call $log (i32.const 0) (i32.const 0) (i32.const 196608) (i32.sub (global.get $at) (i32.const 196608)))
        (global.set $at (i32.const 196608)))"#;

/// The bytes that it reads of an answer at once.
const PIECE: u32 = 7;

/// A program, step by step.
#[derive(Default)]
pub(crate) struct Guest {
    data: Vec<u8>,
    code: String,
    requests: bool,
    spawns: bool,
}

impl Guest {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Makes a request. Says what `http_request` answers, the status, the size, the body, and how much it
    /// reads after that.
    pub(crate) fn request(self, request: &Value) -> Self {
        self.raw_request(request.to_string())
    }

    pub(crate) fn raw_request(mut self, request: impl AsRef<[u8]>) -> Self {
        self.requests = true;
        let range = self.place(request.as_ref());
        self.run(&format!("(call $number (call $request {range}))")).response()
    }

    /// Says the status, the size and the body of the last request.
    pub(crate) fn response(mut self) -> Self {
        self.requests = true;
        let read = format!("(call $response_read (i32.const 131072) (i32.const {PIECE}))");
        self.run("(call $number (call $response_status)) (call $number (call $response_size))")
            .pieces(&read)
            .run("(call $line)")
    }

    /// Spawns. Says what `spawn` answers, the status, and of stdout and stderr what it says of a body.
    pub(crate) fn spawn(self, envelope: &Value) -> Self {
        self.raw_spawn(envelope.to_string())
    }

    pub(crate) fn raw_spawn(mut self, envelope: impl AsRef<[u8]>) -> Self {
        let range = self.place(envelope.as_ref());
        self.run(&format!("(call $number (call $spawn {range}))")).spawned()
    }

    pub(crate) fn operation(self, name: &str, arguments: &Value) -> Self {
        self.raw_operation(name, arguments.to_string())
    }

    pub(crate) fn raw_operation(mut self, name: &str, arguments: impl AsRef<[u8]>) -> Self {
        let (name, arguments) = (self.place(name.as_bytes()), self.place(arguments.as_ref()));
        self.run(&format!("(call $number (call $spawn_op {name} {arguments}))")).spawned()
    }

    /// Says the status, and sizes and texts of the outputs of the last spawn.
    pub(crate) fn spawned(mut self) -> Self {
        self.spawns = true;
        self = self.run("(call $number (call $spawn_status))");
        for which in [0, 1] {
            let read =
                format!("(call $output_read (i32.const {which}) (i32.const 131072) (i32.const {PIECE}))");
            self = self.run(&format!("(call $number (call $output_size (i32.const {which})))")).pieces(&read);
        }
        self.run("(call $line)")
    }

    /// Writes its whole memory to stdout in hexadecimal digits, as its output.
    pub(crate) fn dump(mut self) -> Self {
        let (before, after) = (self.place(br#"{"output":{"memory":""#), self.place(br#""}}"#));
        self.run(&format!(
            "(call $print {before})
             (call $hex (i32.const 0) (i32.const 196608))
             (call $print (i32.const 196608) (i32.sub (global.get $at) (i32.const 196608)))
             (call $print {after})"
        ))
    }

    /// Prints a document.
    pub(crate) fn print(mut self, text: &str) -> Self {
        let range = self.place(text.as_bytes());
        self.run(&format!("(call $print {range})"))
    }

    /// Any code.
    pub(crate) fn run(mut self, code: &str) -> Self {
        writeln!(self.code, "{code}").unwrap();
        self
    }

    pub(crate) fn program(self) -> Vec<u8> {
        let mut imports = String::new();
        if self.requests {
            imports.push_str(REQUESTS);
        }
        if self.spawns {
            imports.push_str(SPAWNS);
        }
        imports.push_str(FUNCTIONS);
        assert!(self.data.len() < 30_000, "the data does not fit");
        let start = format!("(local $read i32) (drop (memory.grow (i32.const 32)))\n{}", self.code);
        module(&imports, &self.data, &start)
    }

    /// Reads until there is nothing more: says all pieces, then what the last reading answers.
    fn pieces(self, read: &str) -> Self {
        self.run("(call $byte (i32.const 61))").run(&format!(
            "(loop $more
                (local.set $read {read})
                (if (i32.gt_s (local.get $read) (i32.const 0)) (then
                    (call $hex (i32.const 131072) (local.get $read))
                    (br $more))))
             (call $byte (i32.const 32)) (call $number (local.get $read))"
        ))
    }

    /// Puts bytes into memory. Returns their range.
    fn place(&mut self, bytes: &[u8]) -> String {
        let at = 1024 + self.data.len();
        self.data.extend(bytes);
        format!("(i32.const {at}) (i32.const {})", bytes.len())
    }
}

/// One line of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) numbers: Vec<i32>,
    pub(crate) texts: Vec<String>,
}

/// A call, and what the program said.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) ended: Result<CallResult, ConnectorError>,
    pub(crate) said: Vec<Said>,
    /// What Kennel told the program.
    pub(crate) told: Vec<String>,
}

impl Ran {
    pub(crate) fn error(&self) -> &ConnectorError {
        self.ended.as_ref().unwrap_err()
    }
}

/// Calls a program, and reads its lines.
pub(crate) async fn run(connector: &Connector, call: Call) -> Ran {
    let ended = connector.invoke(call).await;
    let logs = match &ended {
        Ok(result) => &*result.logs,
        Err(error) => error.logs(),
    };
    let of =
        |severity| logs.iter().filter(move |line| line.severity() == severity).map(|line| &*line.message);
    let (said, told) =
        (of(LogLevel::Info).map(parse).collect(), of(LogLevel::Warn).map(str::to_owned).collect());
    Ran { said, told, ended }
}

fn parse(line: &str) -> Said {
    let mut said = Said::default();
    for word in line.split_whitespace() {
        match word.strip_prefix('=') {
            Some(digits) => said.texts.push(String::from_utf8(bytes(digits)).unwrap()),
            None => said.numbers.push(word.parse().unwrap()),
        }
    }
    said
}

/// The bytes of hexadecimal digits.
pub(crate) fn bytes(digits: &str) -> Vec<u8> {
    digits
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}
