//! The variables that the command gets.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::net::UnixListener,
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

/// The variables that a command gets if its caller has these, without those that Kennel sets for git and for
/// the proxy.
fn inside(flags: &[&str], variables: &[(&str, &str)]) -> BTreeMap<String, String> {
    let mut found = all_inside(flags, variables);
    found.retain(|name, value| ![&TO_GIT[..], &TO_PROXY].concat().contains(&(name, value)));
    found
}

fn all_inside(flags: &[&str], variables: &[(&str, &str)]) -> BTreeMap<String, String> {
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

const USUAL: [(&str, &str); 12] = [
    ("COLORTERM", "truecolor"),
    ("HOME", "/home/kennel-test"),
    ("LANG", "C.UTF-8"),
    ("LC_ALL", "C"),
    ("LC_TIME", "C"),
    ("LOGNAME", "me"),
    ("PATH", "/usr/bin:/bin"),
    ("PROC_ROOT", "/proc"),
    ("SHELL", "/bin/sh"),
    ("TERM", "xterm"),
    ("TZ", "UTC"),
    ("USER", "me"),
];

/// What tells git to finish its maintenance before it ends.
const TO_GIT: [(&str, &str); 5] = [
    ("GIT_CONFIG_COUNT", "2"),
    ("GIT_CONFIG_KEY_0", "gc.autoDetach"),
    ("GIT_CONFIG_VALUE_0", "false"),
    ("GIT_CONFIG_KEY_1", "maintenance.autoDetach"),
    ("GIT_CONFIG_VALUE_1", "false"),
];

/// What commands get if no rule allows anything.
const TO_PROXY: [(&str, &str); 8] = [
    ("CARGO_NET_RETRY", "0"),
    ("PIP_RETRIES", "0"),
    ("UV_HTTP_RETRIES", "0"),
    ("YARN_HTTP_RETRY", "0"),
    ("npm_config_fetch_retries", "0"),
    ("http_proxy", "http://127.0.0.1:3128"),
    ("https_proxy", "http://127.0.0.1:3128"),
    ("no_proxy", "localhost,127.0.0.1,127.0.0.0/8,::1,[::1],0.0.0.0,::,[::],kennel"),
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
    let without_network = [&USUAL[..], &TO_GIT].concat();
    assert_eq!(all_inside(&["--net", "none"], &all), map(&without_network));
    for flags in [&[][..], &["--env", "scrubbed"]] {
        assert_eq!(all_inside(flags, &all), map(&[&without_network[..], &TO_PROXY].concat()), "{flags:?}");
    }
}

#[test]
fn inherited_environment_is_the_caller_s_but_for_temporary_directories() {
    let temporary = [("TMPDIR", "/a"), ("TMP", "/b"), ("TEMP", "/c"), ("TEMPDIR", "/d")];
    let others = [("A", "1"), ("EMPTY", ""), ("MULTI", "a\nb"), ("SPACE D", "x"), ("GITHUB_TOKEN", "t")];
    let all = [&USUAL[..], &others, &temporary].concat();
    assert_eq!(inside(&["--env", "inherit", "--net", "none"], &all), map(&[&USUAL[..], &others].concat()));
}

/// A workspace with a file, and the environment that names it and what is beside it, with `kennel run FLAGS`.
fn inherited(flags: &[&str], variables: &[(&str, &str)]) -> BTreeMap<String, String> {
    let all = [&[("PATH", "/usr/bin:/bin")], variables].concat();
    let mut found = inside(&[&["--env", "inherit"], flags].concat(), &all);
    found.retain(|name, _| variables.iter().any(|(other, _)| name == other));
    found
}

#[test]
fn what_names_a_place_that_commands_do_not_see_is_not_inherited() {
    let beside = workspace();
    let there = beside.path().join("there");
    let _listener = UnixListener::bind(&there).unwrap();
    let there = there.to_str().unwrap();
    let (bus, docker) = (format!("unix:path={there},guid=1"), format!("unix://{there}"));
    let (tmux, gpg) = (format!("{there},1,0"), format!("{there}:1:1"));
    let named = [
        ("SSH_AUTH_SOCK", there),
        ("XDG_RUNTIME_DIR", beside.path().to_str().unwrap()),
        ("DBUS_SESSION_BUS_ADDRESS", &bus),
        ("DOCKER_HOST", &docker),
        ("TMUX", &tmux),
        ("GPG_AGENT_INFO", &gpg),
        ("WAYLAND_DISPLAY", "there"),
        ("GIT_ASKPASS", there),
        ("ANY_NAME_AT_ALL", there),
    ];
    assert_eq!(inherited(&[], &named), BTreeMap::new());
    let grant = beside.path().to_str().unwrap();
    assert_eq!(inherited(&["--rw", grant], &named), map(&named), "granted");
    let elsewhere = [
        ("DISPLAY", ":987"),
        ("STY", "1.pts-0.host"),
        ("MISSING", "/run/missing/socket"),
        ("ABSTRACT", "unix:abstract=/tmp/bus"),
        ("SSH_TTY", "/dev/pts/987"),
    ];
    assert_eq!(inherited(&[], &elsewhere), BTreeMap::new());
}

#[test]
fn what_names_no_hidden_place_is_inherited() {
    let kept = [
        ("SHELL", "/bin/sh"),
        ("BASE_URL", "/api/v1"),
        ("SLASH", "/"),
        ("NEW_FILE", "/tmp/not/there/yet"),
        ("DEVICE", "/dev/null"),
        ("DOCKER_HOST", "tcp://192.0.2.1:2375"),
        ("LIST", "/run/missing:/usr/lib"),
        ("LD_LIBRARY_PATH", "/usr/lib"),
        ("EMPTY", ""),
    ];
    assert_eq!(inherited(&[], &kept), map(&kept));
}

/// ssh forwards X11 to a port of loopback, from 6010 on.
#[test]
fn a_display_of_ssh_is_inherited_where_its_port_is_reached() {
    let display = [("DISPLAY", "localhost:10.0")];
    assert_eq!(inherited(&[], &display), BTreeMap::new());
    assert_eq!(inherited(&["--allow", "localhost:6011"], &display), BTreeMap::new());
    assert_eq!(inherited(&["--allow", "localhost:6010"], &display), map(&display));
    assert_eq!(inherited(&["--net", "host"], &display), map(&display));
}

#[test]
fn what_is_passed_by_name_and_leads_nowhere_is_noted() {
    let beside = workspace();
    let path = beside.path().to_str().unwrap();
    let dir = workspace();
    let caller = [("PATH", "/usr/bin:/bin"), ("SSH_AUTH_SOCK", path)];
    let output = run(dir.path(), &["--pass-env", "SSH_AUTH_SOCK"], &caller);
    let note = format!("kennel: note: SSH_AUTH_SOCK: it names {path}, which commands do not see");
    assert!(stderr(&output).contains(&note), "{output:?}");
    assert!(stdout(&output).contains(&format!("SSH_AUTH_SOCK={path}")), "{output:?}");
    let output = run(dir.path(), &["--pass-env", "SSH_AUTH_SOCK", "--rw", path], &caller);
    assert_eq!(stderr(&output), "", "{output:?}");
}

#[test]
fn variables_that_steer_output_and_builds_are_kept() {
    let steering = [
        ("NO_COLOR", "1"),
        ("FORCE_COLOR", "3"),
        ("COLUMNS", "100"),
        ("EDITOR", "vim"),
        ("RUSTFLAGS", "-C opt-level=1"),
        ("CC", "clang"),
        ("CI", "true"),
    ];
    assert_eq!(inside(&[], &[&USUAL[..], &steering].concat()), map(&[&USUAL[..], &steering].concat()));
    let hidden = workspace();
    let editor = [("EDITOR", hidden.path().to_str().unwrap())];
    assert_eq!(inside(&[], &[&USUAL[..], &editor].concat()), map(&USUAL), "commands do not see it");
}

#[test]
fn registries_are_kept_unless_they_may_hold_a_password() {
    let registries = [
        ("PIP_INDEX_URL", "https://pypi.corp.example/simple"),
        ("npm_config_registry", "https://npm.corp.example/"),
        ("CARGO_REGISTRIES_CORP_INDEX", "sparse+https://cargo.corp.example/index/"),
        ("GOPROXY", "https://go.corp.example,direct"),
        ("GOPRIVATE", "*.corp.example"),
    ];
    let secret = [
        ("PIP_EXTRA_INDEX_URL", "https://user:hunter2@pypi.corp.example/simple"),
        ("UV_INDEX_URL", "https://hunter2@pypi.corp.example/simple"),
        ("HF_ENDPOINT", "https://hf.corp.example/?token=hunter2"),
        ("CARGO_REGISTRIES_CORP_TOKEN", "hunter2"),
        ("CARGO_REGISTRIES__INDEX", "no name"),
    ];
    let all = [&USUAL[..], &registries, &secret].concat();
    assert_eq!(inside(&[], &all), map(&[&USUAL[..], &registries].concat()));
    let output = run(workspace().path(), &["--pass-env", "UV_INDEX_URL"], &all);
    let said = stderr(&output);
    let note = |name: &str| {
        format!(
            "note: {name}: left out of the environment, because it may hold a password; --pass-env {name} passes it on"
        )
    };
    assert!(said.contains(&note("PIP_EXTRA_INDEX_URL")) && said.contains(&note("HF_ENDPOINT")), "{said}");
    assert!(!said.contains("UV_INDEX_URL") && !said.contains("hunter2"), "{said}");
    assert!(stdout(&output).contains("UV_INDEX_URL=https://hunter2@"), "{output:?}");
    require_ci_only!();
    let ci = inside(&["--profile", "ci-only"], &all);
    assert!(!ci.keys().any(|name| name.contains("INDEX") || name == "GOPROXY"), "{ci:?}");
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
    assert_eq!((variables.len(), &*variables["PROC_ROOT"]), (3, "/proc"), "{variables:?}");
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
