//! git, pip, npm, cargo: with a server of the test, and with the registries if this machine reaches them.

use std::{fs, path::Path, process::Command};

use super::{Net, Origin, answer, at, stderr, stdout};
use crate::support::{has, is_second_pass, kennel, require, workspace};

/// The names of registries may resolve to addresses of a mirror here.
const MIRROR: [&str; 2] = ["--allow-address", "203.0.113.0/24"];

/// A repository with one commit, served as plain files.
fn repository(dir: &Path) -> Origin {
    let script = "git -c init.defaultBranch=main init -q work && cd work && echo hello > README && git add . && \
        git -c user.name=k -c user.email=k@example.invalid commit -qm first && \
        git clone -q --bare . ../repo.git && cd ../repo.git && git update-server-info";
    let made = Command::new("sh").current_dir(dir).args(["-c", script]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let root = dir.to_owned();
    Origin::answering(move |seen| {
        let path = seen.target().split('?').next().unwrap_or_default();
        let file = root.join(path.trim_start_matches('/'));
        fs::read(file).map_or_else(|_| answer(404, b"not here\n"), |bytes| answer(200, &bytes))
    })
}

#[test]
fn git_clones_over_http() {
    require!(has("git"), "git");
    let (net, outside) = (Net::new(), workspace());
    let origin = repository(outside.path());
    let to = at("git.test", origin.port());
    let flags = net.flags(&[&to], &[]);
    let script =
        format!("git clone -q http://{to}/repo.git && cat repo/README && git -C repo log --format=%s");
    assert_eq!(net.says(&flags, &script), "hello\nfirst");
    assert!(origin.lines().iter().any(|line| line.contains("/repo.git/info/refs")));
    let asked = origin.server.accepted();
    let output =
        net.shell(&net.flags(&["other.test:80"], &[]), &format!("git clone http://{to}/repo.git no"));
    assert_eq!(output.status.code(), Some(128), "{output:?}");
    let said = stderr(&output);
    assert!(said.contains("403") && said.contains(&format!("kennel: denied: {to}: ")), "{said}");
    assert_eq!(origin.server.accepted(), asked);
}

/// Whether this machine reaches a registry at all.
fn reaches(url: &str) -> bool {
    let curl = Command::new("curl").args(["-sSf", "--max-time", "10", "-o", "/dev/null", url]).output();
    curl.is_ok_and(|output| output.status.success())
}

/// Runs a command that must succeed. Returns its output.
fn works(dir: &Path, allow: &[&str], script: &str) -> String {
    let allow: Vec<&str> = allow.iter().flat_map(|&rule| ["--allow", rule]).collect();
    let flags = [&["--timeout", "100s"], &MIRROR[..], &allow].concat();
    let output = kennel(dir, &flags, &["sh", "-c", script]).output().unwrap();
    assert!(output.status.success(), "{}\n{}", stdout(&output), stderr(&output));
    stdout(&output)
}

/// Runs a command that must fail because of this denial.
fn is_denied(dir: &Path, allow: &[&str], script: &str, denied: &str) {
    let allow: Vec<&str> = allow.iter().flat_map(|&rule| ["--allow", rule]).collect();
    let flags = [&["--timeout", "100s", "--net", "proxy"], &MIRROR[..], &allow].concat();
    let output = kennel(dir, &flags, &["sh", "-c", script]).output().unwrap();
    assert!(output.status.code().is_some_and(|code| (1..120).contains(&code)), "{output:?}");
    assert!(stderr(&output).contains(&format!("kennel: denied: {denied}: ")), "{}", stderr(&output));
}

#[test]
fn pip_downloads() {
    require!(has("curl") && has("python3"), "curl and python3");
    require!(reaches("https://pypi.org/simple/six/"), "pypi.org");
    let dir = workspace();
    let pip = "python3 -m pip --disable-pip-version-check download -q --no-cache-dir --no-deps --retries 0 -d out six==1.16.0";
    works(dir.path(), &["pypi.org:443", "files.pythonhosted.org:443"], pip);
    assert!(dir.path().join("out/six-1.16.0-py2.py3-none-any.whl").exists());
    fs::remove_dir_all(dir.path().join("out")).unwrap();
    is_denied(dir.path(), &["pypi.org:443"], pip, "files.pythonhosted.org:443");
    is_denied(dir.path(), &[], pip, "pypi.org:443");
}

#[test]
fn npm_views() {
    require!(has("curl") && has("npm"), "curl and npm");
    require!(reaches("https://registry.npmjs.org/left-pad"), "registry.npmjs.org");
    let dir = workspace();
    let npm = "npm view left-pad@1.3.0 version --fetch-retries=0 --no-update-notifier";
    assert_eq!(works(dir.path(), &["registry.npmjs.org:443"], npm), "1.3.0");
    is_denied(dir.path(), &[], npm, "registry.npmjs.org:443");
}

#[test]
fn cargo_fetches() {
    if is_second_pass() && !has("cargo") {
        return; // Cargo is in the home directory of the user who started the first pass.
    }
    require!(has("curl") && has("cargo"), "curl and cargo");
    require!(reaches("https://index.crates.io/config.json"), "index.crates.io");
    let dir = workspace();
    let manifest = "[package]\nname = \"tiny\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\
                    [dependencies]\ncfg-if = \"=1.0.0\"\n";
    fs::create_dir(dir.path().join("src")).unwrap();
    fs::write(dir.path().join("src/lib.rs"), "").unwrap();
    fs::write(dir.path().join("Cargo.toml"), manifest).unwrap();
    let cargo =
        "CARGO_NET_RETRY=0 CARGO_HOME=/tmp/cargo cargo fetch --quiet && ls /tmp/cargo/registry/cache/*";
    let said = works(dir.path(), &["index.crates.io:443", "static.crates.io:443"], cargo);
    assert_eq!(said, "cfg-if-1.0.0.crate");
    is_denied(dir.path(), &[], cargo, "index.crates.io:443");
}
