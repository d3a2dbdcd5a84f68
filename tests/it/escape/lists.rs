//! What git outside removes by lists that a command writes into a repository, and what a command takes away so that nobody looks.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::git::place;
use crate::support::{TempDir, has, report, require};

/// A list of two packs in a repository `w`: of one beside it, and of one of the user's in `other`, in which it has no objects.
const LIST: &str = r#"
import hashlib, struct, sys
index = open('.git/objects/pack/multi-pack-index', 'rb').read()
count = index[6]
table = [struct.unpack('>4sQ', index[12 + 12 * i:24 + 12 * i]) for i in range(count + 1)]
chunks = {table[i][0]: index[table[i][1]:table[i + 1][1]] for i in range(count)}
names = [sys.argv[1].encode()] + [name for name in chunks[b'PNAM'].split(b'\0') if name]
chunks[b'PNAM'] = b''.join(name + b'\0' for name in names)
chunks[b'PNAM'] += b'\0' * (-len(chunks[b'PNAM']) % 4)
of = chunks[b'OOFF']
chunks[b'OOFF'] = b''.join(
    struct.pack('>I', struct.unpack('>I', of[i:i + 4])[0] + 1) + of[i + 4:i + 8] for i in range(0, len(of), 8))
keys = [b'PNAM', b'OIDF', b'OIDL', b'OOFF']
at, table, body = 12 + 12 * (len(keys) + 1), b'', b''
for key in keys:
    table, at, body = table + struct.pack('>4sQ', key, at), at + len(chunks[key]), body + chunks[key]
table += struct.pack('>4sQ', b'\0' * 4, at)
forged = index[:6] + bytes([len(keys), index[7]]) + struct.pack('>I', len(names)) + table + body
open('forged', 'wb').write(forged + hashlib.sha1(forged).digest())
"#;

