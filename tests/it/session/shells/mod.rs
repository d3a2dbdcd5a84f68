//! Shells that keep their state, in bash and in sh.
//!
//! | module | promise |
//! | --- | --- |
//! | `state` | what a snippet changes in the shell lasts, and nothing that it does wrong ends the shell |
//! | `outside` | the walls hold when somebody replaces files outside meanwhile |
//! | `output` | each call has its own output, whole and apart, whatever is in it and whoever goes on writing |
//! | `random` | random snippets do what they do in a bash outside |
//! | `ends` | timeouts, interrupts and drops end a snippet; `exit` ends the shell, and both are told |

mod ends;
mod output;
mod outside;
mod random;
mod state;

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use kennel::{Isolation, Policy, Session, Shell, ShellOutput};

use super::in_time;
use crate::support::World;

/// Programs that the tests need where PATH has no bash.
const PROGRAMS: [&str; 11] =
    ["cat", "sleep", "head", "seq", "setsid", "mkdir", "rm", "rmdir", "touch", "true", "env"];

/// A session whose shells are all of one kind.
struct Kind {
    name: &'static str,
    world: World,
    /// What makes a policy one of this kind.
    with: Box<dyn Fn(Policy) -> Policy>,
    session: Session,
}

impl Kind {
    /// Its workspace.
    fn path(&self) -> &Path {
        self.world.path()
    }

    fn policy(&self) -> Policy {
        (self.with)(self.world.policy())
    }

    fn is_bash(&self) -> bool {
        self.name != "sh"
    }
}

/// A session for bash, one for sh, and one whose commands share their processes.
async fn kinds() -> [Kind; 3] {
    [
        kind("bash", |policy| policy).await,
        kind("sh", |policy| policy).await,
        kind(SHARED, |policy| policy).await,
    ]
}

/// Does the same with each kind, side by side, because that is mostly waiting.
async fn with_each(act: impl AsyncFn(&Kind)) {
    let [one, two, three] = &kinds().await;
    tokio::join!(act(one), act(two), act(three));
}

const SHARED: &str = "bash with isolation session";

async fn kind(name: &'static str, with: impl FnOnce(Policy) -> Policy) -> Kind {
    let world = World::new();
    let path = (name == "sh").then(|| without_bash(world.path()));
    let of_kind = Box::new(move |policy: Policy| match &path {
        Some(path) => policy.set_env("PATH", path.to_str().unwrap()),
        None if name == SHARED => policy.isolation(Isolation::Session),
        None => policy,
    });
    let session = Session::prepare(&with(of_kind(world.policy()))).await.unwrap();
    Kind { name, world, with: of_kind, session }
}

/// A directory for PATH that has sh and no bash.
fn without_bash(workspace: &Path) -> PathBuf {
    let directory = workspace.join("bin");
    fs::create_dir(&directory).unwrap();
    for program in PROGRAMS.into_iter().chain(["sh"]) {
        let there = ["/usr/bin", "/bin"].map(|place| Path::new(place).join(program));
        let there = there.iter().find(|path| path.exists()).unwrap_or_else(|| panic!("no {program} here"));
        symlink(there, directory.join(program)).unwrap();
    }
    directory
}

async fn run(shell: &Shell, snippet: &str) -> ShellOutput {
    in_time(shell.run(snippet)).await.unwrap_or_else(|error| panic!("{snippet}: {error:?}"))
}

/// `$?`, stdout and stderr of a snippet.
async fn told(shell: &Shell, snippet: &str) -> (i32, String, String) {
    let out = run(shell, snippet).await;
    assert!(!out.has_ended, "{snippet}: {out:?}");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (out.outcome.status.code().unwrap(), text(&out.stdout), text(&out.stderr))
}

/// Runs a snippet that must succeed and write nothing to stderr. Returns its stdout.
async fn said(shell: &Shell, snippet: &str) -> String {
    let (status, stdout, stderr) = told(shell, snippet).await;
    assert_eq!((status, &*stderr), (0, ""), "{snippet}: {stdout}");
    stdout
}
