//! Limits hold, or the report says that they do not.
//!
//! | module | promise |
//! | --- | --- |
//! | `attacks` | a limit ends a command that takes everything, and a session beside it goes on |
//! | `memory` | what counts as memory without a cgroup, and what does not |
//! | `asked` | a limit that was asked for and nothing holds is refused, by every door |
//! | `outcomes` | the outcome names the limit that ended a command, if it is certain |

mod asked;
mod attacks;
mod flight;
mod memory;
mod outcomes;

use std::{
    fs,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::support::{
    fails, has, has_scopes, kennel, kennel_path, only_as_root, only_as_user, patient, protection, refused,
    report, require, stderr, stdout, succeeds, workspace,
};

/// Runs with `[limits]` from a policy file.
fn with_limits(limits: &str, script: &str) -> (std::process::Output, Value) {
    let (dir, beside) = (workspace(), workspace());
    let file = beside.path().join("policy.toml");
    fs::write(&file, format!("workspace = '{}'\n[limits]\n{limits}\n", dir.path().display())).unwrap();
    report(dir.path(), &["--policy", file.to_str().unwrap()], &["sh", "-c", script])
}

#[test]
fn memory_limit_says_how_weak_it_is() {
    let dir = workspace();
    let (output, report) = report(dir.path(), &["--cgroup", "off", "--memory", "64M"], &["true"]);
    assert!(output.status.success(), "{output:?}");
    let detail = "RLIMIT_DATA: private writable memory of each process, not of all together; shared memory and files in \
                  private places are not counted";
    assert_eq!(protection(&report, "memory"), ("degraded", detail));
    assert_eq!(report["enforcement"]["level"], "partial");
    assert_eq!(stderr(&output).lines().last(), Some(&*format!("kennel: memory degraded: {detail}")));
    let output =
        kennel(dir.path(), &["--cgroup", "off", "--memory", "64M", "--quiet"], &["true"]).output().unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_swap_limit_that_is_not_enforced_is_reported() {
    let dir = workspace();
    let flags = ["--cgroup", "off", "--memory", "64M", "--swap", "8M"];
    let said = refused(dir.path(), &flags);
    assert!(said.contains("memory: cannot be kept here: what is swapped out of it is not limited"), "{said}");
    let flags = [&flags[..], &["--on-unavailable", "degrade"]].concat();
    let (output, report) = report(dir.path(), &flags, &["true"]);
    assert!(output.status.success(), "{output:?}");
    let (state, detail) = protection(&report, "memory");
    assert!(
        state == "degraded" && detail.ends_with("; what is swapped out of it is not limited"),
        "{detail}"
    );
    assert_eq!(stderr(&output).lines().last(), Some(&*format!("kennel: memory degraded: {detail}")));
}

#[test]
fn memory_limit_holds_for_one_process() {
    require!(has("python3"), "python3");
    let dir = workspace();
    let allocate = |limit: &str| {
        let command = ["python3", "-c", "b = bytearray(10**9); print(len(b))"];
        kennel(dir.path(), &["--quiet", "--cgroup", "off", "--memory", limit], &command).output().unwrap()
    };
    let output = allocate("64M");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).ends_with("MemoryError"), "{output:?}");
    assert_eq!(stdout(&allocate("2G")), "1000000000");
}

#[test]
fn process_limit_holds_for_an_ordinary_user() {
    only_as_user!();
    let dir = workspace();
    let (_, said) = report(dir.path(), &["--cgroup", "off", "--pids", "20"], &["true"]);
    assert_eq!(protection(&said, "pids").0, "enforced");
    let script = format!(
        "i=0; while [ $i -lt 30 ]; do sleep {} & i=$((i+1)); done; wait; echo all",
        patient(Duration::from_secs(1)).as_secs()
    );
    let output =
        kennel(dir.path(), &["--cgroup", "off", "--pids", "20"], &["sh", "-c", &script]).output().unwrap();
    assert!(
        stderr(&output).contains("Cannot fork") || stderr(&output).contains("Resource temporarily"),
        "{output:?}"
    );
    assert_eq!(succeeds(dir.path(), &["--cgroup", "off", "--pids", "60"], &script), "all");
    // Two sandboxes do not count each other's processes.
    let mut other =
        kennel(dir.path(), &["--cgroup", "off", "--pids", "40"], &["sh", "-c", &script]).spawn().unwrap();
    assert_eq!(succeeds(dir.path(), &["--cgroup", "off", "--pids", "40"], &script), "all");
    assert!(other.wait().unwrap().success());
}

