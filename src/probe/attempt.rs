//! The attempts: what the payload tries in the sandbox, how each attempt must end, and the files and servers
//! it uses.

use std::fs::{DirBuilder, File, Permissions};
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use nix::sys::statvfs::{FsFlags, statvfs};

use crate::policy::Policy;
use crate::policy::mount::Mount;
use crate::policy::network::NetworkMode;
use crate::report::enforcement::Protection;
use crate::sys;

/// One call that the payload makes in the sandbox.
#[derive(Debug)]
pub(crate) struct ProbeCall {
    /// The name of its finding.
    pub(crate) name: &'static str,
    /// What it does, for people.
    pub(crate) what: &'static str,
    /// The payload's first argument; helper/src/inside/attempts.rs lists the values.
    pub(crate) call: &'static str,
    pub(crate) operand: Operand,
    pub(crate) must: Must,
    /// The protection that it mainly tests.
    pub(crate) wall: Protection,
}

/// The payload's second argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    Nothing,
    /// A file granted read-only.
    ReadOnly,
    /// A file granted writable.
    Writable,
    /// A host file that is not granted.
    Secret,
    /// The same file, open for reading as the payload's standard input.
    SecretInStdin,
    /// A port on the host's loopback device where a server listens.
    Port,
    /// The name of an abstract socket on the host.
    Name,
    /// The PID of this process.
    Process,
}

/// How an attempt must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Must {
    Succeed,
    /// It fails with one of these errnos.
    Fail(&'static [i32]),
}

/// The highest PID that may exist in a sandbox: init, the payload, and the processes that start it.
const MAX_PID_INSIDE: u32 = 8;

/// Every attempt. Those that must succeed come first: if they fail, the others prove nothing.
pub(crate) const ATTEMPTS: [ProbeCall; 12] = [
    ProbeCall {
        name: "read_grant",
        what: "read a granted file",
        call: "read",
        operand: Operand::ReadOnly,
        must: Must::Succeed,
        wall: Protection::Root,
    },
    ProbeCall {
        name: "write_grant",
        what: "write to a file granted writable",
        call: "write",
        operand: Operand::Writable,
        must: Must::Succeed,
        wall: Protection::Root,
    },
    ProbeCall {
        name: "own_loopback",
        what: "serve and connect on the sandbox's loopback device",
        call: "serve-tcp",
        operand: Operand::Port,
        must: Must::Succeed,
        wall: Protection::NetworkNamespace,
    },
    ProbeCall {
        name: "read_outside",
        what: "read a file outside the grants",
        call: "read",
        operand: Operand::Secret,
        must: Must::Fail(&[libc::ENOENT, libc::EACCES]),
        wall: Protection::Root,
    },
    ProbeCall {
        name: "write_outside",
        what: "write to a file outside the grants",
        call: "write",
        operand: Operand::Secret,
        must: Must::Fail(&[libc::ENOENT, libc::EROFS, libc::EACCES]),
        wall: Protection::Root,
    },
    ProbeCall {
        name: "write_read_only",
        what: "write to a file granted read-only",
        call: "write",
        operand: Operand::ReadOnly,
        must: Must::Fail(&[libc::EROFS, libc::EACCES]),
        wall: Protection::Root,
    },
    // Opening an inherited descriptor again through /proc bypasses namespaces and mounts: only Landlock can
    // refuse it.
    ProbeCall {
        name: "landlock_alone",
        what: "reopen a file outside the grants through an inherited descriptor",
        call: "reopen-stdin",
        operand: Operand::SecretInStdin,
        must: Must::Fail(&[libc::EACCES]),
        wall: Protection::Landlock,
    },
    ProbeCall {
        name: "connect_host",
        what: "connect to a server on the host's loopback device",
        call: "connect-tcp",
        operand: Operand::Port,
        must: Must::Fail(&[libc::ECONNREFUSED, libc::ENETUNREACH, libc::EACCES]),
        wall: Protection::NetworkNamespace,
    },
    ProbeCall {
        name: "connect_abstract",
        what: "connect to an abstract socket of the host",
        call: "connect-abstract",
        operand: Operand::Name,
        must: Must::Fail(&[libc::ECONNREFUSED, libc::EPERM]),
        wall: Protection::LandlockScope,
    },
    ProbeCall {
        name: "signal_host",
        what: "signal a process of the host",
        call: "signal",
        operand: Operand::Process,
        must: Must::Fail(&[libc::ESRCH, libc::EPERM]),
        wall: Protection::PidNamespace,
    },
    ProbeCall {
        name: "new_user_namespace",
        what: "make a user namespace",
        call: "new-user-namespace",
        operand: Operand::Nothing,
        must: Must::Fail(&[libc::EPERM]),
        wall: Protection::Seccomp,
    },
    // The kernel allows this to every process: only seccomp can refuse it.
    ProbeCall {
        name: "seccomp_alone",
        what: "join a new keyring",
        call: "new-keyring",
        operand: Operand::Nothing,
        must: Must::Fail(&[libc::EPERM]),
        wall: Protection::Seccomp,
    },
];

