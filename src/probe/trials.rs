//! Runs the attempts in real sandboxes and records the answers. It judges nothing.

use std::fs::File;
use std::time::Duration;

use crate::caller::Caller;
use crate::host::Host;
use crate::policy::Policy;
use crate::policy::require::Requirement;
use crate::probe::attempt::{ATTEMPTS, AttemptEnd, Operand, PAYLOAD_AT, ProbeCall, Stage};
use crate::probe::host;
use crate::probe::host::{CgroupFinding, Execution};
use crate::process::stdio::Stdio;
use crate::report::enforcement::{Enforcement, Protection, State};
use crate::report::error::Error;
use crate::report::outcome::{Ended, Outcome};
use crate::report::remedy::Remedy;
use crate::session::sandbox::Sandbox;
use crate::view::inputs;

/// The time limit of an attempt. One takes about a millisecond, and some dozens in an emulated machine.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The answers of all trials.
#[derive(Clone, Debug)]
pub(crate) struct Trials {
    pub(crate) memfd: Execution,
    /// Mounting overlayfs in a user namespace; `None` if that could not be tried.
    pub(crate) overlay: Option<AttemptEnd>,
    pub(crate) cgroup: CgroupFinding,
    /// Mounts that cover parts of /proc.
    pub(crate) covered: Vec<String>,
    /// The protections of the sandbox, or why it did not start.
    pub(crate) start: Result<Enforcement, StartRefusal>,
    /// Why the sandbox lacks protections: the error for each one when it is required.
    pub(crate) refusals: Vec<StartRefusal>,
    /// The answers to [`ATTEMPTS`], in order; empty if no sandbox starts.
    pub(crate) answers: Vec<AttemptEnd>,
}

/// Why a sandbox did not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StartRefusal {
    /// The protection whose step failed, if any.
    pub(crate) protection: Option<Protection>,
    /// The chain of causes.
    pub(crate) reason: String,
    pub(crate) remedy: Option<Remedy>,
}

impl From<&Error> for StartRefusal {
    fn from(error: &Error) -> Self {
        let protection = match error {
            Error::Step { protection, .. } | Error::Unavailable { protection, .. } => Some(*protection),
            _ => None,
        };
        Self { protection, reason: error.chain(), remedy: error.remedy() }
    }
}

impl Trials {
    /// Runs all trials, one after the other.
    pub(crate) async fn run(policy: &Policy, stage: &Stage) -> Self {
        let [first, rest @ ..] = &ATTEMPTS;
        let mut answers = Vec::new();
        let mut refusals = Vec::new();
        let start = match attempt(policy, stage, first).await {
            Err(error) => Err(StartRefusal::from(&error)),
            Ok((answer, enforcement)) => {
                answers.push(answer);
                for next in rest {
                    answers.push(later_attempt(policy, stage, next).await);
                }
                refusals = refusals_when_required(policy, stage, &enforcement).await;
                Ok(enforcement)
            }
        };
        Self {
            memfd: host::execute_memfd(inputs::spawn_options(
                policy,
                &Host::detect_for(policy),
                &Caller::current(),
            )),
            overlay: host::mount_overlay().await,
            cgroup: CgroupFinding::look().await,
            covered: host::covered_below_proc(),
            start,
            refusals,
            answers,
        }
    }
}

/// Makes one attempt in a new sandbox.
async fn attempt(
    policy: &Policy,
    stage: &Stage,
    attempt: &ProbeCall,
) -> Result<(AttemptEnd, Enforcement), Error> {
    let sandbox = Sandbox::new(policy)?;
    let mut command = sandbox.command(PAYLOAD_AT);
    let stdin = match attempt.operand {
        Operand::SecretInStdin => File::open(stage.secret()).map_err(Error::io("open a file"))?.into(),
        _ => Stdio::null(),
    };
    let arguments = attempt.arguments(stage).unwrap_or_default();
    command.args(arguments).env_clear().timeout(TIMEOUT);
    let outcome = command.stdin(stdin).stdout(Stdio::null()).stderr(Stdio::null()).status().await?;
    Ok((answer(&outcome), outcome.enforcement))
}

/// The payload's exit status is the errno.
fn answer(outcome: &Outcome) -> AttemptEnd {
    match (outcome.ended, outcome.status.code()) {
        (Ended::Exited, Some(errno)) => AttemptEnd::from_errno(errno),
        _ => AttemptEnd::Failed(format!("the payload ended with {}", outcome.status)),
    }
}

/// Makes a later attempt, unless it proves nothing here.
async fn later_attempt(policy: &Policy, stage: &Stage, next: &ProbeCall) -> AttemptEnd {
    if let Some(reason) = next.skip_reason(policy) {
        return AttemptEnd::NotMade(reason);
    }
    if next.arguments(stage).is_none() {
        return AttemptEnd::NotMade("the host has no loopback device to try it on");
    }
    match attempt(policy, stage, next).await {
        Ok((answer, _)) => answer,
        Err(error) => AttemptEnd::Failed(error.chain()),
    }
}

/// For each missing protection, starts a sandbox under a policy that requires it. The error gives the cause
/// and the remedy.
async fn refusals_when_required(
    policy: &Policy,
    stage: &Stage,
    enforcement: &Enforcement,
) -> Vec<StartRefusal> {
    let off = enforcement.protections().iter().filter(|entry| entry.asked && entry.state == State::Off);
    let mut refusals = Vec::new();
    for entry in off {
        let strict = policy.clone().require(entry.name, Requirement::Required);
        if let Err(error) = attempt(&strict, stage, &ATTEMPTS[0]).await {
            refusals.push(StartRefusal::from(&error));
        }
    }
    refusals
}
