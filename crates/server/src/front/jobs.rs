//! What the queue asks of the front: whose quotas count, how much room there is, and one command. It is the
//! same command as that of `/v1/run`.

use axum::body::{Bytes, to_bytes};
use axum::http::StatusCode;

use crate::config::nats::Nats;
use crate::config::tokens::{ONLY, Token};
use crate::front::Front;
use crate::front::run_code::MOST_ANSWER;
use crate::wire::StateDirectory;
use crate::wire::failure::{Failure, Reason};
use crate::wire::headers::REASON;

/// What became of a job's command.
pub(crate) enum Ran {
    /// It ran: the answer of `/v1/run`.
    Answer(Bytes),
    /// There is no room for it now.
    NoRoom,
    /// Nobody should try it again.
    Refused(Failure),
    /// It may have run, and its end is not known; or this worker could not run it.
    Failed(Failure),
}

impl Front {
    pub(crate) fn nats(&self) -> Option<&Nats> {
        self.config.nats.as_ref()
    }

    pub(crate) fn worker_name(&self) -> &str {
        &self.config.name
    }

    pub(crate) fn state(&self) -> &StateDirectory {
        &self.config.state
    }

    /// The token that jobs count against, unless it was taken out of the file.
    pub(crate) fn job_token(&self, nats: &Nats) -> Option<Token> {
        self.access.tokens().named(nats.token.as_deref().unwrap_or(ONLY)).cloned()
    }

    /// How many more commands of this token there is room for.
    pub(crate) fn room_for(&self, token: &Token) -> usize {
        let commands =
            token.commands.map_or(usize::MAX, |most| most.saturating_sub(self.hosts.commands(&token.name)));
        self.admission.room_for(token).min(commands)
    }

    /// Runs the body of a job.
    pub(crate) async fn run_job(&self, token: &Token, body: &[u8]) -> Ran {
        let response = match self.run_once(token, body).await {
            Ok(response) => response,
            Err(failure) => return Ran::of(failure),
        };
        let (status, is_lost) = (response.status(), response.headers().contains_key(REASON));
        let Ok(answer) = to_bytes(response.into_body(), MOST_ANSWER).await else {
            return Ran::Failed(Failure::gone(Some(Reason::SessionLost)));
        };
        match status {
            StatusCode::OK => Ran::Answer(answer),
            // Its host has refused it: that has nothing to do with room.
            _ if is_lost || !status.is_client_error() => Ran::Failed(Failure::of_answer(status, &answer)),
            _ => Ran::Refused(Failure::of_answer(status, &answer)),
        }
    }

    /// Notes what became of a job.
    pub(crate) fn note_job(&self, id: &str, outcome: &'static str, deliveries: i64) {
        let owner = self.config.nats.as_ref().and_then(|nats| nats.token.as_deref()).unwrap_or(ONLY);
        self.audit.job(id, owner, outcome, deliveries);
        self.metrics.job(outcome);
    }

    /// Notes that a job has run, or begins to run, for a second time.
    pub(crate) fn note_repeated(&self) {
        self.metrics.job_repeated();
    }

    /// Notes how many results wait until the queue can be reached.
    pub(crate) fn note_kept(&self, count: usize) {
        self.metrics.results_kept(count);
    }
}

impl Ran {
    fn of(failure: Failure) -> Self {
        match failure.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Self::NoRoom,
            status if status.is_client_error() || status == StatusCode::NOT_IMPLEMENTED => {
                Self::Refused(failure)
            }
            _ => Self::Failed(failure),
        }
    }
}
