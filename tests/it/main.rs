//! Integration tests. One binary, so that it can be copied into a virtual machine.
//!
//! Most modules have the name of a folder of `src/` and test what that folder promises:
//!
//! | module | promise |
//! | --- | --- |
//! | `report` | what the report calls enforced is enforced |
//! | `policy` | a policy file with a mistake is refused, with the line and the key |
//! | `host` | a host that lacks something: Kennel refuses or degrades as the policy says, and names the remedy |
//! | `image` | a file or directory becomes the image that it says, or is refused by its name; the store survives anything |
//! | `view` | only granted paths are visible; a read-only path cannot be written |
//! | `protect` | a command cannot change what git obeys outside; what it adds there is removed and reported |
//! | `plan` | ids, capabilities and namespaces are the sandbox's own; limits hold, or the report says that they do not |
//! | `audit` | everything that happens is in the log; the policy says what happens if the log fails |
//! | `network` | mode `proxy`: allowed destinations work with common programs, and no others are reached |
//! | `launch` | cgroups hold all processes together; no process, mount or cgroup is left |
//! | `overlay` | changes stay apart from the workspace until they are committed or dropped |
//! | `command` | arguments, environment, streams, signals, exit status, timeout; `--explain` names the right wall |
//! | `session` | many commands after one preparation, and nothing passes from one to the next; files; pools |
//! | `warm` | a Python that started before its command does what the executed one does (`src/session/warm`) |
//! | `serve` | a session that listens serves its own user's clients and nobody else |
//! | `probe` | what `kennel probe` says about the host is true |
//! | `capabilities` | a command described by four fields is held to them, or does not run |
//! | `broker` | a program gets what its manifest lists; a credential reaches nobody else |
//!
//! `src/sys/` has unit tests only. The tests of `crates/adapters` need features and are a binary of their
//! own: `tests/adapters/`.
//!
//! The other modules are about a promise of the whole, or support the rest:
//!
//! | module | promise |
//! | --- | --- |
//! | `cli` | the command line: flags, exit statuses, `--json`, terminals |
//! | `mcp` | `kennel mcp`: an agent gets the commands and files of one sandbox, and no message changes its policy |
//! | `embed` | the library leaves its host program alone and cleans up after any drop |
//! | `escape` | attempts to get out, made from inside by `tests/payload`, fail |
//! | `kernels` | what each kernel gives, by its Landlock ABI |
//! | `tools` | real programs work inside: python, node, git, gcc, cargo |
//! | `everyday` | what people type all day prints the same inside as outside |
//! | `documents` | examples in the documents run as shown, and links lead somewhere |
//! | `as_user` | what depends on the user (`as-user`) runs again as an ordinary user, if root runs the tests |
//! | `support` | no tests: what the other modules share |
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test stops at the first surprise and says so"
)]
#![expect(unreachable_pub, reason = "a test binary has no public interface")]

mod as_user;
mod audit;
mod broker;
mod capabilities;
mod cli;
mod command;
mod documents;
mod embed;
mod escape;
mod everyday;
mod host;
mod image;
mod kernels;
mod launch;
mod mcp;
mod network;
mod overlay;
mod plan;
mod policy;
mod probe;
mod protect;
mod report;
mod serve;
mod session;
mod support;
mod tools;
mod view;
mod warm;
