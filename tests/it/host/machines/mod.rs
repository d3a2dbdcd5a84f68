//! Settings of a whole machine. Only `scripts/kernels` runs these tests, as root, in virtual machines.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::PathBuf,
};

use super::{Before, DEGRADE, kennel, report, run};
use crate::support::{TempDir, protection, skip, stderr, stdout};

/// The reason to skip a test about a missing setting.
const NO_SETTING: &str = "this kernel has no such setting";

mod apparmor;

/// A setting of the kernel, restored on drop.
struct Setting {
    path: PathBuf,
    before: String,
}

impl Setting {
    /// `None` if this kernel has no such setting.
    fn set(name: &str, value: &str) -> Option<Self> {
        let path = PathBuf::from(format!("/proc/sys/{}", name.replace('.', "/")));
        let before = fs::read_to_string(&path).ok()?;
        fs::write(&path, value).unwrap();
        Some(Self { path, before })
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        fs::write(&self.path, &self.before).unwrap();
    }
}

/// An ordinary user with a workspace.
fn user() -> (Before, TempDir) {
    let dir = crate::support::workspace();
    chown(dir.path(), Some(1000), Some(1000)).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let words = ["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", "env", "HOME=/home/user"];
    (words.map(str::to_owned).to_vec(), dir)
}

/// Kennel refuses, whatever the policy lets be missing, and names the remedy. The probe says the same.
fn is_refused(before: &Before, dir: &TempDir, says: &str, remedy: &str) {
    for flags in [&["-q"][..], &DEGRADE] {
        let output = run(before, dir.path(), flags);
        assert!(output.status.code() == Some(125) && output.stdout.is_empty(), "{output:?}");
        let said = stderr(&output);
        assert!(said.starts_with(&format!("kennel: {says}")), "{said}");
        assert!(said.contains("kennel: hint: ") && said.contains(remedy), "{said}");
    }
    let output = kennel(before, dir.path(), &["probe"]).output().unwrap();
    assert!(output.status.code() == Some(125) && stdout(&output).contains(remedy), "{output:?}");
}

/// Kennel refuses root too, and says that commands may run without a user namespace. With that, nothing else
/// is missing.
fn root_goes_without(before: &Before, remedy: &str) {
    let dir = crate::support::workspace();
    let output = run(before, dir.path(), &[]);
    assert!(output.status.code() == Some(125) && output.stdout.is_empty(), "{output:?}");
    assert!(stderr(&output).contains(remedy), "{output:?}");
    assert!(stderr(&output).contains("or let root's commands run without one"), "{output:?}");
    runs(before, &dir, &DEGRADE);
    let report = report(before, dir.path(), &DEGRADE);
    assert_eq!(protection(&report, "user_namespace").0, "off");
    for name in ["mount_namespace", "pid_namespace", "network_namespace", "root", "capabilities", "seccomp"] {
        assert_eq!(protection(&report, name).0, "enforced", "{report}");
    }
    let output = kennel(before, dir.path(), &["probe"]).output().unwrap();
    assert!(output.status.code() == Some(1) && stdout(&output).contains(remedy), "{output:?}");
}

fn runs(before: &Before, dir: &TempDir, flags: &[&str]) {
    let output = run(before, dir.path(), flags);
    assert!(output.status.success() && stdout(&output) == "ran", "{output:?}");
}

#[test]
#[ignore = "changes a setting of the whole machine"]
fn unprivileged_user_namespaces_that_a_sysctl_refuses() {
    let Some(_setting) = Setting::set("kernel.unprivileged_userns_clone", "0") else {
        return skip(module_path!(), NO_SETTING);
    };
    let (before, dir) = user();
    let remedy = "allow unprivileged user namespaces: sysctl -w kernel.unprivileged_userns_clone=1";
    is_refused(&before, &dir, "new user and pid namespace: Operation not permitted", remedy);
    runs(&Vec::new(), &crate::support::workspace(), &["-q"]);
}

#[test]
#[ignore = "changes a setting of the whole machine"]
fn user_namespaces_of_a_machine_that_has_none() {
    let _setting = Setting::set("user.max_user_namespaces", "0").unwrap();
    let (before, dir) = user();
    let remedy = "raise the limit: sysctl -w user.max_user_namespaces=15000 (it is 0)";
    is_refused(&before, &dir, "new user and pid namespace: No space left on device", remedy);
    root_goes_without(&Vec::new(), remedy);
}

