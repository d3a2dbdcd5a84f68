//! Mounts: what is visible, or hidden, in a sandbox in addition to its profile. Plain data; nothing here
//! opens a path.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::policy::glob;
use crate::policy::glob::Pattern;
use crate::policy::path::{check_source, check_target, check_text};
use crate::policy::units::{Size, check_size};
use crate::report::error::policy::PolicyError;
use crate::report::failure::shown;

/// One thing made visible, or hidden, in the file tree of the sandbox.
///
/// Targets are paths inside the sandbox and absolute; sources are paths of the host.
///
/// ```
/// use kennel::{Mount, Policy, Profile};
///
/// let data = Mount::ReadOnly { source: "/srv/data".into(), target: Some("/data".into()) };
/// let policy = Policy::profile(Profile::ReadOnly, "/home/me/repo").mount(data);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type")]
pub enum Mount {
    /// A file or directory of the host, with everything below it, read-only.
    #[serde(rename = "ro")]
    ReadOnly {
        /// The path on the host.
        source: PathBuf,
        /// The path in the sandbox; `None`: the same path.
        target: Option<PathBuf>,
    },
    /// A file or directory of the host, with everything below it, writable.
    #[serde(rename = "rw")]
    ReadWrite {
        /// The path on the host.
        source: PathBuf,
        /// The path in the sandbox; `None`: the same path.
        target: Option<PathBuf>,
    },
    /// An empty, writable directory in memory.
    #[serde(rename = "tmpfs")]
    Tmpfs {
        /// The path in the sandbox.
        target: PathBuf,
        /// How many bytes it holds; `None`: as [`Limits::tmp_size`](crate::policy::limits::Limits::tmp_size).
        size: Option<Size>,
    },
    /// Hides what would be visible at a path: a directory becomes empty, a file unreadable. Nothing need be
    /// there.
    #[serde(rename = "mask")]
    Mask {
        /// The path to hide, or a pattern of paths: see [`Policy::protect`](crate::policy::Policy::protect).
        /// A pattern without a slash means every such name in the workspace; any other path is absolute.
        path: PathBuf,
    },
    /// A read-only file with the given contents.
    #[serde(rename = "file")]
    File {
        /// The path in the sandbox.
        target: PathBuf,
        /// At most 16 MiB.
        contents: String,
        /// Whether the file is executable.
        executable: bool,
    },
    /// A symbolic link.
    #[serde(rename = "symlink")]
    Symlink {
        /// The path of the link in the sandbox.
        target: PathBuf,
        /// The contents of the link; the path need not exist.
        points_to: PathBuf,
    },
    /// A device node of the host's `/dev`, at the same path.
    #[serde(rename = "device")]
    Device {
        /// A path below `/dev`.
        path: PathBuf,
    },
    /// Another new procfs, besides the one at `/proc`.
    #[serde(rename = "proc")]
    Proc {
        /// The path in the sandbox.
        target: PathBuf,
    },
}

/// Largest [`Mount::File`], in bytes.
const FILE_MAX: usize = 16 << 20;

impl Mount {
    /// The path in the sandbox: the target, or the source of a mount without a target.
    pub fn target(&self) -> &Path {
        match self {
            Mount::ReadOnly { source, target } | Mount::ReadWrite { source, target } => {
                target.as_ref().unwrap_or(source)
            }
            Mount::Tmpfs { target, .. } | Mount::File { target, .. } => target,
            Mount::Symlink { target, .. } | Mount::Proc { target } => target,
            Mount::Mask { path } | Mount::Device { path } => path,
        }
    }

    /// A mask of `path`. If it is relative, it starts at `directory`, but a pattern without a slash stays as
    /// it is.
    ///
    /// ```
    /// use kennel::Mount;
    ///
    /// let mask = |path: &str| Mount::mask_in("/home/me/repo".as_ref(), path.as_ref());
    /// assert_eq!(mask("keys"), Mount::Mask { path: "/home/me/repo/keys".into() });
    /// assert_eq!(mask("**/.env"), Mount::Mask { path: "/home/me/repo/**/.env".into() });
    /// assert_eq!(mask("*.key"), Mount::Mask { path: "*.key".into() });
    /// ```
    pub fn mask_in(directory: &Path, path: &Path) -> Mount {
        let mut path = path.to_owned();
        if !glob::is_name(&path) && !path.as_os_str().is_empty() {
            path = glob::join(directory, &path).components().collect();
        }
        Mount::Mask { path }
    }

