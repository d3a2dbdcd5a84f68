//! `list`, `inspect`, `remove`, `prune`, `df` and `export`.

use std::{
    fs::{self, File},
    time::{Duration, SystemTime},
};

use serde_json::json;
use tar::EntryType;

use super::fixtures::{Image, Images, Tar};
use crate::support::{kennel_path, stderr, stdout};

#[test]
fn an_image_is_listed_and_shown() {
    let Some(images) = Images::new() else { return };
    assert_eq!(images.ok(&["list"]), "NAME  DIGEST        LAYERS      SIZE    USED");
    assert_eq!(images.json(&["list"]), json!([]));
    let image = Image::of_two_layers();
    images.ok(&["import", &images.file("it", image.docker_archive(&["a:1", "other/b:2"]))]);
    let list = images.ok(&["list"]);
    let rows: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    let digest = image.digest().replace("sha256:", "");
    let hex = &digest[..12];
    assert_eq!(rows.len(), 3);
    assert_eq!((&rows[1][..3], &rows[2][..3]), (&["a:1", hex, "2"][..], &["other/b:2", hex, "2"][..]));
    let page = images.ok(&["inspect", "a:1"]);
    for words in [&image.digest()[..], "other/b:2", "linux/", "A=1", "[\"/bin/sh\"]", "[\"-c\",\"id\"]"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let shown = images.json(&["inspect", hex]);
    assert_eq!(shown["config"], serde_json::from_slice::<serde_json::Value>(&image.config).unwrap());
    assert_eq!((&shown["digest"], &shown["names"]), (&json!(image.digest()), &json!(["a:1", "other/b:2"])));
    let layers = shown["layers"].as_array().unwrap();
    let sizes: Vec<_> =
        layers.iter().map(|layer| usize::try_from(layer["size"].as_u64().unwrap()).unwrap()).collect();
    assert_eq!(sizes, image.layers.iter().map(Vec::len).collect::<Vec<_>>());
    for absent in ["b:3", "sha256:00000000"] {
        let said = images.refused(&["inspect", absent]);
        assert!(
            said.contains(absent) && said.contains("not in the store") && said.contains("hint"),
            "{said}"
        );
    }
}

#[test]
fn removing_goes_on_after_a_name_that_is_not_there() {
    let Some(images) = Images::new() else { return };
    let image = Image::of_two_layers();
    let file = images.file("it", image.docker_archive(&["a:1", "a:2"]));
    images.ok(&["import", &file]);
    let output = images.run(&["remove", "absent:1", "a:1", "Wrong"]);
    assert_eq!(
        (output.status.code(), stdout(&output)),
        (Some(125), "removed name a:1\nfreed 0 layers, 0".to_owned())
    );
    let said = stderr(&output);
    assert!(
        said.contains("image absent:1: it is not in the store") && said.contains("image `Wrong`"),
        "{said}"
    );
    assert_eq!(images.list(), [(image.digest(), "a:2".to_owned())]);
    let removed = images.json(&["remove", "a:2"]);
    assert_eq!((&removed["names"], &removed["layers"]), (&json!(["a:2"]), &json!(2)));
    assert_eq!(removed["images"], json!([image.digest()]));
    assert_eq!(fs::read_dir(images.store().join("layers")).unwrap().count(), 0);
    // By digest, with all its names.
    images.ok(&["import", &file]);
    images.ok(&["remove", &image.digest()]);
    assert_eq!(images.list(), []);
    let output = images.run(&["remove", "--json", "absent:1"]);
    let removed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &removed["failures"][0]["image"]), (Some(125), &json!("absent:1")));
}

/// Trees with mode 000, too.
#[test]
fn pruning_removes_what_has_no_name_or_is_old() {
    let Some(images) = Images::new() else { return };
    let image = |text: &str| {
        let tar = Tar::new()
            .entry("closed/", EntryType::Directory, 0, "")
            .entry("closed/etc", EntryType::Directory, 0o555, "")
            .entry("closed/etc/file", EntryType::Regular, 0, text);
        Image::new(vec![tar.bytes()])
    };
    let (named, unnamed, old) = (image("named"), image("unnamed"), image("old"));
    images.ok(&["import", &images.file("named", named.docker_archive(&["named:1"]))]);
    images.ok(&["import", &images.file("unnamed", unnamed.docker_archive(&[]))]);
    images.ok(&["import", &images.file("old", old.docker_archive(&["old:1"]))]);
    let used = SystemTime::now() - Duration::from_secs(40 * 86_400);
    let hex = old.digest().replace("sha256:", "");
    let record = images.store().join(format!("images/{hex}.json"));
    File::options().write(true).open(record).unwrap().set_modified(used).unwrap();
    let reclaimable = images.json(&["df"])["reclaimable"].as_u64().unwrap();
    assert_eq!(usize::try_from(reclaimable).unwrap(), unnamed.layers[0].len());

    let said = images.ok(&["prune"]);
    assert!(said.starts_with(&format!("removed image {}\nfreed 1 layer, ", unnamed.digest())), "{said}");
    assert_eq!(images.ok(&["prune", "--unused-for", "50d"]), "freed 0 layers, 0");
    let pruned = images.json(&["prune", "--unused-for", "30d"]);
    assert_eq!((&pruned["names"], &pruned["images"]), (&json!(["old:1"]), &json!([old.digest()])));
    assert_eq!(images.list(), [(named.digest(), "named:1".to_owned())]);
    assert_eq!(fs::read_dir(images.store().join("layers")).unwrap().count(), 2, "a directory and its record");
    let output = images.run(&["prune", "--unused-for", "soon"]);
    assert!(output.status.code() == Some(125) && stderr(&output).contains("30d"), "{output:?}");
}

