//! From what was typed to [`Arguments`].

use std::{
    error,
    ffi::OsString,
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::{
    Args, Command, Parser,
    builder::{PathBufValueParser, PossibleValuesParser, StyledStr, TypedValueParser},
    error::{ContextKind, ContextValue, ErrorKind},
};
use kennel::Error;

use crate::args::{Arguments, Exec, Run, Verb};

const NO_HOME: &str = "HOME is not an absolute path; write the path in full";

const NOT_TEXT: &str = "is not UTF-8, which is not understood here";

/// What was typed, `kennel` itself first.
///
/// # Errors
/// What is not understood, and what asks for help or the version instead.
pub(crate) fn parse(typed: &[OsString]) -> Result<Arguments, clap::Error> {
    let after = typed.get(1..).unwrap_or_default();
    // These two are started thousands of times. To build the flags of all commands, of which three have those of a
    // policy, takes as long as to start a process.
    let verb = match after.first().and_then(|verb| verb.to_str()) {
        Some("run") => alone::<Run>(after).map(Verb::Run),
        Some("exec") => alone::<Exec>(after).map(Verb::Exec),
        _ => None,
    };
    match verb {
        Some(verb) => Ok(Arguments { verb }),
        // Whatever has to be said about it is said by the whole.
        None => Arguments::try_parse_from(typed).map_err(advised),
    }
}

/// A command that was typed without `--` before it looks like an argument too many.
fn advised(mut error: clap::Error) -> clap::Error {
    let is_behind = |usage: &ContextValue| usage.to_string().contains("-- <CMD>");
    if error.kind() != ErrorKind::UnknownArgument || !error.get(ContextKind::Usage).is_some_and(is_behind) {
        return error;
    }
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word)) if !word.starts_with('-') => {
            let tip = StyledStr::from(format!("put `--` before the command: -- {word}"));
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
        }
        // To pass a flag on as a value behind `--`, as the parser suggests, would run a command of that name.
        _ => drop(error.remove(ContextKind::Suggested)),
    }
    error
}

/// The error for an argument that would have to be text and is not: the first of those that are ours.
pub(crate) fn not_text(typed: &[OsString]) -> Error {
    let own: Vec<&OsString> = typed.iter().take_while(|argument| *argument != "--").collect();
    let at = own.iter().position(|argument| argument.to_str().is_none());
    let value =
        at.and_then(|at| own.get(at)).map_or_else(String::new, |value| value.to_string_lossy().into_owned());
    // It has the flag in it, or behind it.
    let flag = match (value.strip_prefix("--"), at) {
        (Some(_), _) => value.split('=').next(),
        (None, Some(at)) => at.checked_sub(1).and_then(|before| own.get(before)?.to_str()),
        (None, None) => None,
    };
    let has_policy = own.get(1).is_some_and(|verb| *verb != "exec");
    let remedy = match flag {
        Some("--ro" | "--rw" | "--tmpfs") => "; grant a path with such a name by a directory around it",
        Some("--setenv") if has_policy => "; give `kennel` that variable, and name it with --pass-env",
        _ => "",
    };
    Error::Command { what: "argument", value, reason: format!("{NOT_TEXT}{remedy}") }
}

/// The arguments of one command, its name first, if they are understood.
fn alone<A: Args>(after: &[OsString]) -> Option<A> {
    let matches = A::augment_args(Command::new("kennel")).try_get_matches_from(after).ok()?;
    A::from_arg_matches(&matches).ok()
}

/// One of the words of `T`: help, completions and errors list them.
pub(crate) fn word<T>(all: impl IntoIterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: error::Error + Send + Sync + 'static> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(all).try_map(|word| word.parse::<T>())
}

pub(crate) fn assignment(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub(crate) fn count(text: &str) -> Result<u64, &'static str> {
    text.parse().map_err(|_| "write a whole number, such as 64")
}

pub(crate) fn processors(text: &str) -> Result<f64, &'static str> {
    text.parse().map_err(|_| "write a number of processors, such as 1.5")
}

