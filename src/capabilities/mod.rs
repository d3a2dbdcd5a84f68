//! Capabilities: what one command may do, declared in four fields. A declaration becomes a
//! [`Policy`](crate::policy::Policy), and [`wrap_command`] returns the confined command.

pub(crate) mod declared;
pub(crate) mod environment;
#[cfg(target_os = "linux")]
pub(crate) mod linux;
#[cfg(any(target_os = "macos", test))]
#[cfg_attr(not(target_os = "macos"), expect(dead_code, unreachable_pub, reason = "tests use a part"))]
pub(crate) mod macos;
pub(crate) mod run_limits;
pub(crate) mod sbpl;

#[cfg(target_os = "linux")]
pub use crate::capabilities::linux::wrapper::{Wrapper, resolve_layer, run_command, wrap_command};
#[cfg(target_os = "macos")]
pub use crate::capabilities::macos::{resolve_layer, run_command, wrap_command};
pub use crate::capabilities::run_limits::RunLimits;
pub use crate::capabilities::sbpl::{SbplError, sbpl};

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::report::error::policy::policy_words;

/// What one command may do. The default is permissive: the host's network and files, and a scrubbed
/// environment.
///
/// If the declaration takes something away (no network, or a list of paths), a layer of the operating system
/// confines the command. The command then sees the system, its working directory, which it may read and
/// write, and the listed paths. Otherwise nothing confines it: Kennel only sets its directory and its
/// environment.
///
/// A path is absolute, begins with `~/` (the caller's `HOME`), or is relative to the working directory. `cwd`
/// means the working directory itself. Each path must exist, except for a path to write, such as a cache on a
/// new machine: Kennel makes the directory as mkdir(1) would, if the directory that it is in exists. In the
/// working directory, or in another path to write, the command makes it itself, as a file or a directory.
///
/// ```
/// use kennel::capabilities::{Capabilities, EnvPolicy};
///
/// let caps: Capabilities = serde_json::from_str(r#"{ "net": false, "read_paths": ["~/models"] }"#)?;
/// assert_eq!(caps.env, EnvPolicy::Scrubbed);
/// assert!(caps.engages_layer() && !Capabilities::default().engages_layer());
/// let unknown_key = serde_json::from_str::<Capabilities>(r#"{ "network": false }"#);
/// assert!(unknown_key.is_err());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Capabilities {
    /// Whether it uses the host's network. If false, it has no network, not even the host's loopback.
    /// Default: true.
    pub net: bool,
    /// Paths that it may read and write, in addition to its working directory.
    pub write_paths: Vec<PathBuf>,
    /// Paths that it may read, in addition to the system and the paths that it may write.
    ///
    /// An empty list means the default: also the toolchains that Kennel finds outside of the system, because
    /// few programs run without them. A list means what it says: only the toolchains in it. `/` means
    /// everything that the caller can read, but secrets such as `~/.ssh`, which a path of their own grants,
    /// and services such as `/run`; it is what [`Profile::FullDev`](crate::Profile::FullDev) shows.
    pub read_paths: Vec<PathBuf>,
    /// The variables that it gets.
    pub env: EnvPolicy,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { net: true, write_paths: Vec::new(), read_paths: Vec::new(), env: EnvPolicy::default() }
    }
}

impl Capabilities {
    /// Whether a layer of the operating system must enforce them.
    #[must_use]
    pub fn engages_layer(&self) -> bool {
        !self.net || !self.write_paths.is_empty() || !self.read_paths.is_empty()
    }
}

/// Which variables of the caller's environment a command gets.
///
/// Written `"scrubbed"`, `"inherit"` or `{ "vars": ["CI", "TERM"] }`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnvPolicy {
    /// `HOME`, `USER`, `PATH`, `LANG`, `LC_*`, `TERM`, `SHELL`.
    #[default]
    Scrubbed,
    /// All of them, secrets included. If a layer of the operating system confines the command, Kennel leaves
    /// out the variables that name a temporary directory of the host, such as `TMPDIR`.
    Inherit,
    /// The variables with these names, if they are set, and no others.
    Vars(Vec<String>),
}

