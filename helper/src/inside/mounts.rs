//! Mounts. The inside copies a host mount detached, checks it, sets its attributes, and only then attaches
//! it.

use core::{ffi::CStr, mem::MaybeUninit};

use crate::{
    kernel::{
        EPROTO, ESTALE, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY, MS_MOVE, MS_NODEV, MS_NOSUID,
        MS_RDONLY,
    },
    plan::{Inode, NEW_ROOT, OTHER_ROOT, ROOT_SOURCE, Target, Within},
    sys::{self, Errno, Fd},
};

/// Mounts a tmpfs on top of the old root and enters it. It becomes the root in [`pivot`]. Until then targets
/// start at the working directory, and sources at `/`.
pub(crate) fn new_root(options: &CStr) -> Result<Fd, Errno> {
    // The old root is detached as a whole.
    sys::mount(None, NEW_ROOT, Some(c"tmpfs"), MS_NOSUID | MS_NODEV, Some(options))?;
    let root = sys::open_path(None, NEW_ROOT)?;
    sys::change_dir_to(&root)?;
    Ok(root)
}

/// Makes the working directory that [`new_root`] entered the root, and detaches the old root.
pub(crate) fn pivot(root: &Fd) -> Result<(), Errno> {
    sys::change_dir_to(root)?;
    sys::pivot_root_here()?;
    sys::detach(c".")?;
    sys::change_dir(c"/")
}

/// Enters the root of a copied mount namespace. Older descriptors lead into the original.
pub(crate) fn enter_root() -> Result<Fd, Errno> {
    let root = sys::open_path(None, c"/")?;
    sys::change_dir_to(&root)?;
    Ok(root)
}

/// Makes the host's `source` and every mount below it visible at the target.
///
/// The outside checked `source` earlier. If another process has replaced it or a part of its path since, the
/// inode differs and this fails with `ESTALE`.
pub(crate) fn bind(root: &Fd, source: Inode<'_>, target: Target<'_>, attributes: u64) -> Result<(), Errno> {
    let tree = sys::clone_tree(None, source.path)?;
    if sys::identity(&tree)? != source.identity {
        return Err(Errno(ESTALE));
    }
    sys::set_attributes(&tree, attributes, true)?;
    attach(root, &tree, target)
}

/// Covers the target with an empty directory of the new root or with its /dev/null.
pub(crate) fn cover(root: &Fd, empty: &CStr, target: Target<'_>) -> Result<(), Errno> {
    let tree = sys::clone_tree(Some(root), empty)?;
    sys::set_attributes(&tree, MOUNT_ATTR_RDONLY, false)?;
    attach(root, &tree, target)
}

/// Mounts the target over itself. Other processes may replace parts of its path.
pub(crate) fn pin(root: &Fd, target: &CStr, attributes: u64) -> Result<(), Errno> {
    let place = sys::open_path(Some(root), target)?;
    let tree = sys::clone_tree_of(&place)?;
    sys::set_attributes(&tree, attributes, true)?;
    sys::attach(&tree, &place)
}

fn attach(root: &Fd, tree: &Fd, target: Target<'_>) -> Result<(), Errno> {
    match target.within {
        Within::Root => sys::attach_at(tree, root, target.path),
        Within::Granted => sys::attach(tree, &sys::open_path(Some(root), target.path)?),
    }
}

/// Moves a mount and every mount below it.
pub(crate) fn relocate(root: &Fd, from: &CStr, to: &CStr, within: Within) -> Result<(), Errno> {
    match within {
        Within::Root => sys::mount(Some(from), to, None, MS_MOVE, None),
        Within::Granted => sys::attach(&sys::open_path(Some(root), from)?, &sys::open_path(Some(root), to)?),
    }
}

/// Mounts `from` at the target; both are paths of the view. Without `from`, the target must be the root of a
/// mount, and that inode. See `MountAgain`.
pub(crate) fn mount_again(root: &Fd, from: &CStr, target: Inode<'_>, attributes: u64) -> Result<(), Errno> {
    let place = sys::open_path(Some(root), target.path)?;
    if from.is_empty() {
        let is_it = target.identity == (0, 0) || sys::identity(&place)? == target.identity;
        return if is_it && sys::is_mount_root(&place)? { Ok(()) } else { Err(Errno(ESTALE)) };
    }
    // Any mount keeps its directory in place. A read-only mount or a cover must be the topmost one: an
    // existing mount may have come along with a renamed directory.
    if attributes & MOUNT_ATTR_RDONLY == 0 && sys::is_mount_root(&place)? {
        return Ok(());
    }
    let tree = match from == target.path {
        true => sys::clone_tree_of(&place)?,
        false => sys::clone_tree_of(&sys::open_path(Some(root), from)?)?,
    };
    sys::set_attributes(&tree, attributes, true)?;
    sys::attach(&tree, &place)
}

/// Mounts a kernel file system at the target.
pub(crate) fn mount(
    root: &Fd,
    kind: &CStr,
    target: Target<'_>,
    flags: u64,
    options: &CStr,
) -> Result<(), Errno> {
    if target.within == Within::Root {
        return sys::mount(None, target.path, Some(kind), flags, Some(options));
    }
    sys::change_dir_to(&sys::open_path(Some(root), target.path)?)?;
    let mounted = sys::mount(None, c".", Some(kind), flags, Some(options));
    sys::change_dir_to(root)?;
    mounted
}

