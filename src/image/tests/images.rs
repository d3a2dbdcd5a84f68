//! Images of the store: found, named, listed, removed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;
use std::time::Duration;

use super::*;

fn reference(text: &str) -> Reference {
    text.parse().expect("a reference")
}

fn layer(name: &str) -> Vec<u8> {
    Tar::new().file(name, name).end()
}

#[test]
fn an_image_is_found_by_name_and_digest_with_its_layers_lowest_first() {
    let store = TestStore::new();
    let image = store.image(&[layer("low"), layer("high")], &["app:1", "ghcr.io/o/app"]);
    let find = |text: &str| store.store.find(&reference(text)).expect("readable");
    for text in [
        "app:1",
        "docker.io/library/app:1",
        "ghcr.io/o/app:latest",
        &image.digest.to_string(),
        &image.digest.hex()[..4],
        &image.digest.to_string()[..12],
    ] {
        assert_eq!(find(text).expect(text).digest, image.digest);
    }
    for text in ["app", "app:2", "o/app", "sha256:0000", &format!("app@{}", image.digest)] {
        assert!(find(text).is_none(), "{text}");
    }
    assert!(image.layers[0].join("low").exists() && image.layers[1].join("high").exists());
    assert_eq!(image.config.env, ["PATH=/bin"]);
    assert_eq!(Digest::of(image.config_json().as_bytes()), image.digest);
    // A name by the digest of a manifest.
    let manifest = Digest::of(b"a manifest");
    store.writer.add_name(&image.digest, &reference("app").with_digest(manifest)).expect("named");
    assert_eq!(find(&format!("app:other@{manifest}")).expect("found").digest, image.digest);
    let list = store.store.images().expect("readable");
    assert_eq!((list.len(), list[0].digest, list[0].names.len(), list[0].layers), (1, image.digest, 3, 2));
    assert_eq!(list[0].created.as_deref(), Some("2026-01-02T03:04:05Z"));
}

#[test]
fn a_name_moves_to_the_image_that_got_it_last() {
    let store = TestStore::new();
    let old = store.image(&[layer("old")], &["app"]).digest;
    let new = store.image(&[layer("new")], &["app"]).digest;
    assert_eq!(store.store.find(&reference("app")).expect("readable").expect("found").digest, new);
    assert!(
        store.store.images().expect("list").iter().any(|image| image.digest == old && image.names.is_empty())
    );
    // The same image again is the same image.
    assert_eq!(store.image(&[layer("old")], &["app"]).digest, old);
    assert_eq!(store.store.images().expect("list").len(), 2);
    let other = Digest::of(b"");
    store.writer.add_name(&other, &reference("app")).expect_err("no such image");
    store.writer.add_name(&old, &reference("sha256:abcd")).expect_err("no name");
}

#[test]
fn a_beginning_that_several_images_share_is_ambiguous() {
    let store = TestStore::new();
    let records = store.store.path().join("images");
    let digests = ["a".repeat(64), format!("{}b", "a".repeat(63))];
    for digest in &digests {
        fs::write(records.join(format!("{digest}.json")), "{}").expect("written");
    }
    match store.store.find(&reference("aaaa")) {
        Err(ImageError::Ambiguous { candidates, .. }) => assert_eq!(candidates.len(), 2),
        answer => panic!("{answer:?}"),
    }
    // And one whose record is damaged says so, and can be removed.
    match store.store.find(&reference(&digests[1])) {
        Err(error @ ImageError::Damaged { .. }) => assert!(error.remedy().is_some()),
        answer => panic!("{answer:?}"),
    }
    // It hinders nobody else, and nothing is removed that it might have.
    let layers = store.layers(&[layer("a")]).expect("stored");
    drop(layers);
    assert!(store.store.images().expect("list").is_empty());
    store.store.writer().expect("another writer");
    assert_eq!(store.stored_layers(), 1);
    fs::remove_file(records.join(format!("{}.json", digests[0]))).expect("removed");
    store.writer.remove(&reference("aaaa")).expect("removed");
    assert_eq!(store.stored_layers(), 0);
    fs::write(records.join(format!("{}.json", digests[0])), "").expect("written");
    assert_eq!(store.writer.prune(None).expect("pruned").images.len(), 1);
}

