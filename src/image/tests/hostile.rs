//! Layers that want out: each is refused or harmless, and what is outside of the store stays as it was.

use std::fs;
use std::path::Path;

use tar::EntryType;

use super::*;
use crate::image::{EntryRefusal, ImageLimits};

/// All paths below a directory but those of the store, with what they hold.
fn outside(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(at) = left.pop() {
        for entry in fs::read_dir(&at).expect("readable") {
            let path = entry.expect("an entry").path();
            let metadata = fs::symlink_metadata(&path).expect("metadata");
            let text = fs::read_to_string(&path).unwrap_or_default();
            found.push(format!("{path:?} {:o} {} {text}", metadata.mode(), metadata.mtime()));
            if metadata.is_dir() && path != directory.join("images") {
                left.push(path);
            }
        }
    }
    found.sort();
    found
}

fn pax_name(name: &[u8]) -> Vec<u8> {
    Tar::new().pax(&[("path", name)]).file("plain", "x").end()
}

fn sparse(map: &str, size: &str, data: &str) -> Vec<u8> {
    let records: [(&str, &[u8]); 2] =
        [("GNU.sparse.map", map.as_bytes()), ("GNU.sparse.size", size.as_bytes())];
    Tar::new().pax(&records).file("sparse", data).end()
}

fn damaged(change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut archive = Tar::new().file("first", "1").file("second", "22").end();
    change(&mut archive);
    archive
}

fn refusals() -> Vec<(&'static str, Vec<Vec<u8>>, EntryRefusal)> {
    use EntryRefusal::*;
    let one = |tar: Tar| vec![tar.end()];
    let two = |lower: Tar, upper: Tar| vec![lower.end(), upper.end()];
    let long = "n/".repeat(2_100);
    let mut unnamed = Tar::header(EntryType::Regular, b"", 0o644);
    let mut unknown = Tar::header(EntryType::new(b'Z'), b"x", 0o644);
    vec![
        ("parent", one(Tar::new().file("../outside/x", "")), ParentComponent),
        ("parent within", one(Tar::new().dirs(&["a"]).file("a/../../outside/x", "")), ParentComponent),
        ("parent at the end", one(Tar::new().dirs(&["a", "a/.."])), ParentComponent),
        ("parent in PAX", vec![pax_name(b"../outside/x")], ParentComponent),
        (
            "parent in a name of a sparse file",
            one(Tar::new().pax(&[("GNU.sparse.name", b"../x")]).file("x", "")),
            ParentComponent,
        ),
        ("absolute", one(Tar::new().file("/etc/x", "")), Absolute),
        ("absolute, twice", one(Tar::new().dir("//outside", 0o755)), Absolute),
        ("a NUL", vec![pax_name(b"a\0b")], NoName),
        ("no name", one(Tar::new().raw(&mut unnamed, b"")), NoName),
        ("a long name", vec![pax_name(long.as_bytes())], TooLong),
        ("a name of 5,000 bytes", vec![pax_name("x/".repeat(2_500).as_bytes())], TooLong),
        ("a long component", vec![pax_name("n".repeat(256).as_bytes())], TooLong),
        ("a root that is a file", one(Tar::new().file(".", "x")), Root),
        ("a root that is a link", one(Tar::new().link("./", "/etc")), Root),
        ("a root that is a device", one(Tar::new().kind(EntryType::Char, "/", 0)), Root),
        ("a link out", one(Tar::new().link("l", "../../outside").file("l/x", "")), LinkOut),
        (
            "a link far out",
            one(Tar::new().dirs(&["d"]).link("d/l", "../../../../../../../..").file("d/l/x", "")),
            LinkOut,
        ),
        ("a lower link out", two(Tar::new().link("l", "../.."), Tar::new().file("l/x", "")), LinkOut),
        ("a link to a link out", one(Tar::new().link("a", "b").link("b", "..").file("a/x", "")), LinkOut),
        (
            "a hard link to a link out",
            one(Tar::new().link("l", "..").hard("h", "l").file("h/x", "")),
            LinkOut,
        ),
        (
            "a directory that becomes a link out",
            one(Tar::new().dirs(&["d"]).file("d/x", "").link("d", "../outside").file("d/y", "")),
            LinkOut,
        ),
        (
            "a whiteout behind a link out",
            one(Tar::new().link("l", "../outside").file("l/.wh.file", "")),
            LinkOut,
        ),
        (
            "an opaque mark behind a link out",
            one(Tar::new().link("l", "../outside").file("l/.wh..wh..opq", "")),
            LinkOut,
        ),
        (
            "a hard link behind a link out",
            one(Tar::new().link("l", "../outside").hard("h", "l/file")),
            LinkOut,
        ),
        ("links in a circle", one(Tar::new().link("a", "b").link("b", "a").file("a/x", "")), TooManyLinks),
        ("a link to itself", two(Tar::new().link("a", "a"), Tar::new().file("a/x", "")), TooManyLinks),
        ("a hard link to the parent", one(Tar::new().hard("h", "../outside/file")), HardLinkOut),
        ("a hard link to the host", one(Tar::new().hard("h", "/etc/passwd")), HardLinkLost),
        ("a file in a file", one(Tar::new().file("f", "").file("f/x", "")), NotDirectory),
        ("a file in a lower file", two(Tar::new().file("f", ""), Tar::new().file("f/x", "")), NotDirectory),
        ("a file in a FIFO", one(Tar::new().kind(EntryType::Fifo, "f", 0o600).file("f/x", "")), NotDirectory),
        ("a whiteout of the parent", one(Tar::new().file(".wh...", "")), Whiteout),
        ("a whiteout of the directory", one(Tar::new().dirs(&["d"]).file("d/.wh..", "")), Whiteout),
        ("an unknown type", one(Tar::new().raw(&mut unknown, b"")), Type),
        ("a link to nothing", one(Tar::new().link("l", "")), LinkTarget),
        ("pieces that overlap", vec![sparse("0,2,1,2", "9", "abcd")], Sparse),
        ("pieces behind the end", vec![sparse("8,4", "9", "abcd")], Sparse),
        ("pieces without data", vec![sparse("0,4,8,4", "12", "abcd")], Sparse),
        ("pieces of another length", vec![sparse("0,3", "9", "abcd")], Sparse),
        ("a piece beyond all files", vec![sparse("9223372036854775807,4", "9", "abcd")], Sparse),
        ("half a piece", vec![sparse("0", "9", "abcd")], Sparse),
    ]
}

