use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::*;
use crate::report::failure::{Boundary, Class, Details};

/// A home directory with the files that these manifests name: `bin/tool`, `work/in`, `work/out`, `secret`,
/// and links.
struct Home {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

const SPAWN: &str = "programs = [{ path = '~/bin/tool' }, { path = '~/bin/other' }]\nfs_read = ['~/work']\n\
                     fs_write = ['~/work/out']\n";

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = fs::canonicalize(dir.path()).expect("a path");
        for name in ["bin", "work/in", "work/out", "workshop", "secret"] {
            fs::create_dir_all(path.join(name)).expect("a directory");
        }
        for name in ["bin/tool", "bin/other", "bin/unlisted"] {
            fs::write(path.join(name), "").expect("a file");
        }
        symlink("tool", path.join("bin/link")).expect("a link");
        symlink("../secret", path.join("work/leads")).expect("a link");
        symlink("work/in", path.join("way_in")).expect("a link");
        Self { _dir: dir, path }
    }

    fn policy(&self, spawn: &str) -> SpawnPolicy {
        let manifest = Manifest::from_toml(&format!("[capabilities.spawn]\n{spawn}")).expect(spawn);
        SpawnPolicy { home: self.path.clone(), ..SpawnPolicy::new(manifest) }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.path.join(path)
    }
}

fn envelope(program: impl AsRef<Path>, argv: &[&str]) -> Envelope {
    let program = program.as_ref().to_str().expect("text");
    let name = program.rsplit('/').next().unwrap_or_default();
    Envelope { program: program.to_owned(), ..Envelope::new(name, argv) }
}

/// The boundary that refused, and its message.
fn refused(policy: &SpawnPolicy, envelope: &Envelope) -> (Boundary, String) {
    let error = policy.check(envelope).expect_err("refused");
    let failure = error.failure();
    assert_eq!(failure.class, Class::CapabilityDenied, "{error}");
    assert!(!failure.retriable && failure.message == error.chain(), "{failure:?}");
    (failure.boundary, error.chain())
}

#[test]
fn programs_are_found_by_name_and_by_where_a_path_leads() {
    let home = Home::new();
    let policy = home.policy(SPAWN);
    let tool = home.at("bin/tool");
    for asked in [
        PathBuf::from("tool"),
        "~/bin/tool".into(),
        tool.clone(),
        home.at("bin/../bin/./tool"),
        home.at("bin/link"),
        "~/way_in/../bin/tool".into(),
    ] {
        let checked =
            policy.check(&envelope(&asked, &[])).unwrap_or_else(|error| panic!("{asked:?}: {error}"));
        assert_eq!((checked.program(), &*checked.called), (&*tool, &*tool), "called as the manifest has it");
    }
    for asked in
        ["", "unlisted", "bin/tool", "./tool", "~/bin/unlisted", "~/bin/tool/", "~/bin", "/bin/sh", "too"]
    {
        if asked == "~/bin/tool/" {
            continue;
        }
        let (boundary, said) = refused(&policy, &envelope(asked, &[]));
        assert_eq!(boundary, Boundary::Manifest);
        assert!(said.ends_with("is not in the manifest"), "{asked}: {said}");
    }
    let two = home.policy("programs = [{ path = '~/bin/tool' }, { path = '/opt/tool' }]");
    assert!(refused(&two, &envelope("tool", &[])).1.contains("several programs of that name"));
    assert!(two.check(&envelope("~/bin/tool", &[])).is_ok());
    let absent = home.policy("programs = [{ path = '~/bin/absent' }]");
    let failure = absent.check(&envelope("absent", &[])).expect_err("absent").failure();
    assert_eq!(failure.class, Class::LoadFailed);
}

#[test]
fn of_one_file_with_two_names_each_is_called_by_its_own() {
    let home = Home::new();
    let policy = home.policy("programs = [{ path = '~/bin/tool' }, { path = '~/bin/link' }]");
    let called = |asked: &str| policy.check(&envelope(asked, &[])).expect(asked).called;
    assert_eq!((called("~/bin/link"), called("tool")), (home.at("bin/link"), home.at("bin/tool")));
    let only = home.policy("programs = [{ path = '~/bin/link' }]");
    let checked = only.check(&envelope("~/bin/tool", &[])).expect("where it leads");
    assert_eq!(checked.called, home.at("bin/link"), "never as somebody else calls it");
}

