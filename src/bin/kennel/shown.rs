//! What a policy comes to, in people's words: what commands read, write, reach and get, and where each comes from.

use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
};

use kennel::{InForce, Mount, NetworkMode, Place, PlaceAccess, PlaceOrigin, Policy, Size};
use serde_json::Value;

use crate::{flags::PolicyFlags, style, table::Table};

/// One thing that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) section: Section,
    /// What it is. Rows of the same label and origin are shown together.
    pub(crate) label: String,
    /// A path, a host, a value.
    pub(crate) text: String,
    /// Where it comes from. Empty if nobody chose it.
    pub(crate) origin: String,
}

/// The parts of the text, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Section {
    Start,
    Writable,
    Copies,
    Private,
    Readable,
    Own,
    Hidden,
    Reachable,
    Environment,
    Limits,
    Others,
}

impl Section {
    pub(crate) const ALL: [Self; 11] = [
        Self::Start,
        Self::Writable,
        Self::Copies,
        Self::Private,
        Self::Readable,
        Self::Own,
        Self::Hidden,
        Self::Reachable,
        Self::Environment,
        Self::Limits,
        Self::Others,
    ];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Start => "Policy",
            Self::Writable => "Writable: changes are real",
            Self::Copies => "Writable as a copy: the host keeps its files",
            Self::Private => "Private: empty at the start, gone at the end",
            Self::Readable => "Readable",
            Self::Own => "Made for the sandbox",
            Self::Hidden => "Hidden",
            Self::Reachable => "Reachable",
            Self::Environment => "Environment",
            Self::Limits => "Limits",
            Self::Others => "Other choices",
        }
    }
}

/// Where the keys of a policy come from: a flag or a file. Keys with their default are missing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins(BTreeMap<String, String>);

impl Origins {
    /// `base` is the policy before the flags made `policy` of it; `file` says where it came from.
    pub(crate) fn of(base: &Policy, policy: &Policy, file: &str) -> Self {
        let [default, base, policy] = [&Policy::default(), base, policy].map(leaves);
        let mut origins = BTreeMap::new();
        for (key, value) in policy {
            if base.get(&key) != Some(&value) {
                let flag = flag_of(&key);
                origins.insert(key, flag);
            } else if default.get(&key) != Some(&value) {
                origins.insert(key, file.to_owned());
            }
        }
        Self(origins)
    }

    /// Empty for a default.
    fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    pub(crate) fn as_json(&self) -> Value {
        self.0.iter().map(|(key, origin)| (key.clone(), Value::from(origin.as_str()))).collect()
    }
}

