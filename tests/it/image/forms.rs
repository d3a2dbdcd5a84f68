//! Each form of an image becomes the same image, and a root file system an image of one layer.

use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
    process::Command,
};

use serde_json::json;
use tar::EntryType;

use super::fixtures::{Image, Images, Tar, gzip, tree};
use crate::support::{has, stderr, stdout};

#[test]
fn every_form_gives_the_same_image() {
    let image = Image::of_two_layers();
    let oci = image.oci_archive(Some("example.com/me/app:1"));
    let docker = image.docker_archive(&["example.com/me/app:1"]);
    let Some(reference) = Images::new() else { return };
    let mut layers = None;
    for (form, bytes) in [
        ("oci", oci.clone()),
        ("oci.gz", gzip(&oci)),
        ("docker", docker.clone()),
        ("docker.gz", gzip(&docker)),
    ] {
        let Some(images) = Images::new() else { return };
        let file = images.file("it", &bytes);
        let expected = format!("{}  example.com/me/app:1", image.digest());
        assert_eq!(images.ok(&["import", &file]), expected, "{form}");
        // As a stream of a pipe, and again.
        let output = images.fed(&["import", "-"], &bytes);
        assert_eq!((stdout(&output), stderr(&output)), (expected, String::new()), "{form}");
        assert_eq!(images.list(), [(image.digest(), "example.com/me/app:1".to_owned())], "{form}");
        let found = images.layers("example.com/me/app:1");
        assert_eq!(layers.get_or_insert_with(|| found.clone()), &found, "{form}");
    }
    let found = layers.unwrap();
    assert_eq!(found[0]["bin/run"], "100755 program");
    assert_eq!(found[0]["etc/link"], "120777 gone");
    assert_eq!((&*found[1]["etc/gone"], &*found[1]["etc/new"]), ("20000 device 0", "100644 new"));
    assert_eq!((&*found[1]["var"], &*found[1]["var/pipe"]), ("40755 opaque", "10600 device 0"));
    // A layout in a directory.
    for (name, content) in image.layout(Some("app:2")) {
        reference.file(&format!("layout/{name}"), content);
    }
    assert_eq!(reference.ok(&["import", "layout"]), format!("{}  app:2", image.digest()));
    assert_eq!(reference.layers("app:2"), found);
}

#[test]
fn a_layer_that_comes_twice_is_stored_once() {
    let Some(images) = Images::new() else { return };
    let layer = Tar::new().dir("etc/").file("etc/a", "a").bytes();
    let image = Image::new(vec![layer.clone(), layer]);
    let file = images.file("it", image.docker_archive(&["a:1", "b:2"]));
    assert_eq!(images.ok(&["import", &file]), format!("{}  a:1  b:2", image.digest()));
    let usage = images.json(&["df"]);
    assert_eq!((&usage["images"], &usage["names"], &usage["layers"]), (&json!(1), &json!(2), &json!(1)));
    assert_eq!(usage["shared"], usage["size"]);
}

