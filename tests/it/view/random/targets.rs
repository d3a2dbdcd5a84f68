//! Grants with a target that differs from their source.

use std::{
    cell::Cell,
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use proptest::{prelude::*, sample::select, test_runner::TestRunner};

use super::{Word, config, directories, is_refused, tree};
use crate::support::{kennel, stdout, workspace};

/// The file of each directory below /t contains the name of the host directory that is visible there.
fn shown(grants: &BTreeMap<PathBuf, (Word, PathBuf)>) -> BTreeMap<PathBuf, PathBuf> {
    let source = |path: &Path| {
        let (at, (word, source)) = path.ancestors().find_map(|above| grants.get_key_value(above))?;
        let source = source.join(path.strip_prefix(at).unwrap());
        (*word != Word::Tmpfs && directories().contains(&source)).then_some(source)
    };
    directories().into_iter().filter_map(|path| Some((path.clone(), source(&path)?))).collect()
}

#[test]
fn a_grant_shows_its_source_wherever_it_lies() {
    let word = select(vec![Word::ReadOnly, Word::ReadWrite, Word::Tmpfs]);
    let grants = prop::collection::btree_map(select(directories()), (word, select(directories())), 1..6);
    let ran = Cell::new(0);
    let check = |grants: BTreeMap<PathBuf, (Word, PathBuf)>| {
        let (dir, ws) = (tree(), workspace());
        for path in directories() {
            fs::write(dir.path().join(&path).join("file"), path.to_str().unwrap()).unwrap();
        }
        let flag = |(target, (word, source)): (&PathBuf, &(Word, PathBuf))| {
            let (target, source) = (Path::new("/t").join(target), dir.path().join(source));
            let value = match word {
                Word::Tmpfs => target.display().to_string(),
                _ => format!("{}:{}", source.display(), target.display()),
            };
            [word.flag().to_owned(), value]
        };
        let flags: Vec<String> = grants.iter().flat_map(flag).collect();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let script = "cd /t; for d in {a,b,c} {a,b,c}/{a,b,c} {a,b,c}/{a,b,c}/{a,b,c}; do
            [ -f $d/file ] && echo $d $(cat $d/file); done; :";
        let output = kennel(ws.path(), &flags, &["bash", "-c", script]).output().unwrap();
        if is_refused(&output)? {
            return Ok(());
        }
        ran.set(ran.get() + 1);
        let said: BTreeMap<PathBuf, PathBuf> = stdout(&output)
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(at, source)| (at.into(), source.into()))
            .collect();
        prop_assert_eq!(said, shown(&grants));
        Ok(())
    };
    TestRunner::new(config()).run(&grants, check).unwrap();
    assert!(ran.get() > config().cases / 10, "{} were not refused", ran.get());
}
