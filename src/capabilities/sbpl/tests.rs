//! Parses the text as S-expressions, and compares short texts as a whole.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt;

use lexpr::Value;
use proptest::prelude::*;

use super::*;

/// Each rule: its operations, and its filters with values, in order.
type Rules = Vec<(Vec<String>, Vec<(String, String)>)>;

/// Parses a profile. Panics on a rule of unknown form.
fn rules(text: &str) -> Rules {
    let mut parser = lexpr::Parser::from_str(text);
    let mut all = Vec::new();
    while let Some(value) = parser.next_value().expect("S-expressions") {
        all.push(value);
    }
    assert_eq!(all[0].to_string(), "(version 1)");
    assert_eq!(all[1].to_string(), "(deny default)");
    all.split_off(2).iter().map(allowed).collect()
}

fn allowed(rule: &Value) -> (Vec<String>, Vec<(String, String)>) {
    let mut parts = rule.list_iter().expect("a list");
    assert_eq!(parts.next().and_then(Value::as_symbol), Some("allow"));
    let (mut operations, mut filters) = (Vec::new(), Vec::new());
    for part in parts {
        match part.as_symbol() {
            Some(operation) => operations.push(operation.to_owned()),
            None => {
                let mut pair = part.list_iter().expect("a filter");
                let name = pair.next().and_then(Value::as_symbol).expect("a name").to_owned();
                let value = pair.next().expect("a value");
                let value = value.as_str().or(value.as_symbol()).expect("a text").to_owned();
                assert!(pair.next().is_none());
                filters.push((name, value));
            }
        }
    }
    (operations, filters)
}

/// The writable paths, and the readable paths besides the system.
fn granted(text: &str) -> (Vec<String>, Vec<String>) {
    let mut found = BTreeMap::from([("w", Vec::new()), ("r", Vec::new())]);
    for (operations, filters) in rules(text) {
        let writes = operations.iter().any(|operation| operation == "file-write*");
        for (name, value) in filters {
            let system = SYSTEM.iter().chain(TOOLS).any(|path| *path == value);
            if name == "subpath" && (writes || !system) {
                found.entry(if writes { "w" } else { "r" }).or_default().push(value);
            }
        }
    }
    (found.remove("w").expect("a list"), found.remove("r").expect("a list"))
}

fn caps(net: bool, write: &[&str], read: &[&str]) -> Capabilities {
    let list = |paths: &[&str]| paths.iter().map(PathBuf::from).collect();
    Capabilities { net, write_paths: list(write), read_paths: list(read), ..Capabilities::default() }
}

fn made(caps: &Capabilities) -> String {
    text(caps, Path::new("/Users/me/repo"), Some(OsStr::new("/Users/me"))).expect("a text")
}

const GOLDEN: &str = r#"(version 1)
(deny default)
(allow process-fork)
(allow process-info* (target same-sandbox))
(allow signal (target same-sandbox))
(allow sysctl-read)
(allow mach-lookup
    (global-name "com.apple.logd")
    (global-name "com.apple.system.logger")
    (global-name "com.apple.system.notification_center")
    (global-name "com.apple.system.opendirectoryd.libinfo")
    (global-name "com.apple.system.opendirectoryd.membership"))
(allow file-read*
    (literal "/"))
(allow file-read-metadata
    (literal "/Users")
    (literal "/Users/me")
    (literal "/etc")
    (literal "/private")
    (literal "/private/tmp")
    (literal "/tmp")
    (literal "/var"))
(allow file-read* file-write-data file-ioctl
    (literal "/dev/null")
    (literal "/dev/random")
    (literal "/dev/tty")
    (literal "/dev/urandom")
    (literal "/dev/zero"))
(allow file-read* file-map-executable process-exec
    (subpath "/bin")
    (subpath "/private/etc")
    (subpath "/private/var/db/dyld")
    (subpath "/private/var/db/timezone")
    (subpath "/private/var/select")
    (subpath "/sbin")
    (subpath "/System")
    (subpath "/usr"))
(allow file-read* file-map-executable process-exec
    (subpath "/Users/me/models"))
(allow file-read* file-write* file-map-executable process-exec
    (subpath "/Users/me/repo")
    (subpath "/private/tmp/out"))
"#;

