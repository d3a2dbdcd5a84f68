//! Changes in a directory of the host.

use std::{fs, path::Path};

use kennel::{Error, Overlay, Policy, Sandbox, Session, overlay::OverlayError};

use super::{changes, commit, policy, shell, workspace};
use crate::support::TempDir;

/// A directory that nobody else can reach.
fn private() -> TempDir {
    let dir = workspace();
    close(dir.path(), 0o700);
    dir
}

fn close(path: &Path, mode: u32) {
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
}

fn with_upper(workspace: &Path, upper: &Path) -> Policy {
    policy(workspace).overlay(Overlay { upper: Some(upper.into()), ..Overlay::default() })
}

/// A session if the file system of /tmp keeps user attributes. Otherwise checks that Kennel refuses it.
async fn session(workspace: &Path, upper: &Path) -> Option<Session> {
    match Session::prepare(&with_upper(workspace, upper)).await {
        Err(Error::Overlay(OverlayError::Attributes { .. })) => {
            assert!(xattr::set(upper, "user.test", b"x").is_err(), "it does keep them");
            assert_eq!(fs::read_dir(upper).unwrap().count(), 0);
            None
        }
        session => Some(session.expect("a session")),
    }
}

#[tokio::test]
async fn changes_live_as_long_as_their_session() {
    let (dir, upper) = (workspace(), private());
    fs::write(dir.path().join("old"), "old").unwrap();
    let Some(session) = session(dir.path(), upper.path()).await else { return };
    shell(&session, "echo x > old; mkdir -p d/e; echo y > d/e/f; chmod 0 d/e; chmod 0 d").await;
    assert!(upper.path().join("upper/old").exists());
    assert_eq!(changes(&session).await, ["A d/", "A d/e/", "A d/e/f", "M old"]);
    assert_eq!(commit(&session).await.len(), 4);
    drop(session);
    crate::support::until("the directory is empty", || fs::read_dir(upper.path()).unwrap().count() == 0);
    assert_eq!(fs::read(dir.path().join("old")).unwrap(), b"x\n");
    fs::set_permissions(dir.path().join("d"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    fs::set_permissions(dir.path().join("d/e"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn one_session_at_a_time_uses_a_directory() {
    let (dir, upper) = (workspace(), private());
    let Some(first) = session(dir.path(), upper.path()).await else { return };
    let second = Session::prepare(&with_upper(dir.path(), upper.path())).await;
    assert!(matches!(second, Err(Error::Overlay(OverlayError::InUse { .. }))), "{second:?}");
    shell(&first, "echo x > x").await;
    first.discard().await.unwrap();
    assert_eq!(fs::read_dir(upper.path()).unwrap().count(), 0);
    let third = Session::prepare(&with_upper(dir.path(), upper.path())).await.unwrap();
    assert!(changes(&third).await.is_empty());
}

#[tokio::test]
async fn deep_trees_are_removed_too() {
    let (dir, upper) = (workspace(), private());
    let Some(session) = session(dir.path(), upper.path()).await else { return };
    crate::support::require!(crate::support::has("python3"), "python3");
    let deep = "python3 -c 'import os\nfor _ in range(2500): os.mkdir(\"d\"); os.chdir(\"d\")'";
    shell(&session, deep).await;
    session.discard().await.unwrap();
    assert_eq!(fs::read_dir(upper.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn commands_do_not_reach_it() {
    let (dir, upper) = (workspace(), private());
    let Some(session) = session(dir.path(), upper.path()).await else { return };
    let path = upper.path().display();
    shell(&session, &format!("! ls {path}; ! ls /run/empty/upper; test -z \"$(ls -A /run/empty)\"")).await;
}

#[tokio::test]
async fn a_sandbox_cannot_use_a_directory() {
    let (dir, upper) = (workspace(), private());
    let ran = match Sandbox::new(&with_upper(dir.path(), upper.path())) {
        Ok(sandbox) => sandbox.command("true").status().await,
        Err(error) => Err(error),
    };
    assert!(matches!(ran, Err(Error::Overlay(OverlayError::NeedsSession))), "{ran:?}");
    assert_eq!(fs::read_dir(upper.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn refused_changes_can_be_left_there() {
    let (dir, upper) = (workspace(), private());
    let Some(session) = session(dir.path(), upper.path()).await else { return };
    session.discard().await.unwrap();
    drop(session);
    let place = upper.path().to_str().unwrap();
    let flags = ["--quiet", "--overlay-upper", place, "--commit", "--protect", ".env"];
    let output = crate::support::shell(dir.path(), &flags, "echo x > .env; echo y > y");
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(fs::read(upper.path().join("upper/.env")).unwrap(), b"x\n");
    assert!(dir.path().join("y").exists());
    // A session that keeps nothing does not take them for its own, and the next command goes on with them.
    let refused = Session::prepare(&with_upper(dir.path(), upper.path())).await.expect_err("refused");
    assert!(matches!(refused, Error::Overlay(OverlayError::NotEmpty { .. })), "{refused}");
    let output = crate::support::shell(dir.path(), &flags, "cat .env");
    assert_eq!((output.status.code(), crate::support::stdout(&output)), (Some(125), "x".into()));
}

#[tokio::test]
async fn a_directory_that_others_reach_is_refused() {
    let (dir, upper) = (workspace(), workspace());
    for mode in [0o755, 0o711, 0o770, 0o701, 0o710, 0o704] {
        close(upper.path(), mode);
        let refused = Session::prepare(&with_upper(dir.path(), upper.path())).await.expect_err("refused");
        let said = format!("{refused} {:?}", std::error::Error::source(&refused).map(ToString::to_string));
        assert!(said.contains("accessible to other users"), "{mode:o}: {said}");
        assert!(
            refused.remedy().is_some_and(|remedy| remedy.to_string().contains("chmod 700")),
            "{:?}",
            refused.remedy()
        );
        assert_eq!(fs::read_dir(upper.path()).unwrap().count(), 0);
    }
}
