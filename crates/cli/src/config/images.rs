//! The table `images` of the user's `config.toml`. It is no part of a policy, so no other file has it.

#[cfg(target_os = "linux")]
pub(crate) mod table;

use std::borrow::Cow;

use toml::Table;
use toml_edit::DocumentMut;

/// The table.
const NAME: &str = "images";

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
    fn what_is_left_is_the_policy_with_its_lines() {
        for (text, left) in [
            ("profile = 'read-only'\n", "profile = 'read-only'\n"),
            ("# of images\nprofile = 'images'\n", "# of images\nprofile = 'images'\n"),
            ("a = 1\n[images]\nmax_size = 1\n[b]\nc = 1\n", "a = 1\n\n\n[b]\nc = 1\n"),
            ("images.max_size = 1\na = 1\n", "\na = 1\n"),
            ("a = 1\n[images.mirrors]\n'docker.io' = 'https://a.b'\n", "a = 1\n\n\n"),
            ("images = { max_files = 1 }\na = 1", "\na = 1\n"),
            ("[b]\nimages = 1\n", "[b]\nimages = 1\n"),
            ("a = '''\n[images]\n'''\n[images]\nmax_size = 1\n", "a = '''\n[images]\n'''\n"),
            ("\"images\".max_size = 1\na = 1\n", "a = 1\n"),
        ] {
            assert_eq!(without(text), left, "{text}");
        }
    }
}
