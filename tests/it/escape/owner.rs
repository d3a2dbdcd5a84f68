//! `--as-owner`: the owner's own processes outside look for what is root's in every process of Kennel, for as
//! long as there is one: its environment, memory, directory, descriptors and terminal.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    time::Duration,
};

use crate::support::{
    Screen, TempDir, copy_program, kennel_path, only_as_root, payload_path, require, stdout, workspace,
};

const OWNER: u32 = 1000;
const SECRET: &str = "secret-of-root";

/// A process of the owner that robs all processes with `mark` on their command lines.
struct Robber {
    child: Child,
    stdin: Option<ChildStdin>,
    said: BufReader<std::process::ChildStdout>,
    _program: TempDir,
}

impl Robber {
    fn start(mark: &str) -> Self {
        let program = workspace();
        fs::set_permissions(program.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let path = program.path().join("robber");
        copy_program(payload_path(), &path);
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", "1000", "--regid", "1000", "--clear-groups"])
            .arg(path)
            .args(["rob", mark, SECRET]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, mut said) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "begins\n");
        Self { child, stdin, said, _program: program }
    }

    /// What it has found, and in how many processes.
    fn end(mut self) -> (Vec<String>, u32) {
        drop(self.stdin.take());
        let mut said = String::new();
        self.said.read_to_string(&mut said).unwrap();
        assert!(self.child.wait().unwrap().success(), "{said}");
        let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
        let count = lines.pop().and_then(|line| line.strip_prefix("processes ")?.parse().ok());
        (lines, count.unwrap_or_else(|| panic!("{said}")))
    }
}

/// A workspace of the owner, and what is root's.
struct Place {
    own: TempDir,
    root: TempDir,
    mark: String,
}

impl Place {
    fn new(name: &str) -> Self {
        let (own, root) = (workspace(), workspace());
        chown(own.path(), Some(OWNER), Some(OWNER)).unwrap();
        fs::set_permissions(root.path(), PermissionsExt::from_mode(0o700)).unwrap();
        for file in ["input", "output", "nine"] {
            fs::write(root.path().join(file), "of root\n").unwrap();
        }
        let mark = format!("mark-{name}-{}", std::process::id());
        Self { own, root, mark }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Kennel, started by a shell of root's that stands in its own directory and has a descriptor of its own.
    fn command(&self, words: &str) -> Command {
        let script = format!(
            "cd {root} && exec 9<nine && exec {kennel} {words}",
            root = self.root.path().display(),
            kennel = kennel_path().display(),
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).env("SECRET", SECRET).env("AWS_SECRET_ACCESS_KEY", SECRET);
        command
    }

    fn run(&self, command: &str) -> String {
        format!("run -q --as-owner --workspace {} -- {command} {}", self.own.path().display(), self.mark)
    }

    /// Whether nothing that was found is root's.
    fn assert_nothing(&self, (found, count): (Vec<String>, u32), terminal: Option<&Path>) {
        assert!(count > 0, "it has seen Kennel");
        let root = self.root.path().to_str().unwrap();
        let is_of_root = |line: &&String| {
            matches!(&***line, "environ" | "memory")
                || line.contains(root)
                || terminal.is_some_and(|path| line.split(' ').nth(1) == path.to_str())
        };
        assert_eq!(found.iter().filter(is_of_root).collect::<Vec<_>>(), Vec::<&String>::new(), "{found:?}");
    }
}

/// Whether the attempt works here: a process that was changed with setpriv(1) loses everything.
fn robbing_works(place: &Place) -> bool {
    let robber = Robber::start(&place.mark);
    let script = format!(
        "cd {} && exec 9<nine && exec setpriv --reuid 1000 --regid 1000 --clear-groups sh -c 'sleep 1; exit' {}",
        place.root.path().display(),
        place.mark
    );
    let status = Command::new("sh").args(["-c", &script]).env("SECRET", SECRET).status().unwrap();
    assert!(status.success());
    let (found, _) = robber.end();
    let nine = format!("taken {}", place.at("nine").display());
    found.contains(&nine) && found.iter().any(|line| line == "environ")
}

#[test]
fn the_owner_takes_nothing_of_root_at_any_time() {
    only_as_root!();
    let place = Place::new("files");
    require!(robbing_works(&place), "processes of one user that trace each other");
    let robber = Robber::start(&place.mark);
    for round in 0..12 {
        // Long and short lives.
        let script = if round % 4 == 0 { "cat; sleep 0.3" } else { "cat" };
        let mut command = place.command(&place.run(&format!("sh -c '{script}'")));
        command.stdin(File::open(place.at("input")).unwrap());
        command.stdout(File::options().append(true).open(place.at("output")).unwrap());
        let output = command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    place.assert_nothing(robber.end(), None);
    assert_eq!(fs::read_to_string(place.at("output")).unwrap().matches("of root").count(), 13);
}

#[test]
fn the_owner_takes_no_terminal_of_root() {
    only_as_root!();
    let place = Place::new("terminal");
    require!(robbing_works(&place), "processes of one user that trace each other");
    let robber = Robber::start(&place.mark);
    let mut command = place.command(&place.run("sh -c 'tty; echo ready; read answer; echo got $answer'"));
    let mut screen = Screen::start(&mut command, Duration::from_secs(20));
    let terminal = fs::read_link(format!("/proc/{}/fd/0", screen.child.id())).unwrap();
    screen.expect("ready");
    screen.type_in("keys\r");
    screen.expect("got keys");
    let (status, seen) = screen.end();
    assert_eq!(status, Some(0), "{seen}");
    place.assert_nothing(robber.end(), Some(&terminal));
    assert!(!seen.contains('x'), "nothing was typed in: {seen}");
}

#[test]
fn the_owner_takes_nothing_of_root_from_a_session() {
    only_as_root!();
    let place = Place::new("session");
    require!(robbing_works(&place), "processes of one user that trace each other");
    let robber = Robber::start(&place.mark);
    let workspace = place.own.path().display().to_string();
    let flags = format!("--as-owner --workspace {workspace}");
    let name = &place.mark;
    let started = place.command(&format!("session start {flags} --name {name}")).output().unwrap();
    assert!(started.status.success(), "{started:?}");
    let socket = PathBuf::from(stdout(&started));
    let reviewed = place.command(&format!("diff {flags} {name}")).output().unwrap();
    assert!(reviewed.status.success(), "{reviewed:?}");
    let served =
        place.command(&format!("mcp {flags} --setenv MARK={name}")).stdin(Stdio::null()).output().unwrap();
    assert!(served.status.success(), "{served:?}");
    let found = robber.end();
    let mut stop = Command::new("setpriv");
    stop.args(["--reuid", "1000", "--regid", "1000", "--clear-groups"]).arg(kennel_path());
    stop.args(["session", "stop", name]).env_remove("XDG_RUNTIME_DIR");
    let runtime = socket.ancestors().nth(2).unwrap();
    if runtime.starts_with("/run") {
        stop.env("XDG_RUNTIME_DIR", runtime);
    }
    assert!(stop.status().unwrap().success());
    place.assert_nothing(found, None);
}
