//! Caches and toolchains take what commands write, and the host's files never change.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::serve::Hosted;
use crate::support::{TempDir, World, fails, report, skip, stderr, stdout, workspace, workspace_in};

/// Skips a test on a kernel without copy-on-write layers in memory.
macro_rules! require_layers {
    () => {
        crate::support::require!(crate::overlay::in_memory(), "copy-on-write layers, Linux 6.6");
    };
}
pub(super) use require_layers;

/// A world whose home has caches, a toolchain, and a secret beside them.
fn world() -> World {
    World::at_home(filled(workspace()))
}

fn filled(home: TempDir) -> TempDir {
    for (directory, name) in [
        (".cargo/registry/cache/index", "old.crate"),
        (".cargo/bin", "tool"),
        (".npm/_cacache", "old"),
        (".cache/pip", "old"),
        (".cache/private", "diary"),
        (".pyenv/versions/3/bin", "python"),
    ] {
        fs::create_dir_all(home.path().join(directory)).expect("a directory");
        fs::write(home.path().join(directory).join(name), "of the host").expect("a file");
    }
    fs::write(home.path().join(".cargo/credentials.toml"), "token").expect("a file");
    home
}

/// Every file below `path`: its name, mode, change time and contents.
fn state(path: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let mut all = Vec::new();
    let mut open = vec![path.to_owned()];
    while let Some(path) = open.pop() {
        let metadata = fs::symlink_metadata(&path).expect("metadata");
        let (mode, changed) = (metadata.mode(), (metadata.ctime(), metadata.ctime_nsec()));
        let contents = if metadata.is_file() { fs::read(&path).expect("contents") } else { Vec::new() };
        all.push(format!("{} {mode:o} {changed:?} {contents:?}", path.display()));
        if metadata.is_dir() {
            open.extend(
                fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("an entry").path()),
            );
        }
    }
    all.sort();
    all
}

#[test]
fn caches_take_new_entries_that_the_host_never_sees() {
    require_layers!();
    let world = world();
    let outside = workspace();
    fs::write(outside.path().join("file"), "outside").expect("a file");
    symlink(outside.path(), world.in_home(".cache/pip/out")).expect("a link");
    let before = [state(world.home()), state(outside.path())];
    let script = "set -e
        cd ~/.cargo/registry/cache/index; cat old.crate; echo
        echo new > new.crate; echo changed > old.crate; cat old.crate
        ln old.crate second; mv second third; chmod 600 third; ln -s / root; rm old.crate; mkdir -p a/b; ls
        echo x > ../../../registry/../registry/up; cat ~/.cargo/registry/up
        cd ~/.npm/_cacache; mv old moved; rm moved; mkdir old; touch -d 2001-01-01 old
        rm ~/.cargo/bin/tool; echo tool > ~/.cargo/bin/other
        mkdir ~/.pyenv/versions/3/site; mkdir -p ~/.cache/uv/new
        ! echo x > ~/.cache/pip/out/file
        ! ln ~/.cache/pip/old ~/.npm/_cacache/linked
        ! ls ~/.cache/private";
    let output = world.run(&[], script);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(stdout(&output), "of the host\nchanged\na\nnew.crate\nroot\nthird\nx", "{output:?}");
    assert_eq!([state(world.home()), state(outside.path())], before);
    let output = world.run(&[], "cat ~/.cargo/registry/cache/index/*");
    assert_eq!(stdout(&output), "of the host", "nor does the next sandbox: {output:?}");
}

#[test]
fn caches_take_new_entries_where_the_whole_host_is_visible() {
    require_layers!();
    // Not in /tmp, which is private.
    let world = World::at_home(filled(workspace_in(Path::new("/var/tmp"))));
    let before = state(world.home());
    let script = "echo x > ~/.cargo/registry/new && cat ~/.cargo/registry/new; touch ~/.cargo/config.toml";
    let output = world.run(&["--profile", "full-dev"], script);
    assert_eq!(stdout(&output), "x", "{output:?}");
    assert!(stderr(&output).contains("Read-only file system"), "{output:?}");
    assert_eq!(state(world.home()), before);
}

