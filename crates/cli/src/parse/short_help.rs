//! `-h`: the flags that most people need, a line each.

use clap::{Arg, Args, Command, Id, builder::Resettable};

use crate::args::policy::PolicyFlags;

/// Flags of a policy, and of `kennel run`, that the short help shows.
const COMMON: [&str; 15] = [
    "command", "profile", "policy", "ro", "rw", "mask", "overlay", "net", "allow", "pass_env", "memory",
    "timeout", "explain", "tty", "quiet",
];

/// A command with more flags than this takes those of a policy.
const MANY: usize = 20;

/// A command whose help is short: of the flags of a policy only the common ones, and a line each.
pub(super) fn shortened(command: Command) -> Command {
    // The texts of these flags name their words. Only a flag with a value may hide them.
    let hide_words = |arg: Arg, of: &[&str]| {
        let is_hidden = arg.is_hide_possible_values_set() || of.contains(&arg.get_id().as_str());
        arg.hide_possible_values(is_hidden)
    };
    let command = command.mut_subcommands(shortened).mut_args(|arg| hide_words(arg, &["color"]));
    if command.get_arguments().count() <= MANY {
        return command;
    }
    let all = PolicyFlags::augment_args(Command::new("policy"));
    let of_policy = |id: &Id| all.get_arguments().any(|flag| flag.get_id() == id);
    let is_run = command.get_name() == "run";
    command
        .mut_args(|arg| {
            let id = arg.get_id();
            let is_left_out = (is_run || of_policy(id)) && !COMMON.contains(&id.as_str());
            let is_hidden = arg.is_hide_set() || is_left_out;
            hide_words(arg, &["profile", "net"]).hide(is_hidden).help_heading(Resettable::Reset)
        })
        .after_help("`--help` shows all flags, with examples.")
}
