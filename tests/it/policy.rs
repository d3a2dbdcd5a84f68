//! Invalid policy files.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
};

use crate::support::{only_as_user, refused, workspace};

#[test]
fn mistakes_are_refused_with_line_and_key() {
    let dir = workspace();
    for (name, text, words) in [
        ("a.toml", "\nprofil = 'ci-only'", ":2:1: unknown field `profil`"),
        ("a.toml", "[limits]\npids = 1\nmem = '1G'", ":3:1: unknown field `mem`"),
        ("a.toml", "[[mounts]]\ntype = 'ro'\nsource = '/usr'\ntaget = '/x'", ":4:1: unknown field `taget`"),
        ("a.toml", "hostname = 'a'\nhostname = 'b'", ":2:1: duplicate key"),
        ("a.toml", "profile = 'ci'", "unknown variant `ci`"),
        ("a.toml", "limits.timeout = '1d'", ":1:18: time `1d`: expected"),
        ("a.toml", "workspace = [", ":1:"),
        ("a.toml", "require.root = 'if_available'", "require.root"),
        ("a.json", "{\"network\": {\n\"mod\": 1}}", ":2:"),
        ("a.json", "{\"hostname\": \"a\", \"hostname\": \"b\"}", "duplicate field `hostname`"),
        ("a.json", "{\"profile\": \"ci-only\"", ":1:"),
        ("a.json", "[]", ":1:1: expected an object"),
        ("a.toml", "", ":1:1: the policy is empty"),
        ("a.json", " \n", ":1:1: the policy is empty"),
        ("a.yaml", "profile: ci-only", "the name must end in .toml or .json"),
        ("a", "", "the name must end in .toml or .json"),
    ] {
        let file = dir.path().join(name);
        fs::write(&file, text).unwrap();
        let said = refused(dir.path(), &["--policy", name]);
        assert!(said.starts_with("kennel: policy: ") && said.contains(words), "{text}: {said}");
        assert!(said.contains(name) || said.contains("require.root"), "the file is named: {said}");
        fs::remove_file(file).unwrap();
    }
}

#[test]
fn binary_files_are_refused_in_one_short_line() {
    let dir = workspace();
    let garbage: Vec<u8> =
        (0..500_000u32).map(|index| index.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    for (name, bytes, words) in [
        ("binary.toml", garbage.clone(), "not UTF-8"),
        ("binary.json", garbage, "not UTF-8"),
        ("huge.toml", vec![b'#'; (1 << 20) + 1], "is larger than 1 MiB"),
        ("deep.json", [b'['; 500_000].to_vec(), ":1:"),
        ("deep.toml", [&b"a="[..], &[b'['; 500_000]].concat(), ":1:"),
        ("nul.toml", b"profile = 'a\0b'".to_vec(), ":1:"),
        ("escape.toml", b"hostname = '\x1b[2J'".to_vec(), ""),
    ] {
        fs::write(dir.path().join(name), bytes).unwrap();
        let said = refused(dir.path(), &["--policy", name]);
        assert!(said.contains(words), "{name}: {said}");
        assert!(said.lines().count() <= 2 && said.len() < 2000, "{name}: {said}");
        assert!(!said.contains('\x1b') && !said.contains('\0'), "{name}: {said:?}");
    }
}

#[test]
fn missing_files_are_refused_by_name() {
    let dir = workspace();
    fs::create_dir(dir.path().join("dir.toml")).unwrap();
    nix::unistd::mkfifo(&dir.path().join("fifo.toml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (name, words) in [
        ("absent.toml", "read absent.toml: No such file or directory"),
        ("dir.toml", "is not a regular file"),
        ("fifo.toml", "is not a regular file"),
        ("dir.toml/x.toml", "No such file or directory"),
    ] {
        let said = refused(dir.path(), &["--policy", name]);
        assert!(said.contains(name) && said.contains(words), "{name}: {said}");
        let is_absent = words.starts_with("No such") || words.starts_with("read ");
        assert_eq!(said.contains("hint: name a file that is there"), is_absent, "{name}: {said}");
    }
}

#[test]
fn unreadable_file_is_refused_by_name() {
    only_as_user!();
    let dir = workspace();
    let file = dir.path().join("p.toml");
    fs::write(&file, "profile = 'ci-only'").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o000)).unwrap();
    let said = refused(dir.path(), &["--policy", "p.toml"]);
    assert!(said.contains("read p.toml: Permission denied"), "{said}");
}

#[test]
fn flags_are_judged_together_with_the_file() {
    let dir = workspace();
    fs::write(
        dir.path().join("p.toml"),
        "profile = 'no-network'\nmounts = [{ type = 'ro', source = '/usr/share', target = '/x' }]",
    )
    .unwrap();
    let said = refused(dir.path(), &["--policy", "p.toml", "--net", "host"]);
    assert!(said.contains("profile no-network has no network"), "{said}");
    let said = refused(dir.path(), &["--policy", "p.toml", "--tmpfs", "/x"]);
    assert!(said.contains("conflict at /x: ro /usr/share and tmpfs; keep one"), "{said}");
}
