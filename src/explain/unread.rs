//! Typed files that are read-only, and whether anybody has read them since: inotify(7).
//!
//! Hints cannot see what a command does with a path. But a command that reads a file has what it wanted of
//! it: `grep`, or Python with a script. `rm`, `touch` and `sed -i` fail before they read any. Whoever reads
//! the file from outside only prevents a hint.

use std::path::PathBuf;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

/// How many files are watched.
const MOST: usize = 8;

/// The files of one command.
#[derive(Debug)]
pub(crate) struct Unread {
    inotify: Inotify,
    /// The paths as commands see them.
    files: Vec<(WatchDescriptor, PathBuf)>,
}

impl Unread {
    /// Watches files: each by its path in the sandbox and outside. `None` if there are none, or the kernel
    /// grants this user no more.
    pub(crate) fn watch(files: impl Iterator<Item = (PathBuf, PathBuf)>) -> Option<Self> {
        let mut files = files.take(MOST).peekable();
        files.peek()?;
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok()?;
        // One event is enough. So a command cannot fill the queue.
        let how = AddWatchFlags::IN_ACCESS | AddWatchFlags::IN_ONESHOT | AddWatchFlags::IN_DONT_FOLLOW;
        let watched =
            files.filter_map(|(path, outside)| Some((inotify.add_watch(&outside, how).ok()?, path)));
        let files = watched.collect();
        Some(Self { inotify, files })
    }

    /// Those that nobody has read. It tells once.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let mut unread = self.files.clone();
        // Each watch has two events, the second of which is its end.
        for _ in 0..=2 * MOST {
            let Ok(events) = self.inotify.read_events() else { break };
            unread.retain(|(watch, _)| events.iter().all(|event| event.wd != *watch));
        }
        unread.into_iter().map(|(_, path)| path).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_or_directory_that_was_read_is_left_out() {
        let host = tempfile::Builder::new().prefix("kennel-test-").tempdir_in("/tmp").expect("a directory");
        let at = |name: &str| host.path().join(name);
        for name in ["read", "held", "written"] {
            fs::write(at(name), "x").expect("a file");
        }
        for name in ["listed", "entered"] {
            fs::create_dir(at(name)).expect("a directory");
        }
        let names = ["read", "held", "written", "listed", "entered", "nothing"];
        let unread = Unread::watch(names.into_iter().map(|name| (name.into(), at(name)))).expect("a watch");
        for _ in 0..10_000 {
            fs::read(at("read")).expect("read");
            fs::read_dir(at("listed")).expect("listed").for_each(drop);
        }
        drop(fs::File::open(at("held")).expect("open"));
        fs::write(at("written"), "y").expect("written");
        fs::metadata(at("entered").join(".")).expect("entered");
        let expected: [PathBuf; 3] = ["held".into(), "written".into(), "entered".into()];
        assert_eq!(unread.paths(), expected);
        assert!(Unread::watch(std::iter::empty()).is_none());
    }
}
