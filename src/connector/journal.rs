//! What a program logs during one call.

use std::fmt;
use std::sync::{Arc, Mutex};

use serde::Serialize;

use crate::report::escape::harmless;
use crate::sys::locked;

/// A line that a program logged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LogLine {
    /// Its level, as the program wrote it: usually `trace`, `debug`, `info`, `warn` or `error`. Characters
    /// that a terminal obeys are escaped, and a long text is cut.
    pub level: String,
    /// Its text, as one line without characters that a terminal obeys.
    pub message: String,
}

impl LogLine {
    /// How important the line is, as far as Kennel knows the level.
    #[must_use]
    pub fn severity(&self) -> LogLevel {
        LogLevel::parse(&self.level)
    }
}

/// How important a log line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Every step.
    Trace,
    /// For developers of the program.
    Debug,
    /// An ordinary event. Also any level that Kennel does not know.
    Info,
    /// Something unexpected.
    Warn,
    /// A failure.
    Error,
}

impl LogLevel {
    pub(crate) fn parse(text: &str) -> Self {
        match text.to_ascii_lowercase().as_str() {
            "trace" => Self::Trace,
            "debug" => Self::Debug,
            "warn" | "warning" => Self::Warn,
            "error" => Self::Error,
            _ => Self::Info,
        }
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Trace => "trace",
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        })
    }
}

/// Gets each log line as it is written: the name of the connector, and the line.
pub type LogSink = Arc<dyn Fn(&str, &LogLine) + Send + Sync>;

/// How many lines and bytes of one call are kept. Further lines are counted.
const MAX_LINES: usize = 1000;
pub(crate) const MAX_BYTES: usize = 256 << 10;

/// Characters that are kept of a level.
const MAX_LEVEL: usize = 64;

/// The lines of one call.
pub(crate) struct Journal {
    connector: Arc<str>,
    sink: Option<LogSink>,
    lines: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    kept: Vec<LogLine>,
    bytes: usize,
    dropped: u64,
}

impl Journal {
    pub(crate) fn new(connector: &Arc<str>, sink: Option<&LogSink>) -> Self {
        Self { connector: Arc::clone(connector), sink: sink.cloned(), lines: Mutex::default() }
    }

    pub(crate) fn write(&self, level: &str, message: &str) {
        let line = {
            let mut lines = locked(&self.lines);
            let level: String = level.chars().take(MAX_LEVEL).collect();
            if lines.kept.len() == MAX_LINES || lines.bytes + message.len() > MAX_BYTES {
                lines.dropped += 1;
                return;
            }
            lines.bytes += message.len();
            let line = LogLine { level: harmless(&level), message: harmless(message) };
            lines.kept.push(line.clone());
            line
        };
        let (connector, message) = (&*self.connector, &*line.message);
        match line.severity() {
            LogLevel::Trace => tracing::trace!(connector, "{message}"),
            LogLevel::Debug => tracing::debug!(connector, "{message}"),
            LogLevel::Info => tracing::info!(connector, "{message}"),
            LogLevel::Warn => tracing::warn!(connector, "{message}"),
            LogLevel::Error => tracing::error!(connector, "{message}"),
        }
        if let Some(sink) = &self.sink {
            sink(connector, &line);
        }
    }

    /// The lines so far. The last one tells how many were not kept.
    pub(crate) fn take(&self) -> Vec<LogLine> {
        let Lines { mut kept, dropped, .. } = std::mem::take(&mut *locked(&self.lines));
        if dropped > 0 {
            let message =
                format!("{dropped} further log lines were dropped: a call keeps {MAX_LINES} lines, 256 KiB");
            kept.push(LogLine { level: LogLevel::Warn.to_string(), message });
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted() {
        let journal = Journal::new(&"c".into(), None);
        (0..5000).for_each(|number| journal.write("info", &number.to_string()));
        let lines = journal.take();
        assert_eq!(lines.len(), MAX_LINES + 1);
        assert!(lines[MAX_LINES].message.starts_with("4000 further log lines"), "{:?}", lines[MAX_LINES]);
        let journal = Journal::new(&"c".into(), None);
        (0..5).for_each(|_| journal.write("info", &"x".repeat(100 << 10)));
        assert_eq!(journal.take().len(), 3);
    }

    #[test]
    fn lines_do_nothing_to_a_terminal() {
        let journal = Journal::new(&"c".into(), None);
        journal.write("WARN", "a\n\u{1b}[2J");
        let [line] = &journal.take()[..] else { unreachable!() };
        assert_eq!((&*line.level, &*line.message), ("WARN", "a\\n\\u{1b}[2J"));
        assert_eq!(line.severity(), LogLevel::Warn);
    }

    #[test]
    fn a_level_of_the_program_s_own_stays_what_it_was() {
        let journal = Journal::new(&"c".into(), None);
        let long = "l".repeat(1000);
        for level in ["notice", "", "Fatal\n", &long] {
            journal.write(level, "m");
        }
        let lines = journal.take();
        let levels: Vec<_> = lines.iter().map(|line| &*line.level).collect();
        assert_eq!(levels, ["notice", "", "Fatal\\n", &long[..MAX_LEVEL]]);
        assert!(lines.iter().all(|line| line.severity() == LogLevel::Info));
    }
}
