//! `kennel init`: writes a commented `kennel.toml` for what it finds in a workspace.
//!
//! Only the names of files in its top directory count. Nothing is read, so no project decides what the file
//! says.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    process::ExitCode,
};

use kennel::{Error, Network, internal::escape::harmless};

use super::{
    source::unusable,
    trust,
    workspace::{FILE, Workspace},
};
use crate::{args::config::InitArguments, report};

/// Names in the directory that are looked at. A directory may have a million.
const MOST_NAMES: usize = 10_000;

/// A package manager, and the files by which a project shows that it uses it.
struct Manager {
    /// Names. One that begins with a dot is the end of a name.
    files: &'static [&'static str],
    presets: &'static [&'static str],
    /// Presets that some projects need too, and what for.
    sometimes: &'static [(&'static str, &'static str)],
    caches: &'static [&'static str],
}

const MANAGERS: &[Manager] = &[
    Manager {
        files: &["Cargo.toml"],
        presets: &["@cargo"],
        sometimes: &[("@rustup", "another toolchain"), ("@github", "dependencies from git")],
        caches: &["~/.cargo/registry"],
    },
    Manager {
        files: &["package.json"],
        presets: &["@npm"],
        sometimes: &[("@github", "dependencies from git, and binaries that packages download")],
        caches: &["~/.npm"],
    },
    Manager {
        files: &["pyproject.toml", "requirements.txt", "setup.py", "setup.cfg", "Pipfile", "uv.lock"],
        presets: &["@pypi"],
        sometimes: &[("@github", "dependencies from git, and interpreters of uv")],
        caches: &["~/.cache/pip", "~/.cache/uv"],
    },
    Manager { files: &["go.mod", "go.work"], presets: &["@go"], sometimes: &[], caches: &["~/go/pkg/mod"] },
    Manager {
        files: &["Gemfile", ".gemspec"],
        presets: &["@rubygems"],
        sometimes: &[("@github", "dependencies from git")],
        caches: &["~/.bundle/cache"],
    },
    // Packagist knows packages; most of them are archives of GitHub.
    Manager {
        files: &["composer.json"],
        presets: &["@packagist", "@github"],
        sometimes: &[],
        caches: &["~/.cache/composer"],
    },
    Manager { files: &["pom.xml"], presets: &["@maven"], sometimes: &[], caches: &["~/.m2/repository"] },
    Manager {
        files: &["build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts"],
        presets: &["@gradle", "@maven"],
        sometimes: &[("@github", "the wrapper, which downloads Gradle from there")],
        caches: &["~/.gradle/caches"],
    },
    Manager {
        files: &[".csproj", ".fsproj", ".sln", ".slnx"],
        presets: &["@nuget"],
        sometimes: &[],
        caches: &["~/.nuget/packages"],
    },
];

/// Runs `kennel init`.
pub(crate) fn init(arguments: &InitArguments) -> Result<ExitCode, Error> {
    let top = Workspace::of(arguments.directory.as_deref()).top.unwrap_or_default();
    let failed = |source| unusable(&top, source, "name a directory that you can read and write");
    let top = fs::canonicalize(&top).map_err(failed)?;
    let entries = fs::read_dir(&top).map_err(failed)?.flatten().take(MOST_NAMES);
    let names: BTreeSet<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let (path, text) = (top.join(FILE), text_for(&names));
    // With O_EXCL, open(2) follows no link.
    let file = File::options().write(true).create_new(true).mode(0o644).open(&path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|source| {
        unusable(&path, source, "change the file that is there, then run `kennel trust`")
    })?;
    trust::remember(&path, &text)?;
    report::print(format!("{}\n", harmless(&path.to_string_lossy())).as_bytes())?;
    report::say(format_args!("kennel: wrote it: {}", summary(&names)));
    report::say(
        "kennel: it is trusted as it is. kennel policy show says what it comes to, kennel run CMD uses it",
    );
    Ok(ExitCode::SUCCESS)
}

/// What the file for these names says, in a few words.
fn summary(names: &BTreeSet<String>) -> String {
    let found = |manager: &&Manager| manager.files.iter().any(|file| is_there(file, names));
    let presets: BTreeSet<&str> = MANAGERS.iter().filter(found).flat_map(|it| it.presets).copied().collect();
    let presets: Vec<&str> = presets.into_iter().collect();
    match presets.is_empty() {
        true => "profile repo-write, and no host, because no file of a package manager is here".to_owned(),
        false => format!("profile repo-write, and the hosts of {}", presets.join(", ")),
    }
}

