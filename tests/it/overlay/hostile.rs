//! Commands leave files behind that could mislead a commit.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
};

use super::{
    CONFLICT, available, changes, commit, is_without_temporaries, overlaid, refusals, require_overlay, shell,
    workspace,
};
use crate::support::{World, attempt};

#[tokio::test]
async fn links_are_committed_as_links_and_not_followed() {
    require_overlay!();
    let (world, victim) = (overlaid(), workspace());
    fs::write(victim.path().join("f"), "victim").unwrap();
    fs::create_dir(world.at("d")).unwrap();
    fs::write(world.at("d/f"), "old").unwrap();
    let session = world.session().await;
    let to = victim.path().display();
    shell(&session, &format!("rm -r d; ln -s {to} d; ln -s {to}/f f; ln -s /proc/self/root/etc r")).await;
    assert_eq!(commit(&session).await, ["M d", "A f", "A r"]);
    assert_eq!(fs::read_link(world.at("d")).unwrap(), victim.path());
    shell(&session, "rm d f; mkdir d; echo x > d/f; echo x > f").await;
    assert_eq!(commit(&session).await, ["M d/", "A d/f", "M f"]);
    assert_eq!(fs::read(victim.path().join("f")).unwrap(), b"victim");
    assert_eq!(fs::read_dir(victim.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn special_files_are_refused() {
    require_overlay!();
    let world = overlaid();
    let session = world.session().await;
    shell(&session, "mkfifo fifo; mkdir d; mkfifo d/p; echo x > d/x").await;
    let why = "only files, directories and links are committed";
    assert_eq!(refusals(&session).await, [format!("A d/p: {why}"), format!("A fifo: {why}")]);
    assert!(world.at("d/x").exists() && !world.at("fifo").exists());
}

#[tokio::test]
async fn only_permission_bits_are_carried_over() {
    require_overlay!();
    let world = overlaid();
    fs::write(world.at("plain"), "x").unwrap();
    let session = world.session().await;
    shell(&session, "cp /bin/true f; chmod 6755 f || chmod 755 f; mkdir -m 1777 d; chmod u+s plain || :")
        .await;
    assert_eq!(commit(&session).await, ["A d/", "A f"], "bits that are not carried over are no change");
    let mode = |name: &str| fs::metadata(world.at(name)).unwrap().mode() & 0o7777;
    assert_eq!([mode("f"), mode("d"), mode("plain") & 0o6000], [0o755, 0o1777, 0]);
    assert_eq!(fs::metadata(world.at("f")).unwrap().uid(), nix::unistd::geteuid().as_raw());
}

#[tokio::test]
async fn names_of_any_bytes_are_listed_on_one_line() {
    require_overlay!();
    let world = overlaid();
    let session = world.session().await;
    shell(&session, r#"touch -- "$(printf 'a\nA b')" "$(printf '\033[2Jx')" "$(printf '\377')" ' ' '\n' '-rf' "$(printf '\342\200\256x')" .kennel-x.tmp"#).await;
    let listed = changes(&session).await;
    assert!(listed.iter().all(|line| !line.chars().any(char::is_control)), "{listed:?}");
    assert!(listed.contains(&"A a\\nA b".to_owned()) && listed.contains(&"A \\\\n".to_owned()), "{listed:?}");
    assert!(listed.contains(&"A \\u{202e}x".to_owned()), "{listed:?}");
    assert_eq!(commit(&session).await.len(), 8);
    assert_eq!(fs::read_dir(world.path()).unwrap().count(), 8);
    assert!(changes(&session).await.is_empty());
}

#[tokio::test]
async fn closed_modes_are_no_obstacle() {
    require_overlay!();
    let world = overlaid();
    let session = world.session().await;
    shell(&session, "mkdir -p a/b/c; echo x > a/b/c/f; chmod 0 a/b/c/f a/b/c; chmod 0 a/b; chmod 100 a; echo y > l; chmod 0 l").await;
    let all = ["A a/", "A a/b/", "A a/b/c/", "A a/b/c/f", "A l"];
    assert_eq!(changes(&session).await, all);
    assert_eq!(shell(&session, "stat -c %a a l").await, "100\n0\n", "to look changes nothing");
    assert_eq!(commit(&session).await, all);
    let mode = |name: &str| fs::metadata(world.at(name)).unwrap().mode() & 0o7777;
    assert_eq!([mode("a"), mode("l")], [0o100, 0]);
    for name in ["a", "a/b", "a/b/c", "a/b/c/f"] {
        fs::set_permissions(world.at(name), fs::Permissions::from_mode(0o700)).unwrap();
    }
    assert_eq!(fs::read(world.at("a/b/c/f")).unwrap(), b"x\n");
}

#[tokio::test]
async fn a_workspace_that_a_command_closes_is_open_to_a_commit() {
    require_overlay!();
    let world = overlaid();
    let session = world.session().await;
    shell(&session, "mkdir d; echo x > d/f; chmod 0 \"$PWD\"").await;
    assert_eq!(changes(&session).await, ["A d/", "A d/f"]);
    assert_eq!(commit(&session).await, ["A d/", "A d/f"]);
    assert_eq!(fs::read(world.at("d/f")).unwrap(), b"x\n");
}

#[tokio::test]
async fn paths_that_are_too_deep_are_refused_and_the_rest_is_applied() {
    require_overlay!();
    let world = overlaid();
    let session = world.session().await;
    crate::support::require!(crate::support::has("python3"), "python3");
    let deep =
        "mkdir top; cd top; python3 -c 'import os\nfor _ in range(2500): os.mkdir(\"d\"); os.chdir(\"d\")'";
    shell(&session, deep).await;
    shell(&session, "echo y > y").await;
    let refused = refusals(&session).await;
    assert_eq!(refused.len(), 1);
    assert!(refused[0].ends_with("File name too long"), "{}", &refused[0][refused[0].len() - 60..]);
    assert!(world.at("y").exists() && world.at("top/d/d/d").exists());
    std::process::Command::new("rm").arg("-rf").arg(world.at("top")).status().unwrap();
}

#[tokio::test]
async fn long_paths_do_not_fill_memory() {
    require_overlay!();
    crate::support::require!(crate::support::has("python3"), "python3");
    let world = overlaid();
    let session = world.session().await;
    let script = "import os\n\
        for _ in range(15): os.mkdir('n' * 250); os.chdir('n' * 250)\n\
        for i in range(40000): os.symlink('x', '%05d' % i + 'z' * 100)";
    let out = session.command("python3").args(["-c", script]).output().await.unwrap();
    assert!(out.outcome.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let listed = session.changes().await.map(|changes| changes.len());
    assert!(
        matches!(listed, Err(kennel::Error::Overlay(kennel::overlay::OverlayError::TooMany))),
        "{listed:?}"
    );
    session.discard().await.unwrap();
}

#[tokio::test]
async fn marks_of_overlayfs_cannot_be_forged() {
    require_overlay!();
    let world = overlaid();
    fs::write(world.at("f"), "old").unwrap();
    let session = world.session().await;
    let script = "import os\n\
        os.mkdir('d')\n\
        for name in ('opaque', 'whiteout', 'origin', 'redirect', 'metacopy'):\n\
        \x20   for path in ('d', 'f', '.'):\n\
        \x20       try: os.setxattr(path, 'user.overlay.' + name, b'y')\n\
        \x20       except OSError: pass\n\
        os.setxattr('f', 'user.mine', b'1')\n";
    crate::support::require!(crate::support::has("python3"), "python3");
    let out = session.command("python3").args(["-c", script]).output().await.unwrap();
    assert!(out.outcome.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(commit(&session).await, ["A d/", "M f"]);
    let names = |name: &str| -> Vec<_> {
        xattr::list(world.at(name))
            .unwrap()
            .filter(|name| name.to_string_lossy().starts_with("user."))
            .collect()
    };
    assert_eq!(names("f"), ["user.mine"]);
    assert!(names("d").is_empty() && names("").is_empty());
    assert_eq!(fs::read(world.at("f")).unwrap(), b"old");
}

#[test]
fn whiteouts_cannot_be_made() {
    if !available() {
        return super::refused::is_refused_in_memory();
    }
    let dir = workspace();
    fs::write(dir.path().join("f"), "old").unwrap();
    let path = format!("s:{}", dir.path().join("w").display());
    let flags = super::flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(["--quiet", "--discard"]).collect();
    // S_IFCHR | 0600, device 0:0; then a node with the device of /dev/null.
    let calls = ["mknod", &path, "0x2180", "0", "+", "mknod", &path, "0x2180", "0x103"];
    assert_eq!(attempt(dir.path(), &flags, "call", &calls), "EPERM\nEPERM");
}

#[tokio::test]
async fn hard_links_become_files_of_their_own() {
    require_overlay!();
    let (world, outside) = (overlaid(), workspace());
    fs::write(outside.path().join("linked"), "outside").unwrap();
    fs::hard_link(outside.path().join("linked"), world.at("linked")).unwrap();
    let session = world.session().await;
    shell(&session, "echo a > a; ln a b; echo more >> b; echo inside > linked").await;
    assert_eq!(commit(&session).await, ["A a", "A b", "M linked"]);
    assert_eq!(fs::read(world.at("a")).unwrap(), b"a\nmore\n");
    assert_eq!(
        fs::read(outside.path().join("linked")).unwrap(),
        b"outside",
        "the other name keeps the old contents"
    );
}

#[tokio::test]
async fn links_in_the_workspace_that_appear_meanwhile_lead_nobody_out() {
    require_overlay!();
    let (world, victim) = (overlaid(), workspace());
    fs::create_dir_all(world.at("d/e")).unwrap();
    let session = world.session().await;
    shell(&session, "echo x > d/e/f; echo x > d/g").await;
    fs::rename(world.at("d"), world.at("was")).unwrap();
    symlink(victim.path(), world.at("d")).unwrap();
    fs::create_dir(victim.path().join("e")).unwrap();
    let refused = refusals(&session).await;
    assert!(refused.iter().any(|line| line.starts_with("A d/g: ")), "{refused:?}");
    assert_eq!(fs::read_dir(victim.path()).unwrap().count(), 1);
    assert_eq!(fs::read_dir(victim.path().join("e")).unwrap().count(), 0);
    assert!(is_without_temporaries(world.path()));
}

#[tokio::test]
async fn temporary_files_of_a_killed_commit_are_no_obstacle() {
    require_overlay!();
    let world = overlaid();
    let session = world.session().await;
    shell(&session, "echo x > x; mkdir d; echo y > d/y").await;
    fs::write(world.at(".kennel-0123456789abcdef.tmp"), "half").unwrap();
    // A killed commit did half of it. An entry that is already equal is no change.
    fs::write(world.at("x"), "x\n").unwrap();
    assert_eq!(commit(&session).await, ["A d/", "A d/y"]);
}

/// Swaps `private` with the first temporary name that appears beside it. Returns whether it did.
fn exchange_with_temporary(base: &Path, stop: &Arc<AtomicBool>) -> JoinHandle<bool> {
    use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
    let (base, stop) = (base.to_owned(), Arc::clone(stop));
    std::thread::spawn(move || {
        while !stop.load(Relaxed) {
            let mut names = fs::read_dir(&base).unwrap().flatten().map(|entry| entry.path());
            let is_ours = |path: &std::path::PathBuf| path.to_string_lossy().contains("/.kennel-");
            let Some(found) = names.find(is_ours) else { continue };
            let flags = RenameFlags::RENAME_EXCHANGE;
            return renameat2(AT_FDCWD, &base.join("private"), AT_FDCWD, &found, flags).is_ok();
        }
        false
    })
}

/// Commits the changes of a script in a workspace with a directory `private`. Meanwhile another process swaps
/// it with an entry that has a temporary name. Returns the refusals.
async fn with_exchange(prepare: impl Fn(&Path), script: &str) -> (World, Vec<String>) {
    // A single temporary name may vanish too soon.
    for _ in 0..20 {
        let world = overlaid();
        fs::create_dir(world.at("private")).unwrap();
        fs::write(world.at("private/secret"), "secret").unwrap();
        prepare(world.path());
        let session = world.session().await;
        shell(&session, script).await;
        let stop = Arc::default();
        let exchange = exchange_with_temporary(world.path(), &stop);
        let refused = refusals(&session).await;
        stop.store(true, Relaxed);
        if exchange.join().unwrap() {
            return (world, refused);
        }
    }
    panic!("nobody saw a temporary name");
}

fn has_secret(directory: &Path) -> bool {
    let mut entries = fs::read_dir(directory).unwrap().flatten();
    entries.any(|entry| fs::read(entry.path().join("secret")).is_ok_and(|read| read == b"secret"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_gets_a_temporary_name_is_not_deleted() {
    require_overlay!();
    let fill = |base: &Path| {
        fs::create_dir(base.join("build")).unwrap();
        (0..2000).for_each(|i| fs::write(base.join(format!("build/{i}")), "").unwrap());
    };
    for script in ["rm -r build", "rm -r build; echo x > build"] {
        let (dir, _) = with_exchange(fill, script).await;
        assert!(has_secret(dir.path()), "{script}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_gets_a_temporary_name_takes_no_files_place() {
    require_overlay!();
    let write = "head -c 20000000 /dev/urandom > f";
    let (dir, refused) = with_exchange(|_| {}, write).await;
    assert_eq!(refused, [format!("A f: {CONFLICT}")]);
    assert!(has_secret(dir.path()) && !dir.path().join("f").exists());
    let (dir, refused) = with_exchange(|base| fs::write(base.join("f"), "old").unwrap(), write).await;
    assert_eq!(refused, [format!("M f: {CONFLICT}")]);
    assert!(has_secret(dir.path()));
    assert_eq!(fs::read(dir.path().join("f")).unwrap(), b"old");
}

#[tokio::test]
async fn attributes_do_not_fill_memory() {
    require_overlay!();
    crate::support::require!(crate::support::has("python3"), "python3");
    let world = overlaid();
    fs::write(world.at("f"), "x").unwrap();
    fs::create_dir(world.at("d")).unwrap();
    let session = world.session().await;
    let script = "import os\n\
        open('g', 'w')\n\
        for path in ('f', 'd'):\n\
        \x20   for i in range(20): os.setxattr(path, 'user.%d' % i, b'x' * 60000)\n";
    let out = session.command("python3").args(["-c", script]).output().await.unwrap();
    if !out.outcome.status.success() {
        // Most file systems have no room for so many.
        let said = String::from_utf8_lossy(&out.stderr);
        return assert!(said.contains("No space left") || said.contains("Argument list too long"), "{said}");
    }
    let why = "Argument list too long";
    assert_eq!(changes(&session).await, ["M d/", "M f", "A g"]);
    assert_eq!(refusals(&session).await, [format!("M d/: {why}"), format!("M f: {why}")]);
}