#[test]
fn a_refusal_says_what_there_is_instead() {
    let home = Home::new();
    let error = home.policy(SPAWN).check(&envelope("sh", &[])).expect_err("refused");
    let granted = vec!["~/bin/tool".to_owned(), "~/bin/other".to_owned()];
    assert_eq!(error.failure().details, Details::Granted { requested: "sh".to_owned(), granted });
}

#[test]
fn the_action_is_asked_after_the_manifest() {
    let home = Home::new();
    let narrow = |list: &[&str]| home.policy(SPAWN).action(list.iter().copied());
    for list in [&["tool"][..], &["~/bin/tool"], &["~/bin/link"], &["x", "tool"]] {
        narrow(list).check(&envelope("tool", &[])).expect("in both lists");
    }
    for list in [&[][..], &["other"], &["~/bin"]] {
        let (boundary, said) = refused(&narrow(list), &envelope("tool", &[]));
        assert_eq!(
            (boundary, said.as_str()),
            (Boundary::Action, "program tool: is not among the action's programs")
        );
    }
    let (boundary, _) = refused(&narrow(&["unlisted"]), &envelope("unlisted", &[]));
    assert_eq!(boundary, Boundary::Manifest, "an action adds nothing");
    let mut both = envelope("other", &[]);
    both.credential_env_keys = vec!["TOKEN".to_owned()];
    assert_eq!(refused(&narrow(&["tool"]), &both).0, Boundary::Action, "before credentials");
    both.env.insert("X".to_owned(), String::new());
    assert_eq!(refused(&narrow(&["tool"]), &both).0, Boundary::Manifest, "after all of the manifest");
}

#[test]
fn arguments_are_one_of_the_operations_where_there_are_some() {
    let home = Home::new();
    let free = home.policy(SPAWN);
    assert_eq!(free.check(&envelope("tool", &["--any", ""])).expect("free").operation(), None);
    let policy = home.policy(&format!(
        "{SPAWN}[capabilities.spawn.operations]\nview = 'tool view {{n}} [--web {{w}}]'\nlist = 'tool list'\nx = 'other'"
    ));
    let operation = |argv: &[&str]| policy.check(&envelope("tool", argv)).map(|checked| checked.operation);
    assert_eq!(operation(&["view", "7"]).expect("an operation").as_deref(), Some("view"));
    assert_eq!(operation(&["view", "7", "--web", "y"]).expect("an operation").as_deref(), Some("view"));
    assert_eq!(operation(&["list"]).expect("an operation").as_deref(), Some("list"));
    for argv in [&[][..], &["view"], &["view", "-7"], &["list", "hidden"], &["view", "7", "--web"], &["lis"]]
    {
        let (boundary, said) = refused(&policy, &envelope("tool", argv));
        let told =
            format!("argument list of {} arguments: is not one of the manifest's operations", argv.len());
        assert_eq!((boundary, said), (Boundary::Manifest, told));
    }
    assert!(policy.check(&envelope("other", &[])).is_ok(), "its own operation");
    let with = |argv: &[&str]| Envelope {
        argv: argv.iter().map(|&argument| argument.to_owned()).collect(),
        ..envelope("tool", &[])
    };
    assert!(policy.check(&with(&["tool", "list"])).is_ok());
    for (argv, number) in [(&["list"][..], 0), (&["other"], 0), (&["~/bin/tool", "list"], 1)] {
        let told = format!("argument list of {number} arguments: is not one of the manifest's operations");
        assert_eq!(refused(&policy, &with(argv)).1, told, "from the program's token on");
    }
    for policy in [&policy, &free] {
        let told = "argument list of 0 arguments: argv is required".to_owned();
        assert_eq!(refused(policy, &with(&[])), (Boundary::Action, told));
    }
    assert!(refused(&free, &envelope("tool", &["hidden\0"])).1.ends_with("contains a NUL byte"));
}

