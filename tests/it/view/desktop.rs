//! Terminals and desktops: descriptions of terminals, displays, runtime directories.

use std::{
    env, fs,
    os::unix::{
        fs::{PermissionsExt, symlink},
        net::UnixListener,
    },
    path::Path,
    process::{Command, Output},
};

use crate::support::{has, kennel, require, stderr, stdout, workspace};

const TERM: &str = "kennel-test-term";

/// Runs a script with this home and terminal.
fn run(home: &Path, variables: &[(&str, &Path)], flags: &[&str], script: &str) -> Output {
    let dir = workspace();
    let mut command = kennel(dir.path(), flags, &["sh", "-c", script]);
    command.env("HOME", home).env("TERM", TERM).env_remove("TERMINFO").env_remove("TERMINFO_DIRS");
    command.envs(variables.iter().copied()).output().unwrap()
}

/// Puts the description of the terminal into a directory, and something else beside it.
fn describe(directory: &Path) {
    let at = directory.join(&TERM[..1]);
    fs::create_dir_all(&at).unwrap();
    fs::write(at.join(TERM), "described").unwrap();
}

#[test]
fn descriptions_of_the_terminal_are_shown_where_the_caller_has_them() {
    let home = workspace();
    let [own, named, listed, other] =
        [".terminfo", "named", "listed", "other"].map(|name| home.path().join(name));
    for directory in [&own, &named, &listed] {
        describe(directory);
    }
    // By its number, as some systems do.
    fs::create_dir_all(listed.join("6b")).unwrap();
    fs::rename(listed.join("k").join(TERM), listed.join("6b").join(TERM)).unwrap();
    fs::create_dir_all(other.join("x")).unwrap();
    let list = env::join_paths([&other, &listed, Path::new("/usr/share/terminfo")]).unwrap();
    let variables = [("TERMINFO", &*named), ("TERMINFO_DIRS", Path::new(&list))];
    let script = format!(
        "cat ~/.terminfo/k/{TERM} $TERMINFO/k/{TERM} ~/listed/6b/{TERM}; echo; ls -A ~; echo $TERMINFO_DIRS"
    );
    let output = run(home.path(), &variables, &[], &script);
    let expected = format!("describeddescribeddescribed\n.terminfo\nlisted\nnamed\n{}", list.display());
    assert_eq!(stdout(&output), expected, "{output:?}");
    let output =
        run(home.path(), &variables, &[], &format!("echo x > ~/.terminfo/k/{TERM} || echo x > $TERMINFO/x"));
    assert_eq!(stderr(&output).matches("Read-only file system").count(), 2, "{output:?}");
    // With a session and with another tool that shows nothing of the caller.
    for (flags, expected) in [(&["--toolchains", "none"][..], "described"), (&["--profile", "ci-only"], "")] {
        let output = run(home.path(), &[], flags, &format!("cat {}/k/{TERM}", own.display()));
        assert_eq!(stdout(&output), expected, "{flags:?}: {output:?}");
    }
}

#[test]
fn a_variable_of_the_terminal_shows_nothing_else() {
    let home = workspace();
    let private = home.path().join("private");
    fs::create_dir_all(private.join("d")).unwrap();
    fs::write(private.join("d/diary"), "private").unwrap();
    describe(&home.path().join(".ssh"));
    let see = |term: &str, directory: &Path| {
        let dir = workspace();
        let mut command =
            kennel(dir.path(), &[], &["sh", "-c", "cat ~/private/d/diary ~/.ssh/k/*; echo :$TERMINFO"]);
        stdout(
            &command.env("HOME", home.path()).env("TERM", term).env("TERMINFO", directory).output().unwrap(),
        )
    };
    // No description is there; the name of a terminal leads out of the directory; the directory holds
    // secrets, or all of HOME.
    assert_eq!(see("xterm", &private), ":");
    for term in ["../d/diary", "/d/diary", ".", "..", "", "d/../diary"] {
        assert_eq!(see(term, &private), ":", "{term}");
    }
    assert_eq!(see(TERM, &home.path().join(".ssh")), ":");
    describe(home.path());
    assert_eq!(see(TERM, home.path()), format!(":{}", home.path().display()));
    // A link that a command may have made.
    let repository = home.path().join("repository");
    crate::support::make_repository(&repository.join(".git"));
    describe(&private);
    symlink(&private, repository.join("link")).unwrap();
    assert_eq!(see(TERM, &repository.join("link")), ":");
}

#[test]
fn a_terminal_works_as_outside() {
    require!(has("tic") && has("infocmp") && has("tput"), "tic and tput of ncurses");
    let home = workspace();
    let script = format!("infocmp xterm | sed 's/^xterm|/{TERM}|/' > ti && tic -x -o .terminfo ti");
    assert!(Command::new("sh").current_dir(home.path()).args(["-ec", &script]).status().unwrap().success());
    let output = run(home.path(), &[], &[], "tput bold > /dev/null && echo bold");
    assert_eq!(stdout(&output), "bold", "{output:?}");
}

#[test]
fn beside_a_display_of_the_host_the_sandbox_has_the_hosts_name() {
    // Where no X server has made the directory, it is made as one does, for every user.
    if fs::create_dir("/tmp/.X11-unix").is_ok() {
        fs::set_permissions("/tmp/.X11-unix", fs::Permissions::from_mode(0o1777)).unwrap();
    }
    let socket = format!("/tmp/.X11-unix/X{}", std::process::id());
    let _listener = UnixListener::bind(&socket).unwrap();
    let named = |flags: &[&str]| {
        let dir = workspace();
        let output =
            kennel(dir.path(), flags, &["sh", "-c", "uname -n; cat /etc/hostname"]).output().unwrap();
        (stdout(&output), stderr(&output))
    };
    let own = nix::sys::utsname::uname().unwrap().nodename().to_str().unwrap().to_owned();
    let twice = |name: &str| format!("{name}\n{name}");
    assert_eq!(named(&[]).0, twice("kennel"));
    assert_eq!(named(&["--rw", &socket]), (twice(&own), String::new()));
    let (name, said) = named(&["--rw", &socket, "--hostname", "other"]);
    assert_eq!(name, twice("other"));
    assert!(said.contains("X programs find no cookie") && said.contains("leave out --hostname"), "{said}");
    fs::remove_file(&socket).unwrap();
}

#[test]
fn a_runtime_directory_is_the_commands_own() {
    let (dir, runtime) = (workspace(), workspace());
    let socket = runtime.path().join("wayland-0");
    let _listener = UnixListener::bind(&socket).unwrap();
    fs::write(runtime.path().join("private"), "private").unwrap();
    let inside = |flags: &[&str], script: &str| {
        let all = [flags, &["--pass-env", "XDG_RUNTIME_DIR"]].concat();
        kennel(dir.path(), &all, &["sh", "-ec", script])
            .env("XDG_RUNTIME_DIR", runtime.path())
            .output()
            .unwrap()
    };
    let grant = ["--rw", socket.to_str().unwrap()];
    let script = "cd $XDG_RUNTIME_DIR; stat -c '%a %u' .; ls; test -S wayland-0; touch x; if cat private 2>/dev/null; then exit 9; fi";
    let output = inside(&grant, script);
    let expected = format!("700 {}\nwayland-0", nix::unistd::geteuid());
    assert!(
        output.status.success() && stdout(&output) == expected && stderr(&output).is_empty(),
        "{output:?}"
    );
    assert!(!runtime.path().join("x").exists());
    let output = inside(&[], "ls $XDG_RUNTIME_DIR");
    assert!(!output.status.success() && stderr(&output).contains("No such file"), "{output:?}");
}
