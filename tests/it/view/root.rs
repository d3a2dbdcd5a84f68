//! Another root file system: what commands see of it and change, who they are there, and what of the host is
//! left.

use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::Path,
};

use kennel::{Error, Isolation, Policy, Session};

use crate::support::{
    TempDir, World, fails, is_without_user_namespace, only_as_root, other_root, refused, require_root, run,
    shell, skip, stderr, stdout, succeeds, workspace,
};

/// The flags for a root, before others.
fn flags<'f>(root: &'f TempDir, more: &[&'f str]) -> Vec<&'f str> {
    [&["--root", root.path().to_str().unwrap()], more].concat()
}

#[test]
fn commands_see_the_root_and_nothing_of_the_host() {
    require_root!();
    let (root, here) = (other_root(), workspace());
    let names = succeeds(here.path(), &flags(&root, &[]), "pwd; ls /");
    let expected = "/ bin dev etc lib lib64 proc root sys tmp usr";
    assert_eq!(names.split_whitespace().collect::<Vec<_>>().join(" "), expected);
    for path in [here.path(), root.path(), Path::new("/usr/share"), Path::new("/home"), Path::new("/run")] {
        let said = fails(here.path(), &flags(&root, &[]), &format!("ls {}", path.display()));
        assert!(said.contains("No such file or directory"), "{said}");
    }
    let script =
        "cat /etc/hostname /etc/hosts; ls /dev /sys; cat /proc/1/comm; echo > /dev/null; ls -d /dev/shm";
    let said = succeeds(here.path(), &flags(&root, &[]), script);
    assert!(said.starts_with("kennel\n127.0.0.1 localhost kennel\n"), "{said}");
    for there in ["null", "pts", "shm", "devices", "urandom"] {
        assert!(said.lines().any(|line| line == there), "{there}: {said}");
    }
}

#[test]
fn commands_are_root_or_the_user_that_is_named() {
    require_root!();
    if is_without_user_namespace() {
        return skip(module_path!(), "root has no user namespace here");
    }
    let (root, here) = (other_root(), workspace());
    for (user, ids, home) in [
        (None, "0 0", "/root"),
        (Some("guest"), "7 8", "/home/guest"),
        (Some("7"), "7 8", "/home/guest"),
        (Some("guest:staff"), "7 50", "/home/guest"),
        (Some("1234:5678"), "1234 5678", "/"),
    ] {
        let more = user.map(|user| vec!["--user", user]).unwrap_or_default();
        let script = "echo $(id -u) $(id -g); echo $HOME; touch /new; stat -c '%u %g' /new /usr/bin";
        let expected = format!("{ids}\n{home}\n{ids}\n{ids}");
        assert_eq!(succeeds(here.path(), &flags(&root, &more), script), expected, "{user:?}");
    }
    let said = refused(here.path(), &flags(&root, &["--user", "nobody"]));
    assert!(said.contains("user `nobody`: the root has no such user in /etc/passwd"), "{said}");
    let said = refused(here.path(), &flags(&root, &["--user", "guest:wheel"]));
    assert!(said.contains("no such group in /etc/group"), "{said}");
    let said = refused(here.path(), &["--user", "guest"]);
    assert!(said.contains("commands on the host's system are the caller"), "{said}");
}

#[test]
fn changes_are_in_memory_and_end_with_the_sandbox() {
    require_root!();
    let (root, here) = (other_root(), workspace());
    let before = tree(root.path());
    let script = "touch /new; mkdir -p /opt/a; rm /usr/bin/touch; echo x >> /etc/passwd; chmod 700 /etc; mv /root /root2; \
                  ln -s a /opt/b; ls / /opt /usr/bin";
    let names = succeeds(here.path(), &flags(&root, &[]), script);
    assert!(names.contains("root2") && names.contains("new") && !names.contains("touch"), "{names}");
    assert_eq!(tree(root.path()), before);
    let said =
        fails(here.path(), &flags(&root, &["--tmp-size", "1M"]), "dd if=/dev/zero of=/f bs=64k count=32");
    assert!(said.contains("No space left on device"), "{said}");
    let output =
        shell(here.path(), &flags(&root, &["--tmp-size", "1M"]), "dd if=/dev/zero of=/f bs=64k count=32");
    assert!(stderr(&output).contains("--tmp-size"), "{output:?}");
    for attempt in ["touch /new", "rm /etc/passwd", "mkdir /tmp/x", "mv /root /root2"] {
        let said = fails(here.path(), &flags(&root, &["--profile", "read-only"]), attempt);
        assert!(said.contains("Read-only file system"), "{attempt}: {said}");
    }
}

/// All paths below a directory, with modes, sizes and times.
fn tree(top: &Path) -> Vec<(std::path::PathBuf, u32, u64, i64)> {
    let (mut found, mut next) = (Vec::new(), vec![top.to_owned()]);
    while let Some(path) = next.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        if metadata.is_dir() {
            next.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.push((path, metadata.mode(), metadata.size(), metadata.mtime()));
    }
    found.sort();
    found
}

#[test]
fn the_workspace_is_there_if_somebody_names_it() {
    require_root!();
    let (root, here) = (other_root(), workspace());
    let path = here.path().to_str().unwrap();
    assert_eq!(succeeds(here.path(), &flags(&root, &["--workspace", "."]), "pwd; echo 1 > made"), path);
    assert_eq!(fs::read_to_string(here.path().join("made")).unwrap(), "1\n");
    let data = format!("{path}:/data");
    let script = "cat /data/made; echo 2 > /data/made; cat /scratch/none || touch /scratch/x";
    let output = shell(here.path(), &flags(&root, &["--rw", &data, "--tmpfs", "/scratch"]), script);
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(0), "1"), "{output:?}");
    assert_eq!(fs::read_to_string(here.path().join("made")).unwrap(), "2\n");
    // Policy files too, and paths in them start at the directory of the file.
    let there = root.path().display();
    fs::write(here.path().join("none.toml"), format!("root = '{there}'\nuser = '0'")).unwrap();
    fs::write(here.path().join("some.toml"), format!("root = '{there}'\nworkspace = '.'")).unwrap();
    assert_eq!(succeeds(here.path(), &["--policy", "none.toml"], "pwd"), "/");
    assert_eq!(succeeds(here.path(), &["--policy", "some.toml"], "pwd"), path);
    let said = refused(here.path(), &flags(&root, &["--protect", "x"]));
    assert!(said.contains("there is no workspace"), "{said}");
    let said = refused(here.path(), &flags(&root, &["--overlay"]));
    assert!(said.contains("there is no workspace"), "{said}");
    let said = refused(here.path(), &flags(&root, &["--env", "inherit"]));
    assert!(said.contains("name each variable in env.pass"), "{said}");
}

