//! The caller's own bundles of certificates: a network may have authorities of its own. Shown by what the caller's variables
//! name, which is no grant: whatever else is there is left out.

use std::{
    ffi::OsString,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::{
    Parts,
    led::Led,
    secrets,
    view::{Access, Node, View},
};
use crate::policy::NetworkMode;

/// Variables by which the caller names bundles.
const VARIABLES: &[&str] = &[
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
];

/// Shows the bundles where nothing shows them yet, and nothing hides them. To be called when all is in the view that is
/// granted writable.
pub(super) fn show(view: &mut View, parts: &Parts<'_>) {
    for (variable, led) in named(parts) {
        if let Some(link) = led.by_commands(view) {
            let link = link.display();
            tracing::warn!(variable, %link, "no certificates are shown: commands could have laid this link to them");
            continue;
        }
        let source = led.source;
        if view.host_path(&source.path).is_none() && !view.is_covered(&source.path) {
            view.offer("certificates", source.path.clone(), Node::Bind { source, access: Access::Read });
        }
    }
}

/// The variables of those that are seen.
pub(super) fn variables(parts: &Parts<'_>, view: &View) -> Vec<(OsString, OsString)> {
    let is_seen =
        |path: &PathBuf| view.host_path(path).is_some_and(|shown| shown == *path) && !view.is_covered(path);
    let seen = |(variable, led): (&str, Led)| {
        let path = led.by_commands(view).is_none().then_some(led.source.path).filter(is_seen)?;
        Some((variable.into(), path.into()))
    };
    named(parts).filter_map(seen).collect()
}

/// The bundles that variables name, as far as anybody may read them. `ci-only` has nothing of the caller's.
fn named(parts: &Parts<'_>) -> impl Iterator<Item = (&'static str, Led)> {
    let has_them =
        parts.policy.effective_network() == NetworkMode::Proxy && parts.policy.profile.meaning().knows_caller;
    VARIABLES.iter().filter(move |_| has_them).filter_map(|&name| {
        let path = Path::new(parts.caller.variable(name)?);
        let led = path.is_absolute().then(|| Led::follow(path).ok())??;
        let path = &led.source.path;
        let of_kernel = ["/proc", "/sys", "/dev"].iter().any(|above| path.starts_with(above));
        let is_public = led.metadata.is_file() && led.metadata.mode() & 0o004 != 0;
        let is_usable = is_public && !of_kernel && !secrets::is_secret(path, parts.caller);
        is_usable.then_some((name, led))
    })
}
