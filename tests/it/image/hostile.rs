//! What is no image, is cut, or lies is refused by its name, and nothing of it is left.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::PermissionsExt,
};

use serde_json::json;
use tar::EntryType;

use super::fixtures::{Image, Images, Tar, gzip};
use crate::support::{is_root, stderr, stdout};

/// Nothing was taken, and a good image still is.
fn is_unharmed(images: &Images) {
    assert_eq!(images.list(), []);
    assert_eq!(images.json(&["df"])["layers"], json!(0));
    assert!(!images.at("outside").exists());
    let image = Image::of_two_layers();
    let file = images.file("good", image.oci_archive(Some("good:1")));
    assert_eq!(images.ok(&["import", &file]), format!("{}  good:1", image.digest()));
}

#[test]
fn what_is_no_image_is_refused_with_a_hint() {
    let Some(images) = Images::new() else { return };
    fs::create_dir(images.at("empty-directory")).unwrap();
    images.file("layout/oci-layout", "{}");
    images.file("layout/blobs/sha256/x", "");
    images.file("old/repositories", "{}");
    images.file("skopeo/manifest.json", "{}");
    images.file("skopeo/version", "1");
    for (name, content, words) in [
        ("absent", None, "read absent: No such file"),
        ("/dev/null", None, "a device"),
        ("empty-directory", None, "an empty directory"),
        ("layout", None, "oci-layout names index.json, which is not there"),
        ("old", None, "before 1.10"),
        ("skopeo", None, "skopeo copy dir:"),
        ("empty", Some(&b""[..]), "an empty file"),
        ("zeros", Some(&[0; 10_240]), "an empty archive"),
        ("text", Some(b"hello"), "another format"),
        ("zip", Some(b"PK\x03\x04"), "a ZIP archive"),
        ("xz", Some(b"\xfd7zXZ\0"), "compressed with xz"),
        ("squashfs", Some(b"hsqs"), "unsquashfs"),
        ("gzip", Some(b"\x1f\x8b\x08"), "hint: "),
    ] {
        if let Some(content) = content {
            images.file(name, content);
        }
        let said = images.refused(&["import", name]);
        assert!(said.contains(words) && said.contains("\nkennel: hint: "), "{name}: {said}");
        if let Some(content) = content {
            let output = images.fed(&["import", "-"], content);
            assert_eq!((output.status.code(), stdout(&output)), (Some(125), String::new()), "{name}");
            assert!(stderr(&output).contains("stdin"), "{output:?}");
        }
    }
    is_unharmed(&images);
}

#[test]
fn an_archive_that_is_cut_anywhere_is_refused() {
    let Some(images) = Images::new() else { return };
    let image = Image::of_two_layers();
    let (oci, docker) = (image.oci_archive(Some("a:1")), image.docker_archive(&["a:1"]));
    let root = Tar::new().dir("etc/").file("etc/a", vec![b'a'; 3_000]).bytes();
    for whole in [&oci, &docker, &root] {
        // Behind the last member there are only zeros.
        let content = whole.len() - whole.iter().rev().take_while(|byte| **byte == 0).count();
        for part in 1..8 {
            let file = images.file("cut", &whole[..content * part / 8]);
            images.refused(&["import", &file]);
            let file = images.file("cut.gz", &gzip(whole)[..gzip(whole).len() * part / 8]);
            images.refused(&["import", &file]);
        }
    }
    is_unharmed(&images);
}

/// A byte of a layer, of the configuration, and of each description.
#[test]
fn what_was_changed_is_refused() {
    let Some(images) = Images::new() else { return };
    let image = Image::of_two_layers();
    let layout = image.layout(Some("a:1"));
    for at in 2..layout.len() {
        let mut changed = layout.clone();
        let content = &mut changed[at].1;
        let middle = content.len() / 2;
        content[middle] ^= 1;
        let tar = changed.iter().fold(Tar::new(), |tar, (name, content)| tar.file(name, content)).bytes();
        let said = images.refused(&["import", &images.file("changed", tar)]);
        assert!(said.contains("sha256:"), "{said}");
    }
    let mut other = Image::of_two_layers();
    other.layers.swap(0, 1);
    let said = images.refused(&["import", &images.file("swapped", other.docker_archive(&[]))]);
    assert!(said.contains("diff id"), "{said}");
    other.layers.pop();
    let said = images.refused(&["import", &images.file("fewer", other.docker_archive(&[]))]);
    assert!(said.contains("2 diff ids for 1 layers"), "{said}");
    is_unharmed(&images);
}

