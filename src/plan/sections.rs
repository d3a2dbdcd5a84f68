//! The sections of a plan. Each is in the order in which the inside carries it out: a step needs the steps
//! before it, or would no longer be allowed after them. ARCHITECTURE.md gives the reasons.

use std::path::Path;

use kennel_helper::plan::{MOST_TMPFS, Step};
use libc::sock_filter;

use crate::host::Version;
use crate::plan::cgroup::CgroupPlan;
use crate::plan::landlock::report_missing;
use crate::plan::seccomp::Asks;
use crate::plan::{Section, emit, landlock, limits, namespaces, seccomp, worker_mounts};
use crate::report::enforcement::{Enforcement, Protection, State};
use crate::report::error::Error;
use crate::report::remedy::{SettingKey, remedy};
use crate::sys::birth::Users;
use crate::view::inputs::{Inputs, SandboxKind};
use crate::view::node::TmpfsSize;
use crate::view::{MountOnHost, Node, View};

/// First kernel with SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV: only a signal that kills interrupts a call that
/// waits for the answer of the listener.
const WAITS_FOR_ANSWERS: Version = Version(5, 19);

/// Steps of PID 1 after its namespaces: the view. Also returns the mounts in directories of the
/// host.
pub(crate) fn setup_steps(
    inputs: &Inputs<'_>,
    view: &View,
    enforcement: &mut Enforcement,
) -> Result<(Section, Vec<MountOnHost>), Error> {
    let mut setup = namespaces::search(inputs, false);
    let by_worker =
        |target: &Path, node: &Node| worker_mounts::is_mounted_by_worker(inputs, view, target, node);
    let on_host = emit::emit(inputs, view, &by_worker, &mut setup)?;
    let detail = match inputs.root {
        Some(root) => format!("{}, and only what is granted is visible", root.words()),
        None => "tmpfs root, only what is granted is visible".to_owned(),
    };
    enforcement.set(Protection::Root, State::Enforced, detail);
    if inputs.kind.is_session() {
        namespaces::lock_privileges(&mut setup);
        // With `explain`, each worker installs the whole filter. A refusal by the zygote's filter would hide
        // the call from the listener, because a refusal takes precedence over a notification (seccomp(2)).
        if inputs.host.seccomp && !asks_about_refusals(inputs) {
            let filter = seccomp::for_zygote(seccomp::user(inputs));
            install(inputs, view, &mut setup, filter, asks(inputs));
        }
    }
    Ok((setup, on_host))
}

/// Steps of each worker of a session: the namespaces and mounts that its command shares with no other.
pub(crate) fn worker_steps(inputs: &Inputs<'_>, view: &View, enforcement: &mut Enforcement) -> Section {
    let mut worker = Section::default();
    if inputs.kind.is_session() {
        namespaces::worker_namespaces(inputs, &mut worker, enforcement);
        worker_mounts::own_directories(inputs, view, &mut worker);
    }
    worker
}

/// Steps of a worker of a session that runs no command. It hands out its view, and calls for files use it.
/// Directories that each command has for itself are read-only there: no command would see a file that is
/// written to them. If commands share their mounts, their common init hands out its view.
pub(crate) fn file_steps(inputs: &Inputs<'_>, view: &View) -> Section {
    let mut files = Section::default();
    if inputs.kind.is_session() {
        if !inputs.are_shared() {
            worker_mounts::make_read_only(inputs, view, &mut files);
        }
        files.push(Protection::Root, &Step::HandOut {});
    }
    files
}

/// Steps of each worker after its view is complete: they give up privileges one after the other. The first
/// steps report the private file systems that Kennel looks at if the command fails.
pub(crate) fn wall_steps(
    inputs: &Inputs<'_>,
    view: &View,
    enforcement: &mut Enforcement,
) -> Result<(Section, Vec<TmpfsSize>), Error> {
    let mut walls = Section::default();
    let sizes = report_tmpfs(inputs, view, &mut walls);
    namespaces::keyring(inputs, &mut walls, enforcement);
    landlock::ruleset(inputs, view, &mut walls, enforcement)?;
    namespaces::privileges(inputs, &mut walls, enforcement);
    if inputs.are_shared() {
        landlock::restrict(inputs, &mut walls);
    } else {
        filter(inputs, view, &mut walls, enforcement)?;
    }
    Ok((walls, sizes))
}

