//! Templates: what a sandbox is made from.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kennel::{Limits, Mount, NetworkMode, Policy, Profile, Span};
use serde::Deserialize;

use crate::wire::sandbox::Making;
use crate::wire::{HOME, StateDirectory};

/// The template where nobody names one.
pub(crate) const USUAL_TEMPLATE: &str = "base";

/// The longest life of a sandbox, if the template names none: E2B's.
const USUAL_LIFE: Duration = Duration::from_secs(24 * 60 * 60);

/// The keys of `[template.NAME]`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TemplateFile {
    policy: Option<PathBuf>,
    image: Option<String>,
    files: Option<PathBuf>,
    commit: bool,
    env: BTreeMap<String, String>,
    limits: Option<Limits>,
    life: Option<Span>,
    idle: Option<Span>,
    login: bool,
    public_ports: bool,
    ready: usize,
}

/// A template, checked.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    pub(crate) policy: Policy,
    files: Option<PathBuf>,
    commit: bool,
    /// The longest life that a client can ask for.
    pub(crate) life: Duration,
    idle: Option<Duration>,
    login: bool,
    public_ports: bool,
    /// How many sandboxes are kept prepared.
    pub(crate) ready: usize,
}

impl Template {
    /// `secrets` are files of the server that no sandbox may read.
    pub(crate) fn new(
        file: TemplateFile,
        directory: &Path,
        state: &StateDirectory,
        secrets: &[PathBuf],
    ) -> Result<Self, String> {
        let mut policy = match &file.policy {
            Some(path) => {
                let path = directory.join(path);
                Policy::load(&path)
                    .map_err(|error| format!("policy: {}", kennel::Error::from(error).chain()))?
            }
            None => Policy::profile(Profile::RepoWrite, HOME),
        };
        if let Some(image) = file.image {
            policy.image = Some(image);
        }
        if let Some(limits) = file.limits {
            policy.limits = limits;
        }
        policy.env.set.extend(file.env);
        // The sandbox's own directory takes the place of a workspace, and exists only then.
        let check = Policy { workspace: HOME.into(), ..policy.clone() };
        check.validate().map_err(|error| kennel::Error::from(error).chain())?;
        let files = match file.files {
            Some(path) => {
                let path = directory.join(path);
                Some(fs::canonicalize(&path).map_err(|error| format!("files: {}: {error}", path.display()))?)
            }
            None => None,
        };
        if file.commit && files.is_none() {
            return Err(
                "commit: there are no files to which changes could be applied; name some: files = DIR"
                    .to_owned(),
            );
        }
        refuse_state(&policy, files.as_deref(), state, secrets)?;
        // The system of the host is shown, and groups of the server's user may read much of it.
        policy.mounts.extend(secrets.iter().map(|path| Mount::Mask { path: path.clone() }));
        Ok(Self {
            policy,
            files,
            commit: file.commit,
            life: file.life.map_or(USUAL_LIFE, Span::duration),
            idle: file.idle.map(Span::duration),
            login: file.login,
            public_ports: file.public_ports,
            ready: file.ready,
        })
    }

    /// What a host makes a sandbox from, with a policy that may be narrower than that of the template.
    pub(crate) fn making(&self, name: &str, policy: Policy) -> Making {
        Making {
            template: name.to_owned(),
            policy_files: policy.files.clone(),
            policy,
            files: self.files.clone(),
            commit: self.commit,
            login: self.login,
            public_ports: self.public_ports,
            idle_ms: self.idle.map(|idle| u64::try_from(idle.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

/// Refuses a template whose sandboxes would see those of others, the seed of all tokens, or other secrets.
fn refuse_state(
    policy: &Policy,
    files: Option<&Path>,
    state: &StateDirectory,
    secrets: &[PathBuf],
) -> Result<(), String> {
    if policy.profile == Profile::FullDev {
        return Err(
            "policy: profile full-dev shows the host's files, and those of other sandboxes; take another"
                .to_owned(),
        );
    }
    if policy.network.mode == Some(NetworkMode::Host) {
        return Err("policy: network.mode host lets sandboxes reach this server and each other; take proxy"
            .to_owned());
    }
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let state = real(state.path());
    let sources = policy.mounts.iter().filter_map(|mount| match mount {
        Mount::ReadOnly { source, .. } | Mount::ReadWrite { source, .. } => Some(source.as_path()),
        _ => None,
    });
    for source in sources.chain(files).chain(policy.root.as_deref()) {
        let found = real(source);
        if state.starts_with(&found) || found.starts_with(&state) {
            return Err(format!(
                "{}: it shows the state directory {}, with other sandboxes",
                source.display(),
                state.display()
            ));
        }
        if let Some(secret) = secrets.iter().find(|secret| secret.starts_with(&found)) {
            return Err(format!(
                "{}: it shows {}, which is the server's",
                source.display(),
                secret.display()
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(policy: &str) -> Result<Template, String> {
        let dir = tempfile::tempdir().expect("a directory");
        let state = StateDirectory(dir.path().join("state"));
        fs::create_dir(state.path()).expect("made");
        fs::create_dir(dir.path().join("other")).expect("made");
        fs::write(dir.path().join("p.toml"), policy).expect("written");
        let file = TemplateFile { policy: Some("p.toml".into()), ..TemplateFile::default() };
        Template::new(file, dir.path(), &state, &[])
    }

    #[test]
    fn no_template_shows_the_state_directory() {
        template("[[mounts]]\ntype = 'rw'\nsource = 'other'").expect("another directory");
        for source in [".", "..", "state", "/"] {
            let policy = format!("[[mounts]]\ntype = 'ro'\nsource = '{source}'");
            template(&policy).expect_err(source);
        }
        template("profile = 'full-dev'").expect_err("all of the host");
        template("network.mode = 'host'").expect_err("the network of the host");
    }
}