    /// Checks each mount of a policy, and whether two mounts conflict at one path.
    pub(crate) fn check_all(mounts: &[Mount]) -> Result<(), PolicyError> {
        let mut seen = BTreeMap::new();
        for (index, mount) in mounts.iter().enumerate() {
            mount.check(&format!("mounts[{index}]"))?;
            match seen.insert(mount.target(), mount) {
                Some(first) if !first.is_same(mount) => {
                    let target = mount.target().to_owned();
                    return Err(PolicyError::Conflict {
                        target,
                        first: first.describe(),
                        second: mount.describe(),
                    });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check(&self, key: &str) -> Result<(), PolicyError> {
        let target_key = format!("{key}.target");
        match self {
            Mount::ReadOnly { source, target } | Mount::ReadWrite { source, target } => {
                let writable = matches!(self, Mount::ReadWrite { .. });
                check_source(&format!("{key}.source"), source, writable)?;
                target.as_ref().map_or(Ok(()), |target| check_target(&target_key, target))
            }
            Mount::Tmpfs { target, size } => {
                check_target(&target_key, target)?;
                check_size(&format!("{key}.size"), *size)
            }
            Mount::File { target, contents, .. } => {
                check_target(&target_key, target)?;
                check_contents(&format!("{key}.contents"), contents)
            }
            Mount::Symlink { target, points_to } => {
                check_target(&target_key, target)?;
                check_text(&format!("{key}.points_to"), points_to)
            }
            Mount::Mask { path } => check_mask(&format!("{key}.path"), path),
            Mount::Device { path } => check_device(&format!("{key}.path"), path),
            Mount::Proc { target } => check_target(&target_key, target),
        }
    }

    /// Whether two mounts with the same target do the same. A missing target equals the source written twice.
    fn is_same(&self, other: &Mount) -> bool {
        match (self, other) {
            (Mount::ReadOnly { source, .. }, Mount::ReadOnly { source: other, .. })
            | (Mount::ReadWrite { source, .. }, Mount::ReadWrite { source: other, .. }) => source == other,
            _ => self == other,
        }
    }

    /// The kind of the mount with its source or size, for messages about conflicts.
    fn describe(&self) -> String {
        match self {
            Mount::ReadOnly { source, .. } => format!("ro {}", shown(source)),
            Mount::ReadWrite { source, .. } => format!("rw {}", shown(source)),
            Mount::Tmpfs { size: Some(size), .. } => format!("tmpfs of {size}"),
            Mount::Tmpfs { size: None, .. } => "tmpfs".to_owned(),
            Mount::Mask { .. } => "mask".to_owned(),
            Mount::File { contents, executable, .. } => {
                format!(
                    "{} of {} bytes",
                    if *executable { "executable file" } else { "file" },
                    contents.len()
                )
            }
            Mount::Symlink { points_to, .. } => format!("symlink to {}", shown(points_to)),
            Mount::Device { .. } => "device".to_owned(),
            Mount::Proc { .. } => "proc".to_owned(),
        }
    }
}

fn check_mask(key: &str, path: &Path) -> Result<(), PolicyError> {
    let read = match glob::is_name(path) {
        true => Pattern::read(path).map(drop),
        false => {
            check_target(key, path)?;
            match glob::is_pattern(path) {
                true => Pattern::read_absolute(path).map(drop),
                false => Ok(()),
            }
        }
    };
    read.map_err(|reason| PolicyError::path(key, path, reason))
}

fn check_contents(key: &str, contents: &str) -> Result<(), PolicyError> {
    if contents.len() > FILE_MAX {
        return Err(PolicyError::value(
            key,
            contents,
            "must be at most 16 MiB; put it in a file and mount that as ro",
        ));
    }
    Ok(())
}

fn check_device(key: &str, path: &Path) -> Result<(), PolicyError> {
    check_target(key, path)?;
    if path == Path::new("/dev") || !path.starts_with("/dev") {
        return Err(PolicyError::path(
            key,
            path,
            "a device must be below /dev; mount other files as ro or rw",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ro(source: &str, target: Option<&str>) -> Mount {
        Mount::ReadOnly { source: source.into(), target: target.map(PathBuf::from) }
    }

    fn tmpfs(target: &str) -> Mount {
        Mount::Tmpfs { target: target.into(), size: None }
    }

    pub(crate) fn refused(mount: Mount, words: &str) {
        let error = Mount::check_all(std::slice::from_ref(&mount)).expect_err(words).to_string();
        assert!(error.starts_with("mounts[0].") && error.contains(words), "{mount:?}: {error}");
    }

    #[test]
    fn usual_mounts_pass() {
        let mounts = [
            ro("/srv/data", Some("/data")),
            ro("relative/is/resolved/later", None),
            ro("../beside", None),
            ro("/sys/class", None),
            Mount::ReadWrite { source: "/var/cache/x".into(), target: None },
            tmpfs("/scratch"),
            Mount::Mask { path: "/home/me/.ssh".into() },
            Mount::File { target: "/etc/motd".into(), contents: String::new(), executable: false },
            Mount::Symlink { target: "/bin/python".into(), points_to: "python3".into() },
            Mount::Device { path: "/dev/kvm".into() },
            Mount::Proc { target: "/mnt/proc".into() },
            ro("/processes", None),
        ];
        Mount::check_all(&mounts).expect("valid");
    }

    #[test]
    fn impossible_targets_are_refused() {
        for (target, words) in [
            ("", "missing"),
            ("data", "absolute"),
            ("/a/../b", "`..`"),
            ("/a\0b", "NUL"),
            ("/", "the root"),
            ("//.", "the root"),
            ("/proc", "the sandbox has its own /proc"),
            ("/proc/sys/kernel", "the sandbox has its own /proc"),
            ("//proc/./sys", "the sandbox has its own /proc"),
        ] {
            refused(ro("/a", Some(target)), words);
            refused(tmpfs(target), words);
            refused(Mount::Mask { path: target.into() }, words);
            refused(Mount::File { target: target.into(), contents: String::new(), executable: false }, words);
            refused(Mount::Symlink { target: target.into(), points_to: "x".into() }, words);
            refused(Mount::Device { path: target.into() }, words);
            refused(Mount::Proc { target: target.into() }, words);
        }
    }

    #[test]
    fn impossible_sources_are_refused() {
        for (source, words) in [
            ("", "missing"),
            ("/a\0b", "NUL"),
            ("/", "the host's /proc"),
            ("/usr/..", "the host's /proc"),
            ("/proc", "the sandbox has its own /proc"),
            ("/proc/self/root", "the sandbox has its own /proc"),
            ("/usr/../proc/1", "the sandbox has its own /proc"),
        ] {
            refused(ro(source, Some("/x")), words);
            refused(Mount::ReadWrite { source: source.into(), target: Some("/x".into()) }, words);
        }
        for source in ["/sys", "/sys/fs/cgroup", "/usr/../sys"] {
            refused(Mount::ReadWrite { source: source.into(), target: Some("/x".into()) }, "read-only");
            Mount::check_all(&[ro(source, Some("/x"))]).expect("read-only is fine");
        }
    }

    #[test]
    fn other_impossible_parts_are_refused() {
        refused(Mount::Tmpfs { target: "/t".into(), size: Some(Size::from_bytes(0)) }, "at least 1 byte");
        refused(Mount::Symlink { target: "/l".into(), points_to: PathBuf::new() }, "missing");
        refused(Mount::Device { path: "/etc/passwd".into() }, "below /dev");
        refused(Mount::Device { path: "/dev".into() }, "below /dev");
        let contents = "x".repeat(FILE_MAX + 1);
        refused(Mount::File { target: "/f".into(), contents, executable: false }, "16 MiB");
    }

    #[test]
    fn two_different_mounts_of_one_target_conflict() {
        let error = Mount::check_all(&[ro("/a", Some("/x")), tmpfs("/y"), ro("/b", Some("/x/"))]);
        assert_eq!(error.expect_err("conflict").to_string(), "conflict at /x/: ro /a and ro /b; keep one");
        let rw = Mount::ReadWrite { source: "/a".into(), target: None };
        let error = Mount::check_all(&[ro("/a", None), rw]).expect_err("conflict").to_string();
        assert_eq!(error, "conflict at /a: ro /a and rw /a; keep one");
    }

    #[test]
    fn the_same_mount_twice_is_no_conflict() {
        Mount::check_all(&[ro("/a", None), ro("/a", Some("/a")), ro("/a/", None)]).expect("the same");
        Mount::check_all(&[tmpfs("/t"), tmpfs("/t/.")]).expect("the same");
    }
}
