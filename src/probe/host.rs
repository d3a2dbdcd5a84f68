//! Tries what the host offers besides protections: memfd execution, overlayfs, cgroups and procfs. It tries
//! each instead of trusting version numbers.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kennel_helper::control::{Report, section};
use kennel_helper::plan::{Step, Within};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd;

use crate::caller::Caller;
use crate::host::Host;
use crate::host::cgroups::{Cgroups, Controller};
use crate::host::mounts::mounts;
use crate::launch::cgroup::Groups;
use crate::launch::control::Arrival;
use crate::launch::image::{Image, Images};
use crate::launch::inside::WaitingInit;
use crate::launch::prepared::Prepared;
use crate::launch::request::{RequestBuf, RequestFields};
use crate::launch::{prepared, start};
use crate::plan::cgroup::CgroupTree;
use crate::plan::compile::{CommandDefaults, Compiled, Steps};
use crate::plan::{Section, cgroup};
use crate::policy::Policy;
use crate::policy::limits::Limits;
use crate::policy::profile::Profile;
use crate::policy::units::Size;
use crate::probe::attempt::AttemptEnd;
use crate::report::enforcement::Protection;
use crate::report::error::Error;
use crate::report::remedy::{Remedy, SettingKey, remedy};
use crate::sys::birth;
use crate::sys::birth::{Birth, CloneError, Placement, SpawnOptions, Users};
use crate::view::inputs::SandboxKind;

/// Whether a memfd can be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Execution {
    Works,
    /// The kernel refused, with this errno.
    Refused(i32),
    /// No process could be started to try it.
    Unknown,
}

/// Starts the helper from a memfd, and ends it at once.
pub(crate) fn execute_memfd(options: SpawnOptions) -> Execution {
    let sockets = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
    let Ok((own_end, child_end)) = sockets else { return Execution::Unknown };
    let refused = |error: std::io::Error| Execution::Refused(error.raw_os_error().unwrap_or_default());
    let image = match Image::sealed() {
        Ok(image) => image,
        // With vm.memfd_noexec=2 the kernel refuses to create an executable memfd.
        Err(error) => return refused(error),
    };
    let begun = birth::begin_inside(image.as_fd(), child_end.as_fd(), options, Placement::Namespaces);
    let executed = begun.and_then(|(child, birth)| {
        let mut init = WaitingInit::child(own_end, child.pidfd, None, birth);
        init.take_birth().map_or(Ok(()), Birth::executed)
    });
    match executed {
        Ok(()) => Execution::Works,
        Err(CloneError::Exec(error)) => refused(error),
        Err(CloneError::Clone(_) | CloneError::Keep(_)) => Execution::Unknown,
    }
}

/// Mounts an overlay in new namespaces, which end at once. `None` if that could not be tried.
pub(crate) async fn mount_overlay() -> Option<AttemptEnd> {
    try_overlay().await.ok().flatten().map(AttemptEnd::from_errno)
}

async fn try_overlay() -> Result<Option<i32>, Error> {
    // The plan ends with a program that does not exist: reaching that step means that the mount worked.
    let wanted = RequestFields {
        program: "/kennel-probe/none".as_ref(),
        called: None,
        arguments: &[],
        environment: &BTreeMap::new(),
        secrets: &[],
        directory: Path::new("/"),
        terminal: None,
        background: false,
        limits: &[],
    };
    let (compiled, last) = overlay_plan();
    let null = fs::File::open("/dev/null").map_err(Error::io("open /dev/null"))?;
    let stdio = [null.as_fd(), null.as_fd(), null.as_fd()];
    let inside =
        start::start_one_shot(&Prepared::new(compiled, Images::new(SpawnOptions::of(Users::Own))?)?, None)?;
    prepared::send_request(&inside, &RequestBuf::new(&wanted)?, stdio)
        .map_err(Error::io("hand the command over"))?;
    Ok(match inside.next().await.map_err(Error::io("read the control socket"))? {
        Arrival::Report(Report::Failed { section: section::REQUEST, .. }) => Some(0),
        Arrival::Report(Report::Failed { section: section::SETUP, index, errno }) if index == last => {
            Some(errno)
        }
        _ => None,
    })
}

