//! Files, network, variables and limits: what the manifest grants works, and the rest does not.

use std::{fs, net::TcpListener, os::unix::fs::symlink, time::Duration};

use kennel::{
    Ended, Error,
    broker::{Envelope, Manifest, NoCredentials, SpawnError, SpawnLimits, SpawnPolicy},
    report::{Boundary, Class},
};

use super::{Home, keys, said, tool, tool_with_token};
use crate::support::{beats, is_silent, until};

#[tokio::test]
async fn only_what_the_manifest_lists_is_visible() {
    let home = Home::new("cat \"$1\"/in/f; echo x > \"$1\"/out/made && ls -A \"$1\"; pwd");
    fs::write(home.at("in/f"), "read\n").unwrap();
    fs::write(home.at("other"), "hidden").unwrap();
    let base = home.at("").display().to_string();
    let policy = home.spawn_policy("fs_read = ['~/in']\nfs_write = ['~/out']\ncwd = '~/in'");
    let listed = said(policy.spawn(&tool(&[&base]), &NoCredentials).await);
    assert_eq!(listed, format!("read\nbin\nin\nout\n{}\n", home.at("in").display()), "no more than the way");
    assert_eq!(fs::read(home.at("out/made")).unwrap(), b"x\n");
}

#[tokio::test]
async fn readable_paths_are_read_only_and_other_paths_do_not_exist() {
    let script = "LC_ALL=C; export LC_ALL; (echo x > \"$1/in/f\") 2>&1; (echo x > \"$0\") 2>&1; cat \"$1/other\" 2>&1; \
                  ls -A ~; cat /etc/shadow 2>&1; (echo x > /etc/x) 2>&1; (echo x > /x) 2>&1; pwd";
    let home = Home::new(script);
    fs::write(home.at("in/f"), "before").unwrap();
    fs::write(home.at("other"), "hidden").unwrap();
    let base = home.at("").display().to_string();
    let heard = said(home.spawn_policy("fs_read = ['~/in']").spawn(&tool(&[&base]), &NoCredentials).await);
    let lines: Vec<&str> = heard.lines().collect();
    for (line, ends) in [
        (0, "Read-only file system"),
        (1, "Read-only file system"),
        (2, "No such file or directory"),
        (3, "No such file or directory"),
        (4, "Read-only file system"),
        (5, "Read-only file system"),
        (6, "/"),
    ] {
        assert!(lines[line].ends_with(ends), "{line}: {heard}");
    }
    assert_eq!(lines.len(), 7, "nothing of HOME: {heard}");
    assert_eq!(fs::read(home.at("in/f")).unwrap(), b"before");
}

#[tokio::test]
async fn without_hosts_there_is_no_network() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = "cat /proc/net/dev | tail -n +3 | cut -d: -f1; echo ${https_proxy-none}; \
                  exec 3<>/dev/tcp/127.0.0.1/$1 || echo refused";
    let home = Home::new("");
    let program = fs::read_to_string(home.at("bin/tool")).unwrap();
    fs::write(home.at("bin/tool"), program.replace("/bin/sh", "/bin/bash") + script).unwrap();
    let heard = said(home.spawn_policy("").spawn(&tool(&[&port.to_string()]), &NoCredentials).await);
    let words: Vec<&str> = heard.split_whitespace().collect();
    assert_eq!(words, ["lo", "none", "refused"], "{heard}");
    assert!(listener.accept().is_err(), "nobody came");
}

#[tokio::test]
async fn variables_come_from_the_envelope_and_from_the_caller() {
    let home =
        Home::new("echo \"${A-unset} ${PATH:+path} ${CARGO_PKG_NAME-unset} ${CARGO_MANIFEST_DIR-unset}\"");
    let policy = home.spawn_policy("env_passthrough = ['A', 'CARGO_PKG_NAME']");
    let mut envelope = tool(&[]);
    envelope.env.insert("A".to_owned(), "mine".to_owned());
    let passed = std::env::var("CARGO_PKG_NAME").unwrap_or_else(|_| "unset".to_owned());
    let heard = said(policy.spawn(&envelope, &NoCredentials).await);
    assert_eq!(heard, format!("mine path {passed} unset\n"));
    // The embedding program may say where the values come from.
    let own = policy.variables(|name| Some(format!("value of {name}").into()));
    let heard = said(own.spawn(&tool(&[]), &NoCredentials).await);
    assert_eq!(heard, "value of A path value of CARGO_PKG_NAME unset\n");
}

