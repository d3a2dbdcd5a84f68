//! Presets: names for lists of rules that many people need, such as `@cargo`. A rule that is one of these
//! names stands for its whole list.
//!
//! The table is data: add a row for another one.

use std::sync::LazyLock;

use thiserror::Error;

use crate::policy::network::destination::{Destination, DestinationHost};
use crate::policy::network::rule::Rules;

/// What a preset begins with. No host does.
const SIGN: char = '@';

/// A list of rules with a name.
#[derive(Debug)]
pub(crate) struct Preset {
    name: &'static str,
    pub(crate) rules: &'static [&'static str],
    /// Other words that people try.
    also: &'static [&'static str],
}

/// What a tool needs to fetch things, and not what it needs to publish them, where these are different hosts.
const PRESETS: &[Preset] = &[
    Preset {
        name: "alpine",
        rules: &["dl-cdn.alpinelinux.org:443", "dl-cdn.alpinelinux.org:80"],
        also: &["apk"],
    },
    Preset {
        name: "cargo",
        rules: &["index.crates.io:443", "static.crates.io:443"],
        also: &["crate", "crates", "crates-io", "crates.io", "rust"],
    },
    Preset {
        name: "debian",
        rules: &[
            "deb.debian.org:443",
            "deb.debian.org:80",
            "security.debian.org:443",
            "security.debian.org:80",
        ],
        also: &["apt", "deb"],
    },
    Preset {
        name: "github",
        rules: &[
            "github.com:443",
            "api.github.com:443",
            "codeload.github.com:443",
            "*.githubusercontent.com:443",
        ],
        also: &["gh", "github.com"],
    },
    Preset { name: "gitlab", rules: &["gitlab.com:443"], also: &["gitlab.com", "glab"] },
    Preset {
        name: "go",
        rules: &["proxy.golang.org:443", "sum.golang.org:443", "storage.googleapis.com:443"],
        also: &["golang", "goproxy"],
    },
    Preset {
        name: "gradle",
        rules: &[
            "services.gradle.org:443",
            "downloads.gradle.org:443",
            "plugins.gradle.org:443",
            "plugins-artifacts.gradle.org:443",
        ],
        also: &["gradlew"],
    },
    Preset {
        name: "maven",
        rules: &["repo.maven.apache.org:443", "repo1.maven.org:443"],
        also: &["java", "mvn"],
    },
    Preset {
        name: "npm",
        rules: &["registry.npmjs.org:443", "registry.yarnpkg.com:443", "nodejs.org:443"],
        also: &["js", "node", "npmjs", "pnpm", "yarn"],
    },
    Preset {
        name: "nuget",
        rules: &["api.nuget.org:443", "globalcdn.nuget.org:443", "www.nuget.org:443"],
        also: &["dotnet"],
    },
    Preset {
        name: "packagist",
        rules: &["packagist.org:443", "repo.packagist.org:443"],
        also: &["composer", "php"],
    },
    Preset {
        name: "pypi",
        rules: &["pypi.org:443", "files.pythonhosted.org:443"],
        also: &["pip", "poetry", "python", "uv"],
    },
    Preset {
        name: "rubygems",
        rules: &["rubygems.org:443", "index.rubygems.org:443", "api.rubygems.org:443"],
        also: &["bundler", "gem", "gems", "ruby"],
    },
    Preset { name: "rustup", rules: &["static.rust-lang.org:443"], also: &["rust-lang", "toolchain"] },
    Preset {
        name: "ubuntu",
        rules: &[
            "archive.ubuntu.com:443",
            "archive.ubuntu.com:80",
            "*.archive.ubuntu.com:443",
            "*.archive.ubuntu.com:80",
            "ports.ubuntu.com:443",
            "ports.ubuntu.com:80",
            "security.ubuntu.com:443",
            "security.ubuntu.com:80",
        ],
        also: &[],
    },
];

/// There is no preset of this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no preset of that name{}; there are {}", meant(.0), listed())]
pub(crate) struct UnknownPreset(String);

/// The preset that a rule names. `None`: the rule is no preset.
///
/// # Errors
/// There is no preset of that name.
pub(crate) fn of(rule: &str) -> Option<Result<&'static Preset, UnknownPreset>> {
    let name = rule.strip_prefix(SIGN)?;
    Some(PRESETS.iter().find(|preset| preset.name == name).ok_or_else(|| UnknownPreset(name.to_owned())))
}

/// The presets with their rules, parsed once.
static PARSED: LazyLock<Vec<(&Preset, Rules)>> = LazyLock::new(|| {
    let parsed = |preset: &'static Preset| Some((preset, Rules::parse(preset.rules.iter().copied()).ok()?));
    PRESETS.iter().filter_map(parsed).collect()
});

/// The preset that allows a host, at a port if that is known.
pub(crate) fn of_host(host: &DestinationHost, port: Option<u16>) -> Option<&'static Preset> {
    let allows = |rules: &Rules| match port {
        Some(port) => rules.find(&Destination { host: host.clone(), port }).is_some(),
        None => rules.may_match(host),
    };
    PARSED.iter().find(|(_, rules)| allows(rules)).map(|(preset, _)| *preset)
}

