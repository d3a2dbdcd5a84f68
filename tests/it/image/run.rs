//! Commands in an image: what they see, who they are, what they execute, and what a session keeps.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};

use kennel::{Policy, Session};
use serde_json::json;

use super::fixtures::{Image, Images, Tar};
use crate::support::{
    is_without_user_namespace, kennel_path, other_root, require_root, skip, stderr, stdout,
};

/// Leaves a test on a host that cannot run images.
macro_rules! images {
    () => {{
        require_root!();
        if is_without_user_namespace() {
            return skip(module_path!(), "root has no user namespace here");
        }
        let Some(images) = Images::new() else { return };
        let images = Running { images };
        images.import();
        images
    }};
}
pub(super) use images;

/// A store with `app:1`: a root with programs of the host, and a layer above it.
pub(super) struct Running {
    pub(super) images: Images,
}

impl Running {
    pub(super) fn import(&self) {
        let root = other_root();
        let whole =
            Command::new("tar").args(["-C", root.path().to_str().unwrap(), "-c", "."]).output().unwrap();
        assert!(whole.status.success(), "{whole:?}");
        let upper = Tar::new()
            .dir("etc")
            .file("etc/.wh.group", "")
            .file("etc/app.conf", "of the app\n")
            .dir("srv")
            .file("usr/bin/.wh.rmdir", "");
        let config = json!({
            "Env": ["A=of the image", "PATH=/usr/bin", "BROKEN"],
            "Entrypoint": ["/bin/sh", "-c", "echo entry $0 $@"],
            "Cmd": ["one", "two"],
            "WorkingDir": "/srv/app",
            "User": "guest",
        });
        let image = Image::new(vec![whole.stdout, upper.bytes()]).executing(config);
        self.images.ok(&["import", &self.images.file("app.tar", image.docker_archive(&["app:1"]))]);
    }

    /// `kennel run --image app:1 WORDS…`
    pub(super) fn run(&self, words: &[&str]) -> Output {
        let mut kennel = Command::new(kennel_path());
        kennel.args(["run", "--image", "app:1"]).args(words).env("KENNEL_IMAGES", self.images.store());
        kennel.env("LC_ALL", "C").output().unwrap()
    }

    fn said(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {output:?}");
        stdout(&output)
    }

    /// What ls(1) says of everything in the store's layers.
    fn files(&self) -> String {
        let list = Command::new("ls").arg("-lR").arg(self.images.store().join("layers")).output().unwrap();
        assert!(list.status.success(), "{list:?}");
        stdout(&list)
    }

    fn script(&self, flags: &[&str], script: &str) -> Output {
        self.run(&[flags, &["--entrypoint", "sh", "--", "-c", script]].concat())
    }
}

#[test]
fn the_entry_point_gets_the_default_arguments_or_those_that_are_given() {
    let images = images!();
    assert_eq!(images.said(&[]), "entry one two");
    assert_eq!(images.said(&["--", "x", "y z"]), "entry x y z");
    assert_eq!(images.said(&["--entrypoint", "/bin/pwd"]), "/srv/app");
    assert_eq!(images.run(&["--entrypoint", "/bin/none"]).status.code(), Some(127));
}

#[test]
fn commands_are_the_image_s_user_in_its_directory_with_its_variables() {
    let images = images!();
    let output =
        images.script(&[], "id -u; id -g; pwd; echo $A; echo $HOME; touch here; stat -c %u here /srv; env");
    let said = stdout(&output);
    assert!(said.starts_with("7\n8\n/srv/app\nof the image\n/home/guest\n7\n7\n"), "{output:?}");
    assert!(said.lines().any(|line| line == "PATH=/usr/bin") && !said.contains("BROKEN"), "{said}");
    let output =
        images.script(&["--user", "0", "--setenv", "A=mine", "--cwd", "/etc"], "id -u; pwd; echo $A");
    assert_eq!(stdout(&output), "0\n/etc\nmine", "{output:?}");
}

#[test]
fn layers_are_one_tree_and_stay_as_they_are() {
    let images = images!();
    let before = images.files();
    let script = "cat /etc/app.conf; ls /etc/group /usr/bin/rmdir; rm -r /etc/passwd /usr/bin/ls; echo x > /etc/app.conf; \
                  mv /srv /srv2; cat /etc/app.conf";
    let output = images.script(&["--user", "0"], script);
    assert_eq!(stdout(&output), "of the app\nx", "{output:?}");
    for gone in ["/etc/group", "/usr/bin/rmdir"] {
        assert!(stderr(&output).contains(&format!("'{gone}': No such file")), "{output:?}");
    }
    assert_eq!(images.files(), before);
    let (host, there): (PathBuf, _) = (images.images.at("host"), images.images.store());
    fs::create_dir(&host).unwrap();
    for path in [&host, &there] {
        let output = images.script(&[], &format!("ls {}", path.display()));
        assert!(stderr(&output).contains("No such file"), "{output:?}");
    }
}

