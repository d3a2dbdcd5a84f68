//! The kept changes of a workspace, as a person reviews them: found, listed, shown, committed, discarded.
//!
//! They are in `$XDG_STATE_HOME/kennel/changes`, one directory for each workspace and session. No command
//! sees that directory; commands see the workspace with the changes.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use sha2::{Digest as _, Sha256};

use crate::caller::Caller;
use crate::host::Host;
use crate::overlay::apply;
use crate::overlay::claim::{Claim, open_own};
use crate::overlay::ledger::Ledger;
use crate::overlay::part::{self, LayerDirectories};
use crate::overlay::record::{Heading, LedgerRecord};
use crate::overlay::review::Review;
use crate::overlay::scan::ChangedEntry;
use crate::overlay::tree::{OverlayTree, ReadableTree};
use crate::plan::compile;
use crate::plan::overlay::Merged;
use crate::policy::Policy;
use crate::policy::overlay::Overlay;
use crate::policy::profile::{Caches, OnUnavailable, Toolchains};
use crate::report::change::{Change, Committed, Conflicts, Discarded};
use crate::report::error::Error;
use crate::report::error::overlay::OverlayError;
use crate::sys::dirfd::without_capabilities;
use crate::view::cache_store::{self, UPPER};
use crate::view::inputs::SandboxKind;

/// A directory that was made in this time may be one for a session that begins.
const LATELY: Duration = Duration::from_secs(60);

/// What commands changed in a workspace and nobody has committed or discarded yet.
///
/// Commands add to it with a policy whose [`Overlay`] [keeps](Overlay::keeps) changes in the
/// [directory](Self::directory):
///
/// ```no_run
/// # async fn example() -> Result<(), kennel::Error> {
/// use kennel::{Overlay, Policy, Profile, Session, overlay::{Conflicts, KeptChanges}};
///
/// let upper = Some(KeptChanges::directory("/home/me/repo".as_ref(), None)?);
/// let overlay = Overlay { upper, keeps: true, ..Overlay::default() };
/// let policy = Policy::profile(Profile::RepoWrite, "/home/me/repo").overlay(overlay);
/// let session = Session::prepare(&policy).await?;
/// session.command("./refactor.sh").status().await?;
/// drop(session);
///
/// if let Some(kept) = KeptChanges::find("/home/me/repo".as_ref())? {
///     kept.commit(&["src".into()], Conflicts::Refuse)?;
///     kept.discard(&[])?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptChanges {
    /// The workspace that they belong to.
    pub workspace: PathBuf,
    /// The session whose commands made them; `None` for commands without one.
    pub session: Option<String>,
    /// The directory that holds them.
    pub directory: PathBuf,
}

impl KeptChanges {
    /// The directory for kept changes of `workspace`, for commands without a session or for those of the
    /// session with that name. Creates it.
    ///
    /// # Errors
    /// It cannot be created, or others may write there; the workspace was moved, and has changes under its
    /// old path.
    pub fn directory(workspace: &Path, session: Option<&str>) -> Result<PathBuf, Error> {
        let caller = Caller::current();
        let workspace = resolve(&caller, workspace)?;
        let base = base(&caller);
        let failed = |source: io::Error| OverlayError::io("make a directory for changes in", &base, source);
        let name = key(&workspace, session);
        if !base.join(&name).exists() {
            refuse_moved(&caller, &workspace, session)?;
        }
        Ok(make(&caller, &base, &name).map_err(failed)?)
    }

    /// The kept changes of commands without a session, in the nearest workspace at or above `path`.
    ///
    /// # Errors
    /// They cannot be read. The workspace was moved, and has changes under its old path.
    pub fn find(path: &Path) -> Result<Option<Self>, Error> {
        let caller = Caller::current();
        // A workspace that is gone is named by its path.
        let path = resolve(&caller, path).unwrap_or_else(|_| caller.absolute(path).components().collect());
        for workspace in path.ancestors() {
            if let Some(found) = Self::at(&base(&caller).join(key(workspace, None)))? {
                return Ok(Some(found));
            }
        }
        for above in path.ancestors() {
            refuse_moved(&caller, above, None)?;
        }
        Ok(None)
    }

    /// The kept changes in `directory`; `None` if there are none.
    ///
    /// # Errors
    /// They cannot be read, or belong to another user.
    pub fn at(directory: &Path) -> Result<Option<Self>, Error> {
        let directory = match fs::canonicalize(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            directory => directory.map_err(Error::io("read kept changes"))?,
        };
        let heading = Heading::read(open_own(&directory)?);
        let heading =
            heading.map_err(|source| OverlayError::io("read the kept changes in", &directory, source))?;
        let session = session_of(&directory);
        Ok(heading.map(|heading| Self { workspace: heading.workspace.0, session, directory }))
    }