pub(crate) fn credential(text: &str) -> Result<(String, PathBuf), String> {
    let (key, file) = text.split_once('=').ok_or("write KEY=FILE")?;
    Ok((key.to_owned(), behind(file)?))
}

/// A path.
pub(crate) fn path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| expanded(path, home().as_deref()))
}

/// One or two paths with a colon between, or a path with something else behind a colon.
pub(crate) fn paths(text: &str) -> Result<String, String> {
    expanded_paths(text, home().as_deref())
}

/// A path behind something else.
fn behind(text: &str) -> Result<PathBuf, String> {
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
    fn what_is_no_text_has_the_remedy_of_its_flag() {
        use std::os::unix::ffi::OsStringExt;
        for (line, words) in [
            ("run --ro /a\u{1} true", "by a directory around it"),
            ("run --rw=/a\u{1} true", "by a directory around it"),
            ("run --setenv A=\u{1} -- true", "name it with --pass-env"),
            ("session start --name a --setenv=A=\u{1}", "name it with --pass-env"),
            ("exec a --setenv A=\u{1} -- true", "not understood here"),
            ("op m.toml say --arg a=\u{1}", "not understood here"),
            ("run --allow \u{1}:1 true", "not understood here"),
            ("run --hostname=\u{1} true", "not understood here"),
            ("op m.toml \u{1}", "not understood here"),
        ] {
            // No UTF-8 has such a byte.
            let word = |word: &str| word.bytes().map(|byte| if byte == 1 { 0xff } else { byte }).collect();
            let typed: Vec<_> =
                ["kennel"].into_iter().chain(line.split(' ')).map(word).map(OsString::from_vec).collect();
            let error = not_text(&typed).to_string();
            assert!(error.contains('\u{fffd}') && error.ends_with(words), "{line:?}: {error}");
        }
    }

    #[test]
    fn one_command_alone_understands_what_the_whole_does() {
        let lines = [
            "run true",
            "run -- make -j 4 --help",
            "run -q --profile read-only --ro /a:/b --rw /c --setenv A=B --timeout 3s --json out -- sh -c run",
            "run --overlay --commit --max-output 1M --output-ends --memory 1G -- run --version",
            "exec a1 true",
            "exec a1 --cwd src --setenv A=B --timeout 30s -- exec --tty",
            "run",
            "run --",
            "run --help",
            "run -h",
            "run -V",
            "run --version",
            "run --absent true",
            "run --timeout never true",
            "run --profile nope true",
            "run --net proxy --env inherit --tmp session -- true",
            "run --diff --commit true",
            "run run run",
            "exec",
            "exec --help",
            "exec a1",
            "help run",
            "running",
            "--version",
            "",
        ];
        for line in lines {
            let typed: Vec<OsString> =
                ["kennel"].into_iter().chain(line.split_whitespace()).map(Into::into).collect();
            let told = |result: Result<Arguments, clap::Error>| match result {
                Ok(arguments) => format!("{arguments:?}"),
                Err(error) => format!("{:?}: {error}", error.kind()),
            };
            let whole = Arguments::try_parse_from(&typed).map_err(advised);
            assert_eq!(told(parse(&typed)), told(whole), "{line}");
        }
        assert!(parse(&[]).is_err());
    }

    #[test]
    fn a_command_without_its_dashes_is_recognised() {
        for (line, tip) in [
            ("kennel run ls -la", Some("tip: put `--` before the command: -- ls\n")),
            ("kennel run --net none ls", Some("-- ls\n")),
            ("kennel exec a1 ls", Some("-- ls\n")),
            ("kennel session start --name a ls", None),
            // To follow the parser's own would run a command of that name.
            ("kennel run --ev inherit -- true", None),
        ] {
            let typed: Vec<OsString> = line.split(' ').map(Into::into).collect();
            let said = parse(&typed).expect_err(line).to_string();
            assert_eq!(tip.is_some(), said.contains("tip:"), "{line}: {said}");
            assert!(said.contains(tip.unwrap_or_default()), "{line}: {said}");
        }
    }

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
