//! What of a policy explanations of refusals name: plain data, collected while the policy is compiled.

use std::path::{Path, PathBuf};

use crate::plan::network::ports_of_host;
use crate::policy::network::NetworkMode;
use crate::policy::profile::{Git, Reach};
use crate::report::remedy::{Setting, SettingKey};
use crate::sys::lexical::clean;
use crate::view::inputs::Inputs;
use crate::view::node::TmpfsSize;

/// The settings of a policy that explanations name.
#[derive(Debug)]
pub(crate) struct PolicyFacts {
    pub(crate) read_only_workspace: bool,
    pub(crate) git: Git,
    /// The size of all private directories together.
    pub(crate) private: TmpfsSize,
    pub(crate) network: NetworkMode,
    /// Whether the proxy allows nothing, because the policy has no rule.
    pub(crate) only_refuses: bool,
    /// The settings beside a destination that would allow it through the proxy. `None` if the profile
    /// excludes a proxy.
    pub(crate) proxy_settings: Option<Vec<Setting>>,
    /// The only TCP ports that the command may connect to on the host's network, if Landlock restricts them.
    pub(crate) ports: Option<Vec<u16>>,
    /// The home directories of the caller.
    pub(crate) homes: Vec<PathBuf>,
    /// The home directory of the caller.
    pub(crate) home_outside: PathBuf,
    /// HOME in the sandbox.
    pub(crate) home: PathBuf,
    /// The current directory of the caller, if another root shows no workspace.
    pub(crate) directory_outside: Option<PathBuf>,
}

impl PolicyFacts {
    pub(crate) fn of(inputs: &Inputs<'_>) -> Self {
        Self {
            read_only_workspace: !inputs.policy.profile.meaning().writes,
            git: inputs.policy.git,
            private: TmpfsSize::from_policy(inputs, None),
            network: inputs.policy.effective_network(),
            only_refuses: inputs.policy.only_refuses(),
            proxy_settings: proxy_settings(inputs),
            ports: ports_of_host(inputs),
            homes: inputs.caller.homes.clone(),
            home_outside: inputs.caller.home.clone(),
            home: inputs.home(),
            directory_outside: (!inputs.policy.has_workspace())
                .then(|| clean(inputs.caller.absolute(Path::new(".")))),
        }
    }
}

/// With a rule, a policy uses the proxy by itself, unless it sets another network mode.
fn proxy_settings(inputs: &Inputs<'_>) -> Option<Vec<Setting>> {
    match (inputs.policy.profile.meaning().reach, inputs.policy.network.mode) {
        (Reach::Nowhere, _) => None,
        (Reach::Allowed, None) => Some(Vec::new()),
        _ => Some(vec![SettingKey::NetworkMode.to("proxy")]),
    }
}
