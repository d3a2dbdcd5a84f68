//! What each profile shows beyond the default, and that secrets stay covered.

use std::{fs, path::Path, process::Output};

use crate::support::{
    TempDir, fails, kennel, refused, require_ci_only, stderr, stdout, succeeds, workspace, write_program,
};

/// A home directory with secrets and one ordinary file.
fn home() -> TempDir {
    let home = workspace();
    for dir in [".ssh", ".aws", ".gnupg", ".docker", ".config/gcloud", ".config/gh"] {
        fs::create_dir_all(home.path().join(dir)).unwrap();
        fs::write(home.path().join(dir).join("key"), "secret").unwrap();
    }
    for file in [".netrc", ".npmrc", ".git-credentials", "notes"] {
        fs::write(home.path().join(file), "secret").unwrap();
    }
    home
}

fn at_home(home: &Path, workspace: &Path, flags: &[&str], script: &str) -> Output {
    kennel(workspace, flags, &["sh", "-c", script]).env("HOME", home).output().unwrap()
}

/// Every secret of [`home`] is covered, and the ordinary file is not.
fn secrets_are_covered(home: &Path, workspace: &Path, flags: &[&str]) {
    let script = "cat ~/notes; for d in .ssh .aws .gnupg .docker .config/gcloud .config/gh; do ls -A ~/$d; done; \
                  cat ~/.netrc ~/.npmrc ~/.git-credentials";
    let output = at_home(home, workspace, flags, script);
    assert_eq!(stdout(&output), "secret", "{output:?}");
    let output = at_home(home, workspace, flags, "cat ~/.ssh/key");
    assert!(stderr(&output).contains("No such file or directory"), "{output:?}");
    let output = at_home(home, workspace, flags, "touch ~/.ssh/new");
    assert!(stderr(&output).contains("Read-only file system"), "{output:?}");
    at_home(
        home,
        workspace,
        flags,
        "echo x > ~/.netrc; rm -rf ~/.ssh ~/.netrc; mv ~/.aws ~/moved; ls ~/moved",
    );
    for file in [".ssh/key", ".aws/key", ".netrc"] {
        assert_eq!(fs::read_to_string(home.join(file)).unwrap(), "secret", "{file}");
    }
}

#[test]
fn secrets_are_covered_when_home_is_the_workspace() {
    let home = home();
    secrets_are_covered(home.path(), home.path(), &[]);
}

#[test]
fn secrets_are_covered_when_home_is_granted() {
    let (home, dir) = (home(), workspace());
    secrets_are_covered(home.path(), dir.path(), &["--ro", home.path().to_str().unwrap()]);
    secrets_are_covered(home.path(), dir.path(), &["--rw", home.path().to_str().unwrap()]);
}

#[test]
fn secrets_are_covered_when_they_are_links() {
    let (home, dir) = (home(), workspace());
    fs::rename(home.path().join(".ssh"), home.path().join("real-ssh")).unwrap();
    std::os::unix::fs::symlink("real-ssh", home.path().join(".ssh")).unwrap();
    let output = at_home(
        home.path(),
        dir.path(),
        &["--ro", home.path().to_str().unwrap()],
        "cat ~/.ssh/key ~/real-ssh/key",
    );
    assert!(stdout(&output).is_empty() && !output.status.success(), "{output:?}");
}

#[test]
fn secret_that_is_granted_by_name_is_visible() {
    let (home, dir) = (home(), workspace());
    let ssh = home.path().join(".ssh");
    let output =
        at_home(home.path(), dir.path(), &["--ro", ssh.to_str().unwrap()], "cat ~/.ssh/key; ls -A ~");
    assert_eq!(stdout(&output), "secret.ssh", "{output:?}");
    let flags = ["--ro", ssh.to_str().unwrap(), "--ro", home.path().to_str().unwrap()];
    let output = at_home(home.path(), dir.path(), &flags, "cat ~/.ssh/key; ls -A ~/.aws");
    assert_eq!(stdout(&output), "secret", "{output:?}");
}

#[test]
fn full_dev_shows_the_host_tree_and_writes_only_the_workspace() {
    let (home, dir) = (home(), workspace());
    let flags = ["--profile", "full-dev"];
    let inside = succeeds(dir.path(), &flags, "ls -A /etc");
    let host = fs::read_dir("/etc").unwrap().count();
    // A few are secrets.
    assert!(inside.lines().count() + 10 >= host, "{inside}");
    assert!(!inside.lines().any(|name| name == "shadow"), "{inside}");
    succeeds(dir.path(), &flags, "touch written && cat /etc/passwd /etc/hostname > /dev/null");
    for attempt in ["touch /etc/x", "touch /usr/x", "touch /var/x", "mkdir /x"] {
        let said = fails(dir.path(), &flags, attempt);
        assert!(said.contains("Read-only file system"), "{attempt}: {said}");
    }
    let output = kennel(dir.path(), &flags, &["cat", "/etc/shadow"]).output().unwrap();
    assert!(stdout(&output).is_empty(), "{output:?}");
    let flags = ["--profile", "full-dev", "--ro", home.path().to_str().unwrap()];
    secrets_are_covered(home.path(), dir.path(), &flags);
}

#[test]
fn full_dev_has_its_own_processes_and_temporary_files() {
    let dir = workspace();
    let flags = ["--profile", "full-dev"];
    assert_eq!(succeeds(dir.path(), &flags, "tr -d '\\0' < /proc/1/cmdline"), "kennel");
    assert_eq!(succeeds(dir.path(), &flags, "ls -A /tmp"), super::visible::own_in_tmp(dir.path()));
    assert!(fails(dir.path(), &flags, "ls /sys/block").contains("No such file or directory"));
    let devices = succeeds(dir.path(), &flags, "ls /dev");
    assert!(!devices.contains("kmsg") && !devices.contains("mem"), "{devices}");
}