#[test]
fn the_environment_is_that_of_the_root() {
    require_root!();
    let (root, world) = (other_root(), World::new());
    let run = |more: &[&str]| {
        let flags = flags(&root, more);
        let mut kennel = world.script(&flags, "env");
        kennel.env("EDITOR", "vi").env("LC_TIME", "C").env("TERM", "dumb").env("PATH", "/usr/bin:/opt/mine");
        let output = kennel.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        stdout(&output)
    };
    let usual = run(&["--net", "none"]);
    let has = |text: &str, line: &str| text.lines().any(|other| other == line);
    for line in ["HOME=/root", "TERM=dumb", "LC_TIME=C"] {
        assert!(has(&usual, line), "{line}: {usual}");
    }
    assert!(has(&usual, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), "{usual}");
    assert!(!usual.contains("EDITOR") && !usual.contains("XDG"), "{usual}");
    let named = run(&["--pass-env", "EDITOR", "--setenv", "A=1", "--setenv", "PATH=/bin"]);
    assert!(has(&named, "EDITOR=vi") && has(&named, "A=1") && has(&named, "PATH=/bin"), "{named}");
}

#[test]
fn links_of_the_root_lead_nowhere_else() {
    require_root!();
    let (root, here, outside) = (other_root(), workspace(), workspace());
    let at = |name: &str| root.path().join(name);
    fs::create_dir(at("srv")).unwrap();
    symlink("srv/homes", at("home")).unwrap();
    symlink(outside.path(), at("out")).unwrap();
    symlink(outside.path().join("resolv.conf"), at("etc/resolv.conf")).unwrap();
    symlink("../../../../../../../../srv/hosts", at("etc/hosts")).unwrap();
    fs::write(here.path().join("f"), "x").unwrap();
    let [home, out] = ["/home/me", "/out/x"].map(|place| format!("{}:{place}", here.path().display()));
    let script = "cat /home/me/f /srv/homes/me/f /out/x/f; readlink /home /etc/resolv.conf; cat /etc/hosts";
    let said = succeeds(here.path(), &flags(&root, &["--ro", &home, "--ro", &out]), script);
    let expected = format!("xxxsrv/homes\n{}/resolv.conf\n127.0.0.1 localhost", outside.path().display());
    assert!(said.starts_with(&expected), "{said}");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "nothing was made on the host");
}

