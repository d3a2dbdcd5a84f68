//! `--as-owner`, and the step of it that the next process learns from its words.

use std::{ffi::OsString, fmt, str::FromStr};

use clap::Args;
use nix::unistd::{Gid, Uid};

/// The flag.
const FLAG: &str = "--as-owner";

/// The hidden flag that takes its place.
const STEP: &str = "--owner-step";

/// Whose rights Kennel and its commands have.
#[derive(Debug, Default, Args)]
pub(crate) struct AsOwner {
    /// As root: become the owner of the workspace first.
    ///
    /// The workspace is that of --workspace, or the current directory. It happens before anything is read,
    /// with the groups and HOME of that user. Nothing of root's goes along: no privilege, terminal,
    /// descriptor or unknown variable.
    #[arg(long)]
    pub(crate) as_owner: bool,
    /// The next step of --as-owner, in another process.
    #[arg(long, hide = true, conflicts_with = "as_owner")]
    pub(crate) owner_step: Option<Step>,
}

/// Whom to become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: Uid,
    pub(crate) gid: Gid,
    pub(crate) groups: Vec<Gid>,
}

/// What a process of `--as-owner` is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The leader's socket to the relay; `None` in the owner's process.
    pub(crate) socket: Option<i32>,
    /// The process that started this one.
    pub(crate) parent: i32,
    /// Whether the owner's process has its terminal from the start.
    pub(crate) is_in_foreground: bool,
    pub(crate) identity: Identity,
}

impl Step {
    /// The words of this command line, for the next step.
    pub(crate) fn words(&self) -> impl Iterator<Item = OsString> {
        let mut words: Vec<OsString> = std::env::args_os().skip(1).collect();
        // The first is Kennel's own: it stands before the command, and no flag takes a value that looks like
        // one.
        let is_own =
            |word: &&mut OsString| **word == FLAG || word.to_str().is_some_and(|word| word.starts_with(STEP));
        if let Some(own) = words.iter_mut().find(is_own) {
            *own = format!("{STEP}={self}").into();
        }
        words.into_iter()
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { socket, parent, is_in_foreground, identity: Identity { uid, gid, groups } } = self;
        let groups: Vec<String> = groups.iter().map(Gid::to_string).collect();
        let socket = socket.unwrap_or(-1);
        let foreground = u8::from(*is_in_foreground);
        write!(f, "{socket}:{parent}:{foreground}:{uid}:{gid}:{}", groups.join(","))
    }
}

impl FromStr for Step {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "it is for Kennel's own use";
        let &[socket, parent, foreground, uid, gid, groups] = &*text.split(':').collect::<Vec<_>>() else {
            return Err(WRONG);
        };
        let number = |text: &str| text.parse::<i32>().map_err(|_| WRONG);
        let id = |text: &str| text.parse::<u32>().map_err(|_| WRONG);
        let groups = groups.split(',').filter(|group| !group.is_empty());
        Ok(Self {
            socket: Some(number(socket)?).filter(|socket| *socket >= 0),
            parent: number(parent)?,
            is_in_foreground: number(foreground)? != 0,
            identity: Identity {
                uid: Uid::from_raw(id(uid)?),
                gid: Gid::from_raw(id(gid)?),
                groups: groups.map(|group| id(group).map(Gid::from_raw)).collect::<Result<_, _>>()?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_read_as_it_was_written() {
        for (socket, groups) in [(Some(5), vec![]), (None, vec![Gid::from_raw(27), Gid::from_raw(100)])] {
            let (uid, gid) = (Uid::from_raw(1000), Gid::from_raw(1001));
            let identity = Identity { uid, gid, groups };
            let step = Step { socket, parent: 42, is_in_foreground: socket.is_some(), identity };
            assert_eq!(step.to_string().parse(), Ok(step));
        }
        for wrong in ["", "1:2:3", "a:1:1:1:1:", "1:1:1:-1:1:", "1:1:1:1:1:x"] {
            assert!(wrong.parse::<Step>().is_err(), "{wrong}");
        }
    }
}
