//! What layers show after they were applied: a test for each sentence about entries.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tar::EntryType;

use super::*;
use crate::image::{Dropped, EntryRefusal};

fn shown(archives: &[Vec<u8>]) -> Vec<String> {
    lines(&TestStore::new().merged(archives).expect("applied"))
}

fn refused(archives: &[Vec<u8>]) -> EntryRefusal {
    let store = TestStore::new();
    match store.merged(archives).expect_err("refused") {
        ImageError::Entry { reason, .. } => {
            assert!(store.is_tidy());
            reason
        }
        other => panic!("{other}"),
    }
}

#[test]
fn files_directories_links_and_fifos_are_what_the_archive_says() {
    let archive = Tar::new()
        .dir("bin/", 0o755)
        .file_with("./bin/sh", 0o755, "#!")
        .link("bin/bash", "sh")
        .hard("bin/dash", "bin/sh")
        .dir("tmp", 0o1777)
        .kind(EntryType::Fifo, "tmp/pipe", 0o620)
        .file("empty", "")
        .end();
    let store = TestStore::new();
    let merged = store.merged(&[archive]).expect("applied");
    assert_eq!(
        lines(&merged),
        [
            "d 755 bin",
            "l bin/bash sh",
            "f 755 bin/dash #!",
            "f 755 bin/sh #!",
            "f 644 empty",
            "d 1777 tmp",
            "p 620 tmp/pipe"
        ]
    );
    assert_eq!(merged[Path::new("bin/sh")].inode, merged[Path::new("bin/dash")].inode);
    for (path, shown) in &merged {
        assert_eq!(shown.seconds, TIME.cast_signed(), "{path:?}");
        let uid = fs::symlink_metadata(&shown.path).expect("metadata").uid();
        assert_eq!(uid, nix::unistd::geteuid().as_raw());
    }
    assert!(store.is_tidy());
}

#[test]
fn what_the_user_cannot_enter_or_write_is_filled_before_its_mode_is_set() {
    let archive = Tar::new()
        .dir("closed", 0o000)
        .dir("closed/in", 0o555)
        .file_with("closed/in/file", 0o000, "x")
        .dir("./", 0o555)
        .dir("late", 0o755)
        .end();
    let store = TestStore::new();
    let layers = store.layers(&[archive]).expect("applied");
    let root = store.store.layer_path(&layers[0].id);
    let mode = |path: &Path| fs::symlink_metadata(path).expect("metadata").mode() & 0o7777;
    assert_eq!(mode(&root), 0o555);
    assert_eq!(mode(&root.join("closed")), 0);
    assert_eq!(fs::metadata(root.join("closed")).expect("metadata").mtime(), TIME.cast_signed());
    // And they can be removed.
    drop(layers);
    let pruned = store.writer.prune(None).expect("pruned");
    assert_eq!((pruned.layers, store.stored_layers(), store.is_tidy()), (1, 0, true));
}

#[test]
fn the_last_of_several_entries_of_a_name_counts() {
    let archive = Tar::new()
        .file("a", "one")
        .file("a", "two")
        .dirs(&["d"])
        .file("d/in", "")
        .file("d", "now a file")
        .file("e", "")
        .dir("e", 0o700)
        .dir("f", 0o755)
        .dir("f", 0o711)
        .link("g", "nowhere")
        .file("g", "no link")
        .end();
    assert_eq!(
        shown(&[archive]),
        ["f 644 a two", "f 644 d now a file", "d 700 e", "d 711 f", "f 644 g no link"]
    );
}

#[test]
fn a_layer_over_another_replaces_as_docker_does() {
    let lower =
        Tar::new().dirs(&["a", "b", "c"]).file("a/x", "").file("b/x", "").link("l", "a").file("f", "").end();
    let upper = Tar::new()
        .file("a", "file")
        .dir("b", 0o700)
        .link("c", "b")
        .dirs(&["l"])
        .file("l/y", "")
        .dirs(&["f"])
        .end();
    assert_eq!(
        shown(&[lower, upper]),
        ["f 644 a file", "d 700 b", "f 644 b/x", "l c b", "d 755 f", "d 755 l", "f 644 l/y"]
    );
}

// Whiteouts.

