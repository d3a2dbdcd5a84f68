//! Checks an envelope: first against the manifest, then against the action's programs, then its credentials.
//! Reads paths on the host; starts nothing and asks no resolver.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::broker::SpawnPolicy;
use crate::broker::checked::CheckedSpawn;
use crate::broker::envelope::Envelope;
use crate::broker::manifest::{Manifest, Program};
use crate::broker::operation::Operation;
use crate::broker::paths::{Resolved, expanded, is_written};
use crate::report::error::spawn::SpawnError;
use crate::report::failure::Boundary::{Action, Manifest as ManifestBoundary};

impl SpawnPolicy {
    pub(crate) fn checked(&self, envelope: &Envelope) -> Result<CheckedSpawn, SpawnError> {
        let (manifest, home) = (&self.manifest, &*self.home);
        let (program, resolved) = program(manifest, &envelope.program, home)?;
        let operation = operation(manifest, program, envelope)?;
        let grants = GrantedPaths::of(manifest, home)?;
        // If Kennel may not look there, assume that commands can write there.
        let is_theirs = || is_written("program", &resolved.named, &grants.writes).unwrap_or(true);
        if program.hash.is_none() && is_theirs() {
            let reason = "is in fs_write, where commands could replace it; give its hash";
            return Err(SpawnError::denied(ManifestBoundary, "program", &program.path, reason, NOTHING));
        }
        environment(manifest, envelope)?;
        let cwd = cwd(manifest, envelope, &grants, home)?;
        if let Some(narrower) = &self.narrower {
            action(narrower, manifest, program, envelope, home)?;
        }
        credentials(manifest, envelope)?;
        let is_free = |name: &String| {
            let own = &manifest.spawn.credential_env_keys;
            own.iter().all(|key| key.0 != *name)
                && !envelope.credential_env_keys.contains(name)
                && !envelope.env.contains_key(name)
        };
        let passed = manifest.spawn.env_passthrough.iter().map(|name| name.0.clone()).filter(is_free);
        let passed = self.passed(passed)?;
        Ok(CheckedSpawn {
            hash: program.hash,
            argv: envelope.argv.clone(),
            operation,
            environment: envelope.env.clone(),
            passed,
            credentials: envelope.credential_env_keys.clone(),
            stdin: envelope.stdin.clone(),
            cwd,
            reads: grants.reads,
            writes: grants.writes,
            manifest: manifest.file.clone(),
            hosts: manifest.hosts.clone(),
            audit: self.audit.as_ref().map(|own| own.audit.clone()),
            ..CheckedSpawn::of(resolved, self.limits.or(&manifest.spawn.limits))
        })
    }
}

impl SpawnPolicy {
    /// The values of variables that a spawn does not set itself. An empty one is none.
    fn passed(&self, names: impl Iterator<Item = String>) -> Result<BTreeMap<String, OsString>, SpawnError> {
        let mut passed = BTreeMap::new();
        for name in names {
            let value = self.variables.value(&name).unwrap_or_default();
            if value.as_encoded_bytes().contains(&0) {
                let reason = "its value contains a NUL byte";
                return Err(SpawnError::denied(Action, "environment variable", name, reason, NOTHING));
            }
            if !value.is_empty() {
                passed.insert(name, value);
            }
        }
        Ok(passed)
    }
}

/// An empty list of alternatives.
const NOTHING: [&str; 0] = [];

/// Finds the program of the manifest by its name, or by the file that its path leads to.
fn program<'m>(
    manifest: &'m Manifest,
    asked: &str,
    home: &Path,
) -> Result<(&'m Program, Resolved), SpawnError> {
    let programs = &manifest.spawn.programs;
    let denied = |reason: &str| {
        let granted = programs.iter().map(|program| program.path.as_str());
        SpawnError::denied(ManifestBoundary, "program", asked, reason, granted)
    };
    let resolve = |program: &Program| {
        Resolved::of(&program.path, home)
            .map_err(|source| SpawnError::Load { program: program.path.clone(), source })
    };
    if !asked.contains('/') {
        let mut called = programs.iter().filter(|program| program.is_called(asked));
        return match (called.next(), called.next()) {
            (Some(program), None) => Ok((program, resolve(program)?)),
            (Some(_), Some(_)) => {
                Err(denied("the manifest has several programs of that name; give the path"))
            }
            (None, _) => Err(denied("is not in the manifest")),
        };
    }
    let found = meant(manifest, asked, home).ok_or_else(|| denied("is not in the manifest"))?;
    Ok((found, resolve(found)?))
}

