//! A server of a test's own, and requests to it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::streams::open;

/// The key of the token `me`, where there are tokens.
pub(crate) const KEY: &str = "key-of-me";

/// Where a server or a router is, and a key for it.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) address: String,
    pub(crate) key: String,
}

pub(crate) struct Server {
    process: Child,
    /// The process that serves: in a pod, not the one that was started.
    front: Pid,
    pub(crate) place: TempDir,
    state: PathBuf,
    client: Client,
}

impl Deref for Server {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Server {
    /// With one key.
    pub(crate) fn start(config: &str) -> Self {
        Self::with(config, None)
    }

    /// In a container that has a limit of 1,000 MB of memory: `memory.current` is a file in `cgroup`, which a
    /// test writes.
    pub(crate) fn in_container(config: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        let cgroup = place.path().join("cgroup");
        fs::create_dir(&cgroup).unwrap();
        for (name, text) in
            [("memory.max", "1000000000"), ("memory.current", "100000000"), ("memory.stat", "")]
        {
            fs::write(cgroup.join(name), text).unwrap();
        }
        fs::write(place.path().join("serve.toml"), format!("listen = '127.0.0.1:0'\nhosts = 2\n{config}"))
            .unwrap();
        Self::apart(place, "mount --bind \"$0\" /sys/fs/cgroup", &cgroup)
    }

    /// In a pod of Kubernetes: `tests/server/pod` says how it is made, and knows the flags.
    pub(crate) fn in_pod(flags: &[&str], config: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let volume = place.path().join("volume");
        fs::create_dir(&volume).unwrap();
        fs::write(place.path().join("serve.toml"), format!("listen = '127.0.0.1:0'\n{config}")).unwrap();
        let mut pod = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/server/pod"));
        // As in every pod.
        pod.env("KUBERNETES_SERVICE_HOST", "10.0.0.1");
        pod.args(flags).arg(&volume).arg(env!("CARGO_BIN_EXE_kennel-server"));
        let state = volume.join("state");
        let (process, address, key) = begin_with(pod, place.path(), &state, None);
        let front = children(process.id()).remove(0);
        Self { process, front, place, state, client: Client { address, key: key.unwrap() } }
    }

    /// With a state directory on a disk of this size, which nobody else sees.
    pub(crate) fn on_disk_of(size: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        let state = place.path().join("state");
        fs::create_dir(&state).unwrap();
        fs::write(place.path().join("serve.toml"), "listen = '127.0.0.1:0'\nhosts = 2\n").unwrap();
        Self::apart(place, &format!("mount -t tmpfs -o size={size},mode=700 none \"$0\""), &state)
    }

    /// After a command of the shell in namespaces of its own; `$0` is `argument`.
    fn apart(place: TempDir, command: &str, argument: &Path) -> Self {
        let mut apart = Command::new("unshare");
        apart.args(["--user", "--map-root-user", "--mount", "sh", "-c"]);
        apart.arg(format!("{command} && exec \"$@\"")).arg(argument);
        apart.arg(env!("CARGO_BIN_EXE_kennel-server"));
        let state = place.path().join("state");
        let (process, address, key) = begin_with(apart, place.path(), &state, None);
        let client = Client { address, key: key.unwrap() };
        Self { front: pid_of(&process), process, place, state, client }
    }

    /// The directories of its sandboxes, as the server sees them.
    pub(crate) fn directories(&self) -> usize {
        let root = PathBuf::from(format!("/proc/{}/root", self.front));
        let sandboxes = self.state().join("sandboxes");
        fs::read_dir(root.join(sandboxes.strip_prefix("/").unwrap())).unwrap().count()
    }

    /// With tokens: `me`, and these lines of others. `KEY_OF(name)` is the key of each.
    pub(crate) fn with_tokens(config: &str, tokens: &str) -> Self {
        Self::with(config, Some(tokens))
    }

    fn with(config: &str, tokens: Option<&str>) -> Self {
        let place = tempfile::tempdir().unwrap();
        let mut text = String::from("listen = '127.0.0.1:0'\n");
        if !config.contains("hosts = ") {
            text.push_str("hosts = 2\n");
        }
        if let Some(tokens) = tokens {
            fs::write(place.path().join("tokens.toml"), tokens).unwrap();
            text.push_str("tokens = 'tokens.toml'\n");
        }
        fs::write(place.path().join("serve.toml"), text + config).unwrap();
        let (process, address, key) = begin(place.path(), None);
        let (front, state) = (pid_of(&process), place.path().join("state"));
        let client = Client { address, key: key.unwrap_or_else(|| KEY.to_owned()) };
        Self { process, front, place, state, client }
    }

