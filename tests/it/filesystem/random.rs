//! Any grants in each other show what the innermost of them says, or are refused with a hint.

use std::{
    cell::Cell,
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use proptest::{
    prelude::*,
    sample::select,
    test_runner::{Config, TestRunner},
};

use crate::{
    overlay,
    support::{TempDir, is_emulated, shell, stdout, workspace},
};

/// What is said of a directory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Word {
    ReadOnly,
    ReadWrite,
    Mask,
    Tmpfs,
}

impl Word {
    fn flag(self) -> &'static str {
        match self {
            Self::ReadOnly => "--ro",
            Self::ReadWrite => "--rw",
            Self::Mask => "--mask",
            Self::Tmpfs => "--tmpfs",
        }
    }
}

/// What lies around all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outermost {
    Grant(Word),
    Workspace,
    Overlay,
}

/// Every directory of the tree: three in each, three levels deep.
fn directories() -> Vec<PathBuf> {
    let mut all = vec![PathBuf::new()];
    let mut level = all.clone();
    for _ in 0..3 {
        level = level.iter().flat_map(|above| ["a", "b", "c"].map(|name| above.join(name))).collect();
        all.extend(level.clone());
    }
    all.split_off(1)
}

fn tree() -> TempDir {
    let dir = workspace();
    for path in directories() {
        fs::create_dir_all(dir.path().join(&path)).unwrap();
        fs::write(dir.path().join(path).join("file"), "").unwrap();
    }
    dir
}

/// What must be so in a directory: whether its file is seen, and whether something can be written, on the host or at all.
#[derive(Debug, PartialEq)]
struct Rights {
    reads: bool,
    /// `None` where it may be a directory that is made in a private place, on the way to a grant.
    writes: Option<bool>,
    reaches_host: bool,
}

fn expected(path: &Path, words: &BTreeMap<PathBuf, Word>) -> Rights {
    let innermost = path.ancestors().find_map(|above| words.get(above).map(|word| (above, *word)));
    let (reads, writes, reaches_host) = match innermost {
        Some((_, Word::ReadOnly)) => (true, Some(false), false),
        Some((_, Word::ReadWrite)) => (true, Some(true), true),
        Some((at, Word::Tmpfs)) if at == path => (false, Some(true), false),
        Some((_, Word::Mask)) => (false, Some(false), false),
        Some((_, Word::Tmpfs)) | None => (false, None, false),
    };
    Rights { reads, writes, reaches_host }
}

fn holds(outermost: Outermost, mut words: BTreeMap<PathBuf, Word>) -> Result<bool, TestCaseError> {
    let (dir, other) = (tree(), workspace());
    let place = |path: &Path| dir.path().join(path).display().to_string();
    let mut flags: Vec<String> =
        words.iter().flat_map(|(path, word)| [word.flag().to_owned(), place(path)]).collect();
    let (ws, word) = match outermost {
        Outermost::Grant(word) => (other.path(), word),
        _ => (dir.path(), Word::ReadWrite),
    };
    match outermost {
        Outermost::Grant(word) => flags.extend([word.flag().to_owned(), place(Path::new(""))]),
        Outermost::Workspace => {}
        Outermost::Overlay => flags.push("--overlay".to_owned()),
    }
    words.insert(PathBuf::new(), word);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let script = "for d in $(echo DIR/{a,b,c} DIR/{a,b,c}/{a,b,c} DIR/{a,b,c}/{a,b,c}/{a,b,c}); do
        r=-; [ -f $d/file ] && r=r; w=-; : 2>/dev/null > $d/new && w=w; echo $d $r$w; done";
    let script = format!("exec bash -c '{}'", script.replace("DIR", &dir.path().display().to_string()));
    let output = shell(ws, &flags, &script);
    if output.status.code() == Some(125) {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        prop_assert!(said.contains("hint: "), "{}", said);
        return Ok(false);
    }
    let said: Vec<String> = stdout(&output).lines().map(str::to_owned).collect();
    prop_assert_eq!(said.len(), directories().len(), "{:?}", output);
    for path in directories() {
        let Rights { reads, writes, reaches_host } = expected(&path, &words);
        let line = said.iter().find_map(|line| line.strip_prefix(&format!("{} ", place(&path))));
        prop_assert!(line.is_some_and(|line| line.contains('r') == reads), "{:?}: {:?}", path, line);
        let is_written = line.is_some_and(|line| line.contains('w'));
        prop_assert!(writes.is_none_or(|writes| writes == is_written), "{:?}: {:?}", path, line);
        let reaches_host = reaches_host && outermost != Outermost::Overlay;
        prop_assert_eq!(dir.path().join(&path).join("new").exists(), reaches_host, "{:?}", path);
    }
    Ok(true)
}

#[test]
fn the_innermost_grant_counts() {
    let word = select(vec![Word::ReadOnly, Word::ReadWrite, Word::Mask, Word::Tmpfs]);
    let words = prop::collection::btree_map(select(directories()), word, 1..6);
    let mut around =
        vec![Word::ReadOnly, Word::ReadWrite].into_iter().map(Outermost::Grant).collect::<Vec<_>>();
    around.push(Outermost::Workspace);
    if overlay::available() {
        around.push(Outermost::Overlay);
    }
    let cases = if is_emulated() { 5 } else { 60 };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let ran = Cell::new(0);
    let check = |(outermost, words)| {
        ran.set(ran.get() + u32::from(holds(outermost, words)?));
        Ok(())
    };
    TestRunner::new(config).run(&(select(around), words), check).unwrap();
    assert!(ran.get() > cases / 2, "{} of {cases} were not refused", ran.get());
}
