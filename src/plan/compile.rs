//! Policy and facts of the host in, plan out: the only place that turns the one into the other.
//!
//! It reads files of the host to check the grants. It starts nothing, and changes nothing, with two
//! exceptions: it creates and locks the directories of kept caches, and creates that of a repository's logs.
//! It decides every condition on the policy, so that the inside decides none.

pub(crate) mod in_force;
pub(crate) mod policy_facts;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::caller::Caller;
use crate::host::{Host, OLDEST};
use crate::plan::bridge::BridgePlan;
use crate::plan::compile::policy_facts::PolicyFacts;
use crate::plan::environment::ClientVariables;
use crate::plan::seccomp::rule::FilterUser;
use crate::plan::{
    Section, bridge, cgroup, environment, limits, namespaces, network, overlay, seccomp, sections,
    worker_mounts,
};
use crate::policy::Policy;
use crate::policy::audit::Audit;
use crate::policy::image_upper::ImageUpper;
use crate::policy::limits::Limits;
use crate::policy::network::publish::Publish;
use crate::policy::network::settings::Settings;
use crate::policy::profile::TmpLife;
use crate::protect::mount_snapshot::MountSnapshot;
use crate::protect::paths::Protected;
use crate::protect::watch::Watch;
use crate::protect::{case_fold, git, paths};
use crate::report::enforcement::{Enforcement, Protection};
use crate::report::error::Error;
use crate::report::error::overlay::OverlayError;
use crate::report::place_kind::PlaceKind;
use crate::report::remedy::{SettingKey, Wording, remedy};
use crate::sys::birth::Users;
use crate::view;
use crate::view::inputs::{Inputs, ProgramInputs, SandboxKind, Subject};
use crate::view::node::TmpfsSize;
use crate::view::paths::host_links;
use crate::view::paths::resolved::ResolvedPath;
use crate::view::paths::source;
use crate::view::paths::symlink_check;
use crate::view::root::{OtherRoot, over};
use crate::view::{
    MountOnHost, View, certificates, desktop, grants, inputs, mask, pin, secrets, system, toolchains,
};

/// The part of a plan that needs no look at the granted paths. PID 1 can start with it while [`finish`] runs.
pub(crate) struct Begun {
    pub(crate) namespaces: Section,
    /// The cgroups. PID 1 is born in one of them.
    pub(crate) groups: cgroup::CgroupPlan,
    root: Option<Arc<OtherRoot>>,
    enforcement: Enforcement,
}

/// What a plan is compiled from, to compile it again.
pub(crate) struct CompileInputs {
    pub(crate) policy: Policy,
    pub(crate) host: Host,
    pub(crate) caller: Caller,
    pub(crate) kind: SandboxKind,
}

impl CompileInputs {
    pub(crate) fn compile(&self) -> Result<Compiled, Error> {
        compile(&self.policy, &self.host, &self.caller, self.kind)
    }
}

/// Compiles `policy` for `host` and `caller` into a plan for a sandbox of this kind.
///
/// # Errors
/// Everything that is known before a process exists: a policy that contradicts itself, a missing path, a
/// protection that this host lacks.
pub(crate) fn compile(
    policy: &Policy,
    host: &Host,
    caller: &Caller,
    kind: SandboxKind,
) -> Result<Compiled, Error> {
    finish(begin(policy, host, caller, kind)?, policy, host, caller, kind)
}

/// Like [`compile`], for a program that the spawn broker checked.
///
/// # Errors
/// Those of [`compile`].
pub(crate) fn compile_program(
    policy: &Policy,
    host: &Host,
    caller: &Caller,
    program: ProgramInputs<'_>,
) -> Result<Compiled, Error> {
    let kind = SandboxKind::Once;
    let begun = begin(policy, host, caller, kind)?;
    finish_for(begun, policy, host, caller, kind, Subject::Program(program))
}

