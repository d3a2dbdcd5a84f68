//! Runs a checked spawn: builds a policy from it and runs it with the same engine as every other command.

use std::fs::File;
use std::io;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use sha2::{Digest, Sha256};

use crate::audit::log::Log;
use crate::audit::record::{ArgumentsShape, Record, SpawnRecord};
use crate::audit::trail::{Origin, Trail};
use crate::broker::SpawnPolicy;
use crate::broker::checked::{CheckedSpawn, CredentialResolver, SpawnLimits};
use crate::broker::envelope::Envelope;
use crate::broker::paths::{Resolved, expanded, is_written};
use crate::caller::Caller;
use crate::command::Command;
use crate::host::Host;
use crate::launch::image::Images;
use crate::launch::prepared::Prepared;
use crate::plan::compile;
use crate::policy::Policy;
use crate::policy::audit::Audit;
use crate::policy::network::NetworkMode;
use crate::policy::profile::{Profile, Toolchains};
use crate::policy::units::Size;
use crate::report::error::Error;
use crate::report::error::spawn::{Hash, SpawnError};
use crate::report::outcome::Output;
use crate::session::sandbox::Sandbox;
use crate::sys::secret::Secret;
use crate::view::inputs::{OwnProgram, ProgramInputs};
use crate::view::{inputs, system};

impl CheckedSpawn {
    /// Runs the program in Kennel's sandbox, with exactly what was checked. Loads the program, prepares the
    /// sandbox, resolves the credentials, and runs the program. Credentials come last, so that the resolver
    /// is never asked for a secret that would not be used.
    ///
    /// ```no_run
    /// use kennel::broker::{Envelope, Manifest, NoCredentials, SpawnPolicy};
    ///
    /// # async fn example() -> Result<(), kennel::broker::SpawnError> {
    /// let policy = SpawnPolicy::new(Manifest::load("gh.toml".as_ref())?);
    /// let checked = policy.check(&Envelope::new("gh", &["--version"]))?;
    /// println!("{}", String::from_utf8_lossy(&checked.run(&NoCredentials).await?.stdout));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The program cannot be loaded or does not match its hash; a credential is missing; the sandbox could
    /// not be prepared.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn run(&self, resolver: &dyn CredentialResolver) -> Result<Output, SpawnError> {
        let mut command = prepare(self, own_copy(self).await?)?;
        let secrets = self.resolve(resolver).await?;
        command.secrets(secrets.into_iter().map(|(key, secret)| (key.into(), secret)).collect());
        let output = match &self.stdin {
            Some(input) => command.output_with_input(input.as_bytes()).await,
            None => command.output().await,
        };
        Ok(output?)
    }

    /// Asks `resolver` for each of the [`credentials`](Self::credentials), for an executor of your own: ask
    /// last, and put the values into the environment of the program only.
    ///
    /// # Errors
    /// A value is missing, or cannot be in an environment.
    pub async fn resolve(
        &self,
        resolver: &dyn CredentialResolver,
    ) -> Result<Vec<(String, Secret)>, SpawnError> {
        let mut secrets = Vec::with_capacity(self.credentials.len());
        for key in &self.credentials {
            let failed = |source| SpawnError::CredentialFailed { key: key.clone(), source };
            let secret = resolver.resolve(key).await.map_err(failed)?;
            let secret = secret.filter(|secret| !secret.expose().is_empty());
            let secret = secret.ok_or_else(|| SpawnError::CredentialRequired { key: key.clone() })?;
            if secret.expose().contains(&0) {
                return Err(failed("the value contains a NUL byte".into()));
            }
            secrets.push((key.clone(), secret));
        }
        Ok(secrets)
    }
}

/// A copy of the program for the sandbox, if the manifest has a hash for it.
async fn own_copy(spawn: &CheckedSpawn) -> Result<Option<OwnProgram>, SpawnError> {
    let Some(hash) = spawn.hash else { return Ok(None) };
    let (path, named) = (spawn.program.clone(), spawn.called.display().to_string());
    let at = own_place(&spawn.called);
    // Reading and hashing a large program takes time, so do not block the runtime.
    let loaded = tokio::task::spawn_blocking(move || load(&path, &named, hash)).await;
    let contents = loaded.map_err(|error| Error::io("load the program")(error.into()))??;
    Ok(Some(OwnProgram { at, contents }))
}