#[test]
fn ci_only_shows_nothing_of_home() {
    require_ci_only!();
    let (home, dir) = (home(), workspace());
    let cargo = home.path().join(".cargo/bin");
    fs::create_dir_all(&cargo).unwrap();
    fs::write(cargo.join("tool"), "").unwrap();
    let output = at_home(
        home.path(),
        dir.path(),
        &["--profile", "ci-only"],
        "echo ~; ls -A ~; ls -A /home; touch ~/x",
    );
    assert_eq!(stdout(&output), "/home/ci\nci", "{output:?}");
    assert!(output.status.success(), "{output:?}");
    let said =
        at_home(home.path(), dir.path(), &["--profile", "ci-only"], &format!("ls {}", home.path().display()));
    assert!(stderr(&said).contains("No such file or directory"), "{said:?}");
    if Path::new("/root").exists() && !dir.path().starts_with("/root") {
        assert!(
            fails(dir.path(), &["--profile", "ci-only"], "ls /root").contains("No such file or directory")
        );
    }
}

#[test]
fn ci_only_refuses_what_would_weaken_it() {
    require_ci_only!();
    let dir = workspace();
    succeeds(dir.path(), &["--profile", "ci-only"], "touch out");
    for (flags, words) in [(["--on-unavailable", "degrade"], "ci-only"), (["--net", "host"], "ci-only")] {
        let said = refused(dir.path(), &[&["--profile", "ci-only"], &flags[..]].concat());
        assert!(said.contains(words), "{flags:?}: {said}");
    }
}

#[test]
fn ci_only_refuses_a_limit_that_is_not_enforced() {
    require_ci_only!();
    let dir = workspace();
    let said = refused(dir.path(), &["--profile", "ci-only", "--cgroup", "off", "--cpus", "1"]);
    assert!(said.contains("cpus: ") && said.contains("cgroup"), "{said}");
}

#[test]
fn toolchains_of_home_are_visible_without_credentials() {
    let (home, dir) = (home(), workspace());
    let path = |name: &str| home.path().join(name);
    for (place, name) in
        [(".cargo/bin", "tool"), (".nvm/versions", "node"), ("own/bin", "mine"), ("own/lib", "lib")]
    {
        fs::create_dir_all(path(place)).unwrap();
        write_program(path(place).join(name), "#!/bin/sh\necho ran\n");
    }
    fs::write(path(".cargo/credentials.toml"), "token").unwrap();
    fs::create_dir_all(path(".cargo/registry/cache")).unwrap();
    let run = |flags: &[&str], script: &str| {
        kennel(dir.path(), flags, &["sh", "-c", script])
            .env("HOME", home.path())
            .env("PATH", format!("{}:/usr/bin:/bin", path("own/bin").display()))
            .env_remove("CARGO_HOME")
            .output()
            .unwrap()
    };
    let output = run(&[], "mine; ~/.cargo/bin/tool; cat ~/own/lib/lib | wc -l; ls -A ~/.nvm; ls -A ~/.cargo");
    assert_eq!(stdout(&output), "ran\nran\n2\nversions\nbin\nregistry", "{output:?}");
    let output = run(&["--caches", "read-only"], "touch ~/.cargo/bin/x");
    assert!(stderr(&output).contains("Read-only file system"), "{output:?}");
    let output = run(&[], "touch ~/.cargo/bin/x && ls ~/.cargo/bin");
    assert!(stdout(&output) == "tool\nx" || !crate::overlay::in_memory(), "{output:?}");
    assert!(!path(".cargo/bin/x").exists());
    let registry = path(".cargo/registry");
    let output = run(&["--mask", registry.to_str().unwrap()], "ls -A ~/.cargo; ls -A ~/.cargo/registry");
    assert!(output.status.success() && stdout(&output) == "bin\nregistry", "{output:?}");
    let output =
        run(&["--mask", path(".cargo").to_str().unwrap()], "mine; ls -A ~/.cargo; ~/.cargo/bin/tool");
    assert_eq!(stdout(&output), "ran", "{output:?}");
    assert!(stderr(&output).contains("tool: not found"), "{output:?}");
    let output = run(&["--toolchains", "none"], "mine; ls -A ~");
    assert!(stderr(&output).contains("mine: not found") && stdout(&output).is_empty(), "{output:?}");
}

#[test]
fn toolchain_variable_cannot_name_home_or_a_secret() {
    let (home, dir) = (home(), workspace());
    for value in [home.path().to_path_buf(), home.path().join(".ssh"), "/".into()] {
        let output = kennel(dir.path(), &[], &["sh", "-c", "cat ~/notes ~/.ssh/key; ls /etc/shadow; true"])
            .env("HOME", home.path())
            .env("NVM_DIR", &value)
            .env("PYENV_ROOT", &value)
            .output()
            .unwrap();
        assert!(stdout(&output).is_empty(), "{}: {output:?}", value.display());
    }
}

#[test]
fn toolchain_variable_cannot_name_a_directory_of_the_system() {
    let dir = workspace();
    let before = succeeds(dir.path(), &[], "ls -A /etc");
    for variable in ["NVM_DIR", "PYENV_ROOT", "JAVA_HOME"] {
        let output = kennel(dir.path(), &[], &["ls", "-A", "/etc"]).env(variable, "/etc").output().unwrap();
        assert_eq!(stdout(&output), before, "{variable}");
    }
}
