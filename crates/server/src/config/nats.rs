//! `[nats]`: the queue that jobs come from, and whose quotas they count against.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kennel::Span;
use serde::Deserialize;

/// The keys of `[nats]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NatsFile {
    url: Option<String>,
    credentials: Option<PathBuf>,
    token_file: Option<PathBuf>,
    ca: Option<PathBuf>,
    prefix: Option<String>,
    token: Option<String>,
    jobs: Option<usize>,
    deliveries: Option<i64>,
    ack_wait: Option<Span>,
    keep: Option<Span>,
}

/// Where jobs come from, checked.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "nats"), expect(dead_code, reason = "only the feature `nats` reads it"))]
pub(crate) struct Nats {
    /// Servers, with commas between them.
    pub(crate) url: String,
    /// A file of NATS with a JWT and its seed.
    pub(crate) credentials: Option<PathBuf>,
    /// A file with a token of the NATS server.
    pub(crate) token_file: Option<PathBuf>,
    /// Certificate authorities in PEM, beside those of the system.
    pub(crate) ca: Option<PathBuf>,
    /// With which the names of streams and buckets begin.
    pub(crate) prefix: String,
    /// The token whose templates and quotas hold for jobs. `None`: the only one there is.
    pub(crate) token: Option<String>,
    /// The most jobs at once.
    pub(crate) jobs: usize,
    /// How often a job is tried.
    pub(crate) deliveries: i64,
    /// How long the queue waits for news of a job until it gives it to another worker.
    pub(crate) ack_wait: Duration,
    /// How long results are kept.
    pub(crate) keep: Duration,
}

impl NatsFile {
    /// The file with its defaults. `url` is the one of the command line, and wins. `None`: no queue.
    ///
    /// # Errors
    /// The key, and what is wrong with it.
    pub(crate) fn check(
        self,
        url: Option<&str>,
        directory: &Path,
    ) -> Result<Option<Nats>, (&'static str, String)> {
        let Some(url) = url.map(str::to_owned).or(self.url) else {
            let is_named = self.prefix.is_some() || self.token.is_some() || self.credentials.is_some();
            return if is_named {
                Err(("nats.url", "it is missing: url = \"nats://HOST:4222\"".into()))
            } else {
                Ok(None)
            };
        };
        if cfg!(not(feature = "nats")) {
            let reason = "this kennel-server was built without the feature `nats`; take that of a release, \
                          or build it with `cargo build --package kennel-server --features nats`";
            return Err(("--nats", reason.into()));
        }
        if url.contains('@') {
            // The URL is in messages, and perhaps in the list of processes.
            let reason = "there is a user or a password in it; take it out, and name a file: \
                          `credentials` or `token_file` of [nats]";
            return Err(("nats.url", reason.into()));
        }
        let prefix = self.prefix.unwrap_or_else(|| "kennel".into());
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if !(1..=32).contains(&prefix.len()) || !prefix.bytes().all(is_plain) {
            let reason = format!("{prefix:?}: 1 to 32 letters, digits, `-` and `_` are possible");
            return Err(("nats.prefix", reason));
        }
        if self.credentials.is_some() && self.token_file.is_some() {
            return Err(("nats.token_file", "there are credentials, too: one of both".into()));
        }
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let jobs = self.jobs.unwrap_or(2 * processors);
        if jobs == 0 {
            return Err(("nats.jobs", "0: at least one job at once is needed".into()));
        }
        let deliveries = self.deliveries.unwrap_or(5);
        if !(2..=100).contains(&deliveries) {
            return Err(("nats.deliveries", format!("{deliveries}: 2 to 100 are possible")));
        }
        let span = |span: Option<Span>, usual| span.map_or(Duration::from_secs(usual), Span::duration);
        let (ack_wait, keep) = (span(self.ack_wait, 30), span(self.keep, 24 * 60 * 60));
        for (key, time) in [("nats.ack_wait", ack_wait), ("nats.keep", keep)] {
            if time < Duration::from_secs(1) {
                return Err((key, "at least a second is needed".into()));
            }
        }
        let in_directory = |path: PathBuf| directory.join(path);
        Ok(Some(Nats {
            url,
            credentials: self.credentials.map(in_directory),
            token_file: self.token_file.map(in_directory),
            ca: self.ca.map(in_directory),
            prefix,
            token: self.token,
            jobs,
            deliveries,
            ack_wait,
            keep,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, url: Option<&str>) -> Result<Option<Nats>, (&'static str, String)> {
        let file: NatsFile = toml::from_str(text).expect(text);
        file.check(url, Path::new("/etc"))
    }

    #[test]
    fn without_a_url_there_is_no_queue() {
        assert!(check("", None).expect("none").is_none());
        assert_eq!(check("prefix = 'a'", None).expect_err("no URL").0, "nats.url");
    }

    #[cfg(not(feature = "nats"))]
    #[test]
    fn without_the_feature_it_is_named() {
        let (key, reason) = check("", Some("nats://a")).expect_err("no feature");
        assert!(key == "--nats" && reason.contains("--features nats"), "{reason}");
    }

    #[cfg(feature = "nats")]
    #[test]
    fn the_command_line_wins_and_wrong_values_are_named() {
        let nats =
            check("url = 'nats://a'\ncredentials = 'c'", Some("nats://b")).expect("good").expect("one");
        assert_eq!((nats.url.as_str(), nats.credentials), ("nats://b", Some(PathBuf::from("/etc/c"))));
        assert_eq!((nats.deliveries, nats.ack_wait), (5, Duration::from_secs(30)));
        for (text, key) in [
            ("prefix = 'a.b'", "nats.prefix"),
            ("prefix = ''", "nats.prefix"),
            ("jobs = 0", "nats.jobs"),
            ("deliveries = 1", "nats.deliveries"),
            ("ack_wait = '10ms'", "nats.ack_wait"),
            ("credentials = 'a'\ntoken_file = 'b'", "nats.token_file"),
        ] {
            assert_eq!(check(text, Some("nats://a")).expect_err(text).0, key);
        }
        for url in ["nats://me:secret@a", "nats://a,tls://secret@b:4222", "me:secret@a"] {
            let (key, reason) = check("", Some(url)).expect_err(url);
            assert!(
                key == "nats.url" && !reason.contains("secret") && reason.contains("token_file"),
                "{reason}"
            );
        }
    }
}
