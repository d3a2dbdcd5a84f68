//! A machine that runs out of something: a clear error, no panic, nothing left.

use std::process::{Command, Output};

use crate::support::{has, kennel_path, only_as_user, quiet, require, stderr, workspace};

/// Runs `kennel run -- sh -c 'echo ran'` under a limit of prlimit(1).
fn under(limit: &str, dir: &std::path::Path) -> Output {
    Command::new("prlimit")
        .arg(limit)
        .arg(kennel_path())
        .arg("run")
        .args(quiet())
        .args(["--", "sh", "-c", "echo ran"])
        .current_dir(dir)
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap()
}

/// The command ran to its end, or Kennel said why not.
fn runs_or_says_why(output: &Output, cause: &str) -> bool {
    if output.status.success() {
        assert!(output.stdout == b"ran\n" && output.stderr.is_empty(), "{output:?}");
        return true;
    }
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let said = stderr(output);
    assert!(said.starts_with("kennel: ") && said.contains(cause), "{said}");
    false
}

#[test]
fn out_of_descriptors() {
    require!(has("prlimit"), "prlimit of util-linux");
    let dir = workspace();
    let ran = (4..40).map(|count| {
        runs_or_says_why(&under(&format!("--nofile={count}"), dir.path()), "Too many open files")
    });
    let ran: Vec<bool> = ran.collect();
    assert!(!ran[0] && ran[35], "{ran:?}");
    let first = ran.iter().position(|&ran| ran).unwrap();
    assert!(ran[first..].iter().all(|&ran| ran), "what suffices once suffices always: {ran:?}");
}

#[test]
fn remedy_fits_when_descriptors_run_out() {
    require!(has("prlimit"), "prlimit of util-linux");
    let dir = workspace();
    for count in 4..40 {
        let said = stderr(&under(&format!("--nofile={count}"), dir.path()));
        let misleading = ["Docker", "security module", "name an existing directory", "sysctl"];
        assert!(!misleading.iter().any(|word| said.contains(word)), "{count}: {said}");
    }
}

#[test]
fn out_of_processes() {
    only_as_user!();
    require!(has("prlimit"), "prlimit of util-linux");
    let dir = workspace();
    let output = under("--nproc=1", dir.path());
    assert!(
        !runs_or_says_why(&output, "new user and pid namespace: Resource temporarily unavailable"),
        "{output:?}"
    );
    assert!(!stderr(&output).contains("Docker"), "{output:?}");
    assert!(runs_or_says_why(&under("--nproc=4000", dir.path()), ""));
}

#[test]
fn out_of_memory() {
    require!(has("prlimit"), "prlimit of util-linux");
    let dir = workspace();
    for size in [1usize << 20, 4 << 20, 8 << 20, 16 << 20, 32 << 20, 64 << 20] {
        let output = under(&format!("--as={size}"), dir.path());
        // A process that gets no memory at all cannot report it: the kernel or the allocator ends it.
        assert!(output.status.success() || output.stdout.is_empty(), "{size}: {output:?}");
    }
    assert!(runs_or_says_why(&under("--as=4294967296", dir.path()), ""));
}

#[test]
fn out_of_file_size() {
    require!(has("prlimit"), "prlimit of util-linux");
    let dir = workspace();
    let output = under("--fsize=1", dir.path());
    assert!(output.stdout.is_empty() && !output.status.success(), "{output:?}");
    assert!(runs_or_says_why(&under("--fsize=10485760", dir.path()), ""));
}
