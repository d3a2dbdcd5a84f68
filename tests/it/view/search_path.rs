//! What is on PATH works inside, and nothing else of the home becomes visible with it.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown, lchown, symlink},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::support::{
    TempDir, World, has, make_repository, only_as_root, only_once, require, stderr, stdout, write_program,
};

/// A world whose user has programs in the home.
struct Place {
    world: World,
}

impl Place {
    fn new() -> Self {
        Self { world: World::new() }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.world.in_home(name)
    }

    /// A file below the home.
    fn write(&self, name: &str, text: &str) {
        write(&self.at(name), text);
    }

    /// A program that prints the file `data` beside its directory.
    fn program(&self, name: &str) {
        program(&self.at(name));
    }

    fn link(&self, name: &str, to: impl AsRef<Path>) {
        fs::create_dir_all(self.at(name).parent().unwrap()).unwrap();
        symlink(to, self.at(name)).unwrap();
    }

    /// Runs a script inside. These directories are on PATH.
    fn run(&self, path: &[PathBuf], flags: &[&str], script: &str) -> Output {
        let path: Vec<String> = path.iter().map(|entry| entry.display().to_string()).collect();
        let mut command = self.world.script(flags, script);
        let path = [path, vec!["/usr/bin:/bin".to_owned()]].concat().join(":");
        command.env("PATH", path).output().unwrap()
    }

