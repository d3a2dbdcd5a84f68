//! One job: looked at, run, and told about. While it is in hand, the queue hears of it at a third of the time
//! after which it would give it to somebody else.

use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{sleep, timeout};

use crate::front::jobs::Ran;
use crate::queue::attempts::{self, Attempt};
use crate::queue::jobs::{Job, publish_again};
use crate::queue::objects::Object;
use crate::queue::places::Places;
use crate::queue::results::{Kind, Outcome, Parcel, Settle, line_of, settle};
use crate::queue::{AGAIN, Trouble, Worker};

/// How long a first attempt may take until it is noted.
const NOTED: Duration = Duration::from_secs(1);

/// How long it may take to read a body.
const READ: Duration = Duration::from_secs(60);

/// The pause before a job that found no room is tried again here.
const NO_ROOM: Duration = Duration::from_millis(200);

/// The longest pause before a job that failed comes again.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What is to be done with a job.
enum Verdict {
    /// It has this outcome already.
    Known(Outcome),
    /// It has this outcome now, with an answer.
    Over(Outcome, Bytes),
    /// It is not its fault: somebody else may run it.
    GiveBack,
    /// This went wrong.
    Failed(String),
}

impl Worker {
    /// Does a job.
    pub(crate) async fn work(&self, places: &Places, job: &Job) {
        tokio::select! {
            () = self.finish(places, job) => {}
            () = stay(job, places.ack_wait() / 3) => {}
        }
    }

    async fn finish(&self, places: &Places, job: &Job) {
        let attempt = Attempt::begins(job.delivery, self.front.worker_name());
        match self.judge(places, job, &attempt).await {
            Verdict::Known(outcome) => {
                self.front.note_job(job.name(), "known", job.delivery);
                settle(places, &Settle::Acknowledge(job.reply.clone()), outcome.outcome).await;
                self.tell(job.notify.as_deref(), job.name()).await;
            }
            Verdict::Over(outcome, answer) => self.deliver(places, Parcel::of(job, outcome, answer)).await,
            Verdict::GiveBack => self.give_back(places, job).await,
            Verdict::Failed(why) => self.fail(places, job, attempt, why).await,
        }
    }

    async fn judge(&self, places: &Places, job: &Job, attempt: &Attempt) -> Verdict {
        loop {
            match self.look(places, job, attempt).await {
                Ok(None) => break,
                Ok(Some(verdict)) => return verdict,
                Err(_) if self.front.is_draining() => return Verdict::GiveBack,
                // Without an answer of NATS nobody knows whether it may run.
                Err(_) => sleep(AGAIN).await,
            }
        }
        let id = job.name();
        tokio::select! {
            verdict = self.read_and_run(places, job) => verdict,
            () = self.cancelled.wait(id) => Verdict::Over(self.outcome(job, Kind::Cancelled), Bytes::new()),
            () = self.note_slow(places, job, attempt) => Verdict::GiveBack,
        }
    }

    /// `None`: it is to be run.
    async fn look(&self, places: &Places, job: &Job, attempt: &Attempt) -> Result<Option<Verdict>, Trouble> {
        let id = match &job.id {
            Ok(id) => id,
            Err((_, why)) => return Ok(Some(self.dead(job, why))),
        };
        if let Some(outcome) = places.results.get(id).await?.as_deref().and_then(line_of) {
            return Ok(Some(Verdict::Known(outcome)));
        }
        if self.cancelled.has(id) {
            return Ok(Some(Verdict::Over(self.outcome(job, Kind::Cancelled), Bytes::new())));
        }
        if job.delivery > 1 {
            attempts::note(&places.attempts, id, attempt).await?;
        }
        Ok(None)
    }

