//! What counts as memory without a cgroup, and what does not. The report says so, and these attempts prove
//! it.

use super::protection;
use crate::support::{attempt, report, workspace};

fn hold(flags: &[&str], kind: &str, most: &str) -> String {
    attempt(workspace().path(), flags, "hold", &[kind, most])
}

#[test]
fn private_memory_is_counted() {
    let said = hold(&["-q", "--cgroup", "off", "--memory", "64M"], "private", "100");
    let mib: u32 =
        said.strip_prefix("ENOMEM ").and_then(|rest| rest.strip_suffix(" MiB")).unwrap().parse().unwrap();
    assert!((48..64).contains(&mib), "{said}");
    assert_eq!(hold(&["-q", "--cgroup", "off", "--memory", "256M"], "private", "100"), "ok 100 MiB");
}

/// If shared memory were counted, the report would be wrong.
#[test]
fn shared_memory_is_not_counted_and_the_report_says_so() {
    let dir = workspace();
    let (_, said) = report(dir.path(), &["--cgroup", "off", "--memory", "16M"], &["true"]);
    let (state, detail) = protection(&said, "memory");
    for kind in ["shared", "file", "segment"] {
        let held = hold(&["-q", "--cgroup", "off", "--memory", "16M"], kind, "40");
        if state == "degraded" {
            assert_eq!(held, "ok 40 MiB", "{kind}");
            assert!(detail.contains("shared memory and files in private places are not counted"), "{detail}");
        } else {
            assert_ne!(held, "ok 40 MiB", "{kind}: {detail}");
        }
    }
}

/// The host bounds pipes, by fs.pipe-user-pages-soft of the user. Even real root lacks the capability that
/// would lift it. Message queues have a limit too (RLIMIT_MSGQUEUE), but Landlock allows none: they are in no
/// grant.
#[test]
fn queues_and_pipes_are_bounded_by_the_host() {
    let queues = hold(&["-q"], "queue", "5000");
    match kennel::probe::Host::detect().landlock_abi {
        0 => assert!(queues.starts_with("EMFILE "), "{queues}"),
        _ => assert_eq!(queues, "EACCES 0 queues"),
    }
    let pipes = hold(&["-q"], "pipe", "900");
    assert!(pipes.starts_with("EPERM "), "{pipes}");
}

/// Many files of a limited size hold no more than the private directories do.
#[test]
fn files_in_private_places_are_memory_of_a_bounded_size() {
    let dir = workspace();
    let script =
        "cd /dev/shm; i=0; while head -c 1M /dev/zero > $i; do i=$((i+1)); done; cat * | wc -c; exit 1";
    let flags = ["-q", "--cgroup", "off", "--memory", "16M", "--tmp-size", "8M"];
    let (output, said) = report(dir.path(), &flags, &["sh", "-c", script]);
    let bytes: u64 = crate::support::stdout(&output).parse().unwrap();
    assert!((7 << 20..9 << 20).contains(&bytes), "{output:?}");
    assert_eq!(said["limit"], "tmpfs");
}
