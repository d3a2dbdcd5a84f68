//! A session with a directory, before it is anybody's sandbox: from a template to a policy.

use std::path::PathBuf;

use kennel::{Git, Isolation, Mount, Overlay, Policy, Profile, Session, TmpLife};

use crate::sandboxes::record::Place;
use crate::wire::HOME;
use crate::wire::failure::Failure;
use crate::wire::id::SandboxId;
use crate::wire::sandbox::Making;

/// A session that belongs to nobody yet.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) place: Place,
    pub(crate) id: SandboxId,
    pub(crate) session: Session,
}

impl Prepared {
    /// Nothing is left if this fails.
    pub(crate) async fn new(place: Place, id: SandboxId, making: &Making) -> Result<Self, Failure> {
        let prepared = match place.create(making.files.is_some()) {
            Ok(()) => prepare(making, &id, &place).await,
            Err(error) => Err(Failure::on_disk(&error)),
        };
        match prepared {
            Ok(session) => Ok(Self { place, id, session }),
            Err(failure) => {
                // The directory is new, and nothing runs in it.
                let _ = place.remove();
                Err(failure)
            }
        }
    }

    /// Whether it still can be used.
    pub(crate) fn is_alive(&self) -> bool {
        !self.session.has_ended()
    }

    /// Ends it. Its directory is left.
    pub(crate) fn end(self) -> Place {
        self.place
    }
}

/// Prepares the session of a sandbox.
pub(crate) async fn prepare(making: &Making, id: &SandboxId, place: &Place) -> Result<Session, Failure> {
    let policy = policy(making, id, place);
    let session = Session::builder(&policy).ready_workers(1).prepare().await;
    session.map_err(|error| {
        // What this machine lacks, its owner learns from whoever asked for a sandbox.
        let remedy = error.remedy().map(|remedy| format!("; {remedy}")).unwrap_or_default();
        let failure = Failure::from(error);
        let message = format!("template {}: {}{remedy}", making.template, failure.message);
        failure.with_message(message)
    })
}

/// The template's policy, with the sandbox's own directory in the place of a workspace.
fn policy(making: &Making, id: &SandboxId, place: &Place) -> Policy {
    let mut policy = making.policy.clone();
    policy.files.clone_from(&making.policy_files);
    let has_root = policy.root.is_some() || policy.image.is_some();
    match &making.files {
        Some(files) => {
            policy.workspace.clone_from(files);
            policy.overlay = Some(Overlay { upper: Some(place.changes()), keeps: true, size: None });
            policy = policy.mount(Mount::Symlink { target: HOME.into(), points_to: files.clone() });
        }
        None => {
            policy.workspace = if has_root { PathBuf::new() } else { place.home() };
            policy.overlay = None;
            let (source, target) = (place.home(), Some(PathBuf::from(HOME)));
            policy = policy.mount(Mount::ReadWrite { source, target });
        }
    }
    if policy.git == Git::Protect && policy.profile != Profile::CiOnly {
        // Nobody outside runs git there.
        policy.git = Git::Trust;
    }
    policy.cwd.get_or_insert_with(|| HOME.into());
    policy.isolation.get_or_insert(Isolation::Session);
    policy.tmp = TmpLife::Session;
    for (name, value) in [("HOME", HOME), ("E2B_SANDBOX", "true"), ("E2B_SANDBOX_ID", id.as_str())] {
        policy.env.set.insert(name.to_owned(), value.to_owned());
    }
    policy
}