    /// All kept changes of the caller, by workspace and session.
    ///
    /// # Errors
    /// The directory of all of them cannot be read.
    pub fn all() -> Result<Vec<Self>, Error> {
        let base = base(&Caller::current());
        let entries = match fs::read_dir(&base) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(Error::io("read kept changes"))?,
        };
        let mut all = Vec::new();
        for entry in entries.flatten() {
            match Self::at(&entry.path()) {
                Ok(Some(found)) => all.push(found),
                Ok(None) if is_old(&entry) => Self::drop_unused(&entry.path()),
                // A command begins right now.
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "kept changes cannot be read"),
            }
        }
        all.sort_by(|one, other| (&one.workspace, &one.session).cmp(&(&other.workspace, &other.session)));
        Ok(all)
    }

    /// Opens the changes to look at them. A running command may add to them meanwhile: then files in
    /// directories that their owner may not enter cannot be read.
    ///
    /// # Errors
    /// The workspace was moved or replaced; a change cannot be read; there are too many.
    pub fn review(&self) -> Result<Review, Error> {
        let failed =
            |source: io::Error| OverlayError::io("read the kept changes in", &self.directory, source);
        let directory = open_own(&self.directory)?;
        let mut record = LedgerRecord::read(&directory).map_err(failed)?.ok_or(OverlayError::None)?;
        let upper = OverlayTree { root: directory.as_fd() }
            .open(Path::new(UPPER), OFlag::O_PATH | OFlag::O_DIRECTORY)
            .map_err(|errno| failed(errno.into()))?;
        without_capabilities(|| part::settle(&upper, &mut record.state)).map_err(OverlayError::list)?;
        let ledger = Ledger::of_kept(record, upper, None)?;
        let found = apply::found_as_it_is(&ledger).map_err(OverlayError::list)?;
        let is_closed = |found: &ChangedEntry| found.unreadable == Some(Errno::EACCES);
        let opened = if found.iter().any(is_closed) { self.look(changes).transpose()? } else { None };
        let changes = opened.unwrap_or_else(|| found.iter().map(ChangedEntry::change).collect());
        Ok(Review { kept: self.clone(), ledger, changes })
    }

    /// Drops what is no change. Returns the changes. Call it when the session has ended.
    ///
    /// # Errors
    /// As [`review`](Self::review); [`OverlayError::InUse`] while a session uses them.
    pub fn settle(&self) -> Result<Vec<Change>, Error> {
        let Some(ledger) = self.claim()? else { return Ok(Vec::new()) };
        let found = changes(&ledger)?;
        self.put_back(&ledger, &found)?;
        Ok(found)
    }

    /// Applies the changes at `paths` and below them to the workspace, or all changes if there are no paths.
    /// Paths are relative to the workspace. What is applied or equal is no longer kept.
    ///
    /// Everything that [`Session::commit`](crate::session::Session::commit) says holds. Protected are the
    /// paths that were so when the commands ran, and those that are so now. With [`Conflicts::Overwrite`], it
    /// replaces what others changed there meanwhile.
    ///
    /// # Errors
    /// As [`settle`](Self::settle). Nothing was applied then.
    pub fn commit(&self, paths: &[PathBuf], conflicts: Conflicts) -> Result<Committed, Error> {
        let Some(ledger) = self.claim()? else { return Ok(Committed::default()) };
        let committed = commit(&ledger, paths, conflicts)?;
        let refused = committed.refused.iter().map(|refused| &refused.change);
        let mut left: Vec<Change> = committed.left.iter().chain(refused).cloned().collect();
        left.sort_by(|one, other| one.path.cmp(&other.path));
        self.put_back(&ledger, &left)?;
        Self::drop_unused(&self.directory);
        Ok(committed)
    }

    /// Drops the changes at `paths` and below them, or all changes if there are no paths. Paths are relative
    /// to the workspace.
    ///
    /// # Errors
    /// As [`settle`](Self::settle).
    pub fn discard(&self, paths: &[PathBuf]) -> Result<Discarded, Error> {
        if paths.is_empty() {
            // Changes of a directory that is gone, or too many to list, are dropped unseen.
            let dropped = self.review().map(|review| review.changes).unwrap_or_default();
            if let Some(claim) = self.lock()? {
                self.clear(&claim)?;
            }
            Self::drop_unused(&self.directory);
            return Ok(Discarded { dropped, left: Vec::new() });
        }
        let Some(ledger) = self.claim()? else { return Ok(Discarded::default()) };
        let found = changes(&ledger)?;
        let done = without_capabilities(|| {
            let mut state = ledger.state();
            let [changed, workspace] = [ledger.upper(), ledger.workspace()].map(ReadableTree::new);
            let layer = LayerDirectories { changed: &changed, workspace: &workspace, state: &state };
            let mut concerned = paths.iter().filter(|path| part::is_any(&found, path));
            let discarded = concerned.try_for_each(|path| layer.discard(path));
            state.note_closed(workspace.close());
            discarded
        });
        done.map_err(OverlayError::list)?;
        let is_meant = |found: &Change| paths.iter().any(|path| found.path.starts_with(path));
        let (dropped, left): (Vec<_>, Vec<_>) = found.into_iter().partition(is_meant);
        self.put_back(&ledger, &left)?;
        Self::drop_unused(&self.directory);
        Ok(Discarded { dropped, left })
    }

    /// Looks at what has to be opened up. That changes its times, which the next commit must not take for the
    /// work of others. `None` while a session uses the changes.
    pub(crate) fn look<T>(&self, at: impl FnOnce(&Ledger) -> T) -> Option<T> {
        let claim = Claim::of_kept(&self.directory, false).ok().flatten()?;
        let ledger = self.ledger(claim).ok().flatten()?;
        let seen = at(&ledger);
        if let Err(error) = ledger.save(&ledger.state()) {
            tracing::warn!(%error, "the next commit may take this look for changes by others");
        }
        Some(seen)
    }

    /// Locks the changes; `None` if there are none any more.
    fn lock(&self) -> Result<Option<Claim>, OverlayError> {
        Claim::of_kept(&self.directory, true).map_err(|error| match (error, &self.session) {
            (OverlayError::InUse { .. }, Some(name)) => OverlayError::InSession { name: name.clone() },
            (error, _) => error,
        })
    }

    /// Claims the changes; `None` if there are none any more.
    fn claim(&self) -> Result<Option<Ledger>, OverlayError> {
        self.lock()?.map_or(Ok(None), |claim| self.ledger(claim))
    }

    fn ledger(&self, claim: Claim) -> Result<Option<Ledger>, OverlayError> {
        let Some(mut record) = claim.record().cloned() else { return Ok(None) };
        let failed =
            |source: io::Error| OverlayError::io("read the kept changes in", &self.directory, source);
        let upper = claim.upper().map_err(failed)?;
        without_capabilities(|| part::settle(&upper, &mut record.state)).map_err(OverlayError::list)?;
        Ok(Some(Ledger::of_kept(record, upper, Some(claim))?))
    }

    /// Drops what is no change, and writes down the rest.
    fn put_back(&self, ledger: &Ledger, left: &[Change]) -> Result<(), OverlayError> {
        if left.is_empty() {
            return ledger.claim().map_or(Ok(()), |claim| self.clear(claim));
        }
        let pruned = without_capabilities(|| {
            let mut state = ledger.state();
            let [changed, workspace] = [ledger.upper(), ledger.workspace()].map(ReadableTree::new);
            let layer = LayerDirectories { changed: &changed, workspace: &workspace, state: &state };
            let pruned = layer.prune(left, Path::new(""));
            state.note_closed(workspace.close());
            pruned
        });
        pruned.map_err(|source| OverlayError::io("tidy up the kept changes in", &self.directory, source))?;
        let mut state = ledger.state();
        // A later command that changes a path of these begins anew.
        state.bases.retain(|path, _| part::is_any(left, path));
        ledger.save(&state)
    }

    /// Removes everything.
    fn clear(&self, claim: &Claim) -> Result<(), OverlayError> {
        let cleared = claim.clear();
        cleared.map_err(|source| OverlayError::io("remove the kept changes in", &self.directory, source))
    }

    /// Removes a [directory](Self::directory) for changes that holds none, if Kennel chose it.
    pub fn drop_unused(directory: &Path) {
        let of = |path: &Path| fs::canonicalize(path).ok();
        let is_own = directory.parent().and_then(of) == of(&base(&Caller::current()));
        if is_own && let Err(error) = fs::remove_dir(directory) {
            tracing::debug!(%error, "a directory for kept changes stays");
        }
    }
}

