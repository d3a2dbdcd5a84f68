//! The variables that the command gets.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Output},
};

use crate::support::{kennel_path, require_ci_only, stderr, stdout, workspace};

/// `kennel run FLAGS -- env -0` with exactly these variables in its own environment.
fn run(dir: &Path, flags: &[&str], variables: &[(&str, &str)]) -> Output {
    Command::new(kennel_path())
        .current_dir(dir)
        .env_clear()
        .envs(variables.iter().copied())
        .arg("run")
        .args(flags)
        .args(["--", "/usr/bin/env", "-0"])
        .output()
        .unwrap()
}

/// The variables that a command gets if its caller has these.
fn inside(flags: &[&str], variables: &[(&str, &str)]) -> BTreeMap<String, String> {
    let dir = workspace();
    let output = run(dir.path(), flags, variables);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let pair = |pair: &str| pair.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    text.split_terminator('\0').map(|text| pair(text).unwrap()).collect()
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

const USUAL: [(&str, &str); 11] = [
    ("COLORTERM", "truecolor"),
    ("HOME", "/home/kennel-test"),
    ("LANG", "C.UTF-8"),
    ("LC_ALL", "C"),
    ("LC_TIME", "C"),
    ("LOGNAME", "me"),
    ("PATH", "/usr/bin:/bin"),
    ("SHELL", "/bin/sh"),
    ("TERM", "xterm"),
    ("TZ", "UTC"),
    ("USER", "me"),
];

const SECRETS: [(&str, &str); 10] = [
    ("AWS_SECRET_ACCESS_KEY", "secret"),
    ("GITHUB_TOKEN", "secret"),
    ("SSH_AUTH_SOCK", "/tmp/agent"),
    ("DBUS_SESSION_BUS_ADDRESS", "unix:path=/run/bus"),
    ("XDG_RUNTIME_DIR", "/run/user/0"),
    ("LD_PRELOAD", ""),
    ("LD_LIBRARY_PATH", "/x"),
    ("TMPDIR", "/var/tmp"),
    ("LCX", "x"),
    ("PYTHONPATH", "/x"),
];

#[test]
fn scrubbed_environment_is_exactly_the_documented_list() {
    let all = [&USUAL[..], &SECRETS].concat();
    assert_eq!(inside(&[], &all), map(&USUAL));
    assert_eq!(inside(&["--env", "scrubbed"], &all), map(&USUAL));
}

#[test]
fn inherited_environment_is_the_caller_s_but_for_temporary_directories() {
    let temporary = [("TMPDIR", "/a"), ("TMP", "/b"), ("TEMP", "/c"), ("TEMPDIR", "/d")];
    let others = [("A", "1"), ("EMPTY", ""), ("MULTI", "a\nb"), ("SPACE D", "x"), ("GITHUB_TOKEN", "t")];
    let all = [&USUAL[..], &others, &temporary].concat();
    assert_eq!(inside(&["--env", "inherit"], &all), map(&[&USUAL[..], &others].concat()));
}

#[test]
fn variables_are_passed_by_name() {
    let all = [&USUAL[..], &SECRETS].concat();
    let flags = ["--pass-env", "GITHUB_TOKEN", "--pass-env", "NOT_SET", "--pass-env", "TMPDIR"];
    let expected = [&USUAL[..], &[("GITHUB_TOKEN", "secret"), ("TMPDIR", "/var/tmp")]].concat();
    assert_eq!(inside(&flags, &all), map(&expected));
}

#[test]
fn variables_are_set_and_win() {
    let flags = [
        "--setenv",
        "A=b=c",
        "--setenv",
        "USER=other",
        "--setenv",
        "EMPTY=",
        "--pass-env",
        "GITHUB_TOKEN",
        "--setenv",
        "GITHUB_TOKEN=set",
    ];
    let variables = inside(&flags, &[&USUAL[..], &SECRETS].concat());
    for (name, value) in [("A", "b=c"), ("USER", "other"), ("EMPTY", ""), ("GITHUB_TOKEN", "set")] {
        assert_eq!(variables[name], value, "{name}");
    }
    assert_eq!(variables.len(), USUAL.len() + 3);
}

#[test]
fn path_and_home_are_there_even_when_the_caller_has_none() {
    let variables = inside(&[], &[]);
    assert_eq!(variables["PATH"], "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    assert!(variables["HOME"].starts_with('/'), "{variables:?}");
    assert_eq!(variables.len(), 2, "{variables:?}");
    assert!(inside(&[], &[("HOME", "relative")])["HOME"].starts_with('/'));
}

#[test]
fn ci_only_has_a_fixed_environment() {
    require_ci_only!();
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let fixed = [
        ("CI", "true"),
        ("HOME", "/home/ci"),
        ("LANG", "C.UTF-8"),
        ("LOGNAME", "ci"),
        ("PATH", path),
        ("USER", "ci"),
    ];
    let all = [&USUAL[..], &SECRETS].concat();
    assert_eq!(inside(&["--profile", "ci-only"], &all), map(&fixed));
    let refused = run(workspace().path(), &["--profile", "ci-only", "--env", "inherit"], &all);
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert!(stderr(&refused).contains("profile ci-only has a fixed environment"), "{refused:?}");
    let flags = ["--profile", "ci-only", "--setenv", "A=1", "--pass-env", "GITHUB_TOKEN"];
    let more = [&fixed[..], &[("A", "1"), ("GITHUB_TOKEN", "secret")]].concat();
    assert_eq!(inside(&flags, &all), map(&more), "what is asked for by name");
}

#[test]
fn policy_file_has_the_same_effect() {
    let (dir, beside) = (workspace(), workspace());
    let text = format!(
        "workspace = '{}'\n[env]\nbase = 'scrubbed'\npass = ['GITHUB_TOKEN']\nset = {{ A = 'b' }}",
        dir.path().display()
    );
    fs::write(beside.path().join("p.toml"), text).unwrap();
    let file = beside.path().join("p.toml");
    let variables = inside(&["--policy", file.to_str().unwrap()], &[&USUAL[..], &SECRETS].concat());
    assert_eq!(variables, map(&[&USUAL[..], &[("GITHUB_TOKEN", "secret"), ("A", "b")]].concat()));
}

#[test]
fn invalid_names_are_refused_without_their_values() {
    let dir = workspace();
    for flags in [["--setenv", "=hidden-value"], ["--pass-env", ""], ["--pass-env", "A=hidden-value"]] {
        let output = run(dir.path(), &flags, &USUAL);
        assert_eq!(output.status.code(), Some(125), "{flags:?}: {output:?}");
    }
    let output = run(dir.path(), &["--setenv", "=hidden-value"], &USUAL);
    assert!(!stderr(&output).contains("hidden-value") && stdout(&output).is_empty(), "{output:?}");
}

#[test]
fn variables_of_tools_are_passed_if_what_they_name_is_visible() {
    let tools = workspace();
    let place = |name: &str| tools.path().join(name).display().to_string();
    for name in ["cargo/bin", "rustup", "venv", "gems/one", "gems/two"] {
        fs::create_dir_all(place(name)).unwrap();
    }
    let (cargo, rustup, venv) = (place("cargo"), place("rustup"), place("venv"));
    let gems = format!("{}:{}", place("gems/one"), place("gems/two"));
    let visible = [
        ("CARGO_HOME", &*cargo),
        ("GEM_PATH", &*gems),
        ("RUSTUP_HOME", &*rustup),
        ("VIRTUAL_ENV", &*venv),
        ("VIRTUAL_ENV_PROMPT", "(v)"),
    ];
    let half = format!("{venv}:{}", place("absent"));
    let not = [("NVM_DIR", "/x/nvm"), ("JAVA_HOME", "/x/jdk"), ("PERL5LIB", &half), ("CONDA_SHLVL", "1")];
    let all = [&USUAL[..], &visible, &not].concat();
    assert_eq!(inside(&[], &all), map(&[&USUAL[..], &visible].concat()));
    assert_eq!(inside(&["--toolchains", "none"], &all), map(&USUAL));
}
