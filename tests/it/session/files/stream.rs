//! Files in pieces.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    time::{Duration, Instant},
};

use kennel::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{errno, names, shell, workspace};
use crate::support::{World, patient};

const BIG: usize = 40 << 20;

fn big() -> Vec<u8> {
    (0..BIG).map(|at| at.to_le_bytes()[at % 3]).collect()
}

#[tokio::test]
async fn large_files_are_copied_in_and_out() {
    let (world, host) = (World::new(), workspace());
    let session = world.session().await;
    let bytes = big();
    fs::write(host.path().join("in"), &bytes).unwrap();
    fs::set_permissions(host.path().join("in"), fs::Permissions::from_mode(0o750)).unwrap();
    assert_eq!(session.copy_in(host.path().join("in"), "file").await.unwrap(), BIG as u64);
    assert_eq!(fs::metadata(world.at("file")).unwrap().mode() & 0o777, 0o750);
    assert_eq!(session.copy_out("file", host.path().join("out")).await.unwrap(), BIG as u64);
    assert!(fs::read(host.path().join("out")).unwrap() == bytes);
    assert_eq!(fs::metadata(host.path().join("out")).unwrap().mode() & 0o777, 0o750);
    assert_eq!(names(world.path()), ["file"]);
    assert_eq!(names(host.path()), ["in", "out"]);
}

#[tokio::test]
async fn copying_out_replaces_a_link_and_not_its_target() {
    let (world, host) = (World::new(), workspace());
    let session = world.session().await;
    session.write("file", "new").await.unwrap();
    fs::write(host.path().join("precious"), "old").unwrap();
    std::os::unix::fs::symlink("precious", host.path().join("out")).unwrap();
    session.copy_out("file", host.path().join("out")).await.unwrap();
    assert_eq!(fs::read(host.path().join("precious")).unwrap(), b"old");
    assert_eq!(fs::read(host.path().join("out")).unwrap(), b"new");
    for path in [host.path().join("missing/out"), host.path().to_owned(), "/".into(), "".into()] {
        let answer = session.copy_out("file", &path).await;
        assert!(matches!(answer, Err(Error::Io { .. })), "{path:?}: {answer:?}");
    }
    assert_eq!(errno(session.copy_out("none", host.path().join("none")).await), libc::ENOENT);
    let answer = session.copy_in(host.path().join("none"), "none").await;
    assert!(matches!(answer, Err(Error::Io { .. })), "{answer:?}");
    assert_eq!(names(host.path()), ["out", "precious"]);
    assert_eq!(names(world.path()), ["file"]);
}

#[tokio::test]
async fn a_file_is_in_its_place_after_the_commit() {
    let world = World::new();
    let session = world.session().await;
    session.write("file", "old").await.unwrap();
    let mut writer = session.open_write("file").await.unwrap();
    writer.write_all(b"one ").await.unwrap();
    writer.write_all(&vec![b'.'; 1 << 20]).await.unwrap();
    assert_eq!(session.read("file").await.unwrap(), b"old");
    writer.commit().await.unwrap();
    let mut reader = session.open_read("file").await.unwrap();
    assert_eq!(reader.size().await.unwrap(), 4 + (1 << 20));
    shell(&session, "rm file").await;
    let mut start = [0; 4];
    reader.read_exact(&mut start).await.unwrap();
    assert_eq!(&start, b"one ", "it stays the file that was opened");
    assert_eq!(tokio::io::copy(&mut reader, &mut tokio::io::sink()).await.unwrap(), 1 << 20);
    assert!(names(world.path()).is_empty());
}

#[tokio::test]
async fn a_writer_that_is_dropped_leaves_nothing() {
    let world = World::new();
    let session = world.session().await;
    session.write("file", "old").await.unwrap();
    for path in ["file", "new"] {
        let mut writer = session.open_write(path).await.unwrap();
        writer.write_all(&vec![b'.'; 3 << 20]).await.unwrap();
        assert_eq!(names(world.path()).len(), 2);
        drop(writer);
        assert_eq!(names(world.path()), ["file"]);
    }
    assert_eq!(session.read("file").await.unwrap(), b"old");
}

#[tokio::test]
async fn a_writer_whose_temporary_file_was_swapped_changes_nothing() {
    let world = World::new();
    let session = world.session().await;
    session.write("file", "old").await.unwrap();
    for script in ["rm .kennel-*; ln -s /etc/passwd $OLD", "rm .kennel-*; mkdir $OLD", "rm .kennel-*"] {
        let mut writer = session.open_write("file").await.unwrap();
        writer.write_all(b"new").await.unwrap();
        shell(&session, &format!("OLD=$(echo .kennel-*); {script}")).await;
        let refused = errno(writer.commit().await);
        assert!([libc::ESTALE, libc::ENOENT].contains(&refused), "{script}: {refused}");
        assert_eq!(session.read("file").await.unwrap(), b"old");
        shell(&session, "rm -rf .kennel-*").await;
    }
    assert_eq!(names(world.path()), ["file"]);
}

#[tokio::test]
async fn a_call_that_is_dropped_leaves_nothing() {
    let (world, host) = (World::new(), workspace());
    let session = world.session().await;
    fs::write(host.path().join("in"), big()).unwrap();
    session.write("file", "old").await.unwrap();
    for micros in [0, 300, 1000, 5000, 10_000, 20_000] {
        let soon = Duration::from_micros(micros);
        let _ = tokio::time::timeout(soon, session.copy_in(host.path().join("in"), "new")).await;
        let _ = tokio::time::timeout(soon, session.write("new", vec![1; 1 << 20])).await;
        let _ = tokio::time::timeout(soon, session.copy_out("new", host.path().join("out"))).await;
    }
    let begun = Instant::now();
    let is_clean =
        || !names(world.path()).iter().chain(&names(host.path())).any(|name| name.starts_with('.'));
    while !is_clean() {
        assert!(begun.elapsed() < patient(Duration::from_secs(10)), "{:?}", names(world.path()));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(session.read("file").await.unwrap(), b"old");
}
