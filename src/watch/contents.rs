//! Files of a repository by which git outside goes elsewhere without a look: the names in an index, the ref that another one
//! stands for, packs, commit graphs and tables of refs in lists of them, and where resolutions of conflicts are written. A
//! command that writes one of them decides which file outside of its grants git reads, writes or removes with its user's rights.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, openat},
    sys::stat::Mode,
};

use super::{
    index::{Fault, SHA1, SHA256, fault},
    links::is_branch,
    look::Found,
    packs,
};
use crate::{below, harmless::harmless};

/// Larger than any that anybody has: what is smaller is read as a whole.
const LARGEST: u64 = 1 << 28;

const TOO_LARGE: &str = "it was too large to look through";

/// As much as is read of a config or a list elsewhere.
pub(crate) const LONGEST_CONFIG: u64 = 1 << 20;

/// More than the longest name of a ref.
const LONGEST: u64 = 1 << 13;

/// Besides what ends in HEAD, refs in a repository itself.
const REFS: &[&str] =
    &["AUTO_MERGE", "BISECT_EXPECTED_REV", "MERGE_AUTOSTASH", "NOTES_MERGE_PARTIAL", "NOTES_MERGE_REF"];

/// Whether files may be such in a directory at `way` of a repository: in its top, in what a linked worktree has for itself, in
/// submodules, among refs, packs, commit graphs and tables of refs. A command can take a `HEAD` away for a while: that there is none is no sign.
pub(super) fn decide(directory: &OwnedFd, way: &Path) -> nix::Result<bool> {
    let is_below = |name: &str| way.parent().is_some_and(|parent| parent.ends_with(name));
    let is_known = way.as_os_str().is_empty()
        || is_below("worktrees")
        || ["modules", "refs", "reftable"].iter().any(|of| way.iter().any(|part| part == *of))
        || way.ends_with("objects/info/commit-graphs")
        || way.ends_with("objects/pack")
        || is_below("objects/pack");
    Ok(is_known || below::stat(directory, OsStr::new("HEAD"))?.is_some())
}

fn is_of_refs(way: &Path) -> bool {
    way.iter().any(|part| part == "refs")
}

/// Where a file leads git to, if it does: the end of a sentence.
///
/// # Errors
/// It cannot be read.
pub(super) fn of_found(found: &Found<'_>) -> io::Result<Option<String>> {
    let configs = || {
        let of = [found.directory, found.repository];
        of.into_iter().filter_map(|of| read(of, OsStr::new("config"), LONGEST_CONFIG).transpose()).collect()
    };
    lead(&found.way(), |most| read(found.directory, found.name, most), configs)
}

/// The same of a file at `way` in a repository, of which `file` reads as much as is wanted. `configs` are all that may say how
/// objects are named there: that of the repository, and one beside the file.
///
/// # Errors
/// Something cannot be read.
pub(crate) fn lead(
    way: &Path,
    file: impl FnOnce(u64) -> io::Result<Option<Vec<u8>>>,
    configs: impl FnOnce() -> io::Result<Vec<Vec<u8>>>,
) -> io::Result<Option<String>> {
    let name = way.file_name().unwrap_or_default();
    let bytes = name.as_bytes();
    if bytes == b"MERGE_RR" {
        // Git follows links to what it names, so there is no name that it may have.
        return Ok(Some(
            "git would have written resolutions of conflicts where it said (git-rerere(1))".to_owned(),
        ));
    }
    if bytes == b"index" || bytes.starts_with(b"sharedindex.") {
        let Some(index) = file(LARGEST)? else { return Ok(None) };
        return match index.len() as u64 {
            LARGEST => Ok(Some(TOO_LARGE.to_owned())),
            _ => Ok(of_index(&index, &configs()?)),
        };
    }
    if bytes == b"tables.list" {
        return of_list(file(LONGEST_CONFIG)?, packs::foreign_table);
    }
    if bytes == b"commit-graph-chain" {
        return of_list(file(LONGEST_CONFIG)?, packs::foreign_graph);
    }
    if bytes == b"multi-pack-index" || bytes.ends_with(b".midx") {
        let index = file(LARGEST)?.unwrap_or_default();
        return Ok(packs::names_others(&index).then(|| "it named packs that lie elsewhere".to_owned()));
    }
    let is_in_refs = way.parent().is_some_and(is_of_refs);
    if !is_in_refs && !bytes.ends_with(b"HEAD") && !REFS.iter().any(|of| *of == name) {
        return Ok(None);
    }
    let text = file(LONGEST)?.unwrap_or_default();
    let to = text.strip_prefix(b"ref:").map(<[u8]>::trim_ascii);
    Ok(to.filter(|to| !is_branch(OsStr::from_bytes(to))).map(|to| format!("it led to {}", words(to))))
}

