//! The names in an index of git's, gitformat-index(5). Pure.
//!
//! Git looks at a name when it enters it, not when it reads it: by an index that a command wrote, `git checkout .`, `git add -u`
//! and `git rm` outside write, read and remove what lies around the worktree, or in the repository itself.

/// What an index begins with: its signature, its version, and how many entries there are.
const HEADER: usize = 12;

/// What of an entry comes before the name of its object: times, numbers, mode, owner and size.
const STAT: usize = 40;

/// Bytes of the names of objects, and of the sum that an index ends with: SHA-1, SHA-256.
pub(super) const SHA1: usize = 20;
pub(super) const SHA256: usize = 32;

/// Of the flags of an entry: two more bytes follow, and how long its name is. Where that is as much as fits, it ends with a NUL.
const EXTENDED: usize = 0x4000;
const LENGTH: usize = 0xfff;

/// An extension that says where in the file entries are: several threads read them then.
const OFFSETS: &[u8] = b"IEOT";

/// What is wrong with an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A name leads out of the worktree, or to a repository.
    Leads(Vec<u8>),
    /// It is not as git writes one.
    Broken,
}

/// The first fault of an index with names of objects so long. What git refuses to read as a whole has none.
pub(super) fn fault(index: &[u8], object: usize) -> Option<Fault> {
    let version = number(index, 4)?;
    if !index.starts_with(b"DIRC") || !(2..=4).contains(&version) || index.len() < HEADER + object {
        return None;
    }
    let reader = Reader { index, is_compressed: version == 4, object };
    let looked = number(index, 8).ok_or(Fault::Broken).and_then(|count| {
        reader.entries(HEADER, count)?;
        let at = index.windows(OFFSETS.len()).enumerate().filter(|(_, word)| *word == OFFSETS);
        let mut tables = at.filter_map(|(at, _)| table(index, at, count));
        tables.try_for_each(|blocks| blocks.into_iter().try_for_each(|(at, count)| reader.entries(at, count)))
    });
    looked.err()
}

struct Reader<'i> {
    index: &'i [u8],
    /// Whether names begin as those before them, as in version 4.
    is_compressed: bool,
    object: usize,
}

impl Reader<'_> {
    /// So many entries from `at` on.
    fn entries(&self, mut at: usize, count: u32) -> Result<(), Fault> {
        let mut name = Vec::new();
        for entry in 0..count {
            at = self.entry(at, entry == 0, &mut name).ok_or(Fault::Broken)?;
            if !stays(&name) {
                return Err(Fault::Leads(name));
            }
        }
        Ok(())
    }

    /// Reads one name, and says where the next entry is.
    fn entry(&self, entry: usize, is_first: bool, name: &mut Vec<u8>) -> Option<usize> {
        let flags_at = entry.checked_add(STAT + self.object)?;
        let flags = usize::from(u16::from_be_bytes(self.index.get(flags_at..)?.first_chunk().copied()?));
        let mut at = flags_at + if flags & EXTENDED == 0 { 2 } else { 4 };
        let mut kept = 0;
        if self.is_compressed {
            let dropped = varint(self.index, &mut at)?;
            kept = if is_first { 0 } else { name.len().checked_sub(dropped)? };
        }
        let rest = self.index.get(at..)?;
        let length = match flags & LENGTH {
            LENGTH => rest.iter().position(|byte| *byte == 0)?,
            length => length.checked_sub(kept)?,
        };
        name.truncate(kept);
        name.extend_from_slice(rest.get(..length)?);
        let end = if self.is_compressed { at + length + 1 } else { entry + ((at - entry + length + 8) & !7) };
        (end <= self.index.len()).then_some(end)
    }
}

/// Where the blocks of entries are, and how many in each, if there is a table of them: one that has all.
fn table(index: &[u8], at: usize, count: u32) -> Option<Vec<(usize, u32)>> {
    let size = usize::try_from(number(index, at + 4)?).ok()?;
    let blocks = index.get(at + 8..)?.get(..size)?.strip_prefix(&1_u32.to_be_bytes())?;
    let block = |block: &[u8]| Some((usize::try_from(number(block, 0)?).ok()?, number(block, 4)?));
    let blocks: Option<Vec<(usize, u32)>> = blocks.chunks(8).map(block).collect();
    blocks.filter(|blocks| blocks.iter().map(|(_, count)| u64::from(*count)).sum::<u64>() == u64::from(count))
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_be_bytes)
}

/// As the offsets of packs are written, gitformat-pack(5).
fn varint(index: &[u8], at: &mut usize) -> Option<usize> {
    let mut value = 0_usize;
    loop {
        let byte = *index.get(*at)?;
        *at += 1;
        value = value.checked_mul(128)?.checked_add(usize::from(byte & 127))?;
        if byte < 128 {
            return Some(value);
        }
        value = value.checked_add(1)?;
    }
}

