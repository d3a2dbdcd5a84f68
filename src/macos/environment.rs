//! The environment of commands on macOS: as on Linux, with the private temporary directory.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use crate::caller::Caller;
use crate::policy::Policy;
use crate::policy::env::EnvBase;
use crate::policy::known_variables::{SYSTEM_PATH, TEMPORARY, is_kept, is_registry, may_hold_credentials};
use crate::policy::network::proxy_variables::{JAVA_OPTIONS, ProxyVariables, java_options};

/// What programs reach without the proxy: nothing but the loopback that they cannot reach either.
const DIRECT: &str = "localhost,127.0.0.1,::1";

/// The variables of every command of a policy. Later parts override earlier ones.
pub(crate) fn variables(policy: &Policy, caller: &Caller) -> BTreeMap<OsString, OsString> {
    let mut variables = caller.environment.clone();
    match policy.env.base {
        EnvBase::Scrubbed => {
            variables.retain(|name, value| is_kept(name) || is_registry(name) && !may_hold_credentials(value))
        }
        EnvBase::Inherit => variables.retain(|name, _| !TEMPORARY.iter().any(|temporary| name == temporary)),
    }
    variables.insert("HOME".into(), caller.home.clone().into());
    variables.entry("PATH".into()).or_insert_with(|| SYSTEM_PATH.into());
    for name in &policy.env.pass {
        if let Some(value) = caller.variable(name) {
            variables.insert(name.into(), value.to_owned());
        }
    }
    variables.extend(policy.env.set.iter().map(|(name, value)| (name.into(), value.into())));
    variables
}

/// The variables that name the temporary directory of one command, and the proxy at this port. A policy's own
/// values count.
pub(crate) fn of_command(
    policy: &Policy,
    temporary: &Path,
    proxy: Option<u16>,
) -> BTreeMap<OsString, OsString> {
    let mut variables = BTreeMap::new();
    if let Some(port) = proxy {
        let only_refuses = policy.only_refuses();
        variables.extend(ProxyVariables { port, direct: DIRECT, only_refuses, is_few: only_refuses }.all());
        if !only_refuses {
            variables.insert(JAVA_OPTIONS.into(), java_options(port, &["localhost", "127.*"]).into());
        }
    }
    variables.extend(TEMPORARY.iter().map(|name| (OsString::from(name), temporary.into())));
    variables.retain(|name, _| !policy.env.set.keys().any(|set| name == set.as_str()));
    variables
}
