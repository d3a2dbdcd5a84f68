//! A NATS server of a test's own, and a client that publishes jobs and reads what became of them.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use async_nats::header::HeaderMap;
use async_nats::jetstream::kv::Store;
use async_nats::jetstream::{self, Context};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE as URL_SAFE;
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::time::sleep;

/// The header by which NATS knows a message again.
pub(super) const ID: &str = "Nats-Msg-Id";

/// The server, and a connection to it.
pub(super) struct Nats {
    process: Child,
    place: TempDir,
    port: u16,
    runtime: Runtime,
    pub(super) context: Context,
}

impl Nats {
    /// `None` where there is no nats-server, if a test may be skipped.
    pub(super) fn start() -> Option<Self> {
        Self::start_with("max_payload: 1MB")
    }

    /// The same with lines of its configuration.
    pub(super) fn start_with(lines: &str) -> Option<Self> {
        let is_there = Command::new("nats-server").arg("--version").stdout(Stdio::null()).status().is_ok();
        if !is_there {
            assert_ne!(std::env::var("KENNEL_MUST_RUN").as_deref(), Ok("1"), "nats-server is missing");
            eprintln!("SKIP: nats-server is missing");
            return None;
        }
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("config"), lines).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let process = begin(&place, port);
        let runtime = Runtime::new().unwrap();
        let context = runtime.block_on(async {
            let options =
                async_nats::ConnectOptions::new().reconnect_delay_callback(|_| Duration::from_millis(50));
            jetstream::new(options.connect(format!("127.0.0.1:{port}")).await.unwrap())
        });
        Some(Self { process, place, port, runtime, context })
    }

    pub(super) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// The lines of serve.toml, with a short time until a job comes again.
    pub(super) fn config(&self, lines: &str) -> String {
        let ack = if lines.contains("ack_wait") { "" } else { "ack_wait = '2s'\n" };
        format!("[nats]\nurl = '{}'\n{ack}{lines}\n", self.url())
    }

    /// As a machine dies.
    pub(super) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts it again, with the files that it has.
    pub(super) fn start_again(&mut self) {
        self.process = begin(&self.place, self.port);
    }

    pub(super) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Waits for a bucket of workers, which make it.
    pub(super) fn bucket(&self, name: &str) -> Store {
        self.block_on(async {
            let end = Instant::now() + Duration::from_secs(20);
            loop {
                match self.context.get_key_value(format!("kennel-{name}")).await {
                    Ok(store) => return store,
                    Err(error) => assert!(Instant::now() < end, "{name}: {error}"),
                }
                sleep(Duration::from_millis(50)).await;
            }
        })
    }

    /// Publishes a job with these headers.
    pub(super) fn publish_with(&self, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) {
        self.bucket("cancelled");
        let body = body.into();
        let mut map = HeaderMap::new();
        headers.iter().for_each(|(name, value)| map.insert(*name, *value));
        self.block_on(async {
            let end = Instant::now() + Duration::from_secs(30);
            loop {
                let publish =
                    self.context.publish_with_headers("kennel.jobs", map.clone(), body.clone().into());
                let done = match publish.await {
                    Ok(ack) => ack.await,
                    Err(error) => Err(error),
                };
                match done {
                    Ok(_) => return,
                    Err(error) => assert!(Instant::now() < end, "{error}"),
                }
            }
        });
    }

    pub(super) fn publish(&self, id: &str, body: &Value) {
        self.publish_with(&[(ID, id)], body.to_string());
    }

    /// Publishes one whose body is an object.
    pub(super) fn publish_object(&self, id: &str, body: &[u8]) {
        self.bucket("cancelled");
        self.block_on(async {
            let bodies = self.context.get_object_store("kennel-bodies").await.unwrap();
            let mut bytes = body;
            bodies.put(format!("job-{id}").as_str(), &mut bytes).await.unwrap();
        });
        self.publish_with(&[(ID, id), ("Kennel-Body", "object")], "");
    }

    /// The outcome of a job, if there is one: its line, and the answer.
    pub(super) fn find(&self, id: &str) -> Option<(Value, Value)> {
        let results = self.bucket("results");
        let value = self.block_on(async { results.get(id).await }).ok()??;
        let (line, rest) = value.split_at(value.iter().position(|byte| *byte == b'\n').unwrap());
        let line: Value = serde_json::from_slice(line).unwrap();
        let rest = match line["object"].as_str() {
            Some(name) => self.object(name),
            None => rest[1..].to_vec(),
        };
        Some((line, serde_json::from_slice(&rest).unwrap_or(Value::Null)))
    }

    /// Publishes a job whose body is an object that says this of itself, and pieces of it.
    pub(super) fn publish_forged(&self, id: &str, mut info: Value, pieces: &[&str]) {
        self.bucket("cancelled");
        let name = format!("job-{id}");
        info["name"] = name.as_str().into();
        let meta = format!("$O.kennel-bodies.M.{}", URL_SAFE.encode(name));
        let chunk = format!("$O.kennel-bodies.C.{}", info["nuid"].as_str().unwrap());
        self.block_on(async {
            for piece in pieces {
                self.context.publish(chunk.clone(), (*piece).to_owned().into()).await.unwrap().await.unwrap();
            }
            self.context.publish(meta, info.to_string().into()).await.unwrap().await.unwrap();
        });
        self.publish_with(&[(ID, id), ("Kennel-Body", "object")], "");
    }

    fn object(&self, name: &str) -> Vec<u8> {
        self.block_on(async {
            let bodies = self.context.get_object_store("kennel-bodies").await.unwrap();
            let mut object = bodies.get(name).await.unwrap();
            let mut bytes = Vec::new();
            tokio::io::AsyncReadExt::read_to_end(&mut object, &mut bytes).await.unwrap();
            bytes
        })
    }

    /// Waits for the outcome of a job.
    pub(super) fn outcome(&self, id: &str) -> (Value, Value) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(found) = self.find(id) {
                return found;
            }
            assert!(Instant::now() < end, "{id} has no outcome");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Messages in the stream of jobs.
    pub(super) fn jobs(&self) -> u64 {
        self.block_on(async {
            self.context.get_stream("kennel-jobs").await.unwrap().cached_info().state.messages
        })
    }

    /// Waits until no job is left. What a crash of NATS has left, workers find within half a minute.
    pub(super) fn empties(&self) {
        let end = Instant::now() + Duration::from_secs(45);
        while self.jobs() > 0 {
            if Instant::now() > end {
                let info = "$JS.API.CONSUMER.INFO.kennel-jobs.workers";
                let info = self.block_on(self.context.client().request(info, "".into())).unwrap();
                panic!("{} jobs are left: {}", self.jobs(), String::from_utf8_lossy(&info.payload));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A value of a bucket as JSON: its first line.
    pub(super) fn value(&self, bucket: &str, key: &str) -> Option<Value> {
        let store = self.bucket(bucket);
        let value = self.block_on(async { store.get(key).await }).ok()??;
        serde_json::from_slice(value.split(|byte| *byte == b'\n').next().unwrap()).ok()
    }

    pub(super) fn put(&self, bucket: &str, key: &str, value: &str) {
        let store = self.bucket(bucket);
        self.block_on(async { store.put(key, value.to_owned().into()).await }).unwrap();
    }

    /// All keys of a bucket.
    pub(super) fn keys(&self, bucket: &str) -> Vec<String> {
        use futures_util::TryStreamExt;
        let store = self.bucket(bucket);
        self.block_on(async { store.keys().await.unwrap().try_collect().await.unwrap() })
    }
}

fn begin(place: &TempDir, port: u16) -> Child {
    let log = fs::OpenOptions::new().create(true).append(true).open(place.path().join("log")).unwrap();
    let process = Command::new("nats-server")
        .args(["-js", "-a", "127.0.0.1", "-p", &port.to_string(), "-sd"])
        .arg(place.path().join("store"))
        .arg("-c")
        .arg(place.path().join("config"))
        .stderr(log)
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < end, "nats-server does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    process
}

impl Drop for Nats {
    fn drop(&mut self) {
        // It may have been killed before.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