/// Variables that a policy passes on, and that a manifest has to list.
const OF_POLICIES: &[&str] = &[
    "CARGO_REGISTRY_DEFAULT",
    "EDITOR",
    "GIT_AUTHOR_EMAIL",
    "LANGUAGE",
    "LOGNAME",
    "PAGER",
    "PIP_INDEX_URL",
    "RUSTFLAGS",
    "SHELL",
    "TERM_PROGRAM",
    "TZ",
    "XDG_CONFIG_HOME",
];

#[test]
fn a_program_gets_only_the_variables_that_its_manifest_lists() {
    let home = Home::new("");
    let manifest = "[capabilities.spawn]\nprograms = [{ path = '/usr/bin/env' }]\nenv_passthrough = ['PAGER', 'TZ']\n\
                    [capabilities.spawn.operations]\nshow = 'env'\n";
    let hosts = "[capabilities.network]\nhosts = ['a.example:443']\n";
    let names = |manifest: &str| {
        let mut command = home.op(manifest, &["show"]);
        let base = [("PATH", "/usr/bin:/bin"), ("USER", "me"), ("LANG", "C"), ("TERM", "dumb"), ("TZ", "")];
        command.env_clear().env("HOME", home.at("")).env("LC_ALL", "C").env("LC_MINE", "x").envs(base);
        command.envs(OF_POLICIES.iter().filter(|name| **name != "TZ").map(|name| (name, "value")));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let mut names: Vec<_> =
            text.lines().filter_map(|line| Some(line.split_once('=')?.0.to_owned())).collect();
        names.sort();
        names
    };
    let base = ["HOME", "LANG", "LC_ALL", "LC_MINE", "PAGER", "PATH", "TERM", "USER"];
    assert_eq!(names(manifest), base, "TZ is listed and empty");
    let more = names(&format!("{hosts}{manifest}"));
    let is_of_network = |name: &&String| {
        let name = name.to_lowercase();
        name.contains("proxy") || name == "java_tool_options"
    };
    let (network, rest): (Vec<_>, Vec<_>) = more.iter().partition(is_of_network);
    assert_eq!(rest, base.iter().collect::<Vec<_>>(), "{more:?}");
    assert!(network.contains(&&"https_proxy".to_owned()), "{more:?}");
}

#[tokio::test]
async fn stdin_is_the_envelope_s_or_nothing() {
    let home = Home::new("cat; echo end");
    let policy = home.spawn_policy("");
    assert_eq!(said(policy.spawn(&tool(&[]), &NoCredentials).await), "end\n");
    let envelope = Envelope { stdin: Some("given\n".to_owned()), ..tool(&[]) };
    assert_eq!(said(policy.spawn(&envelope, &NoCredentials).await), "given\nend\n");
}

#[tokio::test]
async fn each_stream_has_its_cap_and_the_program_no_epipe() {
    let home = Home::new("head -c 3000000 /dev/zero && head -c 300000 /dev/zero >&2 && echo done >&2");
    let output = home.spawn_policy("").spawn(&tool(&[]), &NoCredentials).await.unwrap();
    assert!(output.outcome.status.success() && output.outcome.truncated, "{:?}", output.outcome);
    let marker = |bytes: u64| format!("\n[kennel: output truncated, {bytes} bytes dropped]\n").into_bytes();
    assert_eq!(output.stdout[1 << 20..], marker(3_000_000 - (1 << 20)));
    assert_eq!(output.stderr[256 << 10..], marker(300_005 - (256 << 10)));
    assert_eq!((output.outcome.stdout_bytes, output.outcome.stderr_bytes), (Some(3_000_000), Some(300_005)));
    let policy = home.spawn_policy("limits = { max_stdout_bytes = 10, max_stderr_bytes = 1 }");
    let output = policy.spawn(&tool(&[]), &NoCredentials).await.unwrap();
    assert_eq!(output.stdout[10..], marker(2_999_990));
    assert_eq!(output.stderr[1..], marker(300_004));
}

