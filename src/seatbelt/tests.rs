//! What profiles allow, by another reader of them.

use proptest::prelude::*;

use super::*;

#[path = "../../tests/macos/judge.rs"]
pub(crate) mod judge;

use judge::{Profile, Subject};

fn place(path: &str, granted: Use) -> (SeatbeltPath, Use) {
    (SeatbeltPath::new(Path::new(path)).expect(path), granted)
}

fn judged(grants: &Grants) -> Profile {
    Profile::parse(&grants.profile())
}

/// Whether a file with this real path can be read, and written.
fn may(profile: &Profile, path: &str) -> [bool; 2] {
    ["file-read-data", "file-write-data"].map(|operation| profile.allows(operation, &Subject::File(path)))
}

/// The profile for a command that may write to a workspace.
fn usual() -> Grants {
    Grants { tools: true, places: vec![place("/Users/me/repo", Use::Write)], ..Grants::default() }
}

#[test]
fn what_is_not_granted_is_refused() {
    let profile = judged(&usual());
    for (path, expected) in [
        ("/Users/me/repo/a/b", [true, true]),
        ("/Users/me/repo", [true, true]),
        ("/Users/me/repository", [false, false]),
        ("/Users/me/.ssh/id_ed25519", [false, false]),
        ("/Users/me", [false, false]),
        ("/usr/bin/true", [true, false]),
        ("/opt/homebrew/bin/git", [true, false]),
        ("/private/etc/hosts", [true, false]),
        ("/private/tmp/x", [false, false]),
        ("/private/var/folders/xy/T/x", [false, false]),
        ("/dev/null", [true, true]),
        ("/dev/fd/63", [true, true]),
        ("/dev/fd/x", [false, false]),
        ("/dev/ttys004", [true, true]),
        ("/dev/disk0", [false, false]),
    ] {
        assert_eq!(may(&profile, path), expected, "{path}");
    }
    assert!(profile.allows("file-read-metadata", &Subject::File("/Users/me")), "a way to the workspace");
    assert!(!profile.allows("file-read-metadata", &Subject::File("/Users/you")));
    assert!(profile.allows("process-fork", &Subject::Nothing));
    assert!(profile.allows("process-exec", &Subject::File("/usr/bin/true")));
    assert!(!profile.allows("process-exec", &Subject::File("/Users/me/bin/x")));
    assert!(!profile.allows("signal", &Subject::Stranger));
    assert!(!profile.allows("process-info-pidinfo", &Subject::Stranger));
    assert!(!profile.allows("mach-lookup", &Subject::Service("com.apple.securityd")), "the keychain");
}

#[test]
fn the_nearest_place_decides() {
    let places = vec![
        place("/w/keys/public", Use::Read),
        place("/w", Use::Write),
        place("/w/keys", Use::Hidden),
        place("/w/keys/public/mine", Use::Write),
        place("/w/config", Use::Read),
    ];
    let profile = judged(&Grants { places, ..Grants::default() });
    for (path, expected) in [
        ("/w/x", [true, true]),
        ("/w/config", [true, false]),
        ("/w/config/x", [true, false]),
        ("/w/keys/secret", [false, false]),
        ("/w/keys/public/x", [true, false]),
        ("/w/keys/public/mine/x", [true, true]),
    ] {
        assert_eq!(may(&profile, path), expected, "{path}");
    }
    let unlinks = |path| profile.allows("file-write-unlink", &Subject::File(path));
    assert!(unlinks("/w/x") && !unlinks("/w"), "else a command could rename what is above");
    assert!(!unlinks("/w/keys") && !unlinks("/w/config"));
}

#[test]
fn what_a_profile_names_stays_where_it_is() {
    let link = SeatbeltPath::new(Path::new("/w/links/one")).expect("a path");
    let places = vec![
        place("/w", Use::Write),
        place("/w/a/b", Use::Write),
        place("/Users/me/file", Use::Write),
        place("/w/later/keys", Use::Hidden),
    ];
    let profile = judged(&Grants { places, links: vec![link], ..Grants::default() });
    for path in ["/w", "/w/a", "/w/a/b", "/Users/me/file", "/w/links", "/w/links/one", "/w/later"] {
        assert!(!profile.allows("file-write-unlink", &Subject::Directory(path)), "{path}");
        assert!(!profile.allows("file-write-create", &Subject::Link(path)), "{path}");
        assert!(profile.allows("file-write-create", &Subject::File(path)), "{path} may be made");
    }
    for path in ["/w/x", "/w/a/x", "/w/a/b/x", "/w/links/two"] {
        assert!(profile.allows("file-write-unlink", &Subject::File(path)), "{path}");
        assert!(profile.allows("file-write-create", &Subject::Link(path)), "{path}");
    }
}

#[test]
fn of_several_uses_of_a_path_the_strictest_counts() {
    for uses in [[Use::Read, Use::Write], [Use::Write, Use::Read]] {
        let places = uses.map(|granted| place("/w/x", granted)).to_vec();
        assert_eq!(may(&judged(&Grants { places, ..Grants::default() }), "/w/x"), [true, false]);
    }
    let places = vec![place("/w", Use::Hidden), place("/w", Use::Write)];
    assert_eq!(may(&judged(&Grants { places, ..Grants::default() }), "/w/x"), [false, false]);
}