    /// Kills the front.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts a front where the one before was.
    pub(crate) fn start_again(&mut self) {
        self.process = begin(self.place.path(), Some(&self.address)).0;
        self.front = pid_of(&self.process);
    }

    /// Kills the front, and starts another one at the same address.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.start_again();
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.state.clone()
    }

    /// The process that serves.
    pub(crate) fn front(&self) -> Pid {
        self.front
    }

    /// What the server has said on stderr.
    pub(crate) fn errors(&self) -> String {
        fs::read_to_string(self.place.path().join("errors")).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.front, signal).unwrap();
    }

    /// Waits until the front has ended, and returns whether it ended well.
    pub(crate) fn ends(&mut self) -> bool {
        self.process.wait().unwrap().success()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }
}

impl Client {
    /// A request with this key.
    pub(crate) fn ask_as(&self, key: &str, method: &str, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let headers = [("x-api-key", key), ("content-type", "application/json")];
        self.request(method, path, &headers, body.as_bytes())
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.ask_as(&self.key, method, path, body)
    }

    /// A request on a connection of its own.
    pub(crate) fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = self.connect();
        send(&mut stream, method, path, headers, body);
        Answer::read(stream)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    pub(crate) fn create(&self) -> Made {
        self.create_from(&json!({ "templateID": "base" }))
    }

    pub(crate) fn create_from(&self, body: &Value) -> Made {
        let answer = self.ask("POST", "/v2/sandboxes", body);
        assert_eq!(answer.status, 201, "{}", answer.text());
        Made::of(&answer)
    }

    /// Starts a command, and returns its stream once it has begun. The one before may still count.
    pub(crate) fn begin(&self, made: &Made, command: &str) -> TcpStream {
        let mut begun = None;
        wait_until("a command begins", || {
            let mut stream = open(self, made, "Start", &start(command), &[]);
            let mut status = [0; 12];
            stream.read_exact(&mut status).unwrap();
            begun = (&status == b"HTTP/1.1 200").then_some(stream);
            begun.is_some()
        });
        begun.unwrap()
    }

    /// A request for files or commands of a sandbox.
    pub(crate) fn of(&self, made: &Made, method: &str, path: &str, kind: &str, body: &[u8]) -> Answer {
        let headers =
            [("x-access-token", &*made.token), ("e2b-sandbox-id", &*made.id), ("content-type", kind)];
        self.request(method, path, &headers, body)
    }

    /// Runs a shell command to its end: its stdout, and its exit status.
    pub(crate) fn run(&self, made: &Made, command: &str) -> (String, i64) {
        let answer = self.of(made, "POST", "/process.Process/Start", STREAM, &start(command));
        assert_eq!(answer.status, 200, "{}", answer.text());
        let events = events(&answer.body);
        let end = events.iter().find_map(|event| event["event"]["end"].as_object());
        let end = end.unwrap_or_else(|| panic!("no end: {events:?}"));
        (output(&events, "stdout"), end["exitCode"].as_i64().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let until = Instant::now() + Duration::from_secs(60);
        // On a busy machine, two signals may come as one.
        while let Ok(None) = self.process.try_wait() {
            let _ = kill(self.front, Signal::SIGTERM);
            sleep(Duration::from_millis(100));
            if Instant::now() > until {
                let _ = self.process.kill();
                assert!(std::thread::panicking(), "the server does not end: {}", self.state.display());
            }
        }
    }
}

fn pid_of(process: &Child) -> Pid {
    Pid::from_raw(process.id().cast_signed())
}

/// The children of a process, those that have ended and that nobody has waited for included.
pub(crate) fn children(pid: impl std::fmt::Display) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok());
    let text = lists.collect::<String>();
    text.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap())).collect()
}

fn begin(place: &Path, address: Option<&str>) -> (Child, String, Option<String>) {
    begin_with(Command::new(env!("CARGO_BIN_EXE_kennel-server")), place, &place.join("state"), address)
}

