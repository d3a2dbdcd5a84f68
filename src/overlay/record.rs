//! The record of kept changes: to which workspace they belong, since when, and what a commit of them must
//! leave alone. It is a file beside the changes. No command sees it.

use std::fs::{File, Metadata};
use std::io;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::Mode;
use serde::{Deserialize, Serialize};

use crate::overlay::ledger_state::LedgerState;
use crate::plan::overlay::Merged;
use crate::policy::Policy;
use crate::policy::glob::Pattern;
use crate::policy::profile::{Git, Profile};
use crate::protect::commit_rule::CommitRule;
use crate::report::error::overlay::OverlayError;
use crate::sys::dirfd::open_without_links;
use crate::sys::path_text::PathText;

/// The name of the file.
pub(crate) const RECORD: &str = "record.json";

/// The file while it is written.
pub(crate) const UNFINISHED: &str = "record.json.new";

/// Everything that is known of kept changes. In the file, the heading is a line of its own: a list of many
/// needs no more.
#[derive(Clone, Debug)]
pub(crate) struct LedgerRecord {
    pub(crate) heading: Heading,
    pub(crate) state: LedgerState,
}

/// Whose changes these are, and what a commit of them must leave alone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Heading {
    /// The path of the workspace.
    pub(crate) workspace: PathText,
    device: u64,
    inode: u64,
    /// When the directory was made, in nanoseconds since 1970. Device numbers may change when the machine
    /// starts.
    born: Option<u64>,
    /// What the last commands ran with.
    pub(crate) profile: Profile,
    pub(crate) git: Git,
    /// What no command was allowed to change, of all of them.
    pub(crate) rules: Vec<CommitRule>,
    pub(crate) patterns: Vec<PathText>,
}

impl Heading {
    /// For commands with this policy.
    ///
    /// # Errors
    /// The workspace cannot be read.
    pub(crate) fn of(policy: &Policy, merged: &Merged) -> io::Result<Self> {
        let path = &merged.workspace.path;
        let metadata = File::from(open_without_links(path, OFlag::O_DIRECTORY)?).metadata()?;
        Ok(Self {
            workspace: PathText(path.clone()),
            device: metadata.dev(),
            inode: metadata.ino(),
            born: born(&metadata),
            profile: policy.profile,
            git: policy.git,
            rules: merged.never.clone(),
            patterns: merged.patterns.iter().map(|pattern| PathText(pattern.text())).collect(),
        })
    }

    /// Whether this and `other` are about the same directory at the same path.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        let file = |it: &Self| (it.device, it.inode, it.born);
        self.workspace == other.workspace && is_same(file(self), file(other))
    }

    /// Whether the changes belong to this directory, whatever its path.
    pub(crate) fn is_about(&self, metadata: &Metadata) -> bool {
        is_same((self.device, self.inode, self.born), (metadata.dev(), metadata.ino(), born(metadata)))
    }

    /// Takes over the settings of later commands. What was protected before stays so, because earlier
    /// commands may have written there.
    pub(crate) fn follow(&mut self, later: Self) {
        (self.profile, self.git, self.device) = (later.profile, later.git, later.device);
        self.add(&later.rules, &later.patterns);
    }

    fn add(&mut self, rules: &[CommitRule], patterns: &[PathText]) {
        for rule in rules {
            if !self.rules.contains(rule) {
                self.rules.push(rule.clone());
            }
        }
        for pattern in patterns {
            if !self.patterns.contains(pattern) {
                self.patterns.push(pattern.clone());
            }
        }
    }

    /// What no command was allowed to change.
    ///
    /// # Errors
    /// A text is no pattern.
    pub(crate) fn protected(&self) -> io::Result<CommitProtected> {
        let read = |text: &PathText| Pattern::of_text(&text.0).map_err(io::Error::other);
        let patterns = self.patterns.iter().map(read).collect::<io::Result<_>>()?;
        Ok(CommitProtected { never: self.rules.clone(), patterns })
    }

    /// Reads the heading of the record in a directory with changes; `None` if there is none.
    ///
    /// # Errors
    /// It is unreadable.
    pub(crate) fn read(directory: impl AsFd) -> io::Result<Option<Self>> {
        let Some(file) = opened(directory)? else { return Ok(None) };
        let mut line = String::new();
        BufReader::new(file).read_line(&mut line)?;
        Ok(Some(serde_json::from_str(&line)?))
    }

    /// Opens the workspace.
    ///
    /// # Errors
    /// Another directory is at its path, or none.
    pub(crate) fn open_workspace(&self) -> Result<OwnedFd, OverlayError> {
        let path = &self.workspace.0;
        let replaced = || OverlayError::Replaced { path: path.clone() };
        let failed = |source: io::Error| OverlayError::io("open the workspace", path, source);
        let held = match open_without_links(path, OFlag::O_DIRECTORY) {
            Err(error) if is_gone(&error) => return Err(replaced()),
            held => File::from(held.map_err(failed)?),
        };
        let metadata = held.metadata().map_err(failed)?;
        if self.is_about(&metadata) { Ok(held.into()) } else { Err(replaced()) }
    }
}

