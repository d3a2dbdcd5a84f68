//! Jobs through NATS JetStream beside the same commands by `/v1/run`. It needs Debian's `nats-server`.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use async_nats::header::{HeaderMap, NATS_MESSAGE_ID};
use async_nats::jetstream::{self, Context};

use crate::parts::runs;
use crate::{Server, processor_time};

/// Commands at once, and how many of each.
const AT_ONCE: usize = 16;
const EACH: usize = 60;

/// nats-server, with its files beside those of the server.
struct Nats(Child);

impl Drop for Nats {
    fn drop(&mut self) {
        // It has no signal that it would need longer for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) async fn measure() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new("nats-server");
    command.args(["-js", "-a", "127.0.0.1", "-p", &port.to_string(), "-sd"]).arg(place.path());
    let nats = Nats(command.stderr(Stdio::null()).spawn().unwrap());
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let url = format!("nats://127.0.0.1:{port}");
    let server = Server::start(&format!("[nats]\nurl = '{url}'\njobs = {AT_ONCE}"));
    let context = jetstream::new(async_nats::connect(&url).await.unwrap());
    let results = loop {
        // The worker makes it, and others after it.
        tokio::time::sleep(Duration::from_millis(500)).await;
        if let Ok(stream) = context.get_stream("KV_kennel-cancelled").await {
            drop(stream);
            break context.get_stream("KV_kennel-results").await.unwrap();
        }
    };
    for round in 0..3 {
        let over_http = runs(&server, AT_ONCE, EACH).await;
        let before = results.get_info().await.unwrap().state.messages;
        let all = before + (AT_ONCE * EACH) as u64;
        let used = processor_time(nats.0.id());
        let begun = Instant::now();
        publish(&context, round).await;
        let published = begun.elapsed();
        while results.get_info().await.unwrap().state.messages < all {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let over_nats = (AT_ONCE * EACH) as f64 / begun.elapsed().as_secs_f64();
        let used = (processor_time(nats.0.id()) - used).as_secs_f64() * 1000.0 / (AT_ONCE * EACH) as f64;
        println!(
            "{round}: jobs through NATS {over_nats:.0} a second (sent in {published:.0?}); /v1/run {over_http:.0}; {:.2}; \
             processor time of NATS for a job {used:.2} ms",
            over_nats / over_http
        );
    }
}

/// Publishes jobs, as clients do: each is known to NATS before it counts as sent.
async fn publish(context: &Context, round: usize) {
    let mut acks = Vec::new();
    for number in 0..AT_ONCE * EACH {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, format!("bench-{round}-{number}"));
        let body = r#"{"argv":["true"]}"#;
        acks.push(context.publish_with_headers("kennel.jobs", headers, body.into()).await.unwrap());
    }
    for ack in acks {
        ack.await.unwrap();
    }
}
