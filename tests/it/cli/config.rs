//! `kennel.toml`, `config.toml` and named policies: which file counts, and that no command decides it.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::support::{
    World, filled, is_root, kennel_path, make_repository, only_as_root, only_as_user, require, stderr,
    stdout, workspace,
};

/// A world whose user has a configuration directory.
struct Place {
    world: World,
}

impl Place {
    fn new() -> Self {
        let world = World::new();
        fs::create_dir_all(world.in_home(".config/kennel")).unwrap();
        Self { world }
    }

    /// `kennel` with these words, in a directory.
    fn kennel_in(&self, here: &Path, words: &[&str]) -> Output {
        self.world.kennel(words).current_dir(here).output().unwrap()
    }

    fn kennel(&self, words: &[&str]) -> Output {
        self.kennel_in(self.world.path(), words)
    }

    /// The host name that a command sees, which is `kennel` unless a file or a flag says something else.
    fn hostname(&self, flags: &[&str]) -> String {
        let output = self.kennel(&[&["run"], flags, &["--", "uname", "-n"]].concat());
        assert!(output.status.success(), "{flags:?}: {output:?}");
        stdout(&output)
    }

    fn file(&self) -> PathBuf {
        self.world.at("kennel.toml")
    }

    /// Writes the file of the workspace.
    fn says(&self, text: &str) {
        fs::write(self.file(), text).unwrap();
    }

