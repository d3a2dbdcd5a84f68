//! What is tried again, how often, and after which pauses.

use std::time::{Duration, SystemTime};

use kennel::image::PullError;
use reqwest::header::{DATE, HeaderMap, HeaderName, RETRY_AFTER};

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

/// How long a registry asks to wait: a number of seconds or a date, by its own clock if it tells that (RFC
/// 9110, 10.2.3). `None` if it does not say, or says something else; also if the date has passed, which tells
/// nothing about the next attempt.
pub(super) fn asked(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let after = text(RETRY_AFTER)?.trim();
    if let Ok(seconds) = after.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(after).ok()?;
    let now = text(DATE).and_then(|now| httpdate::parse_http_date(now).ok());
    let left = date.duration_since(now.unwrap_or_else(SystemTime::now)).ok()?;
    // A clock in between two seconds would make it too short.
    let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
    Some(Duration::from_secs(seconds)).filter(|left| !left.is_zero())
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

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    #[test]
    fn seconds_and_dates_are_read_and_nonsense_is_not() {
        const NOW: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
        for (after, expected) in [
            ("0", Some(0)),
            (" 120 ", Some(120)),
            ("18446744073709551615", Some(u64::MAX)),
            // The three forms of RFC 9110, 5.6.7.
            ("Sun, 06 Nov 1994 08:50:07 GMT", Some(30)),
            ("Sunday, 06-Nov-94 09:49:37 GMT", Some(3600)),
            ("Sun Nov  6 08:49:38 1994", Some(1)),
            // Now, and before.
            (NOW, None),
            ("Sun, 06 Nov 1994 08:49:36 GMT", None),
            ("Thu, 01 Jan 1970 00:00:00 GMT", None),
            ("", None),
            ("-1", None),
            ("1.5", None),
            ("18446744073709551616", None),
            ("soon", None),
            ("Sun, 31 Feb 1994 08:50:07 GMT", None),
            ("Sun, 06 Nov 1994 08:50:07", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_str(after).expect("a value"));
            headers.insert(DATE, HeaderValue::from_static(NOW));
            assert_eq!(asked(&headers), expected.map(Duration::from_secs), "{after:?}");
        }
        assert_eq!(asked(&HeaderMap::new()), None);
    }

    #[test]
    fn the_clock_of_this_machine_counts_if_the_registry_tells_none() {
        let mut headers = HeaderMap::new();
        let later = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3600));
        headers.insert(RETRY_AFTER, HeaderValue::from_str(&later).expect("a date"));
        let left = asked(&headers).expect("an hour").as_secs();
        // A busy machine takes a while to get here.
        assert!((3000..=3600).contains(&left), "{left}");
    }
}
