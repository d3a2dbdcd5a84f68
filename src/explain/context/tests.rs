//! Denials from messages of a command: hostile text, bounds, bases.

use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::command::tail::Tail;
use crate::report::denial::{LONGEST, shown};
use crate::report::enforcement::Protection;
use crate::report::escape::is_harmless;
use crate::report::remedy::{SettingKey, Wording};
use crate::view::inputs::SandboxKind;

pub(super) fn judge(policy: crate::policy::Policy, directory: &Path) -> Judge {
    let compiled = crate::plan::compile::compile(
        &policy.explain(true),
        &crate::host::Host::detect(),
        &crate::host::caller::Caller::current(),
        crate::view::inputs::SandboxKind::OneShot,
    );
    let compiled = compiled.expect("a policy for this host");
    Judge {
        explainer: Explainer::of(&compiled).expect("a policy"),
        directory: directory.to_owned(),
        limits: compiled.limits,
        restrictions: Vec::new(),
        follows_links: true,
    }
}

pub(super) fn workspace() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("kennel-test-").tempdir_in("/tmp").expect("a directory")
}

fn plain(workspace: &tempfile::TempDir) -> Judge {
    judge(
        crate::policy::Policy::profile(crate::policy::profile::Profile::RepoWrite, workspace.path()),
        workspace.path(),
    )
}

#[test]
fn the_filter_asks_only_if_the_policy_wants_explanations() {
    let workspace = workspace();
    let policy = crate::policy::Policy::profile(crate::policy::profile::Profile::RepoWrite, workspace.path());
    let compile = |policy: &crate::policy::Policy, shape| {
        let (host, caller) = (crate::host::Host::detect(), crate::host::caller::Caller::current());
        crate::plan::compile::compile(policy, &host, &caller, shape).expect("a policy for this host")
    };
    for shape in [SandboxKind::OneShot, SandboxKind::Session { ready: 2 }] {
        let (without, with) = (compile(&policy, shape), compile(&policy.clone().explain(true), shape));
        assert!(!without.explains && with.explains);
        // Returns that ask the listener. The filter always has some questions of its own.
        let asks = |compiled: &crate::plan::compile::Compiled| {
            let steps = [&compiled.setup, &compiled.walls]
                .into_iter()
                .flat_map(|section| (0..).map_while(|index| section.step(index)));
            let questions = steps.filter_map(|(_, step)| match step {
                kennel_helper::plan::Step::SeccompAsking { program, .. } => Some(program),
                _ => None,
            });
            let ask = libc::SECCOMP_RET_USER_NOTIF.to_ne_bytes();
            questions.flat_map(|program| program.chunks(8)).filter(|step| step.ends_with(&ask)).count()
        };
        assert!(0 < asks(&without) && asks(&without) < asks(&with));
        let same = [
            (&without.namespaces, &with.namespaces),
            (&without.worker, &with.worker),
            (&without.payload, &with.payload),
        ];
        assert!(same.into_iter().all(|(one, other)| one.bytes == other.bytes));
    }
}

#[test]
fn a_read_only_path_is_a_fact_and_a_hidden_path_only_a_possibility() {
    let workspace = workspace();
    let judge = plain(&workspace);
    let one = |line: &str| {
        let mut denials = judge.denials(line.as_bytes());
        assert_eq!(denials.len(), 1, "{line}: {denials:?}");
        denials.remove(0)
    };
    let written = one("touch: cannot touch '/usr/x': Read-only file system");
    assert_eq!(
        (written.protection, &*written.subject, written.basis),
        (Protection::Root, "/usr/x", Basis::Derived)
    );
    assert_eq!(written.remedy, None, "no flag grants a system directory");
    let hidden = one("cat: /srv/kennel-secret: No such file or directory");
    assert_eq!(hidden.basis, Basis::Possible);
    assert_eq!(hidden.advised(), [SettingKey::Ro.to("/srv/kennel-secret")]);
    assert!(judge.denials(b"cat: /srv/kennel-secret: Read-only file system").len() == 1);
    let root = one("mkdir: cannot create directory '/x': Read-only file system");
    assert_eq!(root.basis, Basis::Derived);
}