#[test]
fn whole_text_without_the_network() {
    let twice = caps(false, &["cwd", "/tmp/out", "/tmp//out"], &["~/models", "~/models"]);
    assert_eq!(made(&twice), GOLDEN);
    assert_eq!(made(&caps(false, &["/tmp/out"], &["~/models"])), GOLDEN);
}

#[test]
fn the_network_adds_its_rules_and_nothing_else() {
    let with = made(&caps(true, &["/tmp/out"], &["~/models"]));
    let added = r#"(allow network*)
(allow system-socket)
(allow mach-lookup
    (global-name "com.apple.SystemConfiguration.configd")
    (global-name "com.apple.dnssd.service")
    (global-name "com.apple.trustd.agent"))
"#;
    assert_eq!(with, format!("{GOLDEN}{added}"));
}

#[test]
fn tools_are_of_the_system_default() {
    assert!(made(&caps(false, &[], &[])).contains("(subpath \"/opt\")"));
    assert!(!made(&caps(false, &[], &["/srv"])).contains("(subpath \"/opt\")"));
}

#[test]
fn links_of_the_system_are_written_as_they_lead() {
    for (given, path) in [
        ("/tmp", "/private/tmp"),
        ("/tmp/x", "/private/tmp/x"),
        ("/var/folders/a", "/private/var/folders/a"),
        ("/etc/x", "/private/etc/x"),
        ("/private/tmp/x", "/private/tmp/x"),
        ("/tmpx", "/tmpx"),
        ("/srv/tmp", "/srv/tmp"),
        ("//srv///x/./y/", "/srv/x/y"),
        ("sub", "/Users/me/repo/sub"),
        ("./cwd", "/Users/me/repo/cwd"),
        ("~", "/Users/me"),
    ] {
        let (written, _) = granted(&made(&caps(false, &[given], &[])));
        assert_eq!(written, ["/Users/me/repo", path], "{given}");
    }
}

#[test]
fn hostile_names_stay_in_their_string() {
    for name in [
        "a\"b",
        "a\\",
        "a\\\"",
        "a\")(allow default)(\"",
        "a\n(allow default)",
        "a\r\tb",
        "a;b",
        "a)b(",
        "#|a|#",
        "\\x41;",
        "\u{1}\u{7f}\u{2028}",
        "\u{e4} \u{1f980}",
        "${HOME}",
        "(param \"x\")",
    ] {
        let path = format!("/srv/{name}");
        let (written, read) = granted(&made(&caps(false, &[&path], &[&format!("{path}2")])));
        assert_eq!((written, read), (vec!["/Users/me/repo".into(), path.clone()], vec![format!("{path}2")]));
    }
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

#[test]
fn a_rule_without_values_is_not_written() {
    let mut text = String::new();
    rule(&mut text, "file-write*", "subpath", &[] as &[&str]);
    assert_eq!(text, "", "it would allow everything");
}

proptest! {
    /// For any name, the parser finds exactly the declared paths and no other rule.
    #[test]
    fn no_path_breaks_out(
        write in prop::collection::vec("[^\0/]{1,12}", 0..4),
        read in prop::collection::vec("[^\0/]{1,12}", 0..4),
        hard in "[\"\\\\()\n\r;#|x0-9a]{1,16}",
        net: bool,
    ) {
        let path = |name: &String| format!("/srv/x{name}");
        let writes = once_each(write.iter().chain([&hard]).map(path));
        let reads = once_each(read.iter().map(path));
        let declared = Capabilities {
            net,
            write_paths: writes.iter().map(PathBuf::from).collect(),
            read_paths: reads.iter().map(PathBuf::from).collect(),
            ..Capabilities::default()
        };
        let text = made(&declared);
        let plain = made(&caps(net, &["/srv/p"], &["/srv/q"]));
        let (written, shown) = granted(&text);
        prop_assert_eq!(&written[0], "/Users/me/repo");
        prop_assert_eq!(&written[1..], &writes[..]);
        prop_assert_eq!(shown, reads.clone());
        // The rules equal those of a plain declaration, except that there is no read rule if nothing is read.
        let operations = |text: &str| rules(text).into_iter().map(|(names, _)| names).collect::<Vec<_>>();
        let (mine, theirs) = (operations(&text), operations(&plain));
        prop_assert_eq!(mine.len() + usize::from(reads.is_empty()), theirs.len());
        prop_assert!(mine.iter().all(|names| theirs.contains(names)));
    }
}
