//! `--as-owner`: root becomes the owner of the workspace, as with setpriv(1), and starts Kennel again.
//!
//! Only the owner of a directory is asked here. Everything else is read, opened and written by the new process, as an
//! ordinary user.

use std::{
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

const FLAG: &str = "--as-owner";

/// Sockets and directories of the caller's login.
const OF_LOGIN: [&str; 4] = ["DBUS_SESSION_BUS_ADDRESS", "MAIL", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR"];

/// Does nothing if the caller is the owner. Otherwise it returns only with an error.
///
/// # Errors
/// The caller is not root, or may not change its user.
pub(crate) fn become_owner(workspace: Option<&Path>) -> Result<(), Error> {
    let path = workspace.unwrap_or(Path::new("."));
    let failed = |source, remedy: &str| Error::Grant {
        what: "workspace",
        path: path.to_owned(),
        source,
        remedy: Some(remedy.to_owned()),
    };
    let directory = fs::metadata(path).map_err(|error| failed(error, "name an existing directory"))?;
    let uid = Uid::from_raw(directory.uid());
    if uid == geteuid() {
        return Ok(());
    }
    if !geteuid().is_root() {
        let cause =
            io::Error::other(format!("it belongs to uid {uid}, and only root can run as another user"));
        return Err(failed(cause, "run kennel as root, or as the owner"));
    }
    let account = Account::of(uid);
    let gid = Gid::from_raw(account.as_ref().map_or(directory.gid(), |account| account.gid));
    give_up(uid, gid, &account.as_ref().map(Account::groups).unwrap_or_default()).map_err(|error| {
        failed(error, "run kennel with CAP_SETUID and CAP_SETGID, or as the owner without --as-owner")
    })?;
    let error = again(uid, account.as_ref()).exec();
    Err(failed(error, "make kennel executable for its owner: chmod 755"))
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
    let mut words = env::args_os();
    let mut command = Command::new("/proc/self/exe");
    command.arg0(words.next().unwrap_or_else(|| "kennel".into()));
    let mut is_own = true;
    for word in words {
        is_own &= word != "--";
        if !(is_own && word == FLAG) {
            command.arg(word);
        }
    }
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
    for (name, value) in account.map(Account::variables).unwrap_or_default() {
        command.env(name, value);
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

/// A line of /etc/passwd. getpwuid(3) would load plugins, which a static program must not.
struct Account {
    name: OsString,
    gid: u32,
    home: PathBuf,
}

impl Account {
    fn of(uid: Uid) -> Option<Self> {
        fields(&fs::read("/etc/passwd").ok()?).find_map(|line| {
            let &[name, _, id, gid, _, home, ..] = &*line else { return None };
            (number(id) == Some(uid.as_raw())).then_some(())?;
            Some(Self { name: text(name), gid: number(gid)?, home: text(home).into() })
        })
    }

    /// The groups of /etc/group that have it as a member.
    fn groups(&self) -> Vec<Gid> {
        let of_line = |line: Vec<&[u8]>| {
            let &[_, _, gid, members] = &*line else { return None };
            let mut members = members.split(|byte| *byte == b',');
            members.any(|member| member == self.name.as_bytes()).then(|| number(gid).map(Gid::from_raw))?
        };
        fields(&fs::read("/etc/group").unwrap_or_default()).filter_map(of_line).collect()
    }

    fn variables(&self) -> Vec<(&'static str, OsString)> {
        let home = self.home.clone().into_os_string();
        vec![("HOME", home), ("USER", self.name.clone()), ("LOGNAME", self.name.clone())]
    }
}

fn fields(file: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    file.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b':').collect())
}

fn number(field: &[u8]) -> Option<u32> {
    str::from_utf8(field).ok()?.parse().ok()
}

fn text(field: &[u8]) -> OsString {
    OsStr::from_bytes(field).to_owned()
}
