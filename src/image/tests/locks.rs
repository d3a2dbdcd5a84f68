//! Several writers at once, and writers that are killed.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::thread;

use super::*;

#[test]
fn eight_imports_at_once_make_each_layer_once() {
    let store = TestStore::new();
    let archives: Vec<Vec<u8>> = (0..4_u32)
        .map(|number| {
            let tar = (0..50)
                .fold(Tar::new().dirs(&["d"]), |tar, file| tar.file(&format!("d/{number}-{file}"), "x"));
            // Every other layer belongs to those below it.
            if number.is_multiple_of(2) { tar.end() } else { tar.file("implied/x", "").end() }
        })
        .collect();
    let barrier = Barrier::new(8);
    let layers: Vec<Vec<StoredLayer>> = thread::scope(|scope| {
        let import = |number: usize| {
            let (store, barrier, archives) = (&store, &barrier, &archives);
            move || {
                let writer = store.store.writer().expect("a writer");
                barrier.wait();
                let mut layers: Vec<StoredLayer> = Vec::new();
                for archive in archives {
                    let blob = LayerBlob::new(archive.as_slice());
                    // Half of them do not know the diff id.
                    let blob =
                        if number.is_multiple_of(2) { blob.with_diff_id(Digest::of(archive)) } else { blob };
                    layers.push(writer.add_layer(blob, &layers).expect("stored"));
                }
                writer
                    .add_image(config(&layers).as_bytes(), &layers, &["app".parse().expect("a name")])
                    .expect("an image");
                layers
            }
        };
        let threads: Vec<_> = (0..8).map(|number| scope.spawn(import(number))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    for at in 0..4 {
        let made = layers.iter().filter(|layers| !layers[at].was_there()).count();
        assert_eq!(made, 1, "layer {at}");
        assert!(layers.iter().all(|each| each[at].id == layers[0][at].id));
    }
    assert_eq!((store.stored_layers(), store.is_tidy()), (4, true));
    assert_eq!(store.store.images().expect("list").len(), 1);
}

#[test]
fn imports_and_pruning_at_once_lose_nothing() {
    let store = TestStore::new();
    thread::scope(|scope| {
        for number in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..20 {
                    let archives = [
                        Tar::new().file("shared", "").end(),
                        Tar::new().file(&format!("{number}-{round}"), "").end(),
                    ];
                    let image = store.image(&archives, &[&format!("app{number}")]);
                    assert!(image.layers.iter().all(|layer| layer.is_dir()));
                    let found =
                        store.store.find(&format!("app{number}").parse().expect("a name")).expect("readable");
                    assert_eq!(found.expect("found").digest, image.digest);
                }
            });
        }
        let store = &store;
        scope.spawn(move || {
            for _ in 0..40 {
                store.store.writer().expect("a writer").prune(None).expect("pruned");
            }
        });
    });
    store.writer.prune(None).expect("pruned");
    let usage = store.writer.usage().expect("usage");
    assert_eq!((usage.images, usage.layers, usage.reclaimable), (4, 5, 0));
    assert!(store.is_tidy());
}

/// A process that imports an archive from its stdin.
#[test]
#[ignore = "run by another test"]
#[expect(clippy::print_stdout, reason = "the other test reads it")]
fn import_from_stdin() {
    let store = Store::open(std::env::var_os("KENNEL_TEST_STORE").expect("a path")).expect("a store");
    let diff_id: Digest = std::env::var("KENNEL_TEST_DIFF_ID").expect("a digest").parse().expect("a digest");
    let writer = store.writer().expect("a writer");
    let blob = LayerBlob::new(std::io::stdin()).with_diff_id(diff_id);
    let layer = writer.add_layer(blob, &[]).expect("stored");
    println!("stored {}", layer.was_there());
}

fn importer(store: &TestStore, archive: &[u8]) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "--ignored", "--nocapture", "image::tests::locks::import_from_stdin"])
        .env("KENNEL_TEST_STORE", store.store.path())
        .env("KENNEL_TEST_DIFF_ID", Digest::of(archive).to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started")
}

