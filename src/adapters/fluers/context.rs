//! One context: a session that listens, and what the harness is told to start for a command of it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fluers_runtime::{ExecSandboxContext, SandboxProfile, WrappedCommand};

use crate::adapters::fluers::identity;
use crate::adapters::fluers::place::{ContextPlace, FluersError};
use crate::policy::path::has_parent;
use crate::policy::profile::OnUnavailable;
use crate::serve::{ClientEnvironment, Listening};
use crate::session::Session;
use crate::sys::inode::Identity;

pub(crate) struct Context {
    profile: SandboxProfile,
    egress: Vec<String>,
    /// As the harness names it.
    workspace: PathBuf,
    /// Device and inode of it.
    directory: Option<Identity>,
    wanted: OnUnavailable,
    /// The client and the socket.
    words: [String; 2],
    variables: BTreeMap<String, String>,
    session: Session,
    // Dropped in this order: the socket before its directory.
    _listening: Listening,
    _place: Arc<ContextPlace>,
}

/// Without the variables: they may be secrets.
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
    /// Has the session listen in `place`.
    pub(crate) fn listen(
        session: Session,
        asked: &ExecSandboxContext,
        wanted: OnUnavailable,
        place: Arc<ContextPlace>,
    ) -> Result<Self, FluersError> {
        let listening = session.listen_to(place.path(), &place.next(), ClientEnvironment::Nothing)?;
        let words = [text("the client", listening.client())?, text("the socket", listening.socket())?]
            .map(str::to_owned);
        text("workspace", &session.compiled().directory)?;
        let variables = session.compiled().environment.0.iter();
        // The session has those too that are not text.
        let variables = variables
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

    /// Whether it was prepared for contexts like that one, of the same workspace.
    pub(crate) fn is_for(&self, asked: &ExecSandboxContext) -> bool {
        self.profile == asked.profile && self.egress == asked.egress
    }

    /// Whether it has all that one has which is prepared now.
    pub(crate) fn serves(&self, wanted: OnUnavailable) -> bool {
        let is_as_strict = self.wanted == OnUnavailable::Refuse || wanted == OnUnavailable::Degrade;
        is_as_strict && !self.session.has_ended() && self.directory == identity(&self.workspace)
    }

    /// What to start for a command.
    pub(crate) fn wrap(&self, argv: &[String], cwd: Option<&Path>) -> Result<WrappedCommand, FluersError> {
        let directory = &self.session.compiled().directory;
        let cwd = match cwd {
            None => directory.clone(),
            // The harness's name of the workspace may be another than the one it has inside.
            Some(cwd) => directory.join(cwd.strip_prefix(&self.workspace).unwrap_or(cwd)),
        };
        let refused = |reason| Err(FluersError::Cwd { path: cwd.clone(), reason });
        if has_parent(&cwd) {
            return refused("must not contain `..`");
        }
        if !self.session.compiled().view.may_be_entered(&cwd) {
            return refused("is not in the sandbox");
        }
        let [client, socket] = self.words.each_ref().map(String::as_str);
        let own = [client, socket, "-C", text("cwd", &cwd)?, "--"];
        let argv = own.into_iter().chain(argv.iter().map(String::as_str)).map(str::to_owned).collect();
        Ok(WrappedCommand { argv, env: self.variables.clone() })
    }

    /// Kills everything of it.
    pub(crate) fn end(&self) {
        self.session.live().end();
    }

    /// Ends it, and waits until it is gone.
    pub(crate) async fn gone(&self) {
        self.session.shutdown().await;
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Tasks that serve clients have handles of the session, and may be slow to go.
        self.end();
    }
}

fn text<'p>(what: &'static str, path: &'p Path) -> Result<&'p str, FluersError> {
    path.to_str().ok_or_else(|| FluersError::NotText { what, path: path.to_owned() })
}