/// The command, complete except for its credentials.
fn prepare(spawn: &CheckedSpawn, own: Option<OwnProgram>) -> Result<Command, Error> {
    let sandbox = sandbox(spawn, own.as_ref())?;
    let mut command = sandbox.command(own.as_ref().map_or(&*spawn.program, |own| &own.at));
    command.arg0(&spawn.called).args(spawn.arguments()).output_caps([spawn.stdout_cap(), spawn.stderr_cap()]);
    for (name, value) in &spawn.environment {
        command.env(name, value);
    }
    Ok(command)
}

/// The sandbox that the spawn runs in.
fn sandbox(spawn: &CheckedSpawn, own: Option<&OwnProgram>) -> Result<Sandbox, Error> {
    let policy = Policy { audit: spawn.audit.clone(), ..policy(spawn, own.is_some()) };
    let (host, caller) = (Host::detect_for(&policy), Caller::current());
    let program = ProgramInputs { own, variables: &spawn.passed };
    let compiled = compile::compile_program(&policy, &host, &caller, program)?;
    let images = Images::new(inputs::spawn_options(&policy, &host, &caller))?;
    Ok(Sandbox::once(Prepared::new(compiled, images)?.with_origin(spawn.origin.clone())))
}

/// The policy of the spawn. It has no workspace.
fn policy(spawn: &CheckedSpawn, has_copy: bool) -> Policy {
    let mut policy = Policy::profile(Profile::RepoWrite, ".")
        .toolchains(Toolchains::None)
        .cwd(spawn.cwd.as_deref().unwrap_or(Path::new("/")))
        .timeout(spawn.limits.wall_time());
    policy.limits.memory = Some(Size::from_bytes(spawn.limits.memory_bytes()));
    policy.network.mode = Some(if spawn.hosts.is_empty() { NetworkMode::None } else { NetworkMode::Proxy });
    policy.network.allow.clone_from(&spawn.hosts);
    policy.files.extend(spawn.manifest.clone());
    for path in &spawn.reads {
        policy = policy.read_only(path);
    }
    for path in &spawn.writes {
        policy = policy.read_write(path);
    }
    let is_shown = has_copy || system::is_system_path(&spawn.program);
    if is_shown || spawn.reads.contains(&spawn.program) { policy } else { policy.read_only(&spawn.program) }
}

/// Starts a sandbox like that of a spawn, without a program in it.
///
/// # Errors
/// Those of [`Sandbox::try_start`].
pub(crate) async fn try_start() -> Result<(), Error> {
    let nothing = Resolved { named: "none".into(), path: "/usr/.kennel/none".into() };
    let nothing = CheckedSpawn::of(nothing, SpawnLimits::most(10));
    sandbox(&nothing, None)?.try_start().await
}

// Audit records: each decision, with the shape of arguments and the names of variables, but no values.

/// An open audit log, and the settings that sandboxes get for it.
#[derive(Clone, Debug)]
pub(crate) struct BrokerAudit {
    pub(crate) audit: Audit,
    trail: Arc<Trail>,
}

impl BrokerAudit {
    /// # Errors
    /// The log cannot be opened.
    pub(crate) fn open(audit: Audit, connector: Option<Arc<str>>) -> Result<Self, Error> {
        // Arguments may hold secret values here, so never log them.
        let path =
            std::path::absolute(&audit.path).map_err(Error::io("find the directory of the audit log"))?;
        let audit = Audit { path, arguments: false, ..audit };
        let origin = Origin { connector, spawn: None, root: None };
        let trail = Trail::new(Some(&Arc::new(Log::open(&audit)?)), origin);
        Ok(Self { audit, trail })
    }

    /// Whom the sandbox of a spawn is about. `id` is that of the record that allowed the spawn.
    pub(crate) fn origin(&self, id: Option<String>) -> Origin {
        Origin { spawn: id.map(Into::into), ..self.trail.origin().clone() }
    }
}

impl SpawnPolicy {
    /// Records a decision and returns the id of the record. `allowed` is the record of an earlier decision
    /// about the same spawn.
    ///
    /// # Errors
    /// The record cannot be written, and the log is `fail_closed`.
    pub(crate) fn record(
        &self,
        envelope: &Envelope,
        found: Result<&CheckedSpawn, &SpawnError>,
        decision: &'static str,
        allowed: Option<&str>,
    ) -> Result<Option<String>, SpawnError> {
        let Some(audit) = &self.audit else { return Ok(None) };
        let operation = found.ok().and_then(CheckedSpawn::operation);
        let failure = found.err().map(SpawnError::failure);
        let written = audit.trail.write(None, || {
            Record::Spawn(SpawnRecord {
                allowed,
                decision,
                program: &envelope.program,
                operation,
                shape: self.shape(envelope, operation),
                variables: envelope.env.keys().map(String::as_str).collect(),
                credentials: envelope.credential_env_keys.iter().map(String::as_str).collect(),
                directory: envelope.cwd.as_deref(),
                class: failure.as_ref().map(|failure| failure.class),
                reason: failure.map(|failure| failure.message),
            })
        });
        written.map_err(|error| Error::from(error).into())
    }