#[test]
#[ignore = "changes a setting of the whole machine"]
fn namespaces_of_one_kind_that_a_machine_has_not() {
    for (kind, word) in [("net", "network"), ("uts", "uts"), ("cgroup", "cgroup")] {
        let _setting = Setting::set(&format!("user.max_{kind}_namespaces"), "0").unwrap();
        let (before, dir) = user();
        let output = run(&before, dir.path(), &[]);
        assert!(output.status.code() == Some(125) && output.stdout.is_empty(), "{output:?}");
        let said = stderr(&output);
        assert!(
            said.starts_with(&format!("kennel: new {word} namespace: No space left on device")),
            "{said}"
        );
        assert!(said.contains(&format!("user.max_{kind}_namespaces=15000 (it is 0)")), "{said}");
        runs(&before, &dir, &DEGRADE);
    }
}

#[test]
#[ignore = "changes a setting of the whole machine"]
fn memfds_that_cannot_be_executed() {
    let Some(_setting) = Setting::set("vm.memfd_noexec", "2") else {
        return skip(module_path!(), NO_SETTING);
    };
    let (before, dir) = user();
    runs(&before, &dir, &["-q"]);
    runs(&Vec::new(), &crate::support::workspace(), &["-q"]);
}

/// With a limit of 0, which a command may set, the kernel starts a handler behind a pipe. With 1 it does not.
#[test]
#[ignore = "changes a setting of the whole machine"]
fn no_handler_of_cores_is_started() {
    let dir = crate::support::workspace();
    let place = tempfile::tempdir_in("/tmp").unwrap();
    let marker = place.path().join("core");
    let _setting = Setting::set("kernel.core_pattern", &format!("|/bin/touch {}", marker.display())).unwrap();
    for script in ["kill -SEGV $$", "ulimit -c 0; kill -SEGV $$", "ulimit -c 0; sh -c 'kill -SEGV $$'"] {
        let output =
            kennel(&Vec::new(), dir.path(), &["run", "-q", "--", "sh", "-c", script]).output().unwrap();
        assert!(!output.status.success(), "{output:?}");
    }
    std::thread::sleep(crate::support::patient(std::time::Duration::from_millis(100)));
    assert!(!marker.exists(), "it was started");
    let outside =
        std::process::Command::new("sh").args(["-c", "ulimit -c 0; kill -SEGV $$"]).status().unwrap();
    assert!(!outside.success());
    crate::support::until("it is started without a sandbox", || marker.exists());
}

#[test]
#[ignore = "changes a setting of the whole machine"]
fn a_socket_for_cores_is_reported() {
    let dir = crate::support::workspace();
    let _setting = Setting::set("kernel.core_pattern", "@/run/kennel-test-cores.sock").unwrap();
    let expected = if kennel::probe::Host::detect().kernel >= kennel::probe::Version(6, 16) {
        "degraded"
    } else {
        "enforced"
    };
    assert_eq!(protection(&report(&Vec::new(), dir.path(), &[]), "core_dumps").0, expected);
}

#[test]
#[ignore = "changes a setting of the whole machine"]
fn epoll_watches_that_are_used_up() {
    let session = crate::serve::Hosted::start(&[]);
    let mut client = session.exec(&["true"]);
    assert!(client.output().unwrap().status.success());
    {
        let _setting = Setting::set("fs.epoll.max_user_watches", "0").unwrap();
        let output = client.output().unwrap();
        assert!(output.status.code() == Some(125), "{output:?}");
        let said = stderr(&output);
        assert!(
            said.contains("wait for the client, in the session's process: No space left on device"),
            "{said}"
        );
        assert!(said.contains("fs.epoll.max_user_watches"), "{said}");
        let (before, dir) = user();
        let output = run(&before, dir.path(), &[]);
        assert!(output.status.code() == Some(125), "{output:?}");
        assert!(stderr(&output).contains("fs.epoll.max_user_watches"), "{output:?}");
    }
    assert!(client.output().unwrap().status.success());
}
