//! Tests of the store: layers by hand, one for each promise, against what the layers show together.

mod applied;
mod archives;
mod fuzz;
mod hostile;
mod images;
mod locks;
mod model;
mod references;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{Cursor, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use proptest::prelude::ProptestConfig;
use tar::{Builder, EntryType, Header};

use crate::image::{Digest, Image, ImageError, LayerBlob, Reference, Store, StoreWriter, StoredLayer};

/// A store in a directory of its own.
pub(crate) struct TestStore {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) store: Store,
    pub(crate) writer: StoreWriter,
}

impl TestStore {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(directory.path().join("images")).expect("a store");
        let writer = store.writer().expect("a writer");
        Self { directory, store, writer }
    }

    /// Stores archives as layers, lowest first.
    pub(crate) fn layers(&self, archives: &[Vec<u8>]) -> Result<Vec<StoredLayer>, ImageError> {
        let mut layers = Vec::new();
        for archive in archives {
            let blob = LayerBlob::new(archive.as_slice()).with_diff_id(Digest::of(archive));
            layers.push(self.writer.add_layer(blob, &layers)?);
        }
        Ok(layers)
    }

    pub(crate) fn image(&self, archives: &[Vec<u8>], names: &[&str]) -> Image {
        let layers = self.layers(archives).expect("layers");
        let names: Vec<Reference> = names.iter().map(|name| name.parse().expect("a name")).collect();
        self.writer.add_image(config(&layers).as_bytes(), &layers, &names).expect("an image")
    }

    /// What the layers show together.
    pub(crate) fn merged(&self, archives: &[Vec<u8>]) -> Result<Merged, ImageError> {
        let layers = self.layers(archives)?;
        let paths: Vec<PathBuf> = layers.iter().map(|layer| self.store.layer_path(&layer.id)).collect();
        Ok(merged(&paths))
    }

    /// Whether nothing is half made.
    pub(crate) fn is_tidy(&self) -> bool {
        fs::read_dir(self.store.path().join("tmp")).expect("tmp").next().is_none()
    }

    /// Whether nothing is beside the store.
    pub(crate) fn is_alone(&self) -> bool {
        fs::read_dir(self.directory.path()).expect("readable").count() == 1
    }

    pub(crate) fn stored_layers(&self) -> usize {
        let entries = fs::read_dir(self.store.path().join("layers")).expect("layers");
        entries.filter(|entry| entry.as_ref().expect("an entry").path().is_dir()).count()
    }
}

/// How many cases a test at random has, if PROPTEST_CASES does not say another number.
fn cases(usual: u32) -> ProptestConfig {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let is_set = std::env::var_os("PROPTEST_CASES").is_some();
    ProptestConfig { cases: if is_set { config.cases } else { usual }, ..config }
}

/// A configuration for these layers.
pub(crate) fn config(layers: &[StoredLayer]) -> String {
    let diff_ids: Vec<Digest> = layers.iter().map(StoredLayer::diff_id).collect();
    serde_json::json!({
        "architecture": "amd64", "os": "linux", "created": "2026-01-02T03:04:05Z",
        "config": {"Env": ["PATH=/bin"], "Cmd": ["sh"], "WorkingDir": "", "User": null},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    })
    .to_string()
}

/// An archive that is written entry by entry.
pub(crate) struct Tar {
    builder: Builder<Vec<u8>>,
}

pub(crate) const TIME: u64 = 1_600_000_000;

impl Tar {
    pub(crate) fn new() -> Self {
        Self { builder: Builder::new(Vec::new()) }
    }

