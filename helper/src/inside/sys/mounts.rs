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

/// fsopen(2): the configuration of a new file system. Linux 5.2.
pub(crate) fn open_file_system(kind: &CStr) -> Result<Fd, Errno> {
    call!(nr::FSOPEN, kind.as_ptr(), FSOPEN_CLOEXEC).map(fd)
}

/// fsconfig(FSCONFIG_SET_STRING): sets an option. A relative path starts at the working directory.
pub(crate) fn configure(file_system: &Fd, option: &CStr, value: &CStr) -> Result<(), Errno> {
    let (option, value) = (option.as_ptr(), value.as_ptr());
    call!(nr::FSCONFIG, file_system.0, FSCONFIG_SET_STRING, option, value, 0).map(drop)
}

/// fsconfig(FSCONFIG_SET_FLAG): sets an option that has no value.
pub(crate) fn configure_flag(file_system: &Fd, option: &CStr) -> Result<(), Errno> {
    call!(nr::FSCONFIG, file_system.0, FSCONFIG_SET_FLAG, option.as_ptr(), 0, 0).map(drop)
}

/// fsconfig(FSCONFIG_CMD_CREATE): creates the file system.
pub(crate) fn create_file_system(file_system: &Fd) -> Result<(), Errno> {
    call!(nr::FSCONFIG, file_system.0, FSCONFIG_CMD_CREATE, 0, 0, 0).map(drop)
}

/// fsmount(2): a detached mount of a file system.
pub(crate) fn new_mount(file_system: &Fd, attributes: u64) -> Result<Fd, Errno> {
    call!(nr::FSMOUNT, file_system.0, FSMOUNT_CLOEXEC, attributes).map(fd)
}
