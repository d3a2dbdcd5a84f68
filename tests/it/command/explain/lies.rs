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