#[test]
fn a_whiteout_hides_files_directories_and_links_of_any_type() {
    let lower = || Tar::new().dirs(&["d", "d/in"]).file("d/in/x", "").file("f", "").link("l", "d").end();
    for kind in [
        EntryType::Regular,
        EntryType::Directory,
        EntryType::Symlink,
        EntryType::Link,
        EntryType::Char,
        EntryType::Fifo,
    ] {
        let upper = Tar::new()
            .kind(kind, ".wh.d", 0)
            .kind(kind, ".wh.f", 0)
            .kind(kind, ".wh.l", 0)
            .kind(kind, ".wh.nothing", 0)
            .end();
        assert_eq!(shown(&[lower(), upper]), Vec::<String>::new(), "{kind:?}");
    }
}

#[test]
fn a_whiteout_never_hides_a_file_of_its_own_layer_wherever_it_stands() {
    let lower = || Tar::new().dirs(&["d"]).file("d/old", "").file("f", "old").end();
    let expected = ["d 755 d", "f 644 d/new", "f 644 f new"];
    let before =
        Tar::new().file(".wh.d", "").file(".wh.f", "").dirs(&["d"]).file("d/new", "").file("f", "new").end();
    let after =
        Tar::new().dirs(&["d"]).file("d/new", "").file("f", "new").file(".wh.f", "").file(".wh.d", "").end();
    assert_eq!(shown(&[lower(), before]), expected);
    assert_eq!(shown(&[lower(), after]), expected);
}

#[test]
fn an_opaque_directory_hides_all_that_is_below_wherever_the_mark_stands() {
    let lower = || Tar::new().dirs(&["d", "d/s"]).file("d/old", "").file("d/s/old", "").end();
    let expected = ["d 755 d", "f 644 d/new", "d 755 d/s"];
    let before = Tar::new().dirs(&["d"]).file("d/.wh..wh..opq", "").file("d/new", "").dirs(&["d/s"]).end();
    let after = Tar::new().dirs(&["d", "d/s"]).file("d/new", "").file("d/.wh..wh..opq", "").end();
    assert_eq!(shown(&[lower(), before]), expected);
    assert_eq!(shown(&[lower(), after]), expected);
    let root = Tar::new().file(".wh..wh..opq", "").file("only", "").end();
    assert_eq!(shown(&[lower(), root]), ["f 644 only"]);
}

#[test]
fn an_opaque_mark_behind_a_link_does_not_reach_what_the_link_leads_to() {
    let lower = Tar::new().dirs(&["target"]).file("target/kept", "").link("link", "target").end();
    let upper = Tar::new().file("link/.wh..wh..opq", "").end();
    assert_eq!(shown(&[lower, upper]), ["l link target", "d 755 target", "f 644 target/kept"]);
}

#[test]
fn a_file_that_replaced_a_lower_directory_and_is_a_directory_again_hides_the_lower_one() {
    let lower = Tar::new().dirs(&["d"]).file("d/old", "").end();
    let upper = Tar::new().file("d", "").dirs(&["d"]).file("d/new", "").end();
    assert_eq!(shown(&[lower, upper]), ["d 755 d", "f 644 d/new"]);
}

#[test]
fn marks_of_aufs_are_dropped_and_whiteouts_of_no_name_refused() {
    let archive = Tar::new()
        .dirs(&[".wh..wh.plnk"])
        .file(".wh..wh.plnk/12.34", "")
        .file(".wh..wh.aufs", "")
        .file("kept", "")
        .end();
    assert_eq!(shown(&[archive]), ["f 644 kept"]);
    for name in [".wh.", ".wh..", ".wh...", "d/.wh.", ".wh.x/y"] {
        assert_eq!(
            refused(&[Tar::new().dirs(&["d"]).file(name, "").end()]),
            EntryRefusal::Whiteout,
            "{name}"
        );
    }
}

// Implied parents.

