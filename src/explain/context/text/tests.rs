//! Messages of real programs, and random text.

use proptest::prelude::*;

use super::*;

fn named(line: &str) -> Vec<(Errno, Vec<String>)> {
    let of_file = |complaint| match complaint {
        Complaint::File(FileTrouble { errno, named, .. }) => {
            Some((errno, named.iter().map(|named| named.path.display().to_string()).collect()))
        }
        Complaint::Network(_) => None,
    };
    complaints(line.as_bytes()).into_iter().filter_map(of_file).collect()
}

#[test]
fn paths_are_found_in_messages_of_real_programs() {
    for (line, errno, path) in [
        ("cat: /x: No such file or directory", Errno::ENOENT, "/x"),
        ("cat: '/a b/c': No such file or directory", Errno::ENOENT, "/a b/c"),
        ("cat: /a/b: No such file or directory\r", Errno::ENOENT, "/a/b"),
        ("sh: 1: cannot create /etc/x: Read-only file system", Errno::EROFS, "/etc/x"),
        ("sh: 1: cannot create x: Read-only file system", Errno::EROFS, "x"),
        ("sh: 3: cannot open /data/in: No such file", Errno::ENOENT, "/data/in"),
        ("bash: line 1: /etc/x: Read-only file system", Errno::EROFS, "/etc/x"),
        ("bash: line 1: out.txt: Read-only file system", Errno::EROFS, "out.txt"),
        ("touch: cannot touch '/usr/x': Read-only file system", Errno::EROFS, "/usr/x"),
        ("touch: cannot touch ‘/usr/x’: Read-only file system", Errno::EROFS, "/usr/x"),
        ("mkdir: cannot create directory `/usr/x': Read-only file system", Errno::EROFS, "/usr/x"),
        ("rm: cannot remove '/usr/bin/env': Read-only file system", Errno::EROFS, "/usr/bin/env"),
        ("tar: /usr/x: Cannot open: Read-only file system", Errno::EROFS, "/usr/x"),
        ("tar: x/y: Cannot open: Read-only file system", Errno::EROFS, "x/y"),
        ("OSError: [Errno 30] Read-only file system: '/usr/x'", Errno::EROFS, "/usr/x"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/in'", Errno::ENOENT, "data/in"),
        ("Error: EROFS: read-only file system, open '/usr/x'", Errno::EROFS, "/usr/x"),
        ("open /usr/x: read-only file system", Errno::EROFS, "/usr/x"),
        ("panic: open /a b/x: no such file or directory", Errno::ENOENT, "/a b/x"),
        ("Error: failed to write `/usr/x`: Read-only file system (os error 30)", Errno::EROFS, "/usr/x"),
        ("java.io.FileNotFoundException: /usr/x (Read-only file system)", Errno::EROFS, "/usr/x"),
        ("error: could not lock config file .git/config: Read-only file system", Errno::EROFS, ".git/config"),
        ("fatal: cannot create directory at '/srv/x': No such file or directory", Errno::ENOENT, "/srv/x"),
        ("zsh: read-only file system: /usr/x", Errno::EROFS, "/usr/x"),
        ("dd: error writing '/tmp/x': No space left on device", Errno::ENOSPC, "/tmp/x"),
        ("mv: cannot move '.git' to 'x': Device or resource busy", Errno::EBUSY, ".git"),
        ("\u{1b}[1;31mls: /x: No such file or directory\u{1b}[0m", Errno::ENOENT, "/x"),
    ] {
        let found = named(line);
        assert_eq!(found.len(), 1, "{line}: {found:?}");
        assert_eq!(found[0].0, errno, "{line}");
        assert_eq!(found[0].1.first().map(String::as_str), Some(path), "{line}: {found:?}");
    }
}

#[test]
fn an_error_on_its_own_line_is_about_the_path_quoted_shortly_before() {
    let text = "error: failed to write `/ws/target/x`\n\nCaused by:\n  Read-only file system (os error 30)\n";
    let above = |named| Complaint::File(FileTrouble { errno: Errno::EROFS, writes: false, named });
    let named = Named { path: "/ws/target/x".into(), is_same_line: false, is_alternative: false };
    assert_eq!(complaints(text.as_bytes()), [above(vec![named])]);
    let far = format!("`/x`\n{}Read-only file system\n", "a\n".repeat(NEAR));
    assert_eq!(complaints(far.as_bytes()), [above(Vec::new())]);
}

#[test]
fn the_program_is_not_a_path_and_other_lines_are_ignored() {
    assert_eq!(named("cat: Read-only file system"), [(Errno::EROFS, vec![])]);
    assert_eq!(named("it's a read-only file system, isn't it"), [(Errno::EROFS, vec![])]);
    for line in
        ["", "all is well", "error: 12", "make: *** [Makefile:3: all] Error 1", "cat: /x: Is a directory"]
    {
        assert_eq!(complaints(line.as_bytes()), [], "{line}");
    }
    // The modes of files cause it too.
    assert_eq!(complaints(b"cat: /x: Permission denied"), []);
}

#[test]
fn network_errors_are_found() {
    let name = |name: &str| Complaint::Network(Trouble::Name(Some(name.to_owned())));
    for (line, expected) in [
        ("curl: (6) Could not resolve host: Example.COM", name("example.com")),
        ("fatal: unable to access 'https://a.b/': Could not resolve host: a.b", name("a.b")),
        ("Error: getaddrinfo EAI_AGAIN registry.npmjs.org", name("registry.npmjs.org")),
        ("ping: x: Temporary failure in name resolution", Complaint::Network(Trouble::Name(None))),
        ("connect: Network is unreachable", Complaint::Network(Trouble::Unreachable)),
        ("ssh: connect to host a port 22: Permission denied", Complaint::Network(Trouble::Port(22))),
        ("connect 192.0.2.1:25: permission denied", Complaint::Network(Trouble::Port(25))),
    ] {
        assert_eq!(complaints(line.as_bytes()), [expected], "{line}");
    }
    assert_eq!(complaints(b"bind to port 80: Permission denied"), []);
}

#[test]
fn only_the_last_messages_of_a_flood_are_kept() {
    let text: String = (0..10_000).map(|n| format!("cat: /x{n}: No such file or directory\n")).collect();
    let found = named(&text);
    assert_eq!((found.len(), found[MOST - 1].1.first().map(String::as_str)), (MOST, Some("/x9999")));
    let long = format!("cat: /{}: No such file or directory", "a".repeat(1 << 20));
    assert_eq!(complaints(long.as_bytes()), []);
}

fn line() -> impl Strategy<Value = String> {
    let words: Vec<&str> =
        WORDS.iter().map(|(words, _)| *words).chain(LOOKUPS.iter().map(|(words, _)| *words)).collect();
    let part = prop_oneof![
        proptest::sample::select(words).prop_map(str::to_owned),
        proptest::sample::select(vec![
            ": ", "'", "\"", "`", "‘", "’", "“", "/", " /", "\u{1b}[", "(", "port ", "cannot "
        ])
        .prop_map(str::to_owned),
        ".{0,12}",
    ];
    proptest::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
        complaints(&bytes);
    }

    #[test]
    fn any_line_is_read_and_every_path_is_part_of_it(line in line()) {
        let plain: Vec<String> = line.split(['\n', '\r']).map(without_colours).collect();
        for complaint in complaints(line.as_bytes()) {
            let Complaint::File(FileTrouble { named, .. }) = complaint else { continue };
            prop_assert!(named.len() <= 4);
            for named in named {
                let path = named.path.to_string_lossy().into_owned();
                prop_assert!(plain.iter().any(|line| line.contains(&path)), "{path:?} of {line:?}");
            }
        }
    }

    #[test]
    fn a_quoted_absolute_path_of_any_name_is_found(name in "[^\n\r'`\"‘’“”\u{1b}]{0,40}") {
        let line = format!("touch: cannot touch '/{name}': Read-only file system");
        let path = format!("/{name}");
        prop_assert_eq!(named(&line), [(Errno::EROFS, vec![path])]);
    }
}
