//! What is tried again, how often, and after which pauses.

use std::time::Duration;

use kennel::image::PullError;

/// How often something is tried again.
const MOST_RETRIES: u32 = 5;

/// The first pause before something is tried again. Each one after it is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// The longest time that a registry may ask to wait for.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How long a registry may be silent, and how it is waited for.
pub(super) struct Patience {
    /// How long no byte may come.
    pub(super) stall: Duration,
    pub(super) pause: Box<dyn Fn(Duration) + Send + Sync>,
}

impl Default for Patience {
    fn default() -> Self {
        Self { stall: Duration::from_secs(30), pause: Box::new(std::thread::sleep) }
    }
}

/// Why something failed, and whether to try it again.
pub(super) enum Trouble {
    Final(PullError),
    Passing {
        error: PullError,
        /// How long the registry asks to wait.
        after: Option<Duration>,
        /// Whether something was done since the last time.
        has_progress: bool,
    },
}

impl Trouble {
    pub(super) fn passing(error: PullError) -> Self {
        Self::Passing { error, after: None, has_progress: false }
    }
}

impl Patience {
    /// Does something until it succeeds, fails for good, or was tried often enough.
    pub(super) fn attempt<T>(&self, mut attempt: impl FnMut() -> Result<T, Trouble>) -> Result<T, PullError> {
        let mut retries = 0;
        loop {
            let (error, after) = match attempt() {
                Ok(done) => return Ok(done),
                Err(Trouble::Final(error)) => return Err(error),
                Err(Trouble::Passing { error, after, has_progress }) => {
                    if has_progress {
                        retries = 0;
                    }
                    (error, after)
                }
            };
            let pause = after.unwrap_or(FIRST_PAUSE * 2_u32.pow(retries));
            if retries == MOST_RETRIES || pause > LONGEST_PAUSE {
                return Err(error);
            }
            (self.pause)(pause);
            retries += 1;
        }
    }
}
