//! Network mode `proxy`: allowed destinations work with common programs. Denied requests get a reason and
//! reach nobody.
//!
//! | module | promise |
//! | --- | --- |
//! | `http` | requests in absolute form |
//! | `tunnel` | CONNECT |
//! | `socks` | SOCKS5 |
//! | `tls` | HTTPS and HTTP/2 |
//! | `tools` | git, pip, npm, cargo |
//! | `upstream` | through another proxy |
//! | `foreign` | through a proxy that is not Kennel's |
//! | `statuses` | each kind of failure has its status and its message |
//! | `transparent` | programs without support for proxies |
//! | `localhost` | a rule for the host's loopback reaches every client |
//! | `programs` | Python, node, Java without the variables of a proxy |
//! | `walls` | there is no other way out |
//! | `spelling` | every spelling of a destination, and every address of its name |
//! | `smuggling` | requests that two servers read differently |
//! | `limits` | connections, heads, time, bytes |
//! | `crowd` | many connections at once |
//! | `variables` | programs are told where the proxy is |
//! | `sessions` | the network of sessions, pools and one-shots |
//! | `ask` | the embedding program decides |
//! | `bulk` | large transfers lose nothing |
//! | `failures` | what cannot be reached is explained |
//! | `faults` | deaths and resets |
//! | `found` | holes that existed once |
//! | `denials` | the user of the sandbox learns of each denial |
//! | `audit` | the audit log |
//! | `publish` | programs outside reach what is published, and nothing else |
//! | `upgrade` | WebSockets and the like |
//! | `unset` | a policy without a rule |

mod ask;
mod audit;
mod bulk;
mod crowd;
mod denials;
mod failures;
mod faults;
mod foreign;
mod found;
mod http;
mod limits;
mod localhost;
mod names;
mod origin;
mod programs;
pub mod publish;
mod sessions;
mod smuggling;
mod socks;
mod spelling;
mod statuses;
mod tls;
mod tools;
mod transparent;
mod tunnel;
mod unset;
mod upgrade;
mod upstream;
mod variables;
mod walls;

use std::{
    path::Path,
    process::{Command, Output},
};

pub use self::origin::ClosedPort;
use self::{
    names::NameServer,
    origin::{Origin, Server, answer},
};
use crate::support::{TempDir, attempt, kennel, stderr, stdout, workspace};

/// The proxy's address inside.
const PROXY: &str = "127.0.0.1:3128";

/// A workspace, and a name server that gives every name the host's loopback address.
struct Net {
    dir: TempDir,
    names: NameServer,
}

/// The `--timeout` of every command of `Net`, so that none hangs.
fn longest() -> String {
    crate::support::patient_flag(std::time::Duration::from_secs(50))
}

impl Net {
    fn new() -> Self {
        Self::with(NameServer::of_loopback())
    }

    fn with(names: NameServer) -> Self {
        Self { dir: workspace(), names }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The flags for mode proxy with these rules. Names may lead to the loopback of the host.
    fn flags(&self, allow: &[&str], more: &[&str]) -> Vec<String> {
        let mut flags = self.strict(allow, more);
        flags.extend(["--allow-address", "127.0.0.0/8"].map(str::to_owned));
        flags
    }

    /// As `flags`, but names may lead to the internet only.
    fn strict(&self, allow: &[&str], more: &[&str]) -> Vec<String> {
        let (at, longest) = (self.names.at(), longest());
        let mut flags = vec!["--net", "proxy", "--timeout", &longest, "--name-server", &at];
        flags.extend(allow.iter().flat_map(|&rule| ["--allow", rule]));
        flags.extend(more);
        flags.into_iter().map(str::to_owned).collect()
    }

    /// A shell script inside.
    fn shell(&self, flags: &[String], script: &str) -> Output {
        self.command(flags, &["sh", "-c", script]).output().unwrap()
    }

    fn command(&self, flags: &[String], command: &[&str]) -> Command {
        kennel(self.path(), &words(flags), command)
    }

    /// Runs a script that must succeed and returns its stdout. Denials go to stderr.
    fn says(&self, flags: &[String], script: &str) -> String {
        let output = self.shell(flags, script);
        assert!(output.status.success(), "{script}: {}\n{}", stdout(&output), stderr(&output));
        stdout(&output)
    }

    /// Runs an attempt of the payload.
    fn attempt(&self, flags: &[String], name: &str, arguments: &[&str]) -> String {
        attempt(self.path(), &words(flags), name, arguments)
    }

    /// Has conversations with the proxy, each with these steps. Returns the text that each received, with the
    /// kind of end as its last line. See `tests/payload/talk.rs`.
    fn talk(&self, flags: &[String], conversations: &[&[&str]]) -> Vec<String> {
        let words = conversations.iter().flat_map(|steps| [&["+", PROXY], *steps].concat());
        let words: Vec<&str> = words.skip(1).collect();
        let said = self.attempt(flags, "talk", &words);
        let mut heard = vec![String::new()];
        for line in said.lines() {
            let last = heard.last_mut().unwrap();
            last.push_str(line);
            last.push('\n');
            if line.starts_with('[') && line.ends_with(']') {
                heard.push(String::new());
            }
        }
        heard.pop();
        assert_eq!(heard.len(), conversations.len(), "{said}");
        heard
    }
}

fn words(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

/// The step of a conversation that asks for a tunnel.
fn connect(to: &str) -> String {
    format!(">CONNECT {to} HTTP/1.1\\r\\n\\r\\n")
}

/// `name:PORT`
fn at(name: &str, port: u16) -> String {
    format!("{name}:{port}")
}
