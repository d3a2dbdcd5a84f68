//! A command closes, removes or plants paths, so that the next sandbox does not see what it has to protect.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use super::{
    check,
    protected::denials,
    secrets::{at_home, home},
};
use crate::support::{
    is_root, make_repository, only_once, protection, report, repository, shell, stderr, stdout, workspace,
};

/// The state of the protected paths, and the reason.
fn protected(ws: &Path) -> (String, String) {
    let (output, said) = report(ws, &[], &["true"]);
    assert!(output.status.success(), "{output:?}");
    let (state, detail) = protection(&said, "protected_paths");
    (state.to_owned(), detail.to_owned())
}

#[test]
fn directories_of_git_that_cannot_be_looked_at_are_read_only() {
    for (closed, mode, file) in [
        (".git/worktrees", 0o300, ".git/worktrees/tree/commondir"),
        (".git/worktrees", 0, ".git/worktrees/tree/commondir"),
        (".git/modules", 0o300, ".git/modules/sub/config"),
        (".git/modules/sub", 0, ".git/modules/sub/config"),
        (".git/modules/sub", 0o400, ".git/modules/sub/hooks/post-checkout"),
    ] {
        let ws = repository();
        make_repository(&ws.path().join(".git/modules/sub"));
        fs::create_dir_all(ws.path().join(".git/worktrees/tree")).unwrap();
        fs::write(ws.path().join(".git/worktrees/tree/commondir"), "../..\n").unwrap();
        let before = fs::read(ws.path().join(file)).ok();
        assert!(shell(ws.path(), &["-q"], &format!("chmod {mode:o} {closed}")).status.success());
        // Root can look anyway. The recheck of absent paths in it opens directories that cannot be searched.
        if fs::read_dir(ws.path().join(closed)).and_then(Iterator::collect::<Result<Vec<_>, _>>).is_err() {
            let (state, detail) = protected(ws.path());
            let is_told = state == "degraded" && detail.contains("could not be read completely");
            assert!(is_told, "{closed} {mode:o}: {detail}");
        }
        let open = format!("chmod 700 {closed}; echo /evil > {file}");
        let output = shell(ws.path(), &["-q"], &open);
        // Root can look, but the set-up of the sandbox has no more rights there than others.
        let is_refused = is_root()
            && output.status.code() == Some(125)
            && stderr(&output).contains("check that the caller may enter the path that the message names");
        assert!(
            is_refused || stderr(&output).contains("Read-only file system"),
            "{closed} {mode:o}: {output:?}"
        );
        fs::set_permissions(ws.path().join(closed), Permissions::from_mode(0o755)).unwrap();
        assert_eq!(fs::read(ws.path().join(file)).ok(), before, "{closed} {mode:o}");
    }
}

#[test]
fn a_repository_without_its_head_is_still_protected() {
    let ws = repository();
    make_repository(&ws.path().join(".git/modules/sub"));
    make_repository(&ws.path().join("bare"));
    let take = "for part in HEAD objects refs; do mv $d/$part $d/no-$part; done";
    let script = format!("for d in .git/modules/sub bare; do {take}; done");
    assert!(shell(ws.path(), &["-q"], &script).status.success());
    let of = |directory: &str| {
        let (config, hook) =
            (format!("open s:{directory}/config 1"), format!("creat s:{directory}/hooks/x 0x1ed"));
        [config, hook]
    };
    let [config, hook] = of(".git/modules/sub");
    check(ws.path(), &[], &[(&config, "EROFS"), (&hook, "EROFS")]);
    let bare = ws.path().join("bare");
    let [config, hook] = of(bare.to_str().unwrap());
    check(workspace().path(), &["--rw", bare.to_str().unwrap()], &[(&config, "EROFS"), (&hook, "EROFS")]);
}

/// Otherwise its contents would be taken for parts of that repository.
#[test]
fn a_directory_of_submodules_cannot_become_a_repository() {
    let ws = repository();
    make_repository(&ws.path().join(".git/modules/tools/sub"));
    let plant = "cp -r .git/modules/tools/sub/. .git/modules/tools/";
    let told = denials(ws.path(), &[], plant);
    assert!(told.contains("modules/tools/HEAD") && told.contains("modules/tools/config"), "{told}");
    check(ws.path(), &[], &[("open s:.git/modules/tools/sub/config 1", "EROFS")]);
}

#[test]
fn a_repository_behind_a_pointer_file_is_protected() {
    let ws = workspace();
    make_repository(&ws.path().join(".bare"));
    fs::create_dir_all(ws.path().join(".bare/worktrees/tree")).unwrap();
    fs::write(ws.path().join(".bare/worktrees/tree/commondir"), "../..\n").unwrap();
    for pointer in ["gitdir: ./.bare\n", "gitdir: .bare/worktrees/tree\n"] {
        fs::write(ws.path().join(".git"), pointer).unwrap();
        check(
            ws.path(),
            &[],
            &[
                ("open s:.git 1", "EROFS"),
                ("open s:.bare/config 1", "EROFS"),
                ("creat s:.bare/hooks/x 0x1ed", "EROFS"),
                ("open s:.bare/worktrees/tree/commondir 1", "EROFS"),
                ("creat s:.bare/objects/x 0x1a4", "ok"),
            ],
        );
        fs::remove_file(ws.path().join(".bare/objects/x")).unwrap();
    }
}

