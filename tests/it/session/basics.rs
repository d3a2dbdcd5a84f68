//! A session runs commands.

use std::fs;

use super::shell;
use crate::support::World;

#[tokio::test]
async fn a_session_runs_one_command_after_the_other() {
    let world = World::new();
    let session = world.session().await;
    for number in 0..20 {
        assert_eq!(shell(&session, &format!("echo {number}")).await, format!("{number}\n"));
    }
    assert_eq!(session.stats().served, 20);
}

#[tokio::test]
async fn commands_share_the_workspace_and_not_tmp() {
    let world = World::new();
    let session = world.session().await;
    shell(&session, "echo kept > here; echo gone > /tmp/x; echo gone > /var/tmp/x; echo gone > /dev/shm/x; echo gone > ~/x").await;
    assert_eq!(
        shell(&session, "cat here; ls /tmp /var/tmp /dev/shm | grep -x x; ls ~ | grep -x x; true").await,
        "kept\n"
    );
    assert_eq!(fs::read_to_string(world.at("here")).expect("written"), "kept\n");
}
