//! What a policy comes to, in people's words: what commands read, write, reach and get, and where each comes
//! from.

mod origins;
mod page;

use std::{
    env,
    path::{Path, PathBuf},
};

use kennel::{
    Limits, Mount, NetworkMode, Policy, Size,
    report::{InForce, Place, PlaceAccess, PlaceKind, PlaceOrigin},
};
use serde_json::Value;

use crate::args::values::short;
pub(crate) use origins::Origins;
use origins::leaves;
pub(crate) use page::{Row, difference, page};
use page::{Section, row};

/// What holds for commands under a policy, which has absolute paths and no secrets.
pub(crate) struct Holds<'h> {
    pub(crate) policy: &'h Policy,
    pub(crate) in_force: &'h InForce,
    pub(crate) origins: &'h Origins,
    /// The files that were read, the strongest last. `None` if nobody asks for them.
    pub(crate) files: Option<&'h [PathBuf]>,
    /// The file that names the profile.
    pub(crate) profile_from: Option<&'h Path>,
    /// Whether nobody named the workspace, and the current directory is below it.
    pub(crate) is_below: bool,
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
        let profile = match (self.origins.get("profile"), self.profile_from) {
            ("", Some(file)) => file.display().to_string(),
            ("", None) => "default".to_owned(),
            (origin, _) => origin.to_owned(),
        };
        put("profile", self.policy.profile.to_string(), &profile);
        if let Some(files) = self.files {
            let none = ["none".to_owned()];
            let files: Vec<String> = files.iter().map(|file| short(file)).collect();
            let files = if files.is_empty() { &none[..] } else { &files };
            files.iter().for_each(|file| put("files read", file.clone(), ""));
        }
        if let Some(root) = &self.in_force.root {
            let key = if self.policy.image.is_some() { "image" } else { "root" };
            put("root", root.clone(), self.origins.get(key));
        }
        put("commands start in", short(&self.in_force.directory), self.origins.get("cwd"));
    }

    fn workspace(&self) -> &str {
        match self.origins.get("workspace") {
            "" if self.is_below => "the git work tree around the current directory",
            "" => "the current directory",
            origin => origin,
        }
    }

    fn places(&self, rows: &mut Vec<Row>) {
        if !self.in_force.places.iter().any(|place| place.host.as_deref() == Some(Path::new("/"))) {
            let rest = "what no other section names, such as ~/.ssh".to_owned();
            rows.push(row(Section::Hidden, "the rest", rest, "always"));
        }
        for place in &self.in_force.places {
            // Links lead to places that have rows of their own.
            if place.what == PlaceKind::Link {
                continue;
            }
            let is_writable = place.access == PlaceAccess::Write && place.origin != PlaceOrigin::Wall;
            let section = match place.access {
                PlaceAccess::Write
                    if is_writable && self.policy.overlay.is_some() && place.what == PlaceKind::Workspace =>
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
            let mut text = short(&place.path);
            if let Some(host) = place.host.as_ref().filter(|host| **host != place.path) {
                text += &format!(", which is {} outside", short(host));
            }
            rows.push(row(section, what(place), text, &self.origin(place)));
        }
    }

    fn origin(&self, place: &Place) -> String {
        match place.origin {
            PlaceOrigin::Profile if matches!(place.what, PlaceKind::Cache | PlaceKind::Toolchain) => {
                let key = if place.what == PlaceKind::Cache { "caches" } else { "toolchains" };
                let origin = self.origins.get(key);
                if origin.is_empty() { "profile".to_owned() } else { origin.to_owned() }
            }
            PlaceOrigin::Profile => "profile".to_owned(),
            PlaceOrigin::Wall if place.what == PlaceKind::ProtectedPath => "protect".to_owned(),
            PlaceOrigin::Wall => "always".to_owned(),
            _ if place.what == PlaceKind::Workspace => self.workspace().to_owned(),
            _ => self.mount(place).unwrap_or_else(|| "policy".to_owned()),
        }
    }

    /// Where the mount at a place comes from.
    fn mount(&self, place: &Place) -> Option<String> {
        let mounts = self.policy.mounts.iter().enumerate();
        let mut found = mounts.map(|(index, mount)| (index, place_of(mount)));
        let is_here =
            |path: &Path| path == place.path || path.canonicalize().is_ok_and(|path| path == place.path);
        let (index, _) = found.find(|(_, path)| is_here(path))?;
        Some(self.origins.get(&format!("mounts[{index}]")).to_owned())
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
        for (value, origin) in list("publish", &network.publish) {
            put("published", value, &origin);
        }
        for (value, origin) in list("name_servers", &network.name_servers) {
            put("name server", value, &origin);
        }
        if let Some(upstream) = &network.upstream {
            put("upstream proxy", upstream.clone(), self.origins.get("network.upstream"));
        }
        if let Some(proxy) = &network.proxy {
            put("proxy socket", short(&proxy.unix), self.origins.get("network.proxy.unix"));
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
        if self.policy.limits.pids.is_none() {
            let text = format!("{} together in a session whose commands share them", Limits::SESSION_PIDS);
            rows.push(row(Section::Limits, limit("limits.pids"), text, "default"));
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

/// The path of a mount in the sandbox.
fn place_of(mount: &Mount) -> &Path {
    match mount {
        Mount::ReadOnly { source, target } | Mount::ReadWrite { source, target } => {
            target.as_ref().unwrap_or(source)
        }
        Mount::Tmpfs { target, .. }
        | Mount::File { target, .. }
        | Mount::Proc { target }
        | Mount::Symlink { target, .. } => target,
        Mount::Mask { path } | Mount::Device { path } => path,
    }
}

/// What a place is, for people.
fn what(place: &Place) -> &'static str {
    match place.what {
        PlaceKind::File | PlaceKind::PrivateDirectory | PlaceKind::Directory => match place.access {
            PlaceAccess::Private => "directories",
            _ => "files",
        },
        PlaceKind::Device => "devices",
        PlaceKind::System => "system",
        PlaceKind::Secret => "secrets",
        PlaceKind::Cache => "caches",
        PlaceKind::Toolchain => "toolchains",
        PlaceKind::ObeyedByGit => "what git obeys",
        PlaceKind::HostFile => "about the host",
        PlaceKind::KernelFile => "about the kernel",
        PlaceKind::Mask => "masked",
        what => what.as_str(),
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
