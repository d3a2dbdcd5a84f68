//! Bad input is refused with the file, the cause and the remedy.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;

use super::{Home, fails, told};
use crate::support::{NOTHING, says};

fn good() -> Vec<u8> {
    says(r#"{"output": {}}"#)
}

#[test]
fn programs_that_are_none_are_named() {
    let home = Home::new(&good());
    let truncated = &good()[..100];
    for (name, contents) in [
        ("empty.wasm", &b""[..]),
        ("text.wasm", b"(module)"),
        ("head.wasm", b"\0asm\x01\0\0\0\xff"),
        ("cut.wasm", truncated),
    ] {
        home.write(name, contents);
        let output = home.output(&["run", name, "op", "--manifest", "m.toml"]);
        fails(&output, 125, &["kennel: test cannot be loaded: "]);
        let output = home.output(&["check", name, "--manifest", "m.toml"]);
        fails(&output, 125, &["kennel: it cannot be loaded: "]);
        fails(&home.output(&["compile", name]), 125, &[&format!("kennel: {name}: it cannot be loaded: ")]);
    }
    let (_, _, stderr) = told(&home.output(&["compile", "text.wasm"]));
    assert!(stderr.contains("it is not WebAssembly: it does not begin with \\0asm"), "{stderr}");
    // The others are compiled nevertheless.
    let (status, stdout, stderr) = told(&home.output(&["compile", "empty.wasm", "c.wasm", "none.wasm"]));
    assert_eq!((status, stdout.lines().count()), (Some(125), 1), "{stdout}");
    assert!(stdout.starts_with("c.wasm: ") && stderr.contains("empty.wasm: "), "{stderr}");
    assert!(stderr.contains("none.wasm: read connector none.wasm: No such file"), "{stderr}");
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let home = Home::new(&good());
    File::create(home.at("huge.wasm")).unwrap().set_len((256 << 20) + 1).unwrap();
    for (name, said) in [
        (
            "none.wasm",
            "kennel: read connector none.wasm: No such file or directory\nkennel: hint: name a file that is there",
        ),
        ("m.toml/x", "kennel: read connector m.toml/x: Not a directory"),
        (".", "kennel: read connector .: Is a directory"),
        ("huge.wasm", "kennel: read connector huge.wasm: it is larger than 256 MiB"),
        ("/dev/fd/77", "kennel: read connector /dev/fd/77: "),
    ] {
        for words in [&["run", name, "op"][..], &["check", name]] {
            fails(&home.output(&[words, &["--manifest", "m.toml"]].concat()), 125, &[said]);
        }
    }
    File::create(home.at("huge.json")).unwrap().set_len((16 << 20) + 1).unwrap();
    fails(&home.run(&["--args-json", "huge.json"]), 125, &["huge.json: it is larger than 16 MiB"]);
}

#[test]
fn manifests_that_are_none_are_named() {
    let home = Home::new(&good());
    File::create(home.at("huge.toml")).unwrap().set_len(2 << 20).unwrap();
    home.write("empty.toml", "");
    home.write("binary.toml", b"\xff\xfe");
    home.write("wrong.toml", "[capabilities.network]\nhosts = ['*:443']");
    for (name, said) in [
        (
            "none.toml",
            "kennel: manifest: read none.toml: No such file or directory\nkennel: hint: name a file",
        ),
        ("empty.toml", "kennel: manifest: empty.toml:1:1: the manifest is empty"),
        ("huge.toml", "kennel: manifest: manifest `huge.toml`: is larger than 1 MiB"),
        ("binary.toml", "kennel: manifest: "),
        ("wrong.toml", "kennel: manifest: wrong.toml:2:9: `*:443`: a host is exact"),
        ("c.wasm", "kennel: manifest: "),
    ] {
        for words in [&["run", "c.wasm", "op"][..], &["check", "c.wasm"]] {
            fails(&home.output(&[words, &["--manifest", name]].concat()), 125, &[said]);
        }
    }
    for words in [&["run", "c.wasm", "op"][..], &["check", "c.wasm"], &["run", "c.wasm"], &["compile"]] {
        let (status, stdout, stderr) = told(&home.output(words));
        assert_eq!((status, &*stdout), (Some(125), ""));
        assert!(stderr.contains("the following required argument"), "{stderr}");
    }
}

#[test]
fn files_of_others_are_not_read() {
    for home in Home::for_all(NOTHING, &good()) {
        if home.user.is_none() && nix::unistd::geteuid().is_root() {
            continue;
        }
        for (name, said) in [("c.wasm", "read connector c.wasm"), ("m.toml", "manifest: read m.toml")] {
            fs::set_permissions(home.at(name), Permissions::from_mode(0o000)).unwrap();
            let said =
                format!("kennel: {said}: Permission denied\nkennel: hint: run as a user who may read it");
            fails(&home.run(&[]), 125, &[&said]);
            fs::set_permissions(home.at(name), Permissions::from_mode(0o600)).unwrap();
        }
        assert_eq!(home.run(&[]).status.code(), Some(0));
    }
}