    /// What a script prints inside.
    fn says(&self, path: &[PathBuf], script: &str) -> String {
        let output = self.run(path, &[], script);
        assert!(!stderr(&output).contains("note:"), "{output:?}");
        stdout(&output)
    }
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn program(path: &Path) {
    let data = path.parent().unwrap().parent().unwrap().join("share/data");
    write(&data, "data\n");
    write_program(path, format!("#!/bin/sh\ncat {}\n", data.display()));
}

#[test]
fn an_entry_is_shown_with_its_whole_prefix_and_not_what_is_beside_it() {
    let place = Place::new();
    place.program("tools/x-1/bin/x");
    place.write("tools/notes", "private");
    let path = [place.at("tools/x-1/bin")];
    assert_eq!(place.says(&path, "x; ls ~/tools"), "data\nx-1");
    let output = place.run(&path, &["--caches", "read-only"], "touch ~/tools/x-1/share/new");
    assert!(stderr(&output).contains("Read-only file system"), "{output:?}");
    place.run(&path, &[], "touch ~/tools/x-1/share/new; rm ~/tools/x-1/bin/x");
    assert!(place.at("tools/x-1/bin/x").exists() && !place.at("tools/x-1/share/new").exists());
    for flags in [&["--toolchains", "none"][..], &["--profile", "ci-only"]] {
        let output = place.run(&path, flags, "x");
        assert!(!output.status.success() && stdout(&output).is_empty(), "{output:?}");
    }
}

#[test]
fn an_entry_that_is_no_directory_of_programs_is_shown_alone() {
    let place = Place::new();
    place.program("scripts/x/run");
    place.write("scripts/x/lib", "part");
    assert_eq!(place.says(&[place.at("scripts/x")], "cat ~/scripts/x/lib; ls ~/scripts"), "partx");
}

#[test]
fn a_prefix_with_secrets_or_private_files_is_not_shown_as_a_whole() {
    let place = Place::new();
    place.program(".local/bin/x");
    place.write(".local/lib/part", "part\n");
    place.write(".local/share/keyrings/login", "secret");
    let path = [place.at(".local/bin")];
    assert_eq!(place.says(&path, "cat ~/.local/lib/part; ls ~/.local"), "part\nbin\nlib");
    place.program("own/bin/x");
    place.write("own/token", "secret");
    let path = [place.at("own/bin")];
    assert_eq!(place.says(&path, "ls ~/own"), "bin\nshare\ntoken");
    fs::set_permissions(place.at("own/token"), PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(place.says(&path, "ls ~/own; ls ~/own/bin"), "bin\nx");
    // With this umask, every file is private.
    fs::set_permissions(place.at("own/bin"), PermissionsExt::from_mode(0o700)).unwrap();
    assert_eq!(place.says(&path, "ls ~/own"), "bin\nshare\ntoken");
}

/// People have programs among their documents.
#[test]
fn a_directory_of_a_person_is_not_taken_for_a_prefix() {
    let place = Place::new();
    let script = |name: &str| {
        write_program(place.at(name), "#!/bin/sh\necho ran\n");
    };
    for name in ["Sync/bin/x", "Documents/y.sh", "Documents/2024/w.sh", "src/bin/z", "src/lib/z"] {
        script(name);
    }
    for name in ["Sync/notes", "Documents/notes", "Documents/2024/notes", "src/notes", "src/.git/HEAD"] {
        place.write(name, "private");
    }
    place.link("Sync/bin/y", place.at("Documents/y.sh"));
    place.link("Sync/bin/w", place.at("Documents/2024/w.sh"));
    let said = place
        .says(&[place.at("Sync/bin"), place.at("src/bin")], "w; x; y; z; cd; ls -R Documents; ls Sync src");
    assert_eq!(
        said,
        "ran\nran\nran\nran\nDocuments:\n2024\ny.sh\n\nDocuments/2024:\nw.sh\nSync:\nbin\n\nsrc:\nbin\nlib"
    );
    // What a tool keeps in a directory of its own belongs to it.
    script(".manager/shims/m");
    place.write(".manager/versions/1", "");
    assert_eq!(place.says(&[place.at(".manager/shims")], "m; ls ~/.manager"), "ran\nshims\nversions");
}

#[test]
fn an_entry_never_shows_the_home_or_a_secret() {
    let place = Place::new();
    place.program("bin/x");
    place.write("notes", "private");
    place.write(".ssh/bin/key", "secret");
    let entries = [place.world.home().to_owned(), place.at("bin"), place.at(".ssh/bin"), place.at(".ssh")];
    assert_eq!(place.says(&entries, "ls -A ~; x"), "bin");
    place.link("also", place.world.home());
    place.link("keys", place.at(".ssh"));
    assert_eq!(
        place.says(
            &["also", "also/bin", "keys/bin"].map(|name| place.at(name)),
            "ls -A ~/bin; cat ~/notes ~/.ssh/*"
        ),
        "x"
    );
}

#[test]
fn links_lead_to_the_prefixes_of_their_programs() {
    let place = Place::new();
    for name in ["apps/x-1/bin/x", "apps/y/bin/y", "apps/z/bin/z"] {
        place.program(name);
    }
    place.link("apps/current", "x-1");
    place.link(".local/bin/x", place.at("apps/current/bin/x"));
    place.link(".local/bin/y", "../../apps/y/bin/y");
    place.link(".local/bin/dangling", "../../apps/none");
    place.write("apps/notes", "private");
    place.link(".local/bin/notes", place.at("apps/notes"));
    write_program(place.at("single.sh"), "#!/bin/sh\necho single\n");
    place.link(".local/bin/single", place.at("single.sh"));
    write_program(
        place.at("node/lib/node_modules/p/dist/cli.js"),
        "#!/bin/sh\ncat \"$0\" > /dev/null; ls ~/node/lib/node_modules\n",
    );
    place.write("node/lib/node_modules/q/index.js", "");
    place.link(".local/bin/p", "../../node/lib/node_modules/p/dist/cli.js");
    // A link of a link's prefix.
    place.link("apps/y/bin/z", place.at("apps/z/bin/z"));
    let said = place.says(
        &[place.at(".local/bin")],
        "x; y; z; single; p; ~/apps/y/bin/z; ls ~/apps; readlink ~/apps/current",
    );
    assert_eq!(said, "data\ndata\nsingle\np\nq\ndata\ncurrent\nx-1\ny\nz\nx-1");
}

#[test]
fn an_entry_that_is_reached_through_links_works_by_both_names() {
    let place = Place::new();
    place.program("versions/1/bin/x");
    place.link("versions/default", "1");
    place.link(".profile", "versions/default");
    let said =
        place.says(&[place.at(".profile/bin")], "x; ~/versions/1/bin/x; ls ~/versions/default; command -v x");
    let name = place.at(".profile/bin/x");
    assert_eq!(said, format!("data\ndata\nbin\nshare\n{}", name.display()));
}

/// The kind of attack: a command of today decides what the sandbox of tomorrow shows.
#[test]
fn links_that_commands_may_have_made_decide_nothing() {
    let place = Place::new();
    place.program("other/bin/x");
    place.write("other/notes", "private");
    let own = place.world.path().to_owned();
    write(&own.join("venv/bin/y"), "");
    let plant = format!("ln -s {0}/x venv/bin/x; ln -s {0} bin", place.at("other/bin").display());
    assert!(place.run(&[], &[], &plant).status.success());
    for (entry, leads_to) in [("venv/bin", "other/bin/x"), ("bin", "other/bin")] {
        let output = place.run(&[own.join(entry)], &[], "ls ~/other; x");
        let (said, leads_to) = (stderr(&output), place.at(leads_to));
        assert!(stdout(&output).is_empty(), "{output:?}");
        assert!(said.contains("kennel: note: ") && said.contains("commands could have made"), "{said}");
        assert!(said.contains(&format!("--ro {}", leads_to.display())), "{said}");
    }
    // The workspace of another day.
    make_repository(&place.at("project/.git"));
    place.link("project/venv/bin/x", place.at("other/bin/x"));
    place.link("project/tools", place.at("other"));
    for entry in ["project/venv/bin", "project/tools/bin"] {
        let output = place.run(&[place.at(entry)], &[], "ls ~/other; x");
        assert!(
            stdout(&output).is_empty() && stderr(&output).contains("commands could have made"),
            "{output:?}"
        );
    }
    let grant = place.at("other").display().to_string();
    let output = place.run(&[place.at("project/venv/bin")], &["--ro", &grant], "x");
    assert_eq!((stdout(&output), stderr(&output)), ("data".to_owned(), String::new()));
}

#[test]
fn what_another_user_could_put_into_an_open_directory_is_not_shown() {
    only_as_root!();
    let place = Place::new();
    let tmp = TempDir::new("kennel-test-", "/tmp");
    program(&tmp.path().join("bin/x"));
    fs::set_permissions(tmp.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let path = [tmp.path().join("bin")];
    assert_eq!(place.says(&path, "x"), "data");
    chown(&path[0], Some(4242), Some(4242)).unwrap();
    let output = place.run(&path, &[], "x");
    let said = stderr(&output);
    assert!(stdout(&output).is_empty() && said.contains("kennel: note: PATH: "), "{output:?}");
    assert!(said.contains("belongs to another user") && said.contains("--ro "), "{said}");
    // In a directory that only the administrator may write to, its owner is trusted. Its links still lead
    // nowhere.
    let closed = TempDir::new("kennel-test-", "/var/lib");
    fs::set_permissions(closed.path(), PermissionsExt::from_mode(0o755)).unwrap();
    program(&closed.path().join("x/bin/x"));
    place.program("other/bin/y");
    symlink(place.at("other/bin/y"), closed.path().join("x/bin/y")).unwrap();
    chown(closed.path().join("x/bin"), Some(4242), Some(4242)).unwrap();
    assert_eq!(place.says(&[closed.path().join("x/bin")], "x; ls ~/other"), "data");
}

/// Whoever may write a directory can put a link there: by its mode, its group, or its access list.
#[test]
fn a_directory_that_others_may_write_leads_to_nothing_of_root() {
    only_as_root!();
    let place = Place::new();
    place.program("other/bin/y");
    place.program("tools/bin/x");
    place.link("tools/bin/y", place.at("other/bin/y"));
    place.link("shared/tools", place.at("other"));
    let [tools, shared] = ["tools/bin", "shared"].map(|name| place.at(name));
    let run = |entry: PathBuf| place.run(&[entry], &[], "y; ls ~/other");
    let leads_nowhere = |way: &str| {
        let output = run(tools.clone());
        assert!(!stdout(&output).contains("data"), "{way}: {output:?}");
        let output = run(shared.join("tools/bin"));
        let said = stderr(&output);
        assert!(!stdout(&output).contains("data"), "{way}: {output:?}");
        assert!(said.contains("could have made the link") && said.contains("--ro "), "{way}: {said}");
    };
    let set = |gid, mode| {
        for directory in [&tools, &shared] {
            chown(directory, Some(0), Some(gid)).unwrap();
            fs::set_permissions(directory, PermissionsExt::from_mode(mode)).unwrap();
        }
    };
    let leads = |way: &str| {
        assert!(stdout(&run(tools.clone())).contains("data"), "{way}");
        let output = run(shared.join("tools/bin"));
        assert!(stdout(&output).contains("data") && stderr(&output).is_empty(), "{way}: {output:?}");
    };
    set(0, 0o755);
    leads("only root writes");
    set(4242, 0o755);
    leads("the group only reads");
    set(4242, 0o775);
    leads_nowhere("the group writes");
    set(0, 0o757);
    leads_nowhere("everybody writes");
    set(0, 0o755);
    // The owner, user 4242, the group, the mask, others.
    let entries: [(u16, u16, u32); 5] =
        [(1, 7, u32::MAX), (2, 7, 4242), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 5, u32::MAX)];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        list.extend([tag.to_le_bytes(), rights.to_le_bytes()].concat());
        list.extend(id.to_le_bytes());
    }
    for directory in [&tools, &shared] {
        require!(xattr::set(directory, "system.posix_acl_access", &list).is_ok(), "access lists in the home");
    }
    leads_nowhere("an access list lets a user write");
}

/// A link belongs to whoever chose what it leads to.
#[test]
fn a_link_of_another_user_leads_to_nothing_of_root() {
    only_as_root!();
    let place = Place::new();
    place.program("other/bin/y");
    place.link("open/tools", place.at("other"));
    fs::set_permissions(place.at("open"), PermissionsExt::from_mode(0o1777)).unwrap();
    let entry = [place.at("open/tools/bin")];
    assert_eq!(place.says(&entry, "y"), "data", "in a sticky directory nobody replaces it");
    lchown(place.at("open/tools"), Some(4242), Some(4242)).unwrap();
    let output = place.run(&entry, &[], "y; ls ~/other");
    assert!(stdout(&output).is_empty(), "{output:?}");
    assert!(stderr(&output).contains("uid 4242 could have made the link"), "{output:?}");
}

#[test]
fn many_entries_and_many_links_have_an_end_that_is_told() {
    only_once!();
    let place = Place::new();
    let entries: Vec<PathBuf> = (0..70).map(|number| place.at(&format!("t{number}/bin"))).collect();
    for entry in &entries {
        program(&entry.join("x"));
    }
    let output = place.run(&entries, &[], "ls -A ~ | wc -l");
    assert_eq!(stdout(&output), "64", "{output:?}");
    assert!(stderr(&output).contains("only the first 64 directories"), "{output:?}");
    for number in 0..300 {
        place.link(&format!("many/bin/{number}"), place.at("none"));
    }
    let output = place.run(&[place.at("many/bin")], &[], "ls ~/many/bin | wc -l");
    assert_eq!(stdout(&output), "300", "{output:?}");
    let said = stderr(&output);
    assert!(said.contains("/many/bin: only the first 256 links in it are followed"), "{said}");
    // Links into the own prefix, as Homebrew makes them, are no reason for a note.
    fs::create_dir_all(place.at("farm/bin")).unwrap();
    place.write("farm/share/x", "");
    for number in 0..5000 {
        place.link(&format!("farm/bin/{number}"), format!("../cellar/{number}"));
    }
    assert_eq!(place.says(&[place.at("farm/bin")], "ls ~/farm/bin | wc -l"), "5000");
}

#[test]
fn an_activated_virtual_environment_is_that_environment() {
    require!(has("python3"), "python3");
    let place = Place::new();
    let mut make = Command::new("/usr/bin/python3");
    let made = make.args(["-m", "venv", "--without-pip"]).arg(place.at("v")).output();
    require!(made.is_ok_and(|output| output.status.success()), "python3 with venv");
    let v = place.at("v").display().to_string();
    let script = "python -c 'import os, sys; print(sys.prefix, os.environ[\"VIRTUAL_ENV\"])'";
    let mut command = place.world.script(&[], script);
    command.env("PATH", format!("{v}/bin:/usr/bin:/bin")).env("VIRTUAL_ENV", &v);
    let output = command.output().unwrap();
    assert_eq!(stdout(&output), format!("{v} {v}"), "{output:?}");
}

/// A variable names a tool that is not on PATH.
#[test]
fn variables_show_the_directories_of_tools() {
    let place = Place::new();
    place.program("jdk/bin/java");
    place.write("own/notes", "private");
    place.write(".ssh/key", "secret");
    place.link("project/.git/x", "y");
    place.link("project/jdk", place.at("own"));
    let run = |value: &str, script: &str| {
        let mut command = place.world.script(&[], script);
        stdout(&command.env("MAVEN_HOME", place.at(value)).output().unwrap())
    };
    assert_eq!(run("jdk", "$MAVEN_HOME/bin/java"), "data");
    for value in ["", ".ssh", "project/jdk", "none"] {
        assert_eq!(run(value, "ls ~/.ssh ~/own ~/notes; echo $MAVEN_HOME"), "", "{value}");
    }
}