#[tokio::test]
async fn the_caller_sets_the_timeout() {
    let home = Home::new(crate::support::HEARTBEAT);
    let policy = home.spawn_policy("fs_write = ['~/out']\ncwd = '~/out'\nlimits.max_wall_seconds = 200");
    let policy = policy.limits(SpawnLimits { max_wall_seconds: Some(1), ..SpawnLimits::default() });
    let output = policy.spawn(&tool(&[]), &NoCredentials).await.unwrap();
    assert_eq!((output.outcome.ended, output.outcome.exit_code()), (Ended::TimedOut, 124));
    assert_eq!(output.outcome.failure().unwrap().class, Class::Timeout);
    assert!(beats(&home.at("out")) > 0 && is_silent(&home.at("out")));
}

#[tokio::test]
async fn memory_is_limited_by_default() {
    // The shell keeps its input in its own memory.
    let home = Home::new("x=$(head -c 100000000 /dev/zero | tr '\\0' x); echo ${#x}");
    let output = home.spawn_policy("").spawn(&tool(&[]), &NoCredentials).await.unwrap();
    assert!(!output.stdout.starts_with(b"100000000"), "{:?}", String::from_utf8_lossy(&output.stdout));
    let more = home.spawn_policy("limits.max_memory_bytes = 1000000000\nlimits.max_wall_seconds = 300");
    assert_eq!(said(more.spawn(&tool(&[]), &NoCredentials).await), "100000000\n");
}

#[tokio::test]
async fn a_dropped_spawn_leaves_nothing() {
    let home = Home::new(crate::support::HEARTBEAT);
    let policy = home.spawn_policy("fs_write = ['~/out']\ncwd = '~/out'");
    let envelope = tool(&[]);
    tokio::select! {
        output = policy.spawn(&envelope, &NoCredentials) => panic!("ended: {output:?}"),
        () = async { while beats(&home.at("out")) == 0 { tokio::time::sleep(Duration::from_millis(10)).await } } => {}
    }
    until("the beat stops", || is_silent(&home.at("out")));
}

#[tokio::test]
async fn a_refused_call_asks_nobody_for_its_secrets() {
    let home = Home::new("echo \"$TOKEN\"");
    let resolver = keys("value");
    let refused = async |spawn: &str, envelope: &Envelope, action: &[&str]| {
        let mut policy = home.spawn_policy(spawn);
        if !action.is_empty() {
            policy = policy.action(action.iter().copied());
        }
        let failure = policy.spawn(envelope, &resolver).await.unwrap_err().failure();
        (failure.class, failure.boundary)
    };
    let asks = tool_with_token(&[]);
    let listed = "credential_env_keys = ['TOKEN']\n";
    assert_eq!(refused("", &asks, &[]).await, (Class::CapabilityDenied, Boundary::Manifest));
    assert_eq!(refused(listed, &asks, &["other"]).await, (Class::CapabilityDenied, Boundary::Action));
    let sh = Envelope { program: "sh".to_owned(), ..asks.clone() };
    assert_eq!(refused(listed, &sh, &[]).await, (Class::CapabilityDenied, Boundary::Manifest));
    let absent = format!("{listed}fs_read = ['~/absent']");
    assert_eq!(refused(&absent, &asks, &[]).await, (Class::CapabilityDenied, Boundary::Manifest));
    assert_eq!(resolver.asked(), 0);
    assert_eq!(said(home.spawn_policy(listed).spawn(&asks, &resolver).await), "value\n");
    assert_eq!(resolver.asked(), 1);
    assert_eq!(
        said(home.spawn_policy(listed).spawn(&tool(&[]), &resolver).await),
        "\n",
        "only a program that asks gets it"
    );
    assert_eq!(resolver.asked(), 1);
}

