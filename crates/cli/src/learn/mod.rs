//! `--learn FILE`: runs a command that may read and reach nearly everything, and writes a policy that allows
//! what it used.
//!
//! The command decides what is in the record, and so what the file proposes. It decides neither where the
//! file is, nor that anything of it holds: a person reads it first.

mod draft;
mod needs;

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::{self, File},
    future::{Ready, ready},
    io::{self, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use kennel::{
    Decision, Error, Mount, NetworkMode, NetworkRequest, Outcome, Overlay, Policy, Profile, Sandbox,
    report::PolicyError,
};
use nix::{
    fcntl::{AtFlags, OFlag, open, openat},
    sys::stat::{Mode, fstatat},
    unistd::{AccessFlags, UnlinkatFlags, faccessat, unlinkat},
};

use crate::{args::Run, ask::rule, escape::harmless, policy::portable};
use draft::Draft;
use needs::Needs;

/// How many different hosts are recorded.
const MOST_HOSTS: usize = 1000;

/// What the command reached, and how often.
type Hosts = BTreeMap<String, u64>;

/// A run that Kennel learns from.
pub(crate) struct Learning {
    file: NewFile,
    /// The policy without `--learn`, with absolute paths: what the file begins with.
    base: Policy,
    /// What it shows.
    shown: Sandbox,
    hosts: Arc<Mutex<Hosts>>,
    /// Whether the command reaches what it asks for.
    reaches: bool,
    program: String,
}

impl Learning {
    /// Prepares to learn, and makes the policy permissive. Before anything runs, it checks that the file can
    /// be made.
    ///
    /// # Errors
    /// Flags or a policy that leave nothing to learn, or that let the command change the host; a file that
    /// cannot be made.
    pub(crate) fn begin(file: &Path, run: &Run, policy: &mut Policy) -> Result<Self, Error> {
        check(run, policy)?;
        let file = NewFile::prepare(file, policy)?;
        let base = Policy { overlay: None, ..portable(policy.clone())? };
        let base = Policy {
            // With the names of presets, and without the credentials of an upstream proxy.
            network: kennel::Network {
                allow: policy.network.allow.clone(),
                deny: policy.network.deny.clone(),
                ..base.network
            },
            ..base
        };
        let shown = Sandbox::new(&Policy { overlay: None, ..policy.clone() })?;
        policy.learn = true;
        if policy.profile != Profile::ReadOnly {
            policy.overlay.get_or_insert_with(Overlay::default);
        }
        let reaches = policy.network.proxy.is_none()
            && policy.clone().allow("*:443").effective_network() == NetworkMode::Proxy;
        if reaches {
            policy.network.mode = Some(NetworkMode::Proxy);
        }
        let program =
            run.command.first().map_or_else(String::new, |word| word.to_string_lossy().into_owned());
        Ok(Self { file, base, shown, hosts: Arc::default(), reaches, program })
    }

    /// The callback for the proxy: yes to everything. The proxy still guards special addresses.
    pub(crate) fn callback(&self) -> impl Fn(NetworkRequest) -> Ready<Decision> + Send + Sync + 'static {
        let hosts = Arc::clone(&self.hosts);
        move |request| {
            let mut hosts = hosts.lock().unwrap_or_else(PoisonError::into_inner);
            let rule = rule(&request.host, request.port);
            if hosts.len() < MOST_HOSTS || hosts.contains_key(&rule) {
                *hosts.entry(rule).or_default() += 1;
            }
            ready(Decision::Allow)
        }
    }

    /// Writes the file, and returns what to say about it. The command has ended, so it cannot interfere.
    ///
    /// # Errors
    /// What the command used could not be seen; the file cannot be made.
    pub(crate) fn write(self, outcome: &Outcome) -> Result<String, Error> {
        let Some(observed) = &outcome.observed else {
            return Err(self.file.failed(io::Error::other(
                "what the command used could not be seen: another program, such as a container's, already follows its \
                 system calls, or it did not start",
            )));
        };
        let mut hosts = std::mem::take(&mut *self.hosts.lock().unwrap_or_else(PoisonError::into_inner));
        // What the proxy refused all the same was not used.
        hosts.retain(|rule, _| outcome.denials.iter().all(|denial| denial.subject != *rule));
        let needs = Needs::of(observed, &self.shown);
        let draft = Draft {
            base: &self.base,
            needs: &needs,
            hosts: &hosts,
            reaches: self.reaches,
            program: &self.program,
            outcome,
        };
        let text = draft.text()?;
        // A record that the command made must not become more than it is.
        draft.check(&self.file.path, &text)?;
        self.file.write(&text)?;
        let count = |number: usize, one: &str, more: &str| match number {
            1 => format!("1 {one}"),
            _ => format!("{number} {more}"),
        };
        Ok(format!(
            "kennel: wrote {}, with {} and {}; look at it, then run with --policy {0}",
            harmless(&self.file.path.to_string_lossy()),
            count(needs.reads.len(), "path", "paths"),
            count(hosts.len(), "host", "hosts"),
        ))
    }
}

