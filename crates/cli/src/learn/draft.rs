//! The text of a learned policy: TOML with comments.
//!
//! Programs of the command chose the paths and names in it. Each is a string on one line with every special
//! character escaped, and the text is parsed again before it becomes a file.

use std::{collections::BTreeSet, fmt::Write, os::unix::process::ExitStatusExt, path::Path};

use kennel::{Ended, Error, Mount, Network, Outcome, Policy, report::PolicyError};
use serde_json::{Map, Value};

use super::{
    Hosts,
    needs::{Need, Needs},
};
use crate::escape::{harmless, is_harmless};

/// The presets of hosts that a learned policy may name. Each stands for several hosts of one registry.
const PRESETS: [&str; 15] = [
    "@alpine",
    "@cargo",
    "@debian",
    "@github",
    "@gitlab",
    "@go",
    "@gradle",
    "@maven",
    "@npm",
    "@nuget",
    "@packagist",
    "@pypi",
    "@rubygems",
    "@rustup",
    "@ubuntu",
];

/// How many used hosts make a preset shorter than its hosts.
const WORTH_A_PRESET: usize = 2;

/// What the text is made from.
pub(crate) struct Draft<'d> {
    pub(crate) base: &'d Policy,
    pub(crate) needs: &'d Needs,
    pub(crate) hosts: &'d Hosts,
    pub(crate) reaches: bool,
    pub(crate) program: &'d str,
    pub(crate) outcome: &'d Outcome,
}

impl Draft<'_> {
    /// # Errors
    /// The policy cannot be written as text.
    pub(crate) fn text(&self) -> Result<String, Error> {
        let mut text = self.head();
        let json = |policy: &Policy| match serde_json::to_value(policy) {
            Ok(Value::Object(keys)) => Ok(keys),
            _ => Err(unwritable("it is no table")),
        };
        let (mine, default) = (json(self.base)?, json(&Policy::default())?);
        let mine = changed(&mine, &default);
        text.push('\n');
        line(&mut text, "workspace", &Value::String(self.base.workspace.to_string_lossy().into_owned()));
        for (key, value) in mine.iter().filter(|(key, _)| !is_special(key)) {
            line(&mut text, key, value);
        }
        self.mounts(&mut text, mine.get("mounts"));
        self.network(&mut text, mine.get("network"));
        Ok(text)
    }

    /// Checks that the text says what is meant, and nothing else.
    ///
    /// # Errors
    /// It does not.
    pub(crate) fn check(&self, path: &Path, text: &str) -> Result<(), Error> {
        let said = Policy::from_file_text(path, text, Path::new("/"))?;
        let mut meant = self.base.clone();
        meant.mounts.extend(self.reads().map(|path| Mount::ReadOnly { source: path.into(), target: None }));
        meant.network.allow.extend(rules(self.hosts).into_iter().map(|(rule, _)| rule));
        meant.files.clear();
        meant.notes.clear();
        if said != meant {
            return Err(unwritable("the text would say something else"));
        }
        Ok(said.validate()?)
    }

    fn reads(&self) -> impl Iterator<Item = &str> {
        self.needs.reads.keys().filter_map(|path| path.to_str())
    }

    fn head(&self) -> String {
        let mut head = format!(
            "# Written by `kennel run --learn`, for review. It allows what one run of {} used.\n# {}\n",
            harmless(self.program),
            ended(self.outcome),
        );
        head.push_str(
            "#\n\
             # It does not know:\n\
             # - what another run needs, with other arguments or other data, or what the command would have done next;\n\
             # - known secrets, homes of others, and files of /run, /tmp and /dev: they stayed hidden;\n\
             # - files that the command got as open descriptors, Unix sockets that it connected to, attributes that it read\n\
             #   without opening a file, and the loader of a program outside of the system;\n\
             # - what the command disguised: a program chooses its name, and can change a path while it is written down.\n\
             # Changes to the workspace were kept apart: kennel diff shows them.\n",
        );
        if self.needs.is_cut {
            head.push_str("# The record was cut: there were too many paths, or they could not all be seen. This policy lacks some.\n");
        }
        if self.needs.left_out > 0 {
            let _ = writeln!(
                head,
                "# {} paths are left out: there were too many, or a policy file cannot hold their names.",
                self.needs.left_out
            );
        }
        if !self.reaches {
            head.push_str("# Nothing was learned about hosts: the network is not that of Kennel's proxy.\n");
        }
        head
    }

    fn mounts(&self, text: &mut String, base: Option<&Value>) {
        let base = base.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let needs = [&self.needs.reads, &self.needs.writes, &self.needs.copies];
        if base.is_empty() && needs.iter().all(|paths| paths.is_empty()) {
            return;
        }
        text.push_str("mounts = [\n");
        for mount in base {
            let _ = writeln!(text, "    {},", toml(mount));
        }
        for (path, need) in &self.needs.reads {
            let Some(path) = path.to_str() else { continue };
            let _ = writeln!(text, "    {{ type = \"ro\", source = {} }},  # {}", quoted(path), why(need));
        }
        let groups = [
            (&self.needs.writes, "The command tried to change these, and could not. Decide whether it may:"),
            (
                &self.needs.copies,
                "The command wrote to a copy of these, which is gone. With this policy HOME is private, without them. \
                 Decide whether it may change yours:",
            ),
        ];
        for (paths, words) in groups.into_iter().filter(|(paths, _)| !paths.is_empty()) {
            let _ = writeln!(text, "    # {words}");
            for (path, need) in paths {
                let Some(path) = path.to_str() else { continue };
                let _ =
                    writeln!(text, "    # {{ type = \"rw\", source = {} }},  # {}", quoted(path), why(need));
            }
        }
        text.push_str("]\n");
    }

    fn network(&self, text: &mut String, base: Option<&Value>) {
        let base = base.and_then(Value::as_object).cloned().unwrap_or_default();
        let learned = rules(self.hosts);
        if base.is_empty() && learned.is_empty() {
            return;
        }
        text.push_str("\n[network]\n");
        for (key, value) in base.iter().filter(|(key, _)| *key != "allow") {
            line(text, key, value);
        }
        if self.base.network.allow.is_empty() && learned.is_empty() {
            return;
        }
        text.push_str("allow = [\n");
        for rule in &self.base.network.allow {
            let _ = writeln!(text, "    {},", quoted(rule));
        }
        for (rule, why) in learned {
            let _ = writeln!(text, "    {},  # {}", quoted(&rule), harmless(&why));
        }
        text.push_str("]\n");
    }
}

