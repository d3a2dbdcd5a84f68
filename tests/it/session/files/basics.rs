//! Written files exist, complete, for commands and for the caller.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::MetadataExt, fs::PermissionsExt, fs::symlink},
    path::Path,
};

use kennel::{
    Mount, Session, TmpLife,
    files::{FileKind, Mode},
};

use super::{errno, names, shell, workspace};
use crate::support::{World, access_list, workspace_on_disk};

const ACCESS: &str = "system.posix_acl_access";

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn commands_read_written_files_and_the_caller_reads_theirs() {
    let world = World::new();
    let session = world.session().await;
    let every_byte: Vec<u8> = (0..=255).cycle().take(3 << 20).collect();
    for bytes in [b"".to_vec(), b"text\n".to_vec(), every_byte] {
        session.write("file", bytes.clone()).await.unwrap();
        assert_eq!(session.read("file").await.unwrap(), bytes);
        assert_eq!(session.read(world.at("file")).await.unwrap(), bytes, "by its absolute path");
        assert_eq!(fs::read(world.at("file")).unwrap(), bytes);
    }
    assert_eq!(shell(&session, "wc -c < file").await.trim(), (3 << 20).to_string());
    shell(&session, "echo from inside > other").await;
    assert_eq!(session.read("other").await.unwrap(), b"from inside\n");
    assert_eq!(names(world.path()), ["file", "other"], "nothing else is there");
}

