//! Real programs work under a plain `kennel run`, in a real checkout.

use std::{fs, path::Path, process::Command};

use crate::support::{TempDir, fails, has, is_second_pass, kennel, report, require, succeeds, workspace};

/// An identity for commits, because the one in HOME is not visible.
const AS: &str = "git -c user.name=kennel -c user.email=kennel@example.invalid -c init.defaultBranch=main";

/// A repository with one commit, made outside.
fn checkout() -> TempDir {
    let dir = workspace();
    fs::write(dir.path().join("README"), "hello\n").unwrap();
    let script = format!("{AS} init --quiet && git add . && {AS} commit --quiet -m first");
    let made = Command::new("sh").current_dir(dir.path()).args(["-c", &script]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    dir
}

fn outside(dir: &Path, script: &str) -> String {
    let output = Command::new("sh").current_dir(dir).args(["-c", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    crate::support::stdout(&output)
}

#[test]
fn python_runs_with_its_libraries() {
    require!(has("python3"), "python3");
    let dir = workspace();
    let imports = "import ssl, sqlite3, ctypes, json, hashlib, tempfile, subprocess, socket, asyncio; ";
    let script = format!("{imports}print(ssl.OPENSSL_VERSION[:7], hashlib.sha256(b'').hexdigest()[:8])");
    let output = kennel(dir.path(), &[], &["python3", "-c", &script]).output().unwrap();
    assert_eq!(crate::support::stdout(&output), "OpenSSL e3b0c442", "{output:?}");
    assert!(
        !succeeds(
            dir.path(),
            &[],
            "python3 -c 'import ssl; print(ssl.create_default_context().cert_store_stats())'"
        )
        .is_empty()
    );
}

#[test]
fn python_works_with_processes_threads_and_shared_memory() {
    require!(has("python3"), "python3");
    let dir = workspace();
    let script = "import multiprocessing as m, threading, asyncio\n\
        def square(x): return x * x\n\
        if __name__ == '__main__':\n\
        \x20   for method in ('fork', 'spawn', 'forkserver'):\n\
        \x20       with m.get_context(method).Pool(3) as pool: print(sum(pool.map(square, range(10))))\n\
        \x20   from multiprocessing import shared_memory as s\n\
        \x20   b = s.SharedMemory(create=True, size=100); b.buf[0] = 7; print(b.buf[0]); b.close(); b.unlink()\n\
        \x20   l = []; t = [threading.Thread(target=l.append, args=(n,)) for n in range(3)]\n\
        \x20   [x.start() for x in t]; [x.join() for x in t]; print(sorted(l))\n\
        \x20   async def main(): p = await asyncio.create_subprocess_exec('echo', 'sub'); return await p.wait()\n\
        \x20   print(asyncio.run(main()))\n";
    fs::write(dir.path().join("work.py"), script).unwrap();
    assert_eq!(succeeds(dir.path(), &[], "python3 -u work.py"), "285\n285\n285\n7\n[0, 1, 2]\nsub\n0");
}

#[test]
fn python_serves_and_connects_on_its_own_loopback() {
    require!(has("python3"), "python3");
    let dir = workspace();
    let script = "import http.server, threading, urllib.request as u, sys\n\
        h = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)\n\
        threading.Thread(target=h.serve_forever, daemon=True).start()\n\
        print(u.urlopen('http://localhost:%d/file' % h.server_port).read().decode())\n";
    fs::write(dir.path().join("file"), "served").unwrap();
    let output = kennel(dir.path(), &[], &["python3", "-c", script]).output().unwrap();
    assert_eq!(crate::support::stdout(&output), "served", "{output:?}");
}

#[test]
fn node_runs() {
    require!(has("node"), "node");
    let dir = workspace();
    let script = "const fs = require('fs'), cp = require('child_process'), http = require('http'); \
        const { Worker } = require('worker_threads'); \
        fs.writeFileSync('made', 'x'); console.log(cp.execSync('echo sub').toString().trim()); \
        new Worker('require(\"worker_threads\").parentPort.postMessage(6 * 7)', { eval: true }).on('message', m => { \
          console.log(m); \
          const s = http.createServer((q, r) => r.end('served')).listen(0, '127.0.0.1', () => \
            http.get({ port: s.address().port, host: '127.0.0.1' }, r => r.on('data', d => { console.log(d.toString()); process.exit(0); }))); });";
    let output = kennel(dir.path(), &[], &["node", "-e", script]).output().unwrap();
    assert_eq!(crate::support::stdout(&output), "sub\n42\nserved", "{output:?}");
    assert!(dir.path().join("made").exists());
}

#[test]
fn git_works_in_a_checkout() {
    require!(has("git"), "git");
    let dir = checkout();
    let script = format!(
        "set -e; git status --short; echo more >> README; {AS} commit --quiet -am second; git log --format=%s; \
         git branch topic; git checkout --quiet topic; git tag v1; git stash list; git diff HEAD~1 --stat > /dev/null; \
         git gc --quiet; git fsck 2> /dev/null; {AS} rebase --quiet main; git rev-parse --abbrev-ref HEAD"
    );
    let (output, report) = report(dir.path(), &[], &["sh", "-c", &script]);
    assert_eq!(crate::support::stdout(&output), "second\nfirst\ntopic", "{output:?}");
    assert_eq!(report["denials"], serde_json::json!([]));
    assert_eq!(outside(dir.path(), "git log --format=%s; git status --short"), "second\nfirst");
}

#[test]
fn git_makes_worktrees() {
    require!(has("git"), "git");
    let dir = checkout();
    let script = format!(
        "set -e; git worktree add --quiet wt -b side; cd wt; echo x > new; git add new; {AS} commit --quiet -m side; git worktree list | wc -l"
    );
    assert_eq!(succeeds(dir.path(), &[], &script), "2");
    assert_eq!(outside(dir.path(), "git log --format=%s side; git -C wt status --short"), "side\nfirst");
}

#[test]
fn git_works_in_a_linked_worktree() {
    require!(has("git"), "git");
    let (dir, beside) = (checkout(), workspace());
    let place = beside.path().join("linked");
    outside(dir.path(), &format!("git worktree add --quiet {} -b side", place.display()));
    assert_eq!(succeeds(&place, &[], "git status --short; git log --format=%s; cat README"), "first\nhello");
}

#[test]
fn git_cannot_arm_hooks_or_config() {
    require!(has("git"), "git");
    let dir = checkout();
    let before = fs::read_to_string(dir.path().join(".git/config")).unwrap();
    fails(dir.path(), &[], "git config core.fsmonitor ./evil");
    fails(dir.path(), &[], "printf evil > .git/hooks/pre-commit");
    assert_eq!(fs::read_to_string(dir.path().join(".git/config")).unwrap(), before);
    assert!(!dir.path().join(".git/hooks/pre-commit").exists());
}

#[test]
fn git_init_and_commit_work_from_nothing() {
    require!(has("git"), "git");
    let dir = workspace();
    let script = format!(
        "set -e; {AS} init --quiet; echo x > file; git add file; {AS} commit --quiet -m made; git log --format=%s"
    );
    assert_eq!(succeeds(dir.path(), &[], &script), "made");
    assert_eq!(
        succeeds(dir.path(), &[], "git log --format=%s; git status --short"),
        "made",
        "in the next run too"
    );
}

#[test]
fn gcc_compiles_and_the_program_runs() {
    require!(has("gcc"), "gcc");
    let dir = workspace();
    let program = "#include <stdio.h>\n#include <math.h>\nint main(int c, char **v) { printf(\"%.0f\\n\", sqrt(c * 49.0)); return 3; }\n";
    fs::write(dir.path().join("a.c"), program).unwrap();
    assert_eq!(succeeds(dir.path(), &[], "gcc -O2 -o a a.c -lm && { ./a; test $? = 3; }"), "7");
    assert_eq!(
        succeeds(dir.path(), &[], "gcc -pipe -o /tmp/a a.c -lm && { /tmp/a; test $? = 3; }"),
        "7",
        "in the private /tmp"
    );
}

#[test]
fn cargo_builds_offline() {
    if is_second_pass() && !has("cargo") {
        return; // Cargo is in the home directory of the user who started the first pass.
    }
    require!(has("cargo") && has("rustc") && has("cc"), "cargo, rustc and a C linker");
    let dir = workspace();
    fs::create_dir(dir.path().join("src")).unwrap();
    fs::write(
        dir.path().join("Cargo.toml"),
        "[package]\nname = \"tiny\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
    )
    .unwrap();
    fs::write(
        dir.path().join("build.rs"),
        "fn main() { println!(\"cargo::rustc-env=MADE=by build.rs\"); }\n",
    )
    .unwrap();
    let program = "fn main() { println!(\"{}\", env!(\"MADE\")); }\n#[test] fn passes() {}\n";
    fs::write(dir.path().join("src/main.rs"), program).unwrap();
    let output = kennel(dir.path(), &["--timeout", "120s"], &["cargo", "run", "--offline", "--quiet"])
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .unwrap();
    assert_eq!(crate::support::stdout(&output), "by build.rs", "{output:?}");
    assert!(dir.path().join("target/debug/tiny").exists());
}

#[test]
fn usual_programs_of_the_shell_work() {
    let dir = workspace();
    let script = "set -e; mktemp > /dev/null; seq 3 | sort -r | head -n 1; printf 'b\\na\\n' | sort | tr -d '\\n'; echo; \
                  find . -name x; date > /dev/null; df . > /dev/null; tar cf a.tar --files-from=/dev/null; tar tf a.tar; \
                  ps > /dev/null 2>&1 || true; nproc > /dev/null; id > /dev/null; awk 'BEGIN { print 1 + 1 }'; sed s/a/b/ < /dev/null";
    assert_eq!(succeeds(dir.path(), &[], script), "3\nab\n2");
    if has("perl") {
        assert_eq!(succeeds(dir.path(), &[], "perl -e 'use POSIX; print POSIX::floor(3.7)'"), "3");
    }
    if has("make") {
        fs::write(dir.path().join("Makefile"), "all: a b\na b:\n\t@echo $@\n").unwrap();
        assert_eq!(succeeds(dir.path(), &[], "make -j2 | sort"), "a\nb");
    }
}
