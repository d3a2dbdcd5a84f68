//! `kennel mcp`, spoken to in lines of JSON. tests/mcp/ has the same from the official client.

mod calls;
mod changes;
mod files;
mod hostile;
mod life;
mod memory;
mod ports;
mod results;

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc, Condvar, Mutex,
        mpsc::{Receiver, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use serde_json::{Value, json};

use crate::support::{TempDir, kennel_path, patient, workspace};

/// A client, and the server that it has started.
struct Client {
    server: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Value>,
    /// Whether the client reads nothing now.
    is_paused: Arc<(Mutex<bool>, Condvar)>,
    stderr: Option<JoinHandle<String>>,
    /// Messages that nobody has waited for yet.
    waiting: Vec<Value>,
    last_id: u64,
    workspace: TempDir,
}

impl Client {
    /// Starts a server, and does the handshake.
    fn start(flags: &[&str]) -> Self {
        Self::start_in(workspace(), flags)
    }

    fn start_in(workspace: TempDir, flags: &[&str]) -> Self {
        let mut client = Self::without_handshake(workspace, flags);
        let about = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let answer = client.request("initialize", about);
        assert_eq!(answer["result"]["serverInfo"]["name"], "kennel", "{answer}");
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }

    fn without_handshake(workspace: TempDir, flags: &[&str]) -> Self {
        let mut command = Command::new(kennel_path());
        command.arg("mcp").arg("--no-config").args(flags).current_dir(workspace.path()).env("LC_ALL", "C");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = command.spawn().unwrap();
        let stdin = server.stdin.take();
        let (stdout, stderr) = (server.stdout.take().unwrap(), server.stderr.take().unwrap());
        let (sender, lines) = channel();
        let is_paused = Arc::new((Mutex::new(false), Condvar::new()));
        let pause = Arc::clone(&is_paused);
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                drop(pause.1.wait_while(pause.0.lock().unwrap(), |is_paused| *is_paused).unwrap());
                let line = line.unwrap();
                let message: Value = serde_json::from_str(&line)
                    .unwrap_or_else(|error| panic!("not the protocol: {error}: {line}"));
                assert_eq!(message["jsonrpc"], "2.0", "{line}");
                let _ = sender.send(message);
            }
        });
        let stderr = Some(thread::spawn(move || std::io::read_to_string(stderr).unwrap()));
        Self { server, stdin, lines, is_paused, stderr, waiting: Vec::new(), last_id: 0, workspace }
    }

    /// Reads at most one more line.
    fn pause(&self) {
        *self.is_paused.0.lock().unwrap() = true;
    }

    fn resume(&self) {
        *self.is_paused.0.lock().unwrap() = false;
        self.is_paused.1.notify_all();
    }

    fn path(&self) -> &Path {
        self.workspace.path()
    }

    fn send_bytes(&mut self, bytes: &[u8]) {
        self.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    fn send(&mut self, message: &Value) {
        self.send_bytes(format!("{message}\n").as_bytes());
    }

    /// Sends a request. Returns its id.
    fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.begin_with(method, &params.to_string())
    }

    /// The same with parameters that are a text already: to make one of megabytes takes a debug build a
    /// second.
    fn begin_with(&mut self, method: &str, params: &str) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        let head = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":");
        for part in [&head, params, "}\n"] {
            self.send_bytes(part.as_bytes());
        }
        id
    }

    fn begin_call(&mut self, tool: &str, arguments: Value) -> u64 {
        self.begin("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// Waits for a message. Others are kept.
    fn wait(&mut self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.waiting.iter().position(&is_it) {
            return self.waiting.remove(at);
        }
        loop {
            let next = self.lines.recv_timeout(patient(Duration::from_secs(60)));
            let next = next.unwrap_or_else(|error| panic!("{what}: {error}; there was {:?}", self.waiting));
            if is_it(&next) {
                return next;
            }
            self.waiting.push(next);
        }
    }

    /// The message of an error of the protocol.
    fn protocol_error(&mut self, id: u64) -> String {
        let answer = self.answer(id);
        let message = answer["error"]["message"].as_str();
        message.unwrap_or_else(|| panic!("no error: {answer}")).to_owned()
    }

    fn answer(&mut self, id: u64) -> Value {
        self.wait(&format!("the answer to {id}"), |message| {
            message["id"] == id && message["method"].is_null()
        })
    }

    fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params);
        self.answer(id)
    }

    /// The result of a tool.
    fn call(&mut self, tool: &str, arguments: Value) -> Answer {
        let id = self.begin_call(tool, arguments);
        self.result(id)
    }

    fn result(&mut self, id: u64) -> Answer {
        let answer = self.answer(id);
        assert!(answer["error"].is_null(), "{answer}");
        Answer(answer["result"].clone())
    }

    /// What a shell line writes to stdout. It must succeed.
    fn succeeds(&mut self, line: &str) -> String {
        let answer = self.call("run", json!({"command": line}));
        assert_eq!(answer.data("exit_code"), 0, "{line}: {}", answer.0);
        answer.data("stdout").as_str().unwrap().to_owned()
    }

    fn tools(&mut self) -> Vec<Value> {
        self.request("tools/list", json!({}))["result"]["tools"].as_array().unwrap().clone()
    }

    /// Closes stdin. Returns the exit status and what the server wrote to stderr.
    fn end(&mut self) -> (Option<i32>, String) {
        drop(self.stdin.take());
        self.ended()
    }

    fn ended(&mut self) -> (Option<i32>, String) {
        let status = self.server.wait().unwrap();
        (status.code(), self.stderr.take().unwrap().join().unwrap())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// The result of a tool.
struct Answer(Value);

impl Answer {
    fn is_error(&self) -> bool {
        self.0["isError"] == true
    }

    fn items(&self) -> Vec<&str> {
        let items = self.0["content"].as_array().unwrap();
        items.iter().map(|item| item["text"].as_str().unwrap()).collect()
    }

    /// All of the text, as a client may join it.
    fn text(&self) -> String {
        let mut text = String::new();
        for item in self.items() {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text += item;
        }
        text
    }

    /// What Kennel says about a command that ran.
    fn last(&self) -> &str {
        self.items().last().unwrap()
    }

    fn data(&self, key: &str) -> &Value {
        &self.0["structuredContent"][key]
    }

    /// The text of a refusal.
    fn refusal(&self) -> &str {
        assert!(self.is_error() && self.items().len() == 1, "it was done: {}", self.0);
        self.last()
    }
}
