//! System calls on files, directories and descriptors.

use super::*;

/// fcntl(2) with a command that returns a descriptor.
pub(crate) fn fcntl(of: &Fd, command: usize, argument: usize) -> Result<Fd, Errno> {
    call!(nr::FCNTL, of.0, command, argument).map(fd)
}

/// fcntl(F_SETFD): lets the payload keep standard descriptor `number` across execve(2).
pub(crate) fn keep_across_exec(number: usize) -> Result<(), Errno> {
    call!(nr::FCNTL, number, F_SETFD, 0).map(drop)
}

/// close_range(2). Linux 5.9.
pub(crate) fn close_range(first: u32, last: u32) -> Result<(), Errno> {
    call!(nr::CLOSE_RANGE, first, last, 0).map(drop)
}

/// dup3(2) onto a standard descriptor, kept across execve(2).
pub(crate) fn duplicate_to(from: &Fd, number: usize) -> Result<(), Errno> {
    call!(nr::DUP3, from.0, number, 0).map(drop)
}

/// mmap(2), private to this process: `bytes` of a file or of zeros, with zeroed scratch after them.
pub(crate) fn map(
    file: Option<&Fd>,
    bytes: usize,
    scratch: usize,
) -> Result<(&'static mut [u8], &'static mut [usize]), Errno> {
    let start = bytes.checked_next_multiple_of(mem::align_of::<usize>()).ok_or(Errno(EPROTO))?;
    let length = start.checked_add(scratch).filter(|&sum| sum > 0).ok_or(Errno(EPROTO))?;
    let flags = MAP_PRIVATE | if file.is_some() { 0 } else { MAP_ANONYMOUS };
    let file = file.map_or(-1, |file| file.0);
    let base = call!(nr::MMAP, 0, length, PROT_READ | PROT_WRITE, flags, file, 0)?;
    let base = ptr::with_exposed_provenance_mut::<u8>(base);
    // SAFETY: the mapping is `length` long, new and never unmapped; no other reference to this range exists.
    let first = unsafe { core::slice::from_raw_parts_mut(base, bytes) };
    let scratch_at = base.wrapping_add(start).cast::<usize>();
    let words = scratch.checked_div(size_of::<usize>()).ok_or(Errno(EPROTO))?;
    // SAFETY: disjoint from the range above, aligned by the rounding, zero-filled, with no other reference.
    let scratch = unsafe { core::slice::from_raw_parts_mut(scratch_at, words) };
    Ok((first, scratch))
}

/// munmap(2) of a range that [`map`] mapped and nothing refers to any more.
pub(crate) fn unmap(base: usize, length: usize) {
    // It cannot fail for a mapped range, and an unmapped one needs no call.
    let _ = call!(nr::MUNMAP, base, length);
}

/// open(2) of an existing kernel file for writing.
pub(crate) fn open_for_writing(path: &CStr) -> Result<Fd, Errno> {
    call!(nr::OPENAT, AT_FDCWD, path.as_ptr(), O_WRONLY | O_CLOEXEC, 0).map(fd)
}

/// statfs(2): free blocks and inodes of the tmpfs at `path`, or of the upper directory of an overlay; `None`
/// if another file system is there.
pub(crate) fn free_in_tmpfs(path: &CStr) -> Result<Option<[u64; 2]>, Errno> {
    let mut answer = [0u64; STATFS_WORDS];
    call!(nr::STATFS, path.as_ptr(), answer.as_mut_ptr())?;
    let [kind, _, _, blocks, _, _, inodes, ..] = answer;
    Ok(matches!(kind, TMPFS_MAGIC | OVERLAYFS_SUPER_MAGIC).then_some([blocks, inodes]))
}

/// openat(2) of a file that must not exist yet.
pub(crate) fn create(root: &Fd, path: &CStr, mode: u32) -> Result<Fd, Errno> {
    let flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    call!(nr::OPENAT, root.0, path.as_ptr(), flags, mode).map(fd)
}

/// openat2(2) with O_PATH that follows no symbolic or magic link. Linux 5.6.
///
/// With a `root`, the path stays inside it. Without one, it is a host path.
pub(crate) fn open_path(root: Option<&Fd>, path: &CStr) -> Result<Fd, Errno> {
    let beneath = if root.is_some() { RESOLVE_IN_ROOT } else { 0 };
    let how = OpenHow {
        flags: (O_PATH | O_CLOEXEC) as u64,
        mode: 0,
        resolve: RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | beneath,
    };
    let at = root.map_or(AT_FDCWD, |root| root.0);
    loop {
        // EAGAIN: a rename or mount elsewhere raced with the restricted walk, and the kernel asks to try
        // again.
        match call!(nr::OPENAT2, at, path.as_ptr(), &raw const how, size_of::<OpenHow>()) {
            Err(Errno(EAGAIN)) => {}
            answer => return answer.map(fd),
        }
    }
}