/// A pointer or the common directory through a link, and a link to a pointer.
#[test]
fn links_that_lead_git_to_its_repository_stay() {
    for (pointer, link, to) in
        [("gitdir: link/main\n", "link", "repos"), ("gitdir: repos/tree\n", "repos/link", "main")]
    {
        let ws = workspace();
        make_repository(&ws.path().join("repos/main"));
        fs::create_dir_all(ws.path().join("repos/tree")).unwrap();
        fs::write(ws.path().join("repos/tree/commondir"), "../link\n").unwrap();
        symlink(to, ws.path().join(link)).unwrap();
        fs::write(ws.path().join(".git"), pointer).unwrap();
        let plant = format!("cp -rL {link} evil; rm {link}; mv evil {link}; echo evil >> {link}/config");
        let told = denials(ws.path(), &[], &plant);
        assert!(told.contains(link) && told.contains(&format!("led to {to}")), "{told}");
        assert!(fs::symlink_metadata(ws.path().join(link)).is_err(), "nothing takes its place");
    }
    let ws = workspace();
    make_repository(&ws.path().join("repos/main"));
    fs::write(ws.path().join("pointer"), "gitdir: repos/main\n").unwrap();
    symlink("pointer", ws.path().join(".git")).unwrap();
    check(ws.path(), &[], &[("open s:pointer 1", "EROFS"), ("open s:repos/main/config 1", "EROFS")]);
}

/// A command of another sandbox may do this for a while.
#[test]
fn a_way_to_the_repository_that_is_closed_is_refused() {
    let (ws, elsewhere) = (workspace(), workspace());
    for place in [&ws, &elsewhere] {
        make_repository(&place.path().join("repos/main"));
        fs::set_permissions(place.path().join("repos"), Permissions::from_mode(0o0)).unwrap();
    }
    fs::write(ws.path().join(".git"), "gitdir: repos/main\n").unwrap();
    let output = shell(ws.path(), &["-q"], "chmod 700 repos; echo evil >> repos/main/config");
    let told = "give yourself access to its directory";
    assert!(output.status.code() == Some(125) && stderr(&output).contains(told), "{output:?}");
    // Paths that commands cannot reach do not matter to them.
    fs::write(ws.path().join(".git"), format!("gitdir: {}/repos/main\n", elsewhere.path().display()))
        .unwrap();
    assert!(shell(ws.path(), &["-q"], "true").status.success());
    for place in [&ws, &elsewhere] {
        fs::set_permissions(place.path().join("repos"), Permissions::from_mode(0o700)).unwrap();
    }
}

/// Kennel knows the secret only through the link. Without it the next sandbox would show the link's target.
#[test]
fn links_to_secrets_are_protected() {
    let home = home();
    fs::create_dir(home.path().join("dotfiles")).unwrap();
    fs::rename(home.path().join(".ssh"), home.path().join("dotfiles/ssh")).unwrap();
    symlink("dotfiles/ssh", home.path().join(".ssh")).unwrap();
    let told = |script: &str| {
        let json = tempfile::NamedTempFile::new().unwrap();
        let path = json.path().to_str().unwrap();
        let mut command = crate::support::kennel(home.path(), &["-q", "--json", path], &["sh", "-c", script]);
        assert!(command.env("HOME", home.path()).output().unwrap().status.success());
        let report: serde_json::Value = serde_json::from_slice(&fs::read(json.path()).unwrap()).unwrap();
        report["denials"].to_string()
    };
    assert_eq!(told("true"), "[]");
    let denials = told("rm .ssh; mkdir .ssh");
    assert!(denials.contains(".ssh") && denials.contains("led to dotfiles/ssh"), "{denials}");
    assert!(fs::symlink_metadata(home.path().join(".ssh")).is_err(), "nothing takes its place");
}

#[test]
fn too_many_names_in_a_directory_of_git_are_reported() {
    only_once!();
    let ws = repository();
    make_repository(&ws.path().join(".git/modules/sub"));
    assert_eq!(protected(ws.path()).0, "enforced");
    let plant = "mkdir .git/modules/x; cd .git/modules/x; seq 2000 | xargs mkdir; seq -f %g/config 2000 | xargs touch";
    assert!(shell(ws.path(), &["-q"], plant).status.success());
    let (state, detail) = protected(ws.path());
    assert!(state == "degraded" && detail.contains("targets of links in them are not protected"), "{detail}");
    check(ws.path(), &[], &[("open s:.git/modules/sub/config 1", "EROFS")]);
}

#[test]
fn secrets_in_a_directory_that_a_command_closed_stay_covered() {
    for closed in [".config", "dotfiles"] {
        let home = home();
        fs::rename(home.path().join(".ssh"), home.path().join("ssh")).unwrap();
        fs::create_dir(home.path().join("dotfiles")).unwrap();
        fs::rename(home.path().join("ssh"), home.path().join("dotfiles/ssh")).unwrap();
        symlink("dotfiles/ssh", home.path().join(".ssh")).unwrap();
        let with_home = |script: &str| {
            let mut command = crate::support::kennel(home.path(), &["-q"], &["sh", "-c", script]);
            command.env("HOME", home.path()).output().unwrap()
        };
        assert!(with_home(&format!("chmod 0 ~/{closed}")).status.success());
        let output = with_home(&format!("chmod 700 ~/{closed}; cat ~/.config/gh/* ~/dotfiles/ssh/*"));
        assert_eq!(stdout(&output), "", "{closed}: {output:?}");
        // Root can look anyway. `.config` was opened again, to see that nothing took the place of git's
        // config.
        if !is_root() && closed != ".config" {
            let said = stderr(&output);
            assert!(output.status.code() == Some(125) && said.contains("give yourself access"), "{said}");
        }
        fs::set_permissions(home.path().join(closed), Permissions::from_mode(0o755)).unwrap();
        let secret = home.path().join(".config/gh/hosts.yml").display().to_string();
        assert_eq!(at_home(home.path(), &[], &["read", &secret]), ["ENOENT"], "then it works as before");
    }
}
