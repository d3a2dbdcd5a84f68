//! Protected paths of a writable workspace: files that programs outside trust do not change.

mod git;
mod git_layouts;
mod git_user;
mod home;
mod patterns;

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::support::{
    fails, has, kennel, may_mount, mount, only_as_root, patient_flag, report, repository, require, stderr,
    succeeds, workspace,
};

/// Subjects of the denials, relative to the workspace, each with its reason.
fn denials(report: &Value, dir: &Path) -> Vec<(String, String)> {
    let denials = report["denials"].as_array().unwrap().iter();
    denials
        .map(|denial| {
            assert_eq!(denial["protection"], "protected_paths");
            let subject = Path::new(denial["subject"].as_str().unwrap()).strip_prefix(dir).unwrap();
            (subject.to_str().unwrap().to_owned(), denial["reason"].as_str().unwrap().to_owned())
        })
        .collect()
}

#[test]
fn hooks_and_config_cannot_be_changed_and_the_rest_can() {
    let dir = repository();
    for attempt in [
        "echo x > .git/hooks/pre-commit",
        "echo x > .git/hooks/post-checkout",
        "rm -f .git/hooks/pre-commit",
        "chmod 777 .git/hooks/pre-commit",
        "mkdir .git/hooks/x",
        "echo x >> .git/config",
    ] {
        let said = fails(dir.path(), &[], attempt);
        assert!(said.contains("Read-only file system"), "{attempt}: {said}");
    }
    for attempt in [
        "mv .git/hooks .git/x",
        "rm -f .git/config",
        "mv .git/config .git/x",
        "mv .git x",
        "rm -rf .git/hooks",
    ] {
        let said = fails(dir.path(), &[], attempt);
        assert!(
            said.contains("Device or resource busy") || said.contains("Read-only file system"),
            "{attempt}: {said}"
        );
    }
    succeeds(
        dir.path(),
        &[],
        "echo ref > .git/HEAD; mkdir .git/objects; touch .git/refs/x .git/index.lock; mv .git/index.lock .git/index; cat .git/config .git/hooks/*",
    );
    assert_eq!(fs::read_to_string(dir.path().join(".git/config")).unwrap(), "[core]\n");
    assert_eq!(fs::read_to_string(dir.path().join(".git/hooks/pre-commit")).unwrap(), "#!/bin/sh\n");
    assert!(dir.path().join(".git/index").exists());
}

#[test]
fn absent_protected_paths_are_undone_and_reported() {
    let dir = workspace();
    fs::create_dir(dir.path().join(".git")).unwrap();
    let script =
        "mkdir .git/hooks; echo x > .git/hooks/pre-commit; echo x > .git/config; echo ok > .git/HEAD";
    let (output, report) = report(dir.path(), &[], &["sh", "-c", script]);
    assert!(output.status.success(), "{output:?}");
    let denied = denials(&report, dir.path());
    let moved = ["hooks", "config"].map(|name| {
        let said = "a protected path, which git obeys, was changed; it was renamed to";
        (format!(".git/{name}"), format!("{said} {name}.refused-by-kennel.0; --git trust would allow it"))
    });
    assert_eq!(denied, moved);
    assert!(stderr(&output).contains("kennel: denied: "), "{output:?}");
    let mut left: Vec<_> =
        fs::read_dir(dir.path().join(".git")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["HEAD", "config.refused-by-kennel.0", "hooks.refused-by-kennel.0"]);
}

/// Starting a new project is not denied.
#[test]
fn the_configuration_of_a_new_repository_is_noted_and_not_denied() {
    let dir = workspace();
    let (output, report) = report(dir.path(), &[], &["sh", "-c", "mkdir .git; echo x > .git/config"]);
    assert!(output.status.success(), "{output:?}");
    let [denial] = report["denials"].as_array().unwrap().as_slice() else { panic!("{report}") };
    assert_eq!((&denial["basis"], &denial["protection"]), (&"kept".into(), &"protected_paths".into()));
    let said = stderr(&output);
    assert!(said.contains("kennel: note: ") && !said.contains("denied"), "{said}");
    assert!(dir.path().join(".git/config").exists());
}