/// The first part of [`compile`]: checks the policy and writes the first steps of PID 1.
///
/// # Errors
/// A policy that contradicts itself, or one that needs something that this host or this version lacks.
pub(crate) fn begin(
    policy: &Policy,
    host: &Host,
    caller: &Caller,
    kind: SandboxKind,
) -> Result<Begun, Error> {
    policy.validate()?;
    check_kernel(host)?;
    if policy.image_upper.is_some() && !kind.is_session() {
        return Err(OverlayError::NeedsSession.into());
    }
    policy.network.published().iter().try_for_each(|publish| network::check_publish(policy, publish))?;
    let groups = cgroup::groups(policy, host, caller, kind)?;
    let found = OtherRoot::find(policy, host, caller)?;
    check_user(found.as_deref(), inputs::users(policy, host, caller))?;
    let (names, subject, root) = (&inputs::HomeNames::default(), Subject::Workspace, found.as_ref());
    let inputs =
        Inputs { policy, host, caller, names, kind, subject, root, controllers: groups.controllers() };
    let (mut namespaces, mut enforcement) = (Section::default(), Enforcement::default());
    namespaces::namespaces(&inputs, &mut namespaces, &mut enforcement);
    network::listen(&inputs, &mut namespaces, &mut enforcement);
    limits::pid_max(&inputs, &mut namespaces);
    limits::drop_caller_scheduling(&inputs, &mut namespaces);
    limits::no_core(&inputs, &mut namespaces);
    Ok(Begun { namespaces, groups, root: found, enforcement })
}

/// The second part of [`compile`], for the same policy, host, caller and kind: looks at the granted paths and
/// writes the rest of the plan.
///
/// # Errors
/// A missing path, a protection that this host lacks.
pub(crate) fn finish(
    begun: Begun,
    policy: &Policy,
    host: &Host,
    caller: &Caller,
    kind: SandboxKind,
) -> Result<Compiled, Error> {
    finish_for(begun, policy, host, caller, kind, Subject::Workspace)
}

fn finish_for(
    begun: Begun,
    policy: &Policy,
    host: &Host,
    caller: &Caller,
    kind: SandboxKind,
    subject: Subject<'_>,
) -> Result<Compiled, Error> {
    let Begun { namespaces, groups, root, mut enforcement } = begun;
    let names = &inputs::HomeNames::read(&caller.homes);
    let root = root.as_ref();
    let inputs =
        Inputs { policy, host, caller, names, kind, subject, root, controllers: groups.controllers() };

    // What the command sees, and which of it is protected.
    let resolved = workspace(&inputs)?;
    let workspace = resolved.as_ref().map(|resolved| &resolved.source);
    let (mut view, mut protected) = view_of(&inputs, resolved.as_ref())?;
    let overlay = workspace.and_then(|it| overlay::merged(&view, it, &mut protected));
    symlink_check::check(&view, &inputs)?;
    let environment = environment::environment(&inputs, &mut view);

    // The steps of the inside, in the order in which it carries them out; and what they come to, for the
    // report.
    let (mut setup, on_host) = sections::setup_steps(&inputs, &view, &mut enforcement)?;
    // A session keeps them, to describe one that fails.
    setup.bytes.shrink_to_fit();
    // At once: a change on the host before this look goes unnoticed.
    let mounts = HostMounts::of(&inputs, &view, &on_host, &protected);
    let shared_modes = worker_mounts::shared_modes(&inputs, &view);
    let worker = sections::worker_steps(&inputs, &view, &mut enforcement);
    // The common init of commands makes these directories itself.
    let worker = if inputs.are_shared() { worker } else { shared_modes.followed_by(&worker) };
    let worker = namespaces::search(&inputs, true).followed_by(&worker);
    let (walls, tmpfs_sizes) = sections::wall_steps(&inputs, &view, &mut enforcement)?;
    protected.report(&inputs, &mut enforcement)?;
    enforcement.add_notes(inputs.policy.notes.iter().cloned());
    enforcement.add_notes(std::mem::take(&mut view.notes));
    case_fold::report(&inputs, &view, &on_host, &mut enforcement)?;

    let steps = Steps {
        namespaces,
        setup,
        shared_modes,
        worker,
        repair_mounts: mounts.repair,
        walls,
        payload: sections::payload_steps(&inputs, &view, &groups, &mut enforcement)?,
        files: sections::file_steps(&inputs, &view),
    };
    let services = Services {
        audit: audit(&inputs),
        proxy: network::settings(&inputs)?.map(Arc::new),
        bridge: bridge::for_policy(&inputs)?.map(Arc::new),
        publish: policy.network.published(),
        published_sockets: network::published_sockets(&inputs),
    };
    let directory = start_directory(&inputs, workspace);
    let view = Arc::new(view);
    let commands = CommandDefaults {
        environment: PlannedVariables(Arc::new(environment)),
        client_variables: environment::client_variables(policy),
        directory,
        limits: policy.limits.clone(),
        descriptors: limits::descriptors(&inputs),
        tmpfs_sizes,
        facts: Some(Arc::new(PolicyFacts::of(&inputs))),
        user: seccomp::user(&inputs),
        explains: policy.explain,
        learns: policy.learn,
        wording: policy.wording,
    };
    Ok(Compiled {
        steps,
        commands,
        services,
        enforcement,
        view,
        overlay,
        mount_snapshot: mounts.snapshot,
        one_shot_mounts: mounts.one_shot,
        watches: protected.watches.into(),
        groups,
    })
}