/// The preset that allows a destination, if its package manager keeps what it downloads in a cache.
pub(crate) fn with_cache(destination: &Destination) -> Option<&'static Preset> {
    let keepers = ["cargo", "go", "gradle", "maven", "npm", "nuget", "packagist", "pypi", "rubygems"];
    of_host(&destination.host, Some(destination.port)).filter(|preset| keepers.contains(&preset.name))
}

impl Preset {
    /// Its name, as a rule.
    pub(crate) fn word(&self) -> String {
        format!("{SIGN}{}", self.name)
    }

    /// Whether package managers ask one of its hosts, unasked, for a newer version of themselves.
    pub(crate) fn has_update_checks(&self) -> bool {
        ["npm", "nuget", "packagist", "pypi", "rubygems", "rustup"].contains(&self.name)
    }
}

/// The rules with each preset in full. What is no preset, and what there is none of, stays.
pub(crate) fn expanded(rules: &[String]) -> Vec<String> {
    let in_full = |rule: &String| match of(rule) {
        Some(Ok(preset)) => preset.rules.iter().map(|&rule| rule.to_owned()).collect(),
        _ => vec![rule.clone()],
    };
    rules.iter().flat_map(in_full).collect()
}

/// The preset that is probably meant by a wrong name, for a message.
fn meant(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    let named = |preset: &&Preset| preset.name == name || preset.also.contains(&&*name);
    let misspelled = |preset: &&Preset| is_one_slip(preset.name, &name);
    let found = PRESETS.iter().find(named).or_else(|| PRESETS.iter().find(misspelled));
    found.map_or_else(String::new, |preset| format!(" (did you mean {SIGN}{}?)", preset.name))
}

fn listed() -> String {
    PRESETS.iter().map(|preset| format!("{SIGN}{}", preset.name)).collect::<Vec<_>>().join(", ")
}

/// Whether two words differ by one letter too many, too few or wrong, or by two letters in the wrong order.
fn is_one_slip(word: &str, other: &str) -> bool {
    let (word, other) = (word.as_bytes(), other.as_bytes());
    let start = word.iter().zip(other).take_while(|(one, two)| one == two).count();
    let (word, other) = (&word[start..], &other[start..]);
    let end = word.iter().rev().zip(other.iter().rev()).take_while(|(one, two)| one == two).count();
    match (&word[..word.len() - end], &other[..other.len() - end]) {
        ([a, b], [c, d]) => (a, b) == (d, c),
        (rest, others) => rest.len() <= 1 && others.len() <= 1,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::policy::network::rule::Rule;

    #[test]
    fn every_preset_has_valid_rules_and_words_of_its_own() {
        let mut words = HashSet::new();
        for preset in PRESETS {
            assert!(!preset.rules.is_empty());
            for rule in preset.rules {
                let parsed = rule.parse::<Rule>().expect(rule);
                assert_eq!(parsed.to_string(), *rule, "{}", preset.name);
            }
            let own = [&[preset.name], preset.also].concat();
            assert!(own.into_iter().all(|word| words.insert(word)), "{}", preset.name);
        }
        assert!(PRESETS.is_sorted_by_key(|preset| preset.name));
    }

    #[test]
    fn a_wrong_name_gets_the_list_and_what_was_probably_meant() {
        for (typed, meant) in [
            ("@crates", Some("@cargo")),
            ("@Cargo", Some("@cargo")),
            ("@crago", Some("@cargo")),
            ("@npmm", Some("@npm")),
            ("@pip", Some("@pypi")),
            ("@pypy", Some("@pypi")),
            ("@apt", Some("@debian")),
            ("@gthub", Some("@github")),
            ("@example", None),
            ("@", None),
            ("@\u{fc}", None),
        ] {
            let said = of(typed).expect("a preset").expect_err("unknown").to_string();
            let tip = meant.map(|meant| format!(" (did you mean {meant}?)"));
            assert_eq!(said.contains("did you mean"), tip.is_some(), "{typed}: {said}");
            assert!(said.contains(&tip.unwrap_or_default()), "{typed}: {said}");
            assert!(said.contains("; there are @alpine, @cargo, @debian, @github,"), "{said}");
        }
        assert!(of("cargo:1").is_none());
    }

    #[test]
    fn the_document_lists_every_preset_with_its_hosts() {
        let document = include_str!("../../../docs/network.md");
        let table = document.split("| preset | hosts |\n").nth(1).expect("a table");
        let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
        let shown: Vec<Vec<&str>> = rows.map(|row| row.split('`').skip(1).step_by(2).collect()).collect();
        let hosts = |preset: &Preset| {
            let mut hosts: Vec<&str> =
                preset.rules.iter().filter_map(|rule| Some(rule.rsplit_once(':')?.0)).collect();
            hosts.dedup();
            hosts
        };
        for (preset, shown) in PRESETS.iter().zip(&shown) {
            let (name, listed) = shown.split_first().expect("a name");
            assert_eq!((*name, listed), (&*format!("@{}", preset.name), &*hosts(preset)));
        }
        assert_eq!(shown.len(), PRESETS.len());
    }
}
