//! The only place where policy becomes mechanism: a policy and the facts of a host go in, a plan comes out.
//!
//! Reads the host's files to check what is granted; changes nothing and starts nothing. Every condition on the
//! policy is in this room, so that the inside has none.

#[cfg(test)]
pub(crate) mod tests;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::host::caller::Caller;
use crate::host::{Host, OLDEST};
use crate::plan::bridge::BridgePlan;
use crate::plan::explain::Terms;
use crate::plan::mount_state::MountSnapshot;
use crate::plan::network::Settings;
use crate::plan::request::ClientVariables;
use crate::plan::restrict::RestrictableGrants;
use crate::plan::{
    Section, cgroup, limits, mount_state, namespaces, network, overlay, request, sections, worker_mounts,
};
use crate::policy::Policy;
use crate::policy::audit::Audit;
use crate::policy::limits::Limits;
use crate::policy::profile::TmpLife;
use crate::protect::paths::Protected;
use crate::protect::recheck::Watch;
use crate::protect::{case_fold, git, paths};
use crate::report::enforcement::{Enforcement, Protection};
use crate::report::error::Error;
use crate::view;
use crate::view::inputs::{Inputs, OwnProgram, SandboxKind, Subject};
use crate::view::tmpfs_size::TmpfsSize;
use crate::view::{View, grants, inputs, pin, secrets, source, symlink_check, system, toolchains};

/// What is known without a look at what is granted: a start can begin with it while the rest is compiled.
pub(crate) struct Begun {
    pub(crate) namespaces: Section,
    /// Cgroups that PID 1 is to be born in one of.
    pub(crate) groups: cgroup::CgroupPlan,
    enforcement: Enforcement,
}

/// The first part of [`compile`].
///
/// # Errors
/// A policy that contradicts itself, or asks for what this host or this version does not have.
pub(crate) fn begin(
    policy: &Policy,
    host: &Host,
    caller: &Caller,
    shape: SandboxKind,
) -> Result<Begun, Error> {
    policy.validate()?;
    if host.kernel < OLDEST {
        return Err(Error::Unavailable {
            protection: Protection::Root,
            reason: format!("Linux {} cannot make mounts read-only as a tree", host.kernel),
            remedy: Some(format!("use Linux {OLDEST} or later (mount_setattr)")),
        });
    }
    let subject = Subject::Workspace;
    let groups = cgroup::groups(policy, host, caller, shape)?;
    let names = &inputs::HomeNames::default();
    let inputs = Inputs { policy, host, caller, names, shape, subject, controllers: groups.controllers() };
    let (mut namespaces, mut enforcement) = (Section::default(), Enforcement::default());
    namespaces::namespaces(&inputs, &mut namespaces, &mut enforcement);
    network::listen(&inputs, &mut namespaces, &mut enforcement);
    limits::pid_max(&inputs, &mut namespaces);
    limits::ordinary(&inputs, &mut namespaces);
    limits::no_core(&inputs, &mut namespaces);
    Ok(Begun { namespaces, groups, enforcement })
}

/// Compiles `policy` for `host`, asked by `caller`, into a plan of that shape.
///
/// # Errors
/// Everything that can be known before a process exists: contradictions, missing paths, walls this host lacks.
pub(crate) fn compile(
    policy: &Policy,
    host: &Host,
    caller: &Caller,
    shape: SandboxKind,
) -> Result<Compiled, Error> {
    finish(begin(policy, host, caller, shape)?, policy, host, caller, shape)
}

/// The rest of [`compile`], for the same policy, host, caller and shape.
///
/// # Errors
/// Missing paths, walls this host lacks.
pub(crate) fn finish(
    begun: Begun,
    policy: &Policy,
    host: &Host,
    caller: &Caller,
    shape: SandboxKind,
) -> Result<Compiled, Error> {
    finish_for(Subject::Workspace, begun, (policy, host, caller, shape))
}