/// Commits changes of a ledger, and writes that down.
///
/// # Errors
/// The changes cannot be listed, or what is protected now is unknown. Nothing was applied then.
pub(crate) fn commit(ledger: &Ledger, paths: &[PathBuf], conflicts: Conflicts) -> Result<Committed, Error> {
    let protected = ledger.protected().clone();
    let protected = match ledger.claim() {
        Some(claim) if let Some(record) = claim.record() => {
            protected.and(protected_now(claim.path(), &record.heading)?)
        }
        _ => protected,
    };
    let committed = apply::commit_of(ledger, &protected, paths, conflicts).map_err(OverlayError::list)?;
    if let Err(error) = ledger.save(&ledger.state()) {
        tracing::warn!(%error, "the next session may take this commit for changes by others");
    }
    Ok(committed)
}

/// What is protected in a workspace now: others may have made a repository there since the commands ran.
fn protected_now(directory: &Path, heading: &Heading) -> Result<Merged, Error> {
    let overlay = Overlay { upper: Some(directory.to_owned()), keeps: true, size: None };
    let policy = Policy {
        git: heading.git,
        toolchains: Toolchains::None,
        caches: Caches::None,
        on_unavailable: OnUnavailable::Degrade,
        ..Policy::profile(heading.profile, &heading.workspace.0).overlay(overlay)
    };
    let (host, caller) = (Host::detect_for(&policy), Caller::current());
    let compiled = compile::compile(&policy, &host, &caller, SandboxKind::Session { ready: 0 })?;
    Ok(compiled.overlay.ok_or(OverlayError::None)?)
}

