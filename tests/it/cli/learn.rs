//! `--learn`: a permissive run that changes nothing on the host, and the policy that allows what it used.

use std::{
    ffi::OsStr,
    fs::{self, Permissions},
    os::unix::{
        ffi::OsStrExt,
        fs::{PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
    process::Output,
    time::Duration,
};

use kennel::{Mount, Policy};

use super::origin;
use crate::support::{
    TempDir, World, copy_program, filled, has, is_root, patient_flag, require, stderr, stdout, workspace,
    write_program,
};

/// A user with a home, a workspace elsewhere, and a directory for the learned policy.
struct Place {
    world: World,
    out: TempDir,
}

impl Place {
    fn new(files: &[&str]) -> Self {
        Self { world: World::at_home(filled(workspace(), files, |file| file)), out: workspace() }
    }

    fn file(&self) -> PathBuf {
        self.out.path().join("learned.toml")
    }

    fn kennel(&self, words: &[&str], command: &[&str]) -> Output {
        self.world.kennel(&[&["run"], words, &["--"], command].concat()).output().unwrap()
    }

    fn learn(&self, flags: &[&str], command: &[&str]) -> Output {
        let file = self.file();
        self.kennel(&[&["--learn", file.to_str().unwrap()], flags].concat(), command)
    }

    /// The text of the learned policy, and the policy.
    fn learned(&self) -> (String, Policy) {
        let text = fs::read_to_string(self.file()).unwrap();
        let policy = Policy::load(&self.file()).unwrap();
        policy.validate().unwrap();
        (text, policy)
    }

    fn run_with_it(&self, command: &[&str]) -> Output {
        self.kennel(&["--policy", self.file().to_str().unwrap()], command)
    }

    fn in_home(&self, name: &str) -> PathBuf {
        self.world.in_home(name)
    }
}

fn reads(policy: &Policy) -> Vec<&Path> {
    policy
        .mounts
        .iter()
        .map(|mount| match mount {
            Mount::ReadOnly { source, target: None } => source.as_path(),
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn the_learned_policy_allows_what_the_run_used_and_no_more() {
    require!(has("curl"), "curl");
    let place = Place::new(&["data/model", "data/other", "tools/run"]);
    let shell = place.in_home("own-sh");
    copy_program("/bin/sh", &shell);
    let tool = place.in_home("tools/run");
    write_program(&tool, format!("#!{}\ncat \"$HOME/data/model\"\n", shell.display()));
    symlink(&tool, place.in_home("run")).unwrap();
    let port = origin();
    let get = format!("curl -sS -x http://127.0.0.1:3128 --noproxy '' http://127.0.0.1:{port}/");
    let script = format!("\"$HOME/run\" && {get}");
    let command = ["sh", "-c", &*script];
    let flags = ["--allow-address", "127.0.0.0/8"];

    let without = place.kennel(&flags, &command);
    assert!(!without.status.success(), "{without:?}");
    let learning = place.learn(&flags, &command);
    assert!(learning.status.success() && stdout(&learning) == "data/modelhello", "{learning:?}");
    assert!(stderr(&learning).contains("look at it, then run with --policy"), "{learning:?}");
    let (text, policy) = place.learned();
    let expected = ["data/model", "own-sh", "run"].map(|name| place.in_home(name));
    assert_eq!(reads(&policy), expected, "{text}");
    assert_eq!(policy.network.allow, [format!("127.0.0.1:{port}")]);
    assert_eq!(policy.network.allow_addresses, ["127.0.0.0/8"], "the flags of the run stay");
    assert!(text.contains("used once by cat") && text.contains("That run succeeded"), "{text}");
    assert_eq!(fs::metadata(place.file()).unwrap().permissions().mode() & 0o777, 0o600);

    let with = place.run_with_it(&command);
    assert!(with.status.success() && stdout(&with) == "data/modelhello", "{with:?}");
    let other = place.run_with_it(&["cat", place.in_home("data/other").to_str().unwrap()]);
    assert!(!other.status.success(), "{other:?}");
}

#[test]
fn names_are_followed_from_where_they_start() {
    require!(has("python3"), "python3");
    let place = Place::new(&["data/model", "data/other", "deep/er/file", "unused"]);
    symlink("deep/er", place.in_home("link")).unwrap();
    let script = "import os
os.chdir(os.path.expanduser('~/data'))
home = os.open('..', os.O_PATH | os.O_DIRECTORY)
open('./model').read()
os.open('data/../data/other', os.O_RDONLY, dir_fd=home)
os.stat('../link/../er/file')
for name in ['../nothing', '/nowhere/at/all', '', '../unused/below']:
    try: os.stat(name)
    except OSError: pass
";
    let learning = place.learn(&[], &["python3", "-c", script]);
    assert!(learning.status.success(), "{learning:?}");
    let (text, policy) = place.learned();
    let expected = ["data/model", "data/other", "deep/er/file"].map(|name| place.in_home(name));
    assert_eq!(reads(&policy), expected, "{text}");
    assert!(text.contains("file\" },  # looked at once by python3"), "{text}");
}

#[test]
fn secrets_stay_hidden_and_the_host_unchanged() {
    let place = Place::new(&[".ssh/id_ed25519", ".config/app/settings", "notes"]);
    symlink(place.in_home(".ssh/id_ed25519"), place.world.at("link")).unwrap();
    let script = "cat ~/.ssh/id_ed25519 link; echo mine > kept; echo mine > ~/notes; echo mine > ~/.config/app/new; \
                  cat ~/notes; echo mine > /srv/kennel-test; cat ~/.config/app/settings";
    let learning = place.learn(&[], &["sh", "-c", script]);
    assert_eq!(stdout(&learning), "mine\n.config/app/settings", "{learning:?}");
    let said = stderr(&learning);
    assert!(said.matches("id_ed25519: No such file").count() == 1 && said.contains("link: "), "{said}");
    assert!(said.contains("A kept") && said.contains("kennel diff shows them"), "{said}");
    assert!(!place.world.at("kept").exists() && !Path::new("/srv/kennel-test").exists());
    assert_eq!(fs::read_to_string(place.in_home("notes")).unwrap(), "notes");
    assert!(!place.in_home(".config/app/new").exists());
    let (text, policy) = place.learned();
    assert!(!text.contains("ssh"), "{text}");
    assert_eq!(reads(&policy), [place.in_home(".config/app/settings"), place.in_home("notes")], "{text}");
    // What the person has to decide is there as comments.
    assert!(text.contains("# { type = \"rw\", source = \"/srv/kennel-test\" },"), "{text}");
    let directory =
        format!("# {{ type = \"rw\", source = \"{}\" }},", place.in_home(".config/app").display());
    assert!(text.contains(&directory), "{text}");
}

#[test]
fn names_that_a_command_chooses_are_only_names() {
    let place = Place::new(&["plain"]);
    let names: [&[u8]; 6] = [
        b"a\n]\nprofile = \"full-dev\" #",
        b"b\" }, { type = \"rw\", source = \"",
        b"c\\\x1b[31m\x7f",
        "d\u{2028}\u{202e}".as_bytes(),
        b"e ''' \"\"\" # ",
        b"only/f\xff",
    ];
    let paths: Vec<PathBuf> = names.iter().map(|name| place.world.in_home(OsStr::from_bytes(name))).collect();
    for path in &paths {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "here").unwrap();
    }
    let mut kennel = place.world.kennel(&["run", "--learn"]);
    kennel.arg(place.file()).args(["--", "cat"]).args(&paths);
    let output = kennel.output().unwrap();
    assert!(output.status.success() && stdout(&output) == "here".repeat(6), "{output:?}");
    let (text, policy) = place.learned();
    let mut expected: Vec<PathBuf> = paths[..5].to_vec();
    expected.push(place.in_home("only"));
    expected.sort();
    assert_eq!(reads(&policy), expected, "{text}");
    assert_eq!(
        Policy { mounts: Vec::new(), files: Vec::new(), ..policy },
        Policy { workspace: fs::canonicalize(place.world.path()).unwrap(), ..Policy::default() }
    );
    assert!(text.lines().all(|line| !line.starts_with("profile")), "{text}");
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text}");
    let again = place.run_with_it(&["cat", place.in_home("plain").to_str().unwrap()]);
    assert!(!again.status.success(), "{again:?}");
}

#[test]
fn a_flood_of_names_is_cut_and_the_file_says_so() {
    require!(has("python3"), "python3");
    let place = Place::new(&["data/model"]);
    let flood = "import os
for number in range(70000):
    try: os.open(f'/srv/{number}', os.O_WRONLY | os.O_CREAT)
    except OSError: pass
open(os.path.expanduser('~/data/model')).read()
";
    let output = place.learn(&[], &["python3", "-c", flood]);
    assert!(output.status.success(), "{output:?}");
    let (text, policy) = place.learned();
    assert!(
        text.contains("# The record was cut") && text.contains("paths are left out"),
        "{}",
        &text[..2000]
    );
    assert!(text.len() < 256 << 10 && policy.mounts.len() <= 1, "{}", text.len());
}

#[test]
fn a_run_that_is_killed_is_learned_from() {
    let place = Place::new(&["data/model"]);
    let kill = "cat ~/data/model; kill -KILL $$";
    let output = place.learn(&["--exit-code"], &["sh", "-c", kill]);
    assert_eq!(output.status.code(), Some(137), "{output:?}");
    let (text, policy) = place.learned();
    assert!(text.contains("ended by signal 9: it may need more"), "{text}");
    assert_eq!(reads(&policy), [place.in_home("data/model")], "{text}");

    fs::remove_file(place.file()).unwrap();
    let wait = "cat ~/data/model; exec sleep 1000";
    let output = place.learn(&["--timeout", &patient_flag(Duration::from_secs(2))], &["sh", "-c", wait]);
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    let (text, policy) = place.learned();
    assert!(text.contains("killed when its time was up"), "{text}");
    assert_eq!(reads(&policy), [place.in_home("data/model")], "{text}");
}

/// A command that would leave something behind if it ran.
#[test]
fn what_cannot_be_learned_or_written_is_refused_before_the_start() {
    let place = Place::new(&[]);
    let file = place.file();
    let file = file.to_str().unwrap();
    let refused = |flags: &[&str], words: &str| {
        let output = place.kennel(flags, &["touch", "ran"]);
        assert!(
            output.status.code() == Some(125) && stderr(&output).contains(words),
            "{flags:?}: {output:?}"
        );
        assert!(!Path::new(file).exists() && !place.world.at("ran").exists());
    };
    for (flags, words) in [
        (&["--overlay", "--commit"][..], "leave --commit out"),
        (&["--ask"], "leave --ask out"),
        (&["--profile", "full-dev"], "learn with repo-write"),
        (&["--rw", "/tmp"], "leave that grant out"),
    ] {
        refused(&[&["--learn", file], flags].concat(), words);
    }
    refused(&["--learn", "policy.toml"], "commands can write to the workspace");
    refused(&["--learn", "/nowhere/policy.toml"], "name a file in a directory that exists");
    refused(&["--learn", place.out.path().join("policy").to_str().unwrap()], "must end in .toml");
    refused(&["--learn", "/proc/policy.toml"], "learned policy /proc/policy.toml");
    // A link counts as a file, wherever it leads.
    let link = place.out.path().join("link.toml");
    symlink(file, &link).unwrap();
    refused(&["--learn", link.to_str().unwrap()], "name another file");
    // And so does a link to the workspace as its directory.
    let inside = place.out.path().join("inside");
    symlink(place.world.path(), &inside).unwrap();
    refused(
        &["--learn", inside.join("policy.toml").to_str().unwrap()],
        "commands can write to the workspace",
    );
    if !is_root() {
        let closed = place.out.path().join("closed");
        fs::create_dir(&closed).unwrap();
        fs::set_permissions(&closed, Permissions::from_mode(0o555)).unwrap();
        refused(&["--learn", closed.join("policy.toml").to_str().unwrap()], "where you can write");
    }
}

/// The proxy answers a request for an address with yes only if it is a public one.
#[test]
fn private_addresses_stay_closed() {
    require!(has("curl"), "curl");
    let place = Place::new(&[]);
    let port = origin();
    let get = |host: &str| format!("curl -sS -x http://127.0.0.1:3128 --noproxy '' http://{host}:{port}/");
    let script = format!("{}; {}", get("127.0.0.1"), get("localhost"));
    let output = place.learn(&[], &["sh", "-c", &script]);
    assert!(!stdout(&output).contains("hello"), "{output:?}");
    assert_eq!(stdout(&output).matches("not a public address").count(), 2, "{output:?}");
    let (text, policy) = place.learned();
    assert!(policy.network.allow.is_empty(), "{text}");
}
