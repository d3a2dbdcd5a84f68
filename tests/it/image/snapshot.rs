//! `kennel session snapshot`: what commands of a session changed becomes a layer of a new image.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    process::{Command, Output, Stdio},
};

use kennel::{Policy, Session, image::ImageError};

use super::{
    fixtures::{Images, tree},
    run::{Running, images},
};
use crate::support::{
    is_without_user_namespace, kennel_path, other_root, require_root, skip, stderr, stdout,
};

/// A session `s` on `app:1`, as root of the image.
pub(super) struct Started {
    running: Running,
}

impl Started {
    pub(super) fn new(running: Running, flags: &[&str]) -> Self {
        fs::DirBuilder::new().mode(0o700).create(running.images.at("run")).unwrap();
        let started = Self { running };
        let output = started.run(
            &[
                &["session", "start", "--name", "s", "--image", "app:1", "--user", "0", "--pull", "never"],
                flags,
            ]
            .concat(),
        );
        assert!(output.status.success(), "{output:?}");
        started
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut kennel = Command::new(kennel_path());
        kennel.args(words).env("KENNEL_IMAGES", self.running.images.store()).env("LC_ALL", "C");
        kennel.env("XDG_RUNTIME_DIR", self.running.images.at("run"));
        kennel
    }

    pub(super) fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// What a script in the session says.
    pub(super) fn says(&self, script: &str) -> String {
        let output = self.run(&["exec", "s", "--", "sh", "-c", script]);
        assert!(output.status.success(), "{output:?}");
        stdout(&output)
    }

    /// What a script says in a sandbox of that image, as root of it.
    pub(super) fn in_image(&self, image: &str, script: &str) -> String {
        let output = self.run(&[
            "run",
            "--image",
            image,
            "--pull",
            "never",
            "--user",
            "0",
            "--entrypoint",
            "sh",
            "--",
            "-c",
            script,
        ]);
        assert!(output.status.success(), "{output:?}");
        stdout(&output)
    }

    pub(super) fn running(&self) -> &Running {
        &self.running
    }

    fn images(&self) -> &Images {
        &self.running.images
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.run(&["session", "stop", "s"]);
    }
}

#[test]
fn a_snapshot_is_an_image_with_what_commands_changed() {
    let session = Started::new(images!(), &[]);
    session.says(
        "echo new > /srv/new; rm /etc/app.conf; rm -r /srv/app; mkdir /srv/app; ln -s new /srv/link; ln /srv/new /srv/hard; \
         mkdir -m 700 /closed; echo x > /closed/file; chmod 000 /closed/file /closed; mknod /srv/pipe p; \
         rm /etc/passwd; mkdir /etc/passwd; echo root:x:0:0::/root:/bin/sh > /etc/passwd/file; rm -r /etc/passwd; \
         echo root:x:0:0::/root:/bin/sh > /etc/passwd; echo / > '/srv/.wh.passwd'; echo n > '/srv/a\nb'; \
         cat /usr/bin/sh > /srv/sh; chmod 4755 /srv/sh",
    );
    let said = session.run(&["session", "snapshot", "s", "mine:1"]);
    assert!(said.status.success(), "{said:?}");
    let (digest, names) = session.images().list().into_iter().find(|(_, name)| name == "mine:1").unwrap();
    assert_eq!(stdout(&said), format!("{digest}  {names}"));
    assert!(stderr(&said).contains("set-user-id"), "{said:?}");
    assert!(stderr(&said).contains(".wh.passwd"), "{said:?}");
    let seen = "cat /srv/new; ls -A /srv /srv/app; ls /etc/app.conf 2>&1; cat /srv/link /srv/hard /closed/file /etc/passwd; \
                stat -c '%a %F' /closed /closed/file /srv/pipe /srv/sh";
    let here = session.says(seen);
    let there = session.in_image("mine:1", seen);
    // What no layer can hold.
    assert_eq!(there, here.replace(".wh.passwd\n", "").replace("4755 regular", "755 regular"));
    assert!(there.contains("'/etc/app.conf': No such file"), "{there}");
    // Nothing that was in the image before is in another layer now, and the session goes on.
    assert_eq!(session.in_image("app:1", "cat /etc/app.conf; ls -A /srv/app"), "of the app");
    session.says("echo more > /srv/more");
    assert_eq!(
        session.in_image("mine:1", "ls /srv/more 2>&1 || true"),
        "ls: cannot access '/srv/more': No such file or directory"
    );
    // With the configuration of the image.
    let shown = session.images().json(&["inspect", "mine:1"]);
    let before = session.images().json(&["inspect", "app:1"]);
    assert_eq!(shown["config"]["config"], before["config"]["config"]);
    assert_eq!(shown["layers"].as_array().unwrap().len(), before["layers"].as_array().unwrap().len() + 1);
}