/// Whether each pid namespace has a `kernel.pid_max` of its own.
pub fn has_pid_max() -> bool {
    kennel::probe::Host::detect().kernel >= kennel::probe::Version(6, 14)
}

/// How the number of processes of real root is limited, according to the report, and how many it can make.
#[test]
fn process_limit_says_how_it_holds_for_root() {
    only_as_root!();
    let dir = workspace();
    let of_host = || fs::read_to_string("/proc/sys/kernel/pid_max").unwrap();
    let before = of_host();
    let mut flags = vec!["--cgroup", "off", "--pids", "20"];
    if !has_pid_max() {
        let said = refused(dir.path(), &flags);
        assert!(said.contains("pids: cannot be kept here: the kernel never applies RLIMIT_NPROC"), "{said}");
        flags.extend(["--on-unavailable", "degrade"]);
    }
    let (output, report) = report(dir.path(), &flags, &["sh", "-c", "cat /proc/sys/kernel/pid_max"]);
    let possible = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap();
    let last: u64 = possible.trim().rsplit(['-', ',']).next().unwrap().parse().unwrap();
    let numbers = 321.max(8 * (last + 1));
    let instead = format!(
        "; kernel.pid_max of the pid namespace is used instead, which allows up to {} more",
        numbers - 21
    );
    let never = "the kernel never applies RLIMIT_NPROC to real root";
    let (state, detail) = if has_pid_max() {
        ("degraded", &*instead)
    } else {
        ("off", ", and before Linux 6.14 pid namespaces have no limit of their own")
    };
    let detail = &*format!("{never}{detail}");
    assert_eq!(protection(&report, "pids"), (state, detail));
    assert_eq!(report["enforcement"]["level"], "partial");
    assert!(stderr(&output).contains(&format!("kennel: pids {state}: {detail}")), "{output:?}");
    let inside = if has_pid_max() { numbers.to_string() } else { before.trim().to_owned() };
    assert_eq!((stdout(&output), of_host()), (inside, before), "the host's stays what it was");
}

#[test]
fn process_limit_holds_for_root_where_the_kernel_can() {
    only_as_root!();
    require!(has_pid_max(), "kernel.pid_max of a pid namespace, Linux 6.14");
    let dir = workspace();
    let script = format!(
        "i=0; while [ $i -lt 400 ]; do sleep {} & i=$((i+1)); done; wait; echo all",
        patient(Duration::from_secs(2)).as_secs()
    );
    let output = kennel(dir.path(), &["-q", "--cgroup", "off", "--pids", "20"], &["sh", "-c", &script])
        .output()
        .unwrap();
    assert!(stderr(&output).contains("Cannot fork"), "{output:?}");
    assert_eq!(succeeds(dir.path(), &["-q", "--cgroup", "off", "--pids", "600"], &script), "all");
    // As many processes as the limit allows, however many numbers were used before.
    let script = "i=0; while [ $i -lt 500 ]; do (exit 0); i=$((i+1)); done; \
                  i=0; while [ $i -lt 19 ]; do sleep 1 & i=$((i+1)); done; wait; echo all";
    assert_eq!(succeeds(dir.path(), &["-q", "--cgroup", "off", "--pids", "20"], script), "all");
}

