//! The environment that commands get. Reads the caller's, changes nobody's.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use crate::plan::network;
use crate::policy::Policy;
use crate::policy::env::EnvBase;
use crate::policy::network::NetworkMode;
use crate::view::inputs::Parts;
use crate::view::{View, toolchains};

/// Variables that the scrubbed environment keeps; `LC_*` besides.
const KEPT: &[&str] = &["COLORTERM", "HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TZ", "USER"];

/// Where programs are looked for when the caller has no PATH, or must not matter.
pub(crate) const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Variables that name a temporary directory of the host's.
pub(crate) const TEMPORARY: &[&str] = &["TMPDIR", "TMP", "TEMP", "TEMPDIR"];

/// Builds the environment: base, toolchains, the way to the proxy, what the policy passes, what it sets.
pub(crate) fn environment(parts: &Parts<'_>, view: &View) -> Vec<(OsString, OsString)> {
    let mut variables = base(parts);
    let mut put = |name: &str, value: &OsStr| variables.insert(name.into(), value.to_owned());
    put("HOME", parts.home().as_os_str());
    if parts.caller.variable("PATH").is_none() {
        put("PATH", OsStr::new(SYSTEM_PATH));
    }
    variables.extend(toolchains::variables(parts));
    variables.extend(network::variables(parts, view));
    for name in &parts.policy.env.pass {
        if let Some(value) = parts.caller.variable(name) {
            variables.insert(name.into(), value.to_owned());
        }
    }
    variables.extend(parts.policy.env.set.iter().map(|(name, value)| (name.into(), value.into())));
    variables.into_iter().collect()
}

/// Which variables a client may lay over the environment of its session.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientVariables {
    /// The environment is fixed but for these.
    only: Option<Vec<OsString>>,
    /// Whether the way to the proxy is the session's, and not the client's own.
    keeps_proxy: bool,
}

impl ClientVariables {
    pub(crate) fn allows(&self, name: &OsStr) -> bool {
        // They name places of the host's, and a way out that is not there.
        let is_of_host = name == "HOME" || TEMPORARY.iter().any(|temporary| name == *temporary);
        if is_of_host || self.keeps_proxy && network::leads_to_proxy(name) {
            return false;
        }
        self.only.as_ref().is_none_or(|names| names.iter().any(|other| other == name))
    }
}

pub(crate) fn client_variables(policy: &Policy) -> ClientVariables {
    let is_fixed = !policy.profile.meaning().knows_caller;
    let only = is_fixed.then(|| policy.env.pass.iter().map(OsString::from).collect());
    ClientVariables { only, keeps_proxy: policy.effective_network() == NetworkMode::Proxy }
}

fn base(parts: &Parts<'_>) -> BTreeMap<OsString, OsString> {
    if !parts.policy.profile.meaning().knows_caller {
        let fixed =
            [("CI", "true"), ("LANG", "C.UTF-8"), ("LOGNAME", "ci"), ("PATH", SYSTEM_PATH), ("USER", "ci")];
        return fixed.map(|(name, value)| (name.into(), value.into())).into();
    }
    let mut variables = parts.caller.environment.clone();
    match parts.policy.env.base {
        EnvBase::Scrubbed => variables.retain(|name, _| is_kept(name)),
        EnvBase::Inherit => {
            variables.retain(|name, _| !TEMPORARY.iter().any(|temporary| name == temporary));
        }
    }
    variables
}

fn is_kept(name: &OsStr) -> bool {
    KEPT.iter().any(|kept| name == *kept) || name.as_encoded_bytes().starts_with(b"LC_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::profile::Profile;

    #[test]
    fn a_client_brings_no_places_of_the_host() {
        let free = client_variables(&Policy::default());
        for name in ["HOME", "TMPDIR", "TMP", "TEMP", "TEMPDIR"] {
            assert!(!free.allows(OsStr::new(name)), "{name}");
        }
        assert!(free.allows(OsStr::new("TERM")) && free.allows(OsStr::new("https_proxy")));
        let fixed = client_variables(&Policy::profile(Profile::CiOnly, ".").pass_env("A"));
        assert!(fixed.allows(OsStr::new("A")) && !fixed.allows(OsStr::new("B")));
    }

    #[test]
    fn a_client_brings_no_way_out_where_there_is_one() {
        let proxied = client_variables(&Policy::default().allow("a.example:443"));
        for name in ["https_proxy", "HTTPS_PROXY", "no_proxy", "npm_config_proxy"] {
            assert!(!proxied.allows(OsStr::new(name)), "{name}");
        }
        assert!(proxied.allows(OsStr::new("TERM")));
    }
}
