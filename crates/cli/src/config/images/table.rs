//! What the table says: limits of the store of images, and how registries are reached.

use std::{collections::BTreeMap, io};

use kennel::{Error, Size, image::Reference};
use serde::Deserialize;
use toml::Table;

use super::NAME;
use crate::config::{
    file::{self, Links, Owner},
    source::{DEFAULTS, path_of, unusable},
};

/// What the table says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImagesConfig {
    /// Bytes that the files of an image may have.
    pub(crate) max_size: Option<Size>,
    /// How many files an image may have.
    pub(crate) max_files: Option<u64>,
    /// Registries that speak plain HTTP, as `HOST:PORT`. All others speak TLS.
    #[serde(default)]
    pub(crate) insecure_registries: Vec<String>,
    /// Who is asked in place of a registry.
    #[serde(default)]
    pub(crate) mirrors: BTreeMap<String, Mirror>,
}

/// A registry that has what another one has: `https://HOST[:PORT][/REPOSITORY]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Mirror {
    /// `HOST[:PORT]`.
    pub(crate) host: String,
    /// Where it has the repositories of the other one; empty for the same place.
    pub(crate) prefix: String,
    /// Whether it speaks plain HTTP.
    pub(crate) is_plain: bool,
}

impl TryFrom<String> for Mirror {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let refused = || format!("`{text}`: write https://HOST[:PORT], or https://HOST/REPOSITORY");
        let (scheme, rest) = text.split_once("://").ok_or_else(refused)?;
        let (host, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_end_matches('/');
        let is_valid = matches!(scheme, "http" | "https") && is_registry(host) && is_repository(host, prefix);
        let is_plain = scheme == "http";
        match is_valid {
            true => Ok(Self { host: host.to_owned(), prefix: prefix.to_owned(), is_plain }),
            false => Err(refused()),
        }
    }
}

/// Whether a text is the registry of a reference.
fn is_registry(host: &str) -> bool {
    let reference = format!("{host}/x").parse::<Reference>();
    reference.is_ok_and(|reference| reference.registry() == Some(host))
}

/// Whether a registry may have repositories below this one.
fn is_repository(host: &str, prefix: &str) -> bool {
    let reference = format!("{host}/{prefix}/x").parse::<Reference>();
    prefix.is_empty()
        || reference.is_ok_and(|it| it.repository().is_some_and(|whole| whole == format!("{prefix}/x")))
}

/// Reads the table. Nothing is set where there is none.
///
/// # Errors
/// The file cannot be used, or the table has another key or a wrong value.
pub(crate) fn images() -> Result<ImagesConfig, Error> {
    let Some(path) = path_of(DEFAULTS) else { return Ok(ImagesConfig::default()) };
    let failed = |source| unusable(&path, source, "mend it");
    let Some(file) = file::read(&path, Links::Followed, Owner::Caller).map_err(failed)? else {
        return Ok(ImagesConfig::default());
    };
    parse(&file.text).map_err(|reason| failed(io::Error::other(reason)))
}

fn parse(text: &str) -> Result<ImagesConfig, String> {
    let mut all: Table = toml::from_str(text).map_err(|error| one_line(&error))?;
    let Some(table) = all.remove(NAME) else { return Ok(ImagesConfig::default()) };
    let config: ImagesConfig =
        table.try_into().map_err(|error: toml::de::Error| format!("{NAME}: {}", error.message()))?;
    if config.max_files == Some(0) {
        return Err(format!("{NAME}.max_files: write a number above 0"));
    }
    let refused = |key: &str, host: &String| Err(format!("{NAME}.{key}: `{host}`: write HOST or HOST:PORT"));
    if let Some(host) = config.insecure_registries.iter().find(|host| !is_registry(host)) {
        return refused("insecure_registries", host);
    }
    match config.mirrors.keys().find(|host| !is_registry(host)) {
        Some(host) => refused("mirrors", host),
        None => Ok(config),
    }
}

/// The message, and where it is in the file.
fn one_line(error: &toml::de::Error) -> String {
    let first = error.to_string();
    let place = first.lines().next().and_then(|line| line.strip_prefix("TOML parse error at "));
    place.map_or_else(|| error.message().to_owned(), |place| format!("{place}: {}", error.message()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_and_mistakes_are_named() {
        for (text, size, files) in [
            ("", None, None),
            ("profile = 'read-only'", None, None),
            ("[images]\nmax_size = '2G'\nmax_files = 7", Some(2 << 30), Some(7)),
            ("images.max_size = 4096", Some(4096), None),
        ] {
            let expected = ImagesConfig {
                max_size: size.map(Size::from_bytes),
                max_files: files,
                ..ImagesConfig::default()
            };
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
        for (text, said) in [
            ("[images]\nmax_sise = 1", "images: unknown field `max_sise`"),
            ("images = 3", "images: "),
            ("images.max_size = 'much'", "images: "),
            ("images.max_files = 0", "images.max_files: "),
            ("images.max_files = -1", "images: "),
            (
                "images.insecure_registries = ['http://a.b']",
                "images.insecure_registries: `http://a.b`: write HOST",
            ),
            ("images.insecure_registries = ['plain']", "images.insecure_registries: `plain`: write HOST"),
            ("images.insecure_registries = 'a.b'", "images: "),
            ("images.mirrors.plain = 'https://a.b'", "images.mirrors: `plain`: write HOST"),
            ("images.mirrors.'docker.io' = 'a.b'", "images: `a.b`: write https://HOST"),
            ("images.mirrors.'docker.io' = 'ftp://a.b'", "images: `ftp://a.b`: write https://HOST"),
            ("images.mirrors.'docker.io' = 'https://a.b/../c'", "images: `https://a.b/../c`: write"),
            ("images.mirrors.'docker.io' = 'https://u:p@a.b'", "images: `https://u:p@a.b`: write"),
            ("images.mirrors.'docker.io' = 'https://a.b/?c'", "images: `https://a.b/?c`: write"),
            ("x = [", "line 1, column"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.starts_with(said), "{text}: {error}");
        }
    }

    #[test]
    fn registries_are_reached_as_the_table_says() {
        let text = "[images]\ninsecure_registries = ['localhost:5000']\n[images.mirrors]\n\
                    'docker.io' = 'https://a.b'\n'quay.io' = 'http://[::1]:5000/proxy/quay/'\n";
        let config = parse(text).expect("a valid table");
        assert_eq!(config.insecure_registries, ["localhost:5000"]);
        let mirror = |host: &str, prefix: &str, is_plain| Mirror {
            host: host.to_owned(),
            prefix: prefix.to_owned(),
            is_plain,
        };
        assert_eq!(config.mirrors.get("docker.io"), Some(&mirror("a.b", "", false)));
        assert_eq!(config.mirrors.get("quay.io"), Some(&mirror("[::1]:5000", "proxy/quay", true)));
    }
}
