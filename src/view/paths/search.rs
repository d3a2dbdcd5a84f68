//! Searches a directory of the host for what patterns match. It follows no link, and it only reads.
//!
//! Commands of earlier sandboxes can make any number of directories, of any depth. So a search has bounds.
//! What it cannot look into counts as a match.

use std::io;
use std::path::{Path, PathBuf};

use nix::dir::Type;
use nix::fcntl::OFlag;

use crate::policy::glob::{Pattern, Progress};
use crate::report::error::Error;
use crate::report::failure;
use crate::report::failure::shown;
use crate::report::shortage::{is_shortage, of_call};
use crate::sys::dirfd;
use crate::sys::file_system::FileSystem;
use crate::view::View;

/// Entries that all searches of one start look at. A million takes a second or more.
const MOST_ENTRIES: u32 = 1_000_000;

/// Matches of all searches of one start. Each needs a mount for every command.
const MOST_MATCHES: u32 = 512;

/// How deep a directory may be below the start, in parts and in bytes: as for other protected paths.
const DEEPEST: usize = 63;
const LONGEST: usize = 2047;

/// How much searches may still look at and find.
#[derive(Debug)]
pub(crate) struct SearchBudget {
    entries: u32,
    matches: u32,
}

impl Default for SearchBudget {
    fn default() -> Self {
        Self { entries: MOST_ENTRIES, matches: MOST_MATCHES }
    }
}

/// The result of a search. Paths are relative to its start, except those in `listed`.
#[derive(Debug, Default)]
pub(crate) struct SearchResult {
    /// What matches. Nothing in it is below another match.
    pub(crate) matches: Vec<PathBuf>,
    /// The matches that could not be looked into, and why.
    pub(crate) closed: Vec<(PathBuf, String)>,
    /// For each pattern, whether it matches something, or may match something in what could not be looked
    /// into.
    pub(crate) is_matched: Vec<bool>,
    /// Directories of the host whose new entries may match.
    pub(crate) listed: Vec<PathBuf>,
}

/// Why a search was given up.
#[derive(Debug)]
pub(crate) struct SearchError {
    /// The index of the pattern.
    pub(crate) pattern: usize,
    source: io::Error,
    remedy: &'static str,
}

impl SearchError {
    /// The error about `pattern`, which messages call `what`.
    pub(crate) fn about(self, what: &'static str, pattern: &Path) -> Error {
        let remedy = Some(self.remedy.into());
        Error::Grant { what, path: pattern.to_owned(), source: self.source, remedy }
    }
}

/// A pattern, and how far the directory where a search begins matches it.
pub(crate) struct StartedPattern<'p> {
    pub(crate) pattern: &'p Pattern,
    pub(crate) progress: Progress,
}

impl<'p> StartedPattern<'p> {
    /// A pattern whose first part matches names in the directory where the search begins.
    pub(crate) fn new(pattern: &'p Pattern) -> Self {
        Self { pattern, progress: pattern.start() }
    }
}

