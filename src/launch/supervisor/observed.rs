//! Records which paths a command uses, for `learn`: seccomp_unotify(2).
//!
//! The kernel asks about each call that names a path, a thread writes the path down, and the call goes on.
//! That is safe, although the command can change the path in its memory meanwhile: the thread decides
//! nothing. The kernel checks the call afterwards as if nobody had been asked, and the filter that refuses
//! calls is another one, which wins. What the command can spoil in this way is the record of itself.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex};

use nix::errno::Errno;
use nix::poll::PollTimeout;

use crate::launch::supervisor::caller::{is_own_proc, path_at};
use crate::launch::supervisor::refused::caller;
use crate::launch::supervisor::{serve, start_thread};
use crate::plan::seccomp::observed::{Act, OBSERVED, PathCall};
use crate::report::observed::{Observed, ObservedPath};
use crate::sys;
use crate::sys::lexical::clean;
use crate::sys::locked;
use crate::view::View;

/// How many different paths are recorded, and how many bytes they may have together.
const MOST: usize = 1 << 16;
const MOST_BYTES: usize = 16 << 20;

/// How many names of programs are recorded for each path.
const MOST_NAMES: usize = 3;

/// What one command has used so far.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    log: Arc<Mutex<Log>>,
}

#[derive(Debug, Default)]
struct Log {
    paths: BTreeMap<PathBuf, ObservedPath>,
    /// The bytes of all paths.
    bytes: usize,
    is_cut: bool,
}

impl Recorder {
    /// Starts the thread that lets each call go on. `view` is what the command sees.
    ///
    /// # Errors
    /// The kernel refuses a thread.
    pub(crate) fn follow(listener: OwnedFd, view: Arc<View>) -> io::Result<Self> {
        let log = Arc::new(Mutex::new(Log::default()));
        let observer = Observer { log: Arc::clone(&log), view, knows_processes: is_own_proc() };
        start_thread("kennel-learn", move || {
            serve(&listener, PollTimeout::NONE, |listener| observer.answer(listener));
        })?;
        Ok(Self { log })
    }

    pub(crate) fn observed(&self) -> Observed {
        let log = locked(&self.log);
        Observed { paths: log.paths.values().cloned().collect(), is_cut: log.is_cut }
    }
}

impl Log {
    /// The entry of a path; `new` makes it. `None`: there is no room for it, or it is not worth one.
    fn entry(
        &mut self,
        path: &Path,
        new: impl FnOnce() -> Option<ObservedPath>,
    ) -> Option<&mut ObservedPath> {
        if !self.paths.contains_key(path) {
            let entry = new()?;
            let leads_to = entry.leads_to.as_ref().map_or(0, |path| path.as_os_str().len());
            let bytes = path.as_os_str().len() + leads_to;
            if self.paths.len() == MOST || self.bytes + bytes > MOST_BYTES {
                self.is_cut = true;
                return None;
            }
            self.bytes += bytes;
            self.paths.insert(path.to_owned(), entry);
        }
        self.paths.get_mut(path)
    }
}

/// One use of a path.
struct Use {
    path: PathBuf,
    reads: bool,
    writes: bool,
    executes: bool,
}

/// What the thread works with.
struct Observer {
    log: Arc<Mutex<Log>>,
    view: Arc<View>,
    /// Whether /proc shows the processes by the numbers that the kernel names.
    knows_processes: bool,
}

impl Observer {
    /// Records one call, and lets it go on.
    fn answer(&self, listener: BorrowedFd<'_>) -> Result<(), Errno> {
        let errno = |error: io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
        let call = sys::receive_notification(listener).map_err(errno)?;
        if let Some(used) = self.seen(&call)
            // If the call still waits, the pid was its own all the time.
            && sys::notification_is_valid(listener, call.id)
        {
            // Before the answer: when the command ends, its last use must be in the log.
            self.record(&used, &|| caller(listener, call.id, call.pid));
        }
        sys::continue_notification(listener, call.id).map_err(errno)
    }

    /// What a call uses, if it names a path.
    fn seen(&self, call: &libc::seccomp_notif) -> Option<Use> {
        if !self.knows_processes || call.pid == 0 {
            locked(&self.log).is_cut = true;
            return None;
        }
        let PathCall { directory, path, act, .. } =
            *OBSERVED.iter().find(|it| it.number == i64::from(call.data.nr))?;
        let argument = |index: usize| call.data.args.get(index).copied();
        let name = path_of(call.pid, argument(path)?)?;
        let path = match (name.is_absolute(), directory) {
            (true, _) => name,
            (false, Some(directory)) => directory_of(call.pid, argument(directory)?)?.join(name),
            (false, None) => directory_of(call.pid, AT_CURRENT)?.join(name),
        };
        let flags = match act {
            Act::Open(index) => low_half(argument(index)?),
            _ => 0,
        };
        let access = flags & libc::O_ACCMODE;
        Some(Use {
            path: without_parents(&path),
            // A file that is made or emptied, and only written to, need not be there.
            reads: matches!(act, Act::Execute) || matches!(act, Act::Open(_)) && access != libc::O_WRONLY,
            writes: act == Act::Create
                || matches!(act, Act::Open(_))
                    && (access != libc::O_RDONLY || flags & (libc::O_CREAT | libc::O_TRUNC) != 0),
            executes: act == Act::Execute,
        })
    }