fn malformed() -> Vec<(&'static str, Vec<u8>)> {
    let mut extension = Tar::header(EntryType::XHeader, b"x", 0o644);
    extension.set_size(5);
    let mut long = Tar::header(EntryType::XHeader, b"x", 0o644);
    long.set_size(2 << 20);
    let mut huge = Tar::header(EntryType::Regular, b"x", 0o644);
    huge.set_size(u64::MAX);
    vec![
        (
            "a PAX record without length",
            Tar::new().raw(&mut extension.clone(), b"a=b\n\n").file("x", "").end(),
        ),
        (
            "a PAX record that is too long",
            Tar::new().raw(&mut extension.clone(), b"9 a=\n").file("x", "").end(),
        ),
        ("a PAX header of 2 MiB", Tar::new().raw(&mut long, &vec![b'x'; 2 << 20]).file("x", "").end()),
        ("a PAX time", Tar::new().pax(&[("mtime", b"soon")]).file("x", "").end()),
        ("a PAX size", Tar::new().pax(&[("size", b"-1")]).file("x", "").end()),
        ("an extension of nothing", Tar::new().raw(&mut extension, b"5 a=\n").end()),
        ("a size beyond all files", Tar::new().raw(&mut huge, b"").end()),
        ("a checksum", damaged(|archive| archive[0] ^= 1)),
        ("a cut in the data", damaged(|archive| archive.truncate(513))),
        ("a cut in a header", damaged(|archive| archive.truncate(1024 + 100))),
        ("something after zeros", damaged(|archive| drop(archive.splice(1024..1024, [0; 512])))),
        ("no archive", b"<html>404 Not Found</html>".repeat(100)),
    ]
}

