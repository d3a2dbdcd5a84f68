//! System calls on mounts and the root.

use super::*;

/// mount(2). A relative target starts at the working directory: the new root, except for the first mount.
pub(crate) fn mount(
    source: Option<&CStr>,
    target: &CStr,
    kind: Option<&CStr>,
    flags: u64,
    options: Option<&CStr>,
) -> Result<(), Errno> {
    let address = |string: Option<&CStr>| string.map_or(ptr::null(), CStr::as_ptr);
    call!(nr::MOUNT, address(source), target.as_ptr(), address(kind), flags, address(options)).map(drop)
}

/// open_tree(2): a detached recursive copy of the mounts at a host path, or at a path of the new root. Linux
/// 5.2.
pub(crate) fn clone_tree(root: Option<&Fd>, source: &CStr) -> Result<Fd, Errno> {
    let flags = OPEN_TREE_CLONE | O_CLOEXEC | AT_RECURSIVE;
    let at = root.map_or(AT_FDCWD, |root| root.0);
    call!(nr::OPEN_TREE, at, source.as_ptr(), flags).map(fd)
}

/// open_tree(2) of an open descriptor.
pub(crate) fn clone_tree_of(place: &Fd) -> Result<Fd, Errno> {
    let flags = OPEN_TREE_CLONE | O_CLOEXEC | AT_RECURSIVE | AT_EMPTY_PATH;
    call!(nr::OPEN_TREE, place.0, c"".as_ptr(), flags).map(fd)
}

/// mount_setattr(2): adds `attributes` and makes the mount private, so that later host mounts do not appear.
/// Linux 5.12.
pub(crate) fn set_attributes(mount: &Fd, attributes: u64, recursive: bool) -> Result<(), Errno> {
    let attr = MountAttr { set: attributes, clear: 0, propagation: MS_PRIVATE, userns: 0 };
    let flags = AT_EMPTY_PATH | if recursive { AT_RECURSIVE } else { 0 };
    call!(nr::MOUNT_SETATTR, mount.0, c"".as_ptr(), flags, &raw const attr, size_of::<MountAttr>()).map(drop)
}

/// move_mount(2) of a detached mount onto an open descriptor.
pub(crate) fn attach(mount: &Fd, target: &Fd) -> Result<(), Errno> {
    let flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
    call!(nr::MOVE_MOUNT, mount.0, c"".as_ptr(), target.0, c"".as_ptr(), flags).map(drop)
}

/// move_mount(2) of a detached mount onto `path` in a directory of the new root.
pub(crate) fn attach_at(mount: &Fd, root: &Fd, path: &CStr) -> Result<(), Errno> {
    let flags = MOVE_MOUNT_F_EMPTY_PATH;
    call!(nr::MOVE_MOUNT, mount.0, c"".as_ptr(), root.0, path.as_ptr(), flags).map(drop)
}

/// pivot_root(".", "."): the working directory becomes the root, with the old root mounted on top of it.
pub(crate) fn pivot_root_here() -> Result<(), Errno> {
    call!(nr::PIVOT_ROOT, c".".as_ptr(), c".".as_ptr()).map(drop)
}

/// umount2(MNT_DETACH).
pub(crate) fn detach(target: &CStr) -> Result<(), Errno> {
    call!(nr::UMOUNT2, target.as_ptr(), MNT_DETACH).map(drop)
}