#[test]
fn variables_are_those_that_are_listed() {
    let home = Home::new();
    let policy =
        home.policy(&format!("{SPAWN}env_passthrough = ['A', 'B', 'T']\ncredential_env_keys = ['T', 'U']\n"));
    let policy = policy.variables(|name| Some(format!("value of {name}").into()));
    let with = |pairs: &[(&str, &str)], keys: &[&str]| Envelope {
        env: pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect(),
        credential_env_keys: keys.iter().map(|&key| key.to_owned()).collect(),
        ..envelope("tool", &[])
    };
    let checked = policy.check(&with(&[("A", "1")], &["U"])).expect("listed");
    let variables: Vec<_> = checked.environment().collect();
    assert_eq!(variables, [("A", OsStr::new("1")), ("B", OsStr::new("value of B"))]);
    assert_eq!(checked.credentials, ["U"]);
    let passed = |policy: &SpawnPolicy, keys| policy.check(&with(&[], keys)).expect("allowed").passed;
    assert_eq!(passed(&policy, &["B", "U"]).into_keys().collect::<Vec<_>>(), ["A"], "either list");
    let some = policy.clone().variables(|name| (name == "A").then(OsString::new));
    assert!(passed(&some, &[]).is_empty(), "an empty one is none");
    let broken = policy.clone().variables(|_| Some("hidden\0".into()));
    let told = refused(&broken, &with(&[], &[])).1;
    assert_eq!(told, "environment variable A: its value contains a NUL byte");
    for (pairs, keys, said) in [
        (
            &[("LD_PRELOAD", "hidden")][..],
            &[][..],
            "environment variable LD_PRELOAD: is not in env_passthrough",
        ),
        (&[("a", "hidden")], &[], "environment variable a: is not in env_passthrough"),
        (&[("U", "hidden")], &[], "environment variable U: is a credential"),
        (&[("T", "hidden")], &[], "environment variable T: is a credential"),
        (&[("A", "hidden")], &["A"], "environment variable A: is a credential"),
        (&[("A", "hidden\0")], &[], "environment variable A: contains a NUL byte"),
        (&[], &["GH_TOKEN"], "credential GH_TOKEN: is not in credential_env_keys"),
        (&[], &["U", "U"], "credential U: is listed twice"),
    ] {
        let envelope = with(pairs, keys);
        let (boundary, told) = refused(&policy, &envelope);
        assert!(
            boundary == Boundary::Manifest && told.starts_with(said) && !told.contains("hidden"),
            "{told}"
        );
        assert!(!format!("{:?}", policy.check(&envelope)).contains("hidden"));
    }
}

#[test]
fn directories_are_compared_by_whole_components_where_they_lead() {
    let home = Home::new();
    let policy = home.policy(SPAWN);
    let cwd = |path: &str| Envelope { cwd: Some(path.to_owned()), ..envelope("tool", &[]) };
    for (asked, leads) in [
        ("~/work", "work"),
        ("~/work/in", "work/in"),
        ("~/work/out", "work/out"),
        ("~/way_in", "work/in"),
        ("~/workshop/../work", "work"),
    ] {
        let checked = policy.check(&cwd(asked)).unwrap_or_else(|error| panic!("{asked}: {error}"));
        assert_eq!(checked.cwd(), Some(&*home.at(leads)), "{asked}");
    }
    for asked in [
        "~",
        "~/workshop",
        "~/work/leads",
        "~/work/..",
        "~/secret",
        "/",
        "/tmp",
        "~/absent",
        "work",
        "~/bin/tool",
    ] {
        let (boundary, said) = refused(&policy, &cwd(asked));
        assert!(boundary == Boundary::Manifest && said.starts_with("working directory"), "{asked}: {said}");
        assert!(
            said.contains("is a directory in neither fs_read nor fs_write"),
            "the message names no other path: {said}"
        );
    }
    for none in [envelope("tool", &[]), cwd("")] {
        assert_eq!(policy.check(&none).expect("none").cwd(), None);
    }
    let own = home.policy(&format!("{SPAWN}cwd = '~/work/in'"));
    assert_eq!(own.check(&envelope("tool", &[])).expect("the manifest's").cwd(), Some(&*home.at("work/in")));
    for same in ["~/work/in", "~/way_in", "~/work/../work/in/."] {
        assert_eq!(own.check(&cwd(same)).expect(same).cwd(), Some(&*home.at("work/in")));
    }
    for other in ["~/work", "~/work/out", "~/work/in/absent", "~/secret", "work/in"] {
        let error = own.check(&cwd(other)).expect_err(other);
        let told = format!("working directory {other}: is not the cwd of the manifest");
        assert_eq!(error.chain(), told);
        let details = Details::Granted { requested: other.to_owned(), granted: vec!["~/work/in".to_owned()] };
        assert_eq!((error.failure().boundary, error.failure().details), (Boundary::Manifest, details));
    }
    assert!(
        refused(&home.policy(&format!("{SPAWN}cwd = '~'")), &envelope("tool", &[])).1.contains("neither")
    );
    let nothing = home.policy("programs = [{ path = '~/bin/tool' }]");
    assert!(refused(&nothing, &cwd("~/work")).1.contains("neither"), "an empty list is nothing");
}

