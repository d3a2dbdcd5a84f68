//! The words of `kennel serve`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// What the executable was asked to do.
pub(crate) enum Arguments {
    Serve(Serve),
    Host(Host),
}

#[derive(Parser)]
#[command(name = "kennel", bin_name = "kennel", disable_help_subcommand = true)]
struct Words {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Serve(Serve),
    #[command(hide = true)]
    ServeHost(Host),
}

/// Serve sandboxes of this machine to clients of E2B
///
/// Without a file it serves one person on this machine: at 127.0.0.1:49983, with a key that is made now. It
/// prints the three variables that clients of E2B need. A template `base` gives each sandbox an empty
/// directory of its own.
///
/// SIGTERM lets running sandboxes end, and takes no new ones; a second one ends at once. SIGHUP reads the
/// tokens anew.
#[derive(Args)]
pub(crate) struct Serve {
    /// The configuration: docs/server.md has all of its keys
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where to listen: ADDRESS:PORT, or unix:PATH
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// The directory for what sandboxes write and what a restart needs
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// The name of this worker, with which ids begin: where one file serves many workers
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
}

/// A process in which sandboxes live. The front starts it.
#[derive(Args)]
pub(crate) struct Host {
    #[arg(long)]
    pub(crate) state: PathBuf,
    #[arg(long)]
    pub(crate) index: u8,
    #[arg(long)]
    pub(crate) name: String,
    /// Milliseconds without a front after which the host ends.
    #[arg(long)]
    pub(crate) orphan: u64,
}

impl Arguments {
    /// Reads them. Prints help, or what is wrong, and ends the process then.
    pub(crate) fn read() -> Self {
        match Words::parse().verb {
            Verb::Serve(serve) => Self::Serve(serve),
            Verb::ServeHost(host) => Self::Host(host),
        }
    }
}