#[test]
fn places_of_kennel_are_never_links_of_the_root() {
    require_root!();
    let (here, outside) = (workspace(), workspace());
    for name in ["dev", "proc", "sys"] {
        let root = other_root();
        let at = root.path().join(name);
        for make in [
            |at: &Path, to: &Path| symlink(to, at).unwrap(),
            |at: &Path, _: &Path| fs::write(at, "").unwrap(),
        ] {
            make(&at, outside.path());
            let said = refused(here.path(), &flags(&root, &[]));
            assert!(said.contains(&format!("root /{name}: is no directory there")), "{said}");
            fs::remove_file(&at).unwrap();
        }
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "nothing was made on the host");
    // What /dev of the root has is hidden, links too.
    let root = other_root();
    fs::create_dir(root.path().join("dev")).unwrap();
    for (name, to) in [("fd", "/proc/self/fd"), ("null", "/etc/passwd"), ("shm", "/tmp"), (".kennel", "/etc")]
    {
        symlink(to, root.path().join("dev").join(name)).unwrap();
    }
    let script = "echo x > /dev/null; stat -c %F /dev/null /dev/shm; readlink /dev/fd";
    let expected = "character special file\ndirectory\n/proc/self/fd";
    assert_eq!(succeeds(here.path(), &flags(&root, &[]), script), expected);
}

#[test]
fn masks_and_files_of_the_policy_are_over_the_root() {
    require_root!();
    let (root, here) = (other_root(), workspace());
    fs::write(root.path().join("etc/secret"), "x").unwrap();
    fs::create_dir_all(root.path().join("var/secrets/a")).unwrap();
    let more = ["--mask", "/etc/secret", "--mask", "/var/secrets", "--mask", "/none"];
    let output = shell(here.path(), &flags(&root, &more), "cat /etc/secret; ls /var/secrets; ls /none");
    assert_eq!(stdout(&output), "", "{output:?}");
    let said = stderr(&output);
    assert!(
        said.contains("/none: nothing is visible there") && said.contains("'/none': No such file"),
        "{said}"
    );
    let policy = format!(
        "root = '{}'\nmounts = [{{ type = 'file', target = '/etc/own', contents = 'own' }},\n\
         {{ type = 'file', target = '/etc/passwd', contents = 'mine' }}]",
        root.path().display()
    );
    fs::write(here.path().join("p.toml"), policy).unwrap();
    assert_eq!(succeeds(here.path(), &["--policy", "p.toml"], "cat /etc/own /etc/passwd"), "ownmine");
}

#[test]
fn roots_that_cannot_be_used_are_refused() {
    require_root!();
    let here = workspace();
    fs::write(here.path().join("file"), "").unwrap();
    for (given, why) in [
        ("none", "none: No such file or directory"),
        ("file", "file: not a directory"),
        ("/", "would show the host's /proc"),
        ("/proc/self/root", "the sandbox has its own /proc"),
    ] {
        let said = refused(here.path(), &["--root", given]);
        assert!(said.contains(why), "{given}: {said}");
    }
    let empty = workspace();
    let output = run(here.path(), &flags(&empty, &[]), &["sh"]);
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    assert!(stderr(&output).contains("sh: not found in the sandbox"), "{output:?}");
}

/// In a root, nothing covers secrets.
#[test]
fn a_root_with_known_secrets_is_refused() {
    require_root!();
    let world = World::new();
    fs::create_dir_all(world.in_home(".ssh/keys")).unwrap();
    fs::create_dir(world.in_home("system")).unwrap();
    let run = |at: &str| {
        let at = world.in_home(at);
        let output = world.run(&["--root", at.to_str().unwrap()], "true");
        (output.status.code(), stderr(&output))
    };
    for at in ["", ".ssh", ".ssh/keys"] {
        let (status, said) = run(at);
        assert!(status == Some(125) && said.contains("a known place of secrets"), "{at}: {said}");
    }
    let (status, said) = run("system");
    assert!(status == Some(127) && said.contains("not found in the sandbox"), "{said}");
}

