//! Where the keys of a policy come from.

use std::{collections::BTreeMap, path::PathBuf};

use kennel::Policy;
use serde_json::Value;

/// Where the keys of a policy come from: a flag or a file. Keys with their default are missing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins(BTreeMap<String, String>);

impl Origins {
    /// `files` say something else than `default`, the strongest last. `base` is what they say together, and
    /// flags made `policy` of it. All of them are in the form in which the policy is shown.
    pub(crate) fn of(default: &Policy, files: &[(PathBuf, Policy)], base: &Policy, policy: &Policy) -> Self {
        let files: Vec<_> = files.iter().rev().map(|(file, said)| (file, leaves(said))).collect();
        let (default, base) = (leaves(default), leaves(base));
        let origin = |(key, value): (String, Value)| {
            let origin = if !has(&base, &key, &value) {
                flag_of(&key, &value)
            } else {
                let is_said = |said: &Leaves| has(said, &key, &value) && !has(&default, &key, &value);
                files.iter().find(|(_, said)| is_said(said))?.0.display().to_string()
            };
            Some((key, origin))
        };
        Self(leaves(policy).into_iter().filter_map(origin).collect())
    }

    /// Empty for a default.
    pub(super) fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    pub(crate) fn as_json(&self) -> Value {
        self.0.iter().map(|(key, origin)| (key.clone(), Value::from(origin.as_str()))).collect()
    }
}

/// The flag that sets a key, such as `limits.memory` or `network.allow[0]`, to a value.
fn flag_of(key: &str, value: &Value) -> String {
    let name = of_list(key);
    let name = name.split_once('.').map_or(name, |(table, rest)| match table {
        "env" if rest.starts_with("set") => "setenv",
        "env" if rest.starts_with("pass") => "pass-env",
        "env" => "env",
        "overlay" => "overlay",
        "audit" => "audit",
        _ => rest,
    });
    match name {
        "mounts" => format!("--{}", value["type"].as_str().unwrap_or_default()),
        "mode" => "--net".to_owned(),
        "output" => "--max-output".to_owned(),
        "allow_addresses" => "--allow-address".to_owned(),
        "name_servers" => "--name-server".to_owned(),
        "transparent" => "--no-transparent".to_owned(),
        "proxy.unix" => "--proxy-socket".to_owned(),
        name => format!("--{}", name.replace('_', "-")),
    }
}

/// Every value of a policy by its key. Elements of a list have their index.
type Leaves = BTreeMap<String, Value>;

/// Whether a policy has this value. Others may stand before it in a list.
fn has(leaves: &Leaves, key: &str, value: &Value) -> bool {
    match of_list(key) {
        whole if whole == key => leaves.get(key) == Some(value),
        list => leaves.iter().any(|(key, known)| of_list(key) == list && known == value),
    }
}

/// The key of the list that an element is in. Any other key stays.
fn of_list(key: &str) -> &str {
    key.split('[').next().unwrap_or_default()
}

pub(super) fn leaves(policy: &Policy) -> Leaves {
    fn walk(key: String, value: Value, leaves: &mut Leaves) {
        match value {
            Value::Object(inner) if !key.starts_with("mounts[") => {
                inner.into_iter().for_each(|(name, value)| {
                    walk(if key.is_empty() { name } else { format!("{key}.{name}") }, value, leaves)
                })
            }
            Value::Array(list) => list
                .into_iter()
                .enumerate()
                .for_each(|(index, value)| walk(format!("{key}[{index}]"), value, leaves)),
            value => drop(leaves.insert(key, value)),
        }
    }
    let mut found = BTreeMap::new();
    // A path that is not UTF-8 has no JSON; then nothing is said about origins.
    walk(String::new(), serde_json::to_value(policy).unwrap_or_default(), &mut found);
    found
}