#[test]
fn a_configuration_of_other_layers_is_refused() {
    let store = TestStore::new();
    let layers = store.layers(&[layer("a"), layer("b")]).expect("stored");
    let config = config(&layers);
    let add = |config: &str, layers: &[StoredLayer]| store.writer.add_image(config.as_bytes(), layers, &[]);
    for other in [&layers[..1], &[layers[1].clone(), layers[0].clone()], &[]] {
        match add(&config, other) {
            Err(ImageError::Document { .. }) => {}
            answer => panic!("{answer:?}"),
        }
    }
    add("{}", &[]).expect_err("no configuration");
    assert!(store.store.images().expect("list").is_empty());
    add(&config, &layers).expect("an image");
}

#[test]
fn what_somebody_uses_is_not_removed() {
    let store = TestStore::new();
    let image = store.image(&[layer("shared"), layer("own")], &["app"]);
    let clone = image.clone();
    drop(image);
    let in_use = |answer| assert!(matches!(answer, Err(ImageError::InUse { .. })), "{answer:?}");
    in_use(store.writer.remove(&reference("app")));
    in_use(store.writer.remove(&reference(&clone.digest.to_string())));
    assert!(store.store.find(&reference("app")).expect("readable").is_some(), "the name is still there");
    assert_eq!(store.writer.prune(Some(Duration::ZERO)).expect("pruned"), Default::default());
    store.store.writer().expect("another writer");
    assert!(clone.layers.iter().all(|layer| layer.is_dir()));
    let digest = clone.digest;
    drop(clone);
    let pruned = store.writer.remove(&reference("app")).expect("removed");
    assert_eq!((pruned.names, pruned.images, pruned.layers), (vec![reference("app")], vec![digest], 2));
    assert_eq!((store.stored_layers(), store.is_tidy()), (0, true));
    assert!(matches!(store.writer.remove(&reference("app")), Err(ImageError::NotFound { .. })));
}

#[test]
fn layers_that_another_image_or_an_import_has_stay() {
    let store = TestStore::new();
    let one = store.image(&[layer("shared"), layer("one")], &["one"]).digest;
    store.image(&[layer("shared"), layer("two")], &["two", "also:two"]);
    assert_eq!(store.stored_layers(), 3);
    assert_eq!(store.writer.remove(&reference("one")).expect("removed").layers, 1);
    assert_eq!(store.writer.remove(&reference("two")).expect("a name").images, []);
    assert_eq!(store.stored_layers(), 2);
    let importing = store.layers(&[layer("importing")]).expect("stored");
    assert_eq!(store.writer.remove(&reference("also:two")).expect("removed").layers, 2);
    assert_eq!(store.stored_layers(), 1);
    store.store.writer().expect("another writer");
    assert_eq!(store.stored_layers(), 1, "an import holds it");
    drop(importing);
    store.store.writer().expect("another writer");
    assert_eq!(store.stored_layers(), 0);
    assert!(store.store.find(&Reference::of_image(one)).expect("readable").is_none());
}

