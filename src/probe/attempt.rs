//! What a program in the sandbox tries, and how it must end. Data.

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

/// One call that the payload makes.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// Name of its finding.
    pub(crate) name: &'static str,
    /// What it does, in words.
    pub(crate) what: &'static str,
    /// First argument of the payload; helper/src/inside/attempts.rs knows it.
    pub(crate) call: &'static str,
    pub(crate) operand: Operand,
    pub(crate) must: Must,
    /// The wall that it tests first of all.
    pub(crate) wall: Protection,
}

/// Second argument of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    Nothing,
    /// A file that is granted read-only.
    Shown,
    /// A file that is granted writable.
    Writable,
    /// A file of the host that is not granted.
    Secret,
    /// The same, open for reading as the payload's standard input.
    SecretInStdin,
    /// A port of the host's loopback device where a server listens.
    Port,
    /// The name of an abstract socket of the host.
    Name,
    /// The number of this very process.
    Process,
}

/// How an attempt must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Must {
    Succeed,
    /// With one of these.
    Fail(&'static [i32]),
}

/// Numbers that processes in a sandbox have: init, the payload, and who else is needed to start it.
const PROCESSES_INSIDE: u32 = 8;

/// Every attempt, those that must succeed first: where they fail, the others would prove nothing.
pub(crate) const ATTEMPTS: [Attempt; 12] = [
    Attempt {
        name: "read_grant",
        what: "read a file that is granted",
        call: "read",
        operand: Operand::Shown,
        must: Must::Succeed,
        wall: Protection::Root,
    },
    Attempt {
        name: "write_grant",
        what: "write to a file that is granted writable",
        call: "write",
        operand: Operand::Writable,
        must: Must::Succeed,
        wall: Protection::Root,
    },
    Attempt {
        name: "own_loopback",
        what: "serve and connect on the sandbox's loopback device",
        call: "serve-tcp",
        operand: Operand::Port,
        must: Must::Succeed,
        wall: Protection::NetworkNamespace,
    },
    Attempt {
        name: "read_outside",
        what: "read a file outside of the grants",
        call: "read",
        operand: Operand::Secret,
        must: Must::Fail(&[libc::ENOENT, libc::EACCES]),
        wall: Protection::Root,
    },
    Attempt {
        name: "write_outside",
        what: "write to a file outside of the grants",
        call: "write",
        operand: Operand::Secret,
        must: Must::Fail(&[libc::ENOENT, libc::EROFS, libc::EACCES]),
        wall: Protection::Root,
    },
    Attempt {
        name: "write_read_only",
        what: "write to a file that is granted read-only",
        call: "write",
        operand: Operand::Shown,
        must: Must::Fail(&[libc::EROFS, libc::EACCES]),
        wall: Protection::Root,
    },
    // The link to an inherited descriptor leads around namespaces and mounts: only Landlock is left.
    Attempt {
        name: "landlock_alone",
        what: "open a file outside of the grants again, through an inherited descriptor",
        call: "reopen-stdin",
        operand: Operand::SecretInStdin,
        must: Must::Fail(&[libc::EACCES]),
        wall: Protection::Landlock,
    },
    Attempt {
        name: "connect_host",
        what: "connect to a server on the host's loopback device",
        call: "connect-tcp",
        operand: Operand::Port,
        must: Must::Fail(&[libc::ECONNREFUSED, libc::ENETUNREACH, libc::EACCES]),
        wall: Protection::NetworkNamespace,
    },
    Attempt {
        name: "connect_abstract",
        what: "connect to an abstract socket of the host",
        call: "connect-abstract",
        operand: Operand::Name,
        must: Must::Fail(&[libc::ECONNREFUSED, libc::EPERM]),
        wall: Protection::LandlockScope,
    },
    Attempt {
        name: "signal_host",
        what: "signal a process of the host",
        call: "signal",
        operand: Operand::Process,
        must: Must::Fail(&[libc::ESRCH, libc::EPERM]),
        wall: Protection::PidNamespace,
    },
    Attempt {
        name: "new_user_namespace",
        what: "make a user namespace",
        call: "new-user-namespace",
        operand: Operand::Nothing,
        must: Must::Fail(&[libc::EPERM]),
        wall: Protection::Seccomp,
    },
    // The kernel itself lets everybody do this: only seccomp refuses it.
    Attempt {
        name: "seccomp_alone",
        what: "join a new keyring",
        call: "new-keyring",
        operand: Operand::Nothing,
        must: Must::Fail(&[libc::EPERM]),
        wall: Protection::Seccomp,
    },
];

impl Attempt {
    /// Why it is no test under this policy, if so.
    pub(crate) fn pointless(&self, policy: &Policy) -> Option<&'static str> {
        if self.operand == Operand::Port && policy.effective_network() == NetworkMode::Host {
            return Some("the profile grants the host's network");
        }
        if self.name == "read_outside" && policy.profile.meaning().shows_host {
            return Some("the profile shows the host's files");
        }
        if self.operand == Operand::Process && std::process::id() <= PROCESSES_INSIDE {
            return Some("the probe's own process has a number that exists inside as well");
        }
        None
    }

    /// The payload's arguments; none where the stage lacks what it needs.
    pub(crate) fn arguments(&self, stage: &Stage) -> Option<[String; 2]> {
        let operand = match self.operand {
            Operand::Nothing | Operand::SecretInStdin => String::new(),
            Operand::Shown => SHOWN_AT.to_owned(),
            Operand::Writable => WRITABLE_AT.to_owned(),
            Operand::Secret => stage.secret().into_os_string().into_string().ok()?,
            Operand::Port => stage.port()?.to_string(),
            Operand::Name => stage.name.clone(),
            Operand::Process => std::process::id().to_string(),
        };
        Some([self.call.to_owned(), operand])
    }
}

// What the attempts are made on: files of the probe's own in a directory that nobody else may enter, and servers
// of its own. All of it goes when this is dropped.

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