    /// A header with exactly this name.
    pub(crate) fn header(kind: EntryType, name: &[u8], mode: u32) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(TIME);
        header.set_size(0);
        header
            .as_gnu_mut()
            .expect("GNU")
            .name
            .get_mut(..name.len())
            .expect("a short name")
            .copy_from_slice(name);
        header
    }

    pub(crate) fn raw(mut self, header: &mut Header, data: &[u8]) -> Self {
        header.set_cksum();
        self.builder.append(header, data).expect("written");
        self
    }

    /// The records come before the next entry.
    pub(crate) fn pax(mut self, records: &[(&str, &[u8])]) -> Self {
        self.builder.append_pax_extensions(records.iter().copied()).expect("written");
        self
    }

    pub(crate) fn dir(self, name: &str, mode: u32) -> Self {
        self.raw(&mut Self::header(EntryType::Directory, name.as_bytes(), mode), b"")
    }

    pub(crate) fn dirs(self, names: &[&str]) -> Self {
        names.iter().fold(self, |tar, name| tar.dir(name, 0o755))
    }

    pub(crate) fn file(self, name: &str, text: &str) -> Self {
        self.file_with(name, 0o644, text)
    }

    pub(crate) fn file_with(self, name: &str, mode: u32, text: &str) -> Self {
        let mut header = Self::header(EntryType::Regular, name.as_bytes(), mode);
        header.set_size(text.len() as u64);
        self.raw(&mut header, text.as_bytes())
    }

    fn to(self, kind: EntryType, name: &str, target: &str) -> Self {
        let mut header = Self::header(kind, name.as_bytes(), 0o777);
        let field = &mut header.as_gnu_mut().expect("GNU").linkname;
        field.get_mut(..target.len()).expect("a short target").copy_from_slice(target.as_bytes());
        self.raw(&mut header, b"")
    }

    pub(crate) fn link(self, name: &str, target: &str) -> Self {
        self.to(EntryType::Symlink, name, target)
    }

    pub(crate) fn hard(self, name: &str, target: &str) -> Self {
        self.to(EntryType::Link, name, target)
    }

    pub(crate) fn kind(self, kind: EntryType, name: &str, mode: u32) -> Self {
        self.raw(&mut Self::header(kind, name.as_bytes(), mode), b"")
    }

    /// With the blocks of zeros at its end.
    pub(crate) fn end(self) -> Vec<u8> {
        self.builder.into_inner().expect("an archive")
    }
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("compressed");
    encoder.finish().expect("compressed")
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(Cursor::new(bytes), 1).expect("compressed")
}

/// A file of the merged view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) kind: char,
    pub(crate) mode: u32,
    pub(crate) seconds: i64,
    /// The text of a file, or the target of a link.
    pub(crate) text: String,
    /// The same for names of one file.
    pub(crate) inode: u64,
    pub(crate) path: PathBuf,
}

pub(crate) type Merged = BTreeMap<PathBuf, Shown>;

/// Puts layers together as overlayfs does, in a way that shares nothing with the code under test.
pub(crate) fn merged(layers: &[PathBuf]) -> Merged {
    let mut merged = Merged::new();
    for layer in layers {
        merge(layer, Path::new(""), &mut merged);
    }
    merged
}

fn merge(layer: &Path, below: &Path, merged: &mut Merged) {
    let mut names: Vec<OsString> = fs::read_dir(layer.join(below))
        .expect("readable")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    names.sort();
    let hide = |merged: &mut Merged, path: &Path, with_itself: bool| {
        merged.retain(|at, _| !at.starts_with(path) || (at == path && !with_itself));
    };
    if xattr::get(layer.join(below), "user.overlay.opaque").expect("attributes").as_deref() == Some(b"y") {
        merged.retain(|at, _| !at.starts_with(below) || at == below);
    }
    for name in names {
        let (at, full) = (below.join(&name), layer.join(below).join(&name));
        let metadata = fs::symlink_metadata(&full).expect("metadata");
        let kind = metadata.file_type();
        if kind.is_char_device() {
            assert_eq!(metadata.rdev(), 0, "{full:?}");
            hide(merged, &at, true);
            continue;
        }
        let was_directory = merged.get(&at).is_some_and(|shown| shown.kind == 'd');
        if !(kind.is_dir() && was_directory) {
            hide(merged, &at, true);
        }
        let (kind, text) = match () {
            () if kind.is_dir() => ('d', String::new()),
            () if kind.is_symlink() => {
                ('l', fs::read_link(&full).expect("a link").to_string_lossy().into_owned())
            }
            () if kind.is_fifo() => ('p', String::new()),
            () => {
                assert!(kind.is_file(), "{full:?}");
                let text = fs::read(&full).unwrap_or_else(|_| b"(closed)".to_vec());
                ('f', String::from_utf8_lossy(&text).into_owned())
            }
        };
        let (mode, seconds, inode) =
            (metadata.permissions().mode() & 0o7777, metadata.mtime(), metadata.ino());
        let shown = Shown { kind, mode, seconds, text, inode, path: full.clone() };
        merged.insert(at.clone(), shown);
        if kind == 'd' && fs::read_dir(&full).is_ok() {
            merge(layer, &at, merged);
        }
    }
}

/// The merged view in lines: kind, mode, path, and text.
pub(crate) fn lines(merged: &Merged) -> Vec<String> {
    let line = |(path, shown): (&PathBuf, &Shown)| {
        let mode = if shown.kind == 'l' { String::new() } else { format!(" {:o}", shown.mode) };
        let text = if shown.text.is_empty() { String::new() } else { format!(" {}", shown.text) };
        format!("{}{mode} {}{text}", shown.kind, path.display())
    };
    merged.iter().map(line).collect()
}

pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