#[test]
fn snapshots_of_snapshots_and_of_nothing_are_images() {
    let session = Started::new(images!(), &[]);
    let snapshot = |name: &str| {
        let said = session.run(&["session", "snapshot", "s", name, "--json"]);
        assert!(said.status.success(), "{said:?}");
        serde_json::from_slice::<serde_json::Value>(&said.stdout).unwrap()
    };
    let (first, second) = (snapshot("mine:1"), snapshot("mine:2"));
    assert_eq!(first[0]["digest"], second[0]["digest"], "nothing changed");
    session.run(&["session", "stop", "s"]);
    let output = session.run(&["session", "start", "--name", "s", "--image", "mine:1", "--user", "0"]);
    assert!(output.status.success(), "{output:?}");
    session.says("echo two > /srv/two");
    snapshot("mine:3");
    assert_eq!(session.in_image("mine:3", "cat /srv/two"), "two");
    // It is what an archive of it is.
    let archive = session.images().at("mine.tar");
    session.images().ok(&["export", "mine:3", archive.to_str().unwrap()]);
    session.images().ok(&["import", archive.to_str().unwrap(), "--name", "again:1"]);
    let layers = |name: &str| session.images().layers(name);
    assert_eq!(layers("mine:3"), layers("again:1"));
}

#[test]
fn grants_and_places_in_memory_are_not_in_a_snapshot() {
    let running = images!();
    let workspace = running.images.at("workspace");
    fs::create_dir(&workspace).unwrap();
    fs::write(workspace.join("secret"), "of the host").unwrap();
    let path = workspace.to_str().unwrap().to_owned();
    let session = Started::new(running, &["--workspace", &path]);
    session.says(&format!("cat {path}/secret; echo made > {path}/made; echo s > /dev/shm/s"));
    let said = session.run(&["session", "snapshot", "s", "mine:1"]);
    assert!(said.status.success(), "{said:?}");
    let layers = session.images().json(&["inspect", "mine:1"])["layers"].clone();
    let upper = layers.as_array().unwrap().last().unwrap()["path"].as_str().unwrap().to_owned();
    for (file, what) in tree(upper.as_ref()) {
        assert!(!file.contains("secret") && !what.contains("of the host"), "{file}: {what}");
        assert!(!["made", "dev/shm/s"].iter().any(|name| file.ends_with(name)), "{file}");
    }
}