fn opened(directory: impl AsFd) -> io::Result<Option<File>> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    match openat(directory, RECORD, flags, Mode::empty()) {
        Err(Errno::ENOENT) => Ok(None),
        file => Ok(Some(File::from(file?))),
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP))
}

fn born(metadata: &Metadata) -> Option<u64> {
    let since = metadata.created().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_nanos()).ok().filter(|&born| born > 0)
}

type FileMark = (u64, u64, Option<u64>);

fn is_same((device, inode, born): FileMark, (other_device, other_inode, other_born): FileMark) -> bool {
    inode == other_inode
        && match (born, other_born) {
            (Some(born), Some(other)) => born == other,
            _ => device == other_device,
        }
}

impl LedgerRecord {
    /// For changes that do not exist yet.
    pub(crate) fn new(heading: Heading) -> Self {
        Self { heading, state: LedgerState::default() }
    }

    /// Reads the record in a directory with changes; `None` if there is none.
    ///
    /// # Errors
    /// It is unreadable.
    pub(crate) fn read(directory: impl AsFd) -> io::Result<Option<Self>> {
        let Some(mut file) = opened(directory)? else { return Ok(None) };
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let (heading, state) = text.split_once('\n').ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(Some(Self { heading: serde_json::from_str(heading)?, state: serde_json::from_str(state)? }))
    }

    /// Writes the record. It is there as a whole or as it was.
    ///
    /// # Errors
    /// A full disk.
    pub(crate) fn write(&self, directory: impl AsFd) -> io::Result<()> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let directory = directory.as_fd();
        let mut file = File::from(openat(directory, UNFINISHED, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
        let mut text = serde_json::to_vec(&self.heading)?;
        text.push(b'\n');
        serde_json::to_writer(&mut text, &self.state)?;
        file.write_all(&text)?;
        file.sync_data()?;
        Ok(renameat(directory, UNFINISHED, directory, RECORD)?)
    }
}

/// What a commit must leave alone.
#[derive(Clone, Debug)]
pub(crate) struct CommitProtected {
    pub(crate) never: Vec<CommitRule>,
    pub(crate) patterns: Vec<Pattern>,
}

impl CommitProtected {
    /// Adds what is protected by now.
    pub(crate) fn and(mut self, merged: Merged) -> Self {
        self.never.extend(merged.never);
        self.patterns.extend(merged.patterns);
        self
    }

    /// Whether a pattern of the policy protects `path`.
    pub(crate) fn is_matched(&self, path: &Path) -> bool {
        self.patterns.iter().any(|pattern| pattern.covers(path))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_list_reads_no_more_than_headings() {
        let directory = tempfile::tempdir().expect("a directory");
        let workspace = PathText(directory.path().to_owned());
        let (profile, git) = (Profile::RepoWrite, Git::default());
        let heading = Heading {
            workspace,
            device: 1,
            inode: 2,
            born: None,
            profile,
            git,
            rules: Vec::new(),
            patterns: Vec::new(),
        };
        let held = || File::open(directory.path()).expect("a directory");
        LedgerRecord::new(heading.clone()).write(held()).expect("written");
        assert!(
            LedgerRecord::read(held()).expect("read").is_some_and(|record| record.heading.is_of(&heading))
        );
        let path = directory.path().join(RECORD);
        let text = fs::read_to_string(&path).expect("text");
        let line = text.split_inclusive('\n').next().expect("a line");
        fs::write(&path, format!("{line}no state")).expect("written");
        assert!(Heading::read(held()).expect("read").is_some_and(|read| read.is_of(&heading)));
        LedgerRecord::read(held()).expect_err("no state");
    }
}