/// Programs of busybox work like this: one file that does what its name says.
#[test]
fn an_action_with_one_name_of_a_program_has_not_its_other_names() {
    let home = Home::new("");
    symlink("tool", home.at("bin/show")).unwrap();
    symlink("tool", home.at("bin/erase")).unwrap();
    symlink(home.at("bin"), home.at("in/bin")).unwrap();
    let at = |path: &str| home.at(path).to_str().unwrap().to_owned();
    let erase = format!("show' }}, {{ path = '{}' }}", at("bin/erase"));
    let manifest = home.manifest("").replace("tool' }", &erase);
    let policy = SpawnPolicy::new(Manifest::from_toml(&manifest).unwrap());
    let asked = |program: String| Envelope::new(program, &[]);
    for program in ["erase".to_owned(), at("bin/erase")] {
        policy.check(&asked(program.clone())).unwrap();
        for listed in ["show".to_owned(), at("bin/show"), at("bin/tool"), at("in/bin/erase")] {
            let error = policy.clone().action([listed.clone()]).check(&asked(program.clone())).unwrap_err();
            assert_eq!(error.failure().boundary, Boundary::Action, "{program} of {listed}: {error:?}");
        }
        for listed in ["erase".to_owned(), at("bin/erase"), at("in/../bin/erase")] {
            policy.clone().action([listed]).check(&asked(program.clone())).unwrap();
        }
    }
    // Nobody knows which of them the caller means.
    policy.check(&asked(at("bin/tool"))).unwrap_err();
}

#[tokio::test]
async fn a_missing_credential_is_named() {
    struct Broken;
    impl kennel::broker::CredentialResolver for Broken {
        fn resolve<'r>(&'r self, _: &'r str) -> kennel::broker::Resolving<'r> {
            Box::pin(async { Err("the vault is sealed".into()) })
        }
    }
    let home = Home::new("");
    let policy = home.spawn_policy("credential_env_keys = ['TOKEN']");
    let envelope = tool_with_token(&[]);
    let error = policy.spawn(&envelope, &NoCredentials).await.unwrap_err();
    assert_eq!(error.chain(), "credential TOKEN is required and was not given");
    assert_eq!(error.failure().class, Class::BindingRequired);
    let error = policy.spawn(&envelope, &Broken).await.unwrap_err();
    assert_eq!(error.chain(), "credential TOKEN: the vault is sealed");
    assert_eq!(error.failure().class, Class::BindingFailed);
    let error = policy.spawn(&envelope, &keys("")).await.unwrap_err();
    assert_eq!(error.failure().class, Class::BindingRequired, "an empty one is none");
    let error = policy.spawn(&envelope, &keys("hidden\0value")).await.unwrap_err();
    assert_eq!(error.chain(), "credential TOKEN: the value contains a NUL byte");
    assert!(!format!("{error:?}").contains("hidden"));
}

#[tokio::test]
async fn a_program_that_is_gone_or_no_program_is_load_failed() {
    let home = Home::new("");
    let policy = home.spawn_policy("");
    fs::write(home.at("bin/tool"), "no program").unwrap();
    let error = policy.spawn(&tool(&[]), &NoCredentials).await.unwrap_err();
    assert!(
        matches!(&error, SpawnError::Sandbox(error) if matches!(**error, Error::NotExecutable { .. })),
        "{error:?}"
    );
    assert_eq!(error.failure().class, Class::LoadFailed);
    fs::remove_file(home.at("bin/tool")).unwrap();
    let error = policy.spawn(&tool(&[]), &NoCredentials).await.unwrap_err();
    assert_eq!((error.failure().class, error.exit_code()), (Class::LoadFailed, 127));
}
