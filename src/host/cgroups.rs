//! Facts about cgroup v2: its controllers, and which cgroups this process may use. Changes nothing.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};
use nix::unistd::{AccessFlags, faccessat};
use procfs::process::Process;

use crate::host::mounts::mounts;

/// A controller of cgroup v2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Controller {
    Memory,
    Pids,
    Cpu,
    Io,
    Cpuset,
}

impl Controller {
    pub(crate) const ALL: [Self; 5] = [Self::Memory, Self::Pids, Self::Cpu, Self::Io, Self::Cpuset];

    /// Its name in cgroup v1.
    const fn name_of_v1(self) -> &'static str {
        match self {
            Self::Io => "blkio",
            other => other.name(),
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
            Self::Io => "io",
            Self::Cpuset => "cpuset",
        }
    }

    /// The controllers in a list of the kernel: names separated by white space.
    pub(crate) fn listed(list: &str) -> Vec<Self> {
        Self::ALL
            .into_iter()
            .filter(|known| list.split_whitespace().any(|name| name == known.name()))
            .collect()
    }

    /// The controllers among names of cgroup v1.
    pub(crate) fn of_v1(names: &[String]) -> Vec<Self> {
        Self::ALL.into_iter().filter(|known| names.iter().any(|name| name == known.name_of_v1())).collect()
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A file of a cgroup and the value to write to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CgroupSetting {
    pub(crate) file: &'static str,
    pub(crate) value: String,
    /// Whether the kernel may lack the file. Then it also lacks what the setting limits.
    pub(crate) may_lack: bool,
}

impl CgroupSetting {
    pub(crate) fn new(file: &'static str, value: impl fmt::Display) -> Self {
        Self { file, value: value.to_string(), may_lack: false }
    }

    /// A setting whose file the kernel may lack.
    pub(crate) fn where_there(file: &'static str, value: impl fmt::Display) -> Self {
        Self { may_lack: true, ..Self::new(file, value) }
    }
}

// The hierarchy, as this process may use it. These are plain facts, so a test can describe a host that it
// does not run on. `plan::cgroup` decides.

/// The cgroup v2 hierarchy and the position of this process in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cgroups {
    /// The mounted root.
    pub(crate) top: Option<CgroupDirectory>,
    /// The cgroup of this process.
    pub(crate) own: Option<CgroupDirectory>,
    /// The parent of that cgroup.
    pub(crate) parent: Option<CgroupDirectory>,
    /// Controllers that cgroup v1 uses, so that v2 cannot.
    pub(crate) of_v1: Vec<Controller>,
}

/// One cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CgroupDirectory {
    pub(crate) path: PathBuf,
    /// Controllers that it could enable for its children: cgroup.controllers.
    pub(crate) offers: Vec<Controller>,
    /// Controllers that it has enabled for its children: cgroup.subtree_control.
    pub(crate) gives: Vec<Controller>,
    /// Whether the caller may create children in it and enable controllers for them.
    pub(crate) writable: bool,
    /// Whether the caller may move processes from its own cgroup to children of this one: cgroups(7),
    /// "delegation containment".
    pub(crate) reachable: bool,
    /// Whether the service manager marked it as delegated.
    pub(crate) marked: bool,
    /// Whether it is the root of the hierarchy. The root may have both processes and children.
    pub(crate) is_root: bool,
    /// Whether the caller may not write to the parent. If it may write to this one, somebody delegated this
    /// one to it.
    pub(crate) is_edge: bool,
    /// Number of processes in it besides this one.
    pub(crate) others: usize,
    /// Whether this process is in it.
    pub(crate) holds_us: bool,
}

impl Cgroups {
    /// Reads the current state. The result is empty if no hierarchy is mounted or /proc is not readable.
    pub(crate) fn look() -> Self {
        let Ok(myself) = Process::myself() else { return Self::default() };
        let cgroups = myself.cgroups().map(|cgroups| cgroups.0).unwrap_or_default();
        let of_v1 = cgroups.iter().filter(|cgroup| cgroup.hierarchy != 0);
        let names: Vec<String> = of_v1.flat_map(|cgroup| cgroup.controllers.iter().cloned()).collect();
        let of_v1 = Controller::of_v1(&names);
        let place = || {
            let unified = cgroups.iter().find(|cgroup| cgroup.hierarchy == 0)?;
            let mut unified_at = mounts().ok()?.into_iter().filter(|mount| mount.fs_type == "cgroup2");
            unified_at.find_map(|mount| {
                let below = Path::new(&unified.pathname).strip_prefix(&mount.root).ok()?;
                let is_usable =
                    below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
                is_usable.then(|| {
                    (mount.mount_point.clone(), mount.mount_point.join(below).components().collect())
                })
            })
        };
        let Some((top, own)): Option<(PathBuf, PathBuf)> = place() else {
            return Self { of_v1, ..Self::default() };
        };
        let parent = own.parent().filter(|parent| parent.starts_with(&top));
        Self {
            parent: parent.map(|parent| CgroupDirectory::look(parent, &own, &top)),
            own: Some(CgroupDirectory::look(&own, &own, &top)),
            top: Some(CgroupDirectory::look(&top, &own, &top)),
            of_v1,
        }
    }

