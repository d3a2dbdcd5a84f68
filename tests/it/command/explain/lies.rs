//! A command that says what is not so: whatever is told is true under the policy, harmless to read, and no answer to what
//! is outside.

use std::fs;

use super::explained;
use crate::support::workspace;

#[test]
fn whether_something_hidden_is_there_cannot_be_asked() {
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
fn what_may_be_written_is_never_said_to_be_refused() {
    let ws = workspace();
    let at = ws.path().display();
    let script = format!(
        "for p in {at}/x /tmp/x /dev/shm/x /dev/null; do echo \"touch: cannot touch '$p': Read-only file system\" >&2; done; exit 1"
    );
    assert_eq!(explained(ws.path(), &[], &script), (1, vec![]));
}

#[test]
fn nothing_that_a_terminal_obeys_is_passed_on() {
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
fn a_flood_of_lies_is_few_lines() {
    let ws = workspace();
    let script = "i=0; while [ $i -lt 20000 ]; do echo \"rm: cannot remove '/usr/$i': Read-only file system\"; i=$((i+1)); done >&2; exit 1";
    let (code, told) = explained(ws.path(), &[], script);
    assert_eq!((code, told.len()), (1, 16));
}
