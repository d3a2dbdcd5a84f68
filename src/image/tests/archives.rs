//! Bytes of layers: compressions, digests, holes.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::*;

fn archive() -> Vec<u8> {
    Tar::new().dirs(&["d"]).file("d/text", &"some text ".repeat(10_000)).end()
}

fn store(blob: &[u8]) -> Result<StoredLayer, ImageError> {
    TestStore::new().writer.add_layer(LayerBlob::new(blob), &[])
}

#[test]
fn plain_gzip_and_zstd_also_in_several_parts_are_one_layer() {
    let archive = archive();
    let (first, second) = archive.split_at(archive.len() / 2);
    let skippable = [b"\x50\x2a\x4d\x18\x03\0\0\0abc".as_slice(), &zstd(&archive)].concat();
    for blob in [
        archive.clone(),
        gzip(&archive),
        [gzip(first), gzip(b""), gzip(second)].concat(),
        zstd(&archive),
        [zstd(first), zstd(second)].concat(),
        skippable,
    ] {
        let store = TestStore::new();
        let expected =
            LayerBlob::new(blob.as_slice()).with_digest(Digest::of(&blob)).with_diff_id(Digest::of(&archive));
        let layer = store.writer.add_layer(expected, &[]).expect("stored");
        assert_eq!(
            (layer.diff_id(), layer.size(), layer.files()),
            (Digest::of(&archive), archive.len() as u64, 2)
        );
        assert!(layer.is_shared());
    }
}

#[test]
fn what_follows_the_archive_counts_for_the_diff_id() {
    let mut archive = archive();
    archive.extend([0; 20_000]);
    archive.extend(b"and more");
    assert_eq!(store(&archive).expect("stored").diff_id(), Digest::of(&archive));
    assert_eq!(store(&gzip(&archive)).expect("stored").diff_id(), Digest::of(&archive));
    // An archive may lack its end, and a layer may be empty.
    assert_eq!(store(b"").expect("stored").files(), 0);
    assert_eq!(store(archive.get(..512).expect("long")).expect("stored").files(), 1);
}

#[test]
fn another_digest_or_diff_id_is_told_and_nothing_is_left() {
    let (archive, other) = (archive(), Digest::of(b"other"));
    let blob = gzip(&archive);
    let store = TestStore::new();
    let add = |blob: LayerBlob<'_>| match store.writer.add_layer(blob, &[]) {
        Err(ImageError::Digest { what, expected, found, .. }) => {
            assert!(store.is_tidy() && store.stored_layers() == 0);
            assert_eq!(expected, other.to_string());
            (what, found)
        }
        answer => panic!("{answer:?}"),
    };
    let new = || LayerBlob::new(blob.as_slice());
    assert_eq!(add(new().with_digest(other)), ("digest", Digest::of(&blob).to_string()));
    assert_eq!(add(new().with_diff_id(other)), ("diff id", Digest::of(&archive).to_string()));
    // If the bytes are not those that were promised, no fault in them is the reason.
    for mut damaged in [blob.clone(), archive.clone()] {
        damaged[20] ^= 0xff;
        let found = Digest::of(&damaged).to_string();
        assert_eq!(add(LayerBlob::new(damaged.as_slice()).with_digest(other)), ("digest", found));
    }
    let cut = blob.get(..blob.len() - 9).expect("long");
    assert_eq!(add(LayerBlob::new(cut).with_digest(other)).0, "digest");
    match store.writer.add_layer(LayerBlob::new(cut), &[]) {
        Err(ImageError::Read { .. }) => {}
        answer => panic!("{answer:?}"),
    }
    let failure =
        ImageError::Digest { layer: "1".into(), what: "digest", expected: "a".into(), found: "b".into() };
    assert_eq!(failure.failure().class, crate::report::Class::HashMismatch);
}

#[test]
fn unknown_compressions_are_named() {
    for (blob, expected) in
        [(&b"\xfd7zXZ\0\0\x04"[..], "xz"), (b"BZh91AY&SY", "bzip2"), (b"\x04\x22\x4d\x18abcdef", "lz4")]
    {
        match store(blob) {
            Err(error @ ImageError::Compression { name, .. }) => {
                assert_eq!(name, expected);
                assert_eq!(error.to_string(), format!("layer 1: compressed with {name}"));
            }
            answer => panic!("{answer:?}"),
        }
    }
}