#[test]
fn what_commands_could_lead_elsewhere_is_refused() {
    let home = Home::new();
    let tool = "programs = [{ path = '~/bin/tool' }]\n";
    let grants = |lists: &str| {
        let policy = home.policy(&format!("{tool}{lists}"));
        policy.check(&envelope("tool", &[])).map(|checked| (checked.reads, checked.writes))
    };
    let paths = |names: &[&str]| names.iter().map(|name| home.at(name)).collect::<Vec<_>>();
    // A command has replaced a directory of the manifest with a link.
    let error =
        grants("fs_write = ['~/work']\nfs_read = ['~/work/leads']").expect_err("led elsewhere").chain();
    assert!(error.contains("is reached through fs_write"), "{error}");
    grants("fs_write = ['~/work', '~/work/leads']").expect_err("led elsewhere");
    let kept = grants("fs_write = ['~/work']\nfs_read = ['~/work/in', '~/work']").expect("covered");
    assert_eq!(kept, (paths(&[]), paths(&["work"])));
    let kept = grants("fs_write = ['~/work/out', '~/work/out/.']\nfs_read = ['~/work', '~/way_in']")
        .expect("nested");
    assert_eq!(kept, (paths(&["work", "work/in"]), paths(&["work/out"])));
    let error = grants("fs_read = ['~/absent']").expect_err("absent");
    assert_eq!(error.chain(), "fs_read ~/absent: No such file or directory");
    let program = home.policy("programs = [{ path = '~/bin/tool' }]\nfs_write = ['~/bin']");
    assert!(refused(&program, &envelope("tool", &[])).1.contains("give its hash"));
    let hash = "0".repeat(64);
    let hashed =
        format!("programs = [{{ path = '~/bin/tool', hash = 'sha256:{hash}' }}]\nfs_write = ['~/bin']");
    home.policy(&hashed)
        .check(&envelope("tool", &[]))
        .expect("whatever is there, only the approved one runs");
}

#[test]
fn debug_output_has_no_values() {
    let home = Home::new();
    let policy = home.policy(&format!("{SPAWN}env_passthrough = ['A']\n"));
    let mut asked = envelope("tool", &["hidden"]);
    asked.env.insert("A".to_owned(), "hidden".to_owned());
    asked.stdin = Some("hidden".to_owned());
    let text = format!("{:?}", policy.check(&asked).expect("allowed"));
    assert!(text.contains("\"A\"") && !text.contains("hidden"), "{text}");
}

#[test]
fn names_that_somebody_made_up_are_plain_and_short_in_messages() {
    let manifest = "[capabilities.spawn]\nprograms = [{ path = '/bin/sh' }]\noperations.x = 'sh {a}'";
    let policy = SpawnPolicy::new(Manifest::from_toml(manifest).expect("a manifest"));
    let name = "\u{1b}[2J\n".repeat(10_000);
    for values in [&[(&*name, "v")][..], &[(&name, "v"), (&name, "v")]] {
        let error = policy.operation("x", values).expect_err("unknown").chain();
        assert!(!error.contains(char::is_control) && error.len() < 8000, "{}", error.len());
    }
}
