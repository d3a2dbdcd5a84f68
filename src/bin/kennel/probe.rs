//! `kennel probe`: the findings as a table or as JSON; the verdict as exit status.

use std::{fmt, process::ExitCode};

use kennel::{Area, Error, Finding, Probe, Profile, Verdict};

use crate::{FAILED, args, process, process::interrupted, report};

/// Where details begin, so that remedies can begin there too.
const MARGIN: usize = 33;

/// Runs `kennel probe`.
pub(crate) fn probe(arguments: &args::Probe) -> Result<ExitCode, Error> {
    let probe = process::runtime(process::IDLE)?.block_on(async {
        tokio::select! {
            // The signals are listened to before there is anything to leave behind.
            biased;
            // What was made to test with goes with the future, so an interrupted probe leaves nothing behind.
            status = interrupted() => status.map(Err),
            probe = Probe::run(arguments.profile) => probe.map(Ok),
        }
    });
    let probe = match probe? {
        Ok(probe) => probe,
        Err(status) => return Ok(status.into()),
    };
    let text =
        if arguments.json { report::json(&probe)? } else { Table(&probe, arguments.profile).to_string() };
    report::answer(format!("{text}\n").as_bytes())?;
    Ok(match probe.verdict {
        Verdict::FullyEnforced => ExitCode::SUCCESS,
        Verdict::Partial => ExitCode::FAILURE,
        Verdict::Unavailable => FAILED.into(),
    })
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
        Some(remedy) => writeln!(f, "{:MARGIN$}hint: {remedy}", ""),
        None => Ok(()),
    }
}