/// Searches below `root`, which has no link in it, for `patterns`. If there is no such directory, nothing is
/// found.
///
/// # Errors
/// A bound is reached; `root` cannot be listed; something ran out.
pub(crate) fn search(
    root: &Path,
    patterns: &[StartedPattern<'_>],
    budget: &mut SearchBudget,
) -> Result<SearchResult, SearchError> {
    let mut found = SearchResult { is_matched: vec![false; patterns.len()], ..SearchResult::default() };
    let start = patterns.iter().map(|it| it.progress).collect();
    let mut pending = vec![Pending { path: PathBuf::new(), progress: start, is_taken: false }];
    while let Some(directory) = pending.pop() {
        if directory.is_taken && found.is_matched.iter().all(|is_matched| *is_matched) {
            continue;
        }
        let Pending { path, progress, is_taken } = &directory;
        let is_root = path.as_os_str().is_empty();
        let at = if is_root { root.to_owned() } else { root.join(path) };
        if path.iter().count() > DEEPEST || path.as_os_str().len() > LONGEST {
            found.close(directory, "it is too deep".to_owned(), budget)?;
            continue;
        }
        let entries = match list(&at, directory.first(), budget) {
            Ok(entries) => entries,
            Err(ListError::Gone) => continue,
            Err(ListError::Search(error)) => return Err(error),
            Err(ListError::Closed(source)) if is_root => {
                let remedy = "give yourself access to the directory where its search starts";
                return Err(SearchError { pattern: directory.first(), source, remedy });
            }
            Err(ListError::Closed(error)) => {
                found.close(directory, failure::words(&error), budget)?;
                continue;
            }
        };
        found.listed.push(at);
        for (name, may_be_directory) in entries {
            let next = patterns.iter().zip(progress).map(|(it, at)| it.pattern.next(*at, &name));
            let (progress, is_match): (Vec<Progress>, Vec<bool>) = next.unzip();
            found.is_matched.iter_mut().zip(&is_match).for_each(|(all, one)| *all |= one);
            let first = is_match.iter().position(|is_match| *is_match).filter(|_| !is_taken);
            let entry = Pending { path: path.join(name), progress, is_taken: *is_taken || first.is_some() };
            if let Some(first) = first {
                budget.count_match(first)?;
                found.matches.push(entry.path.clone());
            }
            if may_be_directory && entry.progress.iter().any(|progress| !progress.is_over()) {
                pending.push(entry);
            }
        }
    }
    found.matches.sort();
    Ok(found)
}

/// A directory to look into.
struct Pending {
    path: PathBuf,
    progress: Vec<Progress>,
    /// Whether it matches, or is in something that does. It is looked into for other patterns that match
    /// nothing yet.
    is_taken: bool,
}

impl Pending {
    /// The first pattern that may match in it.
    fn first(&self) -> usize {
        self.progress.iter().position(|progress| !progress.is_over()).unwrap_or(0)
    }
}

impl SearchResult {
    /// Notes the directories below `base` that could not be looked into, if there are some. `what` follows
    /// "searched", and `effect` is what happens to all that is in them.
    pub(crate) fn note_closed(&self, view: &mut View, base: &Path, what: &str, effect: &str) {
        let Some((first, why)) = self.closed.first() else { return };
        let more = self.closed.len() - 1;
        let others = if more > 0 { format!("; {more} more as well") } else { String::new() };
        let text = format!("could not be searched{what} ({why}): all of it is {effect}{others}");
        view.note(&shown(&base.join(first)), &text, Some("give yourself access to it, or remove it".into()));
    }

    /// Takes a directory that cannot be looked into as a match.
    fn close(&mut self, at: Pending, why: String, budget: &mut SearchBudget) -> Result<(), SearchError> {
        for (is_matched, progress) in self.is_matched.iter_mut().zip(&at.progress) {
            *is_matched |= !progress.is_over();
        }
        if !at.is_taken {
            budget.count_match(at.first())?;
            self.matches.push(at.path.clone());
            self.closed.push((at.path, why));
        }
        Ok(())
    }
}

impl SearchBudget {
    fn count_match(&mut self, pattern: usize) -> Result<(), SearchError> {
        self.matches = self.matches.checked_sub(1).ok_or_else(|| SearchError {
            pattern,
            source: io::Error::other(format!("there are more than {MOST_MATCHES} matches")),
            remedy: "name the directory around them: each match is a mount for every command",
        })?;
        Ok(())
    }

    fn count_entry(&mut self, pattern: usize) -> Result<(), SearchError> {
        self.entries = self.entries.checked_sub(1).ok_or_else(|| SearchError {
            pattern,
            source: io::Error::other(format!("there are more than {MOST_ENTRIES} files to look at")),
            remedy: "begin it with a directory, as in src/**/*.key",
        })?;
        Ok(())
    }
}

/// Why a directory was not listed.
enum ListError {
    /// It is none, or not any more, or an interface of the kernel, which the sandbox shows empty.
    Gone,
    /// The caller may not list it, or it cannot be read.
    Closed(io::Error),
    Search(SearchError),
}

/// The names in a directory, each with whether it may be a directory.
fn list(
    path: &Path,
    pattern: usize,
    budget: &mut SearchBudget,
) -> Result<Vec<(std::ffi::OsString, bool)>, ListError> {
    let failed = |source: io::Error| match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP) => ListError::Gone,
        Some(errno) if is_shortage(errno) => {
            let remedy = of_call(&source).unwrap_or_default();
            ListError::Search(SearchError { pattern, source, remedy })
        }
        _ => ListError::Closed(source),
    };
    let held = dirfd::open_without_links(path, OFlag::O_DIRECTORY).map_err(failed)?;
    if FileSystem::of(&held).is_ok_and(FileSystem::is_of_kernel) {
        return Err(ListError::Gone);
    }
    let mut entries = Vec::new();
    for entry in dirfd::listing(&held).map_err(failed)?.iter() {
        let entry = entry.map_err(|errno| failed(errno.into()))?;
        let Some(name) = dirfd::name(&entry) else { continue };
        budget.count_entry(pattern).map_err(ListError::Search)?;
        entries.push((name, matches!(entry.file_type(), None | Some(Type::Directory))));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::report::remedy::Wording;

    fn found(root: &Path, texts: &[&str]) -> Result<SearchResult, SearchError> {
        let patterns: Vec<Pattern> =
            texts.iter().map(|text| Pattern::read(Path::new(text)).expect(text)).collect();
        let patterns: Vec<_> = patterns.iter().map(StartedPattern::new).collect();
        search(&fs::canonicalize(root).expect("its name"), &patterns, &mut SearchBudget::default())
    }

    fn tree(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
            fs::write(path, "x").expect("a file");
        }
        dir
    }

    #[test]
    fn a_search_finds_what_matches_and_nothing_below_it() {
        let dir = tree(&["a.key", "d/b.key", "d/e/.env", "x.key/y.key", ".git/c.key", "d/other"]);
        let found = found(dir.path(), &["*.key", "**/.env", "none*", "x.key/y*"]).expect("found");
        let expected = ["a.key", "d/b.key", "d/e/.env", "x.key"].map(PathBuf::from);
        assert_eq!(found.matches, expected);
        assert_eq!(found.is_matched, [true, true, false, true], "what is inside of a match counts");
        assert!(found.closed.is_empty());
    }

    #[test]
    fn only_directories_in_which_something_can_match_are_entered() {
        let dir = tree(&["src/a.key", "target/b.key", "src/deep/c.key"]);
        let found = found(dir.path(), &["src/*.key"]).expect("found");
        assert_eq!(found.matches, [PathBuf::from("src/a.key")]);
        assert_eq!(found.listed.len(), 2, "the root and src: {:?}", found.listed);
    }

    #[test]
    fn no_link_is_followed_and_a_link_can_match() {
        let (dir, outside) = (tree(&["f"]), tree(&["a.key"]));
        symlink(outside.path(), dir.path().join("out")).expect("a link");
        symlink(dir.path(), dir.path().join("loop")).expect("a link");
        symlink("f", dir.path().join("b.key")).expect("a link");
        assert_eq!(found(dir.path(), &["*.key"]).expect("found").matches, [PathBuf::from("b.key")]);
        assert_eq!(found(dir.path(), &["out/*.key"]).expect("found").matches, Vec::<PathBuf>::new());
    }

    #[test]
    fn a_fifo_does_not_stop_a_search() {
        let dir = tree(&["a.key"]);
        nix::unistd::mkfifo(&dir.path().join("b.key"), nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        assert_eq!(found(dir.path(), &["*.key"]).expect("found").matches.len(), 2);
    }

    #[test]
    fn what_is_too_deep_or_closed_counts_as_a_match() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut at = fs::canonicalize(dir.path()).expect("its name");
        (0..100).for_each(|_| at.push("d"));
        fs::create_dir_all(&at).expect("directories");
        let deep = found(dir.path(), &["*.key"]).expect("found");
        let expected: PathBuf = std::iter::repeat_n("d", 64).collect();
        assert_eq!(deep.matches, std::slice::from_ref(&expected));
        assert_eq!(deep.closed, [(expected, "it is too deep".to_owned())]);
        assert_eq!(deep.is_matched, [true]);

        let dir = tree(&["closed/a.key", "open/b.key"]);
        let closed = dir.path().join("closed");
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).expect("chmod");
        let found =
            dirfd::without_capabilities(|| Ok(found(dir.path(), &["**/b.key", "open/*"]))).expect("rights");
        let found = found.expect("found");
        // Root owns it here, and an owner without rights is refused, too.
        assert_eq!(found.matches, ["closed", "open/b.key"].map(PathBuf::from));
        assert_eq!(found.closed.len(), 1);
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("chmod");
    }

    #[test]
    fn too_many_matches_are_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        (0..=MOST_MATCHES).for_each(|n| fs::write(dir.path().join(format!("{n}.key")), "").expect("a file"));
        let error = found(dir.path(), &["none", "*.key"]).expect_err("too many");
        assert_eq!(error.pattern, 1);
        let lines = error.about("mask", Path::new("*.key")).lines(Wording::default()).join("\n");
        assert!(lines.contains("mask *.key: there are more than 512 matches"), "{lines}");
    }

    #[test]
    fn no_directory_is_no_match_and_a_closed_start_is_an_error() {
        let dir = tree(&["f"]);
        assert!(found(dir.path(), &["f/*"]).expect("found").matches.is_empty());
        let pattern = Pattern::read(Path::new("*")).expect("a pattern");
        let started = [StartedPattern::new(&pattern)];
        let gone = search(&dir.path().join("none"), &started, &mut SearchBudget::default());
        assert!(gone.expect("found").matches.is_empty());
    }
}