/// Refuses what makes no sense together.
fn check(run: &Run, policy: &Policy) -> Result<(), Error> {
    let writable = policy.mounts.iter().find_map(|mount| match mount {
        Mount::ReadWrite { source, .. } => Some(source),
        _ => None,
    });
    let reason = if run.commit {
        "the changes of such a run are for review: leave --commit out, then kennel diff and kennel commit"
            .to_owned()
    } else if run.ask {
        "it says yes to every host by itself: leave --ask out".to_owned()
    } else if policy.profile == Profile::FullDev {
        "profile full-dev shows everything already; learn with repo-write".to_owned()
    } else if let Some(source) = writable {
        format!(
            "the command must not change the host, and the policy lets it change {}; leave that grant out",
            source.display()
        )
    } else {
        return Ok(());
    };
    Err(refused(reason))
}

fn refused(reason: String) -> Error {
    PolicyError::Value { key: "--learn".to_owned(), value: String::new(), reason }.into()
}

/// A file that does not exist yet, in a directory that is held open.
struct NewFile {
    directory: OwnedFd,
    name: OsString,
    /// As the user wrote it.
    path: PathBuf,
}

impl NewFile {
    /// Checks that the file can be made, and that no command could have chosen its place.
    fn prepare(path: &Path, policy: &Policy) -> Result<Self, Error> {
        let fail = |source: io::Error, remedy: &'static str| failed(path, source, remedy);
        let is_toml = path.extension().is_some_and(|it| it == "toml");
        let name = path.file_name().filter(|_| is_toml).ok_or_else(|| {
            fail(io::ErrorKind::InvalidInput.into(), "the name must end in .toml, as that of a policy file")
        })?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let no_place = "name a file in a directory that exists";
        let directory = open(parent, flags, Mode::empty()).map_err(|errno| fail(errno.into(), no_place))?;
        let this = Self { directory, name: name.to_owned(), path: path.to_owned() };
        let real = fs::read_link(format!("/proc/self/fd/{}", this.directory.as_raw_fd()));
        let real = real.map_err(|error| fail(error, no_place))?;
        let workspace = fs::canonicalize(&policy.workspace).unwrap_or_else(|_| policy.workspace.clone());
        if real.starts_with(&workspace) {
            let error = io::Error::other(
                "commands can write to the workspace, and this file decides what they may do",
            );
            return Err(fail(
                error,
                "name a file elsewhere, such as ~/.config/kennel/NAME.toml for --policy NAME",
            ));
        }
        if fstatat(&this.directory, this.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW).is_ok() {
            return Err(fail(
                io::ErrorKind::AlreadyExists.into(),
                "name another file, or move that one away",
            ));
        }
        let writable =
            faccessat(&this.directory, ".", AccessFlags::W_OK | AccessFlags::X_OK, AtFlags::AT_EACCESS);
        writable.map_err(|errno| fail(errno.into(), "name a file in a directory where you can write"))?;
        Ok(this)
    }

    /// Makes the file. With O_EXCL, openat(2) follows no link.
    fn write(&self, text: &str) -> Result<(), Error> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let name: &OsStr = &self.name;
        let made = openat(&self.directory, name, flags, Mode::from_bits_truncate(0o600));
        let mut file = File::from(made.map_err(|errno| self.failed(errno.into()))?);
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        written.map_err(|error| {
            // Half a policy is none.
            let _ = unlinkat(&self.directory, name, UnlinkatFlags::NoRemoveDir);
            self.failed(error)
        })
    }

    fn failed(&self, source: io::Error) -> Error {
        failed(&self.path, source, "nothing was written; run it again when that is mended")
    }
}

fn failed(path: &Path, source: io::Error, remedy: &'static str) -> Error {
    Error::Grant { what: "learned policy", path: path.to_owned(), source, remedy: Some(remedy.into()) }
}

/// Whether a path can be named in a policy file.
fn is_text(path: &Path) -> bool {
    std::str::from_utf8(path.as_os_str().as_bytes()).is_ok()
}