/// Keys that have a place of their own in the text.
fn is_special(key: &str) -> bool {
    matches!(key, "workspace" | "mounts" | "network" | "overlay")
}

fn unwritable(reason: &str) -> Error {
    PolicyError::Value { key: "--learn".to_owned(), value: String::new(), reason: reason.to_owned() }.into()
}

/// How the run ended, because one that failed has perhaps not used all that it needs.
fn ended(outcome: &Outcome) -> String {
    match (outcome.ended, outcome.status.signal(), outcome.status.code()) {
        (Ended::TimedOut, ..) => "That run was killed when its time was up: it may need more.".to_owned(),
        (_, Some(signal), _) => format!("That run was ended by signal {signal}: it may need more."),
        (_, _, Some(0)) => "That run succeeded.".to_owned(),
        (_, _, code) => {
            format!("That run failed with exit status {}: it may need more.", code.unwrap_or(255))
        }
    }
}

/// Who needs it, and how often.
fn why(need: &Need) -> String {
    let times = match need.count {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    };
    let act = if need.was_only_looked_at { "looked at" } else { "used" };
    let by: Vec<String> = need.by.iter().map(|name| harmless(name)).collect();
    let by = if by.is_empty() { String::new() } else { format!(" by {}", by.join(", ")) };
    let of = match (need.is_dir, need.paths) {
        (true, 2..) => format!("{} of its files, ", need.paths),
        (true, _) => "a directory, ".to_owned(),
        _ => String::new(),
    };
    format!("{of}{act} {times}{by}")
}

/// The rules for these hosts, each with a reason: presets where they are shorter.
fn rules(hosts: &Hosts) -> Vec<(String, String)> {
    let mut left: BTreeSet<&String> = hosts.keys().collect();
    let mut rules = Vec::new();
    for preset in PRESETS {
        let network = Network { allow: vec![preset.to_owned()], ..Network::default() }.shown();
        let of_preset: Vec<&String> = left
            .iter()
            .filter(|host| network.allow.iter().any(|rule| matches(rule, host)))
            .copied()
            .collect();
        if of_preset.len() >= WORTH_A_PRESET {
            left.retain(|host| !of_preset.contains(host));
            let names: Vec<&str> = of_preset.iter().map(|host| host.as_str()).collect();
            rules.push((preset.to_owned(), format!("used: {}", names.join(", "))));
        }
    }
    rules.extend(left.into_iter().map(|host| {
        let times = match hosts.get(host) {
            Some(1) | None => "once".to_owned(),
            Some(count) => format!("{count} times"),
        };
        (host.clone(), times)
    }));
    rules
}

/// Whether a rule of a preset allows a host, both with their port.
fn matches(rule: &str, host: &str) -> bool {
    match rule.strip_prefix('*') {
        Some(end) => host.ends_with(end),
        None => rule == host,
    }
}

/// What of the keys differs from the default, in tables too.
fn changed(mine: &Map<String, Value>, default: &Map<String, Value>) -> Map<String, Value> {
    let of = |(key, value): (&String, &Value)| {
        let before = default.get(key);
        if Some(value) == before || value.is_null() {
            return None;
        }
        let value = match (value, before) {
            (Value::Object(mine), Some(Value::Object(before))) => Value::Object(changed(mine, before)),
            _ => value.clone(),
        };
        Some((key.clone(), value))
    };
    mine.iter().filter_map(of).collect()
}

fn line(text: &mut String, key: &str, value: &Value) {
    if !value.is_null() {
        let _ = writeln!(text, "{} = {}", word(key), toml(value));
    }
}

/// A key: bare, or quoted.
fn word(key: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if !key.is_empty() && key.chars().all(is_bare) { key.to_owned() } else { quoted(key) }
}

/// A value in TOML, on one line.
fn toml(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(values) => format!("[{}]", values.iter().map(toml).collect::<Vec<_>>().join(", ")),
        Value::Object(keys) => {
            let keys = keys.iter().filter(|(_, value)| !value.is_null());
            let keys: Vec<String> =
                keys.map(|(key, value)| format!("{} = {}", word(key), toml(value))).collect();
            format!("{{ {} }}", keys.join(", "))
        }
        other => other.to_string(),
    }
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if is_harmless(c) => quoted.push(c),
            c => {
                let _ = write!(quoted, "\\U{:08X}", u32::from(c));
            }
        }
    }
    quoted.push('"');
    quoted
}
