//! Files by their paths in the sandbox.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
};

use entelix_core::{Error, context::ExecutionContext, sandbox::DirEntry};
use kennel::{Policy, Profile};

use super::{sandbox, says, with_policy};
use crate::support::workspace;

#[tokio::test]
async fn files_are_those_of_the_commands() {
    let dir = workspace();
    let (sandbox, ctx) = (sandbox(dir.path()).await, ExecutionContext::new());
    let bytes: Vec<u8> = (0..=255).cycle().take(3_000_000).collect();
    sandbox.write_file("binary", &bytes, &ctx).await.unwrap();
    assert!(sandbox.read_file("binary", &ctx).await.unwrap() == bytes);
    assert_eq!(says(&sandbox, "wc -c < binary").await, "3000000");
    says(&sandbox, "printf x > made; mkdir sub; printf '' > sub/empty; chmod 750 made").await;
    sandbox.write_file("made", b"new", &ctx).await.unwrap();
    assert_eq!(fs::metadata(dir.path().join("made")).unwrap().permissions().mode() & 0o7777, 0o750);
    let absolute = dir.path().join("sub/empty");
    assert_eq!(sandbox.read_file(absolute.to_str().unwrap(), &ctx).await.unwrap(), b"");
    assert!(!sandbox.read_file("/etc/passwd", &ctx).await.unwrap().is_empty());
}

#[tokio::test]
async fn listing_has_name_kind_and_size() {
    let dir = workspace();
    let (sandbox, ctx) = (sandbox(dir.path()).await, ExecutionContext::new());
    says(
        &sandbox,
        "mkdir sub; printf abc > file; ln -s sub to-sub; ln -s file to-file; ln -s none to-none; mkfifo pipe",
    )
    .await;
    let mut entries = sandbox.list_dir(".", &ctx).await.unwrap();
    entries.sort_by(|one, two| one.name.cmp(&two.name));
    let entry = |name: &str, is_dir, size_bytes| DirEntry { name: name.into(), is_dir, size_bytes };
    let expected = [
        entry("file", false, Some(3)),
        entry("pipe", false, None),
        entry("sub", true, None),
        entry("to-file", false, Some(3)),
        entry("to-none", false, None),
        entry("to-sub", true, None),
    ];
    assert_eq!(entries, expected);
    assert_eq!(sandbox.list_dir("sub", &ctx).await.unwrap(), []);
}

#[tokio::test]
async fn failed_calls_are_named_and_change_nothing() {
    let (dir, outside) = (workspace(), workspace());
    let (sandbox, ctx) = (sandbox(dir.path()).await, ExecutionContext::new());
    let secret = outside.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    symlink(&secret, dir.path().join("link")).unwrap();
    symlink("/etc", dir.path().join("etc")).unwrap();
    let refused = |error: Error, path: &str, words: &str| match error {
        Error::InvalidRequest(said) => assert!(said.contains(path) && said.contains(words), "{path}: {said}"),
        other => panic!("{path}: {other:?}"),
    };
    for (path, words) in [("none", "No such file"), ("link", "No such file"), ("", ""), ("..", "")] {
        refused(sandbox.read_file(path, &ctx).await.expect_err(path), path, words);
    }
    refused(
        sandbox.read_file(secret.to_str().unwrap(), &ctx).await.expect_err("outside"),
        "secret",
        "No such file",
    );
    refused(sandbox.write_file("/etc/new", b"x", &ctx).await.expect_err("system"), "/etc/new", "Read-only");
    refused(sandbox.write_file("etc/new", b"x", &ctx).await.expect_err("by a link"), "etc/new", "Read-only");
    refused(
        sandbox.write_file("none/new", b"x", &ctx).await.expect_err("missing"),
        "none/new",
        "No such file",
    );
    refused(sandbox.list_dir("none", &ctx).await.expect_err("missing"), "none", "No such file");
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
    let sandbox = with_policy(&Policy::profile(Profile::ReadOnly, dir.path())).await;
    refused(sandbox.write_file("new", b"x", &ctx).await.expect_err("read-only"), "new", "Read-only");
    assert!(!dir.path().join("new").exists());
}