fn outside(at: &Path, script: &str) -> String {
    let output = Command::new("sh").current_dir(at).args(["-ec", script]).output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Two repositories, made by `script` in each, of which a command sees `w`.
fn repositories(flags: &str, script: &str) -> (TempDir, PathBuf) {
    let who = "git config user.name me; git config user.email me@example.org";
    let each = format!(
        "git init -q {flags} $at; (cd $at; {who}; echo $at > a; git add a; git commit -qm $at; {script})"
    );
    place(&format!("for at in w other; do {each}; done"))
}

/// What was told of a command in `w`.
fn told(ws: &Path, script: &str) -> Vec<String> {
    let (output, report) = report(ws, &[], &["sh", "-euc", script]);
    assert!(output.status.success(), "{output:?}");
    let reason = |denial: &serde_json::Value| denial["reason"].as_str().unwrap().to_owned();
    report["denials"].as_array().unwrap().iter().map(reason).collect()
}

#[test]
fn no_packs_of_others_are_listed() {
    require!(has("git") && has("python3"), "git and python3");
    for is_confined in [false, true] {
        let (_dir, ws) = repositories("", "git repack -adq; git multi-pack-index write --no-progress");
        let other = ws.parent().unwrap().join("other");
        fs::write(ws.join("list.py"), LIST).unwrap();
        outside(
            &ws,
            "python3 list.py ../../../../other/.git/objects/pack/$(basename ../other/.git/objects/pack/*.idx)",
        );
        let script = "cp -f forged .git/objects/pack/multi-pack-index";
        if is_confined {
            let told = told(&ws, script);
            assert!(told.len() == 1 && told[0].contains("named packs that lie elsewhere"), "{told:?}");
        } else {
            outside(&ws, script);
        }
        let said = outside(&ws, "git multi-pack-index expire --no-progress || true");
        let log = outside(&other, "git log --format=%s || true");
        assert_eq!(log == "other\n", is_confined, "{said} {log}");
        // What git writes stays.
        if is_confined {
            let again = "git repack -adq; git multi-pack-index write --no-progress";
            assert_eq!(told(&ws, again), [""; 0]);
            assert!(ws.join(".git/objects/pack/multi-pack-index").exists());
        }
    }
}

#[test]
fn no_commit_graphs_of_others_are_chained() {
    require!(has("git"), "git");
    // Git heeds the hash that a line begins with, and names the file by the whole of it.
    let script = "dir=.git/objects/info/commit-graphs; hash=$(printf '1%.0s' $(seq 40)); mkdir -p $dir/graph-$hash; \
                  echo $hash/../../../../../../other/$dir/$(cat name) > $dir/commit-graph-chain";
    for is_confined in [false, true] {
        let (_dir, ws) = repositories("", "");
        let other = ws.parent().unwrap().join("other");
        // Git keeps a graph that is much larger than the one it writes.
        outside(&other, "for at in $(seq 40); do git commit -q --allow-empty -m $at; done");
        outside(&other, "git commit-graph write --reachable --split");
        outside(&ws, "basename ../other/.git/objects/info/commit-graphs/graph-* .graph > name");
        if is_confined {
            let told = told(&ws, script);
            assert!(told.len() == 1 && told[0].contains("it named 1111"), "{told:?}");
        } else {
            outside(&ws, script);
        }
        let said = outside(&ws, "git commit-graph write --reachable --split || true");
        let graphs = outside(&other, "ls .git/objects/info/commit-graphs");
        assert_eq!(graphs.contains(".graph"), is_confined, "{said} {graphs}");
        // What git writes stays.
        if is_confined {
            let again =
                "git commit -q --allow-empty -m next; git commit-graph write --reachable --split=no-merge";
            assert_eq!(self::told(&ws, again), [""; 0]);
            assert!(ws.join(".git/objects/info/commit-graphs/commit-graph-chain").exists());
        }
    }
}

#[test]
fn no_refs_of_others_are_listed() {
    require!(has("git"), "git");
    let version = outside(Path::new("/"), "git version");
    let minor = version.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok());
    require!(version.starts_with("git version 2.") && minor >= Some(45), "git 2.45, for tables of refs");
    for is_confined in [false, true] {
        let (_dir, ws) = repositories("--ref-format=reftable", "git branch x; git branch y");
        let script = "cp .git/reftable/tables.list l; sed 's,^,../../../other/.git/reftable/,' ../other/.git/reftable/tables.list >> l";
        outside(&ws, script);
        if is_confined {
            let told = told(&ws, "git branch z; cat l > .git/reftable/tables.list");
            assert!(
                told.len() == 1 && told[0].contains("it named ../../../other/.git/reftable/"),
                "{told:?}"
            );
        } else {
            outside(&ws, "cp l .git/reftable/tables.list");
        }
        let said = outside(&ws, "git pack-refs || true");
        let log = outside(&ws.parent().unwrap().join("other"), "git log --format=%s || true");
        assert_eq!(log == "other\n", is_confined, "{said} {log}");
    }
    let (_dir, ws) = repositories("--ref-format=reftable", "git branch x");
    assert_eq!(told(&ws, "git branch y; git pack-refs; git commit -q --allow-empty -m next"), [""; 0]);
}

/// What lies beside no `HEAD` at the end of a command is looked at all the same: the next one puts it back.
#[test]
fn a_repository_without_head_is_looked_at() {
    require!(has("git"), "git");
    let (_dir, ws) = repositories("", ":");
    for (script, what) in [
        ("echo 'ref: ../../out' > .git/ORIG_HEAD", "it led to ../../out"),
        (": > .git/MERGE_RR", "git-rerere(1)"),
        ("printf 'DIRC\\0\\0\\0\\2\\0\\0\\0\\1%0100d' 0 > .git/index", "not as git writes one"),
        ("mkdir -p .git/worktrees/x; : > .git/worktrees/x/MERGE_RR", "git-rerere(1)"),
    ] {
        let told = told(&ws, &format!("{script}; mv .git/HEAD .git/HEAX"));
        assert!(told.len() == 1 && told[0].contains(what), "{script}: {told:?}");
        fs::rename(ws.join(".git/HEAX"), ws.join(".git/HEAD")).unwrap();
    }
}
