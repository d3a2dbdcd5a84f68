//! Nested random grants: each directory has the access of the innermost grant, or Kennel refuses them with a
//! hint.

mod repositories;
mod targets;

use std::{
    cell::Cell,
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Output,
};

use kennel::{Error, Policy, Profile, Session, TmpLife};
use proptest::{
    prelude::*,
    sample::select,
    test_runner::{Config, TestRunner},
};
use tokio::runtime::Builder;

use crate::{
    overlay,
    support::{TempDir, kennel, random_cases, stdout, workspace},
};

/// The kind of grant for a directory.
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

/// The kind of grant around all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outermost {
    Nothing,
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

/// Every directory, and the file in each.
fn paths() -> Vec<PathBuf> {
    directories().into_iter().flat_map(|path| [path.join("file"), path]).collect()
}

/// The expected access to a directory: whether its file is visible and writable, and whether a command can
/// create a file beside it, on the host or at all.
#[derive(Debug, PartialEq)]
struct Rights {
    reads: bool,
    appends: bool,
    /// `None` if it may be a directory that Kennel makes in a private directory, on the way to a grant.
    writes: Option<bool>,
    reaches_host: bool,
}

fn expected(path: &Path, words: &BTreeMap<PathBuf, Word>) -> Rights {
    let file = path.join("file");
    let of_file = file.ancestors().find_map(|above| words.get(above).copied());
    let (reads, appends) = match of_file {
        Some(Word::ReadOnly) => (true, false),
        Some(Word::ReadWrite) => (true, true),
        Some(Word::Mask | Word::Tmpfs) | None => (false, false),
    };
    let innermost = path.ancestors().find_map(|above| words.get(above).map(|word| (above, *word)));
    let (writes, reaches_host) = match innermost {
        Some((_, Word::ReadWrite)) => (Some(true), true),
        Some((at, Word::Tmpfs)) if at == path => (Some(true), false),
        Some((_, Word::ReadOnly | Word::Mask)) => (Some(false), false),
        Some((_, Word::Tmpfs)) | None => (None, false),
    };
    Rights { reads, appends, writes, reaches_host }
}

/// Reports for each directory what the command can do there.
fn script(dir: &Path) -> String {
    let script = "for d in $(echo DIR/{a,b,c} DIR/{a,b,c}/{a,b,c} DIR/{a,b,c}/{a,b,c}/{a,b,c}); do
        r=-; [ -f $d/file ] && r=r; [ $r = r ] && echo x 2>/dev/null >> $d/file && r=ra
        w=-; : 2>/dev/null > $d/new && w=w; echo $d $r$w; done";
    script.replace("DIR", dir.to_str().unwrap())
}

/// Whether the result is as expected.
fn compare(
    dir: &Path,
    said: &str,
    is_on_host: bool,
    expected: impl Fn(&Path) -> Rights,
) -> Result<(), TestCaseError> {
    for path in directories() {
        let Rights { reads, appends, writes, reaches_host } = expected(&path);
        let place = format!("{} ", dir.join(&path).display());
        let line = said.lines().find_map(|line| line.strip_prefix(&place));
        prop_assert!(line.is_some_and(|line| line.contains('r') == reads), "{:?}: {:?}", path, line);
        prop_assert!(line.is_some_and(|line| line.contains('a') == appends), "{:?}: {:?}", path, line);
        let is_written = line.is_some_and(|line| line.contains('w'));
        prop_assert!(writes.is_none_or(|writes| writes == is_written), "{:?}: {:?}", path, line);
        let (new, file) = (dir.join(&path).join("new"), dir.join(&path).join("file"));
        prop_assert_eq!(new.exists(), reaches_host && is_on_host, "{:?}", path);
        prop_assert_eq!(fs::metadata(file).unwrap().len() > 0, appends && is_on_host, "{:?}", path);
    }
    Ok(())
}

/// The kinds of a tree in `dir`, with the kind around them, as flags, and the workspace.
fn told<'p>(
    (dir, other): (&'p Path, &'p Path),
    outermost: Outermost,
    words: &mut BTreeMap<PathBuf, Word>,
) -> (&'p Path, Vec<String>) {
    let flag = |(path, word): (&PathBuf, &Word)| {
        [word.flag().to_owned(), dir.join(path).to_str().unwrap().to_owned()]
    };
    let mut flags: Vec<String> = words.iter().flat_map(flag).collect();
    let (ws, around) = match outermost {
        Outermost::Nothing => (other, None),
        Outermost::Grant(word) => (other, Some(word)),
        Outermost::Workspace | Outermost::Overlay => (dir, Some(Word::ReadWrite)),
    };
    match outermost {
        Outermost::Grant(word) => flags.extend(flag((&PathBuf::new(), &word))),
        Outermost::Overlay => flags.extend(["--overlay".to_owned(), "--discard".to_owned()]),
        Outermost::Nothing | Outermost::Workspace => {}
    }
    words.extend(around.map(|word| (PathBuf::new(), word)));
    (ws, flags)
}

