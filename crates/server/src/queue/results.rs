//! The one outcome of a job: a line of JSON under the job's id, and after it the answer of `/v1/run`. A large
//! answer is an object that the line names.

use async_nats::jetstream::kv::CreateErrorKind;
use async_nats::jetstream::message::{AckKind, Acker};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::queue::attempts::Attempt;
use crate::queue::jobs::{Job, object_of};
use crate::queue::places::Places;
use crate::queue::{Trouble, Worker};
use crate::wire::sandbox::{now, time};

/// From this size on, in bytes, contents are objects.
pub(crate) const LARGE: usize = 512 << 10;

/// What a message has beside contents and line, in bytes: its headers, and the name of an object.
const BESIDE: usize = 4 << 10;

/// The longest reason, in characters: parts of it are the job's.
const LONGEST_REASON: usize = 1000;

/// What became of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Its command ran, or could not start.
    Done,
    /// Nobody could run it.
    Dead,
    /// Its client did not want it any more.
    Cancelled,
}

impl Kind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The line of an outcome.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) job: String,
    pub(crate) outcome: Kind,
    /// How often it was delivered. From 2 on, it may have run more than once.
    pub(crate) deliveries: i64,
    pub(crate) worker: String,
    pub(crate) time: String,
    /// Another one for each outcome that somebody wants to store.
    nonce: String,
    /// The object with the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    object: Option<String>,
    /// Why it is dead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// The status that `/v1/run` would have answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u16>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) history: Vec<Attempt>,
}

impl Outcome {
    pub(crate) fn new(job: &str, outcome: Kind, deliveries: i64, worker: &str) -> Self {
        Self {
            job: job.to_owned(),
            outcome,
            deliveries,
            worker: worker.to_owned(),
            time: time(now()),
            // Two equal ones would only be taken for one.
            nonce: format!("{:016x}", getrandom::u64().unwrap_or_default()),
            object: None,
            error: None,
            status: None,
            history: Vec::new(),
        }
    }

    /// That of a job which nobody could run.
    pub(crate) fn dead(job: &str, deliveries: i64, worker: &str, why: &str, history: Vec<Attempt>) -> Self {
        let error = Some(why.chars().take(LONGEST_REASON).collect());
        Self { error, history, ..Self::new(job, Kind::Dead, deliveries, worker) }
    }

    /// Its name in a file system.
    pub(crate) fn file_name(&self) -> String {
        format!("{}.{}", self.job, self.nonce)
    }
}

/// How the queue learns that a job is over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Settle {
    /// A message on this subject.
    Acknowledge(String),
    /// Its message is removed from the stream.
    Remove(u64),
}

/// An outcome, and what is to be done once it is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Parcel {
    pub(crate) outcome: Outcome,
    pub(crate) settle: Settle,
    pub(crate) notify: Option<String>,
    /// The answer; or of a dead job, its body. Beside the JSON where it is kept.
    #[serde(skip)]
    pub(crate) contents: Bytes,
}

impl Parcel {
    /// The outcome of a job that was delivered.
    pub(crate) fn of(job: &Job, outcome: Outcome, answer: Bytes) -> Self {
        let contents = if outcome.outcome == Kind::Dead { job.payload.clone() } else { answer };
        let settle = Settle::Acknowledge(job.reply.clone());
        Self { outcome, settle, notify: job.notify.clone(), contents }
    }

    /// What is stored under the job's id, and in the letters of the dead with its body.
    fn value(&self, outcome: &Outcome, has_contents: bool) -> Result<Bytes, Trouble> {
        let mut value = serde_json::to_vec(outcome)?;
        value.push(b'\n');
        if has_contents {
            value.extend_from_slice(&self.contents);
        }
        Ok(value.into())
    }
}

/// The line of a value.
pub(crate) fn line_of(value: &[u8]) -> Option<Outcome> {
    serde_json::from_slice(value.split(|byte| *byte == b'\n').next()?).ok()
}

