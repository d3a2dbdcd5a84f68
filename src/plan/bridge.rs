//! The plan of a bridge. A bridge is a process that sees one Unix socket of the host and passes bytes to it;
//! it can do nothing else.
//!
//! Compiling reads the host to look at the socket. It starts nothing and connects to nothing.

use crate::plan::network::asks_for_proxy;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::{fs, io};

use Protection::*;
use kennel_helper::control::{MOST_CONNECTIONS, PROXY};
use kennel_helper::plan::{Step, Within};
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{AccessFlags, faccessat, getgroups};

use crate::caller::Caller;
use crate::host::Host;
use crate::plan::{Section, absolute, landlock, limits, namespaces, seccomp, sections};
use crate::policy::Policy;
use crate::report::enforcement::{Enforcement, Protection};
use crate::report::error::Error;
use crate::sys::inode::Identity;
use crate::view::inputs;
use crate::view::inputs::{Inputs, SandboxKind, Subject};
use crate::view::node::TmpfsSize;
use crate::view::paths::source::BindSource;

/// The root holds one empty file.
const ROOT_SIZE: u64 = 64 << 10;

/// The bridge writes, executes and opens as a device nothing in its root.
const ATTRIBUTES: u64 =
    libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;

/// Descriptors of one connection: two sockets, and a pipe of two descriptors for each direction while it
/// holds bytes.
const FILES_OF_ONE: u64 = 6;

/// All other descriptors: control socket, listener, epoll, a client that waits, spare pipes.
const FILES_BESIDES: u64 = 64;

/// The plan of a bridge. It can start any number of bridges.
#[derive(Clone, Debug)]
pub(crate) struct BridgePlan {
    pub(crate) namespaces: Section,
    pub(crate) setup: Section,
    pub(crate) walls: Section,
    /// How many connections at a time its descriptors suffice for.
    pub(crate) connections: u32,
}

/// Compiles the plan of a bridge to the Unix socket at `path`. `path` is as the policy names it.
///
/// # Errors
/// No socket is at the path, or the caller may not write to it. connect(2) needs that.
pub(crate) fn compile(
    policy: &Policy,
    host: &Host,
    caller: &Caller,
    path: &Path,
) -> Result<BridgePlan, Error> {
    let (names, kind, subject) = (&inputs::HomeNames::default(), SandboxKind::Once, Subject::Workspace);
    let inputs = Inputs { policy, host, caller, names, kind, subject, root: None, controllers: None };
    let socket = socket(caller, path).map_err(|(source, remedy)| {
        let remedy = Some(remedy.into());
        Error::Grant { what: "proxy socket", path: path.to_owned(), source, remedy }
    })?;
    let (files, connections) = capacity();
    Ok(BridgePlan {
        namespaces: namespaces(&inputs),
        setup: setup(&socket),
        walls: walls(&inputs, files),
        connections,
    })
}

/// Resolves the path of the socket and checks that the caller may connect. An error comes with its remedy.
fn socket(caller: &Caller, path: &Path) -> Result<BindSource, (io::Error, &'static str)> {
    let there = fs::canonicalize(caller.absolute(path)).and_then(|path| Ok((fs::metadata(&path)?, path)));
    let (metadata, path) = there
        .map_err(|error| (error, "start the proxy first, and name the Unix socket that it listens on"))?;
    if !metadata.file_type().is_socket() {
        let error = io::Error::from_raw_os_error(libc::ENOTSOCK);
        return Err((error, "name the Unix socket that the proxy listens on"));
    }
    if !may_connect(caller, &path, &metadata) {
        let error = io::ErrorKind::PermissionDenied.into();
        return Err((
            error,
            "let the user who runs kennel write to the socket; capabilities of root do not count",
        ));
    }
    Ok(BindSource::of(path, &metadata))
}

/// Whether connect(2) will succeed. The bridge has no capability, so the permission bits count for root too.
fn may_connect(caller: &Caller, path: &Path, metadata: &Metadata) -> bool {
    if !caller.is_root() {
        return faccessat(AT_FDCWD, path, AccessFlags::W_OK, AtFlags::AT_EACCESS).is_ok();
    }
    let in_group = || {
        let others = getgroups().unwrap_or_default();
        metadata.gid() == caller.gid || others.iter().any(|group| group.as_raw() == metadata.gid())
    };
    let bit = if metadata.uid() == caller.uid {
        0o200
    } else if in_group() {
        0o020
    } else {
        0o002
    };
    metadata.mode() & bit != 0
}

