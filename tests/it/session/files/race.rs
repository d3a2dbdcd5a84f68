//! A command swaps the file at a path all the time, while these calls use the path.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use kennel::{Child, Session, Stdio};

use super::{names, workspace};
use crate::support::{TempDir, World, has, require};

/// The shortest and longest time of a race. It ends early once both results were seen often enough.
const LONG: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(20);

/// Whether a race that began then is over: it ran long enough and had both results.
fn is_over(begun: Instant, (done, refused): (u32, u32), wanted: (u32, u32)) -> bool {
    let went = done >= wanted.0 && refused >= wanted.1;
    assert!(went || begun.elapsed() < LONGEST, "no race: {done} {refused}");
    went && begun.elapsed() > LONG
}

/// A command that runs the lines of `body` for ever.
async fn for_ever(session: &Session, body: &str) -> Child {
    let indented = body.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let script = format!(
        "import os, shutil, time\ndef quiet(call, *a):\n  try: call(*a)\n  except OSError: pass\nwhile True:\n{indented}"
    );
    let mut command = session.command("python3");
    command.args(["-c", &script]).stdout(Stdio::null()).stdin(Stdio::null());
    command.spawn().await.unwrap()
}

/// Uses `path` in every way for a while, until it has succeeded and failed often enough.
async fn hammer(session: &Session, path: &str, secret: &str, wanted: (u32, u32)) {
    let mut counts = (0, 0);
    let begun = Instant::now();
    while !is_over(begun, counts, wanted) {
        let read = session.read(path).await;
        if let Ok(bytes) = &read {
            assert!(!String::from_utf8_lossy(bytes).contains(secret), "read from outside");
        }
        let answers = [
            read.is_ok(),
            session.write(path, "written").await.is_ok(),
            session.stat(path).await.is_ok(),
            session.mkdir(format!("{path}.d")).await.is_ok(),
            session.remove(format!("{path}.d")).await.is_ok(),
        ];
        for worked in answers {
            if worked { counts.0 += 1 } else { counts.1 += 1 }
        }
    }
}

/// A victim outside: no call may read or change anything of it.
fn victim() -> TempDir {
    let dir = workspace();
    fs::write(dir.path().join("file"), "the secret").unwrap();
    dir
}

fn is_unharmed(victim: &Path) {
    assert_eq!(names(victim), ["file"]);
    assert_eq!(fs::read(victim.join("file")).unwrap(), b"the secret");
}

#[tokio::test]
async fn a_file_that_becomes_a_link() {
    require!(has("python3"), "python3");
    let (world, victim) = (World::new(), victim());
    let session = world.session().await;
    let target = victim.path().join("file").display().to_string();
    let up = format!("{}{target}", "../".repeat(20));
    let body = format!(
        "quiet(os.symlink, {target:?}, 'l'); quiet(os.rename, 'l', 'x')\n\
         quiet(os.symlink, {up:?}, 'l'); quiet(os.rename, 'l', 'x')\n\
         quiet(os.symlink, '/proc/self/root{target}', 'l'); quiet(os.rename, 'l', 'x')\n\
         quiet(os.mkfifo, 'l'); quiet(os.rename, 'l', 'x')\n\
         open('l', 'w').close(); quiet(os.rename, 'l', 'x')"
    );
    let child = for_ever(&session, &body).await;
    hammer(&session, "x", "secret", (50, 50)).await;
    drop(child);
    is_unharmed(victim.path());
}

#[tokio::test]
async fn a_directory_that_becomes_a_link() {
    require!(has("python3"), "python3");
    let (world, victim) = (World::new(), victim());
    let session = world.session().await;
    let target = victim.path().display().to_string();
    session.mkdir("real").await.unwrap();
    session.write("real/file", "x").await.unwrap();
    // The pause lets other processes run while there is a directory, on a busy machine too.
    let body = format!(
        "quiet(os.rename, 'real', 'd'); time.sleep(0.0001); quiet(os.rename, 'd', 'real')\n\
         quiet(os.rename, 'real', 'd'); quiet(os.rename, 'd', 'real')\n\
         quiet(os.symlink, {target:?}, 'd'); quiet(os.unlink, 'd')\n\
         quiet(os.symlink, '/proc/1/root{target}', 'd'); quiet(os.unlink, 'd')"
    );
    let child = for_ever(&session, &body).await;
    hammer(&session, "d/file", "secret", (20, 20)).await;
    drop(child);
    is_unharmed(victim.path());
}

/// `..` from a directory that moves.
#[tokio::test]
async fn a_way_up_from_a_directory_that_moves() {
    require!(has("python3"), "python3");
    let (world, victim) = (World::new(), victim());
    let session = world.session().await;
    for path in ["a", "a/b", "a/b/c", "a/b/c/d"] {
        session.mkdir(path).await.unwrap();
    }
    let child = for_ever(&session, "quiet(os.rename, 'a/b/c', 'c'); quiet(os.rename, 'c', 'a/b/c')").await;
    let path = format!("a/b/c/d/{}{}/file", "../".repeat(12), victim.path().display());
    hammer(&session, &path, "secret", (0, 50)).await;
    drop(child);
    is_unharmed(victim.path());
}

/// A directory moves to a protected path and back while a call writes into it.
#[tokio::test]
async fn a_directory_that_becomes_protected() {
    require!(has("python3"), "python3");
    let world = World::new();
    let session = world.session().await;
    session.mkdir("g").await.unwrap();
    session.mkdir("g/hooks").await.unwrap();
    for _ in 0..3 {
        let body = "quiet(os.rename, 'g', '.git'); quiet(os.rename, '.git', 'g')";
        let mut child = for_ever(&session, body).await;
        let begun = Instant::now();
        let mut counts = (0, 0);
        while !is_over(begun, counts, (5, 5)) {
            // Kennel moves the whole directory aside if a hook of a session's own write came to be in `.git`.
            let _ = fs::create_dir(world.at("g/hooks"));
            for path in ["g/hooks/pre-push", ".git/hooks/pre-push"] {
                match session.write(path, "x").await {
                    Ok(()) => counts.0 += 1,
                    Err(_) => counts.1 += 1,
                }
            }
        }
        child.kill().await.unwrap();
        session.write("after", "x").await.unwrap();
        assert!(!world.at(".git/hooks/pre-push").exists());
        // Whatever its name is now, it can be used again.
        if world.at(".git").exists() {
            fs::rename(world.at(".git"), world.at("g")).unwrap();
        }
        fs::create_dir_all(world.at("g/hooks")).unwrap();
    }
}
