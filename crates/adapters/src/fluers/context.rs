//! One context: a session that serves clients, and the command line that the harness starts for a command in
//! it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use fluers_runtime::{ExecSandboxContext, SandboxProfile, WrappedCommand};
use kennel::internal::{end, listen_without_variables, may_be_entered, start_directory, variables};
use kennel::{OnUnavailable, Session, client::Listening};

use crate::fluers::identity;
use crate::fluers::place::{ContextPlace, FluersError};

pub(crate) struct Context {
    profile: SandboxProfile,
    egress: Vec<String>,
    /// The path that the harness uses.
    workspace: PathBuf,
    /// The device and inode of the workspace.
    directory: Option<(u64, u64)>,
    wanted: OnUnavailable,
    /// The paths of the client and of the socket.
    words: [String; 2],
    variables: BTreeMap<String, String>,
    session: Session,
    // Dropped in this order: the socket before its directory.
    _listening: Listening,
    _place: Arc<ContextPlace>,
}

/// Leaves out the variables: they may be secret.
impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("workspace", &self.workspace)
            .field("profile", &self.profile)
            .field("egress", &self.egress)
            .finish_non_exhaustive()
    }
}

impl Context {
    /// Makes the session serve clients through a socket in `place`.
    pub(crate) fn listen(
        session: Session,
        asked: &ExecSandboxContext,
        wanted: OnUnavailable,
        place: Arc<ContextPlace>,
    ) -> Result<Self, FluersError> {
        let listening = listen_without_variables(&session, place.path(), &place.next())?;
        let words = [text("the client", listening.client())?, text("the socket", listening.socket())?]
            .map(str::to_owned);
        text("workspace", &start_directory(&session))?;
        // The harness takes only UTF-8. The session itself keeps the other variables too.
        let variables = variables(&session)
            .iter()
            .filter_map(|(name, value)| Some((name.to_str()?.to_owned(), value.to_str()?.to_owned())))
            .collect();
        Ok(Self {
            profile: asked.profile,
            egress: asked.egress.clone(),
            workspace: asked.workspace_path.clone(),
            directory: identity(&asked.workspace_path),
            wanted,
            words,
            variables,
            session,
            _listening: listening,
            _place: place,
        })
    }

    /// Whether it has the same profile and egress list. The workspace is already the same.
    pub(crate) fn is_for(&self, asked: &ExecSandboxContext) -> bool {
        self.profile == asked.profile && self.egress == asked.egress
    }

    /// Whether it gives everything that a context prepared now would give.
    pub(crate) fn serves(&self, wanted: OnUnavailable) -> bool {
        let is_as_strict = self.wanted == OnUnavailable::Refuse || wanted == OnUnavailable::Degrade;
        is_as_strict && !self.session.has_ended() && self.directory == identity(&self.workspace)
    }

    /// The command line and environment to start for a command.
    pub(crate) fn wrap(&self, argv: &[String], cwd: Option<&Path>) -> Result<WrappedCommand, FluersError> {
        let directory = start_directory(&self.session);
        let cwd = match cwd {
            None => directory.clone(),
            // The sandbox may show the workspace under another path than the one the harness uses.
            Some(cwd) => directory.join(cwd.strip_prefix(&self.workspace).unwrap_or(cwd)),
        };
        let refused = |reason| Err(FluersError::Cwd { path: cwd.clone(), reason });
        if cwd.components().any(|part| part == Component::ParentDir) {
            return refused("must not contain `..`");
        }
        if !may_be_entered(&self.session, &cwd) {
            return refused("is not in the sandbox");
        }
        let [client, socket] = self.words.each_ref().map(String::as_str);
        // A harness reads the status: a signal would be no number for it.
        let own = [client, socket, "-C", text("cwd", &cwd)?, "--exit-code", "--"];
        let argv = own.into_iter().chain(argv.iter().map(String::as_str)).map(str::to_owned).collect();
        Ok(WrappedCommand { argv, env: self.variables.clone() })
    }

    /// Kills everything that runs in it.
    pub(crate) fn end(&self) {
        end(&self.session);
    }

    /// Ends it, and waits until nothing of it is left.
    pub(crate) async fn gone(&self) {
        self.session.shutdown().await;
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Tasks that serve clients hold handles of the session and may end late, so end the session here.
        self.end();
    }
}

fn text<'p>(what: &'static str, path: &'p Path) -> Result<&'p str, FluersError> {
    path.to_str().ok_or_else(|| FluersError::NotText { what, path: path.to_owned() })
}