/// What a list leads to, of which one name may be foreign.
fn of_list(list: Option<Vec<u8>>, foreign: fn(&[u8]) -> Option<&[u8]>) -> io::Result<Option<String>> {
    let list = list.unwrap_or_default();
    if list.len() as u64 == LONGEST_CONFIG {
        return Ok(Some(TOO_LARGE.to_owned()));
    }
    Ok(foreign(&list).map(|name| format!("it named {}", words(name))))
}

/// A command may have written one of the configs, and git heed another: an index is in order as each says it.
fn of_index(index: &[u8], configs: &[Vec<u8>]) -> Option<String> {
    let said = configs.iter().flat_map(|config| objects(config));
    let said: BTreeSet<usize> = said.collect();
    let sizes = if said.is_empty() { BTreeSet::from([SHA1]) } else { said };
    sizes.into_iter().find_map(|object| fault(index, object)).map(|fault| match fault {
        Fault::Leads(name) => format!("it named {}; `git reset` makes another", words(&name)),
        Fault::Broken => "it was not as git writes one; `git reset` makes another".to_owned(),
    })
}

/// How long names of objects are: git-config(1), `extensions.objectFormat`. More than one where it is not written as git
/// writes it.
fn objects(config: &[u8]) -> BTreeSet<usize> {
    const KEY: &[u8] = b"objectformat";
    let lower = config.to_ascii_lowercase();
    let lines = lower.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let said = lines.filter(|line| line.windows(KEY.len()).any(|at| at == KEY));
    let named: BTreeSet<usize> = said
        .flat_map(|line| match line.strip_prefix(KEY).map(<[u8]>::trim_ascii_start) {
            Some(b"= sha1" | b"=sha1") => vec![SHA1],
            Some(b"= sha256" | b"=sha256") => vec![SHA256],
            _ => vec![SHA1, SHA256],
        })
        .collect();
    if named.is_empty() { BTreeSet::from([SHA1]) } else { named }
}

fn words(bytes: &[u8]) -> String {
    harmless(&String::from_utf8_lossy(bytes)).to_string()
}

/// What a regular file begins with, as much as is wanted. `None` where there is none, or none that its owner could read.
fn read(directory: &OwnedFd, name: &OsStr, most: u64) -> io::Result<Option<Vec<u8>>> {
    let how = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let file = match openat(directory.as_fd(), name, how, Mode::empty()) {
        Err(Errno::ENOENT | Errno::EACCES | Errno::ELOOP | Errno::ENXIO) => return Ok(None),
        opened => File::from(opened?),
    };
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_objects_are_as_long_as_the_config_says() {
        for (config, sizes) in [
            ("", &[SHA1][..]),
            ("[core]\n\tbare = false\n", &[SHA1]),
            ("[extensions]\n\tobjectFormat = sha1\n", &[SHA1]),
            ("[extensions]\n\tobjectFormat = sha256\n", &[SHA256]),
            ("[extensions]\n\tobjectformat=SHA256\r\n", &[SHA256]),
            ("[extensions]\n\tobjectFormat = sha1 # sha256\n", &[SHA1, SHA256]),
            ("[extensions]\n\tobjectFormat = sha256\n\tobjectFormat = sha1\n", &[SHA1, SHA256]),
            ("[extensions] objectFormat = \"sha256\"\n", &[SHA1, SHA256]),
        ] {
            assert_eq!(objects(config.as_bytes()).into_iter().collect::<Vec<_>>(), sizes, "{config}");
        }
    }

    #[test]
    fn an_index_is_in_order_as_every_config_says() {
        let mut index = b"DIRC\0\0\0\x02\0\0\0\x01".to_vec();
        index.extend([0; 60]);
        index.extend(b"\0\x04../a");
        index.resize(index.len() + 7 + SHA1, 0);
        let [short, long] =
            ["", "[extensions]\n\tobjectFormat = sha256\n"].map(|text| text.as_bytes().to_vec());
        assert!(of_index(&index, &[]).is_some() && of_index(&index, std::slice::from_ref(&short)).is_some());
        assert_eq!(of_index(&index, std::slice::from_ref(&long)), None, "by itself it would hide the name");
        assert!(of_index(&index, &[long, short]).is_some());
    }
}
