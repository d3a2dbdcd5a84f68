//! `kennel session list`: your running sessions.

use std::{fmt, fs, process::ExitCode};

use kennel::{
    Error, Stats,
    client::Client,
    internal::escape::harmless,
    report::{ListenError, PublishedPort},
};
use serde::Serialize;

use crate::{
    process::exit_status::FAILED,
    report,
    terminal::{
        style::{self, Paint},
        table::age,
    },
};

/// A line of `kennel session list`. A session that does not answer has no numbers.
#[derive(Serialize)]
struct Line {
    name: String,
    profile: Option<String>,
    workspace: Option<String>,
    /// Seconds since it takes commands.
    age_s: Option<u64>,
    /// Seconds since somebody used it; none while somebody does.
    idle_s: Option<u64>,
    pid: i32,
    ready: Option<u64>,
    running: Option<u64>,
    served: Option<u64>,
    published: Vec<PublishedPort>,
    socket: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = |text: Option<String>| text.map_or_else(|| "-".to_owned(), |text| harmless(&text));
        let running = known(self.running.map(|count| count.to_string()));
        let [made, used] = [self.age_s, self.idle_s].map(|seconds| known(seconds.map(age)));
        let [profile, workspace] = [&self.profile, &self.workspace].map(|text| known(text.clone()));
        let Self { name, pid, .. } = self;
        write!(f, "{name:<16} {profile:<10} {made:>5} {used:>5} {running:>7} {pid:>7}  {workspace}")?;
        self.published.iter().try_for_each(|port| write!(f, "  {port}"))
    }
}

pub(super) fn list(json: bool) -> Result<ExitCode, Error> {
    let mut lines = Vec::new();
    let mut code = ExitCode::SUCCESS;
    for name in Client::sessions()? {
        match line(&name) {
            Ok(line) => lines.push(line),
            // Skip a session that has ended.
            Err(Error::Listen(ListenError::NotRunning { .. } | ListenError::Gone { .. })) => {}
            // Report the error and list the other sessions.
            Err(error) => {
                report::error(&error);
                code = FAILED.into();
            }
        }
    }
    let text = if json {
        report::json(&lines)?
    } else {
        let header = format!(
            "{:<16} {:<10} {:>5} {:>5} {:>7} {:>7}  WORKSPACE",
            "NAME", "PROFILE", "AGE", "IDLE", "RUNNING", "PID"
        );
        let header = Paint::stdout().paint(style::TITLE, &header);
        let lines = lines.iter().map(Line::to_string);
        std::iter::once(header).chain(lines).collect::<Vec<_>>().join("\n")
    };
    report::print(format!("{text}\n").as_bytes()).map(|()| code)
}

fn line(name: &str) -> Result<Line, Error> {
    let client = Client::connect(name)?;
    let (pid, socket) = (client.process(), client.path().display().to_string());
    let stats = match client.stats() {
        Err(error @ Error::Listen(ListenError::NotRunning { .. } | ListenError::Gone { .. })) => {
            return Err(error);
        }
        // List a session that does not answer: the user needs its PID to end it.
        stats => stats.inspect_err(report::error).ok(),
    };
    // A session of another build may not know the question.
    let described = Client::connect(name).and_then(Client::describe).ok();
    let published = Client::connect(name).and_then(Client::published).unwrap_or_default();
    let made = fs::metadata(&socket).and_then(|socket| socket.modified()).ok();
    let number = |of: fn(&Stats) -> u64| stats.as_ref().map(of);
    Ok(Line {
        name: name.to_owned(),
        profile: described.as_ref().map(|described| described.profile.clone()),
        workspace: described.map(|described| described.workspace.display().to_string()),
        age_s: made.and_then(|made| made.elapsed().ok()).map(|age| age.as_secs()),
        idle_s: stats.as_ref().and_then(|stats| stats.idle).map(|idle| idle.as_secs()),
        pid,
        ready: number(|stats| stats.ready as u64),
        running: number(|stats| stats.running as u64),
        served: number(|stats| stats.served),
        published,
        socket,
    })
}
