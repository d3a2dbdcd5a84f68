//! What the words of a command line can be, as types of clap, with the texts of their help. Nothing here
//! reads a file, looks at the machine or acts.

pub(crate) mod changes;
pub(crate) mod config;
pub(crate) mod help;
pub(crate) mod host;
pub(crate) mod image;
pub(crate) mod manifest;
pub(crate) mod owner;
pub(crate) mod policy;
pub(crate) mod run;
pub(crate) mod session;
pub(crate) mod values;

use std::ffi::OsString;

use clap::{Parser, Subcommand};
use clap_complete::Shell;

use crate::terminal::style::When;
use changes::{CommitArguments, Diff, Part};
use config::{InitArguments, TrustArguments};
use host::{AuditAction, CacheAction, Probe};
use image::ImageAction;
use manifest::Op;
use policy::PolicyAction;
use run::Run;
use session::{Exec, Mcp, SessionAction, hidden};
use values::word;

/// Run commands so that they see, use and reach only what you grant.
#[derive(Debug, Parser)]
#[command(name = "kennel", version, arg_required_else_help = true, after_help = help::KENNEL)]
pub(crate) struct Arguments {
    /// Use colours: auto, always or never [default: auto].
    ///
    /// `auto` means on terminals; NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM=dumb change that.
    #[arg(long, value_name = "WHEN", global = true, display_order = 1000, value_parser = word::<When>(When::WORDS))]
    pub(crate) color: Option<When>,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a command confined.
    ///
    /// Its output, input and exit status are as without Kennel. It sees the system, read-only, and an empty
    /// home and /tmp; it can change the workspace. Flags grant more.
    #[command(after_help = help::RUN)]
    Run(Run),
    /// Keep a sandbox ready for many commands: start, list, stop.
    #[command(after_help = help::SESSION)]
    Session {
        #[command(subcommand)]
        action: SessionAction,
    },
    /// Run a command in a session.
    #[command(after_help = help::EXEC)]
    Exec(Exec),
    /// Serve a sandbox to an agent, by the Model Context Protocol.
    ///
    /// The agent starts this command and speaks to its stdin and stdout. Its tools run commands and read and
    /// write files in one sandbox, which ends with stdin.
    #[command(after_help = help::MCP, mut_arg("overlay_size", hidden))]
    Mcp(Mcp),
    /// Serve sandboxes of this machine to clients of E2B.
    ///
    /// `kennel serve --help` lists its flags.
    #[command(disable_help_flag = true)]
    Serve {
        /// Its flags.
        #[arg(value_name = "FLAGS", trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Serve the sandboxes of many workers at one address.
    ///
    /// `kennel route --help` lists its flags.
    #[command(disable_help_flag = true)]
    Route {
        /// Its flags.
        #[arg(value_name = "FLAGS", trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Show workers, their room and their load.
    ///
    /// `kennel fleet --help` lists its commands.
    #[command(disable_help_flag = true)]
    Fleet {
        /// Its commands and flags.
        #[arg(value_name = "WORDS", trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Show what commands changed with --overlay.
    ///
    /// The form is a unified diff.
    #[command(after_help = help::DIFF)]
    Diff(Diff),
    /// Apply changes of --overlay to the workspace.
    ///
    /// That is all of them, or those at PATH.
    #[command(after_help = help::COMMIT)]
    Commit(CommitArguments),
    /// Drop changes of --overlay.
    ///
    /// That is all of them, or those at PATH.
    #[command(after_help = help::DISCARD)]
    Discard(Part),
    /// Run an operation of a manifest.
    ///
    /// That is a program with its credentials, confined to what the manifest grants.
    #[command(after_help = help::OP)]
    Op(Op),
    /// Check, run and compile WebAssembly connectors.
    #[command(after_help = manifest::CONNECTOR)]
    Connector {
        #[command(subcommand)]
        action: manifest::Action,
    },
    /// Keep images, which are root file systems for sandboxes: pull, import, list, remove, export.
    #[command(after_help = help::IMAGE)]
    Image {
        #[command(subcommand)]
        action: ImageAction,
    },
    /// Test what this machine enforces, and how to get the rest.
    Probe(Probe),
    /// Show or check what flags and policy files allow.
    Policy {
        #[command(subcommand)]
        action: PolicyAction,
    },
    /// Write a commented kennel.toml for the project in the workspace.
    #[command(after_help = help::INIT)]
    Init(InitArguments),
    /// Trust the kennel.toml of the workspace as it is now.
    ///
    /// Kennel then uses it.
    #[command(after_help = help::TRUST)]
    Trust(TrustArguments),
    /// Print completions for a shell.
    #[command(after_help = help::COMPLETIONS)]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print a manual page.
    #[command(after_help = help::MAN)]
    Man {
        /// The command: `run`, or `session start`.
        command: Vec<String>,
    },
    /// List or clear what --caches keep has kept.
    #[command(after_help = help::CACHE)]
    Cache {
        #[command(subcommand)]
        action: CacheAction,
    },
    /// Verify audit logs.
    Audit {
        #[command(subcommand)]
        action: AuditAction,
    },
}