/// The report repeats text that a command wrote.
#[test]
fn no_words_of_a_command_make_a_denial_a_note() {
    let dir = workspace();
    fs::create_dir(dir.path().join(".git")).unwrap();
    symlink("shared", dir.path().join(".git/hooks")).unwrap();
    let words = "it was kept, because its directory is new: look at it before you trust it";
    let script = format!("ln -sfn '{words}' .git/hooks");
    let (output, report) = report(dir.path(), &[], &["sh", "-c", &script]);
    assert!(output.status.success(), "{output:?}");
    let [denial] = report["denials"].as_array().unwrap().as_slice() else { panic!("{report}") };
    assert!(denial["reason"].as_str().unwrap().contains(words), "{denial}");
    assert_eq!(denial["basis"], "observed", "{denial}");
    assert!(fs::symlink_metadata(dir.path().join(".git/hooks")).is_err());
}

#[test]
fn absent_protected_paths_are_undone_however_the_command_ends() {
    let write = "mkdir .git/hooks; echo x > .git/hooks/pre-commit; touch done";
    let soon = patient_flag(std::time::Duration::from_millis(300));
    for (script, flags, code) in [
        (format!("{write}; exit 7"), vec![], Some(7)),
        (format!("{write}; kill -9 $$"), vec![], Some(137)),
        (format!("{write}; sleep 60"), vec!["--timeout", &soon], Some(124)),
        (format!("({write}) & wait; sleep 60 & exit 0"), vec![], Some(0)),
    ] {
        let dir = workspace();
        fs::create_dir(dir.path().join(".git")).unwrap();
        let output = kennel(dir.path(), &flags, &["sh", "-c", &script]).output().unwrap();
        assert_eq!(crate::support::shown(output.status), code, "{output:?}");
        assert!(dir.path().join("done").exists() && !dir.path().join(".git/hooks").exists(), "{script}");
    }
}

