//! Compiled code on disk: it is run, so only what the caller alone could have written is loaded.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use kennel::connector::{Call, ConnectorError, Runtime};
use kennel::report::Class;
use tempfile::TempDir;

use crate::support::{NOTHING, manifest, only_as_root, says};

fn with_cache(directory: &Path) -> Result<Runtime, ConnectorError> {
    Runtime::builder().at_once(4).cache(directory).build()
}

/// A program that says who it is.
fn program(name: &str) -> Vec<u8> {
    says(format!("{{\"output\": {{\"i am\": \"{name}\"}}}}"))
}

/// Who answers if `program` is called.
async fn answers(directory: &Path, program: &[u8]) -> String {
    let connector = with_cache(directory).unwrap().compile(&manifest(NOTHING), program).unwrap();
    let output = connector.invoke(Call::new("op")).await.unwrap().output.unwrap();
    output["i am"].as_str().unwrap().to_owned()
}

/// The names in a directory, sorted.
fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A cache with the code of the programs `a` and `b`, and where it is.
fn filled() -> (TempDir, PathBuf, [PathBuf; 2]) {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("new/cache");
    let runtime = with_cache(&directory).unwrap();
    let files = ["a", "b"].map(|name| runtime.precompile(&program(name)).unwrap());
    (place, directory, files)
}

#[tokio::test]
async fn code_comes_from_the_cache() {
    let (_place, directory, [a, b]) = filled();
    for path in [&directory, &directory.join("..")] {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700);
    }
    assert_eq!(fs::metadata(&a).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(answers(&directory, &program("a")).await, "a");
    // With the code of another program in its place, the program is that one: nothing was compiled.
    fs::copy(&b, &a).unwrap();
    assert_eq!(answers(&directory, &program("a")).await, "b");
    assert_eq!(names(&directory).len(), 2);
    // Without the code it is compiled, and kept.
    fs::remove_file(&a).unwrap();
    assert_eq!(answers(&directory, &program("a")).await, "a");
    assert!(a.exists());
    assert_eq!(with_cache(&directory).unwrap().precompile(&program("a")).unwrap(), a);
}

#[tokio::test]
async fn a_file_that_is_not_whole_or_not_the_caller_s_own_is_not_loaded() {
    let (place, directory, [a, b]) = filled();
    let code = fs::read(&b).unwrap();
    let version = code.windows(3).position(|window| window == b"36.").unwrap_or(code.len() / 2);
    let elsewhere = place.path().join("elsewhere");
    fs::copy(&b, &elsewhere).unwrap();
    let plant = |bytes: &[u8]| fs::write(&a, bytes).unwrap();
    let flipped = |at: usize| {
        let mut bytes = code.clone();
        bytes[at] ^= 1;
        bytes
    };
    let mode = |mode: u32| {
        plant(&code);
        fs::set_permissions(&a, Permissions::from_mode(mode)).unwrap();
    };
    type Plant<'p> = (&'static str, Box<dyn Fn() + 'p>);
    let mut attempts: Vec<Plant<'_>> = vec![
        ("empty", Box::new(|| plant(b""))),
        ("half", Box::new(|| plant(&code[..code.len() / 2]))),
        ("a header", Box::new(|| plant(&code[..64]))),
        ("other magic", Box::new(|| plant(&flipped(0)))),
        ("other version", Box::new(|| plant(&flipped(version)))),
        ("no code", Box::new(|| plant(b"#!/bin/sh\necho hello\n"))),
        ("the program itself", Box::new(|| plant(&program("a")))),
        ("writable by the group", Box::new(|| mode(0o620))),
        ("writable by all", Box::new(|| mode(0o606))),
        ("a link", Box::new(|| symlink(&elsewhere, &a).unwrap())),
        ("a link to nothing", Box::new(|| symlink("nothing", &a).unwrap())),
        ("a FIFO", Box::new(|| fifo(&a))),
        ("a directory", Box::new(|| fs::create_dir(&a).unwrap())),
    ];
    if nix::unistd::geteuid().is_root() {
        attempts.push((
            "of another user",
            Box::new(|| {
                plant(&code);
                chown(&a, Some(1000), None).unwrap();
            }),
        ));
    }
    for (what, attempt) in attempts {
        let _ = fs::remove_file(&a);
        attempt();
        assert_eq!(answers(&directory, &program("a")).await, "a", "{what}");
        if a.is_dir() {
            // Code cannot take its place.
            let error = with_cache(&directory).unwrap().precompile(&program("a")).unwrap_err();
            assert!(error.failure().message.starts_with("keep compiled code in "), "{error}");
            fs::remove_dir(&a).unwrap();
            continue;
        }
        // Whole code has taken its place.
        assert!(a.symlink_metadata().unwrap().is_file(), "{what}");
        assert_eq!(fs::read(&elsewhere).unwrap(), code, "{what}");
        fs::copy(&b, &a).unwrap();
        assert_eq!(answers(&directory, &program("a")).await, "b", "{what}");
    }
    assert!(names(&directory).iter().all(|name| name.ends_with(".cwasm")), "{:?}", names(&directory));
}

