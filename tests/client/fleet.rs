//! Jobs for a fleet, with real servers of NATS and of Kennel.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use async_nats::jetstream;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE;
use kennel_client::{Error, Fleet, Job, JobError};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::require;
use crate::server::TestServer;

/// nats-server in a directory of its own.
struct Nats(Child, #[expect(dead_code, reason = "removed at its end")] TempDir, u16);

impl Nats {
    fn start() -> Option<Self> {
        Command::new("nats-server").arg("--version").stdout(Stdio::null()).status().ok()?;
        let place = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("nats-server");
        command.args(["-js", "-a", "127.0.0.1", "-p", &port.to_string(), "-sd"]).arg(place.path());
        let process = command.stderr(Stdio::null()).spawn().unwrap();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(Self(process, place, port))
    }

    fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.2)
    }

    fn config(&self, lines: &str) -> String {
        format!("[nats]\nurl = '{}'\n{lines}\n", self.url())
    }

    /// As soon as a worker has made the queue.
    async fn fleet(&self) -> Fleet {
        for _ in 0..200 {
            if let Ok(fleet) = Fleet::connect(&self.url()).await {
                return fleet;
            }
            sleep(Duration::from_millis(50)).await;
        }
        panic!("no worker has made the queue");
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn results_come_as_they_are_ready() {
    let nats = Nats::start();
    require!(nats.is_some(), "nats-server");
    let nats = nats.unwrap();
    let _server = TestServer::start(&nats.config("jobs = 4"));
    let fleet = nats.fleet().await;
    let text = "x".repeat(1 << 20);
    let jobs = [
        Job::new(["sh", "-c", "sleep 1; cat; echo $A; exit 3"]).stdin("in").env("A", "b"),
        Job::new(["sh", "-c", "cat big; cp big copy"]).file("big", &text).output_file("copy"),
        Job::new(["true"]).template("other").id("refused"),
    ];
    let mut results = fleet.map(jobs, Some(Duration::from_secs(60))).await.unwrap();
    let mut found = Vec::new();
    while let Some(result) = results.next().await {
        assert_eq!(result.deliveries, 1);
        found.push(result);
    }
    assert_eq!(found.last().unwrap().index, 0, "the one that takes longest");
    found.sort_by_key(|result| result.index);
    let slow = found[0].output.as_ref().unwrap();
    assert_eq!((slow.report.exit_code, &*slow.stdout), (3, &b"inb\n"[..]));
    let large = found[1].output.as_ref().unwrap();
    assert_eq!((large.stdout.len(), large.files[Path::new("copy")].len()), (text.len(), text.len()));
    match &found[2].output {
        Err(JobError::Dead { reason, status: Some(404), history }) => {
            assert!(reason.contains("other") && history.is_empty(), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_waits_for_is_cancelled() {
    let nats = Nats::start();
    require!(nats.is_some(), "nats-server");
    let nats = nats.unwrap();
    let server = TestServer::start(&nats.config("jobs = 2"));
    let sandboxes = || std::fs::read_dir(server.place.path().join("state/sandboxes")).unwrap().count();
    let fleet = nats.fleet().await;
    let long = || Job::new(["sleep", "1000"]).timeout(Duration::from_secs(2000));
    let results = fleet.map([long(), long(), long()], None).await.unwrap();
    until(|| sandboxes() == 2).await;
    drop(results);
    until(|| sandboxes() == 0).await;
    // Its time is over.
    let mut late = fleet.map([long()], Some(Duration::from_secs(1))).await.unwrap();
    assert!(matches!(late.next().await.unwrap().output, Err(JobError::Late)));
    assert!(late.next().await.is_none());
    // Somebody else cancels it.
    let mut results = fleet.map([long().id("mine")], None).await.unwrap();
    until(|| sandboxes() == 1).await;
    nats.fleet().await.cancel(["mine"]).await.unwrap();
    assert!(matches!(results.next().await.unwrap().output, Err(JobError::Cancelled)));
    until(|| sandboxes() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_is_a_link_is_an_error_of_its_job() {
    let nats = Nats::start();
    require!(nats.is_some(), "nats-server");
    let nats = nats.unwrap();
    let _server = TestServer::start(&nats.config(""));
    let fleet = nats.fleet().await;
    let context = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let name = BASE64_URL_SAFE.encode("result-a");
    let link = r#"{"name": "result-a", "bucket": "kennel-bodies", "nuid": "a", "size": 1,
        "options": {"link": {"name": "result-a", "bucket": "kennel-bodies"}}}"#;
    let line = r#"{"job": "a", "outcome": "done", "deliveries": 1, "worker": "w", "time": "t", "nonce": "n",
        "object": "result-a"}"#;
    let line = line.replace('\n', "") + "\n";
    let store = context.get_key_value("kennel-results").await.unwrap();
    context.publish(format!("$O.kennel-bodies.M.{name}"), link.into()).await.unwrap().await.unwrap();
    store.put("a", line.into()).await.unwrap();
    let jobs = [Job::new(["true"]).id("a"), Job::new(["true"])];
    let mut results = fleet.map(jobs, Some(Duration::from_secs(30))).await.unwrap();
    for _ in 0..2 {
        let result = results.next().await.unwrap();
        match (result.index, result.output) {
            (0, Err(JobError::Result(Error::Protocol { reason }))) => assert!(reason.contains("link")),
            (1, Ok(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_limit_holds_without_nats() {
    let nats = Nats::start();
    require!(nats.is_some(), "nats-server");
    let mut nats = nats.unwrap();
    let _server = TestServer::start(&nats.config(""));
    let fleet = nats.fleet().await;
    let jobs = [0; 4].map(|_| Job::new(["sleep", "1000"]).timeout(Duration::from_secs(2000)));
    let begun = std::time::Instant::now();
    let mut results = fleet.map(jobs, Some(Duration::from_secs(7))).await.unwrap();
    nats.0.kill().unwrap();
    while let Some(result) = results.next().await {
        assert!(matches!(result.output, Err(JobError::Late)));
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

async fn until(is_so: impl Fn() -> bool) {
    for _ in 0..1000 {
        if is_so() {
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("it did not happen");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_jobs_and_missing_queues_are_told() {
    let nats = Nats::start();
    require!(nats.is_some(), "nats-server");
    let nats = nats.unwrap();
    let missing = Fleet::connect(&nats.url()).await.unwrap_err();
    assert!(
        matches!(&missing, Error::Unreachable { source, .. } if source.to_string().contains("--nats URL"))
    );
    let _server = TestServer::start(&nats.config(""));
    let fleet = nats.fleet().await;
    for jobs in
        [vec![Job::new(["true"]).id("a.b")], vec![Job::new(["true"]).id("a"), Job::new(["true"]).id("a")]]
    {
        assert!(matches!(fleet.map(jobs, None).await, Err(Error::Invalid { .. })));
    }
}
