//! A command that writes lies to stderr. The report stays true under the policy and harmless to read, and
//! tells nothing about paths outside.

use std::fs;

use super::explained;
use crate::support::workspace;

#[test]
fn the_report_does_not_tell_whether_a_hidden_path_exists() {
    let (ws, data) = (workspace(), workspace());
    fs::write(data.path().join("there"), "").unwrap();
    let at = data.path().display();
    for error in
        ["No such file or directory", "Read-only file system", "Device or resource busy", "Not a directory"]
    {
        let ask = |name: &str| {
            let script = format!("echo \"cat: {at}/{name}: {error}\" >&2; exit 1");
            let (_, told) = explained(ws.path(), &[], &script);
            told.into_iter()
                .map(|(wall, subject, basis, flag)| {
                    let flag = flag.map(|flag| flag.replace(name, "x"));
                    (wall, subject.replace(name, "x"), basis, flag)
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(ask("there"), ask("absent"), "{error}");
    }
}

#[test]
fn a_writable_path_is_never_reported_as_refused() {
    let ws = workspace();
    let at = ws.path().display();
    let script = format!(
        "for p in {at}/x /tmp/x /dev/shm/x /dev/null; do echo \"touch: cannot touch '$p': Read-only file system\" >&2; done; exit 1"
    );
    assert_eq!(explained(ws.path(), &[], &script), (1, vec![]));
}

#[test]
fn no_control_character_is_passed_on() {
    let ws = workspace();
    let script = r"printf 'x: \047/usr/\033]0;owned\007\033[2J\302\233x\342\200\256y\047: Read-only file system\n' >&2; exit 1";
    let (_, told) = explained(ws.path(), &[], script);
    assert_eq!(told.len(), 1, "{told:?}");
    let subject = &told[0].1;
    assert!(
        subject.starts_with("'/usr/") && !subject.chars().any(|c| c.is_control() || c == '\u{202e}'),
        "{subject:?}"
    );
}

#[test]
fn a_flood_of_lies_makes_few_lines() {
    let ws = workspace();
    let script = "i=0; while [ $i -lt 20000 ]; do echo \"rm: cannot remove '/usr/$i': Read-only file system\"; i=$((i+1)); done >&2; exit 1";
    let (code, told) = explained(ws.path(), &[], script);
    assert_eq!((code, told.len()), (1, 16));
}