#[test]
fn images_are_named_in_reports_and_missing_ones_in_errors() {
    let images = images!();
    let report = images.images.at("report.json");
    images.said(&["--json", report.to_str().unwrap()]);
    let (digest, _) = images.images.list().remove(0);
    let report = fs::read_to_string(report).unwrap();
    assert!(report.contains(&format!("image {digest}, and only what is granted is visible")), "{report}");
    let show = |flags: &[&str]| {
        let mut kennel = Command::new(kennel_path());
        kennel.args(["policy", "show", "--image", "app:1"]).args(flags);
        stdout(&kennel.env("KENNEL_IMAGES", images.images.store()).output().unwrap())
    };
    assert!(show(&[]).contains(&format!("image {digest}  (--image)")), "{}", show(&[]));
    assert!(show(&["--json"]).contains(&format!("\"root\": \"image {digest}\"")), "{}", show(&["--json"]));
    let run = |flags: &[&str]| {
        let mut kennel = Command::new(kennel_path());
        kennel.arg("run").args(flags).args(["--", "true"]).env("KENNEL_IMAGES", images.images.store());
        let output = kennel.output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{flags:?}: {output:?}");
        stderr(&output)
    };
    assert!(run(&["--pull", "never", "--image", "none"]).contains("image none: it is not in the store"));
    assert!(run(&["--image", "No"]).contains("image `No`"));
    assert!(run(&["--image", ""]).contains("image"));
    assert!(run(&["--image", "app:1", "--root", "/srv"]).contains("cannot be used with"));
    let output = images.script(&["--user", "nobody"], "true");
    assert!(stderr(&output).contains("user `nobody`: the root has no such user"), "{output:?}");
    let output = images.script(&["--user", "guest:root"], "true");
    assert!(stderr(&output).contains("no such group"), "a layer hides /etc/group: {output:?}");
}

#[test]
fn a_policy_file_can_name_an_image() {
    let images = images!();
    let policy = images.images.file("p.toml", "image = 'app:1'\nuser = '0'");
    let run = |words: &[&str]| {
        let mut kennel = Command::new(kennel_path());
        kennel.args(["run", "--policy", &policy]).args(words).env("KENNEL_IMAGES", images.images.store());
        kennel.output().unwrap()
    };
    assert_eq!(stdout(&run(&[])), "entry one two");
    assert_eq!(stdout(&run(&["--entrypoint", "sh", "--", "-c", "id -u; pwd"])), "0\n/srv/app");
    let empty = images.images.file("empty.toml", "profile = 'repo-write'");
    let output = Command::new(kennel_path()).args(["run", "--policy", &empty]).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr(&output).contains("no program is given"), "{output:?}");
}

/// Commands that could write to the store would decide what later sandboxes show.
#[test]
fn the_store_is_hidden_wherever_a_grant_shows_it() {
    let images = images!();
    let top = images.images.at("");
    let mut kennel = Command::new(kennel_path());
    let script = "ls -A store; touch store/x; echo y > beside";
    kennel.args(["run", "--workspace"]).arg(&top).args(["--", "sh", "-c", script]);
    let output = kennel.env("KENNEL_IMAGES", images.images.store()).env("LC_ALL", "C").output().unwrap();
    assert_eq!(stdout(&output), "", "{output:?}");
    assert!(stderr(&output).contains("Read-only file system"), "{output:?}");
    assert!(images.images.at("beside").exists() && !images.images.store().join("x").exists());
}

/// Without variables of its own, so the store is the one of this process.
#[tokio::test]
async fn an_image_that_is_used_stays() {
    let images = images!();
    let layer = images.images.json(&["inspect", "app:1"])["layers"][0]["path"].as_str().unwrap().to_owned();
    // A root of the same files, as no library user can name another store than the process has.
    let session = Session::prepare(&Policy::default().root(&layer)).await.unwrap();
    let output = session.command("/usr/bin/cat").arg("/etc/passwd").output().await.unwrap();
    assert!(output.outcome.status.success(), "{output:?}");
    session.shutdown().await;
    let mut running = Command::new(kennel_path());
    running.args([
        "run",
        "--image",
        "app:1",
        "--entrypoint",
        "sh",
        "--",
        "-c",
        "echo; read x; cat /etc/app.conf",
    ]);
    running.env("KENNEL_IMAGES", images.images.store());
    running.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut running = running.spawn().unwrap();
    std::io::Read::read_exact(running.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let output = images.images.run(&["remove", "app:1"]);
    assert!(PathBuf::from(&layer).exists(), "{output:?}");
    drop(running.stdin.take());
    let output = running.wait_with_output().unwrap();
    assert_eq!(stdout(&output), "of the app");
}

#[test]
fn the_audit_log_names_the_image() {
    let images = images!();
    let log = images.images.at("audit.log");
    images.said(&["--audit", log.to_str().unwrap()]);
    let (digest, _) = images.images.list().remove(0);
    let log = fs::read_to_string(log).unwrap();
    let exec = log.lines().find(|line| line.contains(r#""event":"exec""#)).unwrap();
    assert!(exec.contains(&format!(r#""root":"image {digest}""#)), "{log}");
}

/// As many as fit into the options of mount(2), which is more than any builder makes.
#[test]
fn an_image_may_have_140_layers() {
    let running = images!();
    let whole = Command::new("tar").arg("-C").arg(other_root().path()).args(["-c", "."]).output().unwrap();
    let mut layers = vec![whole.stdout];
    layers
        .extend((1..=150).map(|number| {
            Tar::new().file(&format!("{number}"), "").file("last", number.to_string()).bytes()
        }));
    for count in [140, 150] {
        let image = Image::new(layers[..count].to_vec());
        let name = format!("layers:{count}");
        running.images.ok(&["import", &running.images.file("layers.tar", image.docker_archive(&[&name]))]);
        let mut kennel = Command::new(kennel_path());
        kennel.args([
            "run",
            "--image",
            &name,
            "--entrypoint",
            "sh",
            "--",
            "-c",
            "cat /last; echo x > /1; cat /1",
        ]);
        let output = kennel.env("KENNEL_IMAGES", running.images.store()).output().unwrap();
        if count == 140 {
            assert_eq!(stdout(&output), "139x", "{output:?}");
        } else {
            let said = stderr(&output);
            assert!(said.contains("150 layers do not fit into the page that mount(2) takes"), "{said}");
        }
    }
}