/// All changes of a ledger, sorted by path.
fn changes(ledger: &Ledger) -> Result<Vec<Change>, OverlayError> {
    let found = apply::found(ledger).map_err(OverlayError::list)?;
    Ok(found.iter().map(ChangedEntry::change).collect())
}

// Where kept changes are.

/// The directory of all kept changes.
fn base(caller: &Caller) -> PathBuf {
    let state = caller.path_in("XDG_STATE_HOME").unwrap_or_else(|| caller.home.join(".local/state"));
    state.join("kennel/changes")
}

const OF_SESSION: &str = "session-";

/// The name of the directory for changes of a workspace. Paths can be too long for a name.
fn key(workspace: &Path, session: Option<&str>) -> String {
    let hash = Sha256::digest(workspace.as_os_str().as_encoded_bytes());
    let hash: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    match session {
        Some(session) => format!("{OF_SESSION}{session}-{hash}"),
        None => format!("run-{hash}"),
    }
}

/// The session in the name of a directory.
fn session_of(directory: &Path) -> Option<String> {
    let name = directory.file_name()?.to_str()?.strip_prefix(OF_SESSION)?;
    Some(name.rsplit_once('-')?.0.to_owned())
}

fn resolve(caller: &Caller, workspace: &Path) -> Result<PathBuf, Error> {
    let absolute = caller.absolute(workspace);
    let resolved = fs::canonicalize(&absolute);
    Ok(resolved.map_err(|source| OverlayError::io("open the workspace", &absolute, source))?)
}

/// Whether nobody has used a directory lately.
fn is_old(entry: &fs::DirEntry) -> bool {
    let changed = entry.metadata().and_then(|metadata| metadata.modified()).ok();
    changed.and_then(|changed| changed.elapsed().ok()).is_some_and(|age| age > LATELY)
}

/// Creates the directory `name` for changes in `base`. Follows no link below the base of the user's state.
fn make(caller: &Caller, base: &Path, name: &str) -> io::Result<PathBuf> {
    let state = cache_store::base_of(base.ancestors().nth(2).unwrap_or(base))?;
    cache_store::open_closed(caller, &state, ["kennel", "changes", name].map(OsStr::new))?;
    Ok(state.join("kennel/changes").join(name))
}

/// Refuses a directory that was moved, if it has changes under its old path.
fn refuse_moved(caller: &Caller, workspace: &Path, session: Option<&str>) -> Result<(), Error> {
    let Ok(entries) = fs::read_dir(base(caller)) else { return Ok(()) };
    let Ok(metadata): io::Result<Metadata> = fs::metadata(workspace) else { return Ok(()) };
    for entry in entries.flatten() {
        let Ok(directory) = open_own(&entry.path()) else { continue };
        let Ok(Some(heading)) = Heading::read(&directory) else { continue };
        let is_other = heading.workspace.0 != workspace && session_of(&entry.path()).as_deref() == session;
        if is_other && heading.is_about(&metadata) {
            let (from, to) = (heading.workspace.0, workspace.to_owned());
            return Err(OverlayError::Moved { from, to }.into());
        }
    }
    Ok(())
}