    /// Writes a file of the user.
    fn of_user(&self, name: &str, text: &str) -> PathBuf {
        let path = self.world.home().join(".config/kennel").join(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn trust(&self) {
        let output = self.kennel(&["trust"]);
        assert!(output.status.success(), "{output:?}");
    }

    /// The words of the refusal of a file that has changed.
    fn is_refused(&self, words: &str) {
        let output = self.kennel(&["run", "--", "echo", "ran"]);
        assert!(output.status.code() == Some(125) && output.stdout.is_empty(), "{output:?}");
        let said = stderr(&output);
        assert!(said.contains(words) && said.contains("run `kennel trust`"), "{said}");
    }
}

#[test]
fn a_file_of_the_workspace_counts_only_as_it_was_trusted() {
    let place = Place::new();
    place.says("hostname = 'mine'\n");
    for flags in [&[][..], &["--quiet"]] {
        let output = place.kennel(&[&["run"], flags, &["--", "uname", "-n"]].concat());
        assert_eq!(stdout(&output), "kennel");
        let said = stderr(&output);
        assert!(said.contains("kennel.toml: not used, because you have not trusted it"), "{said}");
        assert!(said.lines().count() == 1 && said.ends_with("then run `kennel trust`"), "{said}");
    }
    assert_eq!(place.kennel(&["trust", "--show"]).status.code(), Some(1));
    let output = place.kennel(&["trust"]);
    assert!(output.status.success() && stdout(&output).contains("hostname = 'mine'"), "{output:?}");
    assert_eq!(place.kennel(&["trust", "--show"]).status.code(), Some(0));
    let output = place.kennel(&["run", "--", "uname", "-n"]);
    assert_eq!((stdout(&output), stderr(&output)), ("mine".to_owned(), String::new()));
    // It may take rights away, so it is not ignored.
    place.says("hostname = 'other'\n");
    place.is_refused("it has changed since you trusted it");
    let output = place.kennel(&["trust", "--show"]);
    assert_eq!(output.status.code(), Some(1));
    let news =
        "--- as you trusted it\n+++ as it is now\n@@ -1 +1 @@\n-hostname = 'mine'\n+hostname = 'other'";
    assert!(stdout(&output).ends_with(news), "{output:?}");
    assert_eq!(place.hostname(&["--no-config"]), "kennel");
    place.trust();
    assert_eq!(place.hostname(&[]), "other");
    assert!(place.kennel(&["trust", "--remove"]).status.success());
    assert_eq!(place.hostname(&[]), "kennel");
    fs::remove_file(place.file()).unwrap();
    assert_eq!(place.kennel(&["trust"]).status.code(), Some(125));
}

#[test]
fn a_trusted_text_is_trusted_in_its_directory_alone() {
    let place = Place::new();
    place.says("hostname = 'mine'\n");
    place.trust();
    let beside = workspace();
    fs::copy(place.file(), beside.path().join("kennel.toml")).unwrap();
    let output = place.kennel_in(beside.path(), &["run", "--", "uname", "-n"]);
    assert!(stdout(&output) == "kennel" && stderr(&output).contains("not trusted"), "{output:?}");
    // Over a link it is the same file.
    let link = beside.path().join("link");
    symlink(place.world.path(), &link).unwrap();
    let words = ["run", "--workspace", link.to_str().unwrap(), "--", "uname", "-n"];
    assert_eq!(stdout(&place.kennel_in(beside.path(), &words)), "mine");
}

#[test]
fn a_hostile_file_is_neither_used_nor_waited_for() {
    let place = Place::new();
    let file = place.file();
    let text = "hostname = 'evil'\n";
    let beside = filled(workspace(), &["f"], |_| text);
    let make: [(&str, &dyn Fn()); 6] = [
        ("it is a symbolic link", &|| symlink(beside.path().join("f"), &file).unwrap()),
        ("it is a symbolic link", &|| symlink("kennel.toml", &file).unwrap()),
        ("it is not a regular file", &|| fs::create_dir(&file).unwrap()),
        ("it is not a regular file", &|| {
            assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
        }),
        ("it is larger than 1 MiB", &|| place.says(&"#".repeat((1 << 20) + 1))),
        ("it is not UTF-8", &|| fs::write(&file, b"hostname = 'evil' # \xff").unwrap()),
    ];
    let remove = || {
        if fs::remove_file(&file).is_err() {
            fs::remove_dir(&file).unwrap()
        }
    };
    for (why, make) in make {
        make();
        let output = place.kennel(&["run", "--", "uname", "-n"]);
        assert!(stdout(&output) == "kennel" && stderr(&output).contains(why), "{why}: {output:?}");
        let output = place.kennel(&["trust"]);
        assert!(output.status.code() == Some(125) && stderr(&output).contains(why), "{why}: {output:?}");
        remove();
        // In place of what was trusted, it stops everything.
        place.says(text);
        place.trust();
        remove();
        make();
        place.is_refused(why);
        remove();
        assert!(place.kennel(&["trust", "--remove"]).status.success());
    }
    if !is_root() {
        place.says(text);
        fs::set_permissions(&file, Permissions::from_mode(0o200)).unwrap();
        let output = place.kennel(&["run", "--", "uname", "-n"]);
        assert!(stdout(&output) == "kennel" && stderr(&output).contains("Permission denied"), "{output:?}");
        fs::remove_file(&file).unwrap();
    }
    place.says("\u{1b}[2Jhostnam = 1\n");
    let output = place.kennel(&["trust"]);
    assert!(output.status.code() == Some(125) && !stdout(&output).contains('\u{1b}'), "{output:?}");
    assert_eq!(
        place.kennel(&["trust", "--show"]).status.code(),
        Some(1),
        "nothing that is refused is trusted"
    );
}

#[test]
fn no_command_decides_about_the_next_sandbox() {
    let place = Place::new();
    let secret = filled(workspace(), &["file"], |_| "secret");
    let grant = format!("mounts = [{{ type = 'rw', source = '{}' }}]", secret.path().display());
    let plant = format!("echo \"{grant}\" > kennel.toml");
    assert!(place.kennel(&["run", "--", "sh", "-c", &plant]).status.success());
    let read = format!("cat {}/file", secret.path().display());
    let output = place.kennel(&["run", "--", "sh", "-c", &read]);
    assert!(!output.status.success() && stderr(&output).contains("not trusted"), "{output:?}");
    // A trusted file cannot be changed, moved or removed.
    place.says("hostname = 'mine'\n");
    place.trust();
    let script =
        "echo x > kennel.toml; mv kennel.toml x; rm -f kennel.toml; ln -sf /etc/passwd kennel.toml; true";
    place.kennel(&["run", "--", "sh", "-c", script]);
    assert_eq!(fs::read_to_string(place.file()).unwrap(), "hostname = 'mine'\n");
    assert_eq!(place.hostname(&[]), "mine");
}

#[test]
fn no_command_writes_the_user_s_files_or_the_record_of_trust() {
    let place = Place::new();
    let home = place.world.home();
    let directory = home.join(".config/kennel");
    let try_to = |variable: Option<&Path>, script: &str| {
        let mut kennel = place.world.kennel(&["run", "--", "sh", "-c", script]);
        kennel.current_dir(home).envs(variable.map(|path| ("XDG_CONFIG_HOME", path))).output().unwrap()
    };
    // The directory is there.
    let script =
        "(echo x > .config/kennel/config.toml || mkdir .config/kennel/trust || mv .config/kennel x) 2>&1";
    let output = try_to(None, script);
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(stdout(&output).matches("Read-only").count() + stdout(&output).matches("busy").count(), 3);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    // It is not there: what a command makes is moved aside.
    fs::remove_dir(&directory).unwrap();
    let output =
        try_to(None, "mkdir .config/kennel && echo \"hostname = 'evil'\" > .config/kennel/config.toml");
    assert!(stderr(&output).contains("a protected path"), "{output:?}");
    assert!(!directory.exists());
    // It is elsewhere.
    let other = home.join("conf");
    fs::create_dir_all(other.join("kennel")).unwrap();
    let output = try_to(Some(&other), "echo \"hostname = 'evil'\" > conf/kennel/config.toml");
    assert!(!output.status.success() && stderr(&output).contains("Read-only"), "{output:?}");
    assert_eq!(stdout(&try_to(Some(&other), "uname -n")), "kennel");
}

#[test]
fn flags_come_over_the_workspace_over_the_user_over_the_profile() {
    let place = Place::new();
    place.says("hostname = 'workspace'\nprotect = ['a']\nlimits.pids = 100\n");
    place.trust();
    place.of_user(
        "config.toml",
        "hostname = 'user'\nprotect = ['b']\nlimits.memory = '1G'\nenv.set = { A = '1' }\n",
    );
    let shown = |flags: &[&str]| -> serde_json::Value {
        let output = place.kennel(&[&["policy", "show", "--as-file"], flags].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    };
    let policy = shown(&["--protect", "c"]);
    assert_eq!((&policy["hostname"], &policy["profile"]), (&"workspace".into(), &"repo-write".into()));
    assert_eq!(policy["protect"], serde_json::json!(["b", "a", "c"]));
    assert_eq!((&policy["limits"]["pids"], &policy["env"]["set"]["A"]), (&100.into(), &"1".into()));
    assert!(!policy["limits"]["memory"].is_null(), "{policy}");
    assert_eq!(
        Path::new(policy["workspace"].as_str().unwrap()),
        fs::canonicalize(place.world.path()).unwrap()
    );
    assert_eq!(shown(&["--hostname", "flag"])["hostname"], "flag");
    fs::remove_file(place.file()).unwrap();
    assert_eq!(place.hostname(&[]), "user");
    assert_eq!(place.hostname(&["--no-config"]), "kennel");
    // A file named by --policy is the whole policy.
    place.says("hostname = 'workspace'\n");
    let other = filled(workspace(), &["p.toml"], |_| "profile = 'repo-write'\n");
    let file = other.path().join("p.toml");
    assert_eq!(place.hostname(&["--policy", file.to_str().unwrap()]), "kennel");
}

#[test]
fn a_shown_policy_names_the_files_that_were_read_and_the_one_with_the_profile() {
    let place = Place::new();
    let start = |flags: &[&str]| {
        let text = stdout(&place.kennel(&[&["policy", "show"], flags].concat()));
        text.split("\n\n").next().unwrap().replace(place.world.path().to_str().unwrap(), "W")
    };
    assert!(
        start(&[]).contains("(default)") && start(&[]).contains("files read           none"),
        "{}",
        start(&[])
    );
    // The default profile, and the file says so.
    place.says("profile = 'repo-write'\n");
    place.trust();
    place.of_user("config.toml", "hostname = 'user'\n");
    let both = start(&[]);
    assert!(both.contains("config.toml") && both.contains("kennel.toml"), "{both}");
    let profile = both.lines().find(|line| line.contains("repo-write")).unwrap();
    assert!(profile.contains("kennel.toml)"), "{both}");
    assert!(start(&["--profile", "read-only"]).contains("(--profile)"));
    assert!(start(&["--no-config"]).contains("files read           none"), "{}", start(&["--no-config"]));
    let json = stdout(&place.kennel(&["policy", "show", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let files = json["files"].as_array().unwrap();
    assert!(
        files.len() == 2 && files[1].as_str().unwrap().ends_with("/kennel.toml"),
        "the strongest last: {files:?}"
    );
}

/// Each value, also of a list that several files, a preset and a flag add to.
#[test]
fn policy_show_names_the_file_or_the_flag_of_each_value() {
    let place = Place::new();
    let shared = filled(workspace(), &["one/x", "two/x"], |_| "");
    let [one, two] = ["one", "two"].map(|name| shared.path().join(name).display().to_string());
    place.says(&format!(
        "network.allow = ['w.example:443']\nlimits.pids = 100\nmounts = [{{ type = 'ro', source = '{one}' }}]\n"
    ));
    place.trust();
    let user = "network.allow = ['@cargo']\nlimits = { pids = 90, memory = '1G' }\nenv.pass = ['USER_A']\n";
    let user = place.of_user("config.toml", user).display().to_string();
    let file = fs::canonicalize(place.file()).unwrap().display().to_string();
    let flags = ["--allow", "f.example:443", "--rw", &two, "--pass-env", "USER_B"];
    let below = place.world.at("sub");
    fs::create_dir(&below).unwrap();
    make_repository(&place.world.at(".git"));
    for here in [place.world.path(), &below] {
        let output = place.kennel_in(here, &[&["policy", "show"], &flags[..]].concat());
        let shown = stdout(&output);
        for (value, origin) in [
            ("static.crates.io:443", &*user),
            ("w.example:443", &file),
            ("f.example:443", "--allow"),
            ("100", &file),
            ("1G", &user),
            (&one, &file),
            (&two, "--rw"),
            ("USER_A", &user),
            ("USER_B", "--pass-env"),
        ] {
            let has = |line: &str| line.contains(value) && line.ends_with(&format!("({origin})"));
            assert!(shown.lines().any(has), "{value} ({origin}): {shown}");
        }
        let around = "the git work tree around the current directory";
        let workspace = if here == below { around } else { "the current directory" };
        assert!(shown.contains(&format!("({workspace})")), "{shown}");
        let starts = shown.lines().find(|line| line.contains("commands start in")).unwrap();
        assert!(!starts.contains('('), "nobody chose it: {starts}");
    }
    let output = place.kennel(&["policy", "show", "--cwd", "sub"]);
    let starts = stdout(&output).lines().any(|l| l.contains("commands start in") && l.ends_with("(--cwd)"));
    assert!(starts, "{output:?}");
}

#[test]
fn a_policy_of_the_user_is_found_by_its_name() {
    let place = Place::new();
    place.of_user("config.toml", "hostname = 'defaults'\n");
    place.of_user(
        "ci.toml",
        "profile = 'no-network'\nhostname = 'ci'\nmounts = [{ type = 'mask', path = 'hidden' }]\n",
    );
    place.says("hostname = 'workspace'\n");
    fs::write(place.world.at("hidden"), "x").unwrap();
    let output = place.kennel(&["run", "--policy", "ci", "--", "sh", "-c", "uname -n; cat hidden; pwd"]);
    // What is hidden is empty, also for root.
    let here = fs::canonicalize(place.world.path()).unwrap();
    assert_eq!(stdout(&output), format!("ci\n{}", here.display()), "{output:?}");
    let output = place.kennel(&["run", "--policy", "absent", "--", "true"]);
    let said = stderr(&output);
    assert!(output.status.code() == Some(125) && said.contains("there are ci, config;"), "{said}");
    place.of_user("wrong.toml", "hostnam = 'x'\n");
    let said = stderr(&place.kennel(&["run", "--policy", "wrong", "--", "true"]));
    assert!(said.contains(".config/kennel/wrong.toml:1:1: unknown field `hostnam`"), "{said}");
}

#[test]
fn the_user_s_files_are_the_user_s() {
    let place = Place::new();
    let file = place.of_user("config.toml", "hostname = 'user'\n");
    let refused = |why: &str| {
        let output = place.kennel(&["run", "--", "true"]);
        let said = stderr(&output);
        assert!(
            output.status.code() == Some(125) && said.contains(why) && said.contains("--no-config"),
            "{said}"
        );
    };
    fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
    refused("every user can write it");
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    assert_eq!(place.hostname(&[]), "user");
    // A repository of settings has the file, and the home a link.
    let settings = workspace();
    fs::rename(&file, settings.path().join("c.toml")).unwrap();
    symlink(settings.path().join("c.toml"), &file).unwrap();
    assert_eq!(place.hostname(&[]), "user");
    let output = place.kennel_in(settings.path(), &["run", "--", "sh", "-c", "echo x >> c.toml"]);
    assert!(!output.status.success() && stderr(&output).contains("Read-only"), "{output:?}");
    if is_root() {
        chown(&file, Some(1000), Some(1000)).unwrap();
        refused("it belongs to uid 1000");
    } else {
        // A command may have closed the caller's own directory.
        let directory = place.world.home().join(".config");
        fs::set_permissions(&directory, Permissions::from_mode(0o000)).unwrap();
        refused("Permission denied");
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn a_directory_that_another_user_closed_has_no_file_of_the_caller() {
    only_as_user!();
    let place = Place::new();
    let mut kennel = place.world.kennel(&["run", "--", "echo", "ran"]);
    let output = kennel.env("XDG_CONFIG_HOME", "/proc/1/root/etc").output().unwrap();
    assert!(output.status.success() && stdout(&output) == "ran", "{output:?}");
}

#[test]
fn who_owns_a_workspace_does_not_matter_for_what_was_trusted() {
    only_as_root!();
    let place = Place::new();
    place.says("hostname = 'theirs'\n");
    for path in [place.world.path(), &place.file()] {
        chown(path, Some(1000), Some(1000)).unwrap();
    }
    assert_eq!(place.hostname(&["--git", "trust"]), "kennel");
    place.trust();
    assert_eq!(place.hostname(&["--git", "trust"]), "theirs");
}

#[test]
fn a_subdirectory_has_the_file_of_its_work_tree() {
    let place = Place::new();
    make_repository(&place.world.at(".git"));
    let sub = place.world.at("sub");
    fs::create_dir(&sub).unwrap();
    place.says("hostname = 'top'\nprotect = ['kept']\n");
    fs::write(sub.join("kennel.toml"), "hostname = 'sub'\n").unwrap();
    let output = place.kennel_in(&sub, &["trust"]);
    assert!(output.status.success() && stdout(&output).contains("'top'"), "{output:?}");
    fs::write(place.world.at("kept"), "x").unwrap();
    let words = [
        "run",
        "--protect",
        "own",
        "--",
        "sh",
        "-c",
        "uname -n; pwd; echo x > ../kept; echo x > own; echo x > free",
    ];
    fs::write(sub.join("own"), "").unwrap();
    let output = place.kennel_in(&sub, &words);
    let said = stderr(&output);
    assert!(stdout(&output).starts_with("top\n") && stdout(&output).ends_with("/sub"), "{output:?}");
    assert!(said.contains("../kept: Read-only") && said.contains("own: Read-only"), "{said}");
    assert!(sub.join("free").exists());
}

#[test]
fn init_writes_a_trusted_file_once() {
    let place = Place::new();
    fs::write(place.world.at("Cargo.toml"), "").unwrap();
    let output = place.kennel(&["init"]);
    assert!(output.status.success() && stdout(&output).ends_with("/kennel.toml"), "{output:?}");
    for words in ["the hosts of @cargo", "it is trusted", "kennel policy show", "kennel run CMD"] {
        assert!(stderr(&output).contains(words), "{words}: {output:?}");
    }
    let text = fs::read_to_string(place.file()).unwrap();
    assert!(text.contains("\"@cargo\",") && text.contains("# \"@github\","), "{text}");
    let output = place.kennel(&["policy", "show", "--as-file"]);
    assert!(stdout(&output).contains("index.crates.io:443") && stderr(&output).is_empty(), "{output:?}");
    let again = place.kennel(&["init"]);
    assert!(again.status.code() == Some(125) && stderr(&again).contains("File exists"), "{again:?}");
    assert_eq!(fs::read_to_string(place.file()).unwrap(), text);
    // A link is not followed, wherever it leads.
    let beside = workspace();
    symlink(beside.path().join("made"), beside.path().join("kennel.toml")).unwrap();
    assert_eq!(place.kennel_in(beside.path(), &["init"]).status.code(), Some(125));
    assert!(!beside.path().join("made").exists());
}

#[test]
fn a_session_starts_from_the_files_too() {
    let place = Place::new();
    place.says("hostname = 'mine'\n");
    place.trust();
    let name = format!("config-{}", std::process::id());
    let started = place.kennel(&["session", "start", "--name", &name]);
    assert!(started.status.success(), "{started:?}");
    let output = place.kennel(&["exec", &name, "--", "uname", "-n"]);
    assert!(place.kennel(&["session", "stop", &name]).status.success());
    assert_eq!(stdout(&output), "mine");
}

/// A start that finds no file asks for each once.
#[test]
fn where_there_is_no_file_a_start_looks_twice() {
    require!(crate::support::has("strace"), "strace");
    let place = Place::new();
    let mut strace = place.world.command("strace");
    strace.args(["-e", "trace=file", "-o", "/dev/stderr"]).arg(kennel_path()).args(["run", "--", "true"]);
    let output = strace.output().unwrap();
    require!(output.status.success(), "strace that may trace");
    let said = stderr(&output);
    let [home, dir] = [place.world.home(), place.world.path()].map(|it| it.to_str().unwrap().to_owned());
    for path in [format!("\"{home}/.config/kennel/config.toml\""), format!("\"{dir}/kennel.toml\"")] {
        let calls: Vec<&str> = said.lines().filter(|line| line.contains(&path)).collect();
        assert!(calls.len() == 1 && calls[0].contains("ENOENT"), "{path}: {calls:#?}");
    }
}
