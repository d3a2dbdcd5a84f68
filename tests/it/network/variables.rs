//! Variables tell programs where the proxy is, and the user has the last word.

use std::{collections::BTreeMap, process::Command};

use super::{Net, Origin, at, stdout};
use crate::support::{has, kennel_path, require, runs, workspace};

/// The environment of a command whose caller has these variables.
fn inside(flags: &[&str], caller: &[(&str, &str)]) -> BTreeMap<String, String> {
    let dir = workspace();
    let output = Command::new(kennel_path())
        .current_dir(dir.path())
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", "/home/kennel-test")
        .envs(caller.iter().copied())
        .arg("run")
        .args(flags)
        .args(["--", "/usr/bin/env", "-0"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let pairs = text.split_terminator('\0').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

const URL: &str = "http://127.0.0.1:3128";
const DIRECT: &str = "localhost,127.0.0.1,127.0.0.0/8,::1,[::1],0.0.0.0,::,[::],kennel";
const JAVA_DIRECT: &str = "localhost|127.*|[::1]|0.0.0.0|[::]|kennel";
const TO_PROXY: [&str; 18] = [
    "ALL_PROXY",
    "CARGO_HTTP_PROXY",
    "DOCKER_HTTPS_PROXY",
    "DOCKER_HTTP_PROXY",
    "FTP_PROXY",
    "GRPC_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "PIP_PROXY",
    "YARN_HTTPS_PROXY",
    "YARN_HTTP_PROXY",
    "all_proxy",
    "ftp_proxy",
    "grpc_proxy",
    "http_proxy",
    "https_proxy",
    "npm_config_https_proxy",
    "npm_config_proxy",
];
const NOT_TO_PROXY: [&str; 4] = ["NO_PROXY", "no_grpc_proxy", "no_proxy", "npm_config_noproxy"];

#[test]
fn every_tool_gets_its_variables() {
    for flags in
        [&["--allow", "one.test:80"][..], &["--net", "proxy"], &["--net", "proxy", "--profile", "ci-only"]]
            .into_iter()
            .filter(|flags| flags.last().is_none_or(|profile| runs(profile)))
    {
        let found = inside(flags, &[]);
        let with: Vec<&str> =
            found.iter().filter(|(_, value)| *value == URL).map(|(name, _)| name.as_str()).collect();
        assert_eq!(with, TO_PROXY, "{flags:?}");
        for name in NOT_TO_PROXY {
            assert_eq!(found[name], DIRECT, "{name}");
        }
        assert_eq!(found["NODE_USE_ENV_PROXY"], "1");
        assert_eq!(
            found["JAVA_TOOL_OPTIONS"],
            format!(
                "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=3128 -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=3128 \
                 -Dhttp.nonProxyHosts={JAVA_DIRECT}"
            )
        );
    }
}

#[test]
fn a_rule_for_loopback_leaves_no_proxy_whole_where_it_has_a_listener() {
    let no_proxy = |allow: &[&str]| {
        let flags: Vec<&str> = allow.iter().flat_map(|rule| ["--allow", rule]).collect();
        let found = inside(&flags, &[]);
        let java = found["JAVA_TOOL_OPTIONS"].rsplit_once('=').unwrap().1.to_owned();
        (found["no_proxy"].clone(), java)
    };
    for whole in [&["*:80", "x.localhost:80"][..], &["LOCALHOST:80"], &["127.0.0.0/8:80", "[::1]:1"]] {
        assert_eq!(no_proxy(whole), (DIRECT.into(), JAVA_DIRECT.into()), "{whole:?}");
    }
    let without = |text: &str, part: &str| text.replacen(part, "", 1);
    // Here only the proxy leads to the host.
    assert_eq!(
        no_proxy(&["localhost:*"]),
        (without(DIRECT, "localhost,"), without(JAVA_DIRECT, "localhost|"))
    );
    assert_eq!(
        no_proxy(&["127.0.0.1:3128"]),
        (without(DIRECT, "127.0.0.1,127.0.0.0/8,"), without(JAVA_DIRECT, "127.*|"))
    );
    // Another host has the name of the sandbox.
    assert_eq!(no_proxy(&["kennel:80"]), (without(DIRECT, ",kennel"), without(JAVA_DIRECT, "|kennel")));
    require!(has("curl"), "curl");
    let net = Net::new();
    let origin = Origin::named("mine");
    for host in ["localhost", "127.0.0.1"] {
        let to = at(host, origin.port());
        let said = net.says(&["--allow".to_owned(), to.clone()], &format!("curl -sS http://{to}/"));
        assert_eq!(said, "mine: /", "{to}");
    }
}

#[test]
fn without_a_proxy_no_variable_is_set() {
    for flags in [&["--profile", "no-network"][..], &["--net", "none"], &["--net", "host"]] {
        let found = inside(flags, &[]);
        let told =
            found.keys().filter(|name| name.to_lowercase().contains("proxy") || name.starts_with("JAVA"));
        assert_eq!(told.count(), 0, "{flags:?}: {found:?}");
    }
}

#[test]
fn variables_of_the_user_win() {
    let caller =
        [("HTTPS_PROXY", "http://caller:1"), ("http_proxy", "http://caller:2"), ("NO_PROXY", "caller.test")];
    let found = inside(&["--net", "proxy"], &caller);
    assert_eq!((&*found["HTTPS_PROXY"], &*found["http_proxy"], &*found["NO_PROXY"]), (URL, URL, DIRECT));
    let found = inside(&["--net", "proxy", "--env", "inherit"], &caller);
    assert_eq!((&*found["HTTPS_PROXY"], &*found["http_proxy"], &*found["NO_PROXY"]), (URL, URL, DIRECT));
    let flags = [
        "--net",
        "proxy",
        "--pass-env",
        "HTTPS_PROXY",
        "--setenv",
        "NO_PROXY=mine.test",
        "--setenv",
        "JAVA_TOOL_OPTIONS=",
    ];
    let found = inside(&flags, &caller);
    let values =
        ["HTTPS_PROXY", "http_proxy", "NO_PROXY", "JAVA_TOOL_OPTIONS", "no_proxy"].map(|name| &*found[name]);
    assert_eq!(values, ["http://caller:1", URL, "mine.test", "", DIRECT]);
}

#[test]
fn the_caller_s_certificates_are_shown() {
    let dir = workspace();
    let bundle = dir.path().join("bundle.pem");
    std::fs::write(&bundle, "certificates\n").unwrap();
    let bundle = bundle.to_str().unwrap();
    let work = workspace();
    let caller =
        [("SSL_CERT_FILE", bundle), ("CURL_CA_BUNDLE", "/nonexistent"), ("PIP_CERT", "relative.pem")];
    let run = |flags: &[&str]| {
        let mut command = Command::new(kennel_path());
        command.current_dir(work.path()).envs(caller).arg("run").args(flags);
        let script =
            "echo $SSL_CERT_FILE $CURL_CA_BUNDLE $PIP_CERT; cat \"$SSL_CERT_FILE\" 2>/dev/null; true";
        stdout(&command.args(["--", "sh", "-c", script]).output().unwrap())
    };
    assert_eq!(run(&["--net", "proxy"]), format!("{bundle}\ncertificates"));
    assert_eq!(run(&[]), "", "nothing is allowed");
    if runs("ci-only") {
        assert_eq!(run(&["--net", "proxy", "--profile", "ci-only"]), "", "it has nothing of the caller's");
    }
}

/// The variables of certificates that a command gets, if the caller has this one.
fn certificates(name: &str, value: &str, flags: &[&str]) -> (Option<String>, String) {
    let dir = workspace();
    let script = format!("printf '%s\n' \"${name}\"; cat ${name}/a.pem 2>/dev/null; true");
    let mut command = Command::new(kennel_path());
    command.current_dir(dir.path()).env(name, value).arg("run").args(["--net", "proxy"]).args(flags);
    let output = command.args(["--", "sh", "-c", &script]).output().unwrap();
    let said = stdout(&output);
    let told = said.lines().next().filter(|line| !line.is_empty()).map(str::to_owned);
    (told, said.lines().skip(1).collect::<String>() + &crate::support::stderr(&output))
}

#[test]
fn the_caller_s_directories_of_certificates_are_shown() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let (one, two) = (workspace(), workspace());
    let (first, second) = (one.path().join("certs"), two.path().join("certs"));
    for directory in [&first, &second] {
        std::fs::create_dir(directory).unwrap();
        std::fs::write(directory.join("a.pem"), "certificates\n").unwrap();
        symlink("a.pem", directory.join("0123abcd.0")).unwrap();
    }
    let list = format!("{}:/nonexistent:{}", first.display(), second.display());
    let both = format!("{}:{}", first.display(), second.display());
    assert_eq!(certificates("SSL_CERT_DIR", &list, &[]).0, Some(both));
    let text = first.to_str().unwrap();
    for name in ["GIT_SSL_CAPATH", "SSL_CERT_DIR", "BUNDLE_SSL_CA_CERT"] {
        let found = certificates(name, text, &[]);
        assert_eq!(found, (Some(text.to_owned()), "certificates".to_owned()), "{name}");
    }
    // A directory with anything else is no directory of certificates.
    let key = first.join("key.pem");
    std::fs::write(&key, "secret").unwrap();
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    let (told, said) = certificates("SSL_CERT_DIR", text, &[]);
    assert_eq!(told, None);
    assert!(said.contains("note: SSL_CERT_DIR: ") && said.contains("key.pem in it is no file"), "{said}");
    std::fs::remove_file(&key).unwrap();
    std::fs::create_dir(first.join("below")).unwrap();
    assert_eq!(certificates("SSL_CERT_DIR", text, &[]).0, None);
    // The policy shows it.
    assert_eq!(certificates("SSL_CERT_DIR", text, &["--ro", text]).0, Some(text.to_owned()));
    // Commands of an earlier sandbox could have made a link in its workspace.
    let home = workspace();
    let project = home.path().join("project");
    std::fs::create_dir_all(project.join(".git")).unwrap();
    let link = project.join("certs");
    symlink(&second, &link).unwrap();
    let (link, home) = (link.to_str().unwrap(), home.path().to_str().unwrap());
    let dir = workspace();
    let mut command = Command::new(kennel_path());
    command.current_dir(dir.path()).env("HOME", home).env("SSL_CERT_DIR", link);
    command.args(["run", "--net", "proxy", "--", "sh", "-c", "echo \"$SSL_CERT_DIR\""]);
    let output = command.output().unwrap();
    assert_eq!(stdout(&output), "", "{output:?}");
    assert!(crate::support::stderr(&output).contains("commands could have made the link"), "{output:?}");
}

#[test]
fn certificates_are_passed_to_every_tool_with_any_network() {
    let dir = workspace();
    let bundle = dir.path().join("bundle.pem");
    std::fs::write(&bundle, "certificates\n").unwrap();
    let bundle = bundle.to_str().unwrap();
    let names = ["CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "NIX_SSL_CERT_FILE", "npm_config_cafile", "DENO_CERT"];
    let caller = names.map(|name| (name, bundle));
    for flags in [["--net", "proxy"], ["--net", "host"]] {
        let found = inside(&flags, &caller);
        assert!(names.iter().all(|&name| found[name] == bundle), "{found:?}");
    }
    let without = inside(&[], &caller);
    assert!(names.iter().all(|&name| !without.contains_key(name)), "{without:?}");
}

#[test]
fn profile_ci_only_reaches_what_is_allowed() {
    crate::support::require_ci_only!();
    require!(has("curl"), "curl");
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let flags = net.flags(&[&to], &["--profile", "ci-only"]);
    let flags: Vec<String> = flags.into_iter().filter(|flag| flag != "--net" && flag != "proxy").collect();
    assert_eq!(net.says(&flags, &format!("curl -sS http://{to}/")), "one: /");
    let script = "curl -sS -o /dev/null -w '%{http_code}' http://other.test/";
    assert_eq!(net.says(&flags, script), "403");
}
