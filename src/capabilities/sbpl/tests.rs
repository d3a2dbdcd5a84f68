//! Which places of a declaration the profile has. What a profile allows is tested with its writer.

use std::os::unix::ffi::OsStringExt;

use super::*;

fn caps(net: bool, write: &[&str], read: &[&str]) -> Capabilities {
    let list = |paths: &[&str]| paths.iter().map(PathBuf::from).collect();
    Capabilities { net, write_paths: list(write), read_paths: list(read), ..Capabilities::default() }
}

fn made(caps: &Capabilities) -> String {
    text(caps, Path::new("/Users/me/repo"), Some(OsStr::new("/Users/me"))).expect("a text")
}

fn written(path: &str) -> String {
    format!("(allow file-write* network-bind network-outbound\n    (subpath \"{path}\"))")
}

fn read(path: &str) -> String {
    format!("(allow file-read* file-map-executable process-exec\n    (subpath \"{path}\"))")
}

#[test]
fn the_same_declaration_is_the_same_text() {
    let twice = caps(false, &["cwd", "/tmp/out", "/tmp//out"], &["~/models", "~/models"]);
    assert_eq!(made(&twice), made(&caps(false, &["/tmp/out"], &["~/models"])));
}

#[test]
fn declared_paths_are_in_the_text() {
    let text = made(&caps(false, &["/tmp/out", "sub", "~/y"], &["~/models", "/Users/me/repo/src"]));
    for path in ["/Users/me/repo", "/private/tmp/out", "/Users/me/repo/sub", "/Users/me/y"] {
        assert!(text.contains(&written(path)), "{path}");
    }
    assert!(text.contains(&read("/Users/me/models")));
    assert!(!text.contains("/Users/me/repo/src"), "it is writable already");
    assert!(!text.contains("(remote ip)"));
    assert!(made(&caps(true, &[], &[])).contains("(remote ip)"));
}

#[test]
fn tools_are_of_the_system_default() {
    assert!(made(&caps(false, &[], &[])).contains("(subpath \"/opt\")"));
    assert!(!made(&caps(false, &[], &["/srv"])).contains("(subpath \"/opt\")"));
}

#[test]
fn what_cannot_be_written_is_refused() {
    let home = Some(OsStr::new("/Users/me"));
    let bytes = PathBuf::from(std::ffi::OsString::from_vec(b"/srv/\xff".to_vec()));
    for (path, words) in [
        (bytes.clone(), "not UTF-8"),
        (PathBuf::from("/srv/a\0"), "NUL"),
        (PathBuf::from("/srv/../x"), ".."),
        (PathBuf::from("../x"), ".."),
        (PathBuf::from("/"), "list the directories"),
        (PathBuf::new(), "empty"),
        (PathBuf::from("~root/x"), "another user"),
    ] {
        let declared = Capabilities { read_paths: vec![path.clone()], ..Capabilities::default() };
        let error = text(&declared, Path::new("/w"), home).expect_err("refused");
        assert!((error.what, &error.path) == ("read path", &path) && error.reason.contains(words), "{error}");
    }
    for (cwd, words) in
        [(bytes, "not UTF-8"), ("w".into(), "not absolute"), ("/".into(), "list the directories")]
    {
        let error = text(&Capabilities::default(), &cwd, home).expect_err("refused");
        assert!(error.what == "working directory" && error.reason.contains(words), "{error}");
    }
    let error = text(&caps(true, &["~/x"], &[]), Path::new("/w"), None).expect_err("no home");
    assert!(error.reason.contains("HOME"), "{error}");
}
