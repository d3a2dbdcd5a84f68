//! Denials of one command from facts, and hints from texts: bounds, bases, hostile text.

use std::collections::VecDeque;
use std::ffi::OsStr;

use proptest::prelude::*;

use super::*;
use crate::command::tail::ErrorTail;
use crate::policy::Policy;
use crate::policy::profile::Profile;
use crate::process::output::Tail;
use crate::report::denial::{LONGEST, shown};
use crate::report::escape::is_harmless;
use crate::report::remedy::Wording;
use crate::view::inputs::SandboxKind;

fn context(policy: Policy, directory: &Path, typed: &[&str]) -> ExplainContext {
    let compiled = crate::plan::compile::compile(
        &policy.explain(true),
        &crate::host::Host::detect(),
        &crate::caller::Caller::current(),
        SandboxKind::OneShot,
    );
    let compiled = compiled.expect("a policy for this host");
    ExplainContext {
        explainer: Explainer::of(&compiled).expect("a policy"),
        directory: directory.to_owned(),
        limits: compiled.commands.limits,
        restrictions: Vec::new(),
        words: words(typed.iter().map(OsStr::new)),
        unread: None,
    }
}

fn workspace() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("kennel-test-").tempdir_in("/tmp").expect("a directory")
}

fn plain(workspace: &tempfile::TempDir, typed: &[&str]) -> ExplainContext {
    context(Policy::profile(Profile::RepoWrite, workspace.path()), workspace.path(), typed)
}

fn failed(path: &str, errno: Errno) -> FailedUse {
    FailedUse { order: 0, path: path.into(), errno, writes: errno != Errno::ENOENT }
}

fn written(paths: impl IntoIterator<Item = String>) -> FailedUses {
    let writes = paths.into_iter().map(|path| failed(&path, Errno::EROFS)).collect();
    FailedUses { writes, ..FailedUses::default() }
}

fn missed<'p>(paths: impl IntoIterator<Item = &'p str>) -> FailedUses {
    let misses: VecDeque<_> = paths
        .into_iter()
        .map(|path| Miss { failed: failed(path, Errno::ENOENT), was_wanted: true, is_found: false })
        .collect();
    FailedUses { misses, ..FailedUses::default() }
}

fn subjects(denials: &[Denial]) -> Vec<&str> {
    denials.iter().map(|denial| &*denial.subject).collect()
}

#[test]
fn the_filter_asks_only_if_the_policy_wants_explanations() {
    let workspace = workspace();
    let policy = Policy::profile(Profile::RepoWrite, workspace.path());
    let compile = |policy: &Policy, kind| {
        let (host, caller) = (crate::host::Host::detect(), crate::caller::Caller::current());
        crate::plan::compile::compile(policy, &host, &caller, kind).expect("a policy for this host")
    };
    for kind in [SandboxKind::OneShot, SandboxKind::Session { ready: 2 }] {
        let (without, with) = (compile(&policy, kind), compile(&policy.clone().explain(true), kind));
        assert!(!without.commands.explains && with.commands.explains);
        // Returns that ask the listener. The filter always has some questions of its own.
        let asks = |compiled: &crate::plan::compile::Compiled| {
            let steps = [&compiled.steps.setup, &compiled.steps.walls]
                .into_iter()
                .flat_map(|section| (0..).map_while(|index| section.step(index)));
            let questions = steps.filter_map(|it| match it.step {
                kennel_helper::plan::Step::SeccompAsking { program, .. } => Some(program),
                _ => None,
            });
            let ask = libc::SECCOMP_RET_USER_NOTIF.to_ne_bytes();
            questions.flat_map(|program| program.chunks(8)).filter(|step| step.ends_with(&ask)).count()
        };
        assert!(0 < asks(&without) && asks(&without) < asks(&with));
        let same = [
            (&without.steps.namespaces, &with.steps.namespaces),
            (&without.steps.worker, &with.steps.worker),
            (&without.steps.payload, &with.steps.payload),
        ];
        assert!(same.into_iter().all(|(one, other)| one.bytes == other.bytes));
    }
}

#[test]
fn a_read_only_path_is_a_fact_and_a_hidden_path_only_a_possibility() {
    let workspace = workspace();
    let context = plain(&workspace, &["cat", "/srv/kennel-secret"]);
    let denials = context.denials(&written(["/usr/x".to_owned()]));
    assert_eq!((subjects(&denials), denials[0].basis), (vec!["/usr/x"], Basis::Derived));
    assert_eq!(denials[0].remedy, None, "no flag grants a system directory");
    let denials = context.denials(&missed(["/srv/kennel-secret"]));
    assert_eq!((subjects(&denials), denials[0].basis), (vec!["/srv/kennel-secret"], Basis::Possible));
    assert_eq!(denials[0].advised(), [SettingKey::Ro.to("/srv/kennel-secret")]);
}