/// A command does not inherit advantages of its caller: neither a real-time policy, which limits on
/// processors do not bound, nor a low chance to be killed when memory runs out (setting one needs
/// CAP_SYS_RESOURCE).
#[test]
fn commands_are_no_further_ahead_than_others() {
    only_as_root!();
    require!(has("chrt") && has("ionice"), "chrt, ionice");
    let dir = workspace();
    let look = "for p in 1 $$; do chrt -p $p | head -n 1 | sed 's/.*: //'; ionice -p $p; cut -d' ' -f19 /proc/$p/stat; \
                cat /proc/$p/oom_score_adj; grep -cE '^Max (nice|realtime) priority +0 +0' /proc/$p/limits; done";
    // Nor can it get one, which needs CAP_SYS_RESOURCE too.
    let outside = "(echo -1000 > /proc/self/oom_score_adj) 2>/dev/null; prlimit --pid $$ --rtprio=10 --nice=30 2>/dev/null; exec nice -n -15 ionice -c 1 -n 3 \"$@\"";
    let ordinary = "SCHED_OTHER\nnone: prio 0\n0\n0\n2";
    let kennel = kennel_path();
    let steps =
        "$0 session start --name ahead >/dev/null; $0 exec ahead -- sh -c \"$1\"; $0 session stop ahead";
    for policy in [&["chrt", "-f", "10"][..], &["chrt", "-r", "10"], &["chrt", "-o", "0"]] {
        let one_shot = ["run", "-q", "--cgroup", "off", "--", "sh", "-c", look].map(str::to_owned);
        let one_shot = [&[kennel.display().to_string()][..], &one_shot].concat();
        let session = ["sh", "-c", steps, kennel.to_str().unwrap(), look].map(str::to_owned).to_vec();
        for command in [one_shot, session] {
            let mut shell = std::process::Command::new("sh");
            shell.args(["-c", outside, "sh"]).args(policy).args(&command).current_dir(dir.path());
            let sockets = workspace();
            let output = shell.env("XDG_RUNTIME_DIR", sockets.path()).output().unwrap();
            assert_eq!(stdout(&output), format!("{ordinary}\n{ordinary}"), "{policy:?}: {output:?}");
        }
    }
}

/// The alternative is weaker, so Kennel refuses.
#[test]
fn a_required_process_limit_is_refused_for_root() {
    only_as_root!();
    let (dir, beside) = (workspace(), workspace());
    let file = beside.path().join("policy.toml");
    let policy = format!(
        "workspace = '{}'\nlimits = {{ pids = 20, cgroup = 'off' }}\nrequire.pids = 'required'",
        dir.path().display()
    );
    fs::write(&file, policy).unwrap();
    let said = refused(dir.path(), &["--policy", file.to_str().unwrap()]);
    assert!(said.contains("never applies RLIMIT_NPROC to real root"), "{said}");
}

#[test]
fn processors_limit_says_that_it_is_off() {
    let dir = workspace();
    let flags = ["--cgroup", "off", "--cpus", "1", "--on-unavailable", "degrade"];
    let (output, report) = report(dir.path(), &flags, &["true"]);
    assert!(output.status.success());
    assert_eq!(protection(&report, "cpus"), ("off", "needs a delegated cgroup v2"));
    assert!(stderr(&output).contains("kennel: cpus off: "), "{output:?}");
}

#[test]
fn processor_time_ends_a_busy_loop() {
    let dir = workspace();
    let start = Instant::now();
    let (output, report) = report(dir.path(), &["--cpu-time", "1s"], &["sh", "-c", "while :; do :; done"]);
    assert_eq!(crate::support::shown(output.status), Some(128 + 24), "SIGXCPU: {output:?}");
    assert!(start.elapsed() < patient(std::time::Duration::from_secs(20)));
    assert_eq!(
        (&report["limit"], &report["ended"], &report["signal"]),
        (&"cpu_time".into(), &"signaled".into(), &24.into())
    );
    let failure = &report["failure"];
    assert_eq!(
        (&failure["class"], &failure["boundary"]),
        (&"resource_limit_exceeded".into(), &"sandbox".into())
    );
    let details = &failure["details"];
    assert_eq!((&details["limit"], &details["configured"]), (&"cpu_time".into(), &"1s".into()));
    assert!(details["used"].as_str().is_some_and(|used| used.ends_with('s')), "{report}");
    assert!(report["usage"]["user_us"].as_u64().unwrap() > 500_000, "{report}");
    succeeds(dir.path(), &["--quiet", "--cpu-time", "1s"], "sleep 1.2");
}