/// Steps of the payload. Init stays out of the Landlock domain, so that the command cannot signal it.
///
/// Commands that share their processes share a domain, which their common init enters: two domains could not
/// signal or trace each other. There the payload installs the filter, because it keeps the mark that its
/// worker sets.
pub(crate) fn payload_steps(
    inputs: &Inputs<'_>,
    view: &View,
    groups: &CgroupPlan,
    enforcement: &mut Enforcement,
) -> Result<Section, Error> {
    let mut payload = Section::default();
    payload.push(Protection::PidNamespace, &Step::NewSession {});
    limits::limits(inputs, groups, &mut payload, enforcement)?;
    if inputs.are_shared() {
        filter(inputs, view, &mut payload, enforcement)?;
    } else {
        landlock::restrict(inputs, &mut payload);
    }
    Ok(payload)
}

/// The seccomp filter. Children inherit it.
fn filter(
    inputs: &Inputs<'_>,
    view: &View,
    section: &mut Section,
    enforcement: &mut Enforcement,
) -> Result<(), Error> {
    if !inputs.host.seccomp {
        if inputs.policy.learn {
            return Err(cannot_learn());
        }
        if inputs.users() == Users::Callers {
            return Err(neither_filter_nor_users());
        }
        report_missing(inputs, Protection::Seccomp, "seccomp filters cannot be installed here", enforcement)?;
        return landlock::report_missing_filter(inputs, enforcement);
    }
    if inputs.policy.learn {
        let (observing, flags) = (&seccomp::bytes(&seccomp::observing()), listener_flags(inputs.host.kernel));
        let plain = &seccomp::bytes(&seccomp::allowing());
        // First: the real filter comes on top, and its refusals win.
        section.push(
            Protection::Seccomp,
            &Step::SeccompAsking { program: observing, flags, plain, with_start: 0 },
        );
    }
    let user = seccomp::user(inputs);
    match inputs.kind {
        // The zygote has the listener of all of its workers.
        SandboxKind::Session { .. } if !asks_about_refusals(inputs) => {
            install(inputs, view, section, seccomp::for_worker(user), Asks::Nothing);
        }
        _ => install(inputs, view, section, seccomp::full(user), asks(inputs)),
    }
    enforcement.set(Protection::Seccomp, State::Enforced, "system calls limited to an allow-list");
    Ok(())
}

/// Appends a filter for the command, and its listener.
fn install(inputs: &Inputs<'_>, view: &View, section: &mut Section, filter: &[sock_filter], asks: Asks) {
    let program = |asks| seccomp::program(filter, asks, inputs.ids(), seccomp::user(inputs));
    let plain = &seccomp::bytes(&program(Asks::Nothing));
    if asks == Asks::Nothing {
        return push_filter(inputs, section, &Step::Seccomp { program: plain });
    }
    let program = match view.common_repository {
        // This asks about those files too.
        _ if asks == Asks::Refusals => seccomp::asking_about_paths(program(asks)),
        Some(_) => seccomp::asking_about_files(program(asks)),
        None => program(asks),
    };
    let (program, flags) = (&seccomp::bytes(&program), listener_flags(inputs.host.kernel));
    // What it asks about is no call of Kennel's own before the command starts.
    let with_start = u32::from(asks == Asks::Questions && !inputs.kind.is_session());
    push_filter(inputs, section, &Step::SeccompAsking { program, flags, plain, with_start });
}

