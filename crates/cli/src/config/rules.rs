//! Adds rules to a policy file of the user. Everything else in it stays, comments too.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use kennel::{Error, Policy};
use toml_edit::{Array, DocumentMut, Item, TableLike, Value, table, value};

use super::{
    file::{self, Links, Owner},
    images,
    source::{DEFAULTS, Source, path_of, unusable},
};
use crate::args::policy::PolicyFlags;

/// The file in which a rule would count the next time: the one that `--policy` names, or the user's defaults.
/// `None`: there is no such file in TOML.
pub(crate) fn file_for(flags: &PolicyFlags) -> Option<PathBuf> {
    match Source::of(flags.policy.as_deref(), flags) {
        Source::File(given) => given.extension().is_some_and(|it| it == "toml").then(|| given.to_owned()),
        Source::Named(name) => path_of(name),
        Source::Usual => path_of(DEFAULTS),
        Source::Nothing => None,
    }
}

/// Adds rules to `network.allow` of a file, which may not be there yet.
///
/// # Errors
/// The file cannot be written, or is no policy.
pub(crate) fn add(path: &Path, rules: &[String]) -> Result<(), Error> {
    let failed = |source| {
        let remedy = format!("add them yourself to network.allow: {}", rules.join(", "));
        unusable(path, source, remedy)
    };
    let found = file::read(path, Links::Followed, Owner::Caller).map_err(failed)?;
    let before = found.map_or_else(String::new, |found| found.text);
    let after = with_rules(&before, rules).map_err(|reason| failed(io::Error::other(reason)))?;
    Policy::from_file_text(path, &images::without(&after), Path::new("/"))?;
    write(path, &after).map_err(failed)
}

/// Writes the file in place, because it may be a link into a repository of settings.
fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(directory) = path.parent()
        && fs::symlink_metadata(directory).is_err()
    {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// The text of a policy with these rules in `network.allow`.
fn with_rules(text: &str, rules: &[String]) -> Result<String, String> {
    let mut document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| error.to_string())?;
    let network = document.entry("network").or_insert_with(table);
    let network = network.as_table_like_mut().ok_or("network is not a table")?;
    let allow = list(network).ok_or("network.allow is not a list")?;
    for rule in rules {
        if !allow.iter().any(|known| known.as_str() == Some(rule)) {
            push(allow, rule);
        }
    }
    Ok(document.to_string())
}

fn list(network: &mut dyn TableLike) -> Option<&mut Array> {
    let allow: &mut Item = network.entry("allow").or_insert_with(|| value(Array::new()));
    allow.as_array_mut()
}

/// Adds a rule as the last one is written: on a line of its own, or not.
fn push(list: &mut Array, rule: &str) {
    let before = list.iter().last().and_then(|last| last.decor().prefix()?.as_str().map(str::to_owned));
    let mut new = Value::from(rule);
    match before {
        // A comment above the last rule is about that rule.
        Some(before) if before.contains('\n') => {
            let indent = before.rsplit('\n').next().unwrap_or_default();
            new.decor_mut().set_prefix(format!("\n{indent}"));
        }
        Some(_) => new.decor_mut().set_prefix(" "),
        None => {}
    }
    list.push_formatted(new);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_added_and_everything_else_stays() {
        let rules = ["a.example:443".to_owned(), "b.example:1".to_owned()];
        for (before, after) in [
            ("", "[network]\nallow = [\"a.example:443\", \"b.example:1\"]\n"),
            (
                "# mine\nprofile = 'read-only' # yes\n",
                "# mine\nprofile = 'read-only' # yes\n\n[network]\nallow = [\"a.example:443\", \"b.example:1\"]\n",
            ),
            (
                "network.allow = ['@npm'] # why\n[limits]\npids = 1\n",
                "network.allow = ['@npm', \"a.example:443\", \"b.example:1\"] # why\n[limits]\npids = 1\n",
            ),
            (
                "[network]\nallow = [\n    # first\n    '@npm', # one\n    'b.example:1',\n]\n",
                "[network]\nallow = [\n    # first\n    '@npm', # one\n    'b.example:1',\n    \"a.example:443\",\n]\n",
            ),
            (
                "network = { mode = 'proxy' }\n",
                "network = { mode = 'proxy' , allow = [\"a.example:443\", \"b.example:1\"] }\n",
            ),
        ] {
            let told = with_rules(before, &rules).expect(before);
            let policy = Policy::from_toml(&told).expect(&told);
            assert!(rules.iter().all(|rule| policy.network.allow.contains(rule)), "{told}");
            assert_eq!(told, after);
            assert_eq!(with_rules(&told, &rules).as_deref(), Ok(after), "once is enough");
        }
        for wrong in ["network = 1", "network.allow = 'a'", "="] {
            with_rules(wrong, &rules).expect_err(wrong);
        }
    }
}