#[test]
fn implied_parents_have_mode_and_time_of_the_layer_below() {
    let lower = Tar::new().dir("tmp", 0o1777).dirs(&["usr"]).dir("usr/closed", 0o710).end();
    let upper = Tar::new()
        .pax(&[("mtime", b"7")])
        .file("tmp/x", "")
        .file("usr/closed/y", "")
        .file("new/in/z", "")
        .end();
    let merged = TestStore::new().merged(&[lower, upper]).expect("applied");
    assert_eq!(
        lines(&merged),
        [
            "d 755 new",
            "d 755 new/in",
            "f 644 new/in/z",
            "d 1777 tmp",
            "f 644 tmp/x",
            "d 755 usr",
            "d 710 usr/closed",
            "f 644 usr/closed/y"
        ]
    );
    assert_eq!(merged[Path::new("tmp")].seconds, TIME.cast_signed());
    assert_eq!(merged[Path::new("tmp/x")].seconds, 7);
}

#[test]
fn a_link_among_implied_parents_is_followed_as_in_the_merged_tree() {
    let lower = || Tar::new().dirs(&["usr", "usr/lib"]).link("lib", "usr/lib").link("lib64", "/lib").end();
    let upper = Tar::new().file("lib/x", "x").file("lib64/deep/y", "y").file("lib/.wh.gone", "").end();
    let old = Tar::new().dirs(&["usr", "usr/lib"]).file("usr/lib/gone", "").end();
    assert_eq!(
        shown(&[lower(), old, upper]),
        [
            "l lib usr/lib",
            "l lib64 /lib",
            "d 755 usr",
            "d 755 usr/lib",
            "d 755 usr/lib/deep",
            "f 644 usr/lib/deep/y y",
            "f 644 usr/lib/x x"
        ]
    );
    // A link of the layer itself, too.
    let own = Tar::new().dirs(&["usr", "usr/lib"]).link("lib", "../../usr/./lib/..//lib").end();
    assert_eq!(refused(&[own, Tar::new().file("lib/x", "").end()]), EntryRefusal::LinkOut);
    let own = Tar::new().dirs(&["usr", "usr/lib"]).link("usr/l", "../usr/./lib").file("usr/l/x", "").end();
    assert_eq!(shown(&[own]), ["d 755 usr", "l usr/l ../usr/./lib", "d 755 usr/lib", "f 644 usr/lib/x"]);
}

#[test]
fn a_parent_that_a_whiteout_hid_is_new() {
    let lower = Tar::new().dir("d", 0o700).file("d/old", "").end();
    let upper = Tar::new().file(".wh.d", "").file("d/new", "").end();
    assert_eq!(shown(&[lower, upper]), ["d 755 d", "f 644 d/new"]);
}

#[test]
fn what_a_lower_layer_hid_is_no_parent() {
    let first = Tar::new().dir("d", 0o700).dir("d/in", 0o700).end();
    let second = Tar::new().dir("d", 0o711).file("d/.wh..wh..opq", "").end();
    let third = Tar::new().file("d/in/x", "").end();
    assert_eq!(shown(&[first, second, third]), ["d 711 d", "d 755 d/in", "f 644 d/in/x"]);
}

#[test]
fn layers_that_name_their_parents_are_shared_and_others_belong_to_those_below() {
    let store = TestStore::new();
    let base = [Tar::new().dirs(&["a"]).end(), Tar::new().dir("a", 0o700).end()];
    let named = Tar::new().dirs(&["a"]).file("a/x", "").file("a/.wh.y", "").end();
    let implied = Tar::new().file("a/x", "").end();
    let over = |base: &Vec<u8>, upper: &Vec<u8>| {
        store.layers(&[base.clone(), upper.clone()]).expect("applied").remove(1)
    };
    let [one, other] = [over(&base[0], &named), over(&base[1], &named)];
    assert!(one.is_shared() && other.is_shared() && one.id == other.id && other.was_there());
    let [one, other] = [over(&base[0], &implied), over(&base[1], &implied)];
    assert!(!one.is_shared() && !other.is_shared() && one.id != other.id && !other.was_there());
    assert!(over(&base[1], &implied).was_there());
    // Alone, it is another layer again.
    let alone = store.layers(&[implied]).expect("applied").remove(0);
    assert!(!alone.is_shared() && !alone.was_there());
}

// Hard links.

