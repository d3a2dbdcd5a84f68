//! `kennel completions`: what clap makes of the flags, and what only the machine knows: names of sessions and
//! policies, and programs.

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;

use crate::args::{Arguments, run::Run, session::Exec};

/// The completions for a shell.
pub(crate) fn of(shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "kennel", &mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    match shell {
        Shell::Bash => text + &BASH.replace("{valued}", &valued().join(" ")),
        Shell::Zsh => zsh(&text),
        Shell::Fish => text + FISH,
        _ => text,
    }
}

/// The flags before a command that take a value, which is the next word.
fn valued() -> Vec<String> {
    let commands = [Run::augment_args(Command::new("run")), Exec::augment_args(Command::new("exec"))];
    let flags = commands.iter().flat_map(Command::get_arguments);
    let flags = flags.filter(|flag| !flag.is_positional() && flag.get_action().takes_values());
    let names = flags.flat_map(|flag| {
        let short = flag.get_short().map(|short| format!("-{short}"));
        [short, flag.get_long().map(|long| format!("--{long}"))].into_iter().flatten()
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    names
}

/// Puts functions for names in the places where clap knows none.
fn zsh(text: &str) -> String {
    let named = text
        .replace(":name -- Name of the session:_default'", ":name -- Name of the session:_kennel_sessions'")
        .replace(":name -- Its name:_default'", ":name -- Its name:_kennel_sessions'")
        .replace(":FILE|NAME:_files'", ":FILE|NAME:_kennel_policies'");
    named.replacen("autoload -U is-at-least\n", &format!("autoload -U is-at-least\n{ZSH}"), 1)
}

const BASH: &str = r#"
# What this machine has: sessions, policies, programs.
_kennel_names() { # DIRECTORY SUFFIX
    local file
    for file in "$1"/*"$2"; do
        [[ -e $file ]] || continue
        file=${file##*/}
        printf '%s\n' "${file%"$2"}"
    done
}

_kennel_sessions() {
    local directory=${XDG_RUNTIME_DIR:+$XDG_RUNTIME_DIR/kennel}
    _kennel_names "${directory:-/tmp/kennel-$UID}" .sock
}

_kennel_policies() {
    _kennel_names "${XDG_CONFIG_HOME:-$HOME/.config}/kennel" .toml
}

# How many words from the one with this number on, and before the current one, are no flags and no values of flags.
_kennel_place() {
    local at count=0 valued=" {valued} "
    for ((at = $1; at < COMP_CWORD; at++)); do
        case ${COMP_WORDS[at]} in
        -*=* | --) ;;
        -*) [[ $valued != *" ${COMP_WORDS[at]} "* ]] || ((at++)) ;;
        *) ((++count)) ;;
        esac
    done
    # The current word is the value of a flag.
    ((at == COMP_CWORD)) || count=-1
    printf '%s' "$count"
}

_kennel_or_names() {
    local cur=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]} first=2 place what=
    [[ $verb == session ]] && first=3
    if [[ ${COMP_WORDS[COMP_CWORD - 1]} == --policy ]]; then
        what=policies
    elif ((COMP_CWORD >= first)) && [[ $cur != -* ]]; then
        place=$(_kennel_place "$first")
        case $verb-$place in
        run-0 | exec-1) what=programs ;;
        run-[1-9]* | exec-[1-9]*) what=files ;;
        exec-0) what=sessions ;;
        diff-[0-9]* | commit-[0-9]* | discard-[0-9]*) what='sessions files' ;;
        session-0)
            case ${COMP_WORDS[2]} in
            ps | logs | kill | wait | publish | stop) what=sessions ;;
            esac
            ;;
        esac
    fi
    case $what in
    '') _kennel "$@" ;;
    programs) mapfile -t COMPREPLY < <(compgen -c -- "$cur" | sort -u) ;;
    files) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    sessions) mapfile -t COMPREPLY < <(compgen -W "$(_kennel_sessions)" -- "$cur") ;;
    'sessions files') mapfile -t COMPREPLY < <(compgen -W "$(_kennel_sessions)" -- "$cur"; compgen -f -- "$cur") ;;
    policies) mapfile -t COMPREPLY < <(compgen -W "$(_kennel_policies)" -- "$cur"; compgen -f -- "$cur") ;;
    esac
}
complete -F _kennel_or_names -o bashdefault -o default kennel
"#;

const ZSH: &str = r#"
_kennel_sessions() {
    local directory=${XDG_RUNTIME_DIR:+$XDG_RUNTIME_DIR/kennel}
    local -a names
    names=(${directory:-/tmp/kennel-$UID}/*.sock(N:t:r))
    compadd -X session -a names
}

_kennel_policies() {
    local -a names
    names=(${XDG_CONFIG_HOME:-$HOME/.config}/kennel/*.toml(N:t:r))
    compadd -X policy -a names
    _files
}
"#;

const FISH: &str = r#"
# What this machine has: sessions, policies, programs.
function __kennel_names
    for file in $argv[1]/*$argv[2]
        string replace -r '.*/' '' -- $file | string replace -r '\.[a-z]+$' ''
    end
end

function __kennel_sessions
    if set -q XDG_RUNTIME_DIR; and test -n "$XDG_RUNTIME_DIR"
        __kennel_names $XDG_RUNTIME_DIR/kennel .sock
    else
        __kennel_names /tmp/kennel-(id -u) .sock
    end
end

function __kennel_policies
    set -q XDG_CONFIG_HOME; and test -n "$XDG_CONFIG_HOME"; and set -l config $XDG_CONFIG_HOME; or set -l config ~/.config
    __kennel_names $config/kennel .toml
end

function __kennel_is_word
    test (count (string match -v -- '-*' (commandline -opc))) -eq $argv[1]
end

complete -c kennel -l policy -r -F -a "(__kennel_policies)"
complete -c kennel -n "__fish_kennel_using_subcommand exec; and __kennel_is_word 2" -f -a "(__kennel_sessions)"
complete -c kennel -n "__fish_kennel_using_subcommand exec; and not __kennel_is_word 2" -a "(__fish_complete_subcommand --fcs-skip=3)"
complete -c kennel -n "__fish_kennel_using_subcommand run" -a "(__fish_complete_subcommand --fcs-skip=2)"
complete -c kennel -n "__fish_kennel_using_subcommand session; and __fish_seen_subcommand_from ps logs kill wait publish stop; and __kennel_is_word 3" -f -a "(__kennel_sessions)"
complete -c kennel -n "__fish_kennel_using_subcommand diff commit discard" -a "(__kennel_sessions)"
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zsh_knows_sessions_and_policies_wherever_they_are_named() {
        let text = of(Shell::Zsh);
        assert!(text.matches(":_kennel_sessions'").count() >= 7, "{text}");
        assert!(text.matches(":_kennel_policies'").count() >= 5, "{text}");
        assert!(text.contains("\n_kennel_sessions() {\n") && !text.contains(":FILE|NAME:_files'"), "{text}");
        assert!(!text.contains("Name of the session:_default'\n':"), "{text}");
    }

    #[test]
    fn flags_with_a_value_are_known() {
        let valued = valued();
        for flag in ["--profile", "--setenv", "--timeout", "--cwd", "--ro"] {
            assert!(valued.iter().any(|name| name == flag), "{flag}: {valued:?}");
        }
        for flag in ["-q", "--quiet", "--tty", "--overlay"] {
            assert!(!valued.iter().any(|name| name == flag), "{flag}: {valued:?}");
        }
    }
}