/// The limit of descriptors, and how many connections it suffices for.
fn capacity() -> (u64, u32) {
    let wanted = u64::from(MOST_CONNECTIONS) * FILES_OF_ONE + FILES_BESIDES;
    let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(wanted, |(_, hard)| hard.min(wanted));
    (files, connections(files))
}

fn connections(files: u64) -> u32 {
    let fit = files.saturating_sub(FILES_BESIDES) / FILES_OF_ONE;
    u32::try_from(fit).unwrap_or(MOST_CONNECTIONS).clamp(1, MOST_CONNECTIONS)
}

/// New namespaces of every kind. The network namespace has not even a loopback device: the listener comes
/// from the sandbox.
fn namespaces(inputs: &Inputs<'_>) -> Section {
    let mut namespaces = Section::default();
    namespaces::id_maps(inputs, &mut namespaces);
    for (protection, flag) in [
        (MountNamespace, libc::CLONE_NEWNS),
        (IpcNamespace, libc::CLONE_NEWIPC),
        (UtsNamespace, libc::CLONE_NEWUTS),
        (CgroupNamespace, libc::CLONE_NEWCGROUP),
        (NetworkNamespace, libc::CLONE_NEWNET),
    ] {
        namespaces::unshare(inputs, &mut namespaces, protection, flag);
    }
    namespaces
}

/// A root that shows the socket and nothing else.
fn setup(socket: &BindSource) -> Section {
    let mut setup = Section::default();
    let mut push = |step: &Step<'_>| setup.push(Protection::Root, step);
    let Identity { device, inode } = socket.identity;
    push(&Step::NewRoot { options: &TmpfsSize::from_bytes(ROOT_SIZE).options(0o755) });
    push(&Step::MakeMountPoint { path: PROXY });
    push(&Step::Bind {
        source: &absolute(&socket.path),
        device,
        inode,
        target: PROXY,
        within: Within::Root,
        attributes: ATTRIBUTES,
    });
    push(&Step::PivotRoot {});
    push(&Step::SetAttributes { target: c".", attributes: ATTRIBUTES, recursive: 0 });
    setup
}

/// The walls of a payload, and a stricter Landlock domain and filter, because the needs of a bridge are
/// known.
fn walls(inputs: &Inputs<'_>, files: u64) -> Section {
    let mut walls = Section::default();
    // This report is dropped: the sandbox's report says what is in force.
    let mut dropped = Enforcement::default();
    namespaces::keyring(inputs, &mut walls, &mut dropped);
    namespaces::privileges(inputs, &mut walls, &mut dropped);
    landlock::socket_only(inputs, PROXY, &mut walls);
    walls.push(Protection::CoreDumps, &limits::rlimit(libc::RLIMIT_CORE, limits::NO_CORE));
    walls.push(Protection::OpenFiles, &limits::rlimit(libc::RLIMIT_NOFILE, files));
    if inputs.host.seccomp {
        let program = &seccomp::bytes(&seccomp::for_bridge());
        sections::push_filter(inputs, &mut walls, &Step::Seccomp { program });
    }
    walls
}