#[test]
fn no_command_runs_while_a_snapshot_is_taken() {
    let session = Started::new(images!(), &[]);
    let mut running = session.command(&["exec", "s", "--", "sh", "-c", "echo; read x"]);
    let mut running = running.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Read::read_exact(running.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let said = session.run(&["session", "snapshot", "s", "mine:1"]);
    assert_eq!(said.status.code(), Some(125), "{said:?}");
    assert!(stderr(&said).contains("while a command of the session runs"), "{said:?}");
    drop(running.stdin.take());
    running.wait().unwrap();
    let said = session.run(&["session", "snapshot", "s", "mine:1"]);
    assert!(said.status.success(), "{said:?}");
    assert_eq!(session.images().left(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn what_cannot_be_taken_is_told_and_nothing_is_stored() {
    let session = Started::new(images!(), &[]);
    let refused = |words: &[&str]| {
        let said = session.run(&[&["session", "snapshot"], words].concat());
        assert_eq!(said.status.code(), Some(125), "{words:?}: {said:?}");
        stderr(&said)
    };
    assert!(refused(&["none", "mine:1"]).contains("no session of that name is running"));
    assert!(refused(&["s", "No"]).contains("image `No`"));
    assert!(refused(&["s", "sha256:00000000"]).contains("a digest is no name"));
    // A session on the host's own system, and one whose image another store has.
    let output = session.run(&["session", "start", "--name", "host"]);
    assert!(output.status.success(), "{output:?}");
    let said = refused(&["host", "mine:1"]);
    assert!(said.contains("the root of the session is no image") && said.contains("--image"), "{said}");
    session.run(&["session", "stop", "host"]);
    let elsewhere = session.images().at("elsewhere");
    let mut other = session.command(&["session", "snapshot", "s", "mine:1"]);
    let said = other.env("KENNEL_IMAGES", &elsewhere).output().unwrap();
    assert!(said.status.code() == Some(125) && stderr(&said).contains("is not in the store"), "{said:?}");
    assert_eq!(session.images().list().len(), 1);
    // The session was held for none of them.
    assert_eq!(session.says("echo alive"), "alive");
}

/// Whoever holds a snapshot holds the session, until it ends.
#[test]
fn a_killed_client_holds_nothing() {
    let session = Started::new(images!(), &[]);
    session.says("dd if=/dev/urandom of=/srv/large bs=1M count=30 2>&1");
    for _ in 0..5 {
        let mut taking = session.command(&["session", "snapshot", "s", "mine:1"]).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(100));
        taking.kill().unwrap();
        taking.wait().unwrap();
        crate::support::until("the session takes commands", || {
            session.run(&["exec", "s", "--", "sh", "-c", ":"]).status.success()
        });
    }
    assert!(session.run(&["session", "snapshot", "s", "mine:2"]).status.success());
    assert_eq!(session.images().left(), Vec::<std::path::PathBuf>::new(), "what killed ones have left goes");
}

#[tokio::test]
async fn a_root_that_is_no_image_has_no_snapshot() {
    require_root!();
    if is_without_user_namespace() {
        return skip(module_path!(), "root has no user namespace here");
    }
    let root = other_root();
    let session = Session::prepare(&Policy::default().root(root.path())).await.unwrap();
    let error = session.snapshot().await.unwrap_err();
    assert!(
        matches!(&error, kennel::Error::Image(error) if matches!(**error, ImageError::NoImage)),
        "{error:?}"
    );
    assert!(error.remedy().is_some());
    session.shutdown().await;
    assert_eq!(fs::metadata(root.path()).unwrap().permissions().mode() & 0o022, 0);
}

#[test]
fn a_diff_shows_what_changed_in_the_image() {
    let session = Started::new(images!(), &[]);
    let diff = |words: &[&str]| {
        let output = session.run(&[&["diff", "--image"], words].concat());
        assert!(output.status.success(), "{output:?}");
        stdout(&output)
    };
    session.says(
        "echo more >> /etc/passwd; rm /etc/app.conf; echo x > /srv/new; ln -s /x /srv/link; touch /etc/to
         mv /etc/to /srv/moved; chmod 700 /root; cat /etc/passwd > /dev/null; mkdir -m 0 /srv/shut
         mkdir /srv/tree; echo 1 > /srv/tree/one; echo 2 > /srv/tree/two",
    );
    let all = diff(&["s"]);
    for line in [
        "diff --git a/etc/passwd b/etc/passwd",
        "+more",
        "deleted file mode 100644",
        "-of the app",
        "diff --git a/srv/new b/srv/new",
        "+x",
        "new file mode 120000",
        "+/x",
        "b/srv/moved",
        "b/srv/shut/",
        "old mode 040755\nnew mode 040700",
    ] {
        assert!(all.contains(line), "{line}: {all}");
    }
    assert!(!all.contains("etc/group") && !all.contains("usr/bin"), "{all}");
    let part = diff(&["s", "/srv/new", "etc/../etc/passwd"]);
    assert!(part.contains("srv/new") && part.contains("+more") && !part.contains("app.conf"), "{part}");
    let stat = diff(&["--stat", "s", "/etc/passwd"]);
    assert!(stat.contains("M etc/passwd") && stat.contains("1 file changed, +1"), "{stat}");
    // The session goes on, and so does one on what was stored. A directory that replaces another hides it.
    assert_eq!(session.says("cat /srv/new"), "x");
    assert!(session.run(&["session", "snapshot", "s", "app:2"]).status.success());
    let flags = ["--name", "t", "--image", "app:2", "--user", "0", "--pull", "never"];
    assert!(session.run(&[&["session", "start"], &flags[..]].concat()).status.success());
    let script = "rm -r /srv/tree; mkdir /srv/tree; echo 3 > /srv/tree/one; rm /srv/link; ln -s /y /srv/link";
    assert!(session.run(&["exec", "t", "--", "sh", "-c", script]).status.success());
    let replaced = diff(&["t", "/srv"]);
    session.run(&["session", "stop", "t"]);
    for line in ["-1", "+3", "deleted file", "a/srv/tree/two", "-2", "-/x", "+/y"] {
        assert!(replaced.contains(line), "{line}: {replaced}");
    }
    assert!(!replaced.contains("srv/new"), "{replaced}");
}

/// Nothing that commands do hides a change, or stops the list.
#[test]
fn a_diff_of_an_image_shows_what_is_closed_or_deep() {
    let session = Started::new(images!(), &[]);
    session.says(
        "mkdir -m 0 /srv/closed; : > '/srv/a
b'; mknod /srv/fifo p; cd /srv; i=0; while [ $i -lt 250 ]; do mkdir d && cd d; i=$((i+1)); done; echo x > file",
    );
    let output = session.run(&["diff", "--image", "s", "/srv"]);
    assert!(output.status.success(), "{output:?}");
    let said = stdout(&output);
    let deep = format!("b/srv{}/", "/d".repeat(200));
    for part in ["b/srv/closed/", r"b/srv/a\nb", "b/srv/fifo", &deep, "File name too long"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(nix::unistd::geteuid().is_root() || said.contains("Permission denied"), "{said}");
}

#[test]
fn a_diff_of_an_image_needs_a_session_on_one() {
    let session = Started::new(images!(), &[]);
    let output = session.run(&["diff", "--image", "nobody"]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let output = session.run(&["diff", "--image"]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let output = session.run(&["session", "start", "--name", "plain", "--net", "none"]);
    assert!(output.status.success(), "{output:?}");
    let output = session.run(&["diff", "--image", "plain"]);
    let stopped = session.run(&["session", "stop", "plain"]);
    assert!(stopped.status.success(), "{stopped:?}");
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr(&output).contains("is no image"), "{output:?}");
}