fn fifo(path: &Path) {
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
}

#[test]
fn a_directory_that_others_can_change_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let at = |path: &str| place.path().join(path);
    let make = |path: &str, mode: u32| {
        fs::DirBuilder::new().recursive(true).create(at(path)).unwrap();
        fs::set_permissions(at(path), Permissions::from_mode(mode)).unwrap();
    };
    let refused = |path: &str, why: &str| {
        let error = with_cache(&at(path)).unwrap_err();
        let message = &error.failure().message;
        assert!(message.starts_with("use the cache of compiled connectors in "), "{message}");
        assert!(message.contains(why), "{path}: {message}");
        assert!(error.remedy().unwrap().to_string().contains("only you can write to"), "{error:?}");
    };
    for mode in [0o720, 0o702, 0o777, 0o1777] {
        make("open", mode);
        refused("open", "others can write to ");
    }
    // It may be named through a link, and others may read it.
    make("closed", 0o755);
    symlink("closed", at("link")).unwrap();
    with_cache(&at("closed")).unwrap();
    with_cache(&at("link")).unwrap();
    symlink("open", at("bad")).unwrap();
    refused("bad", "others can write to ");
    // Who can write to a directory above could replace it.
    make("wide", 0o777);
    make("wide/cache", 0o700);
    refused("wide/cache", "others can write to ");
    refused("wide/cache/../cache/below", "others can write to ");
    // In a sticky one, only the owner of an entry can replace it.
    make("sticky", 0o1777);
    with_cache(&at("sticky/cache")).unwrap();
    refused("closed/../open", "others can write to ");
    fs::write(at("file"), "").unwrap();
    refused("file", "File exists");
    refused("file/below", "Not a directory");
}

#[test]
fn a_directory_of_another_user_is_refused() {
    only_as_root!();
    let place = tempfile::tempdir().unwrap();
    let at = |path: &str| place.path().join(path);
    for (path, own) in [("theirs", "theirs"), ("above/cache", "above")] {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(at(path)).unwrap();
        with_cache(&at(path)).unwrap();
        chown(at(own), Some(1000), None).unwrap();
        let error = with_cache(&at(path)).unwrap_err();
        assert!(error.failure().message.contains("uid 1000 can write to "), "{error}");
    }
}

#[test]
fn code_that_killed_processes_left_unfinished_goes_after_an_hour() {
    let (_place, directory, [a, _]) = filled();
    for (name, minutes) in [("old.1-0.new", 61), ("recent.2-0.new", 5), ("old.cwasm", 1000)] {
        let file = File::create(directory.join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(minutes * 60)).unwrap();
    }
    fs::remove_file(&a).unwrap();
    with_cache(&directory).unwrap().precompile(&program("a")).unwrap();
    let left = names(&directory);
    assert!(
        left.contains(&"recent.2-0.new".to_owned()) && left.contains(&"old.cwasm".to_owned()),
        "{left:?}"
    );
    assert_eq!(left.len(), 4, "{left:?}");
}

#[test]
fn many_compile_the_same_program_at_once() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("cache");
    let program = program("a");
    let files: Vec<PathBuf> = std::thread::scope(|scope| {
        let compile = || with_cache(&directory).unwrap().precompile(&program).unwrap();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(compile)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(files.windows(2).all(|pair| pair[0] == pair[1]));
    assert_eq!(names(&directory).len(), 1, "{:?}", names(&directory));
}

#[test]
fn a_manifest_whose_programs_could_write_to_the_cache_is_refused() {
    let (_place, directory, _) = filled();
    let above = directory.parent().unwrap();
    for granted in [&*directory, above] {
        let text = format!(
            "[capabilities.spawn]\nprograms = [{{ path = '/bin/true' }}]\nfs_write = ['{}']",
            granted.display()
        );
        let error = with_cache(&directory).unwrap().compile(&manifest(&text), &program("a")).unwrap_err();
        assert_eq!(error.failure().class, Class::CapabilityDenied);
        let message = &error.failure().message;
        assert!(message.starts_with("compiled code ") && message.contains("fs_write"), "{message}");
        Runtime::builder().at_once(1).build().unwrap().compile(&manifest(&text), &program("a")).unwrap();
    }
}

#[test]
fn a_runtime_without_a_cache_keeps_nothing() {
    let error = Runtime::builder().at_once(1).build().unwrap().precompile(&program("a")).unwrap_err();
    assert_eq!(error.failure().message, "keep compiled code: the runtime has no cache");
    let (_place, directory, _) = filled();
    let error = with_cache(&directory).unwrap().precompile(b"no code").unwrap_err();
    assert_eq!(error.failure().class, Class::LoadFailed, "{error}");
}
