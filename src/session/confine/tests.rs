//! Paths that try to escape, and random paths. The kernel's own lookup is the oracle.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::report::failure::{Class, Failure};

const READ: OpenHow = OpenHow::new().read(true);
const WRITE: OpenHow = OpenHow::new().write(true).create(true).truncate(true);

/// A root with a file and a directory, and a secret beside the root.
fn test_root() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().canonicalize().expect("there").join("root");
    fs::create_dir_all(root.join("sub/deep")).expect("a directory");
    fs::write(root.join("file"), "ours").expect("a file");
    fs::create_dir(root.with_file_name("root2")).expect("a directory");
    fs::write(root.with_file_name("secret"), "theirs").expect("a file");
    (dir, root)
}

fn escapes<T: std::fmt::Debug>(answer: Result<T, PathEscape>) -> bool {
    matches!(answer, Err(PathEscape::Escapes { .. }))
}

fn errno<T: std::fmt::Debug>(answer: Result<T, PathEscape>) -> Option<i32> {
    match answer {
        Err(PathEscape::Path { source, .. } | PathEscape::Root { source, .. }) => source.raw_os_error(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_path_below_is_resolved_without_links_and_dots() {
    let (_dir, root) = test_root();
    symlink("sub", root.join("way")).expect("a link");
    symlink("../file", root.join("sub/back")).expect("a link");
    symlink(root.join("new"), root.join("dangling")).expect("a link");
    let cases = [
        ("", ""),
        (".", ""),
        ("file", "file"),
        ("./sub//deep/", "sub/deep"),
        ("sub/../file", "file"),
        ("missing/../file", "file"),
        ("a/b/c", "a/b/c"),
        ("way/deep/new", "sub/deep/new"),
        ("way/back", "file"),
        ("dangling/x", "new/x"),
        ("file/x", "file/x"),
        ("../root/file", "file"),
    ];
    for (candidate, expected) in cases {
        let path = confine_path(&root, candidate).unwrap_or_else(|error| panic!("{candidate}: {error}"));
        assert_eq!(path, root.join(expected), "{candidate}");
        let absolute = root.join(candidate);
        assert_eq!(confine_path(&root, absolute).expect("the same"), path, "{candidate}");
    }
}

#[test]
fn a_path_that_leads_out_is_refused() {
    let (dir, root) = test_root();
    let outside = dir.path().canonicalize().expect("there");
    symlink(&outside, root.join("up")).expect("a link");
    symlink("..", root.join("sub/over")).expect("a link");
    symlink("../../secret", root.join("sub/secret")).expect("a link");
    symlink(outside.join("missing"), root.join("dangling")).expect("a link");
    symlink("dangling", root.join("twice")).expect("a link");
    for candidate in [
        "..",
        "../secret",
        "sub/../../secret",
        "/etc/passwd",
        "/",
        "up",
        "up/secret",
        "up/new/er",
        "sub/secret",
        "dangling",
        "dangling/x",
        "twice",
        "../root2/x",
        "../root2",
    ] {
        assert!(escapes(confine_path(&root, candidate)), "{candidate}");
        let opened = open_beneath(&root, candidate, &WRITE);
        assert!(escapes(opened), "open {candidate}");
    }
    // As text, this path stays below the root, and there the lookup happens. The kernel instead goes up from
    // the target of the link.
    let up = "sub/over/../../secret";
    assert_eq!(confine_path(&root, up).expect("below"), root.join("secret"));
    assert!(escapes(open_beneath(&root, up, &WRITE)));
    assert!(escapes(confine_path(&root, outside.join("root2/x"))), "a name with the same beginning");
    let error = confine_path(&root, "../secret").expect_err("refused");
    assert_eq!(error.to_string(), format!("path ../secret escapes workspace root {}", root.display()));
    assert_eq!(fs::read(outside.join("secret")).expect("there"), b"theirs");
    assert!(!outside.join("missing").exists());
}

#[test]
fn a_root_may_be_a_link_and_has_both_names() {
    let (dir, root) = test_root();
    let alias = dir.path().join("alias");
    symlink("root", &alias).expect("a link");
    for candidate in [alias.join("file"), root.join("file"), "file".into()] {
        assert_eq!(confine_path(&alias, &candidate).expect("below"), root.join("file"));
    }
    open_beneath(&alias, alias.join("file"), &READ).expect("below");
}

#[test]
fn a_missing_root_has_its_own_error() {
    let (_dir, root) = test_root();
    for (root, expected) in [(root.join("none"), libc::ENOENT), (root.join("file"), libc::ENOTDIR)] {
        let confined = confine_path(&root, "x");
        assert!(matches!(confined, Err(PathEscape::Root { .. })), "{confined:?}");
        let error = confined.as_ref().expect_err("no root");
        assert!(error.to_string().starts_with("reach workspace root "), "the operation: {error}");
        assert!(error.failure().message.starts_with(&format!("{error}: ")), "the cause");
        assert_eq!(errno(confined), Some(expected));
        let opened = open_beneath(&root, "x", &READ);
        assert!(matches!(opened, Err(PathEscape::Root { .. })), "{opened:?}");
        assert_eq!(errno(opened), Some(expected));
    }
}

#[test]
fn paths_without_a_meaning_are_errors() {
    let (_dir, root) = test_root();
    symlink("loop", root.join("loop")).expect("a link");
    symlink("missing/../../secret", root.join("nowhere")).expect("a link");
    assert_eq!(errno(confine_path(&root, "loop")), Some(libc::ELOOP));
    assert_eq!(errno(confine_path(&root, "nowhere")), Some(libc::ENOENT));
    assert_eq!(errno(confine_path(&root, "a\0b")), Some(libc::EINVAL));
    assert_eq!(errno(open_beneath(&root, "a\0b", &READ)), Some(libc::EINVAL));
    assert_eq!(errno(confine_path(&root, "x".repeat(300))), Some(libc::ENAMETOOLONG));
}

#[test]
fn the_options_of_an_open_hold() {
    let (_dir, root) = test_root();
    let read =
        |path: &str| io::read_to_string(open_beneath(&root, path, &READ).expect("open")).expect("read");
    open_beneath(&root, "new", &WRITE)
        .and_then(|mut file| {
            file.write_all(b"1").map_err(|source| PathEscape::Path { path: "new".into(), source })
        })
        .expect("written");
    let append = OpenHow::new().append(true);
    open_beneath(&root, "new", &append).expect("open").write_all(b"2").expect("written");
    assert_eq!(read("sub/../new"), "12");
    let create_new = OpenHow::new().write(true).create_new(true).mode(crate::files::Mode::new(0o7600));
    assert_eq!(errno(open_beneath(&root, "new", &create_new)), Some(libc::EEXIST));
    let file = open_beneath(&root, "newer", &create_new).expect("open");
    let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata().expect("there").permissions());
    assert_eq!(mode & 0o7777, 0o600, "no set-user-id bit");
    assert_eq!(errno(open_beneath(&root, "none", &READ)), Some(libc::ENOENT));
    assert_eq!(errno(open_beneath(&root, "sub", &READ)), Some(libc::EISDIR));
    let directory = OpenHow::new().directory(true);
    open_beneath(&root, "sub", &directory).expect("a directory");
    open_beneath(&root, "", &directory).expect("the root itself");
    assert_eq!(errno(open_beneath(&root, "file", &directory)), Some(libc::ENOTDIR));
    for wrong in [OpenHow::new(), READ.create(true), READ.truncate(true), directory.write(true).create(true)]
    {
        assert_eq!(errno(open_beneath(&root, "file", &wrong)), Some(libc::EINVAL), "{wrong:?}");
    }
}

#[test]
fn a_fifo_is_refused_without_blocking() {
    let (_dir, root) = test_root();
    nix::unistd::mkfifo(&root.join("fifo"), Mode::from_bits_truncate(0o600)).expect("a FIFO");
    assert_eq!(errno(open_beneath(&root, "fifo", &READ)), Some(libc::EOPNOTSUPP));
    assert_eq!(errno(open_beneath(&root, "fifo", &WRITE)), Some(libc::ENXIO));
    assert_eq!(errno(open_beneath(&root, "fifo", &READ.write(true))), Some(libc::EOPNOTSUPP));
}

/// A thread replaces a directory with a link to the outside, again and again.
#[test]
fn no_race_leads_out() {
    let (dir, root) = test_root();
    let stop = Arc::new(AtomicBool::new(false));
    let (swapper, swapped) = (Arc::clone(&stop), root.clone());
    let outside = dir.path().canonicalize().expect("there");
    let target = outside.clone();
    fs::write(root.join("sub/secret"), "ours").expect("a file");
    let thread = thread::spawn(move || {
        while !swapper.load(Relaxed) {
            // Any of these may fail because of the other thread. The next round repeats them.
            let _ = fs::rename(swapped.join("sub"), swapped.join("away"));
            let _ = symlink(&target, swapped.join("sub"));
            let _ = fs::remove_file(swapped.join("sub"));
            let _ = fs::rename(swapped.join("away"), swapped.join("sub"));
        }
    });
    let (mut done, mut refused) = (0, 0);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) || (done < 20 || refused < 20) {
        assert!(begun.elapsed() < Duration::from_secs(20), "no race: {done} {refused}");
        match open_beneath(&root, "sub/secret", &READ) {
            Ok(file) => {
                assert_eq!(io::read_to_string(file).expect("readable"), "ours");
                done += 1;
            }
            Err(_) => refused += 1,
        }
        let _ = open_beneath(&root, "sub/new", &WRITE);
        let _ = open_beneath(&root, "sub/deep/../../sub/../../new", &WRITE);
    }
    stop.store(true, Relaxed);
    thread.join().expect("it ends");
    let mut names: Vec<_> =
        fs::read_dir(&outside).expect("there").map(|it| it.expect("one").file_name()).collect();
    names.sort();
    assert_eq!(names, ["root", "root2", "secret"]);
}

/// Random links and directories, and a path through them.
fn tree() -> impl Strategy<Value = (Vec<(String, Option<String>)>, String)> {
    let name = prop::sample::select(vec!["a", "b", "c", "sub", "file", "..", "."]);
    let path = |name, most| prop::collection::vec(name, 1..most).prop_map(|names: Vec<&str>| names.join("/"));
    let to = (prop::bool::ANY, path(name.clone(), 4)).prop_map(|(absolute, to)| (absolute, to));
    let place = prop::sample::select(vec!["a", "b", "c", "sub/a", "sub/b", "a/b", "a/c"]);
    let things = prop::collection::vec(
        (place, prop::option::of(to)).prop_map(|(at, to)| {
            (at.to_owned(), to.map(|(absolute, to)| if absolute { format!("/{to}") } else { to }))
        }),
        0..6,
    );
    (things, path(name, 6))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_random_tree_leads_out((things, candidate) in tree()) {
        let (_dir, root) = test_root();
        for (at, to) in things {
            // An existing name stays. Absolute links lead into the root.
            let at = root.join(at);
            let _ = match to {
                None => fs::create_dir_all(at),
                Some(to) => match to.strip_prefix('/') {
                    Some(to) => symlink(root.join(to), at),
                    None => symlink(to, at),
                },
            };
        }
        let wanted = without_dots(&root.join(&candidate));
        let truth = fs::canonicalize(&wanted);
        match confine_path(&root, &candidate) {
            Ok(path) => {
                prop_assert!(path.starts_with(&root));
                if let Ok(truth) = truth {
                    prop_assert_eq!(&path, &truth);
                }
                // A file created at this path is below the root too.
                if fs::write(&path, "made").is_ok() {
                    let made = fs::canonicalize(&path).expect("it was made");
                    prop_assert!(made.starts_with(&root), "{}", made.display());
                }
            }
            Err(PathEscape::Escapes { .. }) => {
                if let (true, Ok(truth)) = (wanted.starts_with(&root), truth) {
                    prop_assert!(!truth.starts_with(&root), "{}", truth.display());
                }
            }
            Err(_) => prop_assert!(truth.is_err()),
        }
        if let Ok(file) = open_beneath(&root, &candidate, &READ) {
            prop_assert_eq!(io::read_to_string(file).expect("readable") == "theirs", false);
        }
    }

    #[test]
    fn any_bytes_are_a_path_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let (_dir, root) = test_root();
        let candidate = OsStr::from_bytes(&bytes);
        if let Ok(path) = confine_path(&root, candidate) {
            prop_assert!(path.starts_with(&root));
        }
        let _ = open_beneath(&root, candidate, &READ);
    }
}

#[test]
fn a_refusal_says_what_was_asked_and_does_nothing_to_a_terminal() {
    let escape = PathEscape::Escapes { path: "a\n\u{1b}[2Jb\u{202e}c".into(), root: "/r".into() };
    assert!(escape.to_string().contains("a\\n\\u{1b}[2Jb\\u{202e}c"), "{escape}");
    let escape = PathEscape::Escapes { path: "/p".into(), root: "/r".into() };
    let failure = Failure::from(&escape);
    assert_eq!(failure.class, Class::CapabilityDenied);
    let asked = serde_json::to_value(failure.details).expect("plain data");
    assert_eq!(asked, serde_json::json!({"requested": "/p", "granted": ["/r"]}));
    let source = io::Error::from_raw_os_error(libc::ENOENT);
    let missing = PathEscape::Root { root: "/p".into(), source };
    assert_eq!(Failure::from(&missing).class, Class::RuntimeError);
}