fn holds(
    outermost: Outermost,
    home: Option<PathBuf>,
    mut words: BTreeMap<PathBuf, Word>,
) -> Result<bool, TestCaseError> {
    let (dir, other) = (tree(), workspace());
    let (ws, flags) = told((dir.path(), other.path()), outermost, &mut words);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut command = kennel(ws, &flags, &["bash", "-c", &script(dir.path())]);
    command.envs(home.map(|home| ("HOME", dir.path().join(home))));
    let output = command.output().unwrap();
    if is_refused(&output)? {
        return Ok(false);
    }
    compare(dir.path(), &stdout(&output), outermost != Outermost::Overlay, |path| expected(path, &words))?;
    Ok(true)
}

fn word() -> impl Strategy<Value = Word> {
    select(vec![Word::ReadOnly, Word::ReadWrite, Word::Mask, Word::Tmpfs])
}

fn outermost() -> impl Strategy<Value = Outermost> {
    let mut all = vec![
        Outermost::Nothing,
        Outermost::Grant(Word::ReadOnly),
        Outermost::Grant(Word::ReadWrite),
        Outermost::Workspace,
    ];
    if overlay::available() {
        all.push(Outermost::Overlay);
    }
    select(all)
}

/// Whether Kennel refused the grants. Then there is a hint, unless only the kernel refused at the start.
fn is_refused(output: &Output) -> Result<bool, TestCaseError> {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_refused = output.status.code() == Some(125);
    prop_assert!(!is_refused || said.contains("hint: "), "{}", said);
    Ok(is_refused)
}

#[test]
fn the_innermost_grant_counts() {
    let words = prop::collection::btree_map(select(paths()), word(), 1..6);
    let ran = Cell::new(0);
    let homes = prop::option::of(select(directories()));
    let check = |(outermost, home, words)| {
        ran.set(ran.get() + u32::from(holds(outermost, home, words)?));
        Ok(())
    };
    TestRunner::new(config()).run(&(outermost(), homes, words), check).unwrap();
    assert!(ran.get() > config().cases / 10, "{} were not refused", ran.get());
}

fn config() -> Config {
    Config { cases: random_cases(60), failure_persistence: None, ..Config::default() }
}

/// What a command can do without some grants, or without writing to them.
fn narrowed(path: &Path, words: &BTreeMap<PathBuf, Word>, without: &BTreeMap<PathBuf, bool>) -> Rights {
    let rights = expected(path, words);
    let above = |hides| path.ancestors().any(|above| without.get(above) == Some(&hides));
    match (above(true), above(false)) {
        (true, _) => Rights { reads: false, appends: false, writes: Some(false), reaches_host: false },
        (false, true) => Rights { appends: false, writes: Some(false), reaches_host: false, ..rights },
        (false, false) => rights,
    }
}

#[test]
fn a_command_goes_without_what_it_is_not_given() {
    let word = select(vec![Word::ReadOnly, Word::ReadWrite, Word::Tmpfs]);
    // Each directory with the access that a command gives up: hidden or read-only.
    let words = prop::collection::btree_map(select(directories()), (word, any::<Option<bool>>()), 1..6);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let check = |(words, is_shared): (BTreeMap<PathBuf, (Word, Option<bool>)>, bool)| {
        let (dir, ws) = (tree(), workspace());
        let tmp = if is_shared { TmpLife::Session } else { TmpLife::Exec };
        let mut policy = Policy::profile(Profile::RepoWrite, ws.path()).read_write(dir.path()).tmp(tmp);
        for (path, (word, _)) in &words {
            let path = dir.path().join(path);
            policy = match word {
                Word::ReadWrite => policy.read_write(path),
                Word::Tmpfs => policy.tmpfs(path, None),
                _ => policy.read_only(path),
            };
        }
        let without: BTreeMap<PathBuf, bool> =
            words.iter().filter_map(|(path, (_, without))| Some((path.clone(), (*without)?))).collect();
        let output = runtime.block_on(async {
            let session = Session::prepare(&policy).await?;
            let mut command = session.command("bash");
            for (path, hides) in &without {
                let grant = dir.path().join(path);
                if *hides {
                    command.hide(grant)
                } else {
                    command.read_only(grant)
                };
            }
            command.args(["-c", &script(dir.path())]).output().await
        });
        let output = output.map_err(|error: Error| TestCaseError::fail(format!("{error:?}")))?;
        let mut words: BTreeMap<_, _> = words.into_iter().map(|(path, (word, _))| (path, word)).collect();
        words.insert(PathBuf::new(), Word::ReadWrite);
        let said = String::from_utf8_lossy(&output.stdout);
        compare(dir.path(), &said, true, |path| narrowed(path, &words, &without))
    };
    TestRunner::new(config()).run(&(words, any::<bool>()), check).unwrap();
}