/// The file for a directory with these names in it.
fn text_for(names: &BTreeSet<String>) -> String {
    let found = |manager: &&Manager| manager.files.iter().any(|file| is_there(file, names));
    let managers: Vec<&Manager> = MANAGERS.iter().filter(found).collect();
    let presets: BTreeSet<&str> = managers.iter().flat_map(|it| it.presets).copied().collect();
    let mut allow = String::new();
    for preset in &presets {
        allow += &line("    ", preset, &hosts(preset));
    }
    let mut told = BTreeSet::new();
    for (preset, what_for) in managers.iter().flat_map(|it| it.sometimes) {
        if !presets.contains(preset) && told.insert(*preset) {
            allow += &line("    # ", preset, what_for);
        }
    }
    if allow.is_empty() {
        allow += &line("    # ", "example.com:443", "");
    }
    let caches: Vec<&str> = managers.iter().flat_map(|it| it.caches).copied().collect();
    let caches = if caches.is_empty() { "~/.cache".to_owned() } else { caches.join(", ") };
    TEMPLATE.replace("{allow}", &allow).replace("{caches}", &caches)
}

/// An entry of the list, with a comment.
fn line(start: &str, entry: &str, comment: &str) -> String {
    let entry = format!("{start}\"{entry}\",");
    if comment.is_empty() { format!("{entry}\n") } else { format!("{entry:<20} # {comment}\n") }
}

fn is_there(file: &str, names: &BTreeSet<String>) -> bool {
    match file.starts_with('.') {
        true => names.iter().any(|name| name.ends_with(file)),
        false => names.contains(file),
    }
}

/// The hosts of a preset, for a comment.
fn hosts(preset: &str) -> String {
    let network = Network { allow: vec![preset.to_owned()], ..Network::default() }.shown();
    let mut hosts: Vec<&str> =
        network.allow.iter().map(|rule| rule.rsplit_once(':').map_or(&**rule, |(host, _)| host)).collect();
    hosts.dedup();
    hosts.join(", ")
}

const TEMPLATE: &str = r#"# What commands may see, use and reach here. `kennel run` reads this file, and so does `kennel session start`.
# Flags come over it. Kennel uses it only as you have trusted it: after a change, run `kennel trust`.

# read-only, repo-write, no-network, full-dev, or ci-only.
profile = "repo-write"

# What stays read-only, although commands may write here. A path, or a pattern such as "**/.env".
# protect = [".github"]

# What commands add to caches goes with the sandbox; "keep" keeps it for later ones. The host's files never change.
# Caches here: {caches}.
# caches = "keep"

[network]
# Where commands may connect to: a host with a port, or a preset.
allow = [
{allow}]

# What else commands see of the host. Secrets such as ~/.ssh stay hidden.
# [[mounts]]
# type = "ro"                # or "rw"
# source = "~/models"

# Variables that commands get besides the usual ones.
# [env]
# pass = ["CI"]

# [limits]
# memory = "4G"
# timeout = "30m"
"#;

#[cfg(test)]
mod tests {
    use kennel::Policy;

    use super::*;

    fn text(names: &[&str]) -> String {
        text_for(&names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn every_file_is_a_valid_policy_with_the_hosts_of_what_is_there() {
        for manager in MANAGERS {
            for file in manager.files {
                let name = if file.starts_with('.') { format!("a{file}") } else { (*file).to_owned() };
                let text = text(&[&name, "README.md"]);
                let policy = Policy::from_toml(&text).expect(&text);
                policy.validate().expect(&text);
                let mut presets = manager.presets.to_vec();
                presets.sort_unstable();
                assert_eq!(policy.network.allow, presets, "{file}");
                assert!(manager.caches.iter().all(|cache| text.contains(cache)), "{text}");
            }
        }
        let nothing = Policy::from_toml(&text(&["README.md", "csproj"])).expect("valid");
        assert_eq!(nothing, Policy::default());
    }

    /// A person takes the `#` away.
    #[test]
    fn what_is_commented_out_is_valid_too() {
        let text = text(&["Cargo.toml", "composer.json"]);
        let is_key =
            |line: &str| line.starts_with("# [") || line.contains(" = ") || line.starts_with("    # \"");
        let lines =
            text.lines().map(|line| if is_key(line) { line.replacen("# ", "", 1) } else { line.to_owned() });
        let policy = Policy::from_toml(&lines.collect::<Vec<_>>().join("\n")).expect(&text);
        policy.validate().expect(&text);
        assert_eq!(policy.network.allow, ["@cargo", "@github", "@packagist", "@rustup"]);
        assert_eq!((policy.mounts.len(), policy.protect.len(), policy.env.pass.len()), (1, 1, 1));
        assert!(policy.limits.memory.is_some() && policy.caches == kennel::Caches::Keep);
    }
}