#[test]
fn a_unix_socket_is_a_file_whatever_the_network() {
    for reach in [Reach::Nowhere, Reach::Loopback(4711), Reach::Everywhere] {
        let home = vec![
            place("/Users/me", Use::Write),
            place("/Users/me/.docker", Use::Hidden),
            place("/Users/me/protected", Use::Read),
        ];
        let profile = judged(&Grants { reach, places: home, ..Grants::default() });
        for operation in ["network-outbound", "network-bind"] {
            let may = |path| profile.allows(operation, &Subject::File(path));
            assert!(may("/Users/me/socket"), "{reach:?}");
            for path in [
                "/Users/me/.docker/run/docker.sock",
                "/Users/me/protected/socket",
                "/private/var/run/docker.sock",
                "/private/tmp/tmux-501/default",
            ] {
                assert!(!may(path), "{reach:?} {operation} {path}");
            }
        }
        let resolves = profile.allows("network-outbound", &Subject::File(RESOLVER));
        assert_eq!(resolves, reach == Reach::Everywhere);
    }
}

#[test]
fn the_kernel_tells_of_the_machine_and_not_of_other_processes() {
    let profile = judged(&usual());
    let tells = |name| profile.allows("sysctl-read", &Subject::Parameter(name));
    for name in ["hw.ncpu", "hw.optional.arm.FEAT_SHA3", "kern.osrelease", "kern.argmax", "vm.loadavg"] {
        assert!(tells(name), "{name}");
    }
    for name in ["kern.procargs2", "kern.procargs2.1", "kern.proc.all", "kern.proc.pid.1", "net.inet.ip.x"] {
        assert!(!tells(name), "{name}");
    }
    // As if system.sb allowed them.
    let text = usual().profile().replace("(import \"system.sb\")", "(allow process-info* sysctl-read)");
    let profile = Profile::parse(&text);
    assert!(!profile.allows("sysctl-read", &Subject::Parameter("kern.procargs2.1")));
    assert!(!profile.allows("process-info-pidinfo", &Subject::Stranger));
}

#[test]
fn what_is_none_of_the_system_is_closed_unless_it_is_granted() {
    let data = "/System/Volumes/Data/Users/me/.ssh/id_ed25519";
    let all = judged(&Grants { reads_all: true, ..usual() });
    for profile in [judged(&usual()), all] {
        for path in [data, "/opt/homebrew/var/postgres/x", "/usr/local/var/x"] {
            assert_eq!(may(&profile, path), [false, false], "{path}");
        }
        assert_eq!(may(&profile, "/System/Volumes/Preboot/Cryptexes/OS/x"), [true, false]);
    }
    let places = vec![place("/usr/local/var/mine", Use::Write)];
    assert_eq!(may(&judged(&Grants { places, ..usual() }), "/usr/local/var/mine/x"), [true, true]);
}

#[test]
fn what_git_obeys_is_not_written_wherever_it_is() {
    let profile = judged(&Grants { protects_git: true, ..usual() });
    let writes = |path: &str| {
        let path = format!("/Users/me/repo/{path}");
        ["file-write-data", "file-write-create", "file-write-unlink"]
            .map(|operation| profile.allows(operation, &Subject::File(&path)))
    };
    for path in [
        ".git",
        ".GIT",
        "sub/.git",
        ".git/config",
        ".git/CONFIG",
        ".git/config.worktree",
        ".git/hooks",
        ".git/hooks/pre-commit",
        ".Git/Hooks/pre-commit",
        ".git/modules/a/config",
        ".git/modules/a/b/hooks/x",
        ".git/worktrees/a/commondir",
        ".git/worktrees/a/config.worktree",
        ".git/remotes/x",
        ".git/branches/x",
        ".git/modules/a/refs/b/config",
        ".git/modules/a/objects/b/hooks/x",
        ".git/refs/x/.git",
    ] {
        assert_eq!(writes(path), [false; 3], "{path}");
    }
    for path in [
        ".git/index",
        ".git/HEAD.lock",
        ".git/objects/aa/bb",
        ".git/refs/heads/config2",
        ".git/refs/heads/config",
        ".git/refs/heads/hooks/x",
        ".git/refs/remotes/origin/main",
        ".git/logs/refs/remotes/origin/config",
        ".git/worktrees/a/index.lock",
        ".git/worktrees/a/logs/refs/bisect/x",
        ".git/modules/a/index",
        ".git/modules/a/b/index.lock",
        ".git/modules/a/b/refs/remotes/origin/main",
        ".gitignore",
        "x.git",
        "config",
    ] {
        assert_eq!(writes(path), [true; 3], "{path}");
    }
    assert_eq!(may(&profile, "/Users/me/repo/.git/config"), [true, false], "git reads it");
    assert_eq!(may(&judged(&usual()), "/Users/me/repo/.git/config"), [true, true], "if the policy trusts");
}

