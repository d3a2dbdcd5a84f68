//! The program: found among the manifest's, read once, its hash compared. What was hashed is what is executed: the bytes
//! that were read go into the sandbox, and the file on the host does not matter any more.

use std::fs::File;
use std::io;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use sha2::{Digest, Sha256};

use crate::report::spawn_error::Hash;
use crate::report::spawn_error::SpawnError;

/// Largest program that can have a hash, in bytes: it is held in memory.
const LARGEST: u64 = 512 << 20;

/// Anybody's right to execute.
const EXECUTABLE: u32 = 0o111;

/// Where the sandbox's own copy of a program lies. Nothing of the host's is there, so nobody outside can take it away.
const OWN: &str = "/run/kennel/program";

/// Where the copy of the program at `path` lies inside.
pub(crate) fn own_place(path: &Path) -> PathBuf {
    Path::new(OWN).join(path.file_name().unwrap_or_default())
}

/// Reads the program at `path`, which has no link in it, and compares its hash.
///
/// # Errors
/// It is not there, no file that can be read and executed, too large, or another than was approved.
pub(crate) fn load(path: &Path, named: &str, expected: Hash) -> Result<Vec<u8>, SpawnError> {
    let bytes = read(path).map_err(|source| SpawnError::Load { program: named.to_owned(), source })?;
    let found = Hash(Sha256::digest(&bytes).into());
    if found == expected { Ok(bytes) } else { Err(SpawnError::mismatch(named, expected, found)) }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file"));
    }
    if metadata.mode() & EXECUTABLE == 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.size().min(LARGEST)).unwrap_or_default());
    (&mut file).take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "is larger than 512 MiB"));
    }
    Ok(bytes)
}

/// Without following a link, and without waiting for the writer of a FIFO. Not by `below::open`: `EAGAIN` is of a lease here,
/// and not worth waiting for.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    let how = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    match openat2(nix::fcntl::AT_FDCWD, path, how) {
        // Containers that do not know the call; the hash is of what is read in any case.
        Err(nix::errno::Errno::ENOSYS | nix::errno::Errno::EPERM) => {
            Ok(nix::fcntl::open(path, flags, nix::sys::stat::Mode::empty())?.into())
        }
        opened => Ok(opened?.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::report::failure::Class;

    #[test]
    fn only_the_program_with_the_hash_is_loaded() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = fs::canonicalize(dir.path()).expect("a path").join("p");
        fs::write(&path, "abc").expect("a file");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("a mode");
        // The example of FIPS 180-2.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let hash = Hash(Sha256::digest(b"abc").into());
        assert_eq!(hash.to_string(), format!("sha256:{abc}"));
        assert_eq!(load(&path, "p", hash).expect("the same"), b"abc");
        let class = |path: &Path| load(path, "p", hash).expect_err("refused").failure().class;
        fs::write(&path, "abd").expect("a file");
        assert_eq!(class(&path), Class::HashMismatch);
        fs::write(&path, "abc").expect("a file");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("a mode");
        assert_eq!(class(&path), Class::LoadFailed, "not executable");
        assert_eq!(class(dir.path()), Class::LoadFailed, "a directory");
        assert_eq!(class(&path.with_file_name("absent")), Class::LoadFailed);
        symlink("p", path.with_file_name("link")).expect("a link");
        assert_eq!(class(&path.with_file_name("link")), Class::LoadFailed, "a link");
    }
}
