//! Finds renames: a deleted file and an added one with the same contents, or similar ones.

use std::{
    cmp::Reverse,
    collections::HashMap,
    hash::{BuildHasher, RandomState},
};

use kennel::{
    files::FileKind,
    overlay::{Change, ChangeKind, Contents},
};

use crate::changes::diff::{Entry, LARGEST, Reviewed};

/// The most files on each side that are looked at.
const MOST_FILES: usize = 1000;

/// The most pairs of files that are compared line by line.
const MOST_PAIRS: usize = 40_000;

/// The least similarity of a rename, in percent, as in git.
const LEAST: u64 = 50;

/// A file, as far as its similarity to others needs it.
struct Candidate {
    change: Change,
    hash: u64,
    size: u64,
    /// Hashes of its lines, with the bytes of all lines of that hash.
    lines: HashMap<u64, u64>,
}

/// The entries of a diff, sorted by path.
pub(crate) fn entries(review: &dyn Reviewed, changes: Vec<Change>) -> Vec<Entry> {
    let is = |change: &Change, kind| change.kind == kind && change.file == FileKind::File;
    let (deleted, rest): (Vec<_>, Vec<_>) =
        changes.into_iter().partition(|change| is(change, ChangeKind::Deleted));
    let (added, rest): (Vec<_>, Vec<_>) = rest.into_iter().partition(|change| is(change, ChangeKind::Added));
    let mut all: Vec<Entry> = rest.into_iter().map(single).collect();
    let is_possible = !deleted.is_empty() && !added.is_empty();
    if !is_possible || deleted.len().max(added.len()) > MOST_FILES {
        all.extend(deleted.into_iter().chain(added).map(single));
    } else {
        let random = RandomState::new();
        let read = |changes: Vec<Change>| -> Vec<Candidate> {
            changes.into_iter().map(|change| Candidate::read(review, change, &random)).collect()
        };
        all.extend(pair(read(deleted), read(added)));
    }
    all.sort_by(|one, other| path(one).cmp(&path(other)));
    all
}

fn path(entry: &Entry) -> Option<&std::path::Path> {
    entry.after.as_ref().or(entry.before.as_ref()).map(|change| &*change.path)
}

/// A change that is no rename.
fn single(change: Change) -> Entry {
    let (before, after) = match change.kind {
        ChangeKind::Added => (None, Some(change)),
        ChangeKind::Deleted => (Some(change), None),
        _ => (Some(change.clone()), Some(change)),
    };
    Entry { before, after, similarity: None }
}

impl Candidate {
    fn read(review: &dyn Reviewed, change: Change, random: &RandomState) -> Self {
        let [before, after] = review.sides(&change, LARGEST);
        let side = if change.kind == ChangeKind::Deleted { before } else { after };
        let Contents::File(bytes) = side.contents else {
            return Self { change, hash: 0, size: 0, lines: HashMap::new() };
        };
        let mut lines = HashMap::new();
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            *lines.entry(random.hash_one(line)).or_default() += line.len() as u64;
        }
        Self { change, hash: random.hash_one(&bytes), size: bytes.len() as u64, lines }
    }

    /// In percent.
    fn similarity(&self, other: &Self) -> u64 {
        let larger = self.size.max(other.size);
        if self.size == 0 || other.size == 0 || self.size.min(other.size) * 100 < larger * LEAST {
            return 0;
        }
        if (self.hash, self.size) == (other.hash, other.size) {
            return 100;
        }
        let common = |(hash, bytes): (&u64, &u64)| other.lines.get(hash).map_or(0, |own| *own.min(bytes));
        // Only the same files are wholly similar.
        (self.lines.iter().map(common).sum::<u64>() * 100 / larger).min(99)
    }
}

/// Pairs the most similar files first; of equal ones, those with the same name.
fn pair(deleted: Vec<Candidate>, added: Vec<Candidate>) -> Vec<Entry> {
    let is_exact = deleted.len() * added.len() > MOST_PAIRS;
    let mut pairs = Vec::new();
    for (from, before) in deleted.iter().enumerate() {
        for (to, after) in added.iter().enumerate() {
            let similarity = match is_exact {
                true if (before.hash, before.size) != (after.hash, after.size) => 0,
                _ => before.similarity(after),
            };
            if similarity >= LEAST {
                let has_name = before.change.path.file_name() == after.change.path.file_name();
                pairs.push((similarity, has_name, from, to));
            }
        }
    }
    pairs.sort_by_key(|(similarity, has_name, ..)| Reverse((*similarity, *has_name)));
    let [mut deleted, mut added] =
        [deleted, added].map(|all| all.into_iter().map(|one| Some(one.change)).collect::<Vec<_>>());
    let mut entries = Vec::new();
    for (similarity, _, from, to) in pairs {
        let (Some(before), Some(after)) = (deleted.get_mut(from), added.get_mut(to)) else { continue };
        if before.is_some() && after.is_some() {
            let similarity = u8::try_from(similarity).ok();
            entries.push(Entry { before: before.take(), after: after.take(), similarity });
        }
    }
    entries.extend(deleted.into_iter().chain(added).flatten().map(single));
    entries
}
