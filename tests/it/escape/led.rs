//! What decides outside about later commands, and lies where a command may write: its policy, a manifest, and what variables
//! and grants name over links.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::Output,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use crate::support::{kennel, patient, runs, stderr, workspace};

fn run(workspace: &Path, flags: &[&str], script: &str) -> Output {
    kennel(workspace, flags, &["sh", "-c", script]).output().unwrap()
}

#[test]
fn a_policy_is_no_business_of_its_commands() {
    for (name, text) in [("kennel.toml", "workspace = '.'\n"), ("kennel.json", r#"{"workspace": "."}"#)] {
        for profile in ["repo-write", "ci-only"].into_iter().filter(|profile| runs(profile)) {
            let dir = workspace();
            let file = dir.path().join(name);
            fs::write(&file, text).unwrap();
            let flags = ["--policy", name, "--profile", profile];
            for change in [
                format!("echo '# evil' >> {name}"),
                format!("rm {name}"),
                format!("mv {name} other"),
                format!("echo evil > new; mv new {name}"),
            ] {
                let changed = run(dir.path(), &flags, &change);
                assert!(!changed.status.success(), "{change}: {changed:?}");
                assert_eq!(fs::read_to_string(&file).unwrap(), text, "{change}");
            }
            let said = run(dir.path(), &flags, &format!("cat {name}; touch made"));
            assert_eq!(String::from_utf8_lossy(&said.stdout), text, "it may be read: {said:?}");
            assert!(dir.path().join("made").exists());
        }
    }
}

#[test]
fn a_policy_elsewhere_and_by_a_link_is_obeyed_and_kept() {
    let (dir, other) = (workspace(), workspace());
    fs::write(other.path().join("p.toml"), format!("workspace = '{}'\n", dir.path().display())).unwrap();
    symlink(other.path().join("p.toml"), dir.path().join("link.toml")).unwrap();
    let flags = ["--policy", "link.toml", "--workspace", "."];
    let said = run(dir.path(), &flags, "rm -f link.toml; echo evil > link.toml; touch made");
    assert!(dir.path().join("made").exists(), "{said:?}");
    let now = fs::symlink_metadata(dir.path().join("link.toml"));
    assert!(now.is_err(), "what took its place is removed: {}", stderr(&said));
}

#[test]
fn a_manifest_is_no_business_of_its_programs() {
    let dir = workspace();
    let place = dir.path().display();
    let text = format!(
        "[capabilities.spawn]\nprograms = [{{ path = '/bin/cp' }}]\nfs_write = ['{place}']\n\
         [capabilities.spawn.operations]\ncopy = 'cp {place}/evil {place}/{{to}}'\n"
    );
    fs::write(dir.path().join("evil"), "evil").unwrap();
    fs::write(dir.path().join("m.toml"), &text).unwrap();
    for (to, copied) in [("m.toml", false), ("other", true)] {
        let mut op = std::process::Command::new(crate::support::kennel_path());
        let op = op.arg("op").arg(dir.path().join("m.toml")).args(["copy", "--arg", &format!("to={to}")]);
        let said = op.output().unwrap();
        assert_eq!(said.status.success(), copied, "{said:?}");
    }
    assert_eq!(fs::read_to_string(dir.path().join("m.toml")).unwrap(), text);
    assert_eq!(fs::read_to_string(dir.path().join("other")).unwrap(), "evil");
}

#[test]
fn no_link_of_a_command_decides_which_bundle_is_shown() {
    let (dir, private) = (workspace(), workspace());
    let (bundle, own) = (dir.path().join("ca.pem"), private.path().join("notes"));
    fs::write(&own, "private notes").unwrap();
    let shown = |bundle: &Path| {
        let mut command =
            kennel(dir.path(), &["--allow", "example.org:443"], &["sh", "-c", "cat \"$SSL_CERT_FILE\""]);
        String::from_utf8(command.env("SSL_CERT_FILE", bundle).output().unwrap().stdout).unwrap()
    };
    assert_eq!(shown(&own), "private notes", "the user names it");
    symlink(&own, &bundle).unwrap();
    assert_eq!(shown(&bundle), "", "a command may have laid this link");
}

/// Somebody exchanges a directory for a link to another while grants are looked at: none of them shows the other.
#[test]
fn a_grant_that_is_exchanged_shows_nothing_else() {
    let (dir, private) = (workspace(), workspace());
    for at in ["data", "keep"] {
        fs::create_dir(dir.path().join(at)).unwrap();
        fs::write(dir.path().join(at).join("f"), "").unwrap();
    }
    fs::write(private.path().join("key"), "secret").unwrap();
    let (data, link) = (dir.path().join("data"), dir.path().join("alt"));
    symlink(private.path(), &link).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _ = renameat2(AT_FDCWD, &data, AT_FDCWD, &link, RenameFlags::RENAME_EXCHANGE);
                // What took the place of what is protected is undone: then it begins anew.
                if [&data, &link].iter().any(|at| fs::symlink_metadata(at).is_err())
                    || is_link(&data) == is_link(&link)
                {
                    let _ = (fs::remove_file(&data), fs::remove_file(&link), fs::create_dir(&data));
                    let _ = (
                        fs::write(data.join("f"), ""),
                        fs::remove_dir_all(&link),
                        symlink(private.path(), &link),
                    );
                }
                thread::sleep(Duration::from_micros(700));
            }
        });
        // Also where an assertion fails: the scope waits for the thread.
        let _over = Over(&is_over);
        let begun = Instant::now();
        let mut refused = 0;
        while begun.elapsed() < patient(Duration::from_secs(4)) {
            for flags in [
                &["--rw", "data:/data", "--protect", "data/f"][..],
                &["--rw", "data:/data", "--rw", "data:/mnt/d"],
            ] {
                let said = run(
                    dir.path(),
                    flags,
                    "for d in /data /mnt/d; do cat $d/key; echo x > $d/made; done 2>/dev/null; true",
                );
                assert!(
                    !private.path().join("made").exists() && said.stdout.is_empty(),
                    "{flags:?}: {said:?}"
                );
                refused += u32::from(!said.status.success());
            }
        }
        assert!(refused > 0, "nothing was exchanged");
    });
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|it| it.is_symlink())
}

struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