#[test]
fn errors_with_other_causes_give_no_denial() {
    let workspace = workspace();
    let judge = plain(&workspace);
    let at = workspace.path().display();
    for line in [
        format!("cat: {at}/nothing: No such file or directory"),
        format!("touch: cannot touch '{at}/x': Read-only file system"),
        format!("touch: cannot touch '{at}/x': No space left on device"),
        "cat: nothing: No such file or directory".to_owned(),
        "touch: cannot touch '/tmp/x': Read-only file system".to_owned(),
        "cat: /usr/nothing: No such file or directory".to_owned(),
        "cat: /usr/x: Permission denied".to_owned(),
        "fork: Resource temporarily unavailable".to_owned(),
        "python3: MemoryError".to_owned(),
    ] {
        assert_eq!(judge.denials(line.as_bytes()), [], "{line}");
    }
}

#[test]
fn a_denial_does_not_tell_whether_a_hidden_path_exists() {
    let workspace = workspace();
    let judge = plain(&workspace);
    let hidden =
        tempfile::Builder::new().prefix("kennel-hidden-").tempdir_in("/var/tmp").expect("a directory");
    let there = hidden.path().join("there");
    std::fs::write(&there, "").expect("a file");
    for error in [
        "No such file or directory",
        "Read-only file system",
        "Device or resource busy",
        "No space left on device",
    ] {
        let denials = |path: &Path| {
            let line = format!("cat: '{}': {error}", path.display());
            let denials = judge.denials(line.as_bytes());
            denials
                .into_iter()
                .map(|denial| (denial.reason.replace("not-there", "there"), denial.basis))
                .collect::<Vec<_>>()
        };
        assert_eq!(denials(&there), denials(&hidden.path().join("not-there")), "{error}");
    }
}

#[test]
fn a_link_in_the_workspace_is_resolved_as_in_the_sandbox() {
    let workspace = workspace();
    std::os::unix::fs::symlink("/srv/kennel-secret", workspace.path().join("link")).expect("a link");
    std::os::unix::fs::symlink("loop", workspace.path().join("loop")).expect("a link");
    let judge = plain(&workspace);
    let denials =
        judge.denials(b"cat: link: No such file or directory\ncat: loop: No such file or directory");
    let subjects: Vec<_> = denials.iter().map(|denial| (&*denial.subject, denial.basis)).collect();
    assert_eq!(subjects, [("/srv/kennel-secret", Basis::Possible)]);
    let judge = Judge { follows_links: false, ..judge };
    let denials =
        judge.denials(b"cat: link: No such file or directory\ncat: /srv/x: No such file or directory");
    let subjects: Vec<_> = denials.iter().map(|denial| &*denial.subject).collect();
    assert_eq!(subjects, ["/srv/x"], "the link is not followed for who does not ask");
}

#[test]
fn a_file_of_git_is_searched_only_where_a_repository_is() {
    let workspace = workspace();
    let line = b"error: could not lock config file .git/config: Read-only file system";
    assert_eq!(plain(&workspace).denials(line), [], "no repository, and not the root");
}

#[test]
fn many_false_messages_give_few_denials() {
    let workspace = workspace();
    let text: String =
        (0..5000).map(|n| format!("rm: cannot remove '/usr/{n}': Read-only file system\n")).collect();
    assert_eq!(plain(&workspace).denials(text.as_bytes()).len(), MOST);
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
    let mut tail = Tail::new(plain(&workspace), crate::audit::trail::DenialLog::disabled());
    let all: Vec<u8> = (0..300_000u32).map(|n| n.to_be_bytes()[3]).collect();
    for piece in all.chunks(7001) {
        tail.add(piece);
    }
    assert_eq!(tail.bytes(), all[all.len() - (64 << 10)..]);
    tail.add(&all);
    assert_eq!(tail.bytes(), all[all.len() - (64 << 10)..]);
}

