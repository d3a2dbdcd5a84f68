//! What each profile shows beyond the default, and that secrets stay covered.

use std::{fs, path::Path};

use crate::support::{
    World, fails, filled, kennel, refused, require_ci_only, stderr, stdout, succeeds, workspace,
    write_program,
};

/// A world whose home has secrets and one ordinary file.
fn world() -> World {
    let directories = [".ssh", ".aws", ".gnupg", ".docker", ".config/gcloud", ".config/gh"];
    let keys = directories.map(|directory| format!("{directory}/key"));
    let files = [".netrc", ".npmrc", ".git-credentials", "notes"];
    let all: Vec<&str> = keys.iter().map(String::as_str).chain(files).collect();
    World::at_home(filled(workspace(), &all, |_| "secret"))
}

/// Every secret of [`world`] is covered, and the ordinary file is not.
fn secrets_are_covered(world: &World, workspace: &Path, flags: &[&str]) {
    let run = |script: &str| world.script(flags, script).current_dir(workspace).output().unwrap();
    let script = "cat ~/notes; for d in .ssh .aws .gnupg .docker .config/gcloud .config/gh; do ls -A ~/$d; done; \
                  cat ~/.netrc ~/.npmrc ~/.git-credentials";
    let output = run(script);
    assert_eq!(stdout(&output), "secret", "{output:?}");
    let output = run("cat ~/.ssh/key");
    assert!(stderr(&output).contains("No such file or directory"), "{output:?}");
    let output = run("touch ~/.ssh/new");
    assert!(stderr(&output).contains("Read-only file system"), "{output:?}");
    run("echo x > ~/.netrc; rm -rf ~/.ssh ~/.netrc; mv ~/.aws ~/moved; ls ~/moved");
    for file in [".ssh/key", ".aws/key", ".netrc"] {
        assert_eq!(fs::read_to_string(world.in_home(file)).unwrap(), "secret", "{file}");
    }
}

#[test]
fn secrets_are_covered_when_home_is_the_workspace() {
    let world = world();
    secrets_are_covered(&world, world.home(), &[]);
}

#[test]
fn secrets_are_covered_when_home_is_granted() {
    let world = world();
    secrets_are_covered(&world, world.path(), &["--ro", world.home().to_str().unwrap()]);
    secrets_are_covered(&world, world.path(), &["--rw", world.home().to_str().unwrap()]);
}

#[test]
fn secrets_are_covered_when_they_are_links() {
    let world = world();
    fs::rename(world.in_home(".ssh"), world.in_home("real-ssh")).unwrap();
    std::os::unix::fs::symlink("real-ssh", world.in_home(".ssh")).unwrap();
    let output = world.run(&["--ro", world.home().to_str().unwrap()], "cat ~/.ssh/key ~/real-ssh/key");
    assert!(stdout(&output).is_empty() && !output.status.success(), "{output:?}");
}

#[test]
fn secret_that_is_granted_by_name_is_visible() {
    let world = world();
    let ssh = world.in_home(".ssh");
    let output = world.run(&["--ro", ssh.to_str().unwrap()], "cat ~/.ssh/key; ls -A ~");
    assert_eq!(stdout(&output), "secret.ssh", "{output:?}");
    let flags = ["--ro", ssh.to_str().unwrap(), "--ro", world.home().to_str().unwrap()];
    let output = world.run(&flags, "cat ~/.ssh/key; ls -A ~/.aws");
    assert_eq!(stdout(&output), "secret", "{output:?}");
}

#[test]
fn full_dev_shows_the_host_tree_and_writes_only_the_workspace() {
    let world = world();
    let flags = ["--profile", "full-dev"];
    let inside = succeeds(world.path(), &flags, "ls -A /etc");
    let host = fs::read_dir("/etc").unwrap().count();
    // A few are secrets.
    assert!(inside.lines().count() + 10 >= host, "{inside}");
    assert!(!inside.lines().any(|name| name == "shadow"), "{inside}");
    succeeds(world.path(), &flags, "touch written && cat /etc/passwd /etc/hostname > /dev/null");
    for attempt in ["touch /etc/x", "touch /usr/x", "touch /var/x", "mkdir /x"] {
        let said = fails(world.path(), &flags, attempt);
        assert!(said.contains("Read-only file system"), "{attempt}: {said}");
    }
    let output = kennel(world.path(), &flags, &["cat", "/etc/shadow"]).output().unwrap();
    assert!(stdout(&output).is_empty(), "{output:?}");
    let flags = ["--profile", "full-dev", "--ro", world.home().to_str().unwrap()];
    secrets_are_covered(&world, world.path(), &flags);
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
    let world = world();
    let cargo = world.in_home(".cargo/bin");
    fs::create_dir_all(&cargo).unwrap();
    fs::write(cargo.join("tool"), "").unwrap();
    let output = world.run(&["--profile", "ci-only"], "echo ~; ls -A ~; ls -A /home; touch ~/x");
    assert_eq!(stdout(&output), "/home/ci\nci", "{output:?}");
    assert!(output.status.success(), "{output:?}");
    let said = world.run(&["--profile", "ci-only"], &format!("ls {}", world.home().display()));
    assert!(stderr(&said).contains("No such file or directory"), "{said:?}");
    if Path::new("/root").exists() && !world.path().starts_with("/root") {
        assert!(
            fails(world.path(), &["--profile", "ci-only"], "ls /root").contains("No such file or directory")
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
    let world = world();
    let path = |name: &str| world.in_home(name);
    for (place, name) in
        [(".cargo/bin", "tool"), (".nvm/versions", "node"), ("own/bin", "mine"), ("own/lib", "lib")]
    {
        fs::create_dir_all(path(place)).unwrap();
        write_program(path(place).join(name), "#!/bin/sh\necho ran\n");
    }
    fs::write(path(".cargo/credentials.toml"), "token").unwrap();
    fs::create_dir_all(path(".cargo/registry/cache")).unwrap();
    let run = |flags: &[&str], script: &str| {
        kennel(world.path(), flags, &["sh", "-c", script])
            .env("HOME", world.home())
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
    let world = world();
    for value in [world.home().to_path_buf(), world.in_home(".ssh"), "/".into()] {
        let output = kennel(world.path(), &[], &["sh", "-c", "cat ~/notes ~/.ssh/key; ls /etc/shadow; true"])
            .env("HOME", world.home())
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