/// Finds the program of the manifest that a path leads to. If several programs are the same file, as with
/// busybox, the path must match one of them as written, because each does something else.
fn meant<'m>(manifest: &'m Manifest, path: &str, home: &Path) -> Option<&'m Program> {
    let path = Resolved::of(path, home).ok()?;
    // A program that cannot be resolved does not match.
    let leads = |program: &&Program| Resolved::of(&program.path, home).is_ok_and(|own| own.path == path.path);
    let named = |program: &&Program| expanded(&program.path, home).is_ok_and(|named| named == path.named);
    let mut there = manifest.spawn.programs.iter().filter(leads);
    there.clone().find(named).or_else(|| there.next().filter(|_| there.next().is_none()))
}

/// The operation that the argument vector matches. If the manifest has no operations, every one is allowed.
fn operation(
    manifest: &Manifest,
    program: &Program,
    envelope: &Envelope,
) -> Result<Option<String>, SpawnError> {
    let count = || format!("of {} arguments", envelope.arguments().len());
    if envelope.argv.is_empty() {
        return Err(SpawnError::denied(Action, "argument list", count(), "argv is required", NOTHING));
    }
    if envelope.argv.iter().any(|argument| argument.contains('\0')) {
        let reason = "contains a NUL byte";
        return Err(SpawnError::denied(ManifestBoundary, "argument list", count(), reason, NOTHING));
    }
    if manifest.spawn.operations.is_empty() {
        return Ok(None);
    }
    let of_program = |operation: &Operation| program.is_called(&operation.program);
    let own = manifest.spawn.operations.iter().filter(|(_, operation)| of_program(operation));
    match own.clone().find(|(_, operation)| operation.matches(&envelope.argv).is_some()) {
        Some((name, _)) => Ok(Some(name.clone())),
        None => {
            let granted = own.map(|(_, operation)| operation.to_string());
            let reason = "is not one of the manifest's operations";
            Err(SpawnError::denied(ManifestBoundary, "argument list", count(), reason, granted))
        }
    }
}

/// Checks that the caller may set each variable.
fn environment(manifest: &Manifest, envelope: &Envelope) -> Result<(), SpawnError> {
    let spawn = &manifest.spawn;
    for (name, value) in &envelope.env {
        let passed = spawn.env_passthrough.iter().map(|name| name.0.as_str());
        let denied = |reason: &str| {
            Err(SpawnError::denied(ManifestBoundary, "environment variable", name, reason, passed.clone()))
        };
        let is_credential = spawn.credential_env_keys.iter().any(|key| key.0 == *name);
        if is_credential || envelope.credential_env_keys.contains(name) {
            return denied("is a credential, whose value only the host resolves");
        }
        if passed.clone().all(|known| known != name) {
            return denied("is not in env_passthrough");
        }
        if value.contains('\0') {
            return denied("contains a NUL byte");
        }
    }
    Ok(())
}

/// The working directory. It is the manifest's, if that has one, else any that the manifest grants.
fn cwd(
    manifest: &Manifest,
    envelope: &Envelope,
    grants: &GrantedPaths,
    home: &Path,
) -> Result<Option<PathBuf>, SpawnError> {
    let is_granted = |path: &Path| grants.has(path) && path.is_dir();
    let shown = || grants.reads.iter().chain(&grants.writes).map(|path| path.display().to_string());
    let denied = |asked: &str, reason: &str, granted: Vec<String>| {
        SpawnError::denied(ManifestBoundary, "working directory", asked, reason, granted)
    };
    let neither =
        |asked: &str| denied(asked, "is a directory in neither fs_read nor fs_write", shown().collect());
    // The caller must not learn which other directories exist, so one that does not exist is just another
    // one.
    let asked = envelope.cwd.as_deref().filter(|cwd| !cwd.is_empty());
    let asked = asked.map(|cwd| (cwd, Resolved::of(cwd, home).ok()));
    let Some(own) = &manifest.spawn.cwd else {
        let Some((cwd, resolved)) = asked else { return Ok(None) };
        let resolved = resolved.filter(|resolved| is_granted(&resolved.path));
        return resolved.map(|resolved| Some(resolved.path)).ok_or_else(|| neither(cwd));
    };
    let rule = Resolved::of(own, home).map_err(|source| SpawnError::Path {
        what: "cwd",
        path: own.clone(),
        source,
    })?;
    if !is_granted(&rule.path) {
        return Err(neither(own));
    }
    match asked {
        Some((cwd, resolved)) if resolved.as_ref().is_none_or(|resolved| resolved.path != rule.path) => {
            Err(denied(cwd, "is not the cwd of the manifest", vec![own.clone()]))
        }
        _ => Ok(Some(rule.path)),
    }
}

