//! Layers at random, against a model: a map in memory to which entries are applied one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use tar::EntryType;

use super::*;

#[derive(Clone, Debug)]
pub(super) enum Change {
    Directory(PathBuf, u32),
    File(PathBuf, u8),
    /// By the lengths of a hole and of the data after it, and of the hole at the end.
    Sparse(PathBuf, SparseForm, Vec<(u8, u8)>, u8),
    Fifo(PathBuf),
    Link(PathBuf, &'static str),
    Hard(PathBuf, String),
    Device(PathBuf),
    Hide(PathBuf),
    Opaque(PathBuf),
    /// The root itself.
    Root(EntryType),
    /// A name that builders do not write, and whether it is refused.
    Odd(&'static str, bool),
}

/// The forms in which tar describes holes.
#[derive(Clone, Copy, Debug)]
pub(super) enum SparseForm {
    Gnu,
    PaxMap,
    PaxData,
}

/// How the name of an entry is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    Plain,
    Dotted,
    Pax,
    GnuLong,
    Absolute,
    Parent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Directory(u32),
    File { text: String, inode: u64 },
    Fifo { inode: u64 },
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
                    Some(Node::File { .. } | Node::Fifo { .. }) => return Err(Refused),
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

    fn spelled(&mut self, change: &Change, spelling: Spelling) -> Result<(), Refused> {
        let has_spelling = !matches!(change, Change::Root(_) | Change::Odd(..));
        match spelling {
            Spelling::Absolute | Spelling::Parent if has_spelling => Err(Refused),
            _ => self.apply(change),
        }
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
            Change::Sparse(path, _, pieces, end) => {
                let (path, inode) = (self.place(path)?, self.inode());
                self.put(path, Node::File { text: sparse_text(pieces, *end), inode });
            }
            Change::Fifo(path) => {
                let (path, inode) = (self.place(path)?, self.inode());
                self.put(path, Node::Fifo { inode });
            }
            Change::Root(kind) if *kind == EntryType::Directory => {}
            Change::Odd(_, false) => {}
            Change::Root(_) | Change::Odd(_, true) => return Err(Refused),
            Change::Link(path, target) => {
                let (path, inode) = (self.place(path)?, self.inode());
                self.put(path, Node::Link { target: (*target).to_owned(), inode });
            }
            Change::Hard(path, target) => {
                let path = self.place(path)?;
                // As for symbolic links, an absolute one begins at the root of the image.
                let target = Path::new(target.trim_start_matches('/'));
                if target.file_name().is_none() || target.iter().any(|part| part == "..") {
                    return Err(Refused);
                }
                let target = self.place(target)?;
                let mut node = self.tree.get(&target).cloned().ok_or(Refused)?;
                if !self.own.contains(&target) {
                    // A copy is another file.
                    let new = self.inode();
                    match &mut node {
                        Node::Directory(_) => {}
                        Node::File { inode, .. } | Node::Fifo { inode } | Node::Link { inode, .. } => {
                            *inode = new;
                        }
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

fn sparse_text(pieces: &[(u8, u8)], end: u8) -> String {
    let hole = |length: u8| "\0".repeat(length.into());
    pieces.iter().map(|(gap, length)| hole(*gap) + &"x".repeat((*length).into())).collect::<String>()
        + &hole(end)
}

/// An entry whose name is written so.
fn spelled(name: &str, spelling: Spelling) -> String {
    match spelling {
        Spelling::Plain | Spelling::Pax | Spelling::GnuLong => name.to_owned(),
        Spelling::Dotted => format!("./{}", name.replace('/', "/.//")),
        Spelling::Absolute => format!("/{name}"),
        Spelling::Parent => format!("a/../{name}"),
    }
}

/// Appends an entry. What does not fit into a header goes to an extension before it.
fn append(tar: Tar, mut header: Header, name: &str, spelling: Spelling, target: &str, data: &[u8]) -> Tar {
    let name = spelled(name, spelling);
    let mut tar = tar;
    if spelling == Spelling::Pax || target.len() > 90 {
        tar = tar.pax(&[("path", name.as_bytes()), ("linkpath", target.as_bytes())]);
    } else if spelling == Spelling::GnuLong || name.len() > 90 {
        let mut long = Tar::header(EntryType::GNULongName, b"././@LongLink", 0);
        long.set_size(name.len() as u64 + 1);
        tar = tar.raw(&mut long, format!("{name}\0").as_bytes());
    }
    let gnu = header.as_gnu_mut().expect("GNU");
    for (field, text) in [(&mut gnu.name, &*name), (&mut gnu.linkname, target)] {
        // With an extension, what stands here does not count.
        let text = text.as_bytes();
        let text = if text.len() > 90 { b"ignored".as_slice() } else { text };
        field.fill(0);
        field.get_mut(..text.len()).expect("short").copy_from_slice(text);
    }
    tar.raw(&mut header, data)
}

/// Appends a file with holes.
fn sparse(tar: Tar, name: &str, spelling: Spelling, form: SparseForm, pieces: &[(u8, u8)], end: u8) -> Tar {
    let (mut at, mut map) = (0, Vec::new());
    for (gap, length) in pieces {
        map.push((at + u64::from(*gap), u64::from(*length)));
        at += u64::from(*gap) + u64::from(*length);
    }
    let size = (at + u64::from(end)).to_string();
    let mut data: Vec<u8> =
        map.iter().flat_map(|(_, length)| vec![b'x'; usize::try_from(*length).expect("short")]).collect();
    let kind = if matches!(form, SparseForm::Gnu) { EntryType::GNUSparse } else { EntryType::Regular };
    let mut header = Tar::header(kind, b"", 0o644);
    let mut records: Vec<(&str, Vec<u8>)> = Vec::new();
    let numbers: Vec<String> = map.iter().flat_map(|(at, length)| [at, length]).map(u64::to_string).collect();
    match form {
        SparseForm::Gnu => {
            let gnu = header.as_gnu_mut().expect("GNU");
            for (field, (at, length)) in gnu.sparse.iter_mut().zip(&map) {
                field.set_offset(*at);
                field.set_length(*length);
            }
            gnu.set_real_size(at + u64::from(end));
        }
        SparseForm::PaxMap => {
            records = vec![("GNU.sparse.map", numbers.join(",").into()), ("GNU.sparse.size", size.into())];
        }
        SparseForm::PaxData => {
            let mut lines =
                format!("{}\n{}", map.len(), numbers.iter().map(|it| it.clone() + "\n").collect::<String>());
            lines.extend(std::iter::repeat_n('\0', lines.len().next_multiple_of(512) - lines.len()));
            data.splice(..0, lines.into_bytes());
            records = vec![
                ("GNU.sparse.major", b"1".into()),
                ("GNU.sparse.minor", b"0".into()),
                ("GNU.sparse.realsize", size.into()),
            ];
        }
    }
    header.set_size(data.len() as u64);
    if records.is_empty() {
        return append(tar, header, name, spelling, "", &data);
    }
    // One header of PAX is before an entry.
    let name = spelled(name, spelling).into_bytes();
    records.push(("path", name));
    let records: Vec<(&str, &[u8])> = records.iter().map(|(key, value)| (*key, value.as_slice())).collect();
    append(tar.pax(&records), header, "ignored", Spelling::Plain, "", &data)
}

pub(super) fn archive(layer: &[(Change, Spelling)]) -> Vec<u8> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let marked = |path: &Path| {
        let name = format!(".wh.{}", path.file_name().expect("a name").to_string_lossy());
        text(&path.with_file_name(name))
    };
    let add = |tar: Tar, (change, spelling): &(Change, Spelling)| {
        let (kind, mode, name) = match change {
            Change::Sparse(path, form, pieces, end) => {
                return sparse(tar, &text(path), *spelling, *form, pieces, *end);
            }
            Change::Root(kind) => return tar.kind(*kind, "./", 0o755),
            Change::Odd(name, _) => return tar.file(name, ""),
            Change::Directory(path, mode) => (EntryType::Directory, *mode, text(path) + "/"),
            Change::File(path, _) => (EntryType::Regular, 0o644, text(path)),
            Change::Fifo(path) => (EntryType::Fifo, 0o600, text(path)),
            Change::Link(path, _) => (EntryType::Symlink, 0o777, text(path)),
            Change::Hard(path, _) => (EntryType::Link, 0o644, text(path)),
            Change::Device(path) => (EntryType::Char, 0o666, text(path)),
            Change::Hide(path) => (EntryType::Regular, 0o644, marked(path)),
            Change::Opaque(path) => (EntryType::Regular, 0o644, text(&path.join(".wh..wh..opq"))),
        };
        let (data, target) = match change {
            Change::File(_, content) => (content.to_string(), ""),
            Change::Link(_, target) => (String::new(), *target),
            Change::Hard(_, target) => (String::new(), target.as_str()),
            _ => (String::new(), ""),
        };
        let mut header = Tar::header(kind, b"", mode);
        header.set_size(data.len() as u64);
        append(tar, header, &name, *spelling, target, data.as_bytes())
    };
    layer.iter().fold(Tar::new(), add).end()
}

/// A component that no header has room for when there are two of it.
const LONG: &str = "long-long-long-long-long-long-long-long-long-long-long-long";

fn path() -> impl Strategy<Value = PathBuf> {
    let part = prop_oneof![8 => Just("a"), 4 => Just("b"), 1 => Just(LONG)];
    prop::collection::vec(part, 1..4).prop_map(|parts| parts.iter().collect())
}

fn hard_target() -> impl Strategy<Value = String> {
    let odd = prop::sample::select(vec!["..", "a/../b", "/", ".", "//a", "./a/./b"]);
    prop_oneof![
        8 => path().prop_map(|path| path.to_string_lossy().into_owned()),
        2 => path().prop_map(|path| format!("/{}", path.display())),
        1 => odd.prop_map(str::to_owned),
    ]
}

fn odd() -> impl Strategy<Value = Change> {
    let names = vec![
        (".wh.", true),
        ("a/.wh..", true),
        ("a/.wh...", true),
        (".wh.a/b", true),
        (".wh..wh.plnk/a", false),
        (".wh..wh.aufs", false),
        ("a/.wh..wh.orph", false),
    ];
    prop::sample::select(names).prop_map(|(name, is_refused)| Change::Odd(name, is_refused))
}

fn change() -> impl Strategy<Value = Change> {
    let target = prop::sample::select(vec!["a", "b", "/a", "/b", "/b/a", "/", "./b/..", "../b", "a/../.."]);
    let form = prop::sample::select(vec![SparseForm::Gnu, SparseForm::PaxMap, SparseForm::PaxData]);
    let pieces = prop::collection::vec((0_u8..20, 1_u8..20), 1..4);
    let root = prop_oneof![4 => Just(EntryType::Directory), 1 => Just(EntryType::Symlink)];
    prop_oneof![
        12 => (path(), prop::sample::select(vec![0o755, 0o700, 0o1777])).prop_map(|(path, mode)| Change::Directory(path, mode)),
        12 => (path(), any::<u8>()).prop_map(|(path, text)| Change::File(path, text)),
        2 => (path(), form, pieces, 0_u8..20).prop_map(|(path, form, pieces, end)| Change::Sparse(path, form, pieces, end)),
        1 => path().prop_map(Change::Fifo),
        6 => (path(), target).prop_map(|(path, target)| Change::Link(path, target)),
        4 => (path(), hard_target()).prop_map(|(path, target)| Change::Hard(path, target)),
        3 => path().prop_map(Change::Device),
        6 => path().prop_map(Change::Hide),
        3 => path().prop_map(Change::Opaque),
        1 => root.prop_map(Change::Root),
        1 => odd(),
    ]
}

fn spelling() -> impl Strategy<Value = Spelling> {
    prop_oneof![
        160 => Just(Spelling::Plain),
        40 => Just(Spelling::Dotted),
        40 => Just(Spelling::Pax),
        20 => Just(Spelling::GnuLong),
        1 => Just(Spelling::Absolute),
        1 => Just(Spelling::Parent),
    ]
}

/// A layer of a few entries.
pub(super) fn layer() -> impl Strategy<Value = Vec<(Change, Spelling)>> {
    prop::collection::vec((change(), spelling()), 1..10)
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
                Node::Fifo { inode } => format!("p {} {}", path.display(), number(*inode)),
                Node::Link { target, inode } => format!("l {} {target} {}", path.display(), number(*inode)),
            }
        })
        .collect()
}

fn shown_lines(merged: &Merged) -> Vec<String> {
    let node = |shown: &Shown| match shown.kind {
        'd' => Node::Directory(shown.mode),
        'p' => Node::Fifo { inode: shown.inode },
        'f' => Node::File { text: shown.text.clone(), inode: shown.inode },
        _ => Node::Link { target: shown.text.clone(), inode: shown.inode },
    };
    model_lines(&merged.iter().map(|(path, shown)| (path.clone(), node(shown))).collect())
}

fn layers() -> impl Strategy<Value = Vec<Vec<(Change, Spelling)>>> {
    prop::collection::vec(layer(), 1..4)
}

/// What the model makes of layers.
fn modelled(layers: &[Vec<(Change, Spelling)>]) -> Result<Model, Refused> {
    let mut model = Model::default();
    for layer in layers {
        model.own.clear();
        layer.iter().try_for_each(|(change, spelling)| model.spelled(change, *spelling))?;
    }
    Ok(model)
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn layers_show_what_the_model_has(layers in layers()) {
        let archives: Vec<Vec<u8>> = layers.iter().map(|layer| archive(layer)).collect();
        let store = TestStore::new();
        match (store.merged(&archives), modelled(&layers)) {
            (Ok(merged), Ok(model)) => prop_assert_eq!(shown_lines(&merged), model_lines(&model.tree)),
            (Err(ImageError::Entry { .. }), Err(Refused)) => {}
            (found, expected) => prop_assert!(
                false, "{:?}, expected {:?}", found.map(|it| lines(&it)), expected.map(|it| model_lines(&it.tree))
            ),
        }
        prop_assert!(store.is_tidy());
        prop_assert!(store.is_alone(), "something is beside the store");
    }
}

/// Else the other test compares little.
#[test]
fn many_layers_at_random_are_images() {
    let (strategy, mut runner) = (layers(), TestRunner::deterministic());
    let mut is_image = || modelled(&strategy.new_tree(&mut runner).expect("layers").current()).is_ok();
    let images = (0..1_000).filter(|_| is_image()).count();
    assert!(images > 200, "{images} of 1000");
}
