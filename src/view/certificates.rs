//! Certificates of private authorities, such as a company's. Variables of the caller name their files and
//! directories. A variable is no grant, so what cannot be shown is left out without an error.
//!
//! The table is data: add a row for another tool. Never add a variable that names a private key.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::policy::network::NetworkMode;
use crate::report::place_kind::PlaceKind;
use crate::report::remedy::{SettingKey, remedy};
use crate::view::inputs::Inputs;
use crate::view::paths::resolved::ResolvedPath;
use crate::view::root::over;
use crate::view::toolchains::search_path::{is_trusted, is_visible};
use crate::view::{Access, Node, View, secrets};

/// Variables that name a file or a directory of certificates, or several of them with colons between.
pub(crate) const CERTIFICATE_VARIABLES: &[&str] = &[
    "AWS_CA_BUNDLE",
    "BUNDLE_SSL_CA_CERT",
    "CARGO_HTTP_CAINFO",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    "COMPOSER_CAFILE",
    "CURL_CA_BUNDLE",
    "DENO_CERT",
    "GIT_PROXY_SSL_CAINFO",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "HEX_CACERTS_PATH",
    "HTTPLIB2_CA_CERTS",
    "JULIA_SSL_CA_ROOTS_PATH",
    "NIX_SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
    "NPM_CONFIG_CAFILE",
    "PERL_LWP_SSL_CA_FILE",
    "PERL_LWP_SSL_CA_PATH",
    "PGSSLROOTCERT",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "SYSTEM_CERTIFICATE_PATH",
    "VAULT_CACERT",
    "VAULT_CAPATH",
    "YARN_HTTPS_CA_FILE_PATH",
    "npm_config_cafile",
];

/// The most entries of a directory of certificates.
const MOST_ENTRIES: usize = 4096;

/// Shows the caller's certificates that are not visible and not covered yet. Call it when the view has all
/// writable grants.
pub(crate) fn show(view: &mut View, inputs: &Inputs<'_>) {
    let mut all = Vec::new();
    for Named { variable, path, resolved } in named(inputs) {
        let at = place(view, &resolved.source.path, &mut all);
        let is_hidden = view.host_path(&at).is_none() && !view.is_covered(&at);
        view.certificates.push((variable, at.clone()));
        if !is_hidden || !is_trusted(view, inputs, &path, &resolved) {
            continue;
        }
        let source = resolved.source;
        match if source.is_dir() { check_directory(&source.path, inputs) } else { Ok(()) } {
            Ok(()) => {
                view.offer(PlaceKind::Certificates, at, Node::Bind { source, access: Access::Read });
            }
            Err(why) => {
                let text = format!("{} is not shown: {why}", source.path.display());
                let remedy = remedy!["let it hold certificates only, or grant it with ", SettingKey::Ro];
                view.note(variable, &text, Some(remedy));
            }
        }
    }
}

/// Where certificates appear: at their own path. Another root has certificates of its own there, and programs
/// that renew them; so those of the host are beside it.
fn place(view: &View, path: &Path, all: &mut Vec<PathBuf>) -> PathBuf {
    if view.root.is_none() {
        return path.to_owned();
    }
    let number = all.iter().position(|known| known == path).unwrap_or_else(|| {
        all.push(path.to_owned());
        all.len() - 1
    });
    over::certificates(number)
}

/// The variables whose certificates are visible in the sandbox, with those of their paths that are.
pub(crate) fn variables(view: &View) -> Vec<(OsString, OsString)> {
    let mut seen: Vec<(OsString, OsString)> = Vec::new();
    for (variable, path) in view.certificates.iter().filter(|(_, path)| is_visible(view, path)) {
        match seen.last_mut() {
            Some((last, paths)) if last == variable => {
                paths.push(":");
                paths.push(path);
            }
            _ => seen.push((variable.into(), path.into())),
        }
    }
    seen
}

/// A file or directory of certificates.
struct Named {
    variable: &'static str,
    /// As the variable names it.
    path: PathBuf,
    resolved: ResolvedPath,
}

/// The files and directories that variables name, if every user may read them. Profile `ci-only` has none,
/// and commands that reach nothing need none.
fn named(inputs: &Inputs<'_>) -> impl Iterator<Item = Named> {
    let reaches_something =
        inputs.policy.effective_network() != NetworkMode::None && !inputs.policy.only_refuses();
    let has_them = reaches_something && inputs.policy.profile.meaning().knows_caller;
    let paths = |&variable: &&'static str| {
        let value = inputs.caller.variable(variable).unwrap_or_default();
        std::env::split_paths(value).map(move |path| (variable, path)).collect::<Vec<_>>()
    };
    let resolved = |(variable, path): (&'static str, PathBuf)| {
        let resolved = path.is_absolute().then(|| ResolvedPath::resolve(&path).ok())??;
        is_usable(&resolved, inputs).then_some(Named { variable, path, resolved })
    };
    CERTIFICATE_VARIABLES.iter().filter(move |_| has_them).flat_map(paths).filter_map(resolved)
}

fn is_usable(resolved: &ResolvedPath, inputs: &Inputs<'_>) -> bool {
    let (path, metadata) = (&resolved.source.path, &resolved.metadata);
    let of_kernel = ["/proc", "/sys", "/dev"].iter().any(|above| path.starts_with(above));
    let is_public = match metadata.is_dir() {
        true => metadata.mode() & 0o005 == 0o005,
        false => metadata.is_file() && metadata.mode() & 0o004 != 0,
    };
    is_public && !of_kernel && !secrets::is_secret(path, inputs.caller)
}

/// Checks that a directory holds nothing but certificates, as far as modes tell: files that every user may
/// read, and links. The links, which have hashes as names, lead to files beside them or to what commands see
/// anyway.
fn check_directory(directory: &Path, inputs: &Inputs<'_>) -> Result<(), String> {
    let unread = |error: io::Error| format!("it cannot be read: {error}");
    for (count, entry) in fs::read_dir(directory).map_err(unread)?.enumerate() {
        let entry = entry.map_err(unread)?;
        let (path, metadata) = (entry.path(), entry.metadata().map_err(unread)?);
        let is_public = metadata.is_file() && metadata.mode() & 0o004 != 0;
        if count == MOST_ENTRIES {
            return Err(format!("it has more than {MOST_ENTRIES} entries"));
        }
        if !(metadata.is_symlink() || is_public) || secrets::is_secret(&path, inputs.caller) {
            return Err(format!("{} in it is no file that every user may read", entry.file_name().display()));
        }
    }
    Ok(())
}
