//! The words of `kennel serve`, `kennel route` and `kennel fleet`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// What the executable was asked to do.
pub(crate) enum Arguments {
    Serve(Serve),
    Host(Host),
    Route(Route),
    FleetStatus(FleetStatus),
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
    Route(Route),
    /// Show the workers of a fleet
    Fleet {
        #[command(subcommand)]
        action: FleetAction,
    },
    #[command(hide = true)]
    ServeHost(Host),
}

#[derive(Subcommand)]
enum FleetAction {
    Status(FleetStatus),
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
    /// Also run jobs from this NATS server with JetStream, such as nats://127.0.0.1:4222: docs/fleet.md
    #[arg(long, value_name = "URL")]
    pub(crate) nats: Option<String>,
}

/// Serve the sandboxes of many workers at one address
///
/// A worker is `kennel serve` on a machine of its own, with a `name` of its own. The router asks each once a
/// second what room it has, asks one with room to make each sandbox, and passes every other request on to the
/// worker that the id of its sandbox names. It keeps no state: start as many as you like, and kill them.
///
/// SIGTERM lets requests that are under way end, for ten seconds; a second one ends at once. SIGHUP reads the
/// tokens anew.
#[derive(Args)]
pub(crate) struct Route {
    /// The workers: http://HOST:PORT, https://HOST:PORT, unix:PATH, or dns+http://NAME:PORT for all addresses
    /// of a name, which is asked again every 5 seconds
    #[arg(long, value_name = "URL,…", value_delimiter = ',', required = true)]
    pub(crate) workers: Vec<String>,
    /// Where to listen: ADDRESS:PORT, or unix:PATH [default: 127.0.0.1:49984]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// The workers' file of tokens: its `sandboxes` and `creations` then hold over all workers
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
    /// TLS: the certificates, in PEM
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) certificate: Option<PathBuf>,
    /// TLS: the key, in PEM
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) key: Option<PathBuf>,
    /// Let keys pass in the clear beyond this machine: behind a proxy that has TLS
    #[arg(long)]
    pub(crate) insecure: bool,
}

/// Show workers, their room and their load
///
/// The exit status is 1 if a worker is not alive.
#[derive(Args)]
pub(crate) struct FleetStatus {
    /// Routers, which speak for their workers, or workers
    #[arg(value_name = "URL", required = true)]
    pub(crate) urls: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
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
            Verb::Route(route) => Self::Route(route),
            Verb::Fleet { action: FleetAction::Status(status) } => Self::FleetStatus(status),
        }
    }
}
