//! A command that wants a false or harmful report: what it writes counts nothing, the report is harmless to
//! read and short, and tells nothing about paths outside.

use std::fs;

use super::explained;
use crate::support::workspace;

#[test]
fn the_report_does_not_tell_whether_a_hidden_path_exists() {
    let (ws, data) = (workspace(), workspace());
    fs::write(data.path().join("there"), "").unwrap();
    let at = data.path().display();
    for act in ["cat", "touch", "rm", "mkdir", "chmod 600", "ln -s x", "mv x", "cd"] {
        let ask = |name: &str| {
            let (_, told) = explained(ws.path(), &[], &format!("{act} {at}/{name}"));
            told.into_iter()
                .map(|(wall, subject, basis, flag)| {
                    let flag = flag.map(|flag| flag.replace(name, "x"));
                    (wall, subject.replace(name, "x"), basis, flag)
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(ask("there"), ask("absent"), "{act}");
    }
}

#[test]
fn no_detour_tells_whether_a_hidden_path_exists() {
    let (ws, data) = (workspace(), workspace());
    fs::write(data.path().join("there"), "").unwrap();
    let at = data.path().display();
    for detour in [
        "/proc/self/root",
        "/proc/thread-self/root",
        "/proc/1/root",
        "/proc/self/cwd/../../../..",
        "/proc/self/task/../root",
        "/dev/fd/9",
        "/dev/fd/../../root",
        "/../../..",
        "./to-root",
        "./to-proc/self/root",
        "/tmp/loop",
    ] {
        let ask = |name: &str| {
            let script = format!(
                "ln -sfn / to-root; ln -sfn /proc to-proc; ln -sfn loop /tmp/loop; exec 9< /; \
                 cat {detour}{at}/{name}; echo > {detour}{at}/{name}; rmdir {detour}{at}/{name}"
            );
            let (_, told) = explained(ws.path(), &[], &script);
            let plain = |(wall, subject, basis, flag): super::Told| {
                (wall, subject.replace(name, "x"), basis, flag.map(|flag| flag.replace(name, "x")))
            };
            told.into_iter().map(plain).collect::<Vec<_>>()
        };
        assert_eq!(ask("there"), ask("absent"), "{detour}");
    }
}

#[test]
fn a_path_of_any_length_is_read_as_the_kernel_reads_it() {
    let ws = workspace();
    // With its NUL, the first one is as long as the kernel takes, and the other one too long.
    for (dots, expected) in [(2044, &["/usr/xx"][..]), (2045, &[])] {
        let path = format!("/usr/{}xx", "./".repeat(dots));
        let (_, told) = explained(ws.path(), &[], &format!("echo > {path}"));
        let subjects: Vec<_> = told.iter().map(|(_, subject, ..)| &**subject).collect();
        assert_eq!(subjects, expected, "{} bytes", path.len());
    }
}

#[test]
fn a_look_up_opens_nothing() {
    let ws = workspace();
    // The end of a pipe waits for the other one. If a look-up opened it, it would go on.
    let script =
        "mkfifo pipe; timeout 0.5 sh -c 'echo > pipe'; a=$?; timeout 0.5 cat pipe; echo $a $? > status";
    explained(ws.path(), &[], script);
    assert_eq!(fs::read_to_string(ws.path().join("status")).unwrap(), "124 124\n");
}

#[test]
fn callers_that_are_killed_while_they_ask_cost_nobody_the_report() {
    let ws = workspace();
    let ask = "while :; do : < /srv/x; : > /usr/x; done";
    let script = format!(
        "i=0; while [ $i -lt 60 ]; do sh -c '{ask}' 2> /dev/null & all=\"$all $!\"; i=$((i+1)); done; \
         sleep 0.5; kill -9 $all; wait; touch /usr/last"
    );
    let (code, told) = explained(ws.path(), &["--timeout", "60s"], &script);
    assert_eq!((code, told.last().map(|(_, subject, ..)| &**subject)), (1, Some("/usr/last")), "{told:?}");
}

#[test]
fn what_a_command_writes_is_no_evidence() {
    let ws = workspace();
    let at = ws.path().display();
    let script = format!(
        "for p in {at}/x /tmp/x /usr/x /srv/x; do echo \"touch: cannot touch '$p': Read-only file system\" >&2; done; exit 1"
    );
    assert_eq!(explained(ws.path(), &[], &script), (1, vec![]));
}

#[test]
fn no_control_character_is_passed_on() {
    let ws = workspace();
    let script = r"touch $(printf '/usr/\033]0;owned\007\033[2J\302\233x\342\200\256y')";
    let (_, told) = explained(ws.path(), &[], script);
    assert_eq!(told.len(), 1, "{told:?}");
    let subject = &told[0].1;
    assert!(
        subject.starts_with("'/usr/") && !subject.chars().any(|c| c.is_control() || c == '\u{202e}'),
        "{subject:?}"
    );
}

#[test]
fn a_flood_of_attempts_makes_few_lines() {
    let ws = workspace();
    let script = "i=0; while [ $i -lt 2000 ]; do : > /usr/$i; i=$((i+1)); done 2> /dev/null; exit 1";
    let script = format!("sh -c '{}'", script.replace(": >", "( : >").replace("; i=", " ); i="));
    let (code, told) = explained(ws.path(), &[], &script);
    assert_eq!((code, told.len()), (1, 16));
    assert_eq!(told[15].1, "/usr/1999", "the last ones");
}