/// Refuses another user than the caller where there is no user namespace to be it in.
fn check_user(root: Option<&OtherRoot>, users: Users) -> Result<(), Error> {
    match root.map(|root| (root.user.uid, root.user.gid)) {
        Some(user) if user != (0, 0) && users == Users::Callers => Err(Error::Unavailable {
            protection: Protection::UserNamespace,
            reason: "commands cannot be another user without a user namespace".to_owned(),
            remedy: Some(remedy!["allow user namespaces, or leave out ", SettingKey::User]),
        }),
        _ => Ok(()),
    }
}

/// Refuses kernels that are older than [`OLDEST`].
fn check_kernel(host: &Host) -> Result<(), Error> {
    if host.kernel >= OLDEST {
        return Ok(());
    }
    Err(Error::Unavailable {
        protection: Protection::Root,
        reason: format!("Linux {} cannot make mounts read-only as a tree", host.kernel),
        remedy: Some(format!("use Linux {OLDEST} or later (mount_setattr)").into()),
    })
}

/// The workspace of the policy, if there is one. A program of the spawn broker has none.
fn workspace(inputs: &Inputs<'_>) -> Result<Option<ResolvedPath>, Error> {
    match inputs.subject {
        Subject::Workspace if inputs.policy.has_workspace() => grants::workspace(inputs).map(Some),
        _ => Ok(None),
    }
}

/// Everything visible, and what is protected in it.
///
/// If the profile offers a path twice, the first offer wins. A grant of the policy replaces an offer. A wall
/// covers everything that the policy does not name.
fn view_of(inputs: &Inputs<'_>, resolved: Option<&ResolvedPath>) -> Result<(View, Protected), Error> {
    let mut view = View::default();
    show_grants(&mut view, inputs, resolved)?;
    let workspace = resolved.map(|resolved| &resolved.source);
    show_offers(&mut view, inputs, workspace);
    let protected = put_walls(&mut view, inputs, workspace)?;
    let shares = inputs.policy.tmp == TmpLife::Session || inputs.are_shared();
    if inputs.kind.is_session() && shares {
        pin::shared_places(&mut view);
    }
    Ok((view, protected))
}

