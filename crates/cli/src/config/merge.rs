//! Several files become one policy: a later file wins for each key that it has, and adds to lists and tables.

use std::path::{Path, PathBuf};

use kennel::{Error, Policy, report::PolicyError};
use serde_json::{Map, Value};
use toml::Table;

use super::file::ConfigFile;

/// What one file says.
pub(super) struct Layer {
    pub(super) file: PathBuf,
    pub(super) policy: Policy,
    /// The keys that the file has. The policy has a value for every key.
    keys: Table,
}

impl Layer {
    /// Parses a file. Relative paths start at `directory`. Unlike a policy file, it names a workspace only if
    /// it has the key.
    ///
    /// # Errors
    /// Those of [`Policy::from_file_text`].
    pub(super) fn parse(file: ConfigFile, directory: &Path) -> Result<Self, Error> {
        let policy = Policy::from_file_text(&file.path, &file.text, directory)?;
        // What is a policy is a table.
        let keys = toml::from_str(&file.text).unwrap_or_default();
        let mut layer = Self { file: file.path, policy, keys };
        if !layer.has("workspace") && !layer.has("root") && !layer.has("image") {
            layer.policy.workspace = Policy::default().workspace;
        }
        Ok(layer)
    }

    /// Whether the file has this key.
    pub(super) fn has(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }

    /// The values of the keys that the file has.
    ///
    /// # Errors
    /// The directory of the file is not UTF-8.
    fn values(&self) -> Result<Map<String, Value>, Error> {
        match serde_json::to_value(&self.policy) {
            Ok(Value::Object(all)) => Ok(given(all, &self.keys)),
            _ => {
                let reason = "its directory is not UTF-8, so it cannot be used together with another file";
                Err(PolicyError::Value {
                    key: self.file.display().to_string(),
                    value: String::new(),
                    reason: reason.to_owned(),
                }
                .into())
            }
        }
    }
}

/// The policy of all layers, the strongest last.
///
/// # Errors
/// See [`Layer::values`].
pub(super) fn merged(layers: &[Layer]) -> Result<Policy, Error> {
    match layers {
        [] => Ok(Policy::default()),
        [alone] => Ok(alone.policy.clone()),
        _ => {
            let mut all = Map::new();
            for layer in layers {
                add(&mut all, layer.values()?);
            }
            Ok(Policy::from_json(&Value::Object(all).to_string())?)
        }
    }
}

/// The entries of `all` that `keys` has, and of tables in it those that the table in `keys` has.
fn given(all: Map<String, Value>, keys: &Table) -> Map<String, Value> {
    let given = all.into_iter().filter_map(|(name, value)| {
        let value = match (value, keys.get(&name)?) {
            (Value::Object(inner), toml::Value::Table(keys)) => Value::Object(given(inner, keys)),
            (value, _) => value,
        };
        Some((name, value))
    });
    given.collect()
}

/// Puts `more` over `all`.
fn add(all: &mut Map<String, Value>, more: Map<String, Value>) {
    for (name, value) in more {
        match (all.get_mut(&name), value) {
            (Some(Value::Object(inner)), Value::Object(value)) => add(inner, value),
            (Some(Value::Array(list)), Value::Array(value)) => list.extend(value),
            (_, value) => drop(all.insert(name, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use kennel::{Mount, NetworkMode, Profile, Size};

    use super::*;

    fn of(texts: &[&str]) -> Policy {
        let layer = |(at, text): (usize, &&str)| {
            let file = ConfigFile { path: format!("/f{at}.toml").into(), text: (*text).to_owned() };
            Layer::parse(file, Path::new("/w")).expect(text)
        };
        merged(&texts.iter().enumerate().map(layer).collect::<Vec<_>>()).expect("UTF-8")
    }

    #[test]
    fn a_later_file_wins_and_adds_to_lists() {
        let weaker = "profile = 'full-dev'\nhostname = 'a'\nprotect = ['ci']\nmounts = [{ type = 'ro', source = '/m' }]\n\
                      network.allow = ['@cargo']\nlimits = { pids = 9, memory = '1G' }\nenv.set = { A = '1', B = '1' }\n\
                      require.keyring = 'required'\noverlay = {}\naudit = { path = '/log', chain = true }";
        let stronger = "profile = 'repo-write'\nprotect = ['x']\nmounts = [{ type = 'mask', path = 'k' }]\n\
                        network = { mode = 'proxy', allow = ['a:1'] }\nlimits.memory = '2G'\nenv.set = { B = '2' }\n\
                        require.core_dumps = 'required'\naudit = '/other'";
        let policy = of(&[weaker, stronger]);
        assert_eq!(
            (policy.profile, &*policy.hostname),
            (Profile::RepoWrite, "a"),
            "the default wins if it is written"
        );
        assert_eq!(policy.protect, [Path::new("ci"), Path::new("x")]);
        assert_eq!(policy.mounts.len(), 2);
        assert_eq!(policy.mounts[1], Mount::Mask { path: "/w/k".into() });
        assert_eq!(policy.network.allow, ["@cargo", "a:1"]);
        assert_eq!(policy.network.mode, Some(NetworkMode::Proxy));
        assert_eq!((policy.limits.pids, policy.limits.memory), (Some(9), Some(Size::from_bytes(2 << 30))));
        assert_eq!(
            policy.env.set.into_iter().collect::<Vec<_>>(),
            [("A", "1"), ("B", "2")].map(|(n, v)| (n.to_owned(), v.to_owned()))
        );
        assert_eq!(policy.require.iter().count(), 2);
        assert_eq!(policy.audit, Some(kennel::Audit::new("/other")));
        assert!(policy.overlay.is_some());
    }

    #[test]
    fn a_file_alone_is_what_it_says() {
        let text = "profile = 'ci-only'\nprotect = ['ci']\nworkspace = 'a'";
        assert_eq!(of(&[text]), Policy::from_file_text("f".as_ref(), text, "/w".as_ref()).expect("valid"));
        assert_eq!(of(&["# nothing", text]), of(&[text]));
        assert_eq!(of(&["# nothing"]), Policy::default());
    }
}