#[test]
fn hostile_layers_are_refused_and_leave_nothing_anywhere() {
    let store = TestStore::new();
    fs::create_dir(store.directory.path().join("outside")).expect("a directory");
    fs::write(store.directory.path().join("outside/file"), "precious").expect("a file");
    let before = outside(store.directory.path());
    for (what, archives, expected) in refusals() {
        match store.merged(&archives).map(|merged| lines(&merged)) {
            Err(error @ ImageError::Entry { reason, .. }) => {
                assert_eq!(reason, expected, "{what}: {error}");
                assert!(error.remedy().is_some());
            }
            other => panic!("{what}: {other:?}"),
        }
        assert!(store.is_tidy(), "{what}");
        assert_eq!(outside(store.directory.path()), before, "{what}");
    }
    for (what, archive) in malformed() {
        match store.merged(&[archive]).map(|merged| lines(&merged)) {
            Err(ImageError::Archive { .. }) => {}
            other => panic!("{what}: {other:?}"),
        }
        assert!(store.is_tidy(), "{what}");
    }
    assert_eq!(outside(store.directory.path()), before);
    // What the refused ones had below them is no image's.
    store.writer.prune(None).expect("pruned");
    assert_eq!(store.stored_layers(), 0);
    assert_eq!(
        fs::read_dir(store.store.path().join("layers")).expect("layers").count(),
        0,
        "no locks either"
    );
}

#[test]
fn what_only_looks_hostile_stays_inside() {
    let store = TestStore::new();
    fs::write(store.directory.path().join("file"), "precious").expect("a file");
    let before = outside(store.directory.path());
    let host = fs::canonicalize(store.directory.path()).expect("a path");
    let merged = store
        .merged(&[
            Tar::new().link("host", "/tmp").link("up", "..").link("a", "/").end(),
            Tar::new().file("host/x", "inside").file("a/a/a/y", "").kind(EntryType::Char, "null", 0).end(),
            Tar::new().link("t", "x").link("t", &host.to_string_lossy()).end(),
        ])
        .expect("applied");
    assert_eq!(merged[Path::new("tmp/x")].text, "inside");
    assert_eq!(merged[Path::new("y")].text, "");
    assert_eq!(merged[Path::new("up")].text, "..");
    assert_eq!(outside(store.directory.path()), before);
}

#[test]
fn a_bomb_ends_at_the_limits() {
    let store = TestStore::new();
    let limits = ImageLimits { max_size: 1 << 20, max_files: 10 };
    let writer = store.writer.clone().with_limits(limits);
    let key = |archive: &[u8], below: &[StoredLayer]| match writer.add_layer(LayerBlob::new(archive), below) {
        Err(error @ ImageError::Limit { key, .. }) => {
            assert!(error.remedy().expect("a remedy").to_string().contains(key), "{error}");
            Some(key)
        }
        Ok(_) => None,
        Err(other) => panic!("{other}"),
    };
    let big = gzip(&Tar::new().file("zeros", &"\0".repeat(2 << 20)).end());
    assert!(big.len() < 64 << 10);
    assert_eq!(key(&big, &[]), Some("images.max_size"));
    // Also zeros that come after the archive, and a sparse file may be of any length.
    let mut tail = Tar::new().end();
    tail.resize(2 << 20, 0);
    assert_eq!(key(&zstd(&tail), &[]), Some("images.max_size"));
    assert_eq!(key(&sparse("0,1", "1000000000", "x"), &[]), None);
    let files =
        |count: usize| (0..count).fold(Tar::new(), |tar, number| tar.file(&format!("f{number}"), "")).end();
    assert_eq!(key(&files(11), &[]), Some("images.max_files"));
    assert_eq!(key(&files(10), &[]), None);
    // Directories that a name implies count.
    assert_eq!(key(&Tar::new().file("1/2/3/4/5/6/7/8/9/10/f", "").end(), &[]), Some("images.max_files"));
    // And both are of the whole image.
    let below = [writer.add_layer(LayerBlob::new(files(10).as_slice()), &[]).expect("stored")];
    assert_eq!(key(&files(1), &below), Some("images.max_files"));
    let half = Tar::new().file("half", &"x".repeat(600 << 10)).end();
    let below = [writer.add_layer(LayerBlob::new(half.as_slice()), &[]).expect("stored")];
    let other = Tar::new().file("other", &"x".repeat(600 << 10)).end();
    assert_eq!(key(&other, &below), Some("images.max_size"));
    // So do copies of lower files.
    assert_eq!(key(&Tar::new().hard("h", "half").end(), &below), Some("images.max_size"));
    assert!(store.is_tidy());
}