/// Shows the system, the workspace with its repository, the mounts of the policy, and the program of the
/// spawn broker.
fn show_grants(view: &mut View, inputs: &Inputs<'_>, resolved: Option<&ResolvedPath>) -> Result<(), Error> {
    match inputs.root {
        Some(root) => over::show(view, inputs, root)?,
        None => {
            system::show(view, inputs)?;
            host_links::show_links_of_home(view, inputs);
        }
    }
    if let Some(resolved) = resolved {
        grants::show_workspace(view, inputs, resolved)?;
    }
    let workspace = resolved.map(|resolved| &resolved.source);
    let named = grants::show_mounts(view, inputs)?;
    if let Some(workspace) = workspace {
        git::show_repository(view, inputs, workspace);
    }
    // Only now does the view hold every writable grant.
    symlink_check::refuse_links_of_commands(view, &named)?;
    if let Subject::Program(ProgramInputs { own: Some(program), .. }) = inputs.subject {
        let node = view::Node::File { contents: program.contents.clone(), mode: 0o755 };
        view.grant(PlaceKind::Program, program.at.clone(), node)?;
    }
    if let Some(workspace) = workspace {
        view.overlay = overlay::overlaid(inputs, view, workspace)?;
    }
    if let Some(ImageUpper::Directory(upper)) = &inputs.policy.image_upper {
        view.root_upper = Some(overlay::check_upper(inputs, view, overlay::ChangesOf::Root, upper)?);
    }
    Ok(())
}

/// Shows what the profile offers: files of the home, of the user and of toolchains, and the name server.
/// Another root has its own.
fn show_offers(view: &mut View, inputs: &Inputs<'_>, workspace: Option<&source::BindSource>) {
    if inputs.root.is_some() {
        return network::show_resolver(view, inputs);
    }
    grants::show_home(view, inputs);
    grants::show_identity(view, inputs);
    if let Some(workspace) = workspace {
        git::user::show_config(view, inputs, workspace);
    }
    desktop::show(view, inputs);
    toolchains::show(view, inputs);
    network::show_resolver(view, inputs);
}

/// Covers secrets and makes protected paths read-only.
fn put_walls(
    view: &mut View,
    inputs: &Inputs<'_>,
    workspace: Option<&source::BindSource>,
) -> Result<Protected, Error> {
    mask::show(view, inputs, workspace)?;
    let ways = secrets::mask(view, inputs)?;
    system::mask(view, inputs)?;
    certificates::show(view, inputs);
    paths::protect(view, inputs, workspace, &ways)
}

/// The directory in which commands start: the policy's, resolved as a shell resolves a path; otherwise the
/// workspace, or that of an image.
fn start_directory(inputs: &Inputs<'_>, workspace: Option<&source::BindSource>) -> PathBuf {
    match &inputs.policy.cwd {
        Some(cwd) => inputs.caller.absolute(cwd),
        None => match workspace {
            Some(workspace) => workspace.path.clone(),
            None => inputs.root.and_then(|root| root.directory()).unwrap_or_else(|| "/".into()),
        },
    }
}

/// The audit log of the policy, with an absolute path.
fn audit(inputs: &Inputs<'_>) -> Option<Audit> {
    let audit = inputs.policy.audit.clone()?;
    Some(Audit { path: inputs.caller.absolute(&audit.path), ..audit })
}

/// What the outside remembers of mounts in directories of the host.
struct HostMounts {
    snapshot: Option<MountSnapshot>,
    one_shot: MountSnapshot,
    repair: Section,
}

impl HostMounts {
    fn of(inputs: &Inputs<'_>, view: &View, on_host: &[MountOnHost], protected: &Protected) -> Self {
        let is_once = inputs.kind == SandboxKind::Once;
        let is_session = inputs.kind.is_session();
        let taken = || MountSnapshot::of(view, on_host, protected, secrets::absent(view, inputs));
        Self {
            // A sandbox for one command has no later one to compare for.
            snapshot: (!is_once).then(taken),
            one_shot: if is_session {
                MountSnapshot::default()
            } else {
                MountSnapshot::of_one_shot(view, on_host, is_once)
            },
            repair: if is_session { Self::repair(inputs, view, on_host) } else { Section::default() },
        }
    }

    /// What a worker, or a child of the zygote for all commands, does when something was replaced outside.
    fn repair(inputs: &Inputs<'_>, view: &View, on_host: &[MountOnHost]) -> Section {
        let mut steps = worker_mounts::repair_steps(view, on_host);
        // Other workers look again in any case.
        if inputs.are_shared() {
            worker_mounts::look_again(view, &mut steps);
        }
        if steps.bytes.is_empty() { steps } else { namespaces::search(inputs, true).followed_by(&steps) }
    }
}

