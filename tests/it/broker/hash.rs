//! The bytes that run are the bytes that were hashed, even if somebody writes meanwhile.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use kennel::{
    broker::{Manifest, NoCredentials, SpawnPolicy},
    report::Class,
};

use super::{Home, Keys, said, tool, tool_with_token, write_script};
use crate::support::{copy_program, has, payload_path, require};

/// The output of sha256sum(1).
fn hash(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    format!("sha256:{}", said.split(' ').next().unwrap())
}

/// A policy that names `bin/tool` by its current hash.
fn hashed(home: &Home, spawn: &str) -> SpawnPolicy {
    let hash = format!("tool', hash = '{}' }}", hash(&home.at("bin/tool")));
    let manifest = home.manifest(spawn).replace("tool' }", &hash);
    assert!(manifest.contains("sha256:"), "{manifest}");
    SpawnPolicy::new(Manifest::from_toml(&manifest).unwrap())
}

#[tokio::test]
async fn the_approved_program_runs_and_another_does_not() {
    require!(has("sha256sum"), "sha256sum");
    let home = Home::new("echo good \"$@\"");
    let policy = hashed(&home, "");
    assert_eq!(said(policy.spawn(&tool(&["a"]), &NoCredentials).await), "good a\n");
    home.program("tool", "echo evil");
    let failure = policy.spawn(&tool(&[]), &NoCredentials).await.unwrap_err().failure();
    assert_eq!(failure.class, Class::HashMismatch);
    let details = serde_json::to_value(&failure.details).unwrap();
    assert_eq!(details["found"], hash(&home.at("bin/tool")));
    assert_ne!(details["expected"], details["found"]);
}

/// Changes after the check, just before the start: in place, by rename, by a link, and removal.
#[tokio::test]
async fn changes_of_the_file_after_the_check_do_not_matter() {
    require!(has("sha256sum"), "sha256sum");
    type Change = fn(&Home);
    let changes: [Change; 5] = [
        |home| write_script(&home.at("bin/tool"), "echo evil"),
        |home| {
            write_script(&home.at("bin/new"), "echo evil");
            fs::rename(home.at("bin/new"), home.at("bin/tool")).unwrap();
        },
        |home| {
            fs::remove_file(home.at("bin/tool")).unwrap();
            write_script(&home.at("bin/evil"), "echo evil");
            std::os::unix::fs::symlink("evil", home.at("bin/tool")).unwrap();
        },
        |home| fs::remove_file(home.at("bin/tool")).unwrap(),
        |home| {
            fs::rename(home.at("bin"), home.at("old")).unwrap();
            fs::create_dir(home.at("bin")).unwrap();
            write_script(&home.at("bin/tool"), "echo evil");
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        // The same if the command sees the directory of the program.
        for grants in ["", "fs_read = ['~/bin']\n", "fs_write = ['~/bin']\n"] {
            let home = Arc::new(Home::new("echo good \"$TOKEN\""));
            let policy = hashed(&home, &format!("{grants}credential_env_keys = ['TOKEN']\n"));
            let changed = Arc::clone(&home);
            let resolver = Keys::after("key", move || change(&changed));
            let output = policy.spawn(&tool_with_token(&[]), &resolver).await;
            match output {
                // The granted directory became another one: then nothing runs.
                Err(error) if number == 4 && !grants.is_empty() => {
                    assert!(error.chain().ends_with("Stale file handle"), "{error:?}");
                }
                output => assert_eq!(said(output), "good key\n", "change {number}, {grants}"),
            }
            assert_eq!(resolver.asked(), 1);
        }
    }
}

#[tokio::test]
async fn a_writer_that_never_rests_changes_nothing() {
    require!(has("sha256sum"), "sha256sum");
    let home = Arc::new(Home::new("echo good"));
    let policy = hashed(&home, "fs_read = ['~/bin']");
    let (at, ends) = (home.at("bin/tool"), Arc::new(AtomicBool::new(false)));
    let (good, evil) = (fs::read(&at).unwrap(), fs::read_to_string(&at).unwrap().replace("good", "evil"));
    let writer = {
        let (home, ends) = (Arc::clone(&home), Arc::clone(&ends));
        thread::spawn(move || {
            for turn in 0u32.. {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let bytes = if turn % 4 == 0 { evil.as_bytes() } else { &good };
                if turn % 3 == 0 {
                    // In place. The file is open for execution nowhere: Kennel executes a copy.
                    fs::write(home.at("bin/tool"), bytes).unwrap();
                } else {
                    fs::write(home.at("bin/new"), bytes).unwrap();
                    fs::set_permissions(home.at("bin/new"), Permissions::from_mode(0o755)).unwrap();
                    fs::rename(home.at("bin/new"), home.at("bin/tool")).unwrap();
                }
                // From time to time Kennel can read the whole file.
                thread::sleep(Duration::from_micros(u64::from(turn % 7) * 100));
            }
        })
    };
    let (mut ran, mut refused) = (0, 0);
    let start = Instant::now();
    while (ran < 50 || refused < 20) && start.elapsed().as_secs() < 60 {
        match policy.spawn(&tool(&[]), &NoCredentials).await {
            Ok(output) => {
                assert_eq!(output.stdout, b"good\n", "{output:?}");
                ran += 1;
            }
            Err(error) => {
                assert_eq!(error.failure().class, Class::HashMismatch, "{error:?}");
                refused += 1;
            }
        }
    }
    ends.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    assert!(ran > 10 && refused > 5, "no race happened: {ran} ran, {refused} refused");
}

#[tokio::test]
async fn a_binary_with_a_hash_is_called_by_its_own_path() {
    require!(has("sha256sum"), "sha256sum");
    let home = Home::new("");
    copy_program(payload_path(), home.at("bin/tool"));
    let policy = hashed(&home, "limits.max_memory_bytes = 1000000000");
    // Without a known attempt it prints its usage and its name.
    let output = policy.spawn(&tool(&["no-such-attempt"]), &NoCredentials).await.unwrap();
    assert!(!output.stderr.is_empty() || !output.stdout.is_empty(), "it ran: {output:?}");
    let shell = fs::canonicalize("/bin/sh").unwrap();
    let manifest =
        format!("[capabilities.spawn]\nprograms = [{{ path = '/bin/sh', hash = '{}' }}]\n", hash(&shell));
    let policy = SpawnPolicy::new(Manifest::from_toml(&manifest).unwrap());
    let script =
        "echo \"$0\"; tr '\\0' ' ' < /proc/$$/cmdline; (echo x > /proc/$$/exe) 2>/dev/null || echo refused";
    let envelope = kennel::broker::Envelope { program: "sh".to_owned(), ..tool(&["-c", script]) };
    let heard = said(policy.spawn(&envelope, &NoCredentials).await);
    assert!(heard.starts_with("/bin/sh\n/bin/sh -c ") && heard.ends_with("refused\n"), "{heard}");
}