#[test]
fn descriptions_that_are_bombs_are_refused() {
    let Some(images) = Images::new() else { return };
    let deep = "[".repeat(1 << 20);
    let long = format!("[\"{}\"]", "x".repeat(5 << 20));
    for text in ["", "{", "[]", "null", "{\"manifests\":7}", &deep, &long, "\0"] {
        let layout = Tar::new().file("oci-layout", "{}").file("index.json", text).bytes();
        images.refused(&["import", &images.file("layout", layout)]);
        images.file("directory/oci-layout", "{}");
        images.file("directory/index.json", text);
        images.refused(&["import", "directory"]);
        let docker =
            Tar::new().file("c.json", text).file("manifest.json", "[{\"Config\":\"c.json\",\"Layers\":[]}]");
        images.refused(&["import", &images.file("docker", docker.bytes())]);
        // What is no list makes it a root file system of files with these names.
        if text.starts_with('[') && text.len() > 2 {
            let docker = Tar::new().file("manifest.json", text).bytes();
            images.refused(&["import", &images.file("list", docker)]);
        }
    }
    is_unharmed(&images);
}

#[test]
fn layers_that_lead_out_are_refused() {
    let Some(images) = Images::new() else { return };
    for tar in [
        Tar::new().file("../outside", "x"),
        Tar::new().file("etc/../../outside", "x"),
        Tar::new().entry("etc", EntryType::Symlink, 0o777, "..").file("etc/outside", "x"),
        Tar::new().file("etc/a", "x").entry("etc/b", EntryType::Link, 0o644, "../../outside"),
        Tar::new().dir("etc/").file("etc/.wh...", "x"),
    ] {
        let layer = tar.bytes();
        let said = images.refused(&["import", &images.file("root", &layer)]);
        assert!(said.contains("layer") && said.contains("entry"), "{said}");
        let image = Image::new(vec![layer]);
        images.refused(&["import", &images.file("image", image.oci_archive(None))]);
    }
    is_unharmed(&images);
}

#[test]
fn limits_of_the_configuration_hold() {
    let Some(images) = Images::new() else { return };
    let bomb = Tar::new().file("etc/zeros", vec![0; 4 << 20]).bytes();
    let many = (0..200).fold(Tar::new().dir("etc/"), |tar, at| tar.file(&format!("etc/{at}"), "")).bytes();
    images.file(
        "config/kennel/config.toml",
        "profile = 'read-only'\n[images]\nmax_size = '1M'\nmax_files = 100\n",
    );
    for (bytes, key) in
        [(&bomb, "images.max_size"), (&gzip(&bomb), "images.max_size"), (&many, "images.max_files")]
    {
        let said = images.refused(&["import", &images.file("bomb", bytes)]);
        assert!(said.contains(key), "{said}");
    }
    let layout = gzip(&Image::new(vec![bomb.clone()]).docker_archive(&[]));
    let said = images.refused(&["import", &images.file("bomb", layout)]);
    assert!(said.contains("raise images.max_size"), "{said}");
    // stdin is kept in the store until its end.
    let output = images.fed(&["import", "-"], &bomb);
    assert!(stderr(&output).contains("larger than 1048576 bytes") && images.left().is_empty(), "{output:?}");
    images.file("config/kennel/config.toml", "images.max_size = '8M'\n");
    images.ok(&["import", &images.file("bomb", &bomb), "--name", "large:1"]);
    images.file("config/kennel/config.toml", "images.max_sise = '8M'\n");
    let said = images.refused(&["import", &images.file("bomb", &bomb)]);
    assert!(said.contains("config.toml") && said.contains("unknown field `max_sise`"), "{said}");
}

/// The file claims 8 EiB, and is a hole of 1 GiB.
#[test]
fn sizes_that_are_only_claimed_cost_nothing() {
    let Some(images) = Images::new() else { return };
    let tar = Tar::new().file("blobs/x", "").bytes();
    let mut header = tar[..512].to_vec();
    header[124..136].copy_from_slice(b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff");
    header[148..156].copy_from_slice(b"        ");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let file = images.file("claims", header);
    File::options().write(true).open(&file).unwrap().set_len(1 << 30).unwrap();
    let said = images.refused(&["import", &file]);
    assert!(said.contains("cut short"), "{said}");
    is_unharmed(&images);
}

#[test]
fn what_cannot_be_read_is_named() {
    let Some(images) = Images::new() else { return };
    if is_root() {
        return;
    }
    let file = images.file("closed", "x");
    fs::set_permissions(&file, Permissions::from_mode(0o000)).unwrap();
    let said = images.refused(&["import", &file]);
    assert!(said.contains(&format!("read {file}: Permission denied")), "{said}");
}

#[test]
fn a_store_that_others_can_enter_is_not_used() {
    let Some(images) = Images::new() else { return };
    fs::create_dir(images.store()).unwrap();
    fs::set_permissions(images.store(), Permissions::from_mode(0o755)).unwrap();
    for words in [&["list"][..], &["df"], &["import", "x"], &["remove", "x"], &["prune"]] {
        let said = images.refused(words);
        assert!(said.contains("chmod 700"), "{words:?}: {said}");
    }
}
