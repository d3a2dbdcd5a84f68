//! From what was typed to [`Arguments`].

use std::ffi::OsString;

use clap::{Args, Command, Parser};

use kennel::Error;

use crate::args::{Arguments, Exec, Run, Verb};

const NOT_TEXT: &str =
    "is not UTF-8, which is not understood here; grant a path with such a name by a directory around it";

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
        None => Arguments::try_parse_from(typed),
    }
}

/// The error for an argument that would have to be text and is not: the first of those that are ours.
pub(crate) fn not_text(typed: &[OsString]) -> Error {
    let own = typed.iter().take_while(|argument| *argument != "--");
    let value = own.into_iter().find(|argument| argument.to_str().is_none());
    let value = value.map_or_else(String::new, |value| value.to_string_lossy().into_owned());
    Error::Command { what: "argument", value, reason: NOT_TEXT.to_owned() }
}

/// The arguments of one command, its name first, if they are understood.
fn alone<A: Args>(after: &[OsString]) -> Option<A> {
    let matches = A::augment_args(Command::new("kennel")).try_get_matches_from(after).ok()?;
    A::from_arg_matches(&matches).ok()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{Arguments, OsString, parse};

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
            assert_eq!(told(parse(&typed)), told(Arguments::try_parse_from(&typed)), "{line}");
        }
        assert!(parse(&[]).is_err());
    }
}
