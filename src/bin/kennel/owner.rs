//! `--as-owner`: root becomes the owner of the workspace, as with setpriv(1), and starts Kennel again.
//!
//! Only the owner of a directory is asked here. Everything else is read, opened and written by the new process, as an
//! ordinary user.

use std::{
    collections::HashSet,
    env,
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
};

use caps::CapSet;
use kennel::Error;
use nix::unistd::{Gid, Uid, geteuid, getresuid, setgroups, setresgid, setresuid};

use crate::account::{Account, fields, number};
use crate::args::AsOwner;

const FLAG: &str = "--as-owner";

/// Sockets and directories of the caller's login.
const OF_LOGIN: [&str; 4] = ["DBUS_SESSION_BUS_ADDRESS", "MAIL", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR"];

/// Does nothing without the flag, or if the caller is the owner. Otherwise it returns only with an error.
///
/// # Errors
/// The caller is not root, or may not change its user. Or a link of a third user leads to the workspace: that user would
/// choose as whom Kennel runs, and where.
pub(crate) fn choose(flag: &AsOwner, workspace: Option<&Path>) -> Result<(), Error> {
    if !flag.as_owner {
        return Ok(());
    }
    let path = workspace.unwrap_or(Path::new("."));
    let failed = |source, remedy: &str| Error::Grant {
        what: "workspace",
        path: path.to_owned(),
        source,
        remedy: Some(remedy.to_owned()),
    };
    let directory = fs::metadata(path).map_err(|error| failed(error, "name an existing directory"))?;
    let uid = Uid::from_raw(directory.uid());
    if geteuid().is_root() {
        check_links(path, uid).map_err(|error| failed(error, "name the directory itself"))?;
    }
    if uid == geteuid() {
        return Ok(());
    }
    if !geteuid().is_root() {
        let cause =
            io::Error::other(format!("it belongs to uid {uid}, and only root can run as another user"));
        return Err(failed(cause, "run kennel as root, or as the owner"));
    }
    let account = Account::of(uid.as_raw());
    let gid = Gid::from_raw(account.as_ref().map_or(directory.gid(), |account| account.gid));
    let groups = account.as_ref().map(|account| groups_with(&account.name)).unwrap_or_default();
    give_up(uid, gid, &groups).map_err(|error| {
        failed(error, "run kennel with CAP_SETUID and CAP_SETGID, or as the owner without --as-owner")
    })?;
    let error = again(uid, account.as_ref()).exec();
    Err(failed(error, "make kennel executable for its owner: chmod 755"))
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

/// Changes all IDs of this process and gives up every capability.
fn give_up(uid: Uid, gid: Gid, groups: &[Gid]) -> io::Result<()> {
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

/// This command line once more, for the new user.
fn again(uid: Uid, account: Option<&Account>) -> Command {
    let mut words: Vec<OsString> = env::args_os().collect();
    // The first is Kennel's own: it stands before the command, and no flag takes a value that looks like one.
    if let Some(own) = words.iter().position(|word| word == FLAG) {
        words.remove(own);
    }
    let mut words = words.into_iter();
    let mut command = Command::new("/proc/self/exe");
    command.arg0(words.next().unwrap_or_else(|| "kennel".into())).args(words);
    let home = env::var_os("HOME").map(PathBuf::from);
    for (name, value) in env::vars_os() {
        let is_of_home = home.as_ref().is_some_and(|home| is_below(Path::new(&value), home));
        if is_of_home || OF_LOGIN.iter().any(|of_login| name == *of_login) {
            command.env_remove(name);
        }
    }
    if let (Some(home), Some(path)) = (&home, env::var_os("PATH")) {
        let others = env::split_paths(&path).filter(|entry| !is_below(entry, home));
        command.env("PATH", env::join_paths(others).unwrap_or_default());
    }
    if let Some(Account { name, home, .. }) = account {
        command.env("USER", name).env("LOGNAME", name);
        command.env("HOME", home.as_deref().unwrap_or(Path::new("/")));
    }
    let runtime = PathBuf::from(format!("/run/user/{uid}"));
    if fs::metadata(&runtime).is_ok_and(|it| it.uid() == uid.as_raw()) {
        command.env("XDG_RUNTIME_DIR", runtime);
    }
    command
}

/// Whether a path is `home` or below it. Nothing is below `/` in this sense.
fn is_below(path: &Path, home: &Path) -> bool {
    home.parent().is_some() && path.starts_with(home)
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
