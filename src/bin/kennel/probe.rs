//! `kennel probe`: the findings as a table or as JSON; the verdict as exit status.

use std::process::ExitCode;

use kennel::{Area, Error, Finding, Probe, Verdict};
use tokio::runtime::Builder;

use crate::{FAILED, args, report};

/// Where details begin, so that remedies can begin there too.
const MARGIN: usize = 33;

/// Runs `kennel probe`.
pub(crate) fn probe(arguments: &args::Probe) -> Result<ExitCode, Error> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::Io { what: "start the runtime", source })?;
    let probe = runtime.block_on(Probe::run(arguments.profile))?;
    if arguments.json {
        println!("{}", report::json(&probe));
    } else {
        table(&probe, arguments);
    }
    Ok(match probe.verdict {
        Verdict::FullyEnforced => ExitCode::SUCCESS,
        Verdict::Partial => ExitCode::FAILURE,
        Verdict::Unavailable => FAILED.into(),
    })
}

fn table(probe: &Probe, arguments: &args::Probe) {
    for (area, title) in [
        (Area::Host, "What the host offers"),
        (Area::Protection, "Protections, put up"),
        (Area::Attempt, "Attempts from inside"),
    ] {
        println!("{title}");
        probe.findings.iter().filter(|finding| finding.area == area).for_each(line);
        println!();
    }
    println!("profile {}: {}", arguments.profile, probe.verdict);
}

fn line(finding: &Finding) {
    println!("  {:<20} {:<9} {}", finding.name, finding.state, finding.detail);
    if let Some(remedy) = &finding.remedy {
        println!("{:MARGIN$}to mend it: {remedy}", "");
    }
}