/// Mounts an overlay of the host's directory `lower` at `at`, a directory of the new root. Changes go to its
/// subdirectories `upper` and `work`, or to those of the host's directory `kept`.
///
/// Overlayfs takes paths only. Each one is a name in the working directory, which is set by descriptor.
pub(crate) fn layer(root: &Fd, lower: Inode<'_>, kept: Inode<'_>, at: &CStr) -> Result<Fd, Errno> {
    let lower = open_inode(lower)?;
    let place = sys::open_path(Some(root), at)?;
    let changes = if kept.path.is_empty() { None } else { Some(open_inode(kept)?) };
    let overlay = sys::open_file_system(c"overlay")?;
    let configured = configure(&overlay, &lower, changes.as_ref().unwrap_or(&place));
    sys::change_dir_to(root)?;
    configured?;
    let mount = sys::new_mount(&overlay, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)?;
    sys::attach(&mount, &place)?;
    Ok(mount)
}

fn configure(overlay: &Fd, lower: &Fd, changes: &Fd) -> Result<(), Errno> {
    sys::change_dir_to(lower)?;
    sys::configure(overlay, c"lowerdir", c".")?;
    sys::change_dir_to(changes)?;
    sys::configure(overlay, c"upperdir", c"upper")?;
    sys::configure(overlay, c"workdir", c"work")?;
    sys::configure(overlay, c"index", c"off")?;
    sys::configure_flag(overlay, c"userxattr")?;
    sys::create_file_system(overlay)
}

/// Mounts another root over a directory of the new root, and enters it. See `Root`.
pub(crate) fn overlay_root(
    root: &Fd,
    layers: Inode<'_>,
    options: &CStr,
    kept: Inode<'_>,
) -> Result<Fd, Errno> {
    if !kept.path.is_empty() {
        bind(root, kept, Target { path: c"kept", within: Within::Root }, 0)?;
    }
    sys::change_dir_to(&open_inode(layers)?)?;
    sys::mount(Some(ROOT_SOURCE), OTHER_ROOT, Some(c"overlay"), MS_NOSUID | MS_NODEV, Some(options))?;
    let mount = sys::open_path(None, OTHER_ROOT)?;
    sys::change_dir_to(&mount)?;
    Ok(mount)
}

/// Opens a path of the host. `ESTALE` if another process has replaced it.
fn open_inode(of: Inode<'_>) -> Result<Fd, Errno> {
    let opened = sys::open_path(None, of.path)?;
    if sys::identity(&opened)? == of.identity { Ok(opened) } else { Err(Errno(ESTALE)) }
}

/// Moves the mount of a layer into the old root, which [`pivot`] detaches with everything in it. Each
/// umount2(2) waits until no processor can use the mount any more, so one is better than two.
pub(crate) fn move_to_old_root(layer: &Fd) -> Result<(), Errno> {
    sys::attach(layer, &sys::open_path(None, c"/dev")?)
}

/// Makes a directory of a layer visible at the target. No link is followed in the layer. The host's path is
/// looked at afterwards, because the numbers of a layer's directories are its own.
pub(crate) fn show_layered(
    root: &Fd,
    layer: &Fd,
    below: &CStr,
    source: Inode<'_>,
    target: Target<'_>,
) -> Result<(), Errno> {
    let directory = sys::open_path(Some(layer), below)?;
    if source.identity != Inode::NONE.identity {
        open_inode(source)?;
    }
    attach(root, &sys::clone_tree_of(&directory)?, target)
}

/// What the target gets if no layer can show it: an empty directory of its own, or the host's, read-only.
pub(crate) fn without_layer(
    root: &Fd,
    source: Inode<'_>,
    target: Target<'_>,
    shows: bool,
) -> Result<(), Errno> {
    let attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    match target.within {
        Within::Root if shows => bind(root, source, target, attributes | MOUNT_ATTR_RDONLY),
        Within::Root => pin(root, target.path, attributes),
        // The host's directory is visible there already, and nothing can be made in it.
        Within::Granted => pin(root, target.path, attributes | MOUNT_ATTR_RDONLY),
    }
}

/// Stack of the child that mounts an overlay, in bytes.
const STACK: usize = 4 * 1024;

/// An overlay to mount, and how it went.
struct Merging<'p> {
    target: &'p CStr,
    options: &'p CStr,
    reader: u32,
    end: Result<(), Errno>,
}

impl Merging<'_> {
    fn mount(&self) -> Result<(), Errno> {
        let flags = MS_RDONLY | MS_NOSUID | MS_NODEV;
        sys::mount(Some(c"kennel"), self.target, Some(c"overlay"), flags, Some(self.options))
    }

    fn mount_as_reader(&self) -> Result<(), Errno> {
        sys::read_as(self.reader)?;
        self.mount()
    }
}

/// Mounts a read-only overlay. See `Merge`.
pub(crate) fn merge(target: &CStr, options: &CStr, reader: u32) -> Result<(), Errno> {
    let mut merging = Merging { target, options, reader, end: Err(Errno(EPROTO)) };
    if reader == 0 {
        return merging.mount();
    }
    if let Some(groups) = sys::Groups::to_restore() {
        let capabilities = sys::capabilities()?;
        let end = merging.mount_as_reader();
        sys::read_as_root(&groups, &capabilities)?;
        return end;
    }
    // A child, because this process could not get its groups back.
    let mut stack = [MaybeUninit::uninit(); STACK];
    sys::vfork(&mut stack, merge_as_reader, &mut merging)?;
    sys::reap(true)?;
    merging.end
}

/// The entry of the child.
extern "C" fn merge_as_reader(argument: *mut u8) -> ! {
    #[expect(unsafe_code, reason = "the other half of vfork")]
    // SAFETY: `merge` passed its `Merging` to this very entry.
    let merging: &mut Merging<'_> = unsafe { sys::vfork_argument(argument) };
    merging.end = merging.mount_as_reader();
    sys::exit(0)
}