/// The variables of an environment. Values may be secrets, so `Debug` prints names only.
#[derive(Clone, Default)]
pub(crate) struct PlannedVariables(pub(crate) Arc<BTreeMap<OsString, OsString>>);

impl fmt::Debug for PlannedVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

/// A policy that was checked against a host and turned into a plan, and what the outside has to know.
#[derive(Clone, Debug, Default)]
pub(crate) struct Compiled {
    pub(crate) steps: Steps,
    pub(crate) commands: CommandDefaults,
    pub(crate) services: Services,
    /// What is in force if every step succeeds.
    pub(crate) enforcement: Enforcement,
    /// Everything visible.
    pub(crate) view: Arc<View>,
    /// The overlay of the workspace, if the policy asks for one.
    pub(crate) overlay: Option<overlay::Merged>,
    /// The host's files below the mounts, as they are now. If they change, later commands need a new plan.
    /// `None` for [`SandboxKind::Once`].
    pub(crate) mount_snapshot: Option<MountSnapshot>,
    /// The paths of a one-shot that the outside compares again after the command.
    pub(crate) one_shot_mounts: MountSnapshot,
    /// Paths that Kennel looks at after a command.
    pub(crate) watches: Arc<[Watch]>,
    /// The cgroups of the commands, or why there are none.
    pub(crate) groups: cgroup::CgroupPlan,
}

/// The steps of the inside.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steps {
    /// The first ones of PID 1. They do not wait for the other sections.
    pub(crate) namespaces: Section,
    /// Those of PID 1 that hold for all commands.
    pub(crate) setup: Section,
    /// Those of each worker and of each command of a session: the modes of directories that commands share.
    pub(crate) shared_modes: Section,
    /// Those of each worker of a session. They begin with `shared_modes`.
    pub(crate) worker: Section,
    /// Those of a worker of a session that repeat mounts which its zygote has lost.
    pub(crate) repair_mounts: Section,
    /// Those of each worker that end its privileges.
    pub(crate) walls: Section,
    /// Those of the payload.
    pub(crate) payload: Section,
    /// Those of a worker that runs no command: it hands out its view for file calls of the session.
    pub(crate) files: Section,
}

/// What holds for commands that do not say otherwise.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommandDefaults {
    pub(crate) environment: PlannedVariables,
    /// Which variables a client of the session may set.
    pub(crate) client_variables: ClientVariables,
    /// The directory of commands that name none.
    pub(crate) directory: PathBuf,
    /// The limits of the policy. The outside keeps those of time and output.
    pub(crate) limits: Limits,
    /// Soft and hard limit of open descriptors, for commands without a limit of their own.
    pub(crate) descriptors: [u64; 2],
    /// The sizes of the private file systems that Kennel looks at after a failed command, in the order of
    /// their steps.
    pub(crate) tmpfs_sizes: Vec<TmpfsSize>,
    /// What explanations of refusals name. `None` in a plan without a policy.
    pub(crate) facts: Option<Arc<PolicyFacts>>,
    /// Who commands are, to their filter.
    pub(crate) user: FilterUser,
    /// Whether the policy asks that errors of commands are explained.
    pub(crate) explains: bool,
    /// Whether the policy asks what commands use.
    pub(crate) learns: bool,
    /// The words for settings in lines for clients of a session.
    pub(crate) wording: Wording,
}

/// What the outside keeps up while the sandbox lives.
#[derive(Clone, Debug, Default)]
pub(crate) struct Services {
    /// The audit log. Its path is absolute.
    pub(crate) audit: Option<Audit>,
    /// The settings of the proxy, if the policy asks for one.
    pub(crate) proxy: Option<Arc<Settings>>,
    /// The plan of the bridge to another program's proxy.
    pub(crate) bridge: Option<Arc<BridgePlan>>,
    /// The ports to publish.
    pub(crate) publish: Vec<Publish>,
    /// How many sockets PID 1 hands out for them.
    pub(crate) published_sockets: usize,
}
