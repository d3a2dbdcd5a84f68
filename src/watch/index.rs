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

/// An extension that says where in the file entries are: several threads read them then. It is looked for everywhere, as another
/// says where it is.
const OFFSETS: &[u8] = b"IEOT";

/// What such a table begins with, besides its name and size; and how many bytes a block has in it.
const VERSION: u32 = 1;
const BLOCK: usize = 8;

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
        let entries = reader.entries(count)?;
        let mut words = index.windows(OFFSETS.len()).enumerate().filter(|(_, word)| *word == OFFSETS);
        let is_same = words.all(|(at, _)| reader.has_same_entries(at, &entries) != Some(false));
        is_same.then_some(()).ok_or(Fault::Broken)
    });
    looked.err()
}

/// An entry, by where it begins.
struct Entry {
    begin: usize,
    /// Whether its name has nothing of the one before it.
    has_whole_name: bool,
}

struct Reader<'i> {
    index: &'i [u8],
    /// Whether names begin as those before them, as in version 4.
    is_compressed: bool,
    object: usize,
}

impl Reader<'_> {
    /// Reads so many entries.
    fn entries(&self, count: u32) -> Result<Vec<Entry>, Fault> {
        let (mut entries, mut name) = (Vec::new(), Vec::new());
        let mut begin = HEADER;
        for _ in 0..count {
            let (kept, end) = self.entry(begin, &mut name).ok_or(Fault::Broken)?;
            if !stays(&name) {
                return Err(Fault::Leads(name));
            }
            entries.push(Entry { begin, has_whole_name: kept == 0 });
            begin = end;
        }
        Ok(entries)
    }

    /// Whether a table of blocks has the entries that were read, in their order. Threads would read others by it. `None` where it is
    /// no table to git.
    fn has_same_entries(&self, at: usize, entries: &[Entry]) -> Option<bool> {
        let size = usize::try_from(number(self.index, at + OFFSETS.len())?).ok()?;
        let version = number(self.index, at + 8)?;
        let blocks = size.checked_sub(size_of_val(&VERSION))? / BLOCK;
        if version != VERSION || blocks == 0 {
            return None;
        }
        let is_whole = blocks * BLOCK + size_of_val(&VERSION) == size;
        let Some(table) = self.index.get(at + 12..).and_then(|rest| rest.get(..blocks * BLOCK)) else {
            return Some(false);
        };
        let mut next = 0;
        let in_order = table.chunks(BLOCK).all(|block| {
            let (Some(from), Some(count)) = (number(block, 0), number(block, 4)) else { return false };
            // The first name of a block is read without the one before it.
            let is_next = entries
                .get(next)
                .is_some_and(|entry| entry.has_whole_name && u32::try_from(entry.begin) == Ok(from));
            next = next.saturating_add(count as usize);
            is_next
        });
        Some(is_whole && in_order && next == entries.len())
    }

    /// Reads one name; says how much of the one before it has kept, and where the next entry is.
    fn entry(&self, entry: usize, name: &mut Vec<u8>) -> Option<(usize, usize)> {
        let flags_at = entry.checked_add(STAT + self.object)?;
        let flags = usize::from(u16::from_be_bytes(self.index.get(flags_at..)?.first_chunk().copied()?));
        let mut at = flags_at + if flags & EXTENDED == 0 { 2 } else { 4 };
        let mut kept = 0;
        if self.is_compressed {
            let dropped = varint(self.index, &mut at)?;
            // Of the first there is nothing to drop, whatever it says.
            kept = if entry == HEADER { 0 } else { name.len().checked_sub(dropped)? };
        }
        let rest = self.index.get(at..)?;
        let length = match flags & LENGTH {
            LENGTH => rest.iter().position(|byte| *byte == 0)?,
            length => length.checked_sub(kept)?,
        };
        name.truncate(kept);
        name.extend_from_slice(rest.get(..length)?);
        // Git takes the byte behind it for its end.
        (*rest.get(length)? == 0).then_some(())?;
        let end = if self.is_compressed { at + length + 1 } else { entry + ((at - entry + length + 8) & !7) };
        (end <= self.index.len()).then_some((kept, end))
    }
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

    fn table(pairs: &[(usize, u32)], more: &[u8]) -> Vec<u8> {
        let number = |number: usize| u32::try_from(number).expect("small").to_be_bytes();
        let pairs: Vec<u8> =
            pairs.iter().flat_map(|(at, count)| [number(*at), count.to_be_bytes()].concat()).collect();
        [OFFSETS, &number(4 + pairs.len() + more.len()), &1_u32.to_be_bytes(), &pairs, more].concat()
    }

    /// git reads the blocks of the table then, and not what lies before it.
    #[test]
    fn a_table_that_has_other_entries_is_broken() {
        let hidden = forged(&[b"../x"], b"");
        let entry = &hidden[HEADER..hidden.len() - SHA1];
        let first = forged(&[b"a"], b"").len() - SHA1;
        for (pairs, more) in [
            (&[(first, 1)][..], &b""[..]),
            // Git rounds down, and adds nothing up.
            (&[(first, 1)], b"x"),
            (&[(first, 2)], b""),
            (&[(first, 1), (HEADER, 1)], b""),
            (&[(HEADER, 1), (first, 0)], b""),
            (&[(HEADER, 2)], b""),
            (&[(HEADER, 1)], b"x"),
        ] {
            let index = forged(&[b"a"], &[entry, &table(pairs, more)].concat());
            assert_eq!(fault(&index, SHA1), Some(Fault::Broken), "{pairs:?}");
        }
        let same = table(&[(HEADER, 1)], b"");
        assert_eq!(fault(&forged(&[b"a"], &[entry, &same].concat()), SHA1), None);
        assert_eq!(fault(&forged(&[b"a", b"IEOT", b"dir/IEOT"], &[b"IEOT", entry].concat()), SHA1), None);
        // One that ends behind the file.
        assert_eq!(fault(&forged(&[b"a"], &table(&[(HEADER, 1)], b"")[..16]), SHA1), Some(Fault::Broken));
    }

    #[test]
    fn many_tables_take_no_longer_than_the_file() {
        let names: Vec<String> = (0..20_000).map(|number| format!("n{number}")).collect();
        let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
        let tables = table(&[(HEADER, 20_000)], b"").repeat(20_000);
        let begun = std::time::Instant::now();
        assert_eq!(fault(&forged(&names, &tables), SHA1), None);
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    /// Sequentially it is `a../x`.
    #[test]
    fn a_block_begins_with_a_whole_name() {
        let mut index = b"DIRC\0\0\0\x04\0\0\0\x02".to_vec();
        let mut entry = |length: u8, dropped: u8, rest: &[u8]| {
            let begin = index.len();
            index.extend([1; STAT + SHA1]);
            index.extend([&[0, length, dropped], rest, b"\0"].concat());
            begin
        };
        let (first, second) = (entry(1, 0, b"a"), entry(6, 0, b"../x!"));
        for (pairs, expected) in
            [(&[(first, 2)][..], None), (&[(first, 1), (second, 1)], Some(Fault::Broken))]
        {
            let index = [&index[..], &table(pairs, b""), &[0; SHA1]].concat();
            assert_eq!(fault(&index, SHA1), expected, "{pairs:?}");
        }
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
