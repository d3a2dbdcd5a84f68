//! A command makes links where the next start looks. No grant, variable or directory of the user may follow
//! one.

use std::{
    fs, iter,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use crate::support::{
    TempDir, has, is_second_pass, kennel, may_mount, mount, only_as_root, refused, require, shell, stderr,
    stdout, workspace,
};

/// A directory of the user with `key` in it. Everybody who reaches it may read it.
fn secrets() -> TempDir {
    let dir = workspace();
    fs::write(dir.path().join("key"), "secret").unwrap();
    dir
}

/// Swaps `data` in a workspace for the link `alt` and back, until dropped. Puts back what a sandbox removed.
struct Flipper {
    ends: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Flipper {
    fn start(workspace: &Path, leads_to: &Path) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let (end, leads_to) = (Arc::clone(&ends), leads_to.to_owned());
        let [data, alt] = ["data", "alt"].map(|name| workspace.join(name));
        symlink(&leads_to, &alt).unwrap();
        let flip = move || {
            for round in (0_u64..).take_while(|_| !end.load(Ordering::Relaxed)) {
                let _ = renameat2(AT_FDCWD, &data, AT_FDCWD, &alt, RenameFlags::RENAME_EXCHANGE);
                // Kennel removed what took the place of a protected path.
                if is_link(&data) == is_link(&alt) {
                    begin_anew(&data, &alt, &leads_to);
                }
                let next = Instant::now() + Duration::from_micros(50 * (round % 16));
                while Instant::now() < next {}
            }
        };
        Self { ends, thread: Some(thread::spawn(flip)) }
    }
}

fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|it| it.is_symlink())
}

fn begin_anew(data: &Path, alt: &Path, leads_to: &Path) {
    for path in [data, alt] {
        let _ = (fs::remove_file(path), fs::remove_dir_all(path));
    }
    let _ = (fs::create_dir_all(data.join("sub")), fs::write(data.join("f"), ""), symlink(leads_to, alt));
}