/// [`compile`] for a program that the spawn broker checked.
///
/// # Errors
/// Those of [`compile`].
pub(crate) fn compile_program(
    policy: &Policy,
    host: &Host,
    caller: &Caller,
    program: Option<&OwnProgram>,
) -> Result<Compiled, Error> {
    let begun = begin(policy, host, caller, SandboxKind::Once)?;
    finish_for(Subject::Program(program), begun, (policy, host, caller, SandboxKind::Once))
}

fn finish_for(
    subject: Subject<'_>,
    begun: Begun,
    (policy, host, caller, shape): (&Policy, &Host, &Caller, SandboxKind),
) -> Result<Compiled, Error> {
    let Begun { namespaces, groups, mut enforcement } = begun;
    let names = inputs::HomeNames::read(&caller.homes);
    let inputs =
        Inputs { policy, host, caller, names: &names, shape, subject, controllers: groups.controllers() };
    let workspace = match subject {
        Subject::Workspace => Some(grants::workspace(&inputs)?),
        Subject::Program(_) => None,
    };
    let (view, mut protected) = view_of(&inputs, workspace.as_ref())?;
    let overlay = workspace.as_ref().and_then(|it| overlay::merged(&view, it, &mut protected.watches));
    symlink_check::check(&view, &inputs)?;
    let (setup, on_host) = sections::setup_steps(&inputs, &view, &mut enforcement)?;
    let ground = (shape != SandboxKind::Once)
        .then(|| MountSnapshot::of(&view, &on_host, &protected, secrets::absent(&view, &inputs)));
    let (footing, again) = match shape {
        // No mount of it is ever put up again.
        SandboxKind::Once | SandboxKind::OneShot => {
            (MountSnapshot::of_one_shot(&view, &on_host, shape == SandboxKind::Once), Section::default())
        }
        SandboxKind::Session { .. } => (MountSnapshot::default(), mount_state::again(&view, &on_host)),
    };
    let modes = worker_mounts::modes(&inputs, &view);
    let worker = modes.followed_by(&sections::worker_steps(&inputs, &view, &mut enforcement));
    let files = sections::file_steps(&inputs, &view);
    let (walls, rooms) = sections::wall_steps(&inputs, &view, &mut enforcement)?;
    protected.report(&inputs, &mut enforcement)?;
    case_fold::report(&inputs, &view, &on_host, &mut enforcement)?;
    let payload = sections::payload_steps(&inputs, &groups, &mut enforcement)?;
    let view = Arc::new(view);
    Ok(Compiled {
        namespaces,
        setup,
        modes,
        worker,
        walls,
        payload,
        ground,
        footing,
        again,
        files,
        grants: RestrictableGrants::of(&view),
        overlay,
        environment: PlannedVariables(request::environment(&inputs, &view)),
        client_variables: request::client_variables(policy),
        directory: directory(&inputs, workspace.map_or_else(|| "/".into(), |workspace| workspace.path)),
        watches: protected.watches.into(),
        rooms,
        limits: policy.limits.clone(),
        descriptors: limits::descriptors(&inputs),
        audit: policy.audit.clone().map(|audit| Audit { path: caller.absolute(&audit.path), ..audit }),
        network: network::settings(&inputs)?,
        bridge: network::bridge(&inputs)?.map(Arc::new),
        terms: policy.explain.then(|| Arc::new(Terms::new(&inputs, Arc::clone(&view)))),
        groups,
        enforcement,
        view,
    })
}