#[test]
fn of_what_is_nowhere_only_what_was_meant_is_told() {
    let workspace = workspace();
    let sibling = workspace.path().with_file_name("kennel-sibling");
    let context = plain(&workspace, &["sh", "-c", "tool --data=/srv/typed/deep; cat < /tmp/kennel-typed"]);
    let told = |paths: &[&str]| {
        let denials = context.denials(&missed(paths.iter().copied()));
        denials.into_iter().map(|denial| denial.subject).collect::<Vec<_>>()
    };
    let above = workspace.path().parent().expect("a parent").join("package.json").display().to_string();
    let home = context.explainer.policy.home.join(".config/tool").display().to_string();
    for nobody in ["/tmp/lock", "/etc/tool.conf", "/var/lib/tool", "/srv/.hidden", &above, &home] {
        assert_eq!(told(&[nobody]), [""; 0], "{nobody}");
    }
    assert_eq!(told(&["/tmp/kennel-typed"]), ["/tmp/kennel-typed"]);
    assert_eq!(told(&["/srv/typed/deep/a", "/srv/typed/deep/b"]), ["/srv/typed/deep"]);
    assert_eq!(told(&["/srv/a/x", "/opt/b/x", "/srv/y"]), ["/opt/b/x", "/srv/y"], "a search: its last place");
    let many = ["/srv/1", "/srv/2", "/srv/3", "/srv/4", "/srv/5"];
    assert_eq!(told(&many), ["/srv/3", "/srv/4", "/srv/5"]);
    for change in [|miss: &mut Miss| miss.is_found = true, |miss: &mut Miss| miss.was_wanted = false] {
        let mut uses = missed(["/srv/tool"]);
        uses.misses.iter_mut().for_each(change);
        assert_eq!(context.denials(&uses), [], "it was found in another directory, or nobody opened it");
    }
    // Below /tmp, which is private. It is no sibling, because nothing of /tmp is shown.
    assert_eq!(told(&[&sibling.display().to_string()]), [""; 0]);
}

#[test]
fn addresses_become_one_denial() {
    let workspace = workspace();
    let addresses = ["192.0.2.1:80", "[2001:db8::1]:443", "127.0.0.53:53", "127.0.0.1:80"];
    let uses = |addresses: &[&str]| FailedUses {
        addresses: addresses.iter().map(|it| it.parse().expect("an address")).collect(),
        ..FailedUses::default()
    };
    let policy = Policy::profile(Profile::NoNetwork, workspace.path());
    let closed = context(policy, workspace.path(), &[]);
    assert_eq!(subjects(&closed.denials(&uses(&addresses))), ["network"]);
    assert_eq!(subjects(&closed.denials(&uses(&addresses[2..3]))), ["network"]);
    assert_eq!(closed.denials(&uses(&addresses[3..])), [], "a server of its own");
}

#[test]
fn many_attempts_give_few_denials() {
    let workspace = workspace();
    let denials = plain(&workspace, &[]).denials(&written((0..256).map(|n| format!("/usr/{n}"))));
    assert_eq!((denials.len(), &*denials[MOST - 1].subject), (MOST, "/usr/255"));
}

/// A command can make chains of links, each of which leads through many directories.
#[test]
fn chains_of_links_take_little_time() {
    let workspace = workspace();
    let mut deep = workspace.path().to_owned();
    deep.extend(std::iter::repeat_n("d", 100));
    std::fs::create_dir_all(&deep).expect("directories");
    let link = |number: u32| deep.join(format!("link{number}"));
    let chain = |last: &str| {
        for number in 0..39 {
            let _ = std::fs::remove_file(link(number));
            let to = if number == 38 { last.into() } else { link(number + 1) };
            std::os::unix::fs::symlink(to, link(number)).expect("a link");
        }
    };
    let paths: Vec<String> =
        (0..256).map(|number| link(0).join(number.to_string()).display().to_string()).collect();
    let context = plain(&workspace, &[workspace.path().to_str().expect("text")]);
    for last in ["/usr", "/srv"] {
        chain(last);
        let begun = std::time::Instant::now();
        context.denials(&written(paths.iter().cloned()));
        let misses = paths.iter().map(|path| Miss {
            failed: FailedUse { writes: true, ..failed(path, Errno::ENOENT) },
            was_wanted: true,
            is_found: false,
        });
        context.denials(&FailedUses { misses: misses.collect(), ..FailedUses::default() });
        assert!(begun.elapsed() < std::time::Duration::from_secs(8), "{last}: {:?}", begun.elapsed());
    }
}

