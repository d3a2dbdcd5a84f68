//! Single words of a command line as values: paths, numbers, signals, assignments.

use std::{
    convert::Infallible,
    error,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use clap::builder::{PathBufValueParser, PossibleValuesParser, TypedValueParser};
use kennel::Span;

const NO_HOME: &str = "HOME is not an absolute path; write the path in full";

/// Parses one of the words of `T`; help, completions and errors list them.
pub(crate) fn word<T>(all: impl Into<PossibleValuesParser>) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: error::Error + Send + Sync + 'static> + Clone + Send + Sync + 'static,
{
    all.into().try_map(|word| word.parse::<T>())
}

pub(crate) fn assignment(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// An interpreter and the modules that it imports: `PROGRAM`, or `PROGRAM=MODULE,…`.
pub(crate) fn interpreter(text: &str) -> Result<(String, Vec<String>), Infallible> {
    let (program, modules) = text.split_once('=').unwrap_or((text, ""));
    let modules = modules.split(',').filter(|module| !module.is_empty()).map(str::to_owned).collect();
    Ok((program.to_owned(), modules))
}

pub(crate) fn count(text: &str) -> Result<u64, &'static str> {
    text.parse().map_err(|_| "write a whole number, such as 64")
}

pub(crate) fn processors(text: &str) -> Result<f64, &'static str> {
    text.parse().map_err(|_| "write a number of processors, such as 1.5")
}

/// A time that may also have days: `30d`.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    const FORM: &str = "write a number with a unit, such as 30d, 12h or 10m";
    let days = text.strip_suffix('d').map(|days| {
        let seconds = days.parse::<u64>().ok()?.checked_mul(86_400).filter(|seconds| *seconds > 0)?;
        Some(Duration::from_secs(seconds))
    });
    match days {
        Some(days) => days.ok_or_else(|| FORM.to_owned()),
        None => text.parse::<Span>().map(Span::duration).map_err(|_| FORM.to_owned()),
    }
}

pub(crate) fn credential(text: &str) -> Result<(String, PathBuf), String> {
    let (key, file) = text.split_once('=').ok_or("write KEY=FILE")?;
    Ok((key.to_owned(), expand_path(file)?))
}

/// Parses a path. A leading `~/` is the home directory, as in policy files: shells do not expand it in
/// `--ro=~/x` or `/data:~/x`.
pub(crate) fn path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| expand(path, home().as_deref()))
}

/// Expands `~/` in each part of `P[:T]` or `P[:SIZE]`.
pub(crate) fn paths(text: &str) -> Result<String, String> {
    expand_each(text, home().as_deref())
}

/// Expands `~/` in a path that follows `KEY=`.
fn expand_path(text: &str) -> Result<PathBuf, String> {
    expand(text.into(), home().as_deref())
}

/// A path for people, with `~` for the home directory.
pub(crate) fn short(path: &Path) -> String {
    let home = home().filter(|home| home.parent().is_some());
    match home.and_then(|home| path.strip_prefix(home).ok().map(Path::to_owned)) {
        Some(rest) if rest.as_os_str().is_empty() => "~".to_owned(),
        Some(rest) => format!("~/{}", rest.display()),
        None => path.display().to_string(),
    }
}

fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute())
}

fn expand(path: PathBuf, home: Option<&Path>) -> Result<PathBuf, String> {
    let Ok(rest) = path.strip_prefix("~") else { return Ok(path) };
    Ok(home.ok_or(NO_HOME)?.join(rest).components().collect())
}

fn expand_each(text: &str, home: Option<&Path>) -> Result<String, String> {
    let part = |part: &str| {
        let path = if part.is_empty() { part.into() } else { expand(part.into(), home)?.into_os_string() };
        path.into_string().map_err(|_| "HOME is not UTF-8; use `~/` in a policy file instead".to_owned())
    };
    Ok(text.split(':').map(part).collect::<Result<Vec<_>, _>>()?.join(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_may_have_days() {
        for (typed, seconds) in [("30d", 30 * 86_400), ("1d", 86_400), ("12h", 43_200), ("90s", 90)] {
            assert_eq!(span(typed), Ok(Duration::from_secs(seconds)), "{typed}");
        }
        for typed in ["", "d", "0d", "-1d", "1.5d", "30 d", "99999999999999999d", "0s", "month"] {
            assert!(span(typed).is_err_and(|said| said.contains("30d")), "{typed}");
        }
    }

    #[test]
    fn a_leading_tilde_is_the_home_directory() {
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
            let path = expand(typed.into(), home).expect(typed);
            assert_eq!(path.as_os_str(), meant, "{typed}");
        }
        for (typed, meant) in [
            ("~/x:~/y", "/home/me/x:/home/me/y"),
            ("/a:~/y", "/a:/home/me/y"),
            ("~/x:64M", "/home/me/x:64M"),
            (":", ":"),
            ("a:b:c", "a:b:c"),
        ] {
            assert_eq!(expand_each(typed, home).as_deref(), Ok(meant), "{typed}");
        }
        for refused in [expand("~/x".into(), None).map(drop), expand_each("a:~", None).map(drop)] {
            assert_eq!(refused, Err(NO_HOME.to_owned()));
        }
    }
}
