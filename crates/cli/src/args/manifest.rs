//! What `kennel op` and `kennel connector` accept.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use kennel::{Size, Span};

use super::values::{self, assignment, credential};

#[derive(Debug, Args)]
pub(crate) struct Op {
    /// The manifest, a TOML file.
    #[arg(value_name = "MANIFEST", value_parser = values::path())]
    pub(crate) manifest: PathBuf,
    /// The name of an operation in it.
    #[arg(value_name = "OPERATION")]
    pub(crate) operation: String,
    /// Value for the placeholder {K}.
    #[arg(long, value_name = "K=V", value_parser = assignment)]
    pub(crate) arg: Vec<(String, String)>,
    /// Read credential K from FILE instead of the environment.
    #[arg(long, value_name = "K=FILE", value_parser = credential)]
    pub(crate) credential: Vec<(String, PathBuf)>,
    /// Append requests and decisions to FILE as lines of JSON.
    #[arg(long, value_name = "FILE", value_parser = values::path())]
    pub(crate) audit: Option<PathBuf>,
    /// Write a report to FILE as JSON.
    ///
    /// It has the exit status, the usage of resources, the protections and the denials.
    #[arg(long, value_name = "FILE", value_parser = values::path())]
    pub(crate) json: Option<PathBuf>,
    /// Print errors, but no remarks.
    ///
    /// Remarks are weaker protections, denials, notes, and the limit that ended the command. Lost output or
    /// records are still reported.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

pub(crate) const CONNECTOR: &str = "\
Examples:
  kennel connector check mail.wasm --manifest mail.toml
                              what it could do
  kennel connector run mail.wasm list --manifest mail.toml --arg folder=inbox
  kennel connector compile mail.wasm
                              so that the first run starts at once

docs/connectors.md describes manifests, and what a connector can import.";

const CHECK: &str = "\
Lists the hosts, the credential, the programs and the limits of the manifest, and what of that the program can use.

Exit status: 0 if the program loads with this manifest; 125 if it does not, or Kennel failed.";

const RUN: &str = "\
Examples:
  kennel connector run mail.wasm list --manifest mail.toml --arg folder=inbox
  kennel connector run mail.wasm list --manifest mail.toml --args-json '{\"count\": 3}'
  api_key=… kennel connector run mail.wasm list --manifest mail.toml
  kennel connector run mail.wasm list --manifest mail.toml --credential oauth2=/run/secrets/mail

stdout gets the output as JSON, and nothing if there is none. stderr gets what the connector logs.

Kennel takes the credential of the manifest from the variable named after its kind (oauth2, api_key), and those of spawned \
programs from the variable of their name; or from files (/dev/fd/N for a descriptor). The connector never sees them.

Kennel keeps compiled code in $XDG_CACHE_HOME/kennel/connectors or ~/.cache/kennel/connectors.

Exit status: 0 if the operation gave its output; 1 if the connector itself failed: it reported an error, trapped, or wrote \
something else than its output; 124 if it took too long; 128+N if signal N ended Kennel; 125 if the manifest does not allow \
what it needs, another limit ended it, the network failed, or Kennel did.";

const COMPILE: &str = "\
Prints the file and the size of the code of each program. Programs whose code is there already are not compiled again.

Exit status: 0 if the code of every program is there; 125 if not.";

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Show what a connector imports, and what it could do.
    #[command(after_help = CHECK)]
    Check(Check),
    /// Run an operation of a connector.
    #[command(after_help = RUN)]
    Run(Box<Run>),
    /// Compile connectors ahead of their first run.
    #[command(after_help = COMPILE)]
    Compile(Compile),
}

/// A program with its manifest.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The connector: a WebAssembly module or component.
    #[arg(value_name = "FILE.wasm", value_parser = values::path())]
    pub(crate) file: PathBuf,
    /// What it may do, a TOML file.
    #[arg(long, value_name = "FILE", value_parser = values::path())]
    pub(crate) manifest: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The connector: a WebAssembly module or component.
    #[arg(value_name = "FILE.wasm", value_parser = values::path())]
    pub(crate) file: PathBuf,
    /// The operation.
    #[arg(value_name = "OPERATION")]
    pub(crate) operation: String,
    /// What the connector may do, a TOML file.
    #[arg(long, value_name = "FILE", value_parser = values::path())]
    pub(crate) manifest: PathBuf,
    /// Set argument K to the text V.
    #[arg(long, value_name = "K=V", value_parser = assignment)]
    pub(crate) arg: Vec<(String, String)>,
    /// Set arguments to the members of a JSON object: the text itself, a file, or - for stdin.
    #[arg(long, value_name = "{…}|FILE|-")]
    pub(crate) args_json: Option<String>,
    /// Read credential K from FILE instead of the environment.
    #[arg(long, value_name = "K=FILE", value_parser = credential)]
    pub(crate) credential: Vec<(String, PathBuf)>,
    /// Of the hosts of the manifest, allow only these.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub(crate) allow: Vec<String>,
    /// Of the programs of the manifest, allow only these, by name or path.
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) program: Vec<String>,
    /// Memory of the connector, at most 1G [default: the manifest's, or 64M].
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Size>,
    /// End the call after TIME, at most 5m [default: the manifest's, or 30s].
    ///
    /// The exit status is then 124.
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Span>,
    /// Trust the certificates in FILE, besides those that the system trusts.
    #[arg(long, value_name = "FILE", value_parser = values::path())]
    pub(crate) ca: Vec<PathBuf>,
    /// Let names lead to special addresses in NET, such as 10.0.0.0/8.
    #[arg(long, value_name = "NET", value_delimiter = ',')]
    pub(crate) allow_address: Vec<String>,
    /// Append calls, requests and spawns to FILE as lines of JSON.
    #[arg(long, value_name = "FILE", value_parser = values::path())]
    pub(crate) audit: Option<PathBuf>,
    /// Write the result to FILE as JSON: output, logs and failure.
    #[arg(long, value_name = "FILE", value_parser = values::path())]
    pub(crate) json: Option<PathBuf>,
    /// Compile anew, and keep no compiled code.
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Print errors, but neither notes nor what the connector logs.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Compile {
    /// The connectors.
    #[arg(required = true, value_name = "FILE.wasm", value_parser = values::path())]
    pub(crate) files: Vec<PathBuf>,
}