#[test]
fn quiet_run_removes_files_without_messages() {
    let dir = workspace();
    fs::create_dir(dir.path().join(".git")).unwrap();
    let output = kennel(dir.path(), &["--quiet"], &["mkdir", ".git/hooks"]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert!(!dir.path().join(".git/hooks").exists());
}

#[test]
fn no_placeholder_appears_on_the_host() {
    let dir = workspace();
    let count = |path: &Path| fs::read_dir(path).unwrap().count();
    succeeds(dir.path(), &["--protect", "absent/deep"], "ls -A");
    assert_eq!(count(dir.path()), 0);
    fs::create_dir(dir.path().join(".git")).unwrap();
    assert_eq!(succeeds(dir.path(), &[], "ls -A .git"), "");
    assert_eq!(count(&dir.path().join(".git")), 0);
}

#[test]
fn paths_of_the_policy_are_protected_too() {
    let dir = workspace();
    fs::write(dir.path().join(".env"), "A=1").unwrap();
    fs::create_dir_all(dir.path().join("ci/scripts")).unwrap();
    let flags = ["--protect", ".env", "--protect", "ci/scripts", "--protect", "later"];
    assert_eq!(succeeds(dir.path(), &flags, "cat .env; touch ci/x"), "A=1");
    for attempt in ["echo x > .env", "touch ci/scripts/x"] {
        assert!(fails(dir.path(), &flags, attempt).contains("Read-only file system"));
    }
    assert!(fails(dir.path(), &flags, "mv ci other").contains("Device or resource busy"));
    let (_, report) = report(dir.path(), &flags, &["touch", "later"]);
    assert_eq!(denials(&report, dir.path()).len(), 1, "{report}");
    assert!(!dir.path().join("later").exists());
}

#[test]
fn a_file_in_the_place_of_a_protected_link_is_removed_and_the_link_reported() {
    let dir = workspace();
    fs::create_dir_all(dir.path().join(".git")).unwrap();
    fs::create_dir(dir.path().join("shared")).unwrap();
    symlink("../shared", dir.path().join(".git/hooks")).unwrap();
    let (output, report) = report(
        dir.path(),
        &[],
        &["sh", "-c", "rm .git/hooks; mkdir .git/hooks; touch .git/hooks/pre-commit"],
    );
    assert!(output.status.success(), "{output:?}");
    let denied = denials(&report, dir.path());
    assert_eq!(
        denied,
        [(
            ".git/hooks".to_owned(),
            "a protected path, which git obeys, was changed; it was renamed to hooks.refused-by-kennel.0; the link that was there led to ../shared; --git trust would allow it"
                .to_owned()
        )]
    );
    assert!(fs::symlink_metadata(dir.path().join(".git/hooks")).is_err());
}

#[test]
fn removal_follows_no_link_out_of_the_workspace() {
    let (dir, victim) = (workspace(), workspace());
    fs::create_dir_all(victim.path().join("hooks")).unwrap();
    fs::write(victim.path().join("hooks/keep"), "keep").unwrap();
    fs::create_dir(dir.path().join(".git")).unwrap();
    let script = format!("rmdir .git && ln -s {} .git", victim.path().display());
    let flags = ["--rw", victim.path().to_str().unwrap()];
    let output = kennel(dir.path(), &flags, &["sh", "-c", &script]).output().unwrap();
    assert_eq!(fs::read_to_string(victim.path().join("hooks/keep")).unwrap(), "keep", "{output:?}");
}

#[test]
fn every_writable_grant_is_protected() {
    let (dir, repository) = (workspace(), repository());
    let other = repository.path().to_str().unwrap();
    let said = fails(dir.path(), &["--rw", other], &format!("echo x > {other}/.git/config"));
    assert!(said.contains("Read-only file system"), "{said}");
    let said = fails(dir.path(), &["--rw", &format!("{other}:/repo")], "echo x > /repo/.git/hooks/x");
    assert!(said.contains("Read-only file system"), "{said}");
}

/// In the other case the name would have more bytes than a name may have. Profile ci-only has nothing to mend
/// either.
#[test]
fn a_name_of_the_longest_length_is_no_problem() {
    let dir = repository();
    let name = format!(".git/worktrees/{}", "ɐ".repeat(127));
    succeeds(dir.path(), &[], &format!("mkdir -p {name}"));
    assert!(dir.path().join(name).is_dir());
    let (_, report) = report(dir.path(), &[], &["true"]);
    assert!(!report["enforcement"].to_string().contains("spelling"), "{report}");
}

#[test]
fn git_init_works_and_is_reported() {
    require!(has("git"), "git");
    let dir = workspace();
    let (output, report) =
        report(dir.path(), &[], &["git", "-c", "init.defaultBranch=main", "init", "--quiet"]);
    assert!(output.status.success(), "{output:?}");
    let denied = denials(&report, dir.path());
    assert_eq!(denied.len(), 1, "{denied:?}");
    assert!(denied[0].0 == ".git/config" && denied[0].1.contains("it was kept"), "{denied:?}");
    assert!(dir.path().join(".git/HEAD").exists() && dir.path().join(".git/config").exists());
    succeeds(dir.path(), &[], "git status");
}

#[test]
fn hooks_of_a_repository_made_inside_are_removed() {
    require!(has("git"), "git");
    let dir = workspace();
    let script = "git -c init.defaultBranch=main init --quiet && mkdir -p .git/hooks && echo 'evil' > .git/hooks/pre-commit";
    let (output, report) = report(dir.path(), &[], &["sh", "-c", script]);
    assert!(output.status.success(), "{output:?}");
    let subjects: Vec<String> =
        denials(&report, dir.path()).into_iter().map(|(subject, _)| subject).collect();
    assert_eq!(subjects, [".git/hooks", ".git/config"]);
    assert!(!dir.path().join(".git/hooks/pre-commit").exists());
}

/// Runs a command with the protected path `prot`, does something outside meanwhile, and returns Kennel's
/// lines.
fn meanwhile(dir: &Path, outside: impl FnOnce()) -> String {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    let script = "touch runs; while [ ! -e done ]; do sleep 0.05; done";
    let mut run = kennel(dir, &["--protect", "prot"], &["sh", "-c", script]);
    let run = run.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while !dir.join("runs").exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the command has not started");
        sleep(Duration::from_millis(20));
    }
    outside();
    fs::write(dir.join("done"), "").unwrap();
    stderr(&run.wait_with_output().unwrap())
}

/// The new name of a protected path that was moved aside.
fn aside(path: &str) -> PathBuf {
    PathBuf::from(format!("{path}.refused-by-kennel.0"))
}

