//! What a person can do if a program was not found. The name alone often shows what they meant: a whole
//! command line, an assignment, or a word of their shell.

use SettingKey::{Cwd, PassEnv, Ro, SetEnv};

use crate::report::remedy::{Remedy, SettingKey, remedy};

/// Words of shells, and the remedy for them.
type Row = (&'static [&'static str], fn() -> Remedy);

/// Words that shells carry out themselves, and what to write instead. `sh` may have a program of the same
/// name; then it was found.
const OF_SHELLS: &[Row] = &[
    (&["cd", "pushd", "popd"], || {
        remedy![
            "it is built into shells, and changes the directory of its shell only: use ",
            Cwd.to("DIR"),
            ", or sh -c 'cd DIR && COMMAND'",
        ]
    }),
    (&["export", "set", "unset", "declare", "typeset", "local", "readonly"], || {
        remedy![
            "it is built into shells: set a variable with ",
            SetEnv.to("NAME=VALUE"),
            ", pass one of yours with ",
            PassEnv.to("NAME"),
            ", or use sh -c 'export NAME=VALUE; COMMAND'",
        ]
    }),
    (&["source", "."], || {
        "it is built into shells, and reads a file into its shell only: use sh -c '. ./FILE && COMMAND'"
            .into()
    }),
    (&["alias", "unalias", "ll", "la"], || {
        "aliases belong to your shell: write the command that it stands for, such as ls -l".into()
    }),
    (
        &[
            ":", "bg", "bind", "break", "builtin", "case", "command", "complete", "continue", "dirs",
            "disown", "enable", "eval", "exec", "exit", "fc", "fg", "for", "function", "getopts", "hash",
            "help", "history", "if", "jobs", "let", "logout", "mapfile", "read", "return", "shift", "shopt",
            "suspend", "time", "times", "trap", "type", "ulimit", "umask", "until", "wait", "while", "[[",
            "((", "{", "!",
        ],
        || "it is a word of shells, not a program: run a shell, as in sh -c 'COMMAND LINE'".into(),
    ),
];

/// The remedy for a program of that name.
pub(crate) fn remedy(program: &str) -> Remedy {
    if let Some((_, remedy)) = OF_SHELLS.iter().find(|(words, _)| words.contains(&program)) {
        return remedy();
    }
    if is_assignment(program) {
        return remedy![
            "set a variable with ",
            SetEnv.to("NAME=VALUE"),
            ", or begin the command with env: env NAME=VALUE COMMAND",
        ];
    }
    if program.contains(char::is_whitespace) {
        return "a program and its arguments are words of their own: leave out the quotes around the whole, or let a shell read \
                it: sh -c 'COMMAND LINE'"
            .into();
    }
    if program.contains('/') {
        return remedy!["only granted paths exist inside: check the path, or grant it with ", Ro];
    }
    remedy![
        "only granted paths exist inside: check the name and PATH, or grant its directory with ",
        Ro,
        "; ./NAME is a file in the current directory; an alias or a function of your shell is no program",
    ]
}

/// Whether it begins as an assignment of a shell does: `NAME=`.
fn is_assignment(text: &str) -> bool {
    let Some((name, _)) = text.split_once('=') else { return false };
    let is_of_names = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.starts_with(|c: char| is_of_names(c) && !c.is_ascii_digit()) && name.chars().all(is_of_names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mistake_has_its_remedy() {
        for (program, words) in [
            ("cd", "cwd DIR"),
            ("export", "env.set NAME=VALUE"),
            ("source", ". ./FILE"),
            ("ll", "aliases belong to your shell"),
            ("ulimit", "run a shell"),
            ("A_1=b", "env.set NAME=VALUE"),
            ("A=b make", "env.set NAME=VALUE"),
            ("ls -la", "leave out the quotes"),
            ("./a=b", "check the path"),
            ("1=b", "check the name"),
            ("=", "check the name"),
            ("mke", "check the name"),
            ("bin/mke", "check the path"),
            ("", "check the name"),
        ] {
            let remedy = remedy(program).to_string();
            assert!(remedy.contains(words), "{program:?}: {remedy}");
        }
    }
}
