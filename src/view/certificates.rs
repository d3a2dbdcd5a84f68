//! Bundles of certificates. A network may have its own certificate authorities, and variables of the caller name their
//! bundles. A variable is no grant, so a bundle that cannot be shown is left out without an error.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::policy::network::NetworkMode;
use crate::view::inputs::Inputs;
use crate::view::resolved_path::ResolvedPath;
use crate::view::{Access, Node, View, secrets};

/// Variables that name bundles of certificates.
const CERTIFICATE_VARIABLES: &[&str] = &[
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
];

/// Shows the caller's bundles that are not visible and not covered yet. Call it when the view has all writable grants.
pub(crate) fn show(view: &mut View, inputs: &Inputs<'_>) {
    for (variable, resolved) in named_bundles(inputs) {
        if let Some(link) = resolved.link_in_writable_grant(view) {
            let link = link.display();
            tracing::warn!(variable, %link, "no certificates are shown: commands could have made this link to them");
            continue;
        }
        let source = resolved.source;
        if view.host_path(&source.path).is_none() && !view.is_covered(&source.path) {
            view.offer("certificates", source.path.clone(), Node::Bind { source, access: Access::Read });
        }
    }
}

/// The variables whose bundles are visible in the sandbox.
pub(crate) fn variables(inputs: &Inputs<'_>, view: &View) -> Vec<(OsString, OsString)> {
    let is_seen =
        |path: &PathBuf| view.host_path(path).is_some_and(|shown| shown == *path) && !view.is_covered(path);
    let seen = |(variable, resolved): (&str, ResolvedPath)| {
        let path = resolved
            .link_in_writable_grant(view)
            .is_none()
            .then_some(resolved.source.path)
            .filter(is_seen)?;
        Some((variable.into(), path.into()))
    };
    named_bundles(inputs).filter_map(seen).collect()
}

/// The bundles that variables name, if every user may read them. Profile `ci-only` has none.
fn named_bundles(inputs: &Inputs<'_>) -> impl Iterator<Item = (&'static str, ResolvedPath)> {
    let has_them = inputs.policy.effective_network() == NetworkMode::Proxy
        && inputs.policy.profile.meaning().knows_caller;
    CERTIFICATE_VARIABLES.iter().filter(move |_| has_them).filter_map(|&name| {
        let path = Path::new(inputs.caller.variable(name)?);
        let resolved = path.is_absolute().then(|| ResolvedPath::resolve(path).ok())??;
        let path = &resolved.source.path;
        let of_kernel = ["/proc", "/sys", "/dev"].iter().any(|above| path.starts_with(above));
        let is_public = resolved.metadata.is_file() && resolved.metadata.mode() & 0o004 != 0;
        let is_usable = is_public && !of_kernel && !secrets::is_secret(path, inputs.caller);
        is_usable.then_some((name, resolved))
    })
}
