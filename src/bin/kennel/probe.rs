//! `kennel probe`: prints what this host can enforce; the verdict becomes the exit status.

use std::{fmt, process::ExitCode};

use kennel::{Area, Error, Finding, Probe, Profile, Verdict};

use crate::{FAILED, args, process, process::interrupted, report};

/// Column where details and hints start.
const DETAIL_COLUMN: usize = 33;

/// Runs `kennel probe`.
pub(crate) fn probe(arguments: &args::Probe) -> Result<ExitCode, Error> {
    let probe = process::runtime(process::IDLE_THREAD)?.block_on(async {
        tokio::select! {
            // Listen for signals before the probe creates anything.
            biased;
            // Dropping the future removes what the probe created, so an interrupted probe leaves nothing
            // behind.
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
    report::print(format!("{text}\n").as_bytes())?;
    Ok(match probe.verdict {
        Verdict::FullyEnforced => ExitCode::SUCCESS,
        Verdict::Partial => ExitCode::FAILURE,
        Verdict::Unavailable => FAILED.into(),
    })
}

/// The findings as a table for people, and the profile that was tested.
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
        Some(remedy) => writeln!(f, "{:DETAIL_COLUMN$}hint: {remedy}", ""),
        None => Ok(()),
    }
}
