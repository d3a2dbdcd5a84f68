//! What a waiting interpreter leaves at a protected path is removed, like what a command leaves there.

use std::fs;

use kennel::{Isolation, Session, WarmState};

use super::{ISOLATIONS, executed_said, in_time, require_python, settled, text, waiting, warm, warm_said};
use crate::support::{World, eventually, repository};

/// A module whose thread plants a hook again and again, as long as its interpreter lives.
const PLANTS: &str = "import os, threading, time
def plant():
    while True:
        try:
            with open(os.environ['PLACE'], 'w') as file: file.write('#!/bin/sh\\n')
        except OSError: pass
        time.sleep(0.001)
threading.Thread(target=plant, daemon=True).start()
";

async fn planting(world: &World, python: &str, isolation: Isolation) -> Session {
    fs::create_dir_all(world.at("lib")).unwrap();
    fs::write(world.at("lib/plants.py"), PLANTS).unwrap();
    let policy = world.policy().isolation(isolation).set_env("PYTHONPATH", world.at("lib").to_str().unwrap());
    let policy = policy.set_env("PLACE", world.at(".git/commondir").to_str().unwrap());
    Session::prepare(&policy.warm(python, ["plants"])).await.expect("a session")
}

#[tokio::test]
async fn what_a_waiting_interpreter_plants_is_removed() {
    let python = require_python!();
    for isolation in ISOLATIONS {
        let world = World::of(repository());
        let session = planting(&world, python, isolation).await;
        assert_eq!(settled(&session).await.state, WarmState::Waiting);
        let planted = world.at(".git/commondir");
        for _ in 0..3 {
            eventually("it plants", || planted.exists()).await;
            let outcome = in_time(session.command("true").output()).await.unwrap().outcome;
            let subjects: Vec<_> = outcome.denials.iter().map(|denial| &*denial.subject).collect();
            assert_eq!(subjects, [planted.to_str().unwrap()], "{isolation:?}");
        }
        in_time(session.shutdown()).await;
        assert!(!planted.exists(), "{isolation:?}");
    }
}

/// With nobody else in the session, the end of the session is the first that looks.
#[tokio::test]
async fn what_an_interpreter_planted_is_removed_at_the_end_of_the_session() {
    let python = require_python!();
    for isolation in ISOLATIONS {
        for is_taken in [false, true] {
            let world = World::of(repository());
            let session = planting(&world, python, isolation).await;
            assert_eq!(settled(&session).await.state, WarmState::Waiting);
            let planted = world.at(".git/commondir");
            eventually("it plants", || planted.exists()).await;
            if is_taken {
                warm(&session, &mut text(&session, python, "import time; time.sleep(0.1)")).await;
            }
            in_time(session.shutdown()).await;
            assert!(!planted.exists(), "{isolation:?}");
        }
    }
}

#[tokio::test]
async fn an_interpreter_from_before_a_protected_file_was_replaced_becomes_no_command() {
    let python = require_python!();
    for isolation in ISOLATIONS {
        let world = World::of(repository());
        fs::write(world.at(".git/config"), "before").unwrap();
        let session = waiting(world.policy().isolation(isolation), python, &[]).await;
        let write = "
try: open('.git/config', 'w').write('inside')
except OSError as error: print(error.strerror)
print(open('.git/config').read())";
        let said = warm_said(&session, &mut text(&session, python, write)).await;
        assert_eq!(said, "Read-only file system\nbefore\n");
        in_time(session.interpreters_started()).await;
        // As editors do it: another file, another inode, and the mount over the old one is gone.
        fs::write(world.at("new"), "outside").unwrap();
        fs::rename(world.at("new"), world.at(".git/config")).unwrap();
        let (said, reason) = executed_said(&mut text(&session, python, write)).await;
        assert_eq!(said, "Read-only file system\noutside\n", "{isolation:?}");
        assert_eq!(reason, "files of the host have changed since the interpreter started", "{isolation:?}");
        let said = warm_said(&session, &mut text(&session, python, write)).await;
        assert_eq!(said, "Read-only file system\noutside\n", "{isolation:?}");
    }
}
