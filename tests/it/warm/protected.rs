//! What a waiting interpreter leaves at a protected path is removed, like what a command leaves there.

use std::fs;

use kennel::{Isolation, Session, WarmState};

use super::{ISOLATIONS, in_time, require_python, settled, text, warm};
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
