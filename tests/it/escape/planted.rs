//! A command plants something for later starts. They still end soon, protect the same paths as before, and
//! report what they could not look at.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use crate::support::{has, only_once, patient, protection, report, require, run, shell, stderr, workspace};

use super::git::place;

/// The state of `protected_paths` for a command that does nothing, and its explanation.
fn protected(workspace: &std::path::Path, flags: &[&str]) -> (String, String) {
    let began = Instant::now();
    let (output, report) = report(workspace, flags, &["true"]);
    assert!(output.status.success(), "{}", stderr(&output));
    // Most of these took minutes once.
    assert!(began.elapsed() < patient(Duration::from_secs(10)), "{:?}", began.elapsed());
    let (state, detail) = protection(&report, "protected_paths");
    (state.to_owned(), detail.to_owned())
}

#[test]
fn a_nest_of_repositories_delays_no_start() {
    let dir = workspace();
    let mut at = dir.path().join(".git/modules");
    for _ in 0..200 {
        at.push("a");
        fs::create_dir_all(&at).unwrap();
        fs::write(at.join("config"), "").unwrap();
    }
    let (state, detail) = protected(dir.path(), &[]);
    assert!(
        state == "degraded" && detail.contains("its modules and worktrees are read-only"),
        "{state}: {detail}"
    );
    assert!(detail.contains("32 directories") && detail.contains("remove submodules"), "{detail}");
}

