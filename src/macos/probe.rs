//! Whether this Mac confines a command: found by trying.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::macos::cell::{Cell, SANDBOX_EXEC};
use crate::macos::command::Command;
use crate::macos::temporary::TemporaryDirectory;
use crate::policy::Policy;
use crate::policy::network::NetworkMode;
use crate::policy::profile::Profile;
use crate::report::enforcement::{Enforcement, Protection, State};
use crate::report::error::Error;
use crate::report::finding::{Area, Finding, Found, Verdict};
use crate::report::remedy::Wording;

/// The remedy for what a Mac lacks.
const LINUX: &str = "run it on Linux";

/// Runs a program that succeeds.
///
/// # Errors
/// `sandbox-exec` is missing, or refuses the profile.
///
/// # Panics
/// Outside of a tokio runtime with I/O and time enabled.
pub(crate) async fn try_start(cell: &Arc<Cell>) -> Result<(), Error> {
    let refused = |reason: String| Error::Unavailable { protection: Protection::Root, reason, remedy: None };
    let output = Command::new(cell, "/usr/bin/true".as_ref()).output().await?;
    if !output.outcome.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().next().unwrap_or_default();
        return Err(refused(format!("sandbox-exec does not start a program: {said}")));
    }
    Ok(())
}

/// What this Mac can enforce under a profile, tested.
///
/// ```no_run
/// # async fn example() -> Result<(), kennel::Error> {
/// use kennel::{Profile, probe::Probe};
///
/// let probe = Probe::run(Profile::RepoWrite).await?;
/// println!("{}", probe.verdict);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Probe {
    /// The overall result.
    pub verdict: Verdict,
    /// All findings: facts about the host, then protections, then attempts.
    pub findings: Vec<Finding>,
}

impl Probe {
    /// The same with each remedy as a text, in the words of a front end.
    #[must_use]
    pub fn worded(mut self, wording: Wording) -> Self {
        for remedy in self.findings.iter_mut().filter_map(|finding| finding.remedy.as_mut()) {
            *remedy = remedy.worded(wording);
        }
        self
    }

    /// Tests this Mac under `profile`, in a temporary workspace, which it removes.
    ///
    /// # Errors
    /// The probe's own files cannot be made. A Mac that can enforce nothing is no error: see [`Verdict`].
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn run(profile: Profile) -> Result<Self, Error> {
        Self::with(profile, SANDBOX_EXEC.into()).await
    }

    pub(crate) async fn with(profile: Profile, sandbox_exec: PathBuf) -> Result<Self, Error> {
        let stage = Stage::make()?;
        let refused = |findings: Vec<Finding>| Self { verdict: Verdict::Unavailable, findings };
        let cell = match Cell::with(&stage.policy(profile), sandbox_exec) {
            Ok(cell) => Arc::new(cell),
            Err(error) => return Ok(refused(vec![no_start(&error)])),
        };
        if let Err(error) = try_start(&cell).await {
            return Ok(refused(vec![no_start(&error)]));
        }
        let start = Finding::works(Area::Host, "sandbox_exec", "sandbox-exec starts a program").needed();
        let mut findings = vec![start];
        findings.extend(protections(&cell.enforcement));
        findings.extend(stage.attempts(&cell).await?);
        let is_whole = findings.iter().all(|finding| !finding.needed || finding.state == Found::Works);
        let verdict = if is_whole { Verdict::FullyEnforced } else { Verdict::Partial };
        Ok(Self { verdict, findings })
    }
}

fn no_start(error: &Error) -> Finding {
    let finding = Finding::works(Area::Host, "sandbox_exec", error.chain()).needed();
    finding.negative(Found::Missing, error.remedy().unwrap_or_else(|| LINUX.into()))
}

/// The protections of a report as findings.
fn protections(enforcement: &Enforcement) -> impl Iterator<Item = Finding> {
    enforcement.protections().iter().map(|entry| {
        let finding = Finding::works(Area::Protection, entry.name.as_str(), entry.detail.clone());
        match entry.state {
            _ if !entry.asked => finding.untested(),
            State::Enforced => finding.needed(),
            State::Degraded => finding.needed().negative(Found::Degraded, LINUX),
            State::Off => finding.needed().negative(Found::Missing, LINUX),
        }
    })
}

/// Files of the probe: a workspace, and beside it what no policy grants.
struct Stage(TemporaryDirectory);

impl Stage {
    fn make() -> Result<Self, Error> {
        let stage = Self(TemporaryDirectory::make()?);
        let make = || {
            fs::create_dir_all(stage.workspace().join(".git/hooks"))?;
            fs::write(stage.secret(), "secret")
        };
        make().map_err(Error::io("create the probe's files"))?;
        Ok(stage)
    }

    fn workspace(&self) -> PathBuf {
        self.0.path().join("workspace")
    }

    fn secret(&self) -> PathBuf {
        self.0.path().join("secret")
    }

    fn policy(&self, profile: Profile) -> Policy {
        Policy::profile(profile, self.workspace()).mask(self.secret())
    }

    /// What a command tries, each in a sandbox of its own.
    async fn attempts(&self, cell: &Arc<Cell>) -> Result<Vec<Finding>, Error> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::io("listen"))?;
        let port = listener.local_addr().map_err(Error::io("listen"))?.port().to_string();
        let outside = self.0.path().join("outside");
        let hook = self.workspace().join(".git/hooks/pre-commit");
        let is_closed = cell.policy.effective_network() != NetworkMode::Host;
        let path = |path: &Path| path.display().to_string();
        let tries: [(&'static str, bool, &'static str, String); 4] = [
            ("read_secret", true, "cat \"$1\"", path(&self.secret())),
            ("write_outside", true, ": >\"$1\"", path(&outside)),
            ("write_git_hook", true, ": >\"$1\"", path(&hook)),
            ("connect", is_closed, "exec 3<>/dev/tcp/127.0.0.1/$1", port),
        ];
        let mut findings = Vec::new();
        for (name, must_fail, script, subject) in tries {
            let finding = |detail: &str| Finding::works(Area::Attempt, name, detail);
            findings.push(if must_fail {
                let mut command = Command::new(cell, "/bin/bash".as_ref());
                let output = command.args(["-c", script, "bash", &subject]).output().await?;
                if output.outcome.status.success() {
                    finding("it was not stopped").needed().negative(Found::Missing, LINUX)
                } else {
                    finding("it was refused").needed()
                }
            } else {
                finding("the profile allows it").untested()
            });
        }
        Ok(findings)
    }
}