#[test]
fn repositories_in_a_repository_do_not_come_and_go() {
    let profile = judged(&Grants { protects_git: true, ..usual() });
    let moves = |path: &str| {
        let path = format!("/Users/me/repo/{path}");
        ["file-write-create", "file-write-unlink"]
            .map(|operation| profile.allows(operation, &Subject::Directory(&path)))
    };
    for path in [
        ".git/modules",
        ".git/MODULES",
        ".git/modules/a",
        ".git/modules/a/b",
        ".git/modules/a/modules/b",
        ".git/modules/a/objects",
        ".git/modules/a/refs",
        ".git/worktrees",
        ".git/worktrees/a",
        "sub/.git/Worktrees/a",
    ] {
        assert_eq!(moves(path), [false; 2], "{path}");
    }
    for path in [".git/refs/heads/modules", ".git/worktrees/a/rebase-merge", ".git/objects/aa", "modules/a"] {
        assert_eq!(moves(path), [true; 2], "{path}");
    }
    for path in [".git/modules/a/objects/aa", ".git/modules/a/b/refs/remotes/origin"] {
        assert_eq!(moves(path), [true, false], "git makes {path}");
    }
}

#[test]
fn the_network_is_what_was_granted() {
    let reaches = |reach, address| {
        judged(&Grants { reach, ..usual() }).allows("network-outbound", &Subject::Address(address))
    };
    for (reach, proxy, other) in [
        (Reach::Nowhere, false, false),
        (Reach::Loopback(4711), true, false),
        (Reach::Everywhere, true, true),
    ] {
        assert_eq!(reaches(reach, "localhost:4711"), proxy, "{reach:?}");
        assert_eq!(reaches(reach, "localhost:4712"), other, "{reach:?}");
        assert_eq!(reaches(reach, "192.0.2.1:443"), other, "{reach:?}");
    }
    let binds = |path| judged(&usual()).allows("network-bind", &Subject::File(path));
    assert!(binds("/Users/me/repo/socket") && !binds("/private/tmp/socket"), "Unix sockets are files");
}

#[test]
fn everything_is_readable_but_what_is_hidden() {
    let places = vec![place("/Users/me/.ssh", Use::Hidden), place("/Users/me/repo", Use::Write)];
    let profile = judged(&Grants { reads_all: true, places, ..Grants::default() });
    for (path, expected) in [
        ("/Users/you/x", [true, false]),
        ("/Users/me/.ssh/id_ed25519", [false, false]),
        ("/Users/me/repo/x", [true, true]),
    ] {
        assert_eq!(may(&profile, path), expected, "{path}");
    }
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
    ] {
        assert_eq!(SeatbeltPath::new(Path::new(given)).expect(given).0, path);
    }
}

#[test]
fn what_no_profile_can_contain_is_refused() {
    for (path, words) in
        [("/srv/a\0", "NUL"), ("/srv/../x", ".."), ("x", "not absolute"), ("", "not absolute"), ("/", "root")]
    {
        assert!(SeatbeltPath::new(Path::new(path)).expect_err(path).contains(words), "{path}");
    }
}

#[test]
fn a_rule_without_values_is_not_written() {
    let mut text = String::new();
    allow(&mut text, "file-write*", "subpath", &[] as &[&str]);
    assert_eq!(text, "", "it would allow everything");
}

#[test]
fn each_line_says_why() {
    let text = usual().profile();
    assert!(text.starts_with("(version 1)\n(deny default)\n(import \"system.sb\") ; "));
}

const HOSTILE: &[&str] = &[
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
];

#[test]
fn hostile_names_stay_in_their_string() {
    for name in HOSTILE {
        let path = format!("/srv/{name}");
        let profile = judged(&Grants { places: vec![place(&path, Use::Write)], ..Grants::default() });
        assert_eq!(may(&profile, &path), [true, true], "{name:?}");
        assert_eq!(may(&profile, "/srv/other"), [false, false], "{name:?}");
        assert_eq!(profile.rules().len(), judged(&usual()).rules().len(), "{name:?}");
    }
}

proptest! {
    /// For any name, the other reader finds exactly this path and no other rule.
    #[test]
    fn no_path_breaks_out(name in "[^\0/]{1,12}", hard in "[\"\\\\()\n\r;#|x0-9a]{1,16}") {
        let paths = [format!("/srv/x{name}"), format!("/srv/y{hard}")];
        let places = paths.iter().map(|path| place(path, Use::Write)).collect();
        let profile = judged(&Grants { places, ..Grants::default() });
        for path in &paths {
            prop_assert_eq!(may(&profile, path), [true, true]);
        }
        prop_assert_eq!(may(&profile, "/srv/z"), [false, false]);
        let two = vec![place("/srv/p", Use::Write), place("/srv/q", Use::Write)];
        let plain = judged(&Grants { places: two, ..Grants::default() });
        prop_assert_eq!(profile.rules().len(), plain.rules().len());
    }
}
