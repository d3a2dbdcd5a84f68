//! Asking programs for their help.

use std::{
    fs,
    time::{Duration, Instant},
};

use kennel::{
    Ended,
    broker::{run_help, run_help_by_name, sandbox_available},
    report::Class,
};

use super::Home;
use crate::support::patient;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn help_reads_the_directory_and_writes_nothing() {
    let script = "LC_ALL=C; export LC_ALL; echo \"$@\"; pwd; cat f; (echo x > made) 2>&1; (echo x > ../out/made) 2>&1; \
                  ls -A ~; cat /proc/net/dev | tail -n +3 | cut -d: -f1; echo err >&2";
    let home = Home::new(script);
    fs::write(home.at("in/f"), "read\n").unwrap();
    let output = run_help(home.at("bin/tool"), &home.at("in"), &["issue", "create"]).await.unwrap();
    let heard = text(&output.stdout);
    let lines: Vec<&str> = heard.lines().collect();
    assert_eq!(lines[..3], ["issue create --help", home.at("in").to_str().unwrap(), "read"], "{heard}");
    assert!(lines[3].ends_with("Read-only file system"), "{heard}");
    assert!(lines[4].ends_with("nonexistent") || lines[4].ends_with("No such file or directory"), "{heard}");
    assert_eq!((lines[5].trim(), lines.len()), ("lo", 6), "{heard}");
    assert_eq!(text(&output.stderr), "err\n");
    assert!(!home.at("in/made").exists() && !home.at("out/made").exists());
}

#[tokio::test]
async fn help_gets_no_variable_but_those_that_every_program_gets() {
    let home = Home::new("cat /proc/$$/environ");
    let output = run_help(home.at("bin/tool"), &home.at("in"), &[]).await.unwrap();
    let heard = text(&output.stdout);
    for name in heard.split_terminator('\0').map(|variable| variable.split('=').next().unwrap()) {
        let is_usual = ["HOME", "LANG", "PATH", "TERM", "USER"].contains(&name) || name.starts_with("LC_");
        assert!(is_usual, "{name}: {heard:?}");
    }
    assert!(heard.contains("PATH="), "{heard:?}");
}

#[tokio::test]
async fn help_of_a_program_of_the_path() {
    let home = Home::new("");
    let output = run_help_by_name("ls", &home.at("in"), &[]).await.unwrap();
    assert!(output.outcome.status.success() && text(&output.stdout).contains("--all"), "{output:?}");
    let error = run_help_by_name("kennel-no-such-program", &home.at("in"), &[]).await.unwrap_err();
    assert_eq!((error.failure().class, error.exit_code()), (Class::LoadFailed, 127));
    let error = run_help_by_name("ls", &home.at("absent"), &[]).await.unwrap_err();
    assert_eq!(error.failure().class, Class::CapabilityDenied);
    for option in ["-c", "--upload-pack=x"] {
        let error = run_help_by_name("git", &home.at("in"), &["x", option]).await.unwrap_err();
        assert_eq!(error.failure().class, Class::CapabilityDenied, "{option}");
    }
}

#[tokio::test]
async fn only_an_absolute_path_or_a_name_says_what_runs() {
    let home = Home::new("echo ran");
    for path in ["tool", "bin/tool", "./tool", "~/bin/tool", ""] {
        let failure = run_help(path, &home.at("bin"), &[]).await.unwrap_err().failure();
        assert_eq!(failure.class, Class::CapabilityDenied, "{path}");
        assert!(failure.message.contains("is not an absolute path"), "{}", failure.message);
    }
    for name in ["/bin/ls", "./ls", "bin/ls"] {
        let failure = run_help_by_name(name, &home.at("in"), &[]).await.unwrap_err().failure();
        assert_eq!(failure.class, Class::CapabilityDenied, "{name}");
    }
    let absent = run_help(home.at("bin/absent"), &home.at("in"), &[]).await.unwrap_err();
    assert_eq!((absent.failure().class, absent.exit_code()), (Class::LoadFailed, 127));
}

#[tokio::test]
async fn help_ends_after_five_seconds_and_within_its_caps() {
    let home = Home::new("head -c 2000000 /dev/zero; head -c 2000000 /dev/zero >&2; sleep 60");
    let start = Instant::now();
    let output = run_help(home.at("bin/tool"), &home.at("in"), &[]).await.unwrap();
    assert_eq!(output.outcome.ended, Ended::TimedOut);
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(5) && took < patient(Duration::from_secs(15)), "{took:?}");
    assert!(text(&output.stdout).ends_with("[kennel: output truncated, 951424 bytes dropped]\n"));
    assert!(text(&output.stderr).ends_with("[kennel: output truncated, 1737856 bytes dropped]\n"));
}

#[tokio::test]
async fn a_host_that_confines_reports_it() {
    // All tests here depend on that.
    sandbox_available().await.unwrap();
}