#[test]
fn pruning_takes_what_has_no_name_and_what_was_not_used() {
    let store = TestStore::new();
    store.image(&[layer("unnamed")], &[]);
    let used = store.image(&[layer("used")], &["used"]).digest;
    let unused = store.image(&[layer("unused")], &["unused"]).digest;
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(90 * 86_400);
    let record = fs::File::open(store.store.image_path(&unused)).expect("a record");
    record.set_modified(long_ago).expect("set");
    let usage = store.writer.usage().expect("usage");
    assert_eq!((usage.images, usage.names, usage.layers, usage.files), (3, 2, 3, 3));
    assert_eq!(usage.reclaimable * 3, usage.size);
    let pruned = store.writer.prune(None).expect("pruned");
    assert_eq!((pruned.images.len(), pruned.layers, pruned.size), (1, 1, usage.reclaimable));
    let month = Duration::from_secs(30 * 86_400);
    assert_eq!(store.writer.prune(Some(month)).expect("pruned").images, [unused]);
    // Using an image is what counts.
    let record = fs::File::open(store.store.image_path(&used)).expect("a record");
    record.set_modified(long_ago).expect("set");
    store.store.find(&reference("used")).expect("readable").expect("found");
    assert_eq!(store.writer.prune(Some(month)).expect("pruned").images, []);
    assert_eq!(store.writer.prune(Some(Duration::ZERO)).expect("pruned").images, [used]);
    assert_eq!(store.writer.usage().expect("usage"), Default::default());
}

#[test]
fn a_lost_layer_is_told_and_comes_back_with_the_next_import() {
    let store = TestStore::new();
    let image = store.image(&[layer("a")], &["app"]);
    fs::remove_dir_all(&image.layers[0]).expect("removed");
    match store.store.find(&reference("app")) {
        Err(error @ ImageError::LayerLost { .. }) => assert!(error.remedy().is_some()),
        answer => panic!("{answer:?}"),
    }
    drop(image);
    let image = store.image(&[layer("a")], &["app"]);
    assert!(image.layers[0].join("a").exists());
    store.store.find(&reference("app")).expect("readable").expect("found");
}

#[test]
fn a_store_is_of_one_user_and_made_by_its_writer() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("data/kennel/images");
    let store = Store::open(&path).expect("a store that does not exist");
    assert!(store.find(&reference("app")).expect("readable").is_none());
    assert!(store.images().expect("readable").is_empty() && !path.exists());
    store.writer().expect("a writer");
    assert_eq!(fs::metadata(&path).expect("made").permissions().mode() & 0o7777, 0o700);
    let refused = || match Store::open(&path) {
        Err(error @ ImageError::Store { .. }) => assert!(error.remedy().is_some()),
        answer => panic!("{answer:?}"),
    };
    fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).expect("set");
    refused();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("set");
    Store::open(&path).expect("a store");
    if is_root() {
        chown(&path, Some(1000), None).expect("changed");
        refused();
    }
    fs::write(directory.path().join("file"), "").expect("written");
    assert!(matches!(Store::open(directory.path().join("file")), Err(ImageError::Store { .. })));
}

/// ramfs has no attributes of users. The test runs this one in namespaces of its own.
#[test]
#[ignore = "run by another test"]
fn on_a_file_system_without_attributes() {
    let path = std::env::var_os("KENNEL_TEST_STORE").expect("a path");
    match Store::open(&path).expect("a store").writer() {
        Err(error @ ImageError::FileSystem { .. }) => {
            assert!(error.remedy().expect("a remedy").to_string().contains("KENNEL_IMAGES"));
        }
        answer => panic!("{answer:?}"),
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "a test says that it is skipped")]
fn a_file_system_that_cannot_hold_layers_is_told_before_anything_is_unpacked() {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount"]);
        command
    };
    if !unshare().arg("true").status().is_ok_and(|status| status.success()) {
        assert!(std::env::var_os("KENNEL_MUST_RUN").is_none(), "no user namespace, or no unshare(1)");
        eprintln!("SKIP: no user namespace, or no unshare(1)");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let script =
        "mount -t ramfs -o mode=700 none \"$KENNEL_TEST_STORE\" && exec \"$0\" --exact --ignored \"$1\"";
    let test = "image::tests::images::on_a_file_system_without_attributes";
    let this = std::env::current_exe().expect("this program");
    let output = unshare()
        .args(["sh", "-c", script])
        .arg(this)
        .arg(test)
        .env("KENNEL_TEST_STORE", directory.path())
        .output()
        .expect("run");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
