//! Capabilities: what one command may do, declared in four fields, and the layer that holds it to them.
//!
//! Plain data here. `granted` finds out which paths a declaration means, `policy` makes a [`Policy`](crate::policy::Policy) of it
//! (pure), and only the compiler makes mechanism of that. [`Wrapper`](crate::capabilities::wrapper::Wrapper) hands out the command.

pub(crate) mod environment;
pub(crate) mod granted;
pub(crate) mod kept;
pub(crate) mod plain;
pub(crate) mod policy;
pub(crate) mod run;
pub(crate) mod sbpl;
pub(crate) mod wrapper;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::report::words::words;

/// What one command may do. The default is permissive: the host's network and files, and a scrubbed environment.
///
/// A declaration that takes something away (no network, or paths that are listed) engages a layer of the operating
/// system. Then the command sees the system, its working directory, which it may read and write, and what is listed.
/// Without one it runs with lightweight rails only: its directory is pinned and its environment made.
///
/// Paths are absolute, begin with `~/` (the caller's `HOME`), or are taken from the working directory; `cwd` is the
/// working directory itself. Each must exist.
///
/// ```
/// use kennel::{Capabilities, EnvPolicy};
///
/// let caps: Capabilities = serde_json::from_str(r#"{ "net": false, "read_paths": ["~/models"] }"#)?;
/// assert_eq!(caps.env, EnvPolicy::Scrubbed);
/// assert!(caps.engages_layer() && !Capabilities::default().engages_layer());
/// assert!(serde_json::from_str::<Capabilities>(r#"{ "network": false }"#).is_err(), "unknown keys are refused");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Capabilities {
    /// Whether it has the host's network. Otherwise it has none, not even the host's loopback. Default: true.
    pub net: bool,
    /// Paths that it may read and write, in addition to its working directory.
    pub write_paths: Vec<PathBuf>,
    /// Paths that it may read, in addition to the system and what it may write. Empty: the system and the toolchains that
    /// are found outside of it. With a list, only toolchains that it names.
    pub read_paths: Vec<PathBuf>,
    /// Which variables it gets.
    pub env: EnvPolicy,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { net: true, write_paths: Vec::new(), read_paths: Vec::new(), env: EnvPolicy::default() }
    }
}

impl Capabilities {
    /// Whether a layer of the operating system has to hold the command to them.
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
    /// All of them, secrets included. Where a layer of the operating system is engaged, those that name a temporary
    /// directory of the host's (`TMPDIR` and its like) are left out.
    Inherit,
    /// Those of these names that are set, and no other.
    Vars(Vec<String>),
}

words! {
    /// What holds a command to its [`Capabilities`]; from the weakest to the strongest.
    ///
    /// ```
    /// use kennel::Layer;
    ///
    /// assert_eq!(serde_json::to_string(&Layer::LinuxNamespaces)?, "\"linux_namespaces\"");
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub enum Layer as "layer" {
        /// Nothing: this host cannot enforce them. [`wrap_command`](crate::capabilities::wrapper::wrap_command) then refuses.
        None = "none",
        /// No confinement: a pinned directory and a constructed environment, and with [`run_command`](crate::capabilities::wrapper::run_command) a timeout and an
        /// output cap. All that permissive capabilities need.
        Lightweight = "lightweight",
        /// `sandbox-exec` of macOS.
        MacosSandboxExec = "macos_sandbox_exec",
        /// Landlock alone. This version of Kennel never returns it: it builds on namespaces, and Landlock without them
        /// neither separates processes nor keeps the network away. The name is kept for records of others.
        LinuxLandlock = "linux_landlock",
        /// Everything that Kennel has on Linux: namespaces, a root that shows only what is granted, Landlock, seccomp.
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