/// Whether a name is one of a file in the worktree. That of a directory may end with a slash, where an index is sparse; what
/// takes the place of an entry of a shared one has none.
fn stays(name: &[u8]) -> bool {
    if name.is_empty() {
        return true;
    }
    let name = name.strip_suffix(b"/").unwrap_or(name);
    let is_part = |part: &[u8]| !matches!(part, b"" | b"." | b"..") && !part.eq_ignore_ascii_case(b".git");
    !name.contains(&0) && name.split(|byte| *byte == b'/').all(is_part)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, process::Command};

    use proptest::prelude::*;

    use super::*;

    /// An index of version 2 with these names, and `more` behind the entries.
    fn forged(names: &[&[u8]], more: &[u8]) -> Vec<u8> {
        let mut index = b"DIRC\0\0\0\x02".to_vec();
        index.extend(u32::try_from(names.len()).expect("few").to_be_bytes());
        for name in names {
            let begin = index.len();
            index.extend([1; STAT + SHA1]);
            index.extend(u16::try_from(name.len()).expect("short").to_be_bytes());
            index.extend(*name);
            let end = begin + ((index.len() - begin + 8) & !7);
            index.resize(end, 0);
        }
        index.extend(more);
        index.extend([0; SHA1]);
        index
    }

    fn leads(name: &[u8]) -> Option<Fault> {
        Some(Fault::Leads(name.to_owned()))
    }

    #[test]
    fn names_that_leave_the_worktree_are_found() {
        assert_eq!(fault(&forged(&[b"a", b"dir/.gitignore", b"..a/b..", b"sparse/"], b""), SHA1), None);
        for name in [
            &b"../x"[..],
            b"/x",
            b"a/../../x",
            b".git/config",
            b"a/.GIT/config",
            b"a//b",
            b"a/.",
            b"x\0y",
            b"//",
        ] {
            assert_eq!(fault(&forged(&[b"a", name, b"z"], b""), SHA1), leads(name), "{name:?}");
        }
    }

    /// git reads the blocks of the table then, and not what lies before it.
    #[test]
    fn names_in_blocks_of_a_table_are_found() {
        let hidden = forged(&[b"../x"], b"");
        let entry = &hidden[HEADER..hidden.len() - SHA1];
        let first = forged(&[b"a"], b"").len() - SHA1;
        let at = u32::try_from(first).expect("small").to_be_bytes();
        let table =
            [OFFSETS, &12_u32.to_be_bytes(), &1_u32.to_be_bytes(), &[at, 1_u32.to_be_bytes()].concat()]
                .concat();
        assert_eq!(fault(&forged(&[b"a"], &[entry, &table].concat()), SHA1), leads(b"../x"));
    }

    #[test]
    fn what_ends_too_early_is_broken() {
        let whole = forged(&[b"a", b"b"], b"");
        for end in HEADER + SHA1..whole.len() - SHA1 - 1 {
            assert_eq!(fault(&whole[..end], SHA1), Some(Fault::Broken), "{end} bytes");
        }
    }

    #[test]
    #[ignore = "needs git: `cargo test -- --ignored`"]
    fn what_git_writes_is_as_git_writes_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let git = |arguments: &str| {
            let mut command = Command::new("git");
            let command = command.current_dir(dir.path()).args(arguments.split(' '));
            let output = command.env("GIT_CONFIG_GLOBAL", "/dev/null").output().expect("git");
            assert!(output.status.success(), "{arguments}: {output:?}");
        };
        for (format, object) in [("sha1", SHA1), ("sha256", SHA256)] {
            let _ = fs::remove_dir_all(dir.path().join(".git"));
            git(&format!("init -q --object-format={format}"));
            for name in ["a", "b", "dir/b", "dir/c", &"long".repeat(60)] {
                let path = dir.path().join(name);
                fs::create_dir_all(path.parent().unwrap_or(Path::new(""))).expect("a directory");
                fs::write(path, name).expect("a file");
            }
            for arguments in [
                "add .",
                "update-index --skip-worktree a",
                "update-index --index-version 4",
                "-c index.threads=2 update-index --force-write-index",
                "update-index --split-index",
                "update-index --index-version 2",
            ] {
                git(arguments);
                let index = fs::read(dir.path().join(".git/index")).expect("an index");
                assert_eq!(fault(&index, object), None, "{arguments}, {format}");
                assert!(fault(&index, SHA1 + SHA256 - object).is_some() || index.len() < 200, "{arguments}");
            }
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(mut index in prop::collection::vec(any::<u8>(), 0..300), version in 2_u8..5) {
            index.splice(..8.min(index.len()), [*b"DIRC", [0, 0, 0, version]].concat());
            let _ = (fault(&index, SHA1), fault(&index, SHA256));
        }
    }
}