/// The flag that sets a key, such as `limits.memory` or `network.allow[0]`.
fn flag_of(key: &str) -> String {
    let name = key.split('[').next().unwrap_or_default();
    let name = name.split_once('.').map_or(name, |(table, rest)| match table {
        "env" if rest.starts_with("set") => "setenv",
        "env" if rest.starts_with("pass") => "pass-env",
        "env" => "env",
        "overlay" => "overlay",
        "audit" => "audit",
        _ => rest,
    });
    match name {
        "mounts" => "a flag".to_owned(),
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
fn leaves(policy: &Policy) -> BTreeMap<String, Value> {
    fn walk(key: String, value: Value, leaves: &mut BTreeMap<String, Value>) {
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

/// What holds for commands under a policy, which has absolute paths and no secrets.
pub(crate) struct Holds<'h> {
    pub(crate) policy: &'h Policy,
    pub(crate) in_force: &'h InForce,
    pub(crate) origins: &'h Origins,
    pub(crate) flags: &'h PolicyFlags,
}

impl Holds<'_> {
    pub(crate) fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        self.start(&mut rows);
        self.places(&mut rows);
        self.network(&mut rows);
        self.environment(&mut rows);
        self.limits(&mut rows);
        self.others(&mut rows);
        rows.sort_by_key(|row| row.section);
        rows
    }

    fn start(&self, rows: &mut Vec<Row>) {
        let mut put =
            |label: &str, text: String, origin: &str| rows.push(row(Section::Start, label, text, origin));
        let default = |origin: &str| if origin.is_empty() { "default".to_owned() } else { origin.to_owned() };
        put("profile", self.policy.profile.to_string(), &default(self.origins.get("profile")));
        put(
            "commands start in",
            home(&self.in_force.directory),
            self.origins.get("cwd").trim_start_matches("--cwd"),
        );
    }

    fn workspace(&self) -> &str {
        match (&self.flags.workspace, self.origins.get("workspace")) {
            (Some(_), _) => "--workspace",
            (None, "--workspace") => "the git work tree around the current directory",
            (None, "") => "the current directory",
            (None, file) => file,
        }
    }

    fn places(&self, rows: &mut Vec<Row>) {
        if !self.in_force.places.iter().any(|place| place.host.as_deref() == Some(Path::new("/"))) {
            let rest = "what no other section names, such as ~/.ssh".to_owned();
            rows.push(row(Section::Hidden, "the rest", rest, "always"));
        }
        for place in &self.in_force.places {
            // Links lead to places that have rows of their own.
            if place.what == "link" {
                continue;
            }
            let is_writable = place.access == PlaceAccess::Write && place.origin != PlaceOrigin::Wall;
            let section = match place.access {
                PlaceAccess::Write
                    if is_writable && self.policy.overlay.is_some() && place.what == "workspace" =>
                {
                    Section::Copies
                }
                PlaceAccess::Write if is_writable => Section::Writable,
                // The way to a wall is as the directory around it.
                PlaceAccess::Write => continue,
                PlaceAccess::Copy => Section::Copies,
                PlaceAccess::Private => Section::Private,
                PlaceAccess::Hidden => Section::Hidden,
                PlaceAccess::Own | PlaceAccess::Device => Section::Own,
                _ => Section::Readable,
            };
            let mut text = home(&place.path);
            if let Some(host) = place.host.as_ref().filter(|host| **host != place.path) {
                text += &format!(", which is {} outside", home(host));
            }
            rows.push(row(section, what(place), text, &self.origin(place)));
        }
    }

    fn origin(&self, place: &Place) -> String {
        match place.origin {
            PlaceOrigin::Profile if matches!(place.what, "cache" | "toolchain") => {
                let key = if place.what == "cache" { "caches" } else { "toolchains" };
                let origin = self.origins.get(key);
                if origin.is_empty() { "profile".to_owned() } else { origin.to_owned() }
            }
            PlaceOrigin::Profile => "profile".to_owned(),
            PlaceOrigin::Wall if place.what == "protected path" => "protect".to_owned(),
            PlaceOrigin::Wall => "always".to_owned(),
            _ if place.what == "workspace" => self.workspace().to_owned(),
            _ => self.mount(place).unwrap_or_else(|| "policy".to_owned()),
        }
    }

    /// Where the mount at a place comes from.
    fn mount(&self, place: &Place) -> Option<String> {
        let mounts = self.policy.mounts.iter().enumerate();
        let mut found = mounts.map(|(index, mount)| (index, place_of(mount)));
        let is_here =
            |path: &Path| path == place.path || path.canonicalize().is_ok_and(|path| path == place.path);
        let (index, (_, flag)) = found.find(|(_, (path, _))| is_here(path))?;
        let origin = self.origins.get(&format!("mounts[{index}]"));
        Some(if origin == "a flag" { flag.to_owned() } else { origin.to_owned() })
    }

    fn network(&self, rows: &mut Vec<Row>) {
        let network = &self.policy.network;
        let mode = self.policy.effective_network();
        let origin = self.or_profile("network.mode");
        let mut put =
            |label: &str, text: String, origin: &str| rows.push(row(Section::Reachable, label, text, origin));
        let list = |name: &str, values: &[String]| -> Vec<(String, String)> {
            let values = values.iter().enumerate();
            values
                .map(|(at, value)| {
                    (value.clone(), self.origins.get(&format!("network.{name}[{at}]")).to_owned())
                })
                .collect()
        };
        match mode {
            NetworkMode::None => put("network", "nothing but its own loopback".to_owned(), origin),
            NetworkMode::Host if network.allow.is_empty() => {
                put("network", "everything that this host reaches, its own services too".to_owned(), origin);
            }
            NetworkMode::Host => {
                put("network", "this host's network, these TCP ports only".to_owned(), origin)
            }
            _ if network.proxy.is_some() => {
                put("network", "what another program's proxy lets through".to_owned(), "")
            }
            _ if network.allow.is_empty() => {
                put(
                    "network",
                    "no host; each request is refused, and the flag that allows it is named".to_owned(),
                    origin,
                );
            }
            _ => put("network", "through Kennel's proxy: these hosts only".to_owned(), origin),
        }
        for (value, origin) in list("allow", &network.allow) {
            put("allowed", value, &origin);
        }
        for (value, origin) in list("deny", &network.deny) {
            put("refused", value, &origin);
        }
        for (value, origin) in list("allow_addresses", &network.allow_addresses) {
            put("addresses", value, &origin);
        }
        for (value, origin) in list("name_servers", &network.name_servers) {
            put("name server", value, &origin);
        }
        if let Some(upstream) = &network.upstream {
            put("upstream proxy", upstream.clone(), self.origins.get("network.upstream"));
        }
        if let Some(proxy) = &network.proxy {
            put("proxy socket", home(&proxy.unix), self.origins.get("network.proxy.unix"));
        }
    }

    fn environment(&self, rows: &mut Vec<Row>) {
        let env = &self.policy.env;
        let mut put = |label: &str, text: &str, origin: &str| {
            rows.push(row(Section::Environment, label, text.to_owned(), origin))
        };
        for name in &self.in_force.variables {
            let passed = env.pass.iter().position(|passed| passed == name);
            match passed {
                _ if env.set.contains_key(name) => {
                    put("set", name, self.origins.get(&format!("env.set.{name}")))
                }
                Some(at) => put("passed on", name, self.origins.get(&format!("env.pass[{at}]"))),
                None if env::var_os(name).is_some() => {
                    put("kept of yours", name, self.or_profile("env.base"))
                }
                None => put("made by Kennel", name, "profile"),
            }
        }
        for (at, name) in env.pass.iter().enumerate() {
            if !self.in_force.variables.contains(name) {
                put("not set here", name, self.origins.get(&format!("env.pass[{at}]")));
            }
        }
    }

    /// Where a key comes from that has a default of the profile.
    fn or_profile(&self, key: &str) -> &str {
        Some(self.origins.get(key)).filter(|origin| !origin.is_empty()).unwrap_or("profile")
    }

    fn limits(&self, rows: &mut Vec<Row>) {
        for (key, value) in leaves(self.policy).into_iter().filter(|(key, _)| key.contains("limits.")) {
            let is_default =
                value.is_null() || value == Value::Bool(false) || key == "limits.cgroup" && value == "auto";
            if !is_default {
                let text = match value.as_u64().filter(|_| is_size(&key)) {
                    Some(bytes) => Size::from_bytes(bytes).to_string(),
                    None => text(&value),
                };
                rows.push(row(Section::Limits, limit(&key), text, self.origins.get(&key)));
            }
        }
        if self.policy.limits.tmp_size.is_none() {
            rows.push(row(Section::Limits, "private directories", "2G together".to_owned(), "default"));
        }
    }

    /// Choices that no other section shows.
    fn others(&self, rows: &mut Vec<Row>) {
        const SHOWN: [&str; 7] = ["profile", "workspace", "cwd", "mounts", "network", "env", "limits"];
        for (key, value) in leaves(self.policy) {
            let table = key.split(['.', '[']).next().unwrap_or_default();
            let origin = self.origins.get(&key);
            if !SHOWN.contains(&table) && !origin.is_empty() && !value.is_null() {
                rows.push(row(
                    Section::Others,
                    key.split('[').next().unwrap_or_default(),
                    text(&value),
                    origin,
                ));
            }
        }
    }
}

/// The path of a mount in the sandbox, and the flag for such a mount.
fn place_of(mount: &Mount) -> (&Path, &'static str) {
    match mount {
        Mount::ReadOnly { source, target } => (target.as_ref().unwrap_or(source), "--ro"),
        Mount::ReadWrite { source, target } => (target.as_ref().unwrap_or(source), "--rw"),
        Mount::Tmpfs { target, .. } => (target, "--tmpfs"),
        Mount::Mask { path } => (path, "--mask"),
        Mount::File { target, .. } | Mount::Proc { target } | Mount::Symlink { target, .. } => (target, ""),
        Mount::Device { path } => (path, ""),
    }
}

fn row(section: Section, label: impl Into<String>, text: String, origin: &str) -> Row {
    Row { section, label: label.into(), text, origin: origin.to_owned() }
}

/// What a place is, for people.
fn what(place: &Place) -> &'static str {
    match place.what {
        "file" | "private directory" | "directory" => match place.access {
            PlaceAccess::Private => "directories",
            _ => "files",
        },
        "device" => "devices",
        "system" => "system",
        "secret" => "secrets",
        "cache" => "caches",
        "toolchain" => "toolchains",
        "path that git obeys" => "what git obeys",
        "file about the host" => "about the host",
        "kernel file" => "about the kernel",
        "mask" => "masked",
        what => what,
    }
}