/// Gives the importer the first part of an archive, and waits until a file of it is there.
fn begin(store: &TestStore, child: &mut Child, archive: &[u8]) {
    let half = archive.get(..archive.len() / 2).expect("a half");
    child.stdin.as_mut().expect("stdin").write_all(half).expect("written");
    let tmp = store.store.path().join("tmp");
    let has_begun = || {
        let mut works = fs::read_dir(&tmp).expect("tmp").flatten().map(|work| work.path().join("tree/first"));
        works.any(|file| file.exists())
    };
    while !has_begun() {
        assert!(child.try_wait().expect("a child").is_none(), "it ended");
        thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn long_archive() -> Vec<u8> {
    // More than the pipes and threads between hold.
    let tar = Tar::new().file("first", "1");
    (0..8).fold(tar, |tar, number| tar.file(&format!("big{number}"), &"x".repeat(1 << 20))).end()
}

#[test]
fn what_a_killed_import_left_is_removed_and_never_counts() {
    let store = TestStore::new();
    let archive = long_archive();
    let mut child = importer(&store, &archive);
    begin(&store, &mut child, &archive);
    // A writer leaves alone what another one makes.
    store.store.writer().expect("a writer");
    assert!(!store.is_tidy());
    child.kill().expect("killed");
    child.wait().expect("reaped");
    assert_eq!((store.is_tidy(), store.stored_layers()), (false, 0));
    assert!(store.writer.find_layer(&Digest::of(&archive), &[]).expect("readable").is_none());
    store.store.writer().expect("a writer");
    assert!(store.is_tidy());
    assert_eq!(fs::read_dir(store.store.path().join("layers")).expect("layers").count(), 0);
    assert!(!store.layers(&[archive]).expect("stored")[0].was_there());
}

#[test]
fn who_wants_a_layer_that_another_process_makes_waits_and_uses_it() {
    let store = TestStore::new();
    let archive = long_archive();
    let mut child = importer(&store, &archive);
    begin(&store, &mut child, &archive);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            // It is not read.
            let blob = LayerBlob::new(b"".as_slice()).with_diff_id(Digest::of(&archive));
            store.writer.add_layer(blob, &[]).expect("stored")
        });
        let half = archive.get(archive.len() / 2..).expect("a half");
        let mut stdin = child.stdin.take().expect("stdin");
        stdin.write_all(half).expect("written");
        drop(stdin);
        // It keeps the layer only as long as it runs, and nobody else does before the waiting one has it.
        let layer = waiting.join().expect("no panic");
        assert!(layer.was_there());
        assert!(store.store.layer_path(&layer.id).join("first").exists());
    });
    let mut said = String::new();
    child.stdout.take().expect("stdout").read_to_string(&mut said).expect("read");
    assert!(child.wait().expect("reaped").success());
    assert!(said.contains("stored false"), "{said}");
    assert_eq!(store.stored_layers(), 1);
}

#[test]
fn a_removal_that_was_killed_leaves_no_layer_that_counts() {
    let store = TestStore::new();
    let archive = Tar::new().dirs(&["d"]).file("d/a", "").file("d/b", "").end();
    let layer = store.layers(std::slice::from_ref(&archive)).expect("stored").remove(0);
    let (id, diff_id) = (layer.id.clone(), layer.diff_id());
    drop(layer);
    // As on a full disk: the record is emptied first, then the directory where it is.
    let record = store.store.path().join("layers").join(format!("{id}.json"));
    fs::File::options().write(true).open(&record).expect("a record").set_len(0).expect("emptied");
    fs::remove_file(store.store.layer_path(&id).join("d/a")).expect("removed");
    assert!(store.writer.find_layer(&diff_id, &[]).expect("readable").is_none());
    let layer = store.layers(&[archive]).expect("stored").remove(0);
    assert!(!layer.was_there() && store.store.layer_path(&id).join("d/a").exists());
}

#[test]
fn a_session_of_another_process_keeps_its_image() {
    let store = TestStore::new();
    let image = store.image(&[Tar::new().file("a", "").end()], &["app"]);
    // flock(2) belongs to the open file: another opening of this process is as foreign as one of another
    // process.
    let other = Store::open(store.store.path()).expect("a store").writer().expect("a writer");
    assert!(matches!(other.remove(&"app".parse().expect("a name")), Err(ImageError::InUse { .. })));
    drop(image);
    other.remove(&"app".parse().expect("a name")).expect("removed");
}
