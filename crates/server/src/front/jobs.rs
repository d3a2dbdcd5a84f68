//! What the queue asks of the front: whose quotas count, how much room there is, and one command. It is the
//! same command as that of `/v1/run`.

use std::error::Error;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::StatusCode;
use http_body_util::LengthLimitError;

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
        let answer = match answer_of(response.into_body(), MOST_ANSWER).await {
            Ok(answer) => answer,
            Err(ran) => return ran,
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

/// The answer of a host. One that is too long is so again at the next attempt.
async fn answer_of(body: Body, most: usize) -> Result<Bytes, Ran> {
    to_bytes(body, most).await.map_err(|error| {
        if error.source().is_some_and(|source| source.is::<LengthLimitError>()) {
            let why = format!("the answer: more than {most} bytes of output and files");
            return Ran::Refused(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, why));
        }
        Ran::Failed(Failure::gone(Some(Reason::SessionLost)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_that_is_too_long_is_refused_and_one_that_breaks_has_failed() {
        assert!(answer_of(Body::from("abc"), 3).await.is_ok_and(|answer| answer == "abc"));
        let Err(Ran::Refused(failure)) = answer_of(Body::from("abcd"), 3).await else {
            panic!("not refused")
        };
        assert_eq!(failure.status, StatusCode::PAYLOAD_TOO_LARGE);
        let broken = futures_util::stream::iter([Ok("a"), Err(std::io::Error::other("cut"))]);
        let answer = answer_of(Body::from_stream(broken), 3).await;
        assert!(matches!(answer, Err(Ran::Failed(_))));
    }
}
