//! `kennel probe`: the findings as a table or as JSON; the verdict as exit status.

use std::{fmt, future::poll_fn, io, process::ExitCode, task::Poll};

use kennel::{Area, Error, Finding, Probe, Profile, Verdict};
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
};

use crate::{FAILED, args, report};

/// Where details begin, so that remedies can begin there too.
const MARGIN: usize = 33;

/// Runs `kennel probe`.
pub(crate) fn probe(arguments: &args::Probe) -> Result<ExitCode, Error> {
    let started = Builder::new_current_thread().enable_all().build();
    let runtime = started.map_err(|source| Error::Io { what: "start the runtime", source })?;
    let probe = runtime.block_on(async {
        tokio::select! {
            // The signals are listened to before there is anything to leave behind.
            biased;
            // What was made to test with goes with the future, so an interrupted probe leaves nothing behind.
            number = interrupted() => Ok(Err(number)),
            probe = Probe::run(arguments.profile) => probe.map(Ok),
        }
    });
    let probe = match probe? {
        Ok(probe) => probe,
        Err(number) => return Ok((128 + number).into()),
    };
    let text =
        if arguments.json { report::json(&probe) } else { Table(&probe, arguments.profile).to_string() };
    report::answer(format!("{text}\n").as_bytes())?;
    Ok(match probe.verdict {
        Verdict::FullyEnforced => ExitCode::SUCCESS,
        Verdict::Partial => ExitCode::FAILURE,
        Verdict::Unavailable => FAILED.into(),
    })
}

/// Waits for a signal that means to end this program; answers its number.
pub(crate) async fn interrupted() -> u8 {
    let listen = |kind: SignalKind, number: u8| io::Result::Ok((signal(kind)?, number));
    let mut streams = [
        listen(SignalKind::interrupt(), 2),
        listen(SignalKind::terminate(), 15),
        listen(SignalKind::hangup(), 1),
    ];
    poll_fn(|cx| {
        for (stream, number) in streams.iter_mut().flatten() {
            if stream.poll_recv(cx).is_ready() {
                return Poll::Ready(*number);
            }
        }
        Poll::Pending
    })
    .await
}

/// The findings of a profile for people.
struct Table<'p>(&'p Probe, Profile);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(probe, profile) = self;
        for (area, title) in [
            (Area::Host, "What the host offers"),
            (Area::Protection, "Protections, put up"),
            (Area::Attempt, "Attempts from inside"),
        ] {
            writeln!(f, "{title}")?;
            let mut findings = probe.findings.iter().filter(|finding| finding.area == area);
            findings.try_for_each(|finding| line(f, finding))?;
            writeln!(f)?;
        }
        write!(f, "profile {profile}: {}", probe.verdict)
    }
}

fn line(f: &mut fmt::Formatter<'_>, finding: &Finding) -> fmt::Result {
    writeln!(f, "  {:<20} {:<9} {}", finding.name, finding.state, finding.detail)?;
    match &finding.remedy {
        Some(remedy) => writeln!(f, "{:MARGIN$}to mend it: {remedy}", ""),
        None => Ok(()),
    }
}