/// The name of a limit.
fn limit(key: &str) -> String {
    let name = key.rsplit('.').next().unwrap_or(key);
    match name {
        "pids" => "processes",
        "cpus" => "processors",
        "cpuset" => "on processors",
        "cpu_time" => "processor time",
        "output" => "output kept",
        "output_ends" => "more output ends it",
        "tmp_size" => "private directories",
        "tmp_inodes" => "private files",
        "io" => "disk rates",
        _ if key.starts_with("network.") => return format!("network {}", name.replace('_', " ")),
        _ => return name.replace('_', " "),
    }
    .to_owned()
}

/// Whether a limit counts bytes.
fn is_size(key: &str) -> bool {
    let name = key.rsplit('.').next().unwrap_or(key);
    ["memory", "swap", "output", "tmp_size", "file_size", "bytes", "rate", "header_size"].contains(&name)
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        value => value.to_string(),
    }
}

/// A path with `~` for the home directory.
fn home(path: &Path) -> String {
    let home =
        env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute() && home.parent().is_some());
    match home.and_then(|home| path.strip_prefix(home).ok().map(Path::to_owned)) {
        Some(rest) if rest.as_os_str().is_empty() => "~".to_owned(),
        Some(rest) => format!("~/{}", rest.display()),
        None => path.display().to_string(),
    }
}