#[test]
fn a_hard_link_into_a_lower_layer_is_a_copy_with_mode_time_attributes_and_holes() {
    let sparse = Tar::new().pax(&[("SCHILY.xattr.user.kept", b"v")]).file_with("usr/f", 0o751, "text");
    let lower = Tar::new().dirs(&["usr"]).link("usr/l", "f").kind(EntryType::Fifo, "usr/p", 0o600).end();
    let lower = [lower, Tar::new().dirs(&["usr"]).end(), sparse.end()];
    let upper = Tar::new()
        .dirs(&["bin"])
        .pax(&[("mtime", b"9")])
        .hard("bin/f", "usr/f")
        .hard("bin/g", "/usr/f")
        .hard("bin/l", "usr/l")
        .hard("bin/p", "./usr/p")
        .end();
    let store = TestStore::new();
    let merged = store.merged(&[&lower[..], &[upper]].concat()).expect("applied");
    let [f, g, own] = ["bin/f", "bin/g", "usr/f"].map(|path| merged[Path::new(path)].clone());
    assert_eq!((f.mode, f.seconds, f.text.as_str()), (0o751, TIME.cast_signed(), "text"));
    assert!(f.inode == g.inode && f.inode == own.inode, "one file with three names, as in docker");
    assert_eq!(xattr::get(&f.path, "user.kept").expect("an attribute").as_deref(), Some(&b"v"[..]));
    assert_eq!(merged[Path::new("bin/l")].text, "f");
    assert_eq!(merged[Path::new("bin/p")].kind, 'p');
    assert_eq!(merged[Path::new("usr")].mode, 0o755);
}

#[test]
fn hard_links_to_nothing_directories_and_outside_are_refused() {
    let lower = || Tar::new().dirs(&["d"]).file("f", "").end();
    for (target, reason) in [
        ("missing", EntryRefusal::HardLinkLost),
        ("no/such", EntryRefusal::HardLinkLost),
        ("d", EntryRefusal::HardLinkDirectory),
        ("/", EntryRefusal::HardLinkOut),
        ("./", EntryRefusal::HardLinkDirectory),
        ("", EntryRefusal::HardLinkOut),
        ("../f", EntryRefusal::HardLinkOut),
        ("d/../f", EntryRefusal::HardLinkOut),
        ("gone", EntryRefusal::HardLinkLost),
    ] {
        let upper = Tar::new().file(".wh.gone", "").hard("h", target).end();
        let gone = Tar::new().file("gone", "").end();
        assert_eq!(refused(&[lower(), gone, upper]), reason, "{target}");
    }
    let within = Tar::new().dirs(&["d"]).file("d/f", "").hard("d", "d/f").end();
    assert_eq!(refused(&[within]), EntryRefusal::HardLinkLost);
    let itself = Tar::new().file("f", "x").hard("f", "f").end();
    assert_eq!(shown(&[itself]), ["f 644 f x"]);
}

#[test]
fn a_lower_file_that_its_owner_cannot_read_gets_no_hard_link() {
    let lower = Tar::new().file_with("f", 0o000, "secret").end();
    let upper = Tar::new().hard("g", "f").end();
    if is_root() {
        assert_eq!(shown(&[lower, upper]), ["f 0 f secret", "f 0 g secret"]);
    } else {
        assert_eq!(refused(&[lower, upper]), EntryRefusal::HardLinkUnreadable);
    }
}

// What is kept, and what is dropped.