    async fn read_and_run(&self, places: &Places, job: &Job) -> Verdict {
        let why = match timeout(READ, job.body(&places.bodies)).await {
            Ok(Ok(Object::There(body))) => return self.run(job, &body).await,
            Ok(Ok(Object::Wrong(why))) => return self.dead(job, &format!("the body: {why}")),
            Ok(Err(trouble)) => format!("the body: {trouble}"),
            Err(_) => format!("the body: it was not read within {} seconds", READ.as_secs()),
        };
        // Another worker has perhaps stored its result meanwhile, and removed the body.
        let value = places.results.get(job.name()).await.unwrap_or_default();
        value.as_deref().and_then(line_of).map_or(Verdict::Failed(why), Verdict::Known)
    }

    /// Runs it, as soon as there is room.
    async fn run(&self, job: &Job, body: &[u8]) -> Verdict {
        if job.delivery > 1 {
            self.front.note_repeated();
        }
        loop {
            let Some(token) = self.front.job_token(&self.nats) else { return Verdict::GiveBack };
            match self.front.run_job(&token, body).await {
                Ran::Answer(answer) => return Verdict::Over(self.outcome(job, Kind::Done), answer),
                Ran::NoRoom if self.front.is_draining() => return Verdict::GiveBack,
                Ran::NoRoom => sleep(NO_ROOM).await,
                Ran::Refused(failure) => {
                    let mut dead = self.dead_outcome(job, &failure.message, Vec::new());
                    dead.status = Some(failure.status.as_u16());
                    return Verdict::Over(dead, Bytes::new());
                }
                Ran::Failed(failure) => return Verdict::Failed(failure.message),
            }
        }
    }

    /// Notes a first attempt once it has taken a while. Never returns.
    async fn note_slow(&self, places: &Places, job: &Job, attempt: &Attempt) {
        if job.delivery == 1 {
            sleep(NOTED).await;
            // Without it, only the history is shorter.
            let _ = attempts::note(&places.attempts, job.name(), attempt).await;
        }
        pending().await
    }

    /// An attempt went wrong. The last one makes a dead job.
    async fn fail(&self, places: &Places, job: &Job, attempt: Attempt, why: String) {
        let attempt = Attempt { error: Some(why.clone()), ..attempt };
        let noted = attempts::note(&places.attempts, job.name(), &attempt).await;
        if job.delivery < places.deliveries() {
            self.front.note_job(job.name(), "failed", job.delivery);
            let pause = AGAIN.saturating_mul(u32::try_from(job.delivery).unwrap_or(1)).min(LONGEST_PAUSE);
            return job.give_back(Some(pause)).await;
        }
        let history = noted.unwrap_or_else(|_| vec![attempt]);
        let outcome = self.dead_outcome(job, &why, history);
        self.deliver(places, Parcel::of(job, outcome, Bytes::new())).await;
    }

    /// Gives a job back that it is not the fault of.
    async fn give_back(&self, places: &Places, job: &Job) {
        self.front.note_job(job.name(), "given_back", job.delivery);
        if job.delivery >= places.deliveries() {
            // The queue would not deliver it any more.
            let payload = job.payload.clone();
            let again =
                publish_again(&places.context, &self.nats.prefix, job.sequence, &job.headers, payload).await;
            if again.is_ok() {
                return settle(places, &Settle::Acknowledge(job.reply.clone()), Kind::Done).await;
            }
        }
        job.give_back(None).await;
    }

    fn outcome(&self, job: &Job, kind: Kind) -> Outcome {
        Outcome::new(job.name(), kind, job.delivery, self.front.worker_name())
    }

    fn dead_outcome(&self, job: &Job, why: &str, history: Vec<Attempt>) -> Outcome {
        Outcome::dead(job.name(), job.delivery, self.front.worker_name(), why, history)
    }

    fn dead(&self, job: &Job, why: &str) -> Verdict {
        Verdict::Over(self.dead_outcome(job, why, Vec::new()), Bytes::new())
    }
}

/// Tells the queue from time to time that somebody works on it. Never returns.
async fn stay(job: &Job, interval: Duration) {
    loop {
        sleep(interval).await;
        job.progress().await;
    }
}
