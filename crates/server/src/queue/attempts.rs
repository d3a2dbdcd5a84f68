//! Who has tried a job: its history, for the letter of a job that nobody could run. A first attempt is noted
//! once it has taken a second, later ones before they begin: what kills workers is known by name.

use async_nats::jetstream::kv::Store;
use serde::{Deserialize, Serialize};

use crate::queue::Trouble;
use crate::wire::sandbox::{now, time};

/// One delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attempt {
    pub(crate) delivery: i64,
    pub(crate) worker: String,
    /// When it began.
    pub(crate) time: String,
    /// What went wrong. Without it, the worker was not heard of again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl Attempt {
    /// One that begins now.
    pub(crate) fn begins(delivery: i64, worker: &str) -> Self {
        Self { delivery, worker: worker.to_owned(), time: time(now()), error: None }
    }
}

/// The attempts that are known of a job.
pub(crate) async fn of_job(attempts: &Store, id: &str) -> Result<Vec<Attempt>, Trouble> {
    let found = attempts.get(id).await?;
    Ok(found.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default())
}

/// Notes an attempt, and returns all of them. The same one is noted once.
pub(crate) async fn note(attempts: &Store, id: &str, attempt: &Attempt) -> Result<Vec<Attempt>, Trouble> {
    let mut all = of_job(attempts, id).await?;
    with(&mut all, attempt.clone());
    attempts.put(id, serde_json::to_vec(&all)?.into()).await?;
    Ok(all)
}

/// Adds an attempt, in the place of the same one.
pub(crate) fn with(all: &mut Vec<Attempt>, attempt: Attempt) {
    all.retain(|other| {
        (other.delivery, &other.worker, &other.time) != (attempt.delivery, &attempt.worker, &attempt.time)
    });
    all.push(attempt);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_there_once_with_its_last_words() {
        let first = Attempt::begins(1, "a");
        let mut all = vec![first.clone()];
        with(&mut all, Attempt { error: Some("no disk".into()), ..first.clone() });
        with(&mut all, Attempt::begins(2, "b"));
        let told: Vec<_> = all.iter().map(|attempt| (attempt.delivery, attempt.error.as_deref())).collect();
        assert_eq!(told, [(1, Some("no disk")), (2, None)]);
    }
}
