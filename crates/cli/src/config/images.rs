//! The table `images` of the user's `config.toml`: limits of the store of images. It is no part of a policy,
//! so no other file has it.

use std::{borrow::Cow, io};

use kennel::{Error, Size};
use serde::Deserialize;
use toml::Table;
use toml_edit::DocumentMut;

use super::{
    file::{self, Links, Owner},
    source::{DEFAULTS, path_of, unusable},
};

/// The table.
const NAME: &str = "images";

/// What the table says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImagesConfig {
    /// Bytes that the files of an image may have.
    pub(crate) max_size: Option<Size>,
    /// How many files an image may have.
    pub(crate) max_files: Option<u64>,
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
    Ok(config)
}

/// The message, and where it is in the file.
fn one_line(error: &toml::de::Error) -> String {
    let first = error.to_string();
    let place = first.lines().next().and_then(|line| line.strip_prefix("TOML parse error at "));
    place.map_or_else(|| error.message().to_owned(), |place| format!("{place}: {}", error.message()))
}

/// The text without the table: what is left is a policy. Its lines keep their numbers.
pub(super) fn without(text: &str) -> Cow<'_, str> {
    if !text.contains(NAME) {
        return text.into();
    }
    // A text that does not parse gets the error of the policy.
    let Ok(mut all) = toml::from_str::<Table>(text) else { return text.into() };
    if all.remove(NAME).is_none() {
        return text.into();
    }
    let blank = blanked(text);
    match toml::from_str::<Table>(&blank).is_ok_and(|left| left == all) {
        true => blank.into(),
        // Written in another way, as `"images".max_size`.
        false => text.parse::<DocumentMut>().map_or(text.into(), |mut document| {
            document.remove(NAME);
            document.to_string().into()
        }),
    }
}

/// The text with empty lines in place of the table, in the usual ways to write one.
fn blanked(text: &str) -> String {
    let mut is_inside = false;
    let mut is_top = true;
    let lines = text.lines().map(|line| {
        let start = line.trim_start();
        if start.starts_with('[') {
            is_top = false;
            let name = start.trim_start_matches('[').trim_start();
            is_inside = begins_with_name(name, &[']', '.', ' ']);
        }
        let is_key = is_top && begins_with_name(start, &['.', ' ', '=']);
        if is_inside || is_key { "" } else { line }
    });
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

fn begins_with_name(text: &str, next: &[char]) -> bool {
    text.strip_prefix(NAME).is_some_and(|rest| rest.starts_with(next))
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
            let expected = ImagesConfig { max_size: size.map(Size::from_bytes), max_files: files };
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
        for (text, said) in [
            ("[images]\nmax_sise = 1", "images: unknown field `max_sise`"),
            ("images = 3", "images: "),
            ("images.max_size = 'much'", "images: "),
            ("images.max_files = 0", "images.max_files: "),
            ("images.max_files = -1", "images: "),
            ("x = [", "line 1, column"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.starts_with(said), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_left_is_the_policy_with_its_lines() {
        for (text, left) in [
            ("profile = 'read-only'\n", "profile = 'read-only'\n"),
            ("# of images\nprofile = 'images'\n", "# of images\nprofile = 'images'\n"),
            ("a = 1\n[images]\nmax_size = 1\n[b]\nc = 1\n", "a = 1\n\n\n[b]\nc = 1\n"),
            ("images.max_size = 1\na = 1\n", "\na = 1\n"),
            ("images = { max_files = 1 }\na = 1", "\na = 1\n"),
            ("[b]\nimages = 1\n", "[b]\nimages = 1\n"),
            ("a = '''\n[images]\n'''\n[images]\nmax_size = 1\n", "a = '''\n[images]\n'''\n"),
            ("\"images\".max_size = 1\na = 1\n", "a = 1\n"),
        ] {
            assert_eq!(without(text), left, "{text}");
        }
    }
}
