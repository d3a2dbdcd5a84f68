//! A writable home: what programs outside obey there without being asked stays read-only.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output},
};

use crate::support::{TempDir, filled, kennel, stderr, workspace};

/// A home with these files.
fn home(files: &[&str]) -> TempDir {
    filled(workspace(), files, |_| "mine")
}

/// Runs a script for somebody with this home.
fn run(home: &Path, here: &Path, flags: &[&str], script: &str) -> Output {
    let mut command: Command = kennel(here, flags, &["sh", "-c", script]);
    command.env("HOME", home).output().unwrap()
}

const OBEYED: [&str; 6] = [
    ".bashrc",
    ".config/autostart/a.desktop",
    ".config/fish/config.fish",
    ".vscode/tasks.json",
    "bin/ls",
    ".vimrc",
];

#[test]
fn what_programs_outside_obey_stays_read_only_and_the_rest_does_not() {
    let home = home(&[&OBEYED[..], &["notes", ".config/other"]].concat());
    for path in OBEYED {
        let output = run(home.path(), home.path(), &[], &format!("echo x > {path}"));
        let said = stderr(&output);
        assert!(!output.status.success() && said.contains("Read-only file system"), "{path}: {said}");
        assert_eq!(fs::read_to_string(home.path().join(path)).unwrap(), "mine");
    }
    let script = "(mv .bashrc x || mv .config x || mv bin x) 2>&1 | grep -c busy";
    assert_eq!(run(home.path(), home.path(), &[], script).stdout, b"3\n");
    let script = "echo x > notes && echo x > .config/other && mkdir .config/new project && \
                  mkdir project/.vscode && echo x > project/.vscode/tasks.json && echo x > project/.bashrc";
    let output = run(home.path(), home.path(), &[], script);
    assert!(output.status.success(), "{output:?}");
    let said = stderr(&output);
    assert!(said.starts_with("kennel: note: ") && said.contains("obey .bashrc, .config/fish, "), "{said}");
    assert!(said.ends_with("--rw) if commands are to change it"), "{said}");
}

#[test]
fn what_a_command_makes_at_such_a_path_is_moved_aside() {
    let home = home(&["notes"]);
    let output = run(
        home.path(),
        home.path(),
        &[],
        "echo x > .zshrc; mkdir -p .config/autostart; echo x > .config/autostart/x",
    );
    assert!(output.status.success(), "{output:?}");
    assert_eq!(stderr(&output).matches("kennel: denied: ").count(), 2, "{output:?}");
    let is_there = |path: &str| home.path().join(path).exists();
    assert!(!is_there(".zshrc") && !is_there(".config/autostart") && is_there(".zshrc.refused-by-kennel.0"));
}

#[test]
fn a_path_that_the_policy_names_is_writable() {
    let home = home(&OBEYED);
    let (rc, bin) = (home.path().join(".bashrc"), home.path().join("bin"));
    let flags = ["--rw", rc.to_str().unwrap(), "--rw", bin.to_str().unwrap()];
    let output = run(home.path(), home.path(), &flags, "echo x > .bashrc && echo x > bin/new");
    assert!(output.status.success(), "{output:?}");
    assert!(!stderr(&output).contains(".bashrc"), "{output:?}");
}

#[test]
fn a_part_of_a_home_is_protected_where_it_is_granted() {
    let home = home(&[&OBEYED[..], &["project/file"]].concat());
    let project = home.path().join("project");
    let config = home.path().join(".config");
    let output = run(
        home.path(),
        &project,
        &["--rw", config.to_str().unwrap()],
        "echo x > ~/.config/fish/config.fish",
    );
    assert!(stderr(&output).contains("Read-only file system"), "{output:?}");
    let output = run(home.path(), &project, &[], "echo x > file");
    assert!(output.status.success() && stderr(&output).is_empty(), "a project needs no note: {output:?}");
}

#[test]
fn a_link_from_the_home_into_the_workspace_protects_its_target() {
    let home = home(&["settings/bashrc", "settings/config/fish/config.fish", "settings/README"]);
    symlink("settings/bashrc", home.path().join(".bashrc")).unwrap();
    symlink("settings/config", home.path().join(".config")).unwrap();
    let settings = home.path().join("settings");
    for path in ["bashrc", "config/fish/config.fish"] {
        let output = run(home.path(), &settings, &[], &format!("echo x > {path}"));
        assert!(!output.status.success() && stderr(&output).contains("Read-only file system"), "{output:?}");
        assert!(stderr(&output).contains("obey .bashrc, .config/fish: they stay read-only"), "{output:?}");
    }
    assert!(run(home.path(), &settings, &[], "echo x > README").status.success());
}

/// What is not there yet is obeyed as soon as it is there.
#[test]
fn a_linked_directory_protects_what_a_command_makes_in_it() {
    let home = home(&["settings/config/other"]);
    symlink("settings/config", home.path().join(".config")).unwrap();
    let settings = home.path().join("settings");
    let said =
        stderr(&run(home.path(), &settings, &[], "mkdir config/autostart; echo x > config/autostart/x"));
    assert!(said.contains("config/autostart: a protected path was changed"), "{said}");
    assert!(!settings.join("config/autostart").exists(), "{said}");
}

/// rustup gives one program many names.
#[test]
fn names_of_one_file_in_one_protected_directory_weaken_nothing() {
    let home = home(&[".cargo/bin/rustup"]);
    let bin = home.path().join(".cargo/bin");
    fs::hard_link(bin.join("rustup"), bin.join("cargo")).unwrap();
    let said = stderr(&run(home.path(), home.path(), &[], "true"));
    assert!(!said.contains("hard links"), "{said}");
    fs::hard_link(bin.join("rustup"), home.path().join("elsewhere")).unwrap();
    let said = stderr(&run(home.path(), home.path(), &[], "true"));
    assert!(said.contains("has other hard links"), "{said}");
}

/// Kennel runs compiled code of connectors outside.
#[test]
fn no_command_sees_or_plants_what_kennel_keeps_in_the_cache() {
    let own = ".cache/kennel/connectors/code.cwasm";
    for (base, variable) in [(".cache", None), ("elsewhere", Some("XDG_CACHE_HOME"))] {
        let own = own.replace(".cache", base);
        let home = home(&[&own, "project/file"]);
        let here = home.path().join("project");
        let script = |script: &str| {
            let granted = home.path().join(base);
            let flags = ["--rw", granted.to_str().unwrap()];
            let mut command: Command = kennel(&here, &flags, &["sh", "-c", script]);
            command.envs(variable.map(|name| (name, &granted)));
            command.env("HOME", home.path()).output().unwrap()
        };
        let file = home.path().join(&own);
        let (path, directory) = (file.display(), home.path().join(base).join("kennel"));
        let attempts =
            format!("! cat {path}; ! rm -rf {0}; ! mv {0} {0}.x; ! touch {path}", directory.display());
        let output = script(&attempts);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine", "{output:?}");
        // What is made there before Kennel makes it is moved aside.
        fs::remove_dir_all(&directory).unwrap();
        let output = script(&format!(
            "mkdir -p $(dirname {path}); echo x > {path}; echo y > {0}/../y",
            directory.display()
        ));
        assert!(output.status.success() && !directory.exists(), "{output:?}");
        assert!(stderr(&output).contains("kennel: denied: "), "{output:?}");
        assert!(home.path().join(base).join("y").exists(), "{output:?}");
    }
}
