//! Integration tests, one module a promise. One binary, so that it can be copied into a virtual machine.
//!
//! | module | promise |
//! | --- | --- |
//! | `filesystem` | only what is granted is visible; what is read-only cannot be written |
//! | `process` | signals, exit statuses, terminals, timeouts; nothing outlives the command |
//! | `hosts` | hosts that refuse something: refused or degraded as the policy says, with the remedy |
//! | `limits` | limits hold, or the report says that they do not |
//! | `cgroups` | what cgroups hold: limits of all processes together, usage, and that none is left |
//! | `errors` | every refusal names the thing, the cause and the remedy, and leaves nothing behind |
//! | `identity` | who the command is inside |
//! | `environment` | which variables it gets |
//! | `cli` | flags, exit statuses, `--json` |
//! | `embed` | the library leaves its host program alone and cleans up after any drop |
//! | `enforcement` | the report is true |
//! | `explain` | what is said to be refused was, by the wall that is named |
//! | `kernels` | what each kernel gives, by its Landlock ABI |
//! | `probe` | what `kennel probe` says is so |
//! | `session` | many commands after one preparation, and nothing passes from one to the next |
//! | `files` | the library reads and writes what a command of the session could, and nothing else |
//! | `listen` | sessions serve their own user's clients and nobody else |
//! | `network` | mode proxy: what is allowed gets out with the tools people use, nothing else does |
//! | `overlay` | changes that are kept apart from the workspace, committed or dropped |
//! | `audit` | what happens is written down, and what cannot be is said or refused |
//! | `broker` | what a manifest lists is spawned with what it grants, and credentials reach nobody else |
//! | `capabilities` | commands that four fields describe are held to them, or do not run |
//! | `pool` | sessions that nobody has used |
//! | `documents` | examples in the documents run as shown, and links lead somewhere |
//! | `tools` | real programs work inside: python, node, git, gcc, cargo |
//! | `escape` | attempts to get out, made by `tests/payload` from inside |
//! | `second_pass` | all of it once more as an ordinary user, when run by root |
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test stops at the first surprise and says so"
)]
#![expect(unreachable_pub, reason = "a test binary has no public interface")]

mod audit;
mod broker;
mod capabilities;
mod cgroups;
mod cli;
mod documents;
mod embed;
mod enforcement;
mod environment;
mod errors;
mod escape;
mod explain;
mod files;
mod filesystem;
mod hosts;
mod identity;
mod kernels;
mod limits;
mod listen;
mod network;
mod overlay;
mod pool;
mod probe;
mod process;
mod second_pass;
mod session;
mod support;
mod tools;
