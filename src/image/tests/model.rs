//! Layers at random, against a model: a map in memory to which entries are applied one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tar::EntryType;

use super::*;

#[derive(Clone, Debug)]
enum Change {
    Directory(PathBuf, u32),
    File(PathBuf, u8),
    Link(PathBuf, &'static str),
    Hard(PathBuf, PathBuf),
    Device(PathBuf),
    Hide(PathBuf),
    Opaque(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Directory(u32),
    File { text: String, inode: u64 },
    Link { target: String, inode: u64 },
}

/// The merged tree, and what of it is of the current layer.
#[derive(Clone, Debug, Default)]
struct Model {
    tree: BTreeMap<PathBuf, Node>,
    own: BTreeSet<PathBuf>,
    inodes: u64,
}

/// The image is refused.
#[derive(Debug)]
struct Refused;

impl Model {
    fn inode(&mut self) -> u64 {
        self.inodes += 1;
        self.inodes
    }

    fn put(&mut self, path: PathBuf, node: Node) {
        self.remove(&path);
        self.own.insert(path.clone());
        self.tree.insert(path, node);
    }

    fn remove(&mut self, path: &Path) {
        self.tree.retain(|at, _| !at.starts_with(path));
        self.own.retain(|at| !at.starts_with(path));
    }

    /// Hides what lower layers have below a path, and at it if this layer has nothing there.
    fn hide(&mut self, path: &Path) {
        let own = &self.own;
        self.tree.retain(|at, _| !at.starts_with(path) || own.contains(at));
    }

    /// The directory that a path leads to. Missing ones are made.
    fn directory(&mut self, path: &Path) -> Result<PathBuf, Refused> {
        let mut left: Vec<String> =
            path.iter().rev().map(|part| part.to_string_lossy().into_owned()).collect();
        let (mut at, mut links) = (PathBuf::new(), 0);
        while let Some(part) = left.pop() {
            match part.as_str() {
                "/" => at = PathBuf::new(),
                "." => {}
                ".." if !at.pop() => return Err(Refused),
                ".." => {}
                part => match self.tree.get(&at.join(part)).cloned() {
                    Some(Node::File { .. }) => return Err(Refused),
                    Some(Node::Link { target, .. }) => {
                        links += 1;
                        if links > 40 {
                            return Err(Refused);
                        }
                        left.extend(
                            Path::new(&target).iter().rev().map(|part| part.to_string_lossy().into_owned()),
                        );
                    }
                    Some(Node::Directory(_)) => {
                        at.push(part);
                        self.own.insert(at.clone());
                    }
                    None => {
                        at.push(part);
                        self.put(at.clone(), Node::Directory(0o755));
                    }
                },
            }
        }
        Ok(at)
    }

    fn place(&mut self, path: &Path) -> Result<PathBuf, Refused> {
        let above = self.directory(path.parent().expect("a parent"))?;
        Ok(above.join(path.file_name().expect("a name")))
    }

    fn apply(&mut self, change: &Change) -> Result<(), Refused> {
        match change {
            Change::Directory(path, mode) => {
                let path = self.place(path)?;
                if !matches!(self.tree.get(&path), Some(Node::Directory(_))) {
                    self.remove(&path);
                }
                self.own.insert(path.clone());
                self.tree.insert(path, Node::Directory(*mode));
            }
            Change::File(path, text) => {
                let (path, inode) = (self.place(path)?, self.inode());
                self.put(path, Node::File { text: text.to_string(), inode });
            }
            Change::Link(path, target) => {
                let (path, inode) = (self.place(path)?, self.inode());
                self.put(path, Node::Link { target: (*target).to_owned(), inode });
            }
            Change::Hard(path, target) => {
                let (path, target) = (self.place(path)?, self.place(target)?);
                let mut node = self.tree.get(&target).cloned().ok_or(Refused)?;
                if !self.own.contains(&target) {
                    // A copy is another file.
                    let new = self.inode();
                    match &mut node {
                        Node::Directory(_) => {}
                        Node::File { inode, .. } | Node::Link { inode, .. } => *inode = new,
                    }
                }
                if matches!(node, Node::Directory(_)) || (target.starts_with(&path) && target != path) {
                    return Err(Refused);
                }
                self.put(target, node.clone());
                self.put(path, node);
            }
            Change::Device(path) => {
                let path = self.place(path)?;
                self.remove(&path);
            }
            Change::Hide(path) => {
                let path = self.place(path)?;
                self.hide(&path);
            }
            Change::Opaque(path) => {
                if self.directory(path)? == *path {
                    self.hide(path);
                }
            }
        }
        Ok(())
    }
}

fn archive(layer: &[Change]) -> Vec<u8> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let marked = |path: &Path| {
        let name = format!(".wh.{}", path.file_name().expect("a name").to_string_lossy());
        text(&path.with_file_name(name))
    };
    let add = |tar: Tar, change: &Change| match change {
        Change::Directory(path, mode) => tar.dir(&text(path), *mode),
        Change::File(path, content) => tar.file(&text(path), &content.to_string()),
        Change::Link(path, target) => tar.link(&text(path), target),
        Change::Hard(path, target) => tar.hard(&text(path), &text(target)),
        Change::Device(path) => tar.kind(EntryType::Char, &text(path), 0o666),
        Change::Hide(path) => tar.file(&marked(path), ""),
        Change::Opaque(path) => tar.file(&text(&path.join(".wh..wh..opq")), ""),
    };
    layer.iter().fold(Tar::new(), add).end()
}

fn path() -> impl Strategy<Value = PathBuf> {
    prop::collection::vec(prop::sample::select(vec!["a", "a", "b"]), 1..4)
        .prop_map(|parts| parts.iter().collect())
}

fn change() -> impl Strategy<Value = Change> {
    let target = prop::sample::select(vec!["a", "b", "/a", "/b", "/b/a", "/", "./b/..", "../b", "a/../.."]);
    prop_oneof![
        4 => (path(), prop::sample::select(vec![0o755, 0o700, 0o1777])).prop_map(|(path, mode)| Change::Directory(path, mode)),
        4 => (path(), any::<u8>()).prop_map(|(path, text)| Change::File(path, text)),
        2 => (path(), target).prop_map(|(path, target)| Change::Link(path, target)),
        1 => (path(), path()).prop_map(|(path, target)| Change::Hard(path, target)),
        1 => path().prop_map(Change::Device),
        2 => path().prop_map(Change::Hide),
        1 => path().prop_map(Change::Opaque),
    ]
}

/// The tree in lines, in which names of one file share a number.
fn model_lines(tree: &BTreeMap<PathBuf, Node>) -> Vec<String> {
    let mut numbers = BTreeMap::new();
    tree.iter()
        .map(|(path, node)| {
            let mut number = |inode: u64| {
                let next = numbers.len();
                *numbers.entry(inode).or_insert(next)
            };
            match node {
                Node::Directory(mode) => format!("d {} {mode:o}", path.display()),
                Node::File { text, inode } => format!("f {} {text} {}", path.display(), number(*inode)),
                Node::Link { target, inode } => format!("l {} {target} {}", path.display(), number(*inode)),
            }
        })
        .collect()
}

fn shown_lines(merged: &Merged) -> Vec<String> {
    let node = |shown: &Shown| match shown.kind {
        'd' => Node::Directory(shown.mode),
        'f' => Node::File { text: shown.text.clone(), inode: shown.inode },
        _ => Node::Link { target: shown.text.clone(), inode: shown.inode },
    };
    model_lines(&merged.iter().map(|(path, shown)| (path.clone(), node(shown))).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn layers_show_what_the_model_has(
        layers in prop::collection::vec(prop::collection::vec(change(), 1..10), 1..4)
    ) {
        let mut model = Model::default();
        let expected = layers.iter().try_for_each(|layer| {
            model.own.clear();
            layer.iter().try_for_each(|change| model.apply(change))
        });
        let archives: Vec<Vec<u8>> = layers.iter().map(|layer| archive(layer)).collect();
        let store = TestStore::new();
        match (store.merged(&archives), expected) {
            (Ok(merged), Ok(())) => prop_assert_eq!(shown_lines(&merged), model_lines(&model.tree)),
            (Err(ImageError::Entry { .. }), Err(Refused)) => {}
            (found, expected) => prop_assert!(false, "{:?}, expected {:?}", found.map(|it| lines(&it)), expected),
        }
        prop_assert!(store.is_tidy());
    }
}