policy_words! {
    /// What enforces the [`Capabilities`] of a command, from the weakest to the strongest.
    ///
    /// ```
    /// use kennel::capabilities::Layer;
    ///
    /// assert_eq!(serde_json::to_string(&Layer::LinuxNamespaces)?, "\"linux_namespaces\"");
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub enum Layer as "layer" {
        /// Nothing: this host cannot enforce them, and
        /// [`wrap_command`] refuses.
        None = "none",
        /// No confinement: Kennel sets the directory and the environment, and
        /// [`run_command`] adds a timeout and an output limit.
        /// This is enough for permissive capabilities.
        Lightweight = "lightweight",
        /// `sandbox-exec` on macOS.
        MacosSandboxExec = "macos_sandbox_exec",
        /// Landlock alone. This version of Kennel never returns it: Landlock without namespaces neither
        /// separates processes nor blocks the network. The name exists for records that other programs write.
        LinuxLandlock = "linux_landlock",
        /// All protections of Kennel on Linux: namespaces, a root that shows only what is granted, Landlock,
        /// seccomp.
        LinuxNamespaces = "linux_namespaces",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: serde_json::Value) -> Result<Capabilities, serde_json::Error> {
        serde_json::from_value(value)
    }

    #[test]
    fn missing_fields_take_their_defaults() {
        assert_eq!(read(json!({})).expect("empty"), Capabilities::default());
        let caps = read(json!({ "net": false })).expect("net alone");
        assert_eq!(caps, Capabilities { net: false, ..Capabilities::default() });
        assert!(Capabilities::default().net && Capabilities::default().env == EnvPolicy::Scrubbed);
    }

    #[test]
    fn all_fields_have_the_documented_form() {
        let value = json!({
            "net": false,
            "write_paths": ["cwd", "~/out"],
            "read_paths": ["/srv"],
            "env": { "vars": ["A"] },
        });
        let caps = read(value.clone()).expect("all fields");
        assert_eq!(caps.env, EnvPolicy::Vars(vec!["A".into()]));
        assert_eq!(serde_json::to_value(&caps).expect("writes"), value);
        for (word, env) in [("scrubbed", EnvPolicy::Scrubbed), ("inherit", EnvPolicy::Inherit)] {
            assert_eq!(read(json!({ "env": word })).expect(word).env, env);
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for value in [
            json!({ "network": true }),
            json!({ "Net": true }),
            json!({ "net": "no" }),
            json!({ "net": null }),
            json!({ "write_paths": "cwd" }),
            json!({ "write_paths": [1] }),
            json!({ "env": "all" }),
            json!({ "env": "Scrubbed" }),
            json!({ "env": { "vars": "A" } }),
            json!({ "env": { "vars": [], "more": 1 } }),
            json!("net"),
        ] {
            assert!(read(value.clone()).is_err(), "{value}");
        }
        assert!(serde_json::from_str::<Capabilities>(r#"{"net":true,"net":false}"#).is_err(), "twice");
    }

    #[test]
    fn toml_is_read_too() {
        let caps: Capabilities = toml::from_str("net = false\nenv = { vars = [\"CI\"] }").expect("toml");
        assert_eq!(caps.env, EnvPolicy::Vars(vec!["CI".into()]));
        assert!(toml::from_str::<Capabilities>("nett = false").is_err());
    }

    #[test]
    fn a_layer_is_engaged_by_what_takes_away() {
        let free = Capabilities::default();
        for env in [EnvPolicy::Inherit, EnvPolicy::Vars(Vec::new())] {
            assert!(!Capabilities { env, ..free.clone() }.engages_layer());
        }
        assert!(Capabilities { net: false, ..free.clone() }.engages_layer());
        assert!(Capabilities { write_paths: vec!["cwd".into()], ..free.clone() }.engages_layer());
        assert!(Capabilities { read_paths: vec!["/srv".into()], ..free }.engages_layer());
    }

    #[test]
    fn layers_have_the_names_of_the_record_and_their_order() {
        let words = Layer::ALL.map(Layer::as_str);
        assert_eq!(
            words,
            ["none", "lightweight", "macos_sandbox_exec", "linux_landlock", "linux_namespaces"]
        );
        assert!(Layer::None < Layer::Lightweight && Layer::LinuxLandlock < Layer::LinuxNamespaces);
    }
}
