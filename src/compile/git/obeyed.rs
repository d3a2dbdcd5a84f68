//! What git outside obeys below a directory: who writes these has git run commands of his choice.
//!
//! Commands wrote there before, and prepare what is looked at here. What cannot be looked at is not absent, and what a
//! command can take away for a while is no sign.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

use super::{
    is_repository,
    parts::{PARTS, obeyed_in},
    read_small,
};
use crate::host::remedy::is_shortage;

/// What git obeys in a repository.
pub(super) const OBEYED: &[&str] = &["hooks", "config", "commondir", "config.worktree"];

/// What `git init` writes into every `config`.
const OF_GIT: &str = "repositoryformatversion";

/// What git outside obeys below a directory, which the paths are relative to.
#[derive(Debug, Default)]
pub(in crate::compile) struct Obeyed {
    pub(in crate::compile) paths: Vec<PathBuf>,
    /// Directories, there or not, in which others of git's are put: what is added is obeyed too.
    pub(in crate::compile) listed: Vec<PathBuf>,
    /// Those of `paths` that were not looked at in full, and stand for all that is in them.
    pub(in crate::compile) unseen: Vec<PathBuf>,
}

impl Obeyed {
    /// What git outside obeys in `.git`, in `base` itself where that looks like a repository, which anybody who may write
    /// there can arrange, and in those of `pointed` that lie in it.
    ///
    /// # Errors
    /// A shortage, by which it cannot be known.
    pub(in crate::compile) fn below(base: &Path, pointed: &[PathBuf]) -> io::Result<Self> {
        let mut repositories = vec![Path::new(".git")];
        if may_be_repository(base).map(Some).or_else(unless_shortage)?.unwrap_or(false) {
            repositories.push(Path::new(""));
        }
        repositories.extend(pointed.iter().filter_map(|repository| repository.strip_prefix(base).ok()));
        repositories.sort_unstable();
        repositories.dedup();
        let mut obeyed = Self::default();
        repositories.into_iter().try_for_each(|repository| obeyed.take_repository(base, repository))?;
        // A worktree that is pointed to is one of its repository too.
        let mut seen = BTreeSet::new();
        obeyed.paths.retain(|path| seen.insert(path.clone()));
        Ok(obeyed)
    }

    fn take_repository(&mut self, base: &Path, repository: &Path) -> io::Result<()> {
        self.paths.extend(OBEYED.iter().map(|name| repository.join(name)));
        for (name, holds) in PARTS {
            let part = repository.join(name);
            if let Some(found) = obeyed_in(base, &part, holds).map(Some).or_else(unless_shortage)? {
                self.paths.extend(found.paths);
                self.listed.extend(found.listed);
            } else {
                self.paths.push(part.clone());
                self.unseen.push(part);
            }
        }
        Ok(())
    }
}

/// Whether `path` is a repository, or would be again if somebody put back what he took away: its config stays where it is,
/// because it is protected.
///
/// # Errors
/// It cannot be looked at.
fn may_be_repository(path: &Path) -> io::Result<bool> {
    if is_repository(path) {
        return Ok(true);
    }
    let config = read_small(&path.join("config"))?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&config).to_ascii_lowercase().contains(OF_GIT))
}