#[test]
fn caches_can_be_read_only_or_absent() {
    let world = world();
    let output = world.run(&["--caches", "read-only"], "cat ~/.npm/_cacache/old; touch ~/.npm/_cacache/x");
    assert_eq!(stdout(&output), "of the host");
    assert!(stderr(&output).contains("Read-only file system"), "{output:?}");
    let output = world.run(&["--caches", "none"], "ls -A ~ ~/.cargo; touch ~/.cargo/bin/x; mkdir ~/.npm");
    assert!(stdout(&output).ends_with(".cargo:\nbin"), "{output:?}");
    assert!(!stdout(&output).contains(".npm") && stderr(&output).contains("Read-only"), "{output:?}");
    for flags in [&["--toolchains", "none"][..], &["--profile", "ci-only"]] {
        let output = world.run(flags, "ls -A ~");
        assert!(!stdout(&output).contains('.'), "{flags:?}: {output:?}");
    }
}

#[test]
fn grant_of_a_cache_is_the_host_s() {
    let world = world();
    let cache = world.in_home(".npm/_cacache");
    let output = world.run(&["--rw", cache.to_str().expect("text")], "echo x > ~/.npm/_cacache/new");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read_to_string(cache.join("new")).expect("a file"), "x\n");
    let output = world.run(&["--ro", cache.to_str().expect("text")], "echo x > ~/.npm/_cacache/new2");
    assert!(stderr(&output).contains("Read-only file system"), "{output:?}");
}

#[test]
fn workspace_in_a_cache_is_the_host_s() {
    require_layers!();
    let world = world();
    let dir = world.in_home(".cargo/registry/cache/index");
    let script = "echo x > new; echo x > ../beside; cat ../beside";
    let output = world.script(&[], script).current_dir(&dir).output().expect("kennel runs");
    assert_eq!(stdout(&output), "x", "{output:?}");
    assert_eq!(fs::read_to_string(dir.join("new")).expect("a file"), "x\n");
    assert!(!world.in_home(".cargo/registry/cache/beside").exists());
}

#[test]
fn secrets_in_a_cache_stay_covered() {
    require_layers!();
    let world = world();
    let script = "cat ~/.cargo/credentials.toml; mv ~/.cargo/credentials.toml ~/.cargo/x; ln ~/.cargo/credentials.toml \
                  ~/.cargo/y; rm ~/.cargo/credentials.toml; echo x > ~/.cargo/new; cat ~/.cargo/new ~/.cargo/x";
    let output = world
        .script(&[], script)
        .env("PIP_CACHE_DIR", world.in_home(".cargo"))
        .output()
        .expect("kennel runs");
    assert_eq!(stdout(&output), "x", "{output:?}");
    assert_eq!(fs::read_to_string(world.in_home(".cargo/credentials.toml")).expect("a file"), "token");
}

#[test]
fn link_that_commands_made_shows_no_cache() {
    let world = world();
    fs::create_dir_all(world.in_home("project/data")).expect("a directory");
    symlink(world.in_home("project"), world.at("cache")).expect("a link");
    let output = world
        .script(&[], "ls -A $PIP_CACHE_DIR/; ls ~")
        .env("PIP_CACHE_DIR", world.at("cache"))
        .output()
        .expect("kennel runs");
    assert!(!stdout(&output).contains("data") && !stdout(&output).contains("project"), "{output:?}");
    // The same link from a place that no command writes to.
    symlink(world.at("cache"), world.in_home("link")).expect("a link");
    let output = world
        .script(&[], "ls -A $PIP_CACHE_DIR/")
        .env("PIP_CACHE_DIR", world.in_home("link"))
        .output()
        .expect("kennel runs");
    assert!(!stdout(&output).contains("data"), "{output:?}");
}

