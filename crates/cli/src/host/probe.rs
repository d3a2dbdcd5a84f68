//! `kennel probe`: prints what this host can enforce; the verdict becomes the exit status.

use std::{fmt, process::ExitCode};

use kennel::{
    Error, Profile,
    probe::{Area, Finding, Found, Probe, Verdict},
};

use crate::{
    args,
    process::{self, exit_status::FAILED, signals::interrupted},
    report::{self, remedy::FLAGS},
    terminal::{progress, style, table::Table},
};

/// Runs `kennel probe`.
pub(crate) fn probe(arguments: &args::host::Probe) -> Result<ExitCode, Error> {
    let probe = process::runtime(process::IDLE_THREAD)?.block_on(async {
        tokio::select! {
            // Listen for signals before the probe creates anything.
            biased;
            // Dropping the future removes what the probe created, so an interrupted probe leaves nothing
            // behind.
            status = interrupted() => status.map(Err),
            probe = progress::awaiting("trying protections", Probe::run(arguments.profile)) => probe.map(Ok),
        }
    });
    let probe = match probe? {
        Ok(probe) => probe,
        Err(status) => return Ok(status.into()),
    };
    let text = if arguments.json {
        report::json(&probe.clone().worded(FLAGS))?
    } else {
        Findings(&probe, arguments.profile).to_string()
    };
    report::print(format!("{text}\n").as_bytes())?;
    Ok(match probe.verdict {
        Verdict::FullyEnforced => ExitCode::SUCCESS,
        Verdict::Partial => ExitCode::FAILURE,
        Verdict::Unavailable => FAILED.into(),
    })
}

/// The findings as a table for people, and the profile that was tested.
struct Findings<'p>(&'p Probe, Profile);

impl fmt::Display for Findings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self(probe, profile), table) = (self, Table::stdout());
        for (area, title) in [
            (Area::Host, "What the host offers"),
            (Area::Protection, "Protections, put up"),
            (Area::Attempt, "Attempts from inside"),
        ] {
            writeln!(f, "{}", table.paint.paint(style::TITLE, title))?;
            let mut findings = probe.findings.iter().filter(|finding| finding.area == area);
            findings.try_for_each(|finding| f.write_str(&row(table, finding)))?;
            writeln!(f)?;
        }
        let style = match probe.verdict {
            Verdict::FullyEnforced => style::GOOD,
            Verdict::Partial => style::WEAK,
            Verdict::Unavailable => style::BAD,
        };
        write!(f, "profile {profile}: {}", table.paint.paint(style, &probe.verdict.to_string()))
    }
}

fn row(table: Table, finding: &Finding) -> String {
    let style = match finding.state {
        Found::Works => style::GOOD,
        Found::Missing if finding.needed => style::BAD,
        Found::Degraded | Found::Missing => style::WEAK,
        Found::Untested => style::FAINT,
    };
    let mut row = table.row("  ", finding.name, style, &finding.state.to_string(), &finding.detail);
    if let Some(remedy) = &finding.remedy {
        row += &table.line(
            &" ".repeat(table.detail_column("  ")),
            "hint:",
            style::HINT,
            &remedy.in_words(FLAGS),
        );
    }
    row
}