#[test]
fn files_become_an_image_of_one_layer() {
    let Some(images) = Images::new() else { return };
    let root = images.at("root");
    for directory in ["bin", "etc", "tmp"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    fs::write(root.join("bin/run"), "program").unwrap();
    fs::set_permissions(root.join("bin/run"), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(root.join("tmp"), Permissions::from_mode(0o1777)).unwrap();
    fs::hard_link(root.join("bin/run"), root.join("bin/again")).unwrap();
    symlink("run", root.join("bin/link")).unwrap();
    fs::write(root.join("etc/secret"), "secret").unwrap();
    fs::set_permissions(root.join("etc/secret"), Permissions::from_mode(0o000)).unwrap();
    let before = tree(&root);

    let digest = images.ok(&["import", "root", "--name", "mine:1"]);
    assert!(digest.starts_with("sha256:") && digest.ends_with("  mine:1"), "{digest}");
    assert_eq!(images.ok(&["import", "root", "--name", "mine:1"]), digest, "the same files, the same image");
    let [layer] = &images.layers("mine:1")[..] else { panic!("one layer") };
    assert_eq!(layer, &before);
    assert_eq!(tree(&root), before, "what was imported stays as it is");

    // The same as an archive.
    let tar = Tar::new()
        .dir("./")
        .dir("./bin/")
        .entry("./bin/run", EntryType::Regular, 0o755, "program")
        .entry("./bin/again", EntryType::Link, 0o755, "./bin/run")
        .entry("./bin/link", EntryType::Symlink, 0o777, "run")
        .dir("./etc/")
        .entry("./etc/secret", EntryType::Regular, 0, "secret")
        .entry("./tmp/", EntryType::Directory, 0o1777, "")
        .bytes();
    for bytes in [tar.clone(), gzip(&tar)] {
        let file = images.file("root.tar", bytes);
        let output = images.run(&["import", &file]);
        let digest = stdout(&output);
        assert!(stderr(&output).contains("known by its digest; --name gives it one"), "{output:?}");
        let [layer] = &images.layers(&digest)[..] else { panic!("one layer") };
        assert_eq!(layer, &before);
    }
    let config = images.json(&["inspect", "mine:1"])["config"].clone();
    assert_eq!((&config["os"], &config["config"]), (&json!("linux"), &json!({})));
}

#[test]
fn names_are_those_of_the_archive_or_the_one_that_is_given() {
    let Some(images) = Images::new() else { return };
    let image = Image::of_two_layers();
    let file = images.file("it", image.docker_archive(&["a:1", "a:latest"]));
    assert_eq!(
        images.ok(&["import", &file, "--name", "localhost:5000/x/y:3"]),
        format!("{}  localhost:5000/x/y:3", image.digest())
    );
    assert_eq!(images.ok(&["import", &file]), format!("{}  a:1  a:latest", image.digest()));
    assert_eq!(images.list()[0].1, "a:1 a:latest localhost:5000/x/y:3");
    for name in ["A:1", "a:b:c", "", "sha256:0123456789", &format!("a@{}", image.digest()), "a b", "../a"] {
        let said = images.refused(&["import", &file, "--name", name]);
        assert!(said.contains("kennel: hint: ") || said.contains("write NAME:TAG"), "{name:?}: {said}");
    }
    // A name goes to the image that gets it last.
    let other = Image::new(vec![Tar::new().file("etc/x", "x").bytes()]);
    let file = images.file("other", other.docker_archive(&["a:1"]));
    images.ok(&["import", &file]);
    let mut expected = vec![
        (other.digest(), "a:1".to_owned()),
        (image.digest(), "a:latest localhost:5000/x/y:3".to_owned()),
    ];
    expected.sort();
    assert_eq!(images.list(), expected);
}

#[test]
fn several_images_of_one_archive_are_all_imported() {
    let Some(images) = Images::new() else { return };
    let one = Image::new(vec![Tar::new().file("etc/one", "1").bytes()]);
    let two = Image::new(vec![Tar::new().file("etc/two", "2").bytes()]);
    let mut tar = Tar::new();
    let mut list = Vec::new();
    for (name, image) in [("one", &one), ("two", &two)] {
        tar = tar.file(&format!("{name}.json"), &image.config).file(&format!("{name}.tar"), &image.layers[0]);
        list.push(json!({ "Config": format!("{name}.json"), "RepoTags": [format!("{name}:1")], "Layers": [format!("{name}.tar")] }));
    }
    let file = images.file("it", tar.file("manifest.json", json!(list).to_string()).bytes());
    assert_eq!(images.ok(&["import", &file]), format!("{}  one:1\n{}  two:1", one.digest(), two.digest()));
    let said = images.refused(&["import", &file, "--name", "x:1"]);
    assert!(said.contains("there are 2 images, which cannot all have the name x:1"), "{said}");
}

#[test]
fn what_a_layer_cannot_hold_is_left_out_with_a_word() {
    let Some(images) = Images::new() else { return };
    let tar = Tar::new()
        .dir("bin/")
        .entry("bin/sudo", EntryType::Regular, 0o4755, "program")
        .entry("bin/other", EntryType::Regular, 0o2755, "program")
        .dir("dev/")
        .entry("dev/null", EntryType::Char, 0o666, "");
    let file = images.file("it", tar.bytes());
    let output = images.run(&["import", &file, "--name", "a:1"]);
    let said = stderr(&output);
    assert!(said.contains("left out: set-user-id and set-group-id bits (2 entries)"), "{said}");
    assert!(said.contains("left out: device nodes (1 entry)"), "{said}");
    let layer = images.layers("a:1").remove(0);
    assert_eq!(layer["bin/sudo"], "100755 program");
    let imported = images.json(&["import", &file, "--name", "a:1"]);
    let left_out = json!([{ "dropped": "set_id_bits", "count": 2 }, { "dropped": "devices", "count": 1 }]);
    assert_eq!(imported[0]["left_out"], left_out);
}

/// Programs that people use instead of these fixtures, where they are installed.
#[test]
fn archives_of_skopeo_are_read_and_skopeo_reads_ours() {
    let Some(images) = Images::new() else { return };
    if !has("skopeo") {
        return;
    }
    let image = Image::of_two_layers();
    let file = images.file("ours", image.oci_archive(Some("app:1")));
    images.ok(&["import", &file]);
    images.ok(&["export", "app:1", "exported.tar"]);
    for (to, name) in [
        ("docker-archive:docker.tar:app:2", "app:2"),
        ("oci-archive:oci.tar:app:3", "app:3"),
        ("oci:oci:app:4", "app:4"),
    ] {
        let mut skopeo = Command::new("skopeo");
        let tmp = images.at("tmp");
        fs::create_dir_all(&tmp).unwrap();
        skopeo.args([
            "--tmpdir",
            tmp.to_str().unwrap(),
            "--insecure-policy",
            "copy",
            "oci-archive:exported.tar",
            to,
        ]);
        let output = skopeo.current_dir(images.at("")).env("HOME", images.at("")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let file = to.split(':').nth(1).unwrap();
        assert!(images.ok(&["import", file]).ends_with(&format!("  {name}")), "{to}");
        assert_eq!(images.layers(name), images.layers("app:1"), "{to}");
    }
}

/// `kennel image import - < FILE` reads the file where it is.
#[test]
fn stdin_may_be_a_file() {
    let Some(images) = Images::new() else { return };
    let image = Image::of_two_layers();
    let file = images.file("it", image.oci_archive(Some("a:1")));
    let mut command = images.command(&["import", "-"]);
    let output = command.stdin(File::open(&file).unwrap()).output().unwrap();
    assert_eq!(stdout(&output), format!("{}  a:1", image.digest()));
}
