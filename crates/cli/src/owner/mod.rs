//! `--as-owner`: root becomes the owner of the workspace, as with setpriv(1), and nothing of root's goes
//! along.
//!
//! Only the owner of a directory is asked here. Everything else is read, opened and written by the owner's
//! process, as an ordinary user. There are three processes:
//!
//! 1. **Relay**: the process that root started. It stays root, keeps root's terminal, descriptors and
//!    environment, and copies between them and a new terminal and pipes.
//! 2. **Leader**: root, with nothing of root's: new streams, a scrubbed environment, no other descriptor, no
//!    key ring. It leads the session of the new terminal, as a shell does, and tells the relay when Kennel
//!    stops and ends.
//! 3. **Owner**: Kennel itself. It becomes the owner, and goes on.
//!
//! So at no time is there a process of the owner, or one that the owner may trace, that holds anything of
//! root's.

mod environment;
mod leader;
mod relay;
mod request;
mod streams;

use std::{
    collections::HashSet,
    env,
    ffi::OsStr,
    fs,
    io::{self, IsTerminal},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    process::ExitCode,
};

use caps::CapSet;
use kennel::{
    Error,
    internal::account::{Account, fields, number},
};
use nix::{
    sys::{
        prctl::set_dumpable,
        signal::{SigSet, Signal},
    },
    unistd::{Gid, Uid, geteuid, getpgrp, getresuid, setgroups, setresgid, setresuid, tcsetpgrp},
};

use crate::args::owner::{AsOwner, Identity, Step};
pub(crate) use request::Request;

/// Goes on (`None`) without the flag, if the caller is the owner, and in the owner's process. Otherwise that
/// runs as another process, and this returns its exit status.
///
/// # Errors
/// The caller is not root, or may not change its user. Or a link of a third user leads to the workspace: that
/// user would choose as whom Kennel runs, and where.
pub(crate) fn choose(flag: &AsOwner, request: Request<'_>) -> Result<Option<ExitCode>, Error> {
    let path = request.workspace.unwrap_or(Path::new("."));
    let failed = |source, remedy: &'static str| Error::Grant {
        what: "workspace",
        path: path.to_owned(),
        source,
        remedy: Some(remedy.into()),
    };
    match &flag.owner_step {
        Some(step @ Step { socket: Some(socket), .. }) => return leader::lead(step, *socket).map(Some),
        Some(step) => {
            let changed = become_owner(step, path.is_relative());
            let remedy = "run kennel with CAP_SETUID and CAP_SETGID, or as the owner without --as-owner";
            return changed.map(|()| None).map_err(|error| failed(error, remedy));
        }
        None if !flag.as_owner => return Ok(None),
        None => {}
    }
    let directory = fs::metadata(path).map_err(|error| failed(error, "name an existing directory"))?;
    let uid = Uid::from_raw(directory.uid());
    if geteuid().is_root() {
        check_links(path, uid).map_err(|error| failed(error, "name the directory itself"))?;
    }
    if uid == geteuid() {
        return Ok(None);
    }
    if !geteuid().is_root() {
        let cause =
            io::Error::other(format!("it belongs to uid {uid}, and only root can run as another user"));
        return Err(failed(cause, "run kennel as root, or as the owner"));
    }
    let account = Account::of(uid.as_raw());
    // Without an account, the group with the user's number, as of a private group. That of the directory
    // could be root's.
    let gid = Gid::from_raw(account.as_ref().map_or(uid.as_raw(), |account| account.gid));
    let groups = account.as_ref().map(|account| groups_with(&account.name)).unwrap_or_default();
    let variables = environment::environment(uid.as_raw(), account.as_ref(), &request);
    relay::relay(Identity { uid, gid, groups }, variables, request).map(Some)
}

/// Checks that every link on the way to the workspace belongs to root or to the workspace's owner.
///
/// # Errors
/// A link belongs to another user.
fn check_links(path: &Path, owner: Uid) -> io::Result<()> {
    let mut seen = HashSet::new();
    // Without a slash at the end, which would follow the link before it.
    let mut ways: Vec<PathBuf> = vec![std::path::absolute(path)?.components().collect()];
    while let Some(way) = ways.pop() {
        for at in way.ancestors().take_while(|at| seen.insert(at.to_path_buf())) {
            let found = fs::symlink_metadata(at)?;
            if !found.is_symlink() {
                continue;
            }
            if ![0, owner.as_raw()].contains(&found.uid()) {
                let link = format!("the link {} belongs to uid {}", at.display(), found.uid());
                return Err(io::Error::other(format!("{link}, and what it leads to to uid {owner}")));
            }
            ways.push(at.parent().unwrap_or(at).join(fs::read_link(at)?).components().collect());
        }
    }
    Ok(())
}

/// Becomes the owner. Until the end of this, the owner cannot trace this process: a change of IDs has that
/// effect, and nothing of root's is left in it by then but its directory, which it leaves first.
fn become_owner(step: &Step, needs_directory: bool) -> io::Result<()> {
    if step.is_in_foreground {
        take_terminal();
    }
    // The leader has them blocked. Kennel itself blocks SIGXFSZ.
    let mut inherited = SigSet::all();
    inherited.remove(Signal::SIGXFSZ);
    inherited.thread_unblock()?;
    let directory = Path::new(".").metadata()?;
    let path = env::current_dir()?;
    env::set_current_dir("/")?;
    give_up(&step.identity)?;
    leader::end_with(step.parent)?;
    let entered = env::set_current_dir(&path).and_then(|()| Path::new(".").metadata());
    match entered {
        Ok(now) if (now.dev(), now.ino()) == (directory.dev(), directory.ino()) => {}
        // Relative paths then lead nowhere.
        _ if !needs_directory => env::set_current_dir("/")?,
        Ok(_) => return Err(io::Error::other("somebody has replaced the current directory")),
        Err(error) => {
            let uid = step.identity.uid;
            let reason = format!("uid {uid} cannot enter the current directory {}: {error}", path.display());
            return Err(io::Error::new(error.kind(), reason));
        }
    }
    Ok(set_dumpable(true)?)
}

/// Takes the terminal's foreground. The kernel would stop this process for it if SIGTTOU were not blocked.
fn take_terminal() {
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let _ = match (stdin.is_terminal(), stdout.is_terminal()) {
        (true, _) => tcsetpgrp(stdin, getpgrp()),
        (_, true) => tcsetpgrp(stdout, getpgrp()),
        _ => tcsetpgrp(stderr, getpgrp()),
    };
}

/// Changes all IDs of this process and gives up every capability.
fn give_up(Identity { uid, gid, groups }: &Identity) -> io::Result<()> {
    let (uid, gid) = (*uid, *gid);
    setgroups(groups)?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    // The kernel does it too, unless a securebit forbids that.
    for set in [CapSet::Ambient, CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        caps::clear(None, set).map_err(io::Error::other)?;
    }
    let now = getresuid()?;
    let is_changed = [now.real, now.effective, now.saved].iter().all(|id| *id == uid);
    if is_changed { Ok(()) } else { Err(io::Error::other("the kernel left another user")) }
}

/// The groups of /etc/group with this member.
fn groups_with(name: &OsStr) -> Vec<Gid> {
    let of_line = |line: Vec<&[u8]>| {
        let &[_, _, gid, members] = &*line else { return None };
        let mut members = members.split(|byte| *byte == b',');
        members.any(|member| member == name.as_bytes()).then(|| number(gid).map(Gid::from_raw))?
    };
    fields(&fs::read("/etc/group").unwrap_or_default()).filter_map(of_line).collect()
}