/// `None` for what stays as it is.
///
/// # Errors
/// There is not enough of something, which may be otherwise in a moment.
fn unless_shortage<T>(error: io::Error) -> io::Result<Option<T>> {
    if error.raw_os_error().is_some_and(is_shortage) { Err(error) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::{
        super::{Pointers, parts::MOST_ENTRIES},
        *,
    };

    /// A directory with these empty files, and directories where the name ends with `/`, below `.git`.
    fn with(names: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for name in names {
            let path = dir.path().join(".git").join(name);
            match name.ends_with('/') {
                true => fs::create_dir_all(path).expect("a directory"),
                false => fs::write(path, "").expect("a file"),
            }
        }
        dir
    }

    fn obeyed(base: &Path) -> Obeyed {
        let pointers = Pointers::of(base).expect("they may be looked at");
        Obeyed::below(base, &pointers.repositories).expect("no shortage")
    }

    fn has(paths: &[PathBuf], below: &str) -> bool {
        paths.contains(&Path::new(".git").join(below))
    }

    #[test]
    fn too_many_directories_are_protected_as_one() {
        for (below, deepest) in [("worktrees", "commondir"), ("modules", "config")] {
            let one = ["0/objects/", "0/refs/", "0/HEAD"].map(|name| format!("{below}/{name}"));
            let dir = with(&one.each_ref().map(String::as_str));
            let deepest = format!("{below}/0/{deepest}");
            let found = obeyed(dir.path());
            assert!(has(&found.paths, &deepest) && !has(&found.paths, below) && found.unseen.is_empty());
            for number in 1..=MOST_ENTRIES {
                fs::write(dir.path().join(".git").join(below).join(number.to_string()), "")
                    .expect("an entry");
            }
            let found = obeyed(dir.path());
            assert!(has(&found.paths, below) && !has(&found.paths, &deepest) && has(&found.unseen, below));
        }
    }

    #[test]
    fn what_cannot_be_looked_at_is_protected_as_a_whole() {
        if nix::unistd::geteuid().is_root() {
            return;
        }
        for (below, closed) in
            [("worktrees", "worktrees"), ("modules", "modules"), ("modules", "modules/sub")]
        {
            for mode in [0, 0o300, 0o400] {
                let dir = with(&[&format!("{closed}/x/")]);
                let closed = dir.path().join(".git").join(closed);
                let set =
                    |mode| fs::set_permissions(&closed, fs::Permissions::from_mode(mode)).expect("ours");
                set(mode);
                let found = obeyed(dir.path());
                set(0o700);
                assert!(has(&found.unseen, below) && has(&found.paths, below), "{below} {mode:o}: {found:?}");
            }
        }
    }

    #[test]
    fn a_submodule_without_head_is_still_one() {
        let dir = with(&["modules/sub/objects/", "modules/sub/refs/"]);
        fs::write(dir.path().join(".git/modules/sub/config"), "[core]\n\trepositoryFormatVersion = 0\n")
            .expect("a file");
        assert!(has(&obeyed(dir.path()).paths, "modules/sub/hooks"));
        fs::create_dir_all(dir.path().join("bare/info")).expect("a directory");
        fs::rename(dir.path().join(".git/modules/sub/config"), dir.path().join("bare/config"))
            .expect("renamed");
        assert!(obeyed(&dir.path().join("bare")).paths.contains(&"hooks".into()));
    }

    #[test]
    fn a_directory_of_submodules_cannot_be_made_one() {
        let dir = with(&["modules/tools/sub/objects/", "modules/tools/sub/refs/", "modules/tools/sub/HEAD"]);
        let found = obeyed(dir.path());
        for path in ["modules/tools/config", "modules/tools/HEAD", "modules/tools/sub/config"] {
            assert!(has(&found.paths, path), "{path}: {found:?}");
        }
        assert!(!has(&found.paths, "modules/tools/hooks"));
        let dir = with(&[
            "modules/tools/config/objects/",
            "modules/tools/config/refs/",
            "modules/tools/config/HEAD",
        ]);
        assert!(!has(&obeyed(dir.path()).paths, "modules/tools/config"), "it is a submodule");
        assert!(
            !has(&obeyed(with(&["modules/new/"]).path()).paths, "modules/new/config"),
            "it may become one"
        );
        for path in ["worktrees", "modules", "modules/tools", "modules/tools/sub/modules"] {
            assert!(has(&found.listed, path), "{path}: {found:?}");
        }
    }

    /// As somebody can lay it around those that are there, or while the user adds them.
    #[test]
    fn what_only_looks_like_a_repository_hides_none() {
        let sub = ["modules/tools/sub/objects/", "modules/tools/sub/refs/", "modules/tools/sub/HEAD"];
        for around in [
            &["modules/tools/config"][..],
            &["modules/tools/objects/", "modules/tools/refs/", "modules/tools/HEAD"],
            &["modules/tools/HEAD/", "modules/tools/config/"],
        ] {
            let names: Vec<&str> = sub.iter().chain(around).copied().collect();
            let found = obeyed(with(&names).path());
            for path in ["modules/tools/sub/config", "modules/tools/HEAD", "modules/tools/config"] {
                assert!(has(&found.paths, path), "{around:?}, {path}: {found:?}");
            }
        }
        let hooks = ["modules/tools/hooks/objects/", "modules/tools/hooks/refs/", "modules/tools/hooks/HEAD"];
        let around = ["modules/tools/objects/", "modules/tools/refs/", "modules/tools/HEAD"];
        let dir = with(&[hooks, around].concat());
        assert!(has(&obeyed(dir.path()).paths, "modules/tools/hooks/config"));
        fs::write(dir.path().join(".git/modules/tools/HEAD"), "ref: refs/heads/x\n").expect("a file");
        assert!(!has(&obeyed(dir.path()).paths, "modules/tools/hooks/config"), "git would not make that");
        fs::create_dir(dir.path().join("elsewhere")).expect("a directory");
        std::os::unix::fs::symlink("../../elsewhere", dir.path().join(".git/modules/link")).expect("a link");
        assert!(has(&obeyed(dir.path()).unseen, "modules"), "nobody follows it");
    }

    #[test]
    fn whatever_its_config_says_a_submodule_is_one() {
        let dir = with(&["modules/sub/", "modules/sub/config"]);
        assert!(has(&obeyed(dir.path()).paths, "modules/sub/hooks"));
    }

    /// As for a directory of worktrees beside their repository, or one that was made by `--separate-git-dir`.
    #[test]
    fn a_repository_that_git_is_pointed_to_is_one() {
        let dir = with(&[]);
        let at = |name: &str| dir.path().join(name);
        for name in ["bare/worktrees/main", "bare/modules/sub/objects", "bare/modules/sub/refs"] {
            fs::create_dir_all(at(name)).expect("a directory");
        }
        fs::write(at("bare/modules/sub/HEAD"), "").expect("a file");
        fs::write(at("bare/worktrees/main/commondir"), "../..\n").expect("a file");
        fs::write(at(".git"), "gitdir: ./bare\n").expect("a file");
        let of_pointer = obeyed(dir.path()).paths;
        for path in ["bare/hooks", "bare/config", "bare/modules/sub/config", "bare/worktrees/main/commondir"]
        {
            assert!(of_pointer.contains(&path.into()), "{path}: {of_pointer:?}");
        }
        fs::write(at(".git"), format!("gitdir: {}\n", at("bare/worktrees/main").display())).expect("a file");
        let of_worktree = obeyed(dir.path()).paths;
        assert!(of_worktree.contains(&"bare/hooks".into()), "{of_worktree:?}");
        let elsewhere = tempfile::tempdir().expect("a temporary directory");
        assert_eq!(obeyed(elsewhere.path()).paths.len(), OBEYED.len(), "it lies elsewhere");
    }
}