/// The plan of the bridge to another program's proxy; `None` if the policy names none.
///
/// # Errors
/// No socket is at the path.
pub(crate) fn for_policy(inputs: &Inputs<'_>) -> Result<Option<BridgePlan>, Error> {
    match &inputs.policy.network.proxy {
        Some(proxy) if asks_for_proxy(inputs) => {
            compile(inputs.policy, inputs.host, inputs.caller, &proxy.unix).map(Some)
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use kennel_helper::plan::entries;

    use super::*;
    use crate::policy::profile::Profile;

    fn plan(path: &Path) -> Result<BridgePlan, Error> {
        let policy = Policy::profile(Profile::RepoWrite, "/tmp");
        compile(&policy, &Host::detect(), &Caller::current(), path)
    }

    pub(crate) fn refused(path: &Path, errno: i32) {
        match plan(path) {
            Err(Error::Grant { path: named, source, remedy: Some(_), .. }) => {
                assert_eq!((&*named, source.kind()), (path, io::Error::from_raw_os_error(errno).kind()));
            }
            other => panic!("{}: {other:?}", path.display()),
        }
    }

    #[test]
    fn a_path_without_a_socket_is_refused_before_anything_starts() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("file");
        fs::write(&file, "").expect("a file");
        refused(&file, libc::ENOTSOCK);
        refused(dir.path(), libc::ENOTSOCK);
        refused(&dir.path().join("missing"), libc::ENOENT);
        refused(&file.join("below"), libc::ENOTDIR);
    }

    #[test]
    fn a_socket_that_may_not_be_written_to_is_refused_to_root_too() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("socket");
        let _listener = UnixListener::bind(&path).expect("a socket");
        plan(&path).expect("writable");
        fs::set_permissions(&path, Permissions::from_mode(0o444)).expect("read-only");
        refused(&path, libc::EACCES);
    }

    #[test]
    fn a_link_is_followed_at_compile_time_and_its_target_is_pinned() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (path, link) = (dir.path().join("socket"), dir.path().join("link"));
        let _listener = UnixListener::bind(&path).expect("a socket");
        symlink(&path, &link).expect("a link");
        let plan = plan(&link).expect("a socket");
        let looked_at = fs::metadata(&path).expect("there");
        let bound = entries(&plan.setup.bytes).flatten().find_map(|entry| match entry.step {
            Step::Bind { source, device, inode, .. } => Some((source.to_owned(), device, inode)),
            _ => None,
        });
        let canonical = fs::canonicalize(&path).expect("there");
        assert_eq!(bound, Some((absolute(&canonical), looked_at.dev(), looked_at.ino())));
    }

    #[test]
    fn landlock_allows_the_socket_alone_and_the_filter_comes_last() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("socket");
        let _listener = UnixListener::bind(&path).expect("a socket");
        let plan = |landlock_abi, seccomp| {
            let policy = Policy::profile(Profile::RepoWrite, "/tmp");
            let host = Host { landlock_abi, seccomp, ..Host::detect() };
            compile(&policy, &host, &Caller::current(), &path).expect("compiles").walls
        };
        let has = |walls: &Section, wanted: fn(&Step<'_>) -> bool| {
            entries(&walls.bytes).flatten().any(|entry| wanted(&entry.step))
        };
        let walls = plan(6, true);
        assert!(has(
            &walls,
            |step| matches!(step, Step::LandlockRuleset { fs, net: 3, scoped: 3 } if *fs != 0)
        ));
        assert!(has(&walls, |step| matches!(step, Step::LandlockRestrict {})));
        assert!(!has(&walls, |step| matches!(step, Step::LandlockRule { .. })));
        // From ABI 9 on (Linux 7.1), connecting to the path of a socket needs a right.
        const RESOLVE_UNIX: u64 = 1 << 16;
        let newest = plan(11, true);
        assert!(has(
            &newest,
            |step| matches!(step, Step::LandlockRuleset { fs, .. } if fs & RESOLVE_UNIX != 0)
        ));
        assert!(has(
            &newest,
            |step| matches!(step, Step::LandlockRule { path, access: RESOLVE_UNIX } if *path == PROXY)
        ));
        let last = entries(&walls.bytes).last().flatten().expect("a step");
        assert!(matches!(last.step, Step::Seccomp { .. }) && !last.optional);
        // The sandbox itself refuses or reports what such a host lacks.
        let walls = plan(0, false);
        assert!(!has(&walls, |step| matches!(step, Step::Seccomp { .. } | Step::LandlockRestrict {})));
    }

    #[test]
    fn the_limit_of_descriptors_limits_connections() {
        let all = u64::from(MOST_CONNECTIONS);
        for (files, expected) in [
            (0, 1),
            (FILES_BESIDES + FILES_OF_ONE, 1),
            (FILES_BESIDES + 2 * FILES_OF_ONE, 2),
            (1024, 160),
            (FILES_BESIDES + all * FILES_OF_ONE, MOST_CONNECTIONS),
            (u64::MAX, MOST_CONNECTIONS),
        ] {
            assert_eq!(connections(files), expected, "{files}");
        }
    }
}
