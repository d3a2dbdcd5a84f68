//! Turns trials into findings and the verdict. Pure, except for the remedies, which read the host's settings.

use crate::host::Host;
use crate::host::remedy::remedy;
use crate::probe::Probe;
use crate::probe::attempt::{ATTEMPTS, AttemptEnd, Must, ProbeCall};
use crate::probe::facts::{CHECK_SECURITY_MODULES, facts, name};
use crate::probe::trials::{StartRefusal, Trials};
use crate::report::enforcement::{Entry, Protection, State};
use crate::report::finding::{Area, Finding, Found, Verdict};
use crate::report::remedy::Remedy;

/// The remedy when an active protection did not stop an attempt.
const REPORT_HOLE: &str = "run nothing untrusted on this host, and report it as SECURITY.md describes";

/// Makes the findings and the verdict.
pub(crate) fn judge(host: &Host, trials: &Trials) -> Probe {
    let mut findings = facts(host, trials);
    match &trials.start {
        Ok(enforcement) => {
            findings.extend(enforcement.protections().iter().map(|entry| protection(entry, trials)));
            let answers = ATTEMPTS.iter().zip(&trials.answers);
            findings.extend(answers.map(|(attempt, answer)| attempt_finding(attempt, answer, trials)));
        }
        Err(refusal) => findings.extend(not_reached(refusal)),
    }
    Probe { verdict: verdict(trials, &findings), host: host.clone(), findings }
}

fn verdict(trials: &Trials, findings: &[Finding]) -> Verdict {
    let mut needed = findings.iter().filter(|finding| finding.needed);
    match trials.start {
        Err(_) => Verdict::Unavailable,
        Ok(_) if needed.all(|finding| finding.state == Found::Works) => Verdict::FullyEnforced,
        Ok(_) => Verdict::Partial,
    }
}

/// The finding for a protection, as the sandbox reported it.
fn protection(entry: &Entry, trials: &Trials) -> Finding {
    let finding = Finding::works(Area::Protection, entry.name.as_str(), &entry.detail);
    match entry.state {
        _ if !entry.asked => finding.untested(),
        State::Enforced => finding.needed(),
        State::Degraded => finding.needed().negative(Found::Degraded, remedy_for(entry.name, trials)),
        State::Off => finding.needed().negative(Found::Missing, remedy_for(entry.name, trials)),
    }
}

/// The remedy for a protection that the sandbox lacks.
fn remedy_for(protection: Protection, trials: &Trials) -> Remedy {
    let refusal = trials.refusals.iter().find(|refusal| refusal.protection == Some(protection));
    let said = refusal.and_then(|refusal| refusal.remedy.clone());
    said.or_else(|| remedy(protection, libc::ENOSYS)).unwrap_or_else(|| CHECK_SECURITY_MODULES.into())
}

/// The finding for an attempt.
fn attempt_finding(attempt: &ProbeCall, answer: &AttemptEnd, trials: &Trials) -> Finding {
    let finding = |came: &str| {
        Finding::works(Area::Attempt, attempt.name, format!("{}: {came}", attempt.what)).needed()
    };
    // If the protection is known to be missing, give its remedy.
    let remedy_or = |otherwise: &'static str| {
        if is_down(attempt.wall, trials) { remedy_for(attempt.wall, trials) } else { otherwise.into() }
    };
    match (answer, attempt.must) {
        (AttemptEnd::Succeeded, Must::Succeed) => finding("done"),
        (AttemptEnd::Refused(errno), Must::Fail(errnos)) if errnos.contains(errno) => {
            finding(&format!("refused, {}", name(*errno)))
        }
        (AttemptEnd::Succeeded, Must::Fail(_)) => {
            finding("not stopped").negative(Found::Missing, remedy_or(REPORT_HOLE))
        }
        // Something else than the tested protection stopped it.
        (AttemptEnd::Refused(errno), Must::Fail(_)) => {
            let came = format!("failed in an unexpected way, {}", name(*errno));
            finding(&came).negative(Found::Degraded, remedy_or(CHECK_SECURITY_MODULES))
        }
        (AttemptEnd::Refused(errno), Must::Succeed) => finding(&format!("refused, {}", name(*errno)))
            .negative(Found::Missing, remedy_or(CHECK_SECURITY_MODULES)),
        (AttemptEnd::Failed(reason), _) => {
            finding(reason).negative(Found::Missing, remedy_or(CHECK_SECURITY_MODULES))
        }
        (AttemptEnd::NotMade(reason), _) => Finding { needed: false, ..finding(reason).untested() },
    }
}

fn is_down(wall: Protection, trials: &Trials) -> bool {
    let entry = trials.start.as_ref().ok().and_then(|enforcement| enforcement.get(wall));
    entry.is_some_and(|entry| entry.state != State::Enforced)
}

/// The findings when no sandbox starts: the refusal, and every other protection and attempt as untested.
fn not_reached(refusal: &StartRefusal) -> Vec<Finding> {
    let of = |name, detail: &str| Finding::works(Area::Protection, name, detail).needed();
    let refused = |name| {
        let remedy = refusal.remedy.clone().unwrap_or_else(|| CHECK_SECURITY_MODULES.into());
        of(name, &refusal.reason).negative(Found::Missing, remedy)
    };
    let mut findings = Vec::new();
    if refusal.protection.is_none() {
        findings.push(refused("start"));
    }
    for protection in Protection::ALL {
        let name = protection.as_str();
        let is_refused = refusal.protection == Some(protection);
        // Only the limit that caused the refusal is known to be part of the policy.
        if protection.is_limit() && !is_refused {
            continue;
        }
        findings.push(if is_refused { refused(name) } else { of(name, "not tested").untested() });
    }
    for attempt in &ATTEMPTS {
        let detail = format!("{}: not tested", attempt.what);
        findings.push(Finding::works(Area::Attempt, attempt.name, detail).needed().untested());
    }
    findings
}