#[test]
fn processor_time_ends_a_loop_that_ignores_the_warning() {
    let dir = workspace();
    let script = "trap '' XCPU; while :; do :; done";
    let (output, report) = report(dir.path(), &["--cpu-time", "1s"], &["sh", "-c", script]);
    assert_eq!(
        crate::support::shown(output.status),
        Some(128 + 9),
        "the hard limit a second later: {output:?}"
    );
    assert_eq!(report["limit"], "cpu_time");
}

#[test]
fn wall_time_limit_is_reported() {
    let dir = workspace();
    let (output, report) = report(dir.path(), &["--timeout", "100ms"], &["sleep", "60"]);
    assert_eq!(output.status.code(), Some(124));
    assert_eq!((&report["limit"], &report["ended"]), (&"wall_time".into(), &"timed_out".into()));
    assert_eq!(report["failure"]["class"], "timeout");
    let duration = report["duration_ms"].as_u64().unwrap();
    let details =
        serde_json::json!({"limit": "wall_time", "configured": "100ms", "used": format!("{duration}ms")});
    assert_eq!(report["failure"]["details"], details);
    assert!((100..5000).contains(&duration), "{duration}");
    assert_eq!(report["failure"]["message"], "command timed out after 100ms");
}

#[test]
fn output_beyond_the_cap_is_dropped_and_the_command_is_not_disturbed() {
    let dir = workspace();
    let script = "seq 1 200000; seq 1 100 >&2; echo done > done; exit 0";
    let (output, report) = report(dir.path(), &["--max-output", "1K"], &["sh", "-c", script]);
    assert_eq!(output.status.code(), Some(0));
    assert!(dir.path().join("done").exists(), "it ran to its end");
    let total: u64 = (1..=200_000u64).map(|number| number.to_string().len() as u64 + 1).sum();
    let marker = format!("\n[kennel: output truncated, {} bytes dropped]\n", total - 1024);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.strip_suffix(&marker).map(str::len), Some(1024), "{}", &text[1000..]);
    assert_eq!((&report["stdout_bytes"], &report["stderr_bytes"]), (&total.into(), &292.into()));
    assert_eq!(report["truncated"], true);
}

#[test]
fn output_within_the_cap_is_untouched() {
    let dir = workspace();
    for script in ["head -c 1023 /dev/zero", "head -c 1024 /dev/zero", "true"] {
        let (output, report) = report(dir.path(), &["--max-output", "1K"], &["sh", "-c", script]);
        assert!(output.stdout.iter().all(|&byte| byte == 0), "{output:?}");
        assert_eq!(
            (&report["truncated"], report["stdout_bytes"].as_u64()),
            (&false.into(), Some(output.stdout.len() as u64))
        );
    }
    let (output, report) = report(dir.path(), &["--max-output", "1K"], &["head", "-c", "1025", "/dev/zero"]);
    assert!(
        output.stdout.ends_with(b"\n[kennel: output truncated, 1 bytes dropped]\n")
            && report["truncated"] == true
    );
}

#[test]
fn each_stream_has_a_cap_of_its_own() {
    let dir = workspace();
    let script = "head -c 2000 /dev/zero >&2; head -c 100 /dev/zero";
    let output = kennel(dir.path(), &["--max-output", "1K"], &["sh", "-c", script]).output().unwrap();
    assert_eq!(output.stdout.len(), 100);
    assert!(output.stderr.starts_with(&[0; 1024]), "{}", stderr(&output));
    assert!(stderr(&output).contains("[kennel: output truncated, 976 bytes dropped]"));
}

#[test]
fn private_places_are_as_large_as_asked() {
    let dir = workspace();
    let flags = ["--tmp-size", "4M"];
    for place in ["/tmp", "/dev/shm", "~"] {
        succeeds(dir.path(), &flags, &format!("head -c 2M /dev/zero > {place}/f"));
        let said = fails(dir.path(), &flags, &format!("head -c 8M /dev/zero > {place}/f"));
        assert!(said.contains("No space left on device"), "{place}: {said}");
    }
    succeeds(dir.path(), &flags, "head -c 8M /dev/zero > f");
}