/// statx(2): device (as makedev(3) packs it) and inode number.
pub(crate) fn identity(of: &Fd) -> Result<(u64, u64), Errno> {
    // SAFETY: all-zero bytes are a valid value of this plain record.
    let mut stat: Statx = unsafe { mem::zeroed() };
    call!(nr::STATX, of.0, c"".as_ptr(), AT_EMPTY_PATH, STATX_INO, &raw mut stat)?;
    let (major, minor) = (u64::from(stat.device_major), u64::from(stat.device_minor));
    let device = ((major & 0xffff_f000) << 32)
        | ((major & 0xfff) << 8)
        | ((minor & 0xffff_ff00) << 12)
        | (minor & 0xff);
    Ok((device, stat.inode))
}

/// statx(2): whether `of` is the root of a mount. Linux 5.8.
pub(crate) fn is_mount_root(of: &Fd) -> Result<bool, Errno> {
    // SAFETY: all-zero bytes are a valid value of this plain record.
    let mut stat: Statx = unsafe { mem::zeroed() };
    call!(nr::STATX, of.0, c"".as_ptr(), AT_EMPTY_PATH, STATX_TYPE, &raw mut stat)?;
    Ok(stat.attributes & STATX_ATTR_MOUNT_ROOT != 0)
}

/// statx(2): whether a standard descriptor is the null device, character device 1:3.
pub(crate) fn is_null_device(number: u32) -> Result<bool, Errno> {
    // SAFETY: all-zero bytes are a valid value of this plain record.
    let mut stat: Statx = unsafe { mem::zeroed() };
    call!(nr::STATX, number, c"".as_ptr(), AT_EMPTY_PATH, STATX_TYPE, &raw mut stat)?;
    Ok(stat.mode & S_IFMT == S_IFCHR && stat.special_device == [1, 3])
}

/// write(2) until everything is written.
pub(crate) fn write_all(to: &Fd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let written = call!(nr::WRITE, to.0, bytes.as_ptr(), bytes.len())?;
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// mkdirat(2).
pub(crate) fn make_dir(root: &Fd, path: &CStr, mode: u32) -> Result<(), Errno> {
    call!(nr::MKDIRAT, root.0, path.as_ptr(), mode).map(drop)
}

/// fchmodat(2).
pub(crate) fn set_mode(path: &CStr, mode: u32) -> Result<(), Errno> {
    call!(nr::FCHMODAT, AT_FDCWD, path.as_ptr(), mode).map(drop)
}

/// symlinkat(2).
pub(crate) fn symlink(root: &Fd, path: &CStr, points_to: &CStr) -> Result<(), Errno> {
    call!(nr::SYMLINKAT, points_to.as_ptr(), root.0, path.as_ptr()).map(drop)
}

/// mknodat(S_IFREG): an empty file, without opening it.
pub(crate) fn make_empty_file(root: &Fd, path: &CStr) -> Result<(), Errno> {
    call!(nr::MKNODAT, root.0, path.as_ptr(), S_IFREG | 0o444, 0).map(drop)
}

/// mknodat(2) of character device 0:0, which overlayfs takes for a whiteout. It needs no capability.
pub(crate) fn make_whiteout(root: &Fd, path: &CStr) -> Result<(), Errno> {
    call!(nr::MKNODAT, root.0, path.as_ptr(), S_IFCHR, 0).map(drop)
}

/// fchdir(2).
pub(crate) fn change_dir_to(dir: &Fd) -> Result<(), Errno> {
    call!(nr::FCHDIR, dir.0).map(drop)
}

/// chdir(2).
pub(crate) fn change_dir(path: &CStr) -> Result<(), Errno> {
    call!(nr::CHDIR, path.as_ptr()).map(drop)
}

/// umask(2). Returns the previous mask.
pub(crate) fn file_mask(mask: usize) -> usize {
    call!(nr::UMASK, mask).unwrap_or(0)
}

/// access(2): whether something is at `path`, which links may lead to.
pub(crate) fn access(path: &CStr) -> Result<(), Errno> {
    call!(nr::FACCESSAT, AT_FDCWD, path.as_ptr(), 0).map(drop)
}

/// openat(2) for reading.
pub(crate) fn open_for_reading(path: &CStr) -> Result<Fd, Errno> {
    call!(nr::OPENAT, AT_FDCWD, path.as_ptr(), O_RDONLY | O_CLOEXEC, 0).map(fd)
}
