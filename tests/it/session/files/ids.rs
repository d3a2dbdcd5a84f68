//! The embedding program may change its ids while its calls for files are under way.

use nix::unistd::{Uid, setresuid};
use tokio::runtime::Builder;

use crate::support::{World, is_alone, only_as_root};

/// glibc changes the ids of every thread, and aborts the program if one of them may not.
#[test]
fn a_program_that_changes_its_ids_meanwhile_lives_on() {
    only_as_root!();
    if !is_alone("session::files::ids::a_program_that_changes_its_ids_meanwhile_lives_on", "exec \"$@\"") {
        return;
    }
    let world = World::new();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let session = runtime.block_on(world.session());
    let calls: Vec<_> = (0..4)
        .map(|number| {
            let session = session.clone();
            runtime.spawn(async move {
                loop {
                    // As another user it may not write here.
                    let _ = session.write(format!("file-{number}"), vec![1u8; 2000]).await;
                    let _ = session.list(".").await;
                }
            })
        })
        .collect();
    let (same, other) = (Uid::from_raw(u32::MAX), Uid::from_raw(1000));
    for _ in 0..2000 {
        setresuid(same, other, same).unwrap();
        setresuid(same, Uid::from_raw(0), same).unwrap();
    }
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    runtime.block_on(async { session.write("after", "whole").await.unwrap() });
    assert_eq!(std::fs::read(world.at("after")).unwrap(), b"whole");
}