    /// Reads the cgroup at a path that the policy names.
    ///
    /// # Errors
    /// If the path is no directory of cgroup v2.
    pub(crate) fn at(&self, path: &Path) -> io::Result<CgroupDirectory> {
        let path = fs::canonicalize(path)?;
        if !path.is_dir() {
            return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
        }
        if statfs(&path)?.filesystem_type() != CGROUP2_SUPER_MAGIC {
            return Err(io::Error::other("it is not on a cgroup v2 file system"));
        }
        let of = |spot: &Option<CgroupDirectory>| {
            spot.as_ref().map_or_else(PathBuf::new, |spot| spot.path.clone())
        };
        Ok(CgroupDirectory::look(&path, &of(&self.own), &of(&self.top)))
    }
}

impl CgroupDirectory {
    fn look(path: &Path, own: &Path, top: &Path) -> Self {
        let read = |name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
        let processes = read("cgroup.procs");
        let myself = std::process::id().to_string();
        let holds_us = processes.lines().any(|pid| pid == myself);
        Self {
            offers: Controller::listed(&read("cgroup.controllers")),
            gives: Controller::listed(&read("cgroup.subtree_control")),
            writable: ["", "cgroup.procs", "cgroup.subtree_control"]
                .iter()
                .all(|name| is_writable(&path.join(name))),
            reachable: common(path, own)
                .filter(|common| common.starts_with(top))
                .is_some_and(|common| is_writable(&common.join("cgroup.procs"))),
            marked: ["user.delegate", "trusted.delegate"].iter().any(|name| is_marked(path, name)),
            // Only the root has no cgroup.type: cgroups(7).
            is_root: !path.join("cgroup.type").exists(),
            is_edge: !path.parent().is_some_and(|above| is_writable(&above.join("cgroup.procs"))),
            others: processes.lines().count() - usize::from(holds_us),
            holds_us,
            path: path.to_owned(),
        }
    }
}

/// Whether the extended attribute is 1. Cgroups have such attributes since Linux 5.7.
fn is_marked(path: &Path, name: &str) -> bool {
    matches!(xattr::get_deref(path, name), Ok(Some(value)) if value == b"1")
}

/// The lowest directory that is above both or is one of them.
fn common(one: &Path, other: &Path) -> Option<PathBuf> {
    one.ancestors().find(|above| other.starts_with(above)).map(Path::to_owned)
}

fn is_writable(path: &Path) -> bool {
    faccessat(AT_FDCWD, path, AccessFlags::W_OK, AtFlags::AT_EACCESS).is_ok()
}

/// Name of the cgroup to which the embedding program moves if it must leave the delegated one. It stays
/// there: a process cannot remove its own cgroup, and the service manager removes it together with the
/// delegated one.
pub(crate) const HOST: &str = "kennel-host";

/// The file that lists the processors of a cgroup.
pub(crate) const CPUS: &str = "cpuset.cpus";

#[cfg(test)]
mod find_tests {
    use super::*;

    #[test]
    fn what_is_above_both_is_found_by_whole_names() {
        let common = |one: &str, other: &str| super::common(one.as_ref(), other.as_ref()).expect("a root");
        assert_eq!(common("/c/a/b", "/c/a/d/e"), Path::new("/c/a"));
        assert_eq!(common("/c/a", "/c/a/d"), Path::new("/c/a"));
        assert_eq!(common("/c/a", "/c/ab"), Path::new("/c"));
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        let found = Cgroups::look();
        // A cgroup of this process implies a root.
        assert_eq!(found.own.is_some(), found.top.is_some());
        if let (Some(own), Some(top)) = (&found.own, &found.top) {
            assert!(
                own.path.starts_with(&top.path)
                    && own.reachable == is_writable(&own.path.join("cgroup.procs"))
            );
        }
    }

    #[test]
    fn a_path_that_is_no_cgroup_is_refused() {
        let none = Cgroups::default();
        let refused = |path: &str| none.at(path.as_ref()).expect_err(path).to_string();
        assert_eq!(refused("/tmp"), "it is not on a cgroup v2 file system");
        assert!(refused("/nonexistent").starts_with("No such file"));
        assert!(refused("/etc/passwd").starts_with("Not a directory"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_are_read() {
        use Controller::{Cpu, Io, Memory, Pids};
        assert_eq!(Controller::listed("cpuset_x cpu io memory hugetlb pids\n"), [Memory, Pids, Cpu, Io]);
        assert_eq!(Controller::listed(""), []);
        let of_v1 = ["cpuset", "cpu", "cpuacct", "blkio", "net_cls"].map(str::to_owned);
        assert_eq!(Controller::of_v1(&of_v1), [Cpu, Io, Controller::Cpuset]);
    }
}