/// About what the filter asks. The kernel allows one listener, and `learn` needs it.
fn asks(inputs: &Inputs<'_>) -> Asks {
    match inputs.policy.learn {
        true => Asks::Nothing,
        false if inputs.policy.explain => Asks::Refusals,
        false => Asks::Questions,
    }
}

fn asks_about_refusals(inputs: &Inputs<'_>) -> bool {
    asks(inputs) == Asks::Refusals
}

/// The error of a host that cannot tell what a command uses.
fn cannot_learn() -> Error {
    Error::Unavailable {
        protection: Protection::Seccomp,
        reason: "seccomp filters cannot be installed; without one, nobody sees what a command uses"
            .to_owned(),
        remedy: Some(remedy![
            "use a kernel with CONFIG_SECCOMP_FILTER=y, or run without ",
            SettingKey::Learn,
        ]),
    }
}

/// Appends a filter. It may be missing if the policy allows that, with two exceptions. Port rules that are
/// required need the filter. Without a user namespace the filter is what keeps commands away from keys of the
/// host's root and from making namespaces.
pub(crate) fn push_filter(inputs: &Inputs<'_>, section: &mut Section, step: &Step<'_>) {
    match landlock::needs_filter(inputs) || inputs.users() == Users::Callers {
        true => section.push(Protection::Seccomp, step),
        false => section.push_by(inputs.policy, Protection::Seccomp, step),
    }
}

/// Flags of a filter with a listener. Once the listener has read a call, only a signal that kills interrupts
/// it. Without that flag a signal handler would see EINTR from a call that is otherwise refused.
fn listener_flags(kernel: Version) -> u64 {
    let waits = if kernel < WAITS_FOR_ANSWERS { 0 } else { libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV };
    libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | waits
}

/// The error of a host with neither a user namespace nor a filter: too little is left.
fn neither_filter_nor_users() -> Error {
    Error::Unavailable {
        protection: Protection::Seccomp,
        reason: "seccomp filters cannot be installed; without a user namespace they are required".to_owned(),
        remedy: Some("use a kernel with CONFIG_SECCOMP_FILTER=y, or one that allows user namespaces".into()),
    }
}

/// The private file systems that a command writes to, each by its first path. Several private directories can
/// share one.
pub(crate) fn tmpfs_of_command<'v>(inputs: &Inputs<'_>, view: &'v View) -> Vec<(&'v Path, TmpfsSize)> {
    let is_private = |node: &Node| matches!(node, Node::Private { .. });
    let first = |renewed: bool| {
        let is_there = |path: &Path, node: &Node| {
            let is_own_of_worker =
                inputs.kind.is_session() && worker_mounts::is_own_of_worker(inputs, path, node);
            is_private(node) && is_own_of_worker == renewed
        };
        view.iter().find(|(path, place)| is_there(path, &place.node)).map(|(path, _)| path)
    };
    // The root holds the changes of layers.
    let of_root = first(false).or((!view.layers.all.is_empty()).then_some(Path::new("/")));
    // The changes of another root are in a file system of their own.
    let of_changes = view.root.as_ref().map(|_| Path::new("/"));
    let shared = [of_root, first(true), of_changes].into_iter().flatten();
    let shared = shared.map(|path| (path, TmpfsSize::from_policy(inputs, None)));
    let of_policy = view.iter().filter_map(|(path, place)| match &place.node {
        Node::Tmpfs { size, .. } => Some((path, *size)),
        _ => None,
    });
    shared.chain(of_policy).take(MOST_TMPFS).collect()
}

/// Appends the steps that report these file systems. Returns their sizes in the same order.
pub(crate) fn report_tmpfs(inputs: &Inputs<'_>, view: &View, walls: &mut Section) -> Vec<TmpfsSize> {
    let sizes = tmpfs_of_command(inputs, view);
    for (path, _) in &sizes {
        walls.push(Protection::Root, &Step::CheckTmpfs { path: &crate::plan::relative(path) });
    }
    sizes.into_iter().map(|(_, size)| size).collect()
}
