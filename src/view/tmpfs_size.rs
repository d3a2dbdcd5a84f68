//! Sizes of tmpfs file systems, in bytes and inodes. Pure.

use std::ffi::CString;
use std::path::Path;

use crate::policy::units::Size;
use crate::sys::lexical;
use crate::sys::lexical::is_within;
use crate::view::inputs::Inputs;
use crate::view::{Node, View, layers};

/// Size in bytes if the policy names none.
const DEFAULT_SIZE: u64 = 2 << 30;

/// Default of inodes: one for each 4 KiB, so that bytes and inodes run out at about the same time. An empty
/// file takes about 1 KiB of kernel memory, which tmpfs does not count as its own.
const PAGE: u64 = 4096;

/// A symbolic link with a text of this length or more takes a page (SHORT_SYMLINK_LEN in mm/shmem.c).
/// Directories take none.
const SHORT_LINK: usize = 128;

/// The smallest useful number.
const FEWEST_INODES: u64 = 64;

/// The size of a tmpfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TmpfsSize {
    /// Bytes.
    pub(crate) size: u64,
    /// Files, directories and links of commands.
    pub(crate) inodes: u64,
    /// What Kennel itself puts there, in addition.
    own: Own,
}

/// An upper bound of what Kennel itself puts into a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Own {
    bytes: u64,
    inodes: u64,
}

impl TmpfsSize {
    pub(crate) fn from_bytes(size: u64) -> Self {
        Self { size, inodes: (size / PAGE).max(FEWEST_INODES), own: Own::default() }
    }

    /// The size from the policy: `size`, else `tmp_size`, else the default.
    pub(crate) fn from_policy(inputs: &Inputs<'_>, size: Option<Size>) -> Self {
        let limits = &inputs.policy.limits;
        let size = size.or(limits.tmp_size).map_or(DEFAULT_SIZE, Size::bytes);
        let room = Self::from_bytes(size);
        Self { inodes: limits.tmp_inodes.unwrap_or(room.inodes), ..room }
    }

    /// Adds what the view puts at `target` and below it.
    pub(crate) fn with_own(self, view: &View, target: &Path) -> Self {
        let Own { bytes, inodes } = Own::of(view, target);
        let own = Own { bytes: self.own.bytes + bytes, inodes: self.own.inodes + inodes };
        Self { own, ..self }
    }

    /// Mount options, tmpfs(5).
    pub(crate) fn options(self, mode: u32) -> CString {
        let Self { size, inodes, own } = self;
        let (size, inodes) = (size.saturating_add(own.bytes), inodes.saturating_add(own.inodes));
        CString::new(format!("mode={mode:o},size={size},nr_inodes={inodes}")).unwrap_or_default()
    }
}

impl Own {
    /// Counts the places of the view at `target` and below it, and the directories on the way to them.
    fn of(view: &View, target: &Path) -> Self {
        let mut above = target;
        let mut own = Self { bytes: 0, inodes: 1 };
        // Places in /proc are in the procfs.
        let is_kernels = |path: &Path| is_within(path, Path::new("/proc"));
        for (path, place) in view.within(target).filter(|(path, _)| !is_kernels(path)) {
            own.inodes += lexical::ancestors(path).take_while(|path| !is_within(above, path)).count() as u64;
            own.bytes += match &place.node {
                Node::File { contents, .. } => (contents.len() as u64).next_multiple_of(PAGE),
                Node::Symlink { points_to } if points_to.as_os_str().len() >= SHORT_LINK => PAGE,
                _ => 0,
            };
            above = path;
        }
        own
    }
}

/// The size of the root's tmpfs, which also holds the private places that commands share.
pub(crate) fn for_root(inputs: &Inputs<'_>, view: &View) -> TmpfsSize {
    let size = TmpfsSize::from_policy(inputs, None).with_own(view, Path::new("/"));
    let inodes = size.own.inodes + 1 + layers::INODES * view.layers.all.len() as u64;
    TmpfsSize { own: Own { inodes, ..size.own }, ..size }
}

/// The size of the tmpfs of one worker of a session, which holds the private `places` of one command.
pub(crate) fn for_worker<'p>(
    inputs: &Inputs<'_>,
    view: &View,
    places: impl Iterator<Item = &'p Path>,
) -> TmpfsSize {
    places.fold(TmpfsSize::from_policy(inputs, None), |size, place| size.with_own(view, place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::place_kind::PlaceKind;

    fn own(view: &View, target: &str) -> [u64; 2] {
        let Own { bytes, inodes } = Own::of(view, Path::new(target));
        [bytes / PAGE, inodes]
    }

    #[test]
    fn own_is_what_the_view_puts_there_and_what_leads_there() {
        let mut view = View::default();
        assert_eq!(own(&view, "/"), [0, 1]);
        view.offer(PlaceKind::Directory, "/tmp", Node::Private { mode: 0o1777 });
        view.offer(PlaceKind::Directory, "/etc/passwd", Node::File { contents: vec![0; 4097], mode: 0o644 });
        view.offer(PlaceKind::Directory, "/etc/ssl/certs", Node::Dir);
        view.offer(PlaceKind::Directory, "/proc/keys", Node::CoverFile);
        assert_eq!(own(&view, "/"), [2, 1 + 1 + 2 + 2], "root, tmp, etc, passwd, ssl, certs");
        assert_eq!(own(&view, "/etc/ssl"), [0, 1 + 1]);
        assert_eq!(own(&view, "/tmp"), [0, 1]);
        view.offer(PlaceKind::Directory, "/tmp/short", Node::Symlink { points_to: "a".repeat(127).into() });
        view.offer(PlaceKind::Directory, "/tmp/long", Node::Symlink { points_to: "a".repeat(128).into() });
        assert_eq!(own(&view, "/tmp"), [1, 3]);
    }

    #[test]
    fn a_tmpfs_has_room_for_what_the_sandbox_puts_there() {
        let mut view = View::default();
        view.offer(PlaceKind::Directory, "/tmp/a/b", Node::Dir);
        let room = TmpfsSize { inodes: 5, ..TmpfsSize::from_bytes(8192) }.with_own(&view, Path::new("/tmp"));
        assert_eq!(room.options(0o755).as_c_str(), c"mode=755,size=8192,nr_inodes=8");
        assert_eq!(TmpfsSize::from_bytes(4096).inodes, FEWEST_INODES);
        assert_eq!(TmpfsSize::from_bytes(1 << 30).inodes, 1 << 18);
        let most =
            TmpfsSize { inodes: u64::MAX, ..TmpfsSize::from_bytes(u64::MAX) }.with_own(&view, Path::new("/"));
        assert!(most.options(0).to_string_lossy().ends_with(&format!("nr_inodes={}", u64::MAX)));
    }
}