#[test]
fn changes_are_out_of_reach_except_through_the_cache() {
    require_layers!();
    let world = world();
    let script = "echo x > ~/.npm/_cacache/new; ls /run/layers; cat /run/layers/0/upper/.npm/_cacache/new; \
                  chmod 700 /run/layers; mv /run/layers /run/x";
    let output = world.run(&[], script);
    assert_eq!(stdout(&output), "", "{output:?}");
    let said = stderr(&output);
    assert_eq!(said.matches("Permission denied").count(), 2, "{said}");
    assert_eq!(said.matches("Read-only file system").count(), 2, "{said}");
}

#[test]
fn changes_count_as_private_files() {
    require_layers!();
    let world = world();
    let flags = ["--tmp-size", "1M"];
    let output = world.run(&flags, "dd if=/dev/zero of=$HOME/.npm/_cacache/new bs=64k count=32 2>&1");
    assert!(stdout(&output).contains("No space left on device"), "{output:?}");
}

#[test]
fn caches_outside_of_home_are_made_where_their_variable_says() {
    require_layers!();
    let (world, elsewhere) = (world(), workspace());
    let base = elsewhere.path().join("base");
    fs::create_dir_all(base.join("pip")).expect("a directory");
    fs::write(base.join("pip/old"), "of the host").expect("a file");
    let script = "cat $XDG_CACHE_HOME/pip/old; mkdir $XDG_CACHE_HOME/uv; echo x > $XDG_CACHE_HOME/pip/new; \
                  echo x > $npm_config_cache/new; ls $XDG_CACHE_HOME/pip $npm_config_cache";
    let output = world
        .script(&[], script)
        .env("XDG_CACHE_HOME", &base)
        .env("npm_config_cache", elsewhere.path().join("npm"))
        .output()
        .expect("kennel runs");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read_dir(base.join("pip")).expect("a directory").count(), 1);
    assert!(!elsewhere.path().join("npm").exists() && !base.join("uv").exists());
}

#[test]
fn modes_of_a_cache_are_those_of_the_host() {
    require_layers!();
    let world = world();
    let cache = world.in_home(".npm/_cacache");
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o750)).expect("a mode");
    fs::set_permissions(cache.join("old"), fs::Permissions::from_mode(0o440)).expect("a mode");
    let script = "stat -c %a ~/.npm/_cacache ~/.npm/_cacache/old; echo x > ~/.npm/_cacache/old; cat ~/.npm/_cacache/old";
    let output = world.run(&[], script);
    assert_eq!(stdout(&output), "750\n440\nof the host", "{output:?}");
    assert!(stderr(&output).contains("Permission denied"), "{output:?}");
}

#[test]
fn usual_start_has_nothing_to_say_about_caches() {
    require_layers!();
    let world = world();
    let output = world.script(&[], "true").output().expect("kennel runs");
    assert_eq!(stderr(&output), "", "{output:?}");
    let (_, report) = report(world.path(), &[], &["true"]);
    assert_eq!(report["enforcement"]["notes"], serde_json::json!([]));
    let said = fails(world.path(), &["--caches", "read-only", "--explain"], "touch ~/.cache/x/y");
    assert!(said.contains("No such file"), "{said}");
}

#[test]
fn commands_of_a_session_share_the_layer_and_leave_the_host_alone() {
    require_layers!();
    let world = world();
    let before = state(world.home());
    for (isolation, life) in [("command", "exec"), ("command", "session"), ("session", "exec")] {
        let session = Hosted::start_for(world.home(), &["--isolation", isolation, "--tmp", life]);
        let output = session.shell("echo new > ~/.npm/_cacache/new; rm ~/.npm/_cacache/old; touch ~/own");
        assert!(output.status.success(), "{life}: {output:?}");
        let script =
            "cat ~/.npm/_cacache/*; mv ~/.npm ~/moved; mv ~/.npm/_cacache ~/.npm/x; ls /run/layers; ls ~/own";
        let output = session.shell(script);
        assert_eq!(stdout(&output).lines().next(), Some("new"), "{life}: {output:?}");
        let is_shared = [isolation, life].contains(&"session");
        assert_eq!(stdout(&output).contains("own"), is_shared, "{isolation} {life}: {output:?}");
        assert!(stderr(&output).contains("'/run/layers': Permission denied"), "{life}: {output:?}");
        assert_eq!(stdout(&session.shell("cat ~/.npm/_cacache/*")), "new", "{life}");
    }
    assert_eq!(state(world.home()), before);
}