#[test]
fn limits_are_named_if_the_command_has_them() {
    let workspace = workspace();
    let limits = Limits { pids: Some(7), memory: "64M".parse().ok(), ..Limits::default() };
    let policy = crate::policy::Policy::profile(crate::policy::profile::Profile::RepoWrite, workspace.path())
        .limits(limits);
    let judge = judge(policy, workspace.path());
    for line in [
        "sh: 0: Cannot fork",
        "RuntimeError: can't start new thread",
        "fork: Resource temporarily unavailable",
    ] {
        let denials = judge.denials(line.as_bytes());
        assert_eq!(denials.iter().map(|it| it.protection).collect::<Vec<_>>(), [Protection::Pids], "{line}");
    }
    let denials = judge.denials(b"sh: 1: Cannot fork\nMemoryError");
    let found: Vec<_> =
        denials.iter().map(|denial| (denial.protection, denial.basis, denial.advised())).collect();
    let expected = [
        (Protection::Pids, Basis::Possible, vec![SettingKey::Pids.to("N")]),
        (Protection::Memory, Basis::Possible, vec![SettingKey::Memory.to("SIZE")]),
    ];
    assert_eq!(found, expected);
    assert!(denials[0].reason.contains("the limit is 7"), "{}", denials[0].reason);
}

/// However hostile the text is, it delays the end of a command for a moment only.
#[test]
fn hostile_text_takes_little_time_and_gives_few_plain_lines() {
    let workspace = workspace();
    let judge = plain(&workspace);
    let long = "a/".repeat(2000);
    let size = 64 << 10;
    for piece in [
        format!("cat: /{long}: No such file or directory\n"),
        "/srv/a: not found\n".to_owned(),
        "`'\"\u{2018}/srv/x: ".to_owned(),
        "'/srv/--ro /etc/shadow'; rm -rf ~: No such file or directory\n".to_owned(),
        "\u{1b}[2J\u{1b}]0;x\u{7}/srv/\u{202e}x: not found\n".to_owned(),
        "cannot open --rw / : No such file\n".to_owned(),
        "/ ".to_owned(),
        "../".to_owned(),
        ": /srv/x".to_owned(),
    ] {
        let mut text = piece.repeat(size / piece.len()).into_bytes();
        text.extend(b"\xff\xfe\x00/srv/\xff: No such file or directory\n");
        let begun = std::time::Instant::now();
        let denials = judge.denials(&text);
        assert!(begun.elapsed() < std::time::Duration::from_secs(2), "{piece}: {:?}", begun.elapsed());
        assert!(denials.len() <= MOST, "{piece}");
        for Denial { subject, reason, remedy, .. } in
            denials.into_iter().map(|it| it.worded(Wording::default()))
        {
            let line = format!("{subject}{reason}");
            assert!(line.chars().all(is_harmless) && line.len() < 4096, "{piece}: {line}");
            let is_one_word = |flag: &str| flag.split(' ').count() == 2 && !flag.contains("ro --");
            assert!(remedy.is_none_or(|flag| is_one_word(&flag.to_string())), "{piece}: {line}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_message_gives_denials_of_plain_text(
        messages in proptest::collection::vec((".{0,40}", 0..4usize), 0..20)
    ) {
        const ERRORS: [&str; 4] =
            ["Read-only file system", "No such file or directory", "No space left on device", "Device or resource busy"];
        static JUDGE: std::sync::LazyLock<(tempfile::TempDir, Judge)> = std::sync::LazyLock::new(|| {
            let workspace = workspace();
            let judge = plain(&workspace);
            (workspace, judge)
        });
        let judge = &JUDGE.1;
        let text: String = messages.iter().map(|(path, error)| format!("x: '/{path}': {}\n", ERRORS[*error])).collect();
        let denials = judge.denials(text.as_bytes());
        prop_assert!(denials.len() <= MOST);
        for denial in denials {
            let line = format!("{}{}{}", denial.subject, denial.reason, denial.remedy.unwrap_or_default());
            prop_assert!(line.chars().all(is_harmless), "{:?}", line);
        }
    }
}
