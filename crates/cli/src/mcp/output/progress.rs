//! Progress of a call, for a client that asks for it: about once a second, how long it runs and what it wrote
//! last.

use std::{
    future::pending,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rmcp::{
    RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
    service::{Peer, RequestContext},
};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use kennel::internal::escape::harmless;

/// The time between two messages.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest part of a line that a message shows, in bytes.
const LONGEST: usize = 200;

/// What a command has written so far.
#[derive(Debug, Default)]
pub(crate) struct Written {
    bytes: u64,
    /// The end of it, with its last line.
    end: Vec<u8>,
}

/// Counts what a command writes.
#[derive(Debug, Default)]
pub(crate) struct Meter(Mutex<Written>);

impl Meter {
    pub(crate) fn add(&self, bytes: &[u8]) {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        written.bytes += bytes.len() as u64;
        let from = bytes.len().saturating_sub(2 * LONGEST);
        written.end.extend(bytes.get(from..).unwrap_or_default());
        let too_many = written.end.len().saturating_sub(2 * LONGEST);
        written.end.drain(..too_many);
    }

    fn message(&self, seconds: u64) -> String {
        let written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&written.end);
        let line = text.lines().rev().find(|line| !line.trim().is_empty());
        let line =
            line.map(|line| format!(": {}", harmless(&line.chars().take(LONGEST).collect::<String>())));
        format!("{seconds} s, {} bytes of output{}", written.bytes, line.unwrap_or_default())
    }
}

/// The client of a call, if it wants to know how the call goes.
pub(crate) struct Listener(Option<(Peer<RoleServer>, ProgressToken)>);

impl Listener {
    pub(crate) fn of(context: &RequestContext<RoleServer>) -> Self {
        Self(context.meta.get_progress_token().map(|token| (context.peer.clone(), token)))
    }

    /// Does the work, and tells the client meanwhile. A client that does not read gets no second message.
    pub(crate) async fn during<T>(&self, meter: Option<&Meter>, work: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            done = work => done,
            never = self.tell(meter) => never,
        }
    }

    async fn tell<T>(&self, meter: Option<&Meter>) -> T {
        let Some((peer, token)) = &self.0 else { return pending().await };
        let start = Instant::now();
        let mut pauses = interval_at(start + PAUSE, PAUSE);
        pauses.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            pauses.tick().await;
            let elapsed = start.elapsed();
            let progress = ProgressNotificationParam::new(token.clone(), elapsed.as_secs_f64());
            let seconds = elapsed.as_secs();
            let message = meter.map_or_else(|| format!("{seconds} s"), |meter| meter.message(seconds));
            // Without a client the call ends soon.
            let _ = peer.notify_progress(progress.with_message(message)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_shown_and_everything_is_counted() {
        let meter = Meter::default();
        assert_eq!(meter.message(1), "1 s, 0 bytes of output");
        meter.add(b"one\ntwo\n\n");
        assert_eq!(meter.message(2), "2 s, 9 bytes of output: two");
        meter.add(&[b'x'; 5000]);
        assert_eq!(meter.message(3), format!("3 s, 5009 bytes of output: {}", "x".repeat(LONGEST)));
        meter.add("\nä\u{1b}[2J".as_bytes());
        assert_eq!(meter.message(4), r"4 s, 5016 bytes of output: ä\u{1b}[2J");
    }
}