#[test]
fn words_name_paths() {
    let workspace = workspace();
    let context = plain(&workspace, &[]);
    let home = context.explainer.policy.home.clone();
    let at = |path: &str| workspace.path().join(path).display().to_string();
    for (text, expected) in [
        ("/srv/x", vec!["/srv/x".to_owned()]),
        ("./x", vec![at("x")]),
        ("--file=/srv/x", vec!["/srv/x".into()]),
        ("of=/srv/x", vec!["/srv/x".into()]),
        ("-I/srv/include", vec!["/srv/include".into()]),
        ("-C./x", vec![at("x")]),
        ("@/srv/body", vec!["/srv/body".into()]),
        ("/srv/a:/srv/b", vec!["/srv/a".into(), "/srv/b".into()]),
        ("~/x", vec![home.join("x").display().to_string()]),
        ("cat '/srv/x' | tee \"/srv/y\"", vec!["/srv/x".into(), "/srv/y".into()]),
        ("touch: cannot touch \u{2018}/srv/x\u{2019}: Read-only", vec!["/srv/x".into()]),
        ("/srv/a/../b", vec!["/srv/b".into()]),
        ("-rf", vec![]),
        ("word", vec![]),
        ("https://example.org/srv/x", vec![]),
    ] {
        let paths: Vec<_> = context.paths_in(text).iter().map(|it| it.path.display().to_string()).collect();
        assert_eq!(paths, expected, "{text}");
    }
    let outputs = |text: &str| {
        let paths = context.paths_in(text).into_iter();
        paths.map(|named| named.is_output).collect::<Vec<_>>()
    };
    assert_eq!(outputs("cat /a > /b 2>/c >>\"/d\" < /e"), [false, true, true, true, false]);
}

#[test]
fn subjects_are_escaped_and_short() {
    assert_eq!(shown(Path::new("/a/b-c_d.e")), "/a/b-c_d.e");
    assert_eq!(shown(Path::new("/a b\u{1b}[2J'\u{202e}")), "'/a b?[2J??'");
    assert!(shown(Path::new(&"/a".repeat(1000))).chars().count() <= LONGEST);
}

#[test]
fn the_tail_keeps_the_end_of_a_stream() {
    let workspace = workspace();
    let mut tail = ErrorTail::new(plain(&workspace, &[]).into());
    let all: Vec<u8> = (0..300_000u32).map(|n| n.to_be_bytes()[3]).collect();
    for piece in all.chunks(7001) {
        tail.add(piece);
    }
    assert_eq!(tail.bytes(), all[all.len() - (64 << 10)..]);
    tail.add(&all);
    assert_eq!(tail.bytes(), all[all.len() - (64 << 10)..]);
}

#[test]
fn errors_that_a_command_writes_are_found_and_links_are_not_followed() {
    let workspace = workspace();
    std::os::unix::fs::symlink("/srv/kennel-secret", workspace.path().join("link")).expect("a link");
    let limits = Limits { open_files: Some(7), ..Limits::default() };
    let policy = Policy::profile(Profile::RepoWrite, workspace.path()).limits(limits);
    let context = context(policy, workspace.path(), &[]);
    let told = |line: &str| {
        let denials = context.errors_in(line.as_bytes());
        denials.into_iter().map(|denial| denial.subject).collect::<Vec<_>>()
    };
    for (line, expected) in [
        ("cat: /srv/x: No such file or directory", &["/srv/x"][..]),
        ("dash: 1: cannot create /srv/y/z: Directory nonexistent", &["/srv/y/z"]),
        ("touch: cannot touch '/usr/x': Read-only file system", &["/usr/x"]),
        ("OSError: [Errno 24] Too many open files", &["open files"]),
        ("cat: ./link: No such file or directory", &[]),
        ("cat: /usr/nothing: No such file or directory", &[]),
        ("/srv/x is mentioned", &[]),
    ] {
        assert_eq!(told(line), expected, "{line}");
    }
}

/// However hostile the text is, it delays the end of a command for a moment only.
#[test]
fn hostile_text_takes_little_time_and_gives_plain_lines() {
    let workspace = workspace();
    let context = plain(&workspace, &[]);
    let (long, size) = ("a/".repeat(2000), 64 << 10);
    for piece in [
        format!("cat: /{long}: No such file or directory\n"),
        "/srv/a: not found\n".to_owned(),
        "`'\"\u{2018}/srv/x: ".to_owned(),
        "\u{1b}[2J\u{1b}]0;x\u{7}/srv/\u{202e}x: not found\n".to_owned(),
        "/ not found ".to_owned(),
        "../".to_owned(),
    ] {
        let mut text = piece.repeat(size / piece.len()).into_bytes();
        text.extend(b"\xff\xfe\x00/srv/\xff: No such file or directory\n");
        let begun = std::time::Instant::now();
        let denials = context.errors_in(&text);
        assert!(begun.elapsed() < std::time::Duration::from_secs(2), "{piece}: {:?}", begun.elapsed());
        for denial in denials.into_iter().map(|it| it.worded(Wording::default())) {
            let line = format!("{}{}", denial.subject, denial.reason);
            assert!(line.chars().all(is_harmless) && line.len() < 4096, "{piece}: {line}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_path_gives_plain_text(paths in proptest::collection::vec(".{0,40}", 0..20), text: String) {
        static CONTEXT: std::sync::LazyLock<(tempfile::TempDir, ExplainContext)> =
            std::sync::LazyLock::new(|| {
                let workspace = workspace();
                let context = plain(&workspace, &[]);
                (workspace, context)
            });
        let context = &CONTEXT.1;
        context.paths_in(&text);
        let paths = paths.iter().map(|path| format!("/{}", path.replace('\0', "")));
        for denial in context.denials(&written(paths)) {
            let line = format!("{}{}{}", denial.subject, denial.reason, denial.remedy.unwrap_or_default());
            prop_assert!(line.chars().all(is_harmless), "{:?}", line);
        }
    }
}