/// The rows as text: a paragraph for each section, and one entry for rows that differ in their text only.
pub(crate) fn page(rows: &[Row]) -> String {
    let table = Table::stdout();
    paragraphs(table, |section| {
        let entries = joined(rows.iter().filter(|row| row.section == section));
        entries.iter().map(|row| table.entry(&row.label, &row.text, &row.origin)).collect()
    })
}

/// What only one of two policies has: `-` the first, `+` the second. Empty if they come to the same.
pub(crate) fn difference(first: &[Row], second: &[Row]) -> String {
    let table = Table::stdout();
    let same = |one: &Row, other: &Row| {
        (one.section, &one.label, &one.text) == (other.section, &other.label, &other.text)
    };
    let only = |rows: &[Row], others: &[Row], section, sign, style| -> String {
        let only =
            rows.iter().filter(|row| row.section == section && !others.iter().any(|other| same(row, other)));
        let lines =
            joined(only.map(|row| Row { origin: String::new(), ..row.clone() }).collect::<Vec<_>>().iter());
        lines.iter().map(|row| table.line("", sign, style, &format!("{}: {}", row.label, row.text))).collect()
    };
    paragraphs(table, |section| {
        only(first, second, section, "-", style::REMOVED) + &only(second, first, section, "+", style::ADDED)
    })
}

/// Joins rows that differ in their text only.
fn joined<'r>(rows: impl Iterator<Item = &'r Row>) -> Vec<Row> {
    let mut entries: Vec<Row> = Vec::new();
    for row in rows {
        match entries.iter_mut().find(|entry| (&entry.label, &entry.origin) == (&row.label, &row.origin)) {
            Some(entry) => entry.text += &format!(", {}", row.text),
            None => entries.push(row.clone()),
        }
    }
    entries
}

/// Each section with a text, under its title.
fn paragraphs(table: Table, text: impl Fn(Section) -> String) -> String {
    let paragraph = |section: &Section| {
        let text = text(*section);
        let title = table.paint.paint(style::TITLE, section.title());
        (!text.is_empty()).then(|| format!("{title}\n{text}"))
    };
    Section::ALL.iter().filter_map(paragraph).collect::<Vec<_>>().join("\n")
}
