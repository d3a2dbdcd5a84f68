//! Reports, changes and single runs, in the words of the server's own routes.

use std::time::Duration;

use kennel_client::{ChangeKind, Ended, Error, Server};

use crate::server::TestServer;

#[tokio::test]
async fn a_run_takes_files_and_gives_files() {
    let server = TestServer::start("");
    let run =
        server.client().run("sh").args(["-c", "cat; cat in/a; printf '\\377' > out; echo $X >&2; exit 3"]);
    let run = run.stdin("from stdin\n").file("in/a", "from a file\n").env("X", "y");
    let ran = run.output_file("out").output_file("missing").output().await.unwrap();
    assert_eq!((ran.report.ended, ran.report.exit_code), (Ended::Exited, 3));
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "from stdin\nfrom a file\n");
    assert_eq!(ran.stderr, b"y\n");
    assert_eq!(ran.files.into_iter().collect::<Vec<_>>(), [("out".into(), b"\xff".to_vec())]);
    assert!(ran.report.enforcement.is_some());
}

#[tokio::test]
async fn a_run_ends_in_time_and_tells_what_did_not_start() {
    let server = TestServer::start("");
    let slow = server.client().run("sleep").arg("60").timeout(Duration::from_millis(500));
    assert_eq!(slow.output().await.unwrap().report.ended, Ended::TimedOut);
    let ran = server.client().run("no-such-program").output().await.unwrap();
    assert_eq!((ran.report.ended, ran.report.exit_code), (Ended::Failed, 127));
    assert!(ran.report.failure.unwrap().message.contains("no-such-program"));
    let refused = server.client().run("true").limit("nonsense", 1).output().await.unwrap_err();
    assert!(matches!(refused, Error::Refused { status: 400, .. }), "{refused:?}");
}

#[tokio::test]
async fn a_dropped_run_leaves_nothing() {
    let server = TestServer::start("");
    let run = server.client().run("sleep").arg("60").output();
    tokio::time::timeout(Duration::from_millis(500), run).await.unwrap_err();
    crate::server::wait_until("it is gone", || async { server.sandboxes() == 0 }).await;
}

#[tokio::test]
async fn an_ended_command_has_a_report() {
    let server = TestServer::start("");
    let session = server.session().await;
    let mut child = session.command("sh").args(["-c", "exit 5"]).spawn().await.unwrap();
    child.wait().await.unwrap();
    let report = session.report(child.id()).await.unwrap();
    assert_eq!((report.ended, report.exit_code), (Ended::Exited, 5));
    let running = session.command("sleep").arg("60").spawn().await.unwrap();
    let refused = session.report(running.id()).await.unwrap_err();
    assert!(matches!(refused, Error::Refused { status: 409, .. }), "{refused:?}");
    let refused = session.report(9999).await.unwrap_err();
    assert!(matches!(refused, Error::Refused { status: 404, .. }), "{refused:?}");
}

#[tokio::test]
async fn changes_are_told_and_committed_where_the_template_says_so() {
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("old"), "1").unwrap();
    let template = format!("[template.base]\nfiles = '{}'\n", files.path().display());
    let server = TestServer::start(&template);
    let session = server.session().await;
    session.command("sh").args(["-c", "rm old; echo 2 > new"]).status().await.unwrap();
    let changes = session.changes().await.unwrap();
    let changes: Vec<_> = changes.iter().map(|change| (change.path.to_str().unwrap(), change.kind)).collect();
    assert_eq!(changes, [("new", ChangeKind::Added), ("old", ChangeKind::Deleted)]);
    let refused = session.commit().await.unwrap_err();
    assert!(matches!(refused, Error::Refused { status: 403, .. }), "{refused:?}");
    let server = TestServer::start(&format!("{template}commit = true\n"));
    let session = server.session().await;
    session.command("sh").args(["-c", "rm old; echo 2 > new"]).status().await.unwrap();
    let committed = session.commit_part(&["new".into()], Default::default()).await.unwrap();
    assert_eq!((committed.applied, committed.left), (1, 1));
    assert!(files.path().join("new").exists() && files.path().join("old").exists());
}

#[tokio::test]
async fn a_run_can_only_narrow_its_template() {
    let server = TestServer::start("[template.small]\n");
    let run = |program: &str| server.client().run(program).template("small");
    // The shell counts in units of 512 bytes.
    let limited = run("sh").args(["-c", "ulimit -f; env | grep -c http_proxy"]).limit("file_size", "1M");
    let limited = limited.no_network().output().await.unwrap();
    assert_eq!(String::from_utf8_lossy(&limited.stdout), "2048\n0\n");
    let refused = run("true").limit("pids", 1_u64 << 40).output().await.unwrap_err();
    assert!(matches!(refused, Error::Refused { status: 400, .. }), "{refused:?}");
    let refused = server.client().run("true").template("none").output().await.unwrap_err();
    assert!(matches!(refused, Error::Refused { status: 404, .. }), "{refused:?}");
}

#[tokio::test]
async fn a_run_needs_a_server() {
    let nobody = Server::new("http://127.0.0.1:1").unwrap().patience(Duration::ZERO);
    assert!(matches!(nobody.run("true").output().await, Err(Error::Unreachable { .. })));
}