#[test]
fn a_window_of_zstd_above_128_mib_is_refused() {
    let compressed = |window| {
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).expect("an encoder");
        encoder.window_log(window).expect("a window");
        encoder.write_all(&archive()).expect("compressed");
        encoder.finish().expect("compressed")
    };
    store(&compressed(27)).expect("stored");
    match store(&compressed(28)) {
        Err(ImageError::Read { .. }) => {}
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn a_size_in_a_pax_record_counts() {
    let mut header = Tar::header(tar::EntryType::Regular, b"f", 0o644);
    let tar = Tar::new().pax(&[("size", b"3")]).raw(&mut header, b"abc").file("after", "x");
    let merged = TestStore::new().merged(&[tar.end()]).expect("applied");
    assert_eq!(lines(&merged), ["f 644 after x", "f 644 f abc"]);
}

/// An archive with the old GNU header of a sparse file: `data` at 1 MiB of 3 MiB, and `end` at the end.
fn gnu_sparse() -> Vec<u8> {
    let mut header = Tar::header(tar::EntryType::GNUSparse, b"s", 0o644);
    header.set_size(516);
    let gnu = header.as_gnu_mut().expect("GNU");
    let octal = |field: &mut [u8], number: u64| {
        field.copy_from_slice(format!("{number:0width$o}\0", width = field.len() - 1).as_bytes());
    };
    for (piece, (offset, length)) in gnu.sparse.iter_mut().zip([(1 << 20, 512), (3145724, 4), (3145728, 0)]) {
        octal(&mut piece.offset, offset);
        octal(&mut piece.numbytes, length);
    }
    octal(&mut gnu.realsize, 3 << 20);
    let mut data = "d".repeat(512);
    data.push_str("tail");
    Tar::new().raw(&mut header, data.as_bytes()).file("after", "x").end()
}

#[test]
fn holes_stay_holes_in_all_formats_and_in_copies() {
    let data = format!("{}tail", "d".repeat(512));
    let size = (3 << 20).to_string();
    let old = Tar::new().pax(&[
        ("GNU.sparse.size", size.as_bytes()),
        ("GNU.sparse.numblocks", b"2"),
        ("GNU.sparse.offset", b"1048576"),
        ("GNU.sparse.numbytes", b"512"),
        ("GNU.sparse.offset", b"3145724"),
        ("GNU.sparse.numbytes", b"4"),
    ]);
    let map =
        Tar::new().pax(&[("GNU.sparse.size", size.as_bytes()), ("GNU.sparse.map", b"1048576,512,3145724,4")]);
    let mut first = String::from("2\n1048576\n512\n3145724\n4\n");
    first.push_str(&"\0".repeat(512 - first.len()));
    let new = Tar::new().pax(&[
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"s"),
        ("GNU.sparse.realsize", size.as_bytes()),
    ]);
    for archive in [
        gnu_sparse(),
        old.file("s", &data).file("after", "x").end(),
        map.file("s", &data).file("after", "x").end(),
        new.file("GNUSparseFile.0/s", &(first + &data)).file("after", "x").end(),
    ] {
        let store = TestStore::new();
        let merged = store.merged(&[archive, Tar::new().hard("copy", "s").end()]).expect("applied");
        assert_eq!(
            merged.keys().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
            ["after", "copy", "s"]
        );
        for name in ["copy", "s"] {
            let shown = &merged[Path::new(name)];
            let metadata = fs::metadata(&shown.path).expect("metadata");
            assert_eq!(metadata.len(), 3 << 20);
            assert!(metadata.blocks() * 512 < 1 << 20, "{} blocks", metadata.blocks());
            assert_eq!(shown.text.get(1 << 20..(1 << 20) + 512), Some("d".repeat(512).as_str()));
            assert!(shown.text.ends_with("\0tail"));
        }
    }
}