#[test]
fn what_is_exported_is_the_same_image_elsewhere() {
    let (Some(here), Some(there)) = (Images::new(), Images::new()) else { return };
    let image = Image::of_two_layers();
    here.ok(&["import", &here.file("it", image.docker_archive(&["a:1", "b:1"]))]);
    let exported = here.json(&["export", "a:1", "a.tar"]);
    assert_eq!(exported["size"].as_u64().unwrap(), fs::metadata(here.at("a.tar")).unwrap().len());
    let path = here.at("a.tar");
    let said = there.ok(&["import", path.to_str().unwrap()]);
    assert_eq!(said, format!("{}  a:1", exported["digest"].as_str().unwrap()));
    assert_eq!(there.layers("a:1"), here.layers("a:1"));
    let config = |images: &Images| images.json(&["inspect", "a:1"])["config"]["config"].clone();
    assert_eq!(config(&there), config(&here));
    // By its digest it has all its names. Once more, it stays the same.
    let output = here.run(&["export", &image.digest(), "-"]);
    assert!(output.status.success() && stderr(&output).contains("sha256:"), "{output:?}");
    let again = there.fed(&["import", "-"], &output.stdout);
    assert_eq!(stdout(&again), format!("{}  a:1  b:1", exported["digest"].as_str().unwrap()));
    // Older programs read the list.
    let whole = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(whole.contains("manifest.json") && whole.contains("\"RepoTags\":[\"a:1\",\"b:1\"]"));
}

#[test]
fn an_export_that_fails_leaves_no_file() {
    let Some(images) = Images::new() else { return };
    images.ok(&["import", &images.file("it", Image::of_two_layers().docker_archive(&["a:1"]))]);
    images.file("there", "mine");
    let said = images.refused(&["export", "a:1", "there"]);
    assert!(said.contains("File exists") && said.contains("hint: remove the file"), "{said}");
    assert_eq!(fs::read_to_string(images.at("there")).unwrap(), "mine");
    images.refused(&["export", "absent:1", "new"]);
    images.refused(&["export", "a:1", "absent/new"]);
    let mut command = images.command(&["export", "a:1", "-"]);
    let output = command.stdout(File::options().write(true).open("/dev/full").unwrap()).output().unwrap();
    assert!(output.status.code() == Some(125) && stderr(&output).contains("No space left"), "{output:?}");
    assert!(!images.at("new").exists());
}

/// The file with the limits of images is a policy, too.
#[test]
fn the_table_of_images_hinders_no_policy() {
    let Some(images) = Images::new() else { return };
    fs::create_dir(images.at("work")).unwrap();
    let shown = |text: &str| {
        images.file("config/kennel/config.toml", text);
        let mut command = std::process::Command::new(kennel_path());
        command.args(["policy", "show", "--as-file"]).env("XDG_CONFIG_HOME", images.at("config"));
        let output = command.current_dir(images.at("work")).output().unwrap();
        (output.status.code(), stdout(&output) + &stderr(&output))
    };
    let plain = shown("profile = 'no-network'\n");
    assert_eq!(plain.0, Some(0), "{plain:?}");
    assert_eq!(shown("profile = 'no-network'\n[images]\nmax_size = '1G'\n"), plain);
    assert_eq!(shown("images.max_files = 3\nprofile = 'no-network'\n"), plain);
    assert_eq!(shown("[images]\nmax_files = 3\n").0, Some(0), "nothing else is in it");
    let (status, said) = shown("[images]\nmax_files = 3\n[limits]\nmemori = 1\n");
    assert!(status == Some(125) && said.contains("config.toml:4:1"), "{said}");
    // No policy but that of the user has it.
    images.file("work/kennel.toml", "images.max_files = 3\n");
    let mut command = std::process::Command::new(kennel_path());
    let output = command
        .args(["policy", "check", "--policy", "kennel.toml"])
        .current_dir(images.at("work"))
        .output()
        .unwrap();
    assert!(stderr(&output).contains("unknown field `images`"), "{output:?}");
}
