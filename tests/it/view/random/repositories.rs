//! Any grants of any repositories: git outside obeys the same files as before.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use proptest::{prelude::*, sample::select, test_runner::TestRunner};

use super::{Outermost, Word, config, directories, is_refused, outermost, told, tree, word};
use crate::support::{GIT_CONFIG, kennel, make_repository, workspace};

/// Tries to make git run something in a repository, by existing files and by new files in their place.
const ATTEMPTS: &str = "g=DIR/.git; echo x >> $g/config; : > $g/hooks/new
    mv $g/hooks $g/h2 && mkdir $g/hooks && : > $g/hooks/new; rm -rf $g/hooks
    mv $g ${g}2; mkdir -p $g/hooks; : > $g/hooks/new; echo x > $g/config
    mv DIR DIR.x && mkdir -p $g/hooks && : > $g/hooks/new && echo x > $g/config
";

fn is_kept(git: &Path) -> bool {
    fs::read(git.join("config")).is_ok_and(|config| config == GIT_CONFIG.as_bytes())
        && fs::read_dir(git.join("hooks")).is_ok_and(|mut hooks| hooks.next().is_none())
}

#[test]
fn repositories_around_grants_stay_as_they_are() {
    let words = prop::collection::btree_map(select(directories()), word(), 1..6);
    let repositories = prop::collection::btree_set(select(directories()), 1..8);
    let ran = Cell::new(0);
    type Case = (Outermost, BTreeMap<PathBuf, Word>, BTreeSet<PathBuf>);
    let check = |(outermost, mut words, repositories): Case| {
        let (dir, other) = (tree(), workspace());
        let at = |repository: &Path| dir.path().join(repository);
        repositories.iter().for_each(|repository| make_repository(&at(repository).join(".git")));
        let (ws, flags) = told((dir.path(), other.path()), outermost, &mut words);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let attempts = |repository: &PathBuf| ATTEMPTS.replace("DIR", at(repository).to_str().unwrap());
        let script: String = repositories.iter().map(attempts).collect();
        let script = format!("exec 2>/dev/null\n{script}:");
        let output = kennel(ws, &flags, &["sh", "-c", &script]).output().unwrap();
        if is_refused(&output)? {
            return Ok(());
        }
        ran.set(ran.get() + 1);
        // Kennel promises nothing about repositories deeper in a grant.
        let is_around = |repository: &&PathBuf| {
            words.iter().any(|(path, word)| *word == Word::ReadWrite && path.starts_with(repository))
        };
        for repository in repositories.iter().filter(is_around) {
            prop_assert!(is_kept(&at(repository).join(".git")), "{:?}: {:?}", repository, output);
        }
        Ok(())
    };
    TestRunner::new(config()).run(&(outermost(), words, repositories), check).unwrap();
    assert!(ran.get() > config().cases / 10, "{} were not refused", ran.get());
}