impl Drop for Flipper {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Runs the command again and again for a while, and collects the results.
fn meanwhile<T>(mut start: impl FnMut() -> T) -> Vec<T> {
    let end = Instant::now() + Duration::from_secs(if is_second_pass() { 2 } else { 4 });
    iter::from_fn(|| (Instant::now() < end).then(&mut start)).collect()
}

/// Another place in the view shows the granted directory too, so that its presence alone proves nothing about
/// this grant.
#[test]
fn a_link_that_comes_and_goes_is_never_granted() {
    for flags in [
        &["--rw", "data:/data", "--protect", "data/f"][..],
        &["--ro", "data:/data", "--ro", "data:/mnt/data"],
        &["--rw", "data/sub:/data", "--rw", "data:/mnt/data"],
    ] {
        let (ws, secrets) = (workspace(), secrets());
        fs::create_dir(secrets.path().join("sub")).unwrap();
        fs::write(secrets.path().join("sub/key"), "secret").unwrap();
        fs::create_dir_all(ws.path().join("data/sub")).unwrap();
        fs::write(ws.path().join("data/f"), "").unwrap();
        let flipper = Flipper::start(ws.path(), secrets.path());
        let script = "cat /data/key /mnt/data/key 2>/dev/null; echo up";
        let outputs = meanwhile(|| shell(ws.path(), flags, script));
        drop(flipper);
        let shown = outputs.iter().filter(|output| stdout(output).contains("secret")).count();
        assert_eq!(shown, 0, "of {} starts with {flags:?}", outputs.len());
        for output in outputs.iter().filter(|output| !output.status.success()) {
            assert_eq!(output.status.code(), Some(125), "{output:?}");
        }
        assert!(outputs.iter().any(|output| !output.status.success()), "nothing was exchanged");
        begin_anew(&ws.path().join("data"), &ws.path().join("alt"), secrets.path());
        let output = shell(ws.path(), flags, script);
        assert_eq!(stdout(&output), "up", "what stays is granted: {output:?}");
    }
}

/// What the command prints of a certificate bundle that its caller's environment names, and of the key.
fn with_bundle(workspace: &Path, bundle: &Path, key: &Path) -> String {
    let script = format!("cat {} \"$SSL_CERT_FILE\" 2>/dev/null; echo \"[$SSL_CERT_FILE]\"", key.display());
    let mut command = kennel(workspace, &["--allow", "a.test:1"], &["sh", "-c", &script]);
    stdout(&command.env("SSL_CERT_FILE", bundle).output().unwrap())
}

#[test]
fn a_link_of_a_command_is_refused_as_a_certificate_bundle() {
    let (ws, secrets, elsewhere) = (workspace(), secrets(), workspace());
    let (bundle, key) = (ws.path().join("ca.pem"), secrets.path().join("key"));
    fs::write(&bundle, "certificates").unwrap();
    let named = format!("certificates[{}]", bundle.display());
    assert_eq!(with_bundle(ws.path(), &bundle, &key), named, "it is a file of the workspace");
    let plant = format!("ln -sf {} ca.pem", key.display());
    assert!(shell(ws.path(), &[], &plant).status.success());
    assert_eq!(with_bundle(ws.path(), &bundle, &key), "[]");
    // A link of the user to a link of a command.
    let own = elsewhere.path().join("own.pem");
    symlink(&bundle, &own).unwrap();
    assert_eq!(with_bundle(ws.path(), &own, &key), "[]");
    fs::remove_file(&own).unwrap();
    symlink(&key, &own).unwrap();
    let named = format!("secretsecret[{}]", key.display());
    assert_eq!(with_bundle(ws.path(), &own, &key), named, "a link of the user is followed");
}

#[test]
fn a_certificate_bundle_that_comes_and_goes_shows_nothing_else() {
    let (ws, secrets) = (workspace(), secrets());
    let key = secrets.path().join("key");
    fs::write(ws.path().join("data"), "certificates").unwrap();
    let data = ws.path().join("data");
    let _flipper = Flipper::start(ws.path(), &key);
    for said in meanwhile(|| with_bundle(ws.path(), &data, &key)) {
        assert!(!said.contains("secret"), "{said}");
    }
}

/// The variable names a path that has another name in the sandbox.
#[test]
fn a_link_of_a_command_is_refused_as_a_toolchain() {
    let (ws, home, secrets, elsewhere) = (workspace(), workspace(), secrets(), workspace());
    fs::create_dir_all(home.path().join("go/bin")).unwrap();
    let grant = format!("{}:/work", home.path().display());
    let see = |variable: &str, value: &Path, path: &Path| {
        let script = format!("cat {}/key 2>/dev/null; test -d {0} && echo shown", path.display());
        let mut command = kennel(ws.path(), &["--rw", &grant], &["sh", "-c", &script]);
        stdout(&command.env(variable, value).output().unwrap())
    };
    let go = home.path().join("go");
    assert_eq!(see("GOROOT", &go, &go), "shown", "it is a directory that was granted");
    let plant = format!("rm -r /work/go; mkdir /work/go; ln -s {} /work/go/bin", secrets.path().display());
    assert!(shell(ws.path(), &["--rw", &grant], &plant).status.success());
    assert_eq!(see("GOPATH", &go, &go.join("bin")), "", "one of its parts");
    let plant = format!("rm -r /work/go; ln -s {} /work/go", secrets.path().display());
    assert!(shell(ws.path(), &["--rw", &grant], &plant).status.success());
    for variable in ["GOROOT", "JAVA_HOME", "RUSTUP_HOME"] {
        assert_eq!(see(variable, &go, &go), "", "{variable}");
    }
    let own = elsewhere.path().join("own");
    symlink(secrets.path(), &own).unwrap();
    assert_eq!(see("GOROOT", &own, &own), "secretshown", "a link of the user is followed");
}

#[test]
fn a_link_of_a_command_is_refused_as_an_upper_directory() {
    let (ws, private) = (workspace(), workspace());
    fs::set_permissions(private.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let plant = format!("ln -s {} upper", private.path().display());
    assert!(shell(ws.path(), &[], &plant).status.success());
    let output = shell(ws.path(), &["--overlay", "--overlay-upper", "upper"], "echo up");
    assert_eq!((output.status.code(), stdout(&output)), (Some(125), String::new()), "{output:?}");
    assert!(stderr(&output).contains("commands could have made the link"), "{output:?}");
}

/// A directory that is mounted in two places has two names.
#[test]
fn a_link_by_another_name_of_the_workspace_grants_nothing() {
    only_as_root!();
    require!(has("unshare"), "unshare");
    let test = "escape::led::a_link_by_another_name_of_the_workspace_grants_nothing";
    if !may_mount(test) {
        return;
    }
    let (ws, secrets, other) = (workspace(), secrets(), workspace());
    symlink(secrets.path(), ws.path().join("d")).unwrap();
    mount(&["--bind", ws.path().to_str().unwrap()], other.path());
    let link = other.path().join("d").display().to_string();
    for flag in ["--ro", "--rw"] {
        let said = refused(ws.path(), &[flag, &link]);
        assert!(said.contains("commands could have made the link"), "{flag}: {said}");
    }
    let said = refused(ws.path(), &["--audit", &other.path().join("log").display().to_string()]);
    assert!(said.contains("audit log") && said.contains("writable grant"), "{said}");
}
