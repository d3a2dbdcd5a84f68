//! Lists of a repository's own files, which git opens, moves and removes by the names in them: of packs, gitformat-pack(5), of
//! commit graphs, gitformat-commit-graph(5), and of tables of refs, gitformat-reftable(5). Pure.

/// What a list of packs begins with: its signature, how many chunks and packs there are.
const SIGNATURE: &[u8] = b"MIDX";
const CHUNKS_AT: usize = 6;
const PACKS_AT: usize = 8;
const HEADER: usize = 12;

/// Of a chunk in the table of them: its name, and where it begins.
const CHUNK: usize = 12;

/// The chunk with the names of packs, each with a NUL behind it.
const NAMES: &[u8] = b"PNAM";

/// Whether a list of packs names what does not lie beside it, or cannot be read.
pub(super) fn names_others(index: &[u8]) -> bool {
    index.starts_with(SIGNATURE) && are_own(index) != Some(true)
}

fn are_own(index: &[u8]) -> Option<bool> {
    let chunks = usize::from(*index.get(CHUNKS_AT)?);
    let packs = u32::from_be_bytes(*index.get(PACKS_AT..)?.first_chunk()?);
    let table = index.get(HEADER..HEADER + chunks * CHUNK)?;
    let mut of_names = table.chunks(CHUNK).filter(|chunk| chunk.starts_with(NAMES));
    let at = u64::from_be_bytes(*of_names.next()?.get(NAMES.len()..)?.first_chunk()?);
    let mut rest = index.get(usize::try_from(at).ok()?..)?;
    for _ in 0..packs {
        let end = rest.iter().position(|byte| *byte == 0)?;
        if rest[..end].contains(&b'/') {
            return Some(false);
        }
        rest = &rest[end + 1..];
    }
    // Git refuses a second one.
    Some(of_names.next().is_none())
}

/// The first line in a chain of commit graphs that is no hash: git makes the name of a file of the whole line, and moves what is
/// there (git-commit-graph(1), `--split`).
pub(super) fn foreign_graph(chain: &[u8]) -> Option<&[u8]> {
    let is_hash = |line: &[u8]| [40, 64].contains(&line.len()) && line.iter().all(u8::is_ascii_hexdigit);
    chain.split(|byte| *byte == b'\n').find(|line| !line.is_empty() && !is_hash(line))
}

/// The first name in a list of tables of refs that is none of git's.
pub(super) fn foreign_table(list: &[u8]) -> Option<&[u8]> {
    let is_own = |name: &[u8]| {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte);
        name.is_empty() || !name.starts_with(b".") && name.iter().all(is_plain)
    };
    list.split(|byte| *byte == b'\n').find(|name| !is_own(name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn listed(names: &[u8], packs: u32) -> Vec<u8> {
        let mut index = [SIGNATURE, &[1, 1, 2, 0], &packs.to_be_bytes()].concat();
        for (chunk, at) in [(&b"OIDF"[..], 9_u64), (NAMES, 48), (b"\0\0\0\0", 60)] {
            index.extend([chunk, &at.to_be_bytes()].concat());
        }
        index.extend(names);
        index
    }

    #[test]
    fn packs_lie_beside_their_list() {
        assert!(!names_others(&listed(b"pack-1.idx\0pack-2.idx\0", 2)));
        assert!(!names_others(b"DIRC"), "git refuses it");
        for (names, packs) in [
            (&b"../../pack-1.idx\0"[..], 1),
            (b"pack-1.idx\0/pack-2.idx\0", 2),
            (b"pack-1.idx\0", 2),
            (b"pack-1.idx", 1),
        ] {
            assert!(names_others(&listed(names, packs)), "{names:?}");
        }
    }

    #[test]
    fn tables_of_refs_lie_beside_their_list() {
        let own = b"0x000000000001-0x000000000002-b54f3b59.ref\n0x000000000003-0x000000000003-c0ffee00.log\n";
        assert_eq!(foreign_table(own), None);
        for foreign in [&b"../../other/x.ref"[..], b"..", b"/x.ref", b"x\0y.ref"] {
            assert_eq!(foreign_table(&[own, foreign, b"\n"].concat()), Some(foreign));
        }
    }

    #[test]
    fn commit_graphs_lie_beside_their_chain() {
        let (short, long) = ("4f".repeat(20), "a0".repeat(32));
        assert_eq!(foreign_graph(format!("{short}\n{short}\n").as_bytes()), None);
        assert_eq!(foreign_graph(format!("{long}\n").as_bytes()), None);
        assert_eq!(foreign_graph(b""), None);
        for foreign in
            [format!("{short}/../../x"), short[1..].to_owned(), format!("{short}\0"), format!(" {short}")]
        {
            assert_eq!(foreign_graph(format!("{short}\n{foreign}\n").as_bytes()), Some(foreign.as_bytes()));
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (names_others(&[SIGNATURE, &bytes].concat()), foreign_table(&bytes), foreign_graph(&bytes));
        }
    }
}