/// A plan that mounts an overlay of tmpfs directories, and the index of the mount step.
fn overlay_plan() -> (Compiled, u32) {
    let mut setup = Section::default();
    let mut count = 0;
    let mut push = |step: Step<'_>| {
        setup.push(Protection::Root, &step);
        count += 1;
    };
    let (uid, gid) = (unistd::geteuid(), unistd::getegid());
    push(Step::Write { path: c"/proc/self/setgroups", bytes: b"deny" });
    push(Step::Write { path: c"/proc/self/uid_map", bytes: format!("{uid} {uid} 1\n").as_bytes() });
    push(Step::Write { path: c"/proc/self/gid_map", bytes: format!("{gid} {gid} 1\n").as_bytes() });
    push(Step::Unshare { flags: libc::CLONE_NEWNS.cast_unsigned() });
    push(Step::NewRoot { options: c"mode=755,size=1m" });
    for path in [c"upper", c"lower", c"merged"] {
        push(Step::MakeDir { path, mode: 0o755 });
    }
    // Read-only: a work directory would need CAP_DAC_OVERRIDE, which a process in the sandbox never has.
    let options = c"lowerdir=upper:lower";
    push(Step::Mount { kind: c"overlay", target: c"merged", within: Within::Root, flags: 0, options });
    let compiled = Compiled {
        steps: Steps { setup, ..Steps::default() },
        commands: CommandDefaults { directory: PathBuf::from("/"), ..CommandDefaults::default() },
        ..Compiled::default()
    };
    (compiled, count - 1)
}

/// What this process can do in the cgroup v2 hierarchy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CgroupFinding {
    /// The cgroup where Kennel makes groups for commands, else this process's own cgroup; `None` if no cgroup
    /// v2 hierarchy is mounted.
    pub(crate) directory: Option<PathBuf>,
    /// Its controllers.
    pub(crate) controllers: Vec<String>,
    /// Whether a group could be made there, limited, killed and removed.
    pub(crate) delegated: bool,
    /// Why not, and the remedy.
    pub(crate) lack: Option<(String, Remedy)>,
}

impl CgroupFinding {
    /// Finds a cgroup in the way a policy with limits does, and tries it.
    pub(crate) async fn look() -> Self {
        let mut policy = Policy::profile(Profile::RepoWrite, "/");
        let (memory, swap) = (Some(Size::from_bytes(1 << 30)), None);
        policy.limits = Limits { memory, swap, pids: Some(100), cpus: Some(1.0), ..Limits::default() };
        let found = cgroup::groups(&policy, &Host::detect(), &Caller::current(), SandboxKind::OneShot);
        let groups = found.unwrap_or_default();
        let names = |controllers: &[Controller]| controllers.iter().map(Controller::to_string).collect();
        if let Some(plan) = &groups.plan {
            let tried = try_groups(plan).await;
            let lack = tried.as_ref().err().map(|error| {
                let otherwise = || remedy!["name another cgroup with ", SettingKey::Cgroup];
                (error.chain(), error.remedy().unwrap_or_else(otherwise))
            });
            let (directory, controllers) = (Some(plan.parent.clone()), names(&plan.controllers));
            return Self { directory, controllers, delegated: tried.is_ok(), lack };
        }
        let own = Cgroups::look().own;
        Self {
            controllers: own.as_ref().map(|own| names(&own.offers)).unwrap_or_default(),
            directory: own.map(|own| own.path),
            delegated: false,
            lack: groups.why(),
        }
    }
}

/// Makes a group with limits, kills its members (it has none), and removes it.
async fn try_groups(plan: &Arc<CgroupTree>) -> Result<(), Error> {
    let groups = Groups::make(plan, &Images::new(SpawnOptions::of(Users::Own))?)?;
    let leaf = groups.only_leaf()?;
    leaf.kill();
    drop(leaf);
    groups.gone().await;
    Ok(())
}

/// The mounts that cover parts of /proc. Container engines make them; the kernel then refuses a fresh procfs,
/// which would reveal what they cover.
pub(crate) fn covered_below_proc() -> Vec<String> {
    let points = mounts().into_iter().flatten().map(|mount| mount.mount_point);
    let below = points.filter(|point| point.starts_with("/proc") && point != Path::new("/proc"));
    // The automount of binfmt_misc covers a directory that is always empty, so it hides nothing.
    let hiding = below.filter(|point| !point.starts_with("/proc/sys/fs/binfmt_misc"));
    hiding.map(|point| point.display().to_string()).collect()
}
