//! What the attempts are made on: files of the probe's own in a directory that nobody else may enter, and servers
//! of its own. All of it goes when this is dropped.

use std::fs::{DirBuilder, File, Permissions};
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use nix::sys::statvfs::{FsFlags, statvfs};

use crate::policy::mount::Mount;
use crate::sys;

/// Where the payload lies in the sandbox.
pub(crate) const PAYLOAD_AT: &str = "/run/kennel-probe/payload";
/// Where the file lies that is granted read-only.
pub(crate) const SHOWN_AT: &str = "/run/kennel-probe/shown";
/// Where the file lies that is granted writable.
pub(crate) const WRITABLE_AT: &str = "/run/kennel-probe/writable";

/// The stage.
#[derive(Debug)]
pub(crate) struct Stage {
    directory: Directory,
    /// Name of the abstract socket.
    pub(crate) name: String,
    /// None where the host has no loopback device.
    tcp: Option<TcpListener>,
    _abstract: UnixListener,
}

impl Stage {
    /// Makes everything.
    pub(crate) fn set() -> io::Result<Self> {
        let directory = Directory::make()?;
        for name in ["workspace", "outside"] {
            DirBuilder::new().mode(0o700).create(directory.0.join(name))?;
        }
        directory.put("payload", kennel_helper::IMAGE, 0o500)?;
        directory.put("shown", b"shown", 0o600)?;
        directory.put("writable", b"", 0o600)?;
        directory.put("outside/secret", b"secret", 0o600)?;
        let name = unique_name()?;
        Ok(Self {
            directory,
            tcp: TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok(),
            _abstract: UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?,
            name,
        })
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.directory.0.join("workspace")
    }

    /// The grants beside the workspace.
    pub(crate) fn mounts(&self) -> [Mount; 3] {
        let source = |name: &str| self.directory.0.join(name);
        [
            Mount::ReadOnly { source: source("payload"), target: Some(PAYLOAD_AT.into()) },
            Mount::ReadOnly { source: source("shown"), target: Some(SHOWN_AT.into()) },
            Mount::ReadWrite { source: source("writable"), target: Some(WRITABLE_AT.into()) },
        ]
    }

    /// A file that is not granted, in a directory that is not.
    pub(crate) fn secret(&self) -> PathBuf {
        self.directory.0.join("outside/secret")
    }

    /// The port of a server on the host's loopback device.
    pub(crate) fn port(&self) -> Option<u16> {
        Some(self.tcp.as_ref()?.local_addr().ok()?.port())
    }
}

/// A temporary directory, gone when dropped.
#[derive(Debug)]
struct Directory(PathBuf);

impl Directory {
    /// Made where programs can be executed, because one of the files is a program.
    fn make() -> io::Result<Self> {
        let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let places = [env::temp_dir(), "/tmp".into(), "/var/tmp".into()].into_iter().chain(runtime);
        let mut refused = io::Error::from(io::ErrorKind::NotFound);
        for place in places {
            match Self::make_in(&place) {
                Ok(directory) => return Ok(directory),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn make_in(place: &Path) -> io::Result<Self> {
        let place = place.canonicalize()?;
        if statvfs(&place)?.flags().contains(FsFlags::ST_NOEXEC) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let path = place.join(unique_name()?);
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    /// Writes a file whose mode is `mode` whatever the umask.
    fn put(&self, name: &str, contents: &[u8], mode: u32) -> io::Result<()> {
        let path = self.0.join(name);
        sys::without_sigxfsz(|| fs::write(&path, contents))?;
        File::open(&path)?.set_permissions(Permissions::from_mode(mode))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "the probe's directory stays");
        }
    }
}

/// A name that nobody else has.
fn unique_name() -> nix::Result<String> {
    Ok(format!("kennel-probe-{}-{:016x}", std::process::id(), sys::random()?))
}