#[test]
fn a_root_in_a_file_system_of_the_kernel_is_refused() {
    only_as_root!();
    require_root!();
    for at in ["/sys/kernel", "/dev/shm/../../sys/fs"] {
        let said = refused(workspace().path(), &["--root", at]);
        assert!(said.contains("kernel file system"), "{at}: {said}");
    }
}

#[test]
fn a_root_of_another_user_is_refused() {
    only_as_root!();
    require_root!();
    let (root, here) = (other_root(), workspace());
    nix::unistd::chown(root.path(), Some(1000.into()), None).unwrap();
    let said = refused(here.path(), &flags(&root, &[]));
    assert!(said.contains("belongs to uid 1000") && said.contains("copy it as yourself"), "{said}");
}

/// What one command changes is there for the next one, and grants stay where they are.
#[tokio::test]
async fn a_session_keeps_changes_and_grants_in_their_places() {
    require_root!();
    for isolation in [Isolation::Command, Isolation::Session] {
        let (root, here) = (other_root(), workspace());
        fs::create_dir_all(here.path().join("sub/.git/hooks")).unwrap();
        let path = here.path().to_str().unwrap();
        let policy = Policy { workspace: here.path().into(), ..Policy::default() };
        let policy = policy.root(root.path()).isolation(isolation).tmpfs("/deep/scratch", None);
        let session = Session::prepare(&policy).await.unwrap();
        let run = async |script: &str| {
            let output = session.command("sh").args(["-c", script]).output().await.unwrap();
            (output.outcome.status.code(), String::from_utf8(output.stdout).unwrap())
        };
        let first =
            "echo 1 > /made; mkdir /opt; echo 2 > /opt/x; rm /usr/bin/touch; echo 3 > /deep/scratch/x";
        assert_eq!(run(first).await.0, Some(0), "{isolation:?}");
        assert_eq!(
            run("cat /made /opt/x; ls /usr/bin/touch").await,
            (Some(2), "1\n2\n".into()),
            "{isolation:?}"
        );
        let top = format!("/{}", path.split('/').nth(1).unwrap());
        for busy in ["/dev", "/proc", "/sys", "/deep", &top, path] {
            let (status, _) = run(&format!("mv {busy} /moved")).await;
            assert_ne!(status, Some(0), "{isolation:?}: {busy}");
        }
        assert_eq!(run("pwd; echo w > written").await, (Some(0), format!("{path}\n")), "{isolation:?}");
        assert_ne!(run("echo evil > sub/.git/hooks/pre-commit").await.0, Some(0), "{isolation:?}");
        session.write("/opt/file", "from outside").await.unwrap();
        assert_eq!(run("cat /opt/file").await, (Some(0), "from outside".into()), "{isolation:?}");
        assert_eq!(session.read("/made").await.unwrap(), b"1\n");
        session.shutdown().await;
        assert_eq!(fs::read(here.path().join("written")).unwrap(), b"w\n");
        assert!(!root.path().join("made").exists() && root.path().join("usr/bin/touch").exists());
    }
}

#[tokio::test]
async fn a_root_that_is_gone_is_named() {
    require_root!();
    let policy = Policy::default().root("/none/such");
    let error = Session::prepare(&policy).await.unwrap_err();
    assert!(matches!(&error, Error::Grant { what: "root", .. }), "{error}");
}

#[test]
fn a_file_that_is_outside_is_told_of() {
    require_root!();
    let (root, here) = (other_root(), workspace());
    fs::create_dir(here.path().join("sub")).unwrap();
    for name in ["given.txt", "sub/given.txt"] {
        fs::write(here.path().join(name), "x").unwrap();
    }
    let shown = here.path().display().to_string();
    let told = |name: &str| {
        let output = run(here.path(), &flags(&root, &["--explain"]), &["cat", name]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        stderr(&output)
    };
    for name in ["given.txt", "./given.txt", "sub/given.txt"] {
        let said = told(name);
        let expected = format!("{name}: it is in {shown}, of which the sandbox shows nothing");
        assert!(said.contains(&expected) && said.contains(&format!("--workspace {shown}")), "{said}");
    }
    let given = format!("{shown}/given.txt");
    let said = told(&given);
    assert!(said.contains("the root has no such file") && said.contains(&format!("--ro {given}")), "{said}");
    for nowhere in ["none.txt", "/none/such", "/etc/passwd.none", "."] {
        let said = told(nowhere);
        assert!(!said.contains("hint") && !said.contains("denied"), "{nowhere}: {said}");
    }
}