impl ProbeCall {
    /// Why this attempt proves nothing under this policy; `None` if it does.
    pub(crate) fn skip_reason(&self, policy: &Policy) -> Option<&'static str> {
        if self.operand == Operand::Port && policy.effective_network() == NetworkMode::Host {
            return Some("the profile grants the host's network");
        }
        if self.name == "read_outside" && policy.profile.meaning().shows_host {
            return Some("the profile shows the host's files");
        }
        if self.operand == Operand::Process && std::process::id() <= MAX_PID_INSIDE {
            return Some("the probe's own PID may also exist in the sandbox");
        }
        None
    }

    /// The payload's arguments; `None` if the stage lacks what this attempt needs.
    pub(crate) fn arguments(&self, stage: &Stage) -> Option<[String; 2]> {
        let operand = match self.operand {
            Operand::Nothing | Operand::SecretInStdin => String::new(),
            Operand::ReadOnly => READ_ONLY_AT.to_owned(),
            Operand::Writable => WRITABLE_AT.to_owned(),
            Operand::Secret => stage.secret().into_os_string().into_string().ok()?,
            Operand::Port => stage.port()?.to_string(),
            Operand::Name => stage.name.clone(),
            Operand::Process => std::process::id().to_string(),
        };
        Some([self.call.to_owned(), operand])
    }
}

// The stage: the probe's own files, in a directory closed to other users, and its own servers. Dropping it
// removes them.

/// The payload's path in the sandbox.
pub(crate) const PAYLOAD_AT: &str = "/run/kennel-probe/payload";
/// The path of the file granted read-only.
pub(crate) const READ_ONLY_AT: &str = "/run/kennel-probe/shown";
/// The path of the file granted writable.
pub(crate) const WRITABLE_AT: &str = "/run/kennel-probe/writable";

/// The files and servers that attempts use. Dropping this removes them.
#[derive(Debug)]
pub(crate) struct Stage {
    directory: Directory,
    /// The name of the abstract socket.
    pub(crate) name: String,
    /// `None` if the host has no loopback device.
    tcp: Option<TcpListener>,
    _abstract: UnixListener,
}

impl Stage {
    /// Creates the files and starts the servers.
    pub(crate) fn create() -> io::Result<Self> {
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

    /// The grants besides the workspace.
    pub(crate) fn mounts(&self) -> [Mount; 3] {
        let source = |name: &str| self.directory.0.join(name);
        [
            Mount::ReadOnly { source: source("payload"), target: Some(PAYLOAD_AT.into()) },
            Mount::ReadOnly { source: source("shown"), target: Some(READ_ONLY_AT.into()) },
            Mount::ReadWrite { source: source("writable"), target: Some(WRITABLE_AT.into()) },
        ]
    }

    /// A file that is not granted, in a directory that is not granted.
    pub(crate) fn secret(&self) -> PathBuf {
        self.directory.0.join("outside/secret")
    }

    /// The port of a server on the host's loopback device.
    pub(crate) fn port(&self) -> Option<u16> {
        Some(self.tcp.as_ref()?.local_addr().ok()?.port())
    }
}

/// A temporary directory, removed on drop.
#[derive(Debug)]
struct Directory(PathBuf);

impl Directory {
    /// Makes the directory on a file system without `noexec`, because it holds a program.
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

    /// Writes a file with exactly this mode, whatever the umask.
    fn put(&self, name: &str, contents: &[u8], mode: u32) -> io::Result<()> {
        let path = self.0.join(name);
        sys::without_sigxfsz(|| fs::write(&path, contents))?;
        File::open(&path)?.set_permissions(Permissions::from_mode(mode))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "could not remove the probe's directory");
        }
    }
}

/// A unique name.
fn unique_name() -> nix::Result<String> {
    Ok(format!("kennel-probe-{}-{:016x}", std::process::id(), sys::random()?))
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttemptEnd {
    Succeeded,
    /// The kernel refused it with this errno.
    Refused(i32),
    /// The payload did not reach the call.
    Failed(String),
    /// The attempt was skipped, because it proves nothing here.
    NotMade(&'static str),
}

impl AttemptEnd {
    pub(crate) fn from_errno(errno: i32) -> Self {
        if errno == 0 { Self::Succeeded } else { Self::Refused(errno) }
    }
}
