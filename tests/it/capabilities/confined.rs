//! Declared access is granted, and nothing else.

use std::{fs, net::TcpListener, os::unix::fs::symlink, path::Path};

use kennel::capabilities::{Capabilities, Layer, resolve_layer, wrap_command};

use super::{Place, offline, reading, writing};
use crate::support::{is_alone, payload_path, workspace};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn working_directory_is_readable_and_writable() {
    let place = Place::new();
    fs::write(place.path().join("in"), "read me").unwrap();
    for caps in [offline(), writing(&[&"cwd"]), reading(&[&"/srv"])] {
        let said = place.shell(&caps, "cat in; echo written > out; mkdir -p d; mv out d/out").await;
        assert_eq!(said, "read me", "{caps:?}");
        assert_eq!(fs::read_to_string(place.path().join("d/out")).unwrap(), "written\n");
        fs::remove_dir_all(place.path().join("d")).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_system_is_read_only_and_other_paths_do_not_exist() {
    let (place, outside) = (Place::new(), workspace());
    let secret = outside.path().join("secret");
    fs::write(&secret, "outside").unwrap();
    let path = secret.to_str().unwrap();
    assert_eq!(place.attempt(&offline(), &["read", path]).await, "ENOENT");
    let said = place.shell(&offline(), "touch /usr/kennel-x /etc/kennel-x").await;
    assert_eq!(said.matches("Read-only file system").count(), 2, "{said}");
    // At its path the sandbox has a file of its own.
    place.shell(&offline(), &format!("mkdir -p {0}; echo evil > {path}", outside.path().display())).await;
    assert_eq!(fs::read_to_string(&secret).unwrap(), "outside");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_paths_are_writable_and_their_neighbours_are_not() {
    let (place, outside) = (Place::new(), workspace());
    let (out, beside) = (outside.path().join("out"), outside.path().join("beside"));
    fs::create_dir(&out).unwrap();
    fs::write(&beside, "untouched").unwrap();
    let caps = writing(&[&out]);
    let script = format!("echo yes > {0}/x; echo no > {1}; cat {1}", out.display(), beside.display());
    let said = place.shell(&caps, &script).await;
    assert_eq!(fs::read_to_string(out.join("x")).unwrap(), "yes\n");
    assert_eq!(fs::read_to_string(&beside).unwrap(), "untouched");
    assert_eq!(said, "no", "in a place of the sandbox's own");
    // A single file, too.
    let said = place.shell(&writing(&[&beside]), &format!("echo now > {}", beside.display())).await;
    assert_eq!((said.as_str(), fs::read_to_string(&beside).unwrap().as_str()), ("", "now\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_paths_can_be_read_and_not_written() {
    let (place, outside) = (Place::new(), workspace());
    let (shown, hidden) = (outside.path().join("shown"), outside.path().join("hidden"));
    fs::write(&shown, "shown").unwrap();
    fs::write(&hidden, "hidden").unwrap();
    let caps = reading(&[&shown]);
    let said = place.attempt(&caps, &["read", shown.to_str().unwrap(), hidden.to_str().unwrap()]).await;
    assert_eq!(said, "[shown]\nENOENT");
    let said = place.shell(&caps, &format!("echo x > {}", shown.display())).await;
    assert!(said.contains("Read-only file system"), "{said}");
    assert_eq!(fs::read_to_string(&shown).unwrap(), "shown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_is_declared_twice_stays_writable() {
    let (place, outside, own) = (Place::new(), workspace(), workspace());
    fs::create_dir(place.path().join("sub")).unwrap();
    fs::create_dir(outside.path().join("sub")).unwrap();
    let link = own.path().join("link");
    symlink(place.path().join("sub"), &link).unwrap();
    let caps = Capabilities {
        read_paths: vec!["cwd".into(), "sub".into(), outside.path().join("sub"), link],
        ..writing(&[&outside.path()])
    };
    let script = format!("echo 1 > x; echo 2 > sub/x; echo 3 > {}/sub/x", outside.path().display());
    assert_eq!(place.shell(&caps, &script).await, "");
    assert_eq!(fs::read_to_string(outside.path().join("sub/x")).unwrap(), "3\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_around_the_working_directory_leaves_it_writable() {
    let place = Place::new();
    let (inner, beside) = (place.path().join("inner"), place.path().join("beside"));
    fs::create_dir(&inner).unwrap();
    fs::write(&beside, "beside").unwrap();
    let (mut command, _) = place
        .wrapper
        .wrap("sh", ["-c", "cat ../beside; echo x > ../beside; echo y > mine"], &inner, &reading(&[&".."]))
        .await
        .unwrap();
    let output = command.env("LC_ALL", "C").output().await.unwrap();
    assert_eq!(output.stdout, b"beside");
    assert!(String::from_utf8_lossy(&output.stderr).contains("Read-only file system"), "{output:?}");
    assert_eq!(fs::read_to_string(inner.join("mine")).unwrap(), "y\n");
    assert_eq!(fs::read_to_string(&beside).unwrap(), "beside");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_net_nothing_is_reached() {
    let place = Place::new();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap().to_string();
    let there = ["connect", &address, "192.0.2.1:80"];
    assert_eq!(place.attempt(&offline(), &there).await, "ECONNREFUSED\nENETUNREACH");
    server.set_nonblocking(true).unwrap();
    assert!(server.accept().is_err(), "nobody came");
    assert_eq!(place.attempt(&offline(), &["loopback"]).await, "ok\nok", "but its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn net_in_a_layer_is_the_hosts() {
    let place = Place::new();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap().to_string();
    assert_eq!(place.attempt(&writing(&[&"cwd"]), &["connect", &address]).await, "ok");
    server.accept().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_in_a_declared_home_stay_hidden_unless_they_are_named() {
    let test = "capabilities::confined::secrets_in_a_declared_home_stay_hidden_unless_they_are_named";
    let home = workspace();
    fs::create_dir(home.path().join(".ssh")).unwrap();
    fs::write(home.path().join(".ssh/key"), "secret").unwrap();
    fs::write(home.path().join("notes"), "notes").unwrap();
    if !is_alone(test, &format!("exec env HOME={} \"$@\"", home.path().display())) {
        return;
    }
    let home = std::env::home_dir().unwrap();
    let place = Place::new();
    let files = [home.join("notes"), home.join(".ssh/key")].map(|path| path.display().to_string());
    let read = ["read", &files[0], &files[1]];
    assert_eq!(place.attempt(&offline(), &read).await, "ENOENT\nENOENT");
    assert_eq!(place.attempt(&reading(&[&"~/"]), &read).await, "[notes]\nENOENT");
    assert_eq!(place.attempt(&reading(&[&"~/", &"~/.ssh"]), &read).await, "[notes]\n[secret]");
    // Nor does a kept session show a secret that was made later.
    fs::write(home.join(".netrc"), "secret").unwrap();
    let read = ["read", &files[0], &home.join(".netrc").display().to_string()];
    assert_eq!(place.attempt(&reading(&[&"~/"]), &read).await, "[notes]\n[]");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn toolchains_are_granted_by_default_and_not_with_a_list() {
    let test = "capabilities::confined::toolchains_are_granted_by_default_and_not_with_a_list";
    let home = workspace();
    fs::create_dir_all(home.path().join(".cargo/bin")).unwrap();
    fs::write(home.path().join(".cargo/bin/tool"), "tool").unwrap();
    if !is_alone(test, &format!("exec env -u CARGO_HOME HOME={} \"$@\"", home.path().display())) {
        return;
    }
    let place = Place::new();
    let tool = std::env::home_dir().unwrap().join(".cargo/bin/tool").display().to_string();
    assert_eq!(place.attempt(&offline(), &["read", &tool]).await, "[tool]");
    assert_eq!(place.attempt(&reading(&[&"/usr"]), &["read", &tool]).await, "ENOENT");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissive_capabilities_run_with_the_rails_alone() {
    let place = Place::new();
    let caps = Capabilities::default();
    assert_eq!(resolve_layer(&caps), Layer::Lightweight);
    let (output, layer) = place.output(&caps, "sh", &["-c", "pwd; readlink /proc/self/ns/user"]).await;
    assert_eq!(layer, Layer::Lightweight);
    let own = fs::read_link("/proc/self/ns/user").unwrap();
    let expected = format!("{}\n{}\n", place.path().display(), own.display());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    assert_eq!((place.wrapper.sessions(), place.left()), (0, Vec::new()), "nothing was prepared");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_named_layer_is_the_one_in_force() {
    let dir = workspace();
    assert_eq!(resolve_layer(&offline()), Layer::LinuxNamespaces);
    let (mut command, layer) =
        wrap_command("readlink", ["/proc/self/ns/user"], dir.path(), &offline()).await.unwrap();
    assert_eq!(layer, Layer::LinuxNamespaces);
    let inside = String::from_utf8(command.output().await.unwrap().stdout).unwrap();
    let own = fs::read_link("/proc/self/ns/user").unwrap();
    assert!(inside.starts_with("user:") && inside.trim_end() != own.to_str().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_that_cannot_be_granted_are_named() {
    let place = Place::new();
    for (caps, words) in [
        (writing(&[&"/absent/x"]), "write path /absent/x"),
        (reading(&[&"/absent/x"]), "read path /absent/x"),
        (reading(&[&""]), "is empty"),
        (writing(&[&"~root/x"]), "another user's home"),
        (reading(&[&"a\0b"]), "read path a"),
        (writing(&[&"/"]), "host's /proc"),
        (reading(&[&"/proc/1"]), "own /proc"),
    ] {
        let error = place.wrapper.wrap("true", [""; 0], place.path(), &caps).await.unwrap_err();
        assert!(error.chain().contains(words), "{}", error.chain());
        assert_eq!(place.wrapper.sessions(), 0);
    }
    let error = place.wrapper.wrap("true", [""; 0], "/usr", &offline()).await.unwrap_err();
    assert!(error.chain().contains("/usr") && error.remedy().is_some(), "{}", error.chain());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_that_does_not_exist_yet_is_made_and_nothing_else_is() {
    let (place, outside) = (Place::new(), workspace());
    let cache = outside.path().join("cache");
    let caps = writing(&[&cache, &"out/log"]);
    let script = format!("echo 1 > {}/x; mkdir out; echo 2 > out/log", cache.display());
    assert_eq!(place.shell(&caps, &script).await, "");
    assert_eq!(fs::read_to_string(cache.join("x")).unwrap(), "1\n");
    assert_eq!(fs::read_to_string(place.path().join("out/log")).unwrap(), "2\n");
    // The next command finds it, and what was not declared is not there.
    let said = place.shell(&caps, &format!("cat {0}/x; echo x > {0}/../y", cache.display())).await;
    assert_eq!(said, "1");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    let deep = writing(&[&outside.path().join("a/b")]);
    let error = place.wrapper.wrap("true", [""; 0], place.path(), &deep).await.unwrap_err();
    assert!(error.chain().contains("nor does the directory for it"), "{}", error.chain());
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_root_can_be_read_without_its_secrets_and_not_written() {
    let test = "capabilities::confined::the_root_can_be_read_without_its_secrets_and_not_written";
    let home = workspace();
    fs::create_dir(home.path().join(".ssh")).unwrap();
    fs::create_dir(home.path().join(".aws")).unwrap();
    for (name, text) in [(".ssh/key", "secret"), (".aws/key", "secret"), ("notes", "notes")] {
        fs::write(home.path().join(name), text).unwrap();
    }
    if !is_alone(test, &format!("exec env HOME={} \"$@\"", home.path().display())) {
        return;
    }
    let home = std::env::home_dir().unwrap();
    let place = Place::new();
    let files = ["notes", ".ssh/key", ".aws/key"].map(|name| home.join(name).display().to_string());
    let read = ["read", &files[0], &files[1], &files[2]];
    // Temporary files of the host are not part of it, so this home is named.
    assert_eq!(place.attempt(&reading(&[&"/"]), &read).await, "ENOENT\nENOENT\nENOENT");
    let named = reading(&[&"/", &"~/"]);
    assert_eq!(place.attempt(&named, &read).await, "[notes]\nENOENT\nENOENT");
    let named = reading(&[&"/", &"~/", &"~/.ssh"]);
    assert_eq!(place.attempt(&named, &read).await, "[notes]\n[secret]\nENOENT");
    let elsewhere = format!("test -e {} && echo there", payload_path().display());
    assert_eq!(place.shell(&offline(), &elsewhere).await, "");
    for root in ["/", "//.", "/usr/.."] {
        assert_eq!(place.shell(&reading(&[&root]), &elsewhere).await, "there", "{root}");
        assert_eq!(place.shell(&reading(&[&root]), "cat /etc/shadow 2>&- || echo hidden").await, "hidden");
    }
    let said = place.shell(&reading(&[&"/"]), "echo x > /usr/kennel-x; echo y > mine").await;
    assert!(said.contains("Read-only file system"), "{said}");
    assert_eq!(fs::read_to_string(place.path().join("mine")).unwrap(), "y\n");
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap().to_string();
    let offline = Capabilities { net: false, ..reading(&[&"/"]) };
    assert_eq!(place.attempt(&offline, &["connect", &address]).await, "ECONNREFUSED");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_git_obeys_stays_read_only_unless_it_is_named() {
    let place = Place::new();
    let hooks = place.path().join(".git/hooks");
    fs::create_dir_all(&hooks).unwrap();
    fs::write(place.path().join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
    fs::create_dir(place.path().join(".git/objects")).unwrap();
    fs::create_dir(place.path().join(".git/refs")).unwrap();
    let script = "echo x > .git/hooks/pre-commit; echo y > .git/description";
    let said = place.shell(&offline(), script).await;
    assert!(said.contains("Read-only file system"), "{said}");
    assert_eq!(fs::read_dir(&hooks).unwrap().count(), 0);
    assert_eq!(place.shell(&writing(&[&".git/hooks"]), script).await, "");
    assert_eq!(fs::read_to_string(hooks.join("pre-commit")).unwrap(), "x\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_that_commands_could_have_made_grant_nothing() {
    let (place, private) = (Place::new(), workspace());
    fs::write(private.path().join("key"), "secret").unwrap();
    let (private, key) = (private.path().display(), private.path().join("key"));
    let plant = format!("ln -s {private} led; mkdir sub; ln -s {private} sub/up; ln -s led again");
    assert_eq!(place.shell(&offline(), &plant).await, "");
    let planted = place.path().join("led");
    for named in
        [Path::new("led"), Path::new("led/key"), Path::new("sub/up/key"), Path::new("again"), &planted]
    {
        for caps in [writing(&[&named]), reading(&[&named])] {
            let error = place.wrapper.wrap("true", [""; 0], place.path(), &caps).await.unwrap_err();
            let said = error.chain();
            assert!(said.contains("commands could have made the link"), "{}: {said}", named.display());
            assert!(said.contains(named.to_str().unwrap()) && error.remedy().is_some(), "{said}");
        }
    }
    // A link of the user is followed, and its target can be named.
    let own = workspace();
    symlink(&key, own.path().join("own")).unwrap();
    let (own, key) = (own.path().join("own"), key.as_path());
    for named in [own.as_path(), key] {
        assert_eq!(place.shell(&reading(&[&named]), &format!("cat {}", key.display())).await, "secret");
    }
}
