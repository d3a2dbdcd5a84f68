//! Contents, names, and what is refused.

use std::time::{Duration, SystemTime};

use kennel_client::{Error, FileKind};

use crate::server::TestServer;

fn status<T: std::fmt::Debug>(result: Result<T, Error>) -> u16 {
    match result.unwrap_err() {
        Error::Refused { status, .. } => status,
        error => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn contents_come_back_as_they_were() {
    let server = TestServer::start("");
    let session = server.session().await;
    for (path, contents) in [
        ("empty", Vec::new()),
        ("a b/ü&?#%.txt", b"text".to_vec()),
        ("large", (0..9_000_000_u32).map(|number| (number / 7).to_le_bytes()[0]).collect()),
    ] {
        session.write(path, contents.clone()).await.unwrap();
        assert!(session.read(path).await.unwrap() == contents, "{path}");
        let seen = session.command("stat").args(["-c", "%s", path]).output().await.unwrap();
        assert_eq!(String::from_utf8_lossy(&seen.stdout), format!("{}\n", contents.len()), "{path}");
    }
    session.write("empty", b"other".to_vec()).await.unwrap();
    assert_eq!(session.read("/home/user/empty").await.unwrap(), b"other");
}

#[tokio::test]
async fn names_are_listed_moved_and_removed() {
    let server = TestServer::start("");
    let session = server.session().await;
    session.mkdir("d/e").await.unwrap();
    session.write("d/b", b"12").await.unwrap();
    session.write("d/a", b"1").await.unwrap();
    let listed = session.list("d").await.unwrap();
    let listed: Vec<_> = listed.iter().map(|entry| (entry.name.to_str().unwrap(), entry.is_dir())).collect();
    assert_eq!(listed, [("a", false), ("b", false), ("e", true)]);
    let found = session.stat("d/b").await.unwrap();
    assert_eq!((found.kind, found.size, found.mode & 0o600), (FileKind::File, 2, 0o600));
    assert!(SystemTime::now().duration_since(found.modified).unwrap() < Duration::from_secs(60));
    assert!(session.stat("d").await.unwrap().is_dir());
    session.rename("d/b", "f/c").await.unwrap();
    assert_eq!(session.read("f/c").await.unwrap(), b"12");
    assert_eq!(status(session.stat("d/b").await), 404);
    session.remove("d").await.unwrap();
    assert_eq!(status(session.list("d").await), 404);
    session.remove("d").await.unwrap();
}

#[tokio::test]
async fn what_a_command_may_not_do_is_refused() {
    let server = TestServer::start("");
    let session = server.session().await;
    assert_eq!(status(session.read("nothing").await), 404);
    assert_eq!(status(session.read(".").await), 400);
    assert_eq!(status(session.write("/etc/hosts", b"".to_vec()).await), 403);
    session.mkdir("there").await.unwrap();
    assert_eq!(status(session.mkdir("there").await), 409);
    session.write("file", b"".to_vec()).await.unwrap();
    assert_eq!(status(session.list("file").await), 404);
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::OsStr::from_bytes(b"\xff");
    assert!(matches!(session.read(name).await, Err(Error::Invalid { .. })));
    session.command("truncate").args(["-s", "65M", "huge"]).status().await.unwrap();
    assert!(matches!(session.read("huge").await, Err(Error::TooLarge { .. })));
}