/// Checks that the action's own list has the program too.
fn action(
    narrower: &[String],
    manifest: &Manifest,
    program: &Program,
    envelope: &Envelope,
    home: &Path,
) -> Result<(), SpawnError> {
    let has = |entry: &String| {
        if entry.contains('/') {
            meant(manifest, entry, home) == Some(program)
        } else {
            program.is_called(entry)
        }
    };
    if narrower.iter().any(has) {
        return Ok(());
    }
    let reason = "is not among the action's programs";
    Err(SpawnError::denied(Action, "program", &envelope.program, reason, narrower))
}

/// Checks that each credential is in the manifest, and listed only once.
fn credentials(manifest: &Manifest, envelope: &Envelope) -> Result<(), SpawnError> {
    let spawn = &manifest.spawn;
    let known = || spawn.credential_env_keys.iter().chain(&spawn.env_passthrough).map(|key| key.0.as_str());
    for (at, key) in envelope.credential_env_keys.iter().enumerate() {
        let denied = |reason| Err(SpawnError::denied(ManifestBoundary, "credential", key, reason, known()));
        if known().all(|known| known != key) {
            return denied("is not in credential_env_keys");
        }
        if envelope.credential_env_keys.iter().take(at).any(|other| other == key) {
            return denied("is listed twice");
        }
    }
    Ok(())
}

// The paths that a manifest grants.

/// The granted paths, with links resolved.
pub(crate) struct GrantedPaths {
    pub(crate) reads: Vec<PathBuf>,
    pub(crate) writes: Vec<PathBuf>,
}

impl GrantedPaths {
    pub(crate) fn of(manifest: &Manifest, home: &Path) -> Result<Self, SpawnError> {
        let resolve = |what: &'static str, path: &String| {
            let path_error = |source| SpawnError::Path { what, path: path.clone(), source };
            Resolved::of(path, home).map_err(path_error)
        };
        let all = |what: &'static str, paths: &[String]| {
            // Drop duplicates: `uncovered` compares each path with all others.
            let mut seen = HashSet::new();
            let paths = paths.iter().filter(|path| seen.insert(*path));
            paths.map(|path| resolve(what, path)).collect::<Result<Vec<_>, _>>()
        };
        let reads = all("fs_read", &manifest.spawn.fs_read)?;
        let writes = all("fs_write", &manifest.spawn.fs_write)?;
        let is_only_read = |path: &PathBuf| !writes.iter().any(|root| root.path == *path);
        Ok(Self {
            reads: Self::uncovered("fs_read", &reads, &writes)?.into_iter().filter(is_only_read).collect(),
            writes: Self::uncovered("fs_write", &writes, &writes)?,
        })
    }

    /// Returns the paths that no other writable path covers. Refuses a path that is reached through a
    /// writable one and leads out of it, because commands could make it lead elsewhere.
    fn uncovered(
        what: &'static str,
        paths: &[Resolved],
        writes: &[Resolved],
    ) -> Result<Vec<PathBuf>, SpawnError> {
        let mut kept: Vec<PathBuf> = Vec::new();
        for path in paths {
            let roots = writes.iter().filter(|root| root.named != path.named).map(|root| root.path.as_path());
            let covered =
                writes.iter().any(|root| path.path != root.path && path.path.starts_with(&root.path));
            if !covered && path.is_led_by(roots) {
                let reason = "is reached through fs_write, so commands could make it lead elsewhere";
                let requested = path.named.display();
                return Err(SpawnError::denied(ManifestBoundary, what, requested, reason, NOTHING));
            }
            if !covered && !kept.contains(&path.path) {
                kept.push(path.path.clone());
            }
        }
        Ok(kept)
    }

    pub(crate) fn has(&self, path: &Path) -> bool {
        self.reads.iter().chain(&self.writes).any(|root| path.starts_with(root))
    }
}
