//! Compiled code: where it is kept, and what happens if it cannot be.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Command, Output};

use super::{Home, fails, files, told};
use crate::support::{NOTHING, only_as_root, says};

fn good() -> Vec<u8> {
    says(r#"{"output": {}}"#)
}

const OUTPUT: &str = "{}\n";

#[test]
fn code_is_kept_below_the_home_or_xdg_cache_home() {
    for home in Home::for_all(NOTHING, &good()) {
        assert_eq!(home.run(&["--no-cache"]).status.code(), Some(0));
        assert!(!home.at(".cache").exists());
        let (status, stdout, stderr) = told(&home.output(&["compile", "c.wasm"]));
        assert_eq!((status, &*stderr), (Some(0), ""));
        let [file] = &home.kept()[..] else { panic!("{stdout}") };
        let expected = format!("K, {}\n", file.display());
        assert!(stdout.starts_with("c.wasm: ") && stdout.ends_with(&expected), "{stdout}");
        assert_eq!(fs::metadata(home.at(".cache/kennel")).unwrap().permissions().mode() & 0o777, 0o700);
        // What is there already is not compiled again.
        let made = fs::metadata(file).unwrap().modified().unwrap();
        assert_eq!(told(&home.output(&["compile", "c.wasm"])).1, stdout);
        assert_eq!(told(&home.run(&[])), (Some(0), OUTPUT.to_owned(), String::new()));
        assert_eq!(fs::metadata(file).unwrap().modified().unwrap(), made);
        let elsewhere = home.at("xdg");
        let mut kennel = home.kennel(&["compile", "c.wasm"]);
        assert_eq!(kennel.env("XDG_CACHE_HOME", &elsewhere).status().unwrap().code(), Some(0));
        assert_eq!(files(&elsewhere.join("kennel/connectors")).len(), 1);
    }
}

/// `run` goes on without the cache and says so; `compile` fails.
fn is_unusable(home: &Home, why: &str) {
    let (status, stdout, stderr) = told(&home.run(&[]));
    assert_eq!((status, &*stdout), (Some(0), OUTPUT), "{stderr}");
    assert!(stderr.starts_with("kennel: note: cache: compiled code is not kept: use the cache "), "{stderr}");
    assert!(stderr.contains(why) && stderr.lines().count() == 1, "{stderr}");
    assert_eq!(told(&home.run(&["-q"])), (Some(0), OUTPUT.to_owned(), String::new()));
    assert_eq!(told(&home.run(&["--no-cache"])), (Some(0), OUTPUT.to_owned(), String::new()));
    let said = format!("kennel: use the cache of compiled connectors in {}: ", home.at(".cache").display());
    let said = said.replace(".cache: ", ".cache/kennel/connectors: ");
    fails(&home.output(&["compile", "c.wasm"]), 125, &[&said, why, "kennel: hint: choose a directory"]);
}

#[test]
fn a_cache_that_others_can_write_to_is_not_used() {
    for home in Home::for_all(NOTHING, &good()) {
        assert_eq!(home.output(&["compile", "c.wasm"]).status.code(), Some(0));
        for path in [".cache/kennel/connectors", ".cache/kennel", ".cache"] {
            fs::set_permissions(home.at(path), Permissions::from_mode(0o770)).unwrap();
            is_unusable(&home, &format!("others can write to {}", home.at(path).display()));
            fs::set_permissions(home.at(path), Permissions::from_mode(0o700)).unwrap();
        }
        fs::remove_dir_all(home.at(".cache/kennel")).unwrap();
        home.write(".cache/kennel", "");
        is_unusable(&home, "Not a directory");
    }
}

#[test]
fn a_cache_of_another_user_is_not_used() {
    only_as_root!();
    for home in Home::for_all(NOTHING, &good()) {
        assert_eq!(home.output(&["compile", "c.wasm"]).status.code(), Some(0));
        let other = if home.user.is_some() { 1001 } else { 1000 };
        chown(home.at(".cache/kennel"), Some(other), None).unwrap();
        fs::set_permissions(home.at(".cache/kennel"), Permissions::from_mode(0o755)).unwrap();
        is_unusable(&home, &format!("uid {other} can write to "));
    }
}

/// Runs a script in a mount namespace of its own, with `$K` for `kennel connector`.
fn in_mount_namespace(home: &Home, script: &str) -> Output {
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", &format!("K=\"$1 connector\"; {script}"), "sh"]);
    unshare.arg(env!("CARGO_BIN_EXE_kennel")).current_dir(home.at("")).env("HOME", home.at(""));
    unshare.env_remove("XDG_CACHE_HOME").output().unwrap()
}

#[test]
fn a_full_or_read_only_disk_costs_nothing_but_time() {
    only_as_root!();
    let home = Home::new(&good());
    fs::create_dir_all(home.at(".cache/kennel/connectors")).unwrap();
    let run = "$K run c.wasm op --manifest m.toml";
    let compile = "$K compile c.wasm; echo = $?; ls -A .cache/kennel/connectors";
    let output = in_mount_namespace(
        &home,
        &format!(
            "mount -t tmpfs -o size=8k,mode=700 none .cache/kennel/connectors && {run} && {run} && {compile}"
        ),
    );
    let (_, stdout, stderr) = told(&output);
    assert_eq!(stdout, format!("{OUTPUT}{OUTPUT}= 125\n"), "{stderr}");
    let directory = home.at(".cache/kennel/connectors");
    let said = |why: &str| format!("kennel: c.wasm: keep compiled code in {}: {why}\n", directory.display());
    assert_eq!(stderr, said("No space left on device"));
    // Read-only, and empty.
    let read_only = "d=.cache/kennel/connectors; mount --bind $d $d && mount -o remount,bind,ro $d";
    let output = in_mount_namespace(&home, &format!("{read_only} && {run} && {compile}"));
    let (_, stdout, stderr) = told(&output);
    assert_eq!(stdout, format!("{OUTPUT}= 125\n"), "{stderr}");
    assert_eq!(stderr, said("Read-only file system"));
    // What is in it is used.
    assert_eq!(home.output(&["compile", "c.wasm"]).status.code(), Some(0));
    let output = in_mount_namespace(&home, &format!("{read_only} && {run} && $K compile c.wasm"));
    let (status, stdout, stderr) = told(&output);
    assert_eq!((status, stdout.lines().count(), &*stderr), (Some(0), 2, ""), "{stdout}");
}

#[test]
fn two_processes_compile_at_once() {
    let home = Home::new(&good());
    let start = || home.kennel(&["compile", "c.wasm"]).stdout(std::process::Stdio::null()).spawn().unwrap();
    let children: Vec<_> = (0..4).map(|_| start()).collect();
    for mut child in children {
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
    assert_eq!(home.kept().len(), 1, "{:?}", home.kept());
}
