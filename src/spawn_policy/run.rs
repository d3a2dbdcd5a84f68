//! From a checked spawn to its end: a policy is made of it, and the engine of every other command runs it. No wall is put up
//! here.

use std::{ffi::OsString, path::Path, time::Duration};

use super::{
    checked::CheckedSpawn,
    credential::{CredentialResolver, Secret},
    error::SpawnError,
    limits::Effective,
    paths::Resolved,
    program,
};
use crate::{
    Audit, Command, Error, Host, NetworkMode, Output, Policy, Profile, Sandbox, Toolchains,
    caller::Caller,
    compile::{self, OwnProgram},
    prepared::Prepared,
    start::Images,
};

/// Loads the program, prepares the sandbox, has the credentials resolved, and runs it. In this order: nobody is asked for a
/// secret that nothing could be done with.
pub(super) async fn run(
    spawn: &CheckedSpawn,
    audit: Option<&Audit>,
    resolver: &dyn CredentialResolver,
) -> Result<Output, SpawnError> {
    let mut command = prepare(spawn, audit, own_copy(spawn).await?)?;
    command.secrets(resolve(&spawn.credentials, resolver).await?);
    let output = match &spawn.stdin {
        Some(input) => command.output_with_input(input.as_bytes()).await,
        None => command.output().await,
    };
    Ok(output?)
}

/// The sandbox's own copy of a program that has a hash.
async fn own_copy(spawn: &CheckedSpawn) -> Result<Option<OwnProgram>, SpawnError> {
    let Some(hash) = spawn.hash else { return Ok(None) };
    let (path, named) = (spawn.program.clone(), spawn.called.display().to_string());
    let at = program::own_place(&spawn.called);
    // Reading and hashing a large program takes its time, which others have a use for.
    let loaded = tokio::task::spawn_blocking(move || program::load(&path, &named, hash)).await;
    let contents = loaded.map_err(|error| Error::io("load the program")(error.into()))??;
    Ok(Some(OwnProgram { at, contents }))
}

/// A command that only lacks its credentials.
fn prepare(spawn: &CheckedSpawn, audit: Option<&Audit>, own: Option<OwnProgram>) -> Result<Command, Error> {
    let sandbox = sandbox(spawn, audit, own.as_ref())?;
    let mut command = sandbox.command(own.as_ref().map_or(&*spawn.program, |own| &own.at));
    command.called(&spawn.called).args(&spawn.arguments).output_caps(spawn.limits.output);
    for (name, value) in &spawn.environment {
        command.env(name, value);
    }
    Ok(command)
}

/// The sandbox that the spawn runs in.
fn sandbox(spawn: &CheckedSpawn, audit: Option<&Audit>, own: Option<&OwnProgram>) -> Result<Sandbox, Error> {
    let policy = Policy { audit: audit.cloned(), ..policy(spawn, own.is_some()) };
    let (host, caller) = (Host::detect_for(&policy), Caller::current());
    let compiled = compile::compile_program(&policy, &host, &caller, own)?;
    let images = Images::new(compile::spawn_options(&policy, &host, &caller))?;
    Ok(Sandbox::once(Prepared::new(compiled, images)?))
}

/// What the spawn may see, use and reach. It has no workspace.
fn policy(spawn: &CheckedSpawn, has_copy: bool) -> Policy {
    let mut policy = Policy::profile(Profile::RepoWrite, ".")
        .toolchains(Toolchains::None)
        .cwd(spawn.cwd.as_deref().unwrap_or(Path::new("/")))
        .timeout(spawn.limits.wall);
    policy.limits.memory = Some(spawn.limits.memory);
    policy.network.mode = Some(if spawn.hosts.is_empty() { NetworkMode::None } else { NetworkMode::Proxy });
    policy.network.allow.clone_from(&spawn.hosts);
    policy.env.pass.clone_from(&spawn.passed);
    policy.files.extend(spawn.manifest.clone());
    for path in &spawn.reads {
        policy = policy.read_only(path);
    }
    for path in &spawn.writes {
        policy = policy.read_write(path);
    }
    let is_shown = has_copy || compile::is_of_system(&spawn.program);
    if is_shown || spawn.reads.contains(&spawn.program) { policy } else { policy.read_only(&spawn.program) }
}

/// The value of each credential.
async fn resolve(
    keys: &[String],
    resolver: &dyn CredentialResolver,
) -> Result<Vec<(OsString, Secret)>, SpawnError> {
    let mut secrets = Vec::with_capacity(keys.len());
    for key in keys {
        let failed = |source| SpawnError::CredentialFailed { key: key.clone(), source };
        let secret = resolver.resolve(key).await.map_err(failed)?;
        let secret = secret.filter(|secret| !secret.expose().is_empty());
        let secret = secret.ok_or_else(|| SpawnError::CredentialRequired { key: key.clone() })?;
        if secret.expose().contains(&0) {
            return Err(failed("the value contains a NUL byte".into()));
        }
        secrets.push((key.into(), secret));
    }
    Ok(secrets)
}

/// Starts a sandbox as every spawn has one, and no program in it.
///
/// # Errors
/// Those of [`Sandbox::try_start`].
pub(super) async fn try_start() -> Result<(), Error> {
    let nothing = Resolved { named: "none".into(), path: "/usr/.kennel/none".into() };
    let nothing = CheckedSpawn::of(nothing, Effective::ceiling(Duration::from_secs(10)));
    sandbox(&nothing, None, None)?.try_start().await
}