impl Worker {
    /// Stores an outcome, unless the job has one, and settles the job. Twice is as good as once.
    ///
    /// # Errors
    /// NATS cannot be reached, or has no room.
    pub(crate) async fn store(&self, places: &Places, parcel: &Parcel) -> Result<(), Trouble> {
        let stored = self.store_outcome(places, parcel).await?;
        if stored.nonce == parcel.outcome.nonce {
            let outcome = &parcel.outcome;
            self.front.note_job(&outcome.job, outcome.outcome.as_str(), outcome.deliveries);
        } else {
            self.front.note_job(&parcel.outcome.job, "known", parcel.outcome.deliveries);
        }
        settle(places, &parcel.settle, stored.outcome).await;
        let id = &parcel.outcome.job;
        places.bodies.forget(&object_of(id)).await;
        self.tell(parcel.notify.as_deref(), id).await;
        Ok(())
    }

    /// Tells the client that waits.
    pub(crate) async fn tell(&self, notify: Option<&str>, id: &str) {
        if let Some(subject) = notify {
            // It looks from time to time, too.
            let _ = self.client.publish(subject.to_owned(), id.to_owned().into()).await;
        }
    }

    /// Returns the outcome that the job has: this one, or an earlier one.
    async fn store_outcome(&self, places: &Places, parcel: &Parcel) -> Result<Outcome, Trouble> {
        let mut outcome = parcel.outcome.clone();
        let is_dead = outcome.outcome == Kind::Dead;
        let room = self.client.max_payload().saturating_sub(BESIDE);
        let length = serde_json::to_vec(&outcome)?.len() + parcel.contents.len();
        let is_large = length > LARGE.min(room);
        if is_large && !is_dead {
            let name = format!("result-{}", outcome.file_name());
            places.bodies.put(&name, &parcel.contents, room).await?;
            outcome.object = Some(name);
        }
        let value = parcel.value(&outcome, !is_large && !is_dead)?;
        let stored = store_first(places, outcome.clone(), value).await?;
        let is_first = stored.nonce == outcome.nonce;
        if let (false, Some(object)) = (is_first, &outcome.object) {
            places.bodies.forget(object).await;
        }
        if is_dead && is_first {
            places.dead.put(&outcome.job, parcel.value(&stored, !is_large)?).await?;
        }
        Ok(stored)
    }
}

/// Stores an outcome unless there is one, and returns the one that is there. What is no outcome is
/// overwritten.
async fn store_first(places: &Places, outcome: Outcome, value: Bytes) -> Result<Outcome, Trouble> {
    match places.results.create(&outcome.job, value.clone()).await {
        Ok(_) => return Ok(outcome),
        Err(error) if error.kind() == CreateErrorKind::AlreadyExists => {}
        Err(error) => return Err(error.into()),
    }
    let entry = places.results.entry(&outcome.job).await?.ok_or("the result of a job is gone again")?;
    if let Some(found) = line_of(&entry.value) {
        return Ok(found);
    }
    places.results.update(&outcome.job, value, entry.revision).await?;
    Ok(outcome)
}

/// Takes a job that has an outcome out of the stream. If that fails, it comes again, and has a result.
pub(crate) async fn settle(places: &Places, settle: &Settle, kind: Kind) {
    match settle {
        Settle::Acknowledge(reply) => {
            let acker = Acker::new(places.context.clone(), Some(reply.as_str().into()));
            let kind = if kind == Kind::Dead { AckKind::Term } else { AckKind::Ack };
            let _ = acker.double_ack_with(kind).await;
        }
        Settle::Remove(sequence) => {
            let _ = places.stream.delete_message(*sequence).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_a_line_and_the_answer() {
        let outcome = Outcome::new("a", Kind::Done, 2, "w");
        let settle = Settle::Remove(1);
        let parcel = Parcel { outcome, settle, notify: None, contents: Bytes::from_static(b"{\n}") };
        let value = parcel.value(&parcel.outcome, true).expect("a value");
        let line = line_of(&value).expect("a line");
        assert_eq!((line.job.as_str(), line.deliveries, line.outcome), ("a", 2, Kind::Done));
        assert!(value.ends_with(b"}\n{\n}"));
        assert!(line_of(b"x").is_none() && line_of(b"").is_none());
    }

    #[test]
    fn a_reason_has_a_length() {
        let outcome = Outcome::dead("a", 1, "w", &"é".repeat(5000), Vec::new());
        assert_eq!(outcome.error.expect("a reason").chars().count(), LONGEST_REASON);
    }
}