#[tokio::test]
async fn a_file_keeps_its_attributes_and_its_access_list() {
    let world = World::of(workspace_on_disk());
    let session = world.session().await;
    let path = world.at("file");
    let list = access_list(nix::unistd::geteuid().as_raw());
    fs::write(&path, "old").unwrap();
    set_mode(&path, 0o640);
    if xattr::set(&path, "user.k", b"value").is_err() || xattr::set(&path, ACCESS, &list).is_err() {
        return;
    }
    let (before, lists) = (mode(&path), |path: &Path| xattr::get(path, ACCESS).unwrap());
    session.write("file", "new").await.unwrap();
    assert_eq!((fs::read(&path).unwrap(), mode(&path)), (b"new".to_vec(), before));
    assert_eq!(xattr::get(&path, "user.k").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(lists(&path), Some(list.clone()));
    let host = workspace_on_disk();
    let out = host.path().join("out");
    fs::write(&out, "old").unwrap();
    xattr::set(&out, "user.k", b"value").unwrap();
    session.copy_out("file", &out).await.unwrap();
    assert_eq!(xattr::get(&out, "user.k").unwrap().as_deref(), Some(&b"value"[..]), "on the host too");
    // A default list of the directory is for new files only.
    fs::write(world.at("plain"), "old").unwrap();
    set_mode(&world.at("plain"), 0o600);
    xattr::set(world.path(), "system.posix_acl_default", &list).unwrap();
    session.write("plain", "new").await.unwrap();
    assert_eq!((lists(&world.at("plain")), mode(&world.at("plain"))), (None, 0o600));
    session.write("fresh", "new").await.unwrap();
    assert!(lists(&world.at("fresh")).is_some());
    // Whoever may not read the attributes replaces nothing.
    if !crate::support::is_root() {
        set_mode(&path, 0o200);
        assert_eq!(errno(session.write("file", "more").await), libc::EACCES);
        assert_eq!(xattr::list(&path).unwrap().filter(|name| name == "user.k").count(), 1);
    }
}

#[tokio::test]
async fn a_file_keeps_its_permissions_and_loses_special_bits() {
    let world = World::new();
    let session = world.session().await;
    let path = world.at("file");
    for (before, after) in [(0o600, 0o600), (0o755, 0o755), (0o666, 0o666), (0o4755, 0o755), (0o2755, 0o755)]
    {
        fs::write(&path, "old").unwrap();
        set_mode(&path, before);
        session.write("file", "new").await.unwrap();
        assert_eq!(mode(&path), after, "{before:o}");
        assert_eq!(fs::read(&path).unwrap(), b"new");
        fs::remove_file(&path).unwrap();
    }
    session.write("file", "new").await.unwrap();
    shell(&session, "echo > made-by-a-command").await;
    assert_eq!(mode(&path), mode(&world.at("made-by-a-command")));
    let (ours, theirs) = (fs::metadata(&path), fs::metadata(world.at("made-by-a-command")));
    assert_eq!(ours.unwrap().uid(), theirs.unwrap().uid());
}

#[tokio::test]
async fn readers_see_the_old_file_or_the_new_one() {
    let world = World::new();
    let session = world.session().await;
    let (old, new) = (vec![b'o'; 1 << 20], vec![b'n'; 1 << 20]);
    session.write("file", old.clone()).await.unwrap();
    let open = fs::File::open(world.at("file")).unwrap();
    for round in 0..30 {
        let bytes = if round % 2 == 0 { &new } else { &old };
        let write = session.write("file", bytes.clone());
        let read = async { fs::read(world.at("file")).unwrap() };
        let (written, seen) = tokio::join!(write, read);
        written.unwrap();
        assert!(seen == old || seen == new, "a part: {}", seen.len());
    }
    assert_eq!(std::io::read_to_string(open).unwrap().as_bytes(), old, "an open file stays the old one");
}

#[tokio::test]
async fn a_listing_has_names_kinds_and_sizes() {
    let world = World::new();
    let session = world.session().await;
    session.mkdir("sub").await.unwrap();
    session.write("sub/a", "12345").await.unwrap();
    session.mkdir("sub/d").await.unwrap();
    symlink("a", world.at("sub/l")).unwrap();
    symlink("sub", world.at("way")).unwrap();
    shell(&session, "mkfifo sub/p").await;
    let strange = OsStr::from_bytes(b"\xff\n *");
    session.write(Path::new("sub").join(strange), "").await.unwrap();
    for path in ["sub", "way", "sub/../sub/", "sub/d/.."] {
        let entries = session.list(path).await.unwrap();
        let found: Vec<_> = entries.iter().map(|entry| (entry.name.as_os_str(), entry.kind)).collect();
        let expected = [
            (OsStr::new("a"), FileKind::File),
            (OsStr::new("d"), FileKind::Directory),
            (OsStr::new("l"), FileKind::Link),
            (OsStr::new("p"), FileKind::Other),
            (strange, FileKind::File),
        ];
        assert_eq!(found, expected, "{path}");
        assert_eq!((entries[0].size, entries[0].is_dir(), entries[1].is_dir()), (5, false, true));
    }
    let names: Vec<_> = session.list("/").await.unwrap().into_iter().map(|entry| entry.name).collect();
    assert!(names.contains(&"proc".into()) && !names.contains(&"boot".into()), "{names:?}");
}

#[tokio::test]
async fn metadata_is_that_of_the_target_of_a_link() {
    let world = World::new();
    let session = world.session().await;
    session.write("file", "12345").await.unwrap();
    set_mode(&world.at("file"), 0o640);
    symlink("file", world.at("link")).unwrap();
    let info = session.stat("link").await.unwrap();
    assert_eq!((info.kind, info.size, info.mode), (FileKind::File, 5, Mode::new(0o640)));
    assert_eq!(info.modified, fs::metadata(world.at("file")).unwrap().modified().unwrap());
    assert!(session.stat("/").await.unwrap().is_dir());
    assert_eq!(errno(session.stat("none").await), libc::ENOENT);
}

#[tokio::test]
async fn removal_removes_a_link_and_not_its_target() {
    let world = World::new();
    let session = world.session().await;
    session.mkdir("d").await.unwrap();
    session.write("d/file", "x").await.unwrap();
    symlink("d/file", world.at("link")).unwrap();
    session.remove("link").await.unwrap();
    assert_eq!(errno(session.remove("d").await), libc::ENOTEMPTY);
    session.remove("d/file").await.unwrap();
    session.remove("d").await.unwrap();
    assert_eq!(errno(session.remove("d").await), libc::ENOENT);
    assert!(names(world.path()).is_empty());
}

#[tokio::test]
async fn wrong_paths_are_errors() {
    let world = World::new();
    let session = world.session().await;
    session.write("file", "x").await.unwrap();
    session.mkdir("d").await.unwrap();
    for path in ["", "none/file", "none/../file"] {
        assert_eq!(errno(session.write(path, "x").await), libc::ENOENT, "{path:?}");
    }
    for path in ["d", "/", "..", ".", "d/", "new/", "d/.."] {
        assert_eq!(errno(session.write(path, "x").await), libc::EISDIR, "{path:?}");
    }
    assert_eq!(errno(session.read("").await), libc::ENOENT);
    assert_eq!(errno(session.read("d").await), libc::EISDIR);
    assert_eq!(errno(session.read("file/x").await), libc::ENOTDIR);
    assert_eq!(errno(session.list("file").await), libc::ENOTDIR);
    assert_eq!(errno(session.write("nul\0", "x").await), libc::EINVAL);
    assert_eq!(errno(session.write("x".repeat(256), "x").await), libc::ENAMETOOLONG);
    assert_eq!(errno(session.read("x/".repeat(3000)).await), libc::ENAMETOOLONG);
    for path in ["d", "file", ".", "/"] {
        assert_eq!(errno(session.mkdir(path).await), libc::EEXIST, "{path:?}");
    }
    assert_eq!(errno(session.remove("/").await), libc::EBUSY);
    assert_eq!(names(world.path()), ["d", "file"]);
}

#[tokio::test]
async fn an_error_names_the_path_the_cause_and_the_remedy() {
    let world = World::new();
    let session = world.session().await;
    let error = session.write("/usr/x", "x").await.unwrap_err();
    assert_eq!(error.chain(), "write /usr/x: Read-only file system");
    assert!(error.remedy().is_some_and(|remedy| remedy.to_string().contains("grant")), "{error:?}");
    let json = serde_json::to_value(error.failure()).unwrap();
    assert_eq!(json["class"], "capability_denied", "{json}");
}

#[tokio::test]
async fn private_directories_are_accessible_only_if_they_are_shared() {
    let world = World::new();
    let one = world.session().await;
    shell(&one, "echo x > /tmp/x; echo x > ~/x").await;
    for place in ["/tmp", "/dev/shm"] {
        let entries = one.list(place).await.unwrap();
        assert!(entries.iter().all(|entry| entry.name != "x"), "{place}: {entries:?}");
        assert_eq!(errno(one.write(format!("{place}/y"), "y").await), libc::EROFS, "{place}");
        assert_eq!(errno(one.mkdir(format!("{place}/y")).await), libc::EROFS, "{place}");
    }
    let shared = Session::prepare(&world.policy().tmp(TmpLife::Session)).await.unwrap();
    shell(&shared, "echo from a command > /tmp/x").await;
    assert_eq!(shared.read("/tmp/x").await.unwrap(), b"from a command\n");
    shared.write("/tmp/y", "from outside\n").await.unwrap();
    assert_eq!(shell(&shared, "cat /tmp/y; rm /tmp/x").await, "from outside\n");
    assert_eq!(errno(shared.read("/tmp/x").await), libc::ENOENT);
    let home = shell(&shared, "echo $HOME").await;
    shared.write(format!("{}/z", home.trim()), "z").await.unwrap();
    assert_eq!(shell(&shared, "cat ~/z").await, "z");
}

#[tokio::test]
async fn grants_are_at_their_targets() {
    let (world, read, write) = (World::new(), workspace(), workspace());
    fs::write(read.path().join("file"), "r").unwrap();
    let policy = world
        .policy()
        .mount(Mount::ReadOnly { source: read.path().to_owned(), target: Some("/r".into()) })
        .mount(Mount::ReadWrite { source: write.path().to_owned(), target: Some("/w".into()) });
    let session = Session::prepare(&policy).await.unwrap();
    assert_eq!(session.read("/r/file").await.unwrap(), b"r");
    assert_eq!(errno(session.write("/r/file", "x").await), libc::EROFS);
    session.write("/w/file", "w").await.unwrap();
    assert_eq!(fs::read(write.path().join("file")).unwrap(), b"w");
    assert_eq!(errno(session.read(write.path().join("file")).await), libc::ENOENT, "not by the host's path");
}

#[tokio::test]
async fn a_session_that_has_ended_has_no_files() {
    let world = World::new();
    let session = world.session().await;
    session.write("file", "x").await.unwrap();
    session.shutdown().await;
    assert!(matches!(session.read("file").await, Err(kennel::Error::SessionEnded)));
    assert!(matches!(session.write("file", "y").await, Err(kennel::Error::SessionEnded)));
    assert_eq!(fs::read(world.at("file")).unwrap(), b"x");
}