#[test]
fn set_id_bits_capabilities_devices_and_marks_of_overlayfs_are_dropped_with_a_note() {
    let lower = Tar::new().dirs(&["dev"]).file("dev/null", "old").end();
    let upper = Tar::new()
        .file_with("su", 0o4755, "")
        .file_with("wall", 0o2755, "")
        .dir("mail", 0o2775)
        .pax(&[("SCHILY.xattr.security.capability", b"\x01\0\0\x02\0\x04\n\0\0\0\0\0")])
        .file("ping", "")
        .dirs(&["dev"])
        .kind(EntryType::Char, "dev/null", 0o666)
        .kind(EntryType::Block, "dev/sda", 0o660)
        .pax(&[
            ("SCHILY.xattr.user.overlay.redirect", b"/etc"),
            ("SCHILY.xattr.user.overlay.opaque", b"y"),
            ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
            ("SCHILY.xattr.system.posix_acl_access", b"x"),
            ("SCHILY.xattr.user.kept", b"a\nb\0c"),
        ])
        .dirs(&["marked"])
        .end();
    let store = TestStore::new();
    let layers = store.layers(&[lower, upper]).expect("applied");
    let count =
        |dropped| layers[1].notes().iter().find(|note| note.dropped == dropped).map(|note| note.count);
    assert_eq!(count(Dropped::SetIdBits), Some(3));
    assert_eq!(count(Dropped::FileCapabilities), Some(1));
    assert_eq!(count(Dropped::Devices), Some(2));
    assert_eq!(count(Dropped::OverlayAttributes), Some(2));
    assert_eq!(count(Dropped::Attributes), Some(2));
    let root = store.store.layer_path(&layers[1].id);
    let names: Vec<_> = xattr::list(root.join("marked"))
        .expect("attributes")
        .filter(|name| name.to_string_lossy().starts_with("user."))
        .collect();
    assert_eq!(names, ["user.kept"]);
    assert_eq!(xattr::get(root.join("marked"), "user.kept").expect("kept").as_deref(), Some(&b"a\nb\0c"[..]));
    let merged = merged(&layers.iter().map(|layer| store.store.layer_path(&layer.id)).collect::<Vec<_>>());
    assert_eq!(
        lines(&merged),
        ["d 755 dev", "d 775 mail", "d 755 marked", "f 644 ping", "f 755 su", "f 755 wall"],
        "a device hides what is below it"
    );
    let record: Vec<_> = store.layers(&[]).expect("none");
    assert!(record.is_empty());
}

#[test]
fn attributes_of_a_directory_are_those_of_its_last_entry() {
    let lower = Tar::new().pax(&[("SCHILY.xattr.user.low", b"1")]).dirs(&["d"]).end();
    let implied = Tar::new().file("d/x", "").end();
    let named = Tar::new().file("d/x", "").pax(&[("SCHILY.xattr.user.own", b"2")]).dirs(&["d"]).end();
    for (upper, expected) in [(implied, ["user.low"]), (named, ["user.own"])] {
        let merged = TestStore::new();
        let merged =
            merged.merged(&[lower.clone(), upper]).map(|it| it[Path::new("d")].path.clone()).map(|path| {
                xattr::list(path)
                    .expect("attributes")
                    .filter(|name| name.to_string_lossy().starts_with("user."))
                    .collect::<Vec<_>>()
            });
        assert_eq!(merged.expect("applied"), expected);
    }
}

#[test]
fn names_and_times_of_pax_and_gnu_are_kept() {
    let long = format!("{}/{}", "d".repeat(200), "n".repeat(255));
    let mut tar = Tar::new();
    tar = tar
        .dirs(&[])
        .pax(&[("path", "d\n=é".as_bytes()), ("mtime", b"-1.5"), ("comment", b"x")])
        .file("short", "");
    let mut header = Tar::header(EntryType::GNULongName, b"././@LongLink", 0o644);
    header.set_size(long.len() as u64 + 1);
    let archive = tar.raw(&mut header, format!("{long}\0").as_bytes()).file("short", "long").end();
    let store = TestStore::new();
    let merged = store.merged(&[archive]).expect("applied");
    assert_eq!(merged[Path::new(&long)].text, "long");
    let metadata = fs::metadata(&merged[Path::new("d\n=é")].path).expect("metadata");
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (-2, 500_000_000));
}

#[test]
fn two_hundred_levels_are_applied_and_removed() {
    let path: String = (0..200).map(|level| format!("{level:03}/")).collect();
    let deep = format!("{path}file");
    let archive = Tar::new().pax(&[("path", deep.as_bytes())]).file("x", "deep").end();
    let deepest = vec!["d"; 1_900].join("/");
    let deeper = Tar::new().pax(&[("path", deepest.as_bytes())]).dir("x", 0o000).end();
    let store = TestStore::new();
    let layers = store.layers(&[archive, deeper]).expect("applied");
    assert_eq!(
        fs::read_to_string(store.store.layer_path(&layers[0].id).join(deep)).expect("readable"),
        "deep"
    );
    drop(layers);
    assert_eq!(store.writer.prune(None).expect("pruned").layers, 2);
    assert!(store.is_tidy());
}