    /// Adds a use to the log, with the interpreter of a script.
    fn record(&self, used: &Use, caller: &dyn Fn() -> Option<String>) {
        let interpreter =
            self.add(used, caller).filter(|_| used.executes).and_then(|file| interpreter(&file));
        if let Some(path) = interpreter.filter(|path| *path != used.path) {
            // The kernel opens it without a call of the program. It is no script itself, or the second name
            // is enough.
            self.add(&Use { path, reads: true, writes: false, executes: true }, caller);
        }
    }

    /// Adds a use, and returns where it leads. What the command does not see of the host is left out.
    fn add(&self, used: &Use, caller: &dyn Fn() -> Option<String>) -> Option<PathBuf> {
        let on_host = self.view.host_path(&used.path).filter(|_| !self.view.is_covered(&used.path))?;
        let mut log = locked(&self.log);
        let entry = log.entry(&used.path, || {
            let leads_to = fs::canonicalize(&on_host).ok().filter(|path| self.shows(path));
            // What is not there and is not to be made is only searched for.
            (leads_to.is_some() || used.writes).then(|| ObservedPath {
                path: used.path.clone(),
                is_dir: leads_to.as_ref().is_some_and(|path| path.is_dir()),
                leads_to,
                was_read: false,
                was_written: false,
                count: 0,
                by: BTreeSet::new(),
            })
        })?;
        entry.count = entry.count.saturating_add(1);
        entry.was_read |= used.reads;
        entry.was_written |= used.writes;
        if entry.by.len() < MOST_NAMES && entry.count < MOST_LOOKS {
            entry.by.extend(caller());
        }
        entry.leads_to.clone()
    }

    /// Whether the command sees this path of the host at the same path.
    fn shows(&self, path: &Path) -> bool {
        self.view.host_path(path).is_some_and(|shown| shown == path) && !self.view.is_covered(path)
    }
}

/// How many calls for one path are looked at for the name of the program.
const MOST_LOOKS: u64 = 32;

/// AT_FDCWD as an argument.
const AT_CURRENT: u64 = libc::AT_FDCWD.cast_unsigned() as u64;

/// An argument that the kernel cuts to `int`.
#[expect(clippy::cast_possible_truncation, reason = "the kernel cuts it the same way")]
fn low_half(argument: u64) -> i32 {
    (argument as u32).cast_signed()
}

/// The text at an address of a process. `None` if it is no path, or empty: then the call is about a
/// descriptor.
fn path_of(pid: u32, address: u64) -> Option<PathBuf> {
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    path_at(&memory, address).ok().filter(|path| !path.as_os_str().is_empty())
}

/// The directory that a descriptor of a process names, as the process sees it.
fn directory_of(pid: u32, descriptor: u64) -> Option<PathBuf> {
    let link = match low_half(descriptor) {
        libc::AT_FDCWD => format!("/proc/{pid}/cwd"),
        number => format!("/proc/{pid}/fd/{number}"),
    };
    fs::read_link(link).ok().filter(|path| path.is_absolute())
}

/// `path` without `..`: each one leads up from where the links before it lead.
fn without_parents(path: &Path) -> PathBuf {
    let mut here = PathBuf::from("/");
    for part in clean(path).components() {
        match part {
            Component::ParentDir => {
                here = fs::canonicalize(&here).unwrap_or(here);
                here.pop();
            }
            Component::Normal(name) => here.push(name),
            _ => {}
        }
    }
    here
}

/// The interpreter that a script names in its first line.
fn interpreter(file: &Path) -> Option<PathBuf> {
    // Opening a pipe would wait.
    let file = fs::metadata(file).is_ok_and(|it| it.is_file()).then(|| File::open(file).ok())??;
    let mut start = [0; 256];
    let read = file.read_at(&mut start, 0).ok()?;
    let line = start.get(..read)?.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let word = line.split(|byte| matches!(byte, b' ' | b'\t')).find(|word| !word.is_empty())?;
    let path = PathBuf::from(OsString::from_vec(word.to_vec()));
    path.is_absolute().then(|| without_parents(&path))
}