fn begin_with(
    mut command: Command,
    place: &Path,
    state: &Path,
    address: Option<&str>,
) -> (Child, String, Option<String>) {
    command.arg("serve").arg("--config").arg(place.join("serve.toml")).arg("--state").arg(state);
    address.into_iter().for_each(|address| {
        command.args(["--listen", address]);
    });
    let errors = fs::OpenOptions::new().create(true).append(true).open(place.join("errors")).unwrap();
    let mut process = command.stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut next = || lines.next().and_then(Result::ok);
    let errors = || fs::read_to_string(place.join("errors")).unwrap();
    let first = next().unwrap_or_else(|| panic!("{}", errors()));
    let url = first.strip_prefix("# Kennel serves at ").unwrap().to_owned();
    let has_tokens = fs::read_to_string(place.join("serve.toml")).unwrap().contains("tokens = ");
    let key = (!has_tokens).then(|| {
        let lines = [next(), next(), next()].map(Option::unwrap);
        assert_eq!(lines[..2], ["E2B_API_URL", "E2B_SANDBOX_URL"].map(|name| format!("export {name}={url}")));
        lines[2].strip_prefix("export E2B_API_KEY=").unwrap().to_owned()
    });
    let address = url.split_once("://").unwrap().1.to_owned();
    (process, address, key)
}

/// The lines of a token in `tokens.toml`; its key is `key-of-NAME`.
pub(crate) fn token(name: &str, lines: &str) -> String {
    let hash = Sha256::digest(format!("key-of-{name}").as_bytes());
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("[token.{name}]\nsha256 = '{hash}'\n{lines}\n")
}

/// A sandbox, as its creation answers.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) id: String,
    pub(crate) token: String,
    pub(crate) traffic: Option<String>,
}

impl Made {
    pub(crate) fn of(answer: &Answer) -> Self {
        let made = answer.json();
        let text = |key: &str| made[key].as_str().map(ToOwned::to_owned);
        let (id, token) = (text("sandboxID").unwrap(), text("envdAccessToken").unwrap());
        Self { id, token, traffic: text("trafficAccessToken") }
    }
}

pub(crate) fn send(stream: &mut TcpStream, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| *name == "host") {
        head.push_str("Host: worker\r\n");
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    // The server may answer before it has read all of it.
    let _ = stream.write_all(format!("{head}\r\n").as_bytes()).and_then(|()| stream.write_all(body));
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn read(mut stream: TcpStream) -> Self {
        let mut all = Vec::new();
        // A connection that is reset ends what came before.
        let _ = stream.read_to_end(&mut all);
        Self::parse(&all)
    }

    pub(crate) fn parse(all: &[u8]) -> Self {
        let end = all.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(all)));
        let head = String::from_utf8_lossy(&all[..end]).to_ascii_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = &all[end + 4..];
        let body = if head.contains("transfer-encoding: chunked") { dechunked(body) } else { body.to_vec() };
        Self { status, head, body }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}", self.text()))
    }

    /// The sentence of a refusal.
    pub(crate) fn message(&self) -> String {
        self.json()["message"].as_str().unwrap().to_owned()
    }
}

fn dechunked(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = body.windows(2).position(|bytes| bytes == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        let Some(piece) = body.get(end + 2..end + 2 + size) else { break };
        whole.extend_from_slice(piece);
        body = body.get(end + 4 + size..).unwrap_or_default();
    }
    whole
}

pub(crate) const STREAM: &str = "application/connect+json";

/// One message of the Connect protocol.
pub(crate) fn frame(json: &Value) -> Vec<u8> {
    let json = json.to_string();
    let mut frame = vec![0];
    frame.extend(u32::try_from(json.len()).unwrap().to_be_bytes());
    frame.extend(json.into_bytes());
    frame
}

/// The body that starts a command of bash.
pub(crate) fn start(command: &str) -> Vec<u8> {
    frame(&json!({ "process": { "cmd": "/bin/bash", "args": ["-l", "-c", command] }, "stdin": false }))
}

/// The messages of a stream, the end included.
pub(crate) fn events(mut body: &[u8]) -> Vec<Value> {
    let mut events = Vec::new();
    while let Some((head, rest)) = body.split_first_chunk::<5>() {
        let [_, length @ ..] = *head;
        let (message, rest) = rest.split_at(u32::from_be_bytes(length) as usize);
        events.push(serde_json::from_slice(message).unwrap());
        body = rest;
    }
    assert!(body.is_empty(), "half a message");
    events
}

/// All that came on a stream of the command.
pub(crate) fn output(events: &[Value], name: &str) -> String {
    use base64::Engine;
    let pieces = events.iter().filter_map(|event| event["event"]["data"][name].as_str());
    let bytes = pieces.flat_map(|piece| base64::engine::general_purpose::STANDARD.decode(piece).unwrap());
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
}

/// A number of the environment, which makes a test longer.
pub(crate) fn number(name: &str, usual: usize) -> usize {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap())
}

/// Waits until something is so.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(15);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        sleep(Duration::from_millis(20));
    }
}