#[test]
fn a_mount_in_a_removed_path_is_kept() {
    only_as_root!();
    require!(has("unshare"), "unshare");
    let test = "protect::a_mount_in_a_removed_path_is_kept";
    if !may_mount(test) {
        return;
    }
    let (dir, precious) = (workspace(), workspace());
    let (place, new) = (dir.path().join("prot/deep"), precious.path().join("new"));
    let told = meanwhile(dir.path(), || {
        // As new as the removed path.
        fs::create_dir(&new).unwrap();
        fs::write(new.join("file"), "keep").unwrap();
        fs::create_dir_all(&place).unwrap();
        mount(&["--bind", new.to_str().unwrap()], &place);
    });
    let kept = fs::read_to_string(new.join("file"));
    assert!(kept.is_ok_and(|kept| kept == "keep") && told.contains(".refused-by-kennel"), "{told}");
    let aside = dir.path().join(aside("prot")).join("deep");
    assert!(std::process::Command::new("umount").arg(aside).status().unwrap().success());
}

#[test]
fn older_files_are_moved_aside_and_not_removed() {
    let dir = workspace();
    fs::create_dir_all(dir.path().join("private/sub")).unwrap();
    fs::write(dir.path().join("private/sub/f"), "keep").unwrap();
    fs::set_permissions(dir.path().join("private"), fs::Permissions::from_mode(0o700)).unwrap();
    let told = meanwhile(dir.path(), || {
        fs::rename(dir.path().join("private"), dir.path().join("prot")).unwrap();
    });
    assert!(told.contains(".refused-by-kennel"), "{told}");
    assert!(!dir.path().join("prot").exists(), "{told}");
    let kept = dir.path().join(aside("prot")).join("sub/f");
    assert_eq!(fs::read_to_string(kept).expect("what was there before"), "keep", "{told}");
}

#[test]
fn older_files_in_a_new_directory_are_kept_too() {
    for script in ["mkdir prot; mv old prot/", "mkdir -p prot/a; mv old prot/a/", "mv old/f prot"] {
        let dir = workspace();
        fs::create_dir(dir.path().join("old")).unwrap();
        fs::write(dir.path().join("old/f"), "keep").unwrap();
        let output = kennel(dir.path(), &["--protect", "prot"], &["sh", "-c", script]).output().unwrap();
        let at = dir.path().join(aside("prot"));
        let found = [at.join("old/f"), at.join("a/old/f"), at].map(fs::read_to_string);
        assert!(found.iter().flatten().any(|text| text == "keep"), "{script}: {output:?}");
        assert!(!dir.path().join("prot").exists(), "{script}");
    }
}

#[test]
fn removal_after_a_command_of_a_user_removes_nothing_of_others() {
    only_as_root!();
    let dir = workspace();
    let theirs = dir.path().join("x/u");
    fs::create_dir_all(theirs.join("sub")).unwrap();
    fs::write(theirs.join("sub/f"), "keep").unwrap();
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o700)).unwrap();
    chown(&theirs, Some(1000), Some(1000)).unwrap();
    let script = "rm -rf x; mkdir .git; mv x .git/commondir";
    let output = kennel(dir.path(), &[], &["sh", "-c", script]).output().unwrap();
    let kept = dir.path().join(aside(".git/commondir")).join("u/sub/f");
    assert_eq!(fs::read_to_string(kept).expect("what root may not remove"), "keep", "{output:?}");
    assert!(!dir.path().join(".git/commondir").exists(), "{output:?}");
}

#[test]
fn removal_works_without_the_rights_of_root() {
    only_as_root!();
    let dir = workspace();
    let told = meanwhile(dir.path(), || {
        let theirs = dir.path().join("made/u");
        fs::create_dir_all(theirs.join("sub")).unwrap();
        fs::set_permissions(&theirs, fs::Permissions::from_mode(0o700)).unwrap();
        chown(&theirs, Some(1000), Some(1000)).unwrap();
        fs::rename(dir.path().join("made"), dir.path().join("prot")).unwrap();
    });
    assert!(told.contains(".refused-by-kennel"), "{told}");
    assert!(dir.path().join(aside("prot")).join("u/sub").exists(), "{told}");
}
