//! `--explain` and `Policy::explain`: every reported refusal happened, at the named wall. Errors that Kennel
//! did not cause are not reported. Nothing else changes for the command.
//!
//! | module | promise |
//! | --- | --- |
//! | `files` | paths: the right wall, and the named flag works |
//! | `calls` | system calls: the same results, counted, even if a process is slow or dies |
//! | `lies` | a command that wants a false or harmful report |
//! | `tools` | real programs, and the flag helps |

mod calls;
mod files;
mod lies;
mod tools;

use std::path::Path;

use serde_json::Value;

use crate::support::{kennel, report, stderr};

/// The refusals of a report: protection, subject, basis, remedy.
type Told = (String, String, String, Option<String>);

/// Runs a shell script with `--explain`. Returns its exit status and the refusals.
fn explained(workspace: &Path, flags: &[&str], script: &str) -> (i64, Vec<Told>) {
    let flags = [&["--explain"], flags].concat();
    let (output, report) = report(workspace, &flags, &["sh", "-c", script]);
    let code = report["exit_code"].as_i64().unwrap();
    assert_eq!(crate::support::shown(output.status).map(i64::from), Some(code));
    (code, report["denials"].as_array().unwrap().iter().map(told).collect())
}

fn told(denial: &Value) -> Told {
    let text = |key: &str| denial[key].as_str().unwrap_or_else(|| panic!("{key}: {denial}")).to_owned();
    let remedy = denial["remedy"].as_str().map(str::to_owned);
    if let Some(remedy) = &remedy {
        assert!(text("reason").contains(remedy), "{denial}");
    }
    (text("protection"), text("subject"), text("basis"), remedy)
}

fn entry(protection: &str, subject: &str, basis: &str, remedy: Option<&str>) -> Told {
    (protection.to_owned(), subject.to_owned(), basis.to_owned(), remedy.map(str::to_owned))
}

#[test]
fn success_is_not_explained_and_failure_only_on_request() {
    let ws = crate::support::workspace();
    let script = "touch /usr/x || cat /srv/x || true";
    assert_eq!(explained(ws.path(), &[], script), (0, vec![]));
    let output = kennel(ws.path(), &[], &["sh", "-c", "unshare -U true; touch /usr/x"]).output().unwrap();
    let said = stderr(&output);
    assert!(!output.status.success() && !said.contains("denied: "), "{said}");
}

#[test]
fn explanations_follow_the_command_s_stderr() {
    let ws = crate::support::workspace();
    let flags = ["--explain"];
    let said = |flags: &[&str]| {
        let output =
            kennel(ws.path(), flags, &["sh", "-c", "echo out; touch /usr/x; cat /srv/x"]).output().unwrap();
        assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b"out\n"[..]));
        stderr(&output)
    };
    let (plain, with) = (said(&[]), said(&flags));
    let more = with.strip_prefix(&plain).expect("what the command says is not altered");
    let expected = "\nkennel: denied: /usr/x: read-only: /usr is shown by the profile; work on a copy\n\
                    kennel: possibly denied: /srv/x: the sandbox does not show it; --ro /srv/x would show it, \
                    if there is such a path outside";
    assert_eq!(more, expected);
    let quiet = said(&["--explain", "--quiet"]);
    assert_eq!(quiet, plain);
}

#[test]
fn stderr_of_a_command_arrives_unchanged() {
    let ws = crate::support::workspace();
    let script = "head -c 3000000 /dev/zero >&2; printf '\\033[1m\\377 no newline' >&2; exit 7";
    let output = kennel(ws.path(), &["--explain"], &["sh", "-c", script]).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(7), 3_000_016));
    assert!(output.stderr.ends_with(b"\x1b[1m\xff no newline"));
}
