//! Which wall refused what, after a command failed: from what the filter of system calls was asked about (`refused`),
//! and from what the command said on stderr (`text`), judged by the policy. What it says is taken for a hint where to
//! look, never for a fact: whatever is told of a path is true under the policy, whoever made the command say so.

mod calls;
mod limits;
mod network;
mod refused;
mod tail;
mod text;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::errno::Errno;

use self::text::{Complaint, Named};
pub(crate) use self::{limits::of_end, refused::Refusals, tail::Tail};
use crate::{
    Basis, Denial, Limits,
    compile::{explain::Terms, narrow::Narrowing},
    harmless::is_harmless,
};

/// More denials than that are not made of what one command says.
const MOST: usize = 16;

/// Longest subject, in characters.
const LONGEST: usize = 300;

/// What explains the errors of one command.
#[derive(Clone, Debug)]
pub(crate) struct Judge {
    pub(crate) terms: Arc<Terms>,
    /// Where it started.
    pub(crate) directory: PathBuf,
    /// All limits that hold for it.
    pub(crate) limits: Limits,
    /// What it goes without.
    pub(crate) narrowed: Vec<Narrowing>,
}

impl Judge {
    /// What the errors are about that the end of its stderr has, as far as the sandbox is the reason.
    pub(crate) fn denials(&self, said: &[u8]) -> Vec<Denial> {
        let mut denials: Vec<Denial> = Vec::new();
        for complaint in text::complaints(said) {
            for denial in self.of(&complaint) {
                if denials.len() < MOST && !denials.contains(&denial) {
                    denials.push(denial);
                }
            }
        }
        denials
    }

    fn of(&self, complaint: &Complaint) -> Vec<Denial> {
        match complaint {
            Complaint::File(errno, named) => {
                let of_paths = named.iter().filter_map(|named| self.of_path(named, *errno));
                of_paths.chain(limits::of_error(&self.limits, *errno)).collect()
            }
            Complaint::Network(what) => network::denial(&self.terms, what).into_iter().collect(),
        }
    }

    fn of_path(&self, named: &Named, errno: Errno) -> Option<Denial> {
        let mut denial = self.terms.explain(&self.directory.join(&named.path), errno, &self.narrowed)?;
        // A command may have gone to another directory, and lines near each other may have nothing to do with each other.
        if named.path.is_relative() || !named.beside {
            denial.basis = Basis::Possible;
        }
        Some(denial)
    }
}

/// A reason with the flag that would change it.
pub(crate) fn advice(reason: String, flag: Option<&str>, would: &str) -> String {
    match flag {
        Some(flag) => format!("{reason}; {flag} {would}"),
        None => reason,
    }
}

/// A path for people: on one line, without anything that a terminal obeys or that reorders a line, and in quotes where it
/// would not end where it seems to.
pub(crate) fn shown(path: &Path) -> String {
    let text = clean(&path.to_string_lossy());
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+@%,=:~".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', "?")) }
}

/// Text of a command's for people, cut to a length.
pub(crate) fn clean(text: &str) -> String {
    let plain = |c: char| if is_harmless(c) { c } else { '?' };
    text.chars().take(LONGEST).map(plain).collect()
}

#[cfg(test)]
mod tests;