    fn shape(&self, envelope: &Envelope, operation: Option<&str>) -> ArgumentsShape {
        let pattern = operation.and_then(|name| self.manifest.spawn.operations.get(name));
        let lengths = || ArgumentsShape::Lengths(envelope.arguments().iter().map(String::len).collect());
        pattern.map_or_else(lengths, |operation| ArgumentsShape::Pattern(operation.to_string()))
    }
}

// Loading the program: Kennel reads it once, compares its hash, and puts the bytes it read into the sandbox.
// Later changes to the file on the host have no effect.

/// Largest program that can have a hash, in bytes: Kennel holds it in memory.
const LARGEST: u64 = 512 << 20;

/// The execute bits of owner, group and others.
const EXECUTABLE: u32 = 0o111;

/// The directory of the program's copy inside the sandbox. Nothing of the host is mounted there, so no host
/// process can remove it.
const OWN: &str = "/run/kennel/program";

/// The path inside the sandbox for the copy of the program at `path`.
pub(crate) fn own_place(path: &Path) -> PathBuf {
    Path::new(OWN).join(path.file_name().unwrap_or_default())
}

/// Reads the program at `path`, which must contain no link, and compares its hash.
///
/// # Errors
/// The file is missing, is not a readable and executable regular file, is too large, or has another hash.
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

/// Opens `path` without following a link and without waiting for the writer of a FIFO. Does not use
/// `below::open`, which retries on `EAGAIN`: here `EAGAIN` means that another process holds a lease, and that
/// is not worth waiting for.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    let how = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    match openat2(nix::fcntl::AT_FDCWD, path, how) {
        // Some containers block openat2(2). The fallback is safe, because the hash covers the bytes that are
        // read.
        Err(nix::errno::Errno::ENOSYS | nix::errno::Errno::EPERM) => {
            Ok(nix::fcntl::open(path, flags, nix::sys::stat::Mode::empty())?.into())
        }
        opened => Ok(opened?.into()),
    }
}

impl SpawnPolicy {
    /// Refuses a file that programs of the manifest could replace with another file or with a link. Such a
    /// file is inside `fs_write`, is listed there itself, or is reached through it. Call this before you open
    /// a file for a spawn with rights that the program does not have, such as a credential file. Messages
    /// call the file `what`. The file need not exist.
    ///
    /// ```
    /// use kennel::broker::{Manifest, SpawnPolicy};
    ///
    /// let manifest = "[capabilities.spawn]\nprograms = []\nfs_write = ['/tmp']";
    /// let policy = SpawnPolicy::new(Manifest::from_toml(manifest)?);
    /// policy.check_outside("credential file", "/etc/token".as_ref())?;
    /// let error = policy.check_outside("credential file", "/tmp/token".as_ref()).unwrap_err();
    /// assert!(error.chain().contains("fs_write"));
    /// # Ok::<(), kennel::broker::SpawnError>(())
    /// ```
    ///
    /// # Errors
    /// Programs could replace the file, or Kennel may not look at a directory on the way.
    pub fn check_outside(&self, what: &'static str, path: &Path) -> Result<(), SpawnError> {
        let absolute = std::path::absolute(path).map_err(Error::io("find the current directory"))?;
        if !is_written(what, &absolute, &self.writable())? {
            return Ok(());
        }
        let reason = "programs could replace it, because it is in fs_write or is reached through it";
        let remedy = Some("keep it outside of the manifest's fs_write".into());
        let (path, source) = (path.to_owned(), io::Error::other(reason));
        Err(Error::Grant { what, path, source, remedy }.into())
    }

    /// The paths that programs may write, with links resolved. Keeps a missing path as written, because it
    /// may appear later.
    fn writable(&self) -> Vec<PathBuf> {
        let written = &self.manifest.spawn.fs_write;
        let named = written.iter().filter_map(|path| expanded(path, &self.home).ok());
        named.map(|named| named.canonicalize().unwrap_or(named)).collect()
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