#[test]
fn private_places_run_out_of_inodes_and_not_of_the_host_s_memory() {
    let dir = workspace();
    let script =
        "i=0; while [ $i -lt 5000 ] && true > /tmp/$i; do i=$((i+1)); done; echo $i; [ $i -ge 5000 ]";
    let output = kennel(dir.path(), &["--tmp-size", "4M"], &["sh", "-c", script]).output().unwrap();
    assert!(!output.status.success() && stderr(&output).contains("No space left on device"), "{output:?}");
    let made: u32 = stdout(&output).parse().unwrap_or_else(|_| panic!("{output:?}"));
    assert!((500..1024).contains(&made), "4M / 4K: {made}");
    let flags = ["--tmpfs", "/scratch:1M"];
    let script = "cd /scratch; i=0; while [ $i -lt 500 ]; do mkdir $i || exit 3; i=$((i+1)); done";
    assert!(fails(dir.path(), &flags, script).contains("No space left on device"));
}

#[test]
fn open_files_limit_holds() {
    let script = "for fd in 3 4 5 6 7 8 9; do eval \"exec $fd< /dev/null\" || exit 9; done; ulimit -n";
    let (output, report) = with_limits("open_files = 6", script);
    assert!(!output.status.success(), "{output:?}");
    assert!(
        stderr(&output).contains("Bad file descriptor") || stderr(&output).contains("Too many open files"),
        "{output:?}"
    );
    assert_eq!(protection(&report, "open_files").0, "enforced");
    let (output, report) = with_limits("open_files = 64", script);
    assert_eq!(
        (stdout(&output).as_str(), &report["enforcement"]["level"]),
        ("64", &if has_scopes() { "full" } else { "partial" }.into())
    );
}

#[test]
fn file_size_limit_holds() {
    let (output, report) = with_limits("file_size = '1M'", "exec head -c 2000000 /dev/zero > big");
    assert_eq!(crate::support::shown(output.status), Some(128 + 25), "SIGXFSZ: {output:?}");
    assert_eq!(
        (&report["limit"], &report["failure"]["class"]),
        (&"file_size".into(), &"resource_limit_exceeded".into())
    );
    assert_eq!(report["failure"]["details"], serde_json::json!({"limit": "file_size", "configured": "1M"}));
    let (output, _) = with_limits("file_size = '1M'", "head -c 1000000 /dev/zero > big");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn limits_of_the_host_stay_unless_the_policy_sets_them() {
    let dir = workspace();
    // Of files, three quarters of what the caller may raise its own limit to.
    let files = "hard=$(ulimit -Hn); most=$((hard - hard / 4)); soft=$(ulimit -n); echo $((soft < most ? soft : most))";
    let script = format!("{files}; ulimit -s; ulimit -d");
    let outside = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(succeeds(dir.path(), &[], "ulimit -n; ulimit -s; ulimit -d"), stdout(&outside));
}

#[test]
fn limits_cannot_be_raised_inside() {
    let (output, _) = with_limits("open_files = 64\nmemory = '64M'", "ulimit -n 128 || exit 3");
    assert!(output.status.code().is_some_and(|code| code != 0), "{output:?}");
    let said = stderr(&output);
    assert!(said.contains("Operation not permitted") || said.contains("Invalid argument"), "{said}");
}

#[test]
fn impossible_limits_are_refused() {
    let dir = workspace();
    for (flags, words) in [
        (["--pids", "0"], "limits.pids `0`: must be at least 1"),
        (["--cpus", "0"], "limits.cpus `0`: must be a number above 0"),
        (["--cpus", "nan"], "limits.cpus `NaN`: must be a number above 0"),
        (["--timeout", "0s"], "time `0s`: expected a time above 0"),
        (["--cpu-time", "9000d"], "9000d"),
        (["--memory", "lots"], "lots"),
        (["--timeout", "-1s"], "'-1'"),
    ] {
        let output = kennel(dir.path(), &flags, &["echo", "ran"]).output().unwrap();
        assert!(output.status.code() == Some(125) && output.stdout.is_empty(), "{flags:?}: {output:?}");
        assert!(stderr(&output).contains(words), "{flags:?}: {output:?}");
    }
    assert!(refused(dir.path(), &["--timeout", "9000h"]).contains("at most a year"));
}