/// Everything visible. Of what the profile offers the first wins; what the policy grants replaces it; walls go over
/// all that the policy does not name.
fn view_of(inputs: &Inputs<'_>, workspace: Option<&source::BindSource>) -> Result<(View, Protected), Error> {
    let mut view = View::default();
    system::show(&mut view, inputs)?;
    if let Some(workspace) = workspace {
        grants::show_workspace(&mut view, inputs, workspace)?;
    }
    let named = grants::show_mounts(&mut view, inputs)?;
    if let Some(workspace) = workspace {
        git::show_repository(&mut view, inputs, workspace);
    }
    // Now that everything is there that is granted writable.
    symlink_check::not_led(&view, &named)?;
    if let Subject::Program(Some(program)) = inputs.subject {
        let node = view::Node::File { contents: program.contents.clone(), mode: 0o755 };
        view.grant("program", program.at.clone(), node)?;
    }
    if let Some(workspace) = workspace {
        view.overlay = overlay::overlaid(inputs, &view, workspace)?;
    }
    grants::show_home(&mut view, inputs);
    grants::show_identity(&mut view, inputs);
    toolchains::show(&mut view, inputs);
    network::show_resolver(&mut view, inputs);
    grants::show_masks(&mut view, inputs)?;
    let ways = secrets::mask(&mut view, inputs)?;
    system::mask(&mut view, inputs)?;
    system::show_certificates(&mut view, inputs);
    let protected = paths::protect(&mut view, inputs, workspace, &ways)?;
    if inputs.shape.is_session() && inputs.policy.tmp == TmpLife::Session {
        pin::in_shared_places(&mut view);
    }
    Ok((view, protected))
}

/// Where commands start: as the policy says, resolved like a path in a shell; else the workspace.
fn directory(inputs: &Inputs<'_>, workspace: PathBuf) -> PathBuf {
    inputs.policy.cwd.as_deref().map_or(workspace, |cwd| inputs.caller.absolute(cwd))
}

// What compiling a policy comes to.

/// Variables of an environment. Values may be secrets: only names are ever printed.
#[derive(Clone, Default)]
pub(crate) struct PlannedVariables(pub(crate) Vec<(OsString, OsString)>);

impl fmt::Debug for PlannedVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// A policy that was checked against a host and turned into steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Compiled {
    /// The first steps of PID 1, which need not wait for the others.
    pub(crate) namespaces: Section,
    /// Steps of PID 1, shared by all commands.
    pub(crate) setup: Section,
    /// Steps of each worker and command of a session, for places that commands share.
    pub(crate) modes: Section,
    /// Steps of each worker of a session.
    pub(crate) worker: Section,
    /// Steps of each worker that end its privileges.
    pub(crate) walls: Section,
    /// Steps of the payload.
    pub(crate) payload: Section,
    /// What will be in force if every step succeeds.
    pub(crate) enforcement: Enforcement,
    /// Environment of commands that do not change it.
    pub(crate) environment: PlannedVariables,
    /// Which variables a client of the session may set.
    pub(crate) client_variables: ClientVariables,
    /// Where commands start that do not say.
    pub(crate) directory: PathBuf,
    /// What all of it stands on in directories of the host's: where that is not what it was, later commands need other
    /// walls. Where there are none, nobody has looked.
    pub(crate) ground: Option<MountSnapshot>,
    /// What the walls of a one-shot stand on there, which is looked at once more after the command.
    pub(crate) footing: MountSnapshot,
    /// Steps of a worker of a session that puts up again what its zygote has lost of them.
    pub(crate) again: Section,
    /// Everything visible.
    pub(crate) view: Arc<View>,
    /// Steps of a worker of a session that shows its view to calls for files.
    pub(crate) files: Section,
    /// What a command can go without.
    pub(crate) grants: RestrictableGrants,
    /// The workspace, where changes are kept apart from it.
    pub(crate) overlay: Option<overlay::Merged>,
    /// Paths to look at after a command.
    pub(crate) watches: Arc<[Watch]>,
    /// Private file systems that are looked at after a command that failed, in the order of their steps.
    pub(crate) rooms: Vec<TmpfsSize>,
    /// Limits that the outside keeps: wall time and output.
    pub(crate) limits: Limits,
    /// Soft and hard limit of a command's descriptors, where none is asked for.
    pub(crate) descriptors: [u64; 2],
    /// Cgroups of the commands, where there are some.
    pub(crate) groups: cgroup::CgroupPlan,
    /// Where what happens is written down; its path is absolute.
    pub(crate) audit: Option<Audit>,
    /// What a proxy has to know, where there shall be one.
    pub(crate) network: Option<Settings>,
    /// What leads to a proxy that is not ours.
    pub(crate) bridge: Option<Arc<BridgePlan>>,
    /// What errors are explained by, where they shall be.
    pub(crate) terms: Option<Arc<Terms>>,
}