#[test]
fn submodules_beyond_the_bound_are_read_only_and_reported() {
    only_once!();
    let dir = workspace();
    let git = dir.path().join(".git");
    let add = |number: usize| {
        fs::create_dir_all(git.join(format!("modules/{number}/hooks"))).unwrap();
        fs::write(git.join(format!("modules/{number}/config")), "").unwrap();
    };
    fs::create_dir_all(git.join("worktrees/w")).unwrap();
    (0..2000).for_each(add);
    let (state, detail) = protected(dir.path(), &[]);
    let told = "its modules and worktrees are read-only as a whole, and targets of links in them are not protected; remove submodules";
    assert!(state == "degraded" && detail.contains(told), "{state}: {detail}");
    for file in ["modules/7/hooks/post-checkout", "modules/new", "worktrees/w/index"] {
        let output = shell(dir.path(), &["-q"], &format!("echo x > .git/{file}"));
        assert!(!output.status.success() && stderr(&output).contains("Read-only"), "{file}: {output:?}");
    }
    let output = run(dir.path(), &["--profile", "ci-only"], &["true"]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    fs::remove_dir_all(git.join("modules")).unwrap();
    (0..3).for_each(add);
    assert_eq!(protected(dir.path(), &[]).0, "enforced");
    shell(dir.path(), &["-q"], "echo x > .git/worktrees/w/index");
    assert!(git.join("worktrees/w/index").exists(), "commits in a worktree write there");
}

#[test]
fn a_deep_directory_with_many_names_delays_no_start() {
    let dir = workspace();
    let sub = dir.path().join(".git/modules/x");
    let deep = sub.join("modules").join("a/".repeat(900));
    (0..200).for_each(|number| fs::create_dir_all(deep.join(number.to_string())).unwrap());
    fs::write(sub.join("config"), "").unwrap();
    assert_eq!(protected(dir.path(), &[]).0, "degraded");
}

/// Git puts no submodule into a repository in another one, but a command can make a repository around it.
#[test]
fn a_repository_around_a_submodule_leaves_it_protected() {
    let dir = workspace();
    let around = dir.path().join(".git/modules/tools");
    for name in ["objects", "refs", "logs/hooks", "logs/objects", "logs/refs"] {
        fs::create_dir_all(around.join(name)).unwrap();
    }
    fs::write(around.join("HEAD"), "ref: refs/heads/x\n").unwrap();
    fs::write(around.join("logs/HEAD"), "ref: refs/heads/x\n").unwrap();
    let (state, detail) = protected(dir.path(), &[]);
    assert_eq!(state, "enforced", "{detail}");
    let output = shell(dir.path(), &["-q"], "echo x > .git/modules/tools/logs/hooks/post-checkout");
    assert!(!output.status.success() && stderr(&output).contains("Read-only"), "{output:?}");
}

#[test]
fn many_links_to_one_large_directory_delay_no_start() {
    only_once!();
    let dir = workspace();
    for name in ["objects", "refs", "hooks", "big"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("HEAD"), "ref: refs/heads/x\n").unwrap();
    for number in 0..256 {
        std::os::unix::fs::symlink("../big", dir.path().join(format!("hooks/{number}"))).unwrap();
    }
    for number in 0..20_000 {
        fs::write(dir.path().join(format!("big/{number}")), "").unwrap();
    }
    assert_eq!(protected(dir.path(), &[]).0, "enforced");
}

#[test]
fn a_chain_of_links_beyond_the_longest_path_stops_no_start() {
    let name = "d".repeat(200);
    // The links continue part by part, as the kernel follows them. XFS has no link longer than 1024 bytes.
    let (_dir, ws) = place(&format!(
        "d={name}; five=$d/$d/$d/$d/$d; ten=$five/$five; cd w; mkdir objects refs hooks; echo ref: refs/heads/x > HEAD
         mkdir -p $ten t/$ten/$five; mv t/$d $ten/$d
         ln -s $five l0; ln -s l0/$five l1; ln -s l1/$five l2; ln -s l2/$five l3; ln -s ../l3/$five hooks/x",
    ));
    let (state, detail) = protected(&ws, &[]);
    assert!(state == "degraded" && detail.contains("too long to be followed"), "{state}: {detail}");
}

#[test]
fn an_empty_git_hides_no_repository_above() {
    require!(has("git"), "git");
    for (script, config) in [
        (
            "git init -q top/main; cd top/main; git commit -q --allow-empty -m x; git worktree add -q ../../w/wt; mkdir ../../w/wt/sub",
            "top/main/.git/config",
        ),
        (
            "git init -q --bare top/main.git; mkdir -p w/wt/sub; ln -s ../../top/main.git w/wt/.git",
            "top/main.git/config",
        ),
    ] {
        let (dir, ws) = place(script);
        let (top, sub) = (dir.path().join("top"), ws.join("wt/sub"));
        let flags = ["--rw", top.to_str().unwrap()];
        let written = |sub: &std::path::Path| {
            let at = dir.path().join(config);
            let before = fs::read(&at).unwrap();
            run(sub, &flags, &["sh", "-c", &format!("echo x >> '{}'", at.display())]);
            fs::read(&at).unwrap() != before
        };
        assert!(!written(&sub), "{config}");
        assert!(run(&sub, &flags, &["mkdir", ".git"]).status.success());
        assert!(!written(&sub), "{config}");
    }
}

#[test]
fn a_submodule_may_have_the_name_of_a_part_of_a_repository() {
    require!(has("git"), "git");
    for name in ["config", "objects", "refs", "HEAD"] {
        let (dir, ws) = place(&format!(
            "git init -q s; git -C s commit -q --allow-empty -m s; git init -q t; cd t
             git submodule --quiet add ../s libs/foo; git submodule --quiet add ../s libs/{name}; git commit -q -m t; cd ..
             git clone -q t w; cd w; git submodule --quiet update --init libs/foo; git submodule --quiet init"
        ));
        let update = "git -c protocol.file.allow=always submodule --quiet update libs/";
        let flags = ["--ro", dir.path().join("s").to_str().unwrap()].map(str::to_owned);
        let output = shell(&ws, &[&flags[0], &flags[1]], &format!("{update}{name}"));
        assert!(output.status.success(), "{name}: {output:?}");
        assert!(!stderr(&output).contains("denied"), "{name}: {output:?}");
        assert!(ws.join(".git/modules/libs").join(name).join("HEAD").is_file(), "{name}");
    }
}

#[test]
fn remotes_in_files_of_their_own_are_not_planted() {
    require!(has("git"), "git");
    for list in ["remotes", "branches"] {
        let (_dir, ws) = place(&format!("git init -q w; rm -rf w/.git/{list}"));
        let output = run(&ws, &[], &["mkdir", &format!(".git/{list}")]);
        assert!(output.status.success() && !stderr(&output).contains("denied"), "{output:?}");
        let (_dir, ws) = place(&format!("git init -q w; rm -rf w/.git/{list}"));
        let output = shell(&ws, &[], &format!("mkdir .git/{list}; echo ../evil > .git/{list}/origin"));
        assert!(
            stderr(&output).contains(&format!("it was renamed to {list}.refused-by-kennel.0")),
            "{output:?}"
        );
        assert!(!ws.join(".git").join(list).exists());
        fs::create_dir(ws.join(".git").join(list)).unwrap();
        let output = shell(&ws, &[], &format!("echo ../evil > .git/{list}/origin"));
        assert!(stderr(&output).contains("Read-only file system"), "{output:?}");
    }
}

#[test]
fn a_new_repository_keeps_the_config_of_its_worktree() {
    require!(has("git"), "git");
    let (_dir, ws) = place(":");
    let script = "git init -q; mkdir .git/branches 2>/dev/null; git config extensions.worktreeConfig true
                  git config --worktree core.sparseCheckout true; echo x > .git/branches/origin";
    let output = shell(&ws, &[], script);
    assert!(
        ws.join(".git/config.worktree").is_file() && !ws.join(".git/branches/origin").exists(),
        "{output:?}"
    );
    assert!(
        stderr(&output)
            .contains(".git/config.worktree: a protected path, which git obeys, was changed; it was kept")
    );
}

/// Root too: the set-up of the sandbox has no more rights there than others.
#[test]
fn closed_directories_stop_no_start() {
    for (path, file) in
        [("modules/x", "config"), ("modules", "x"), ("worktrees/x", "commondir"), ("worktrees", "x")]
    {
        let dir = workspace();
        let at = dir.path().join(".git").join(path);
        fs::create_dir_all(&at).unwrap();
        fs::write(at.join(file), "").unwrap();
        let close = |mode: u32| fs::set_permissions(&at, fs::Permissions::from_mode(mode)).unwrap();
        close(0);
        let (state, detail) = protected(dir.path(), &[]);
        assert!(state == "degraded" && detail.contains("Permission denied"), "{path}: {state}, {detail}");
        let output = shell(dir.path(), &[], &format!("chmod 700 .git/{path}"));
        assert!(stderr(&output).contains("Read-only file system"), "{path}: {output:?}");
        close(0o700);
    }
}

#[test]
fn the_users_own_config_of_git_stays_in_a_granted_home() {
    let dir = workspace();
    let home = dir.path();
    fs::create_dir_all(home.join(".config/git")).unwrap();
    fs::create_dir_all(home.join("xdg")).unwrap();
    fs::write(home.join(".gitconfig"), "").unwrap();
    fs::write(home.join(".config/git/config"), "").unwrap();
    let told = |path: &str| {
        let script = format!("mkdir -p \"$(dirname {path})\"; echo evil >> {path}");
        let mut command = crate::support::kennel(home, &[], &["sh", "-c", &script]);
        let output = command.env("HOME", home).env("XDG_CONFIG_HOME", home.join("xdg")).output().unwrap();
        stderr(&output)
    };
    for there in [".gitconfig", ".config/git/config", ".config/git/attributes"] {
        assert!(told(there).contains("Read-only file system"), "{there}");
    }
    assert!(told("xdg/git/config").contains("xdg/git: a protected path, which git obeys, was changed"));
    assert!(!home.join("xdg/git").exists() && home.join("xdg/git.refused-by-kennel.0/config").exists());
    fs::remove_file(home.join(".gitconfig")).unwrap();
    assert!(
        told(".gitconfig")
            .contains(".gitconfig: a protected path, which git obeys, was changed; it was renamed")
    );
    assert!(!told("other").contains("denied"));
}

#[test]
fn a_planted_link_is_reported_with_its_target() {
    require!(has("git"), "git");
    let (_dir, ws) =
        place("git init -q w; mkdir -p w/.git/worktrees/x; ln -s ../../../dist w/.git/worktrees/x/commondir");
    let said = stderr(&run(&ws, &[], &["mkdir", "dist"]));
    assert!(
        said.contains("dist: a protected path, which git obeys") && said.contains("x/commondir leads there"),
        "{said}"
    );
}
