//! Which paths a command uses, for `learn`. The filter that refuses calls is another one, which wins.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex};

use nix::fcntl::OFlag;
use nix::sys::stat::fstat;

use crate::launch::supervisor::caller::{WaitingThread, is_own_proc};
use crate::launch::supervisor::refused::caller_name;
use crate::plan::seccomp::observed::{Act, OBSERVED};
use crate::report::observed::{Observed, ObservedPath};
use crate::sys;
use crate::sys::dirfd::open_without_links;
use crate::sys::inode::{FileKind, kind};
use crate::sys::lexical::clean;
use crate::sys::locked;
use crate::sys::own_path;
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
    view: Arc<View>,
    /// Whether /proc shows the processes by the numbers that the kernel names.
    knows_processes: bool,
}

#[derive(Debug, Default)]
struct Log {
    paths: BTreeMap<PathBuf, ObservedPath>,
    /// The bytes of all paths.
    bytes: usize,
    is_cut: bool,
}

impl Recorder {
    /// `view` is what the command sees.
    pub(crate) fn new(view: Arc<View>) -> Self {
        Self { log: Arc::default(), view, knows_processes: is_own_proc() }
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

impl Recorder {
    /// Records one call, which goes on.
    pub(crate) fn add(&self, listener: BorrowedFd<'_>, call: &libc::seccomp_notif) {
        if let Some(used) = self.seen(listener, call)
            // If the call still waits, what was read is its own.
            && sys::notification_is_valid(listener, call.id)
        {
            self.record(&used, &|| caller_name(listener, call.id, call.pid));
        }
    }

    /// What a call uses, if it names a path.
    fn seen(&self, listener: BorrowedFd<'_>, call: &libc::seccomp_notif) -> Option<Use> {
        if !self.knows_processes || call.pid == 0 {
            locked(&self.log).is_cut = true;
            return None;
        }
        let by = OBSERVED.iter().find(|it| it.number == i64::from(call.data.nr))?;
        let is_use = matches!(by.act, Act::Open(_) | Act::Create | Act::Execute | Act::Enter | Act::Look);
        let caller = WaitingThread::of(listener, call).ok().filter(|_| is_use)?;
        let file = caller.named(call, by)?;
        let access = file.flags & OFlag::O_ACCMODE;
        Some(Use {
            path: without_parents(&caller.absolute(&file)?),
            // A file that is made or emptied, and only written to, need not be there.
            reads: by.act == Act::Execute || matches!(by.act, Act::Open(_)) && access != OFlag::O_WRONLY,
            writes: access != OFlag::O_RDONLY || file.flags.intersects(OFlag::O_CREAT | OFlag::O_TRUNC),
            executes: by.act == Act::Execute,
        })
    }

    /// Adds a use to the log, with the interpreter of a script.
    fn record(&self, used: &Use, caller: &dyn Fn() -> Option<String>) {
        let interpreter =
            self.add_use(used, caller).filter(|_| used.executes).and_then(|file| interpreter(&file));
        if let Some(path) = interpreter.filter(|path| *path != used.path) {
            // The kernel opens it without a call of the program. It is no script itself, or the second name
            // is enough.
            self.add_use(&Use { path, reads: true, writes: false, executes: true }, caller);
        }
    }

    /// Adds a use, and returns where it leads. What the command does not see of the host is left out.
    fn add_use(&self, used: &Use, caller: &dyn Fn() -> Option<String>) -> Option<PathBuf> {
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
    // Opening a pipe would wait, and the command can put one there at any time.
    let held = open_without_links(file, OFlag::empty()).ok()?;
    let is_file = kind(&fstat(&held).ok()?) == FileKind::File;
    let file = is_file.then(|| File::open(own_path(&held)).ok())??;
    let mut start = [0; 256];
    let read = file.read_at(&mut start, 0).ok()?;
    let line = start.get(..read)?.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let word = line.split(|byte| matches!(byte, b' ' | b'\t')).find(|word| !word.is_empty())?;
    let path = PathBuf::from(OsString::from_vec(word.to_vec()));
    path.is_absolute().then(|| without_parents(&path))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::mpsc;
    use std::time::Duration;

    use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
    use nix::sys::stat::Mode;

    use super::*;

    /// The command can replace a script at any time.
    #[test]
    fn a_pipe_in_place_of_a_script_keeps_nobody_waiting() {
        let host = tempfile::Builder::new().prefix("kennel-test-").tempdir_in("/tmp").expect("a directory");
        let (script, pipe) = (host.path().join("script"), host.path().join("pipe"));
        fs::write(&script, "#!/bin/sh\n").expect("a script");
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).expect("a pipe");
        let is_over = Arc::new(AtomicBool::new(false));
        let swapping = {
            let (script, is_over) = (script.clone(), Arc::clone(&is_over));
            std::thread::spawn(move || {
                while !is_over.load(Relaxed) {
                    let swap = RenameFlags::RENAME_EXCHANGE;
                    renameat2(AT_FDCWD, &script, AT_FDCWD, &pipe, swap).expect("swapped");
                }
            })
        };
        let (ended, end) = mpsc::channel();
        std::thread::spawn(move || {
            let found = (0..50_000).filter_map(|_| interpreter(&script)).count();
            ended.send(found)
        });
        let found = end.recv_timeout(Duration::from_secs(30));
        is_over.store(true, Relaxed);
        swapping.join().expect("the other thread");
        assert!(found.expect("an end") > 0);
    }
}
