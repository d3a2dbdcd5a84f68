//! `~/` at the start of a path that was typed, as in policy files. Shells replace it only at the start of a word, and so not
//! in `--ro=~/x` or `/data:~/x`.

use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};

const NO_HOME: &str = "HOME is not an absolute path; write the path in full";

/// A path.
pub(crate) fn path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| expanded(path, home().as_deref()))
}

/// One or two paths with a colon between, or a path with something else behind a colon.
pub(crate) fn paths(text: &str) -> Result<String, String> {
    expanded_paths(text, home().as_deref())
}

/// A path behind something else.
pub(crate) fn behind(text: &str) -> Result<PathBuf, String> {
    expanded(text.into(), home().as_deref())
}

fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute())
}

fn expanded(path: PathBuf, home: Option<&Path>) -> Result<PathBuf, String> {
    let Ok(rest) = path.strip_prefix("~") else { return Ok(path) };
    Ok(home.ok_or(NO_HOME)?.join(rest).components().collect())
}

fn expanded_paths(text: &str, home: Option<&Path>) -> Result<String, String> {
    let part = |part: &str| {
        let path = if part.is_empty() { part.into() } else { expanded(part.into(), home)?.into_os_string() };
        path.into_string().map_err(|_| "HOME is not UTF-8; a policy file can say `~/`".to_owned())
    };
    Ok(text.split(':').map(part).collect::<Result<Vec<_>, _>>()?.join(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_is_where_a_path_begins_with_a_tilde() {
        let home = Some(Path::new("/home/me"));
        for (typed, meant) in [
            ("~/x", "/home/me/x"),
            ("~", "/home/me"),
            ("~/", "/home/me"),
            ("./~/x", "./~/x"),
            ("~you/x", "~you/x"),
            ("/a/~/x", "/a/~/x"),
            ("a/", "a/"),
        ] {
            let path = expanded(typed.into(), home).expect(typed);
            assert_eq!(path.as_os_str(), meant, "{typed}");
        }
        for (typed, meant) in [
            ("~/x:~/y", "/home/me/x:/home/me/y"),
            ("/a:~/y", "/a:/home/me/y"),
            ("~/x:64M", "/home/me/x:64M"),
            (":", ":"),
            ("a:b:c", "a:b:c"),
        ] {
            assert_eq!(expanded_paths(typed, home).as_deref(), Ok(meant), "{typed}");
        }
        for refused in [expanded("~/x".into(), None).map(drop), expanded_paths("a:~", None).map(drop)] {
            assert_eq!(refused, Err(NO_HOME.to_owned()));
        }
    }
}