#[test]
fn without_layers_caches_start_empty_and_toolchains_are_read_only() {
    if crate::overlay::in_memory() {
        return skip(module_path!(), "this kernel is new enough");
    }
    let world = world();
    let before = state(world.home());
    let script = "echo x > ~/.npm/_cacache/new; cat ~/.npm/_cacache/*; ls ~/.cargo/bin; touch ~/.cargo/bin/x";
    let output = world.run(&[], script);
    assert_eq!(stdout(&output), "x\ntool", "{output:?}");
    assert!(stderr(&output).contains("Read-only file system"), "{output:?}");
    assert!(stderr(&output).contains("note: Linux"), "{output:?}");
    assert_eq!(state(world.home()), before);
}

/// What tools keep in a home, and whether it is a cache, which commands add to.
const KEPT_IN_HOMES: &[(&str, bool)] = &[
    (".fonts", false),
    (".local/share/fonts", false),
    (".local/share/jupyter/kernels", false),
    (".local/share/gem/ruby", false),
    (".gem/ruby", false),
    (".rvm/rubies", false),
    ("R/x86_64-pc-linux-gnu-library", false),
    (".julia/environments", false),
    (".julia/packages", true),
    ("nltk_data", true),
    (".cache/matplotlib", true),
    (".cache/fontconfig", true),
];

#[test]
fn fonts_and_libraries_of_a_home_are_visible_and_stay_as_they_are() {
    require_layers!();
    let world = World::new();
    for (path, _) in KEPT_IN_HOMES {
        fs::create_dir_all(world.in_home(path)).expect("a directory");
        fs::write(world.in_home(path).join("file"), *path).expect("a file");
    }
    for name in [".local/share/jupyter/runtime", "R/work", ".julia/logs"] {
        fs::create_dir_all(world.in_home(name)).expect("a directory");
        fs::write(world.in_home(name).join("file"), "private").expect("a file");
    }
    let before = state(world.home());
    for (path, is_cache) in KEPT_IN_HOMES {
        let file = format!("~/{path}/file");
        let output = world.run(&[], &format!("cat {file} && echo x > {file} && cat {file}"));
        assert_eq!(stdout(&output), format!("{path}x"), "{output:?}");
        let output = world.run(&["--caches", "read-only"], &format!("cat {file}; echo x > {file}"));
        assert_eq!(stdout(&output), *path, "{output:?}");
        assert!(stderr(&output).contains("Read-only file system"), "{output:?}");
        let output = world.run(&["--caches", "none"], &format!("cat {file}"));
        assert_eq!(stdout(&output), if *is_cache { "" } else { path }, "{output:?}");
    }
    let output = world.run(&[], "cat ~/.local/share/jupyter/runtime/file ~/R/work/file ~/.julia/logs/file");
    assert_eq!(stdout(&output), "", "{output:?}");
    assert_eq!(state(world.home()), before);
    // The first of several directories.
    let mut command = world.script(&[], "cat ~/elsewhere/packages/file; echo $JULIA_DEPOT_PATH");
    fs::rename(world.in_home(".julia"), world.in_home("elsewhere")).expect("renamed");
    let paths = format!("{}:", world.in_home("elsewhere").display());
    let output = command.env("JULIA_DEPOT_PATH", &paths).output().expect("kennel runs");
    assert_eq!(stdout(&output), format!(".julia/packages{paths}"), "{output:?}");
}
