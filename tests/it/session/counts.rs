//! Many commands and many sessions leave no descriptor, process, mount or thread in their program.

use std::{
    fs,
    time::{Duration, Instant},
};

use kennel::Session;
use tokio::time::sleep;

use super::{PATIENCE, alone, eventually, in_time, shell, tree::descendants};
use crate::support::{World, patient};

#[derive(Clone, Debug)]
pub struct Counts {
    descriptors: usize,
    pub processes: usize,
    mounts: usize,
    threads: usize,
    /// Counts of the whole machine: the mount namespace of a worker that lives on would hold a mount.
    memory_files: usize,
}

impl Counts {
    pub fn now() -> Self {
        let entries = |path: &str| fs::read_dir(path).unwrap().count();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        Self {
            descriptors: entries("/proc/self/fd"),
            processes: descendants(std::process::id()).len(),
            mounts: fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count(),
            threads: entries("/proc/self/task"),
            memory_files: maps.matches("memfd").count(),
        }
    }

    /// There may be fewer than before: an idle thread of the runtime ended, a descriptor was about to close.
    fn is_within(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors
            && self.processes <= before.processes
            && self.mounts <= before.mounts
            && self.threads <= before.threads
            && self.memory_files <= before.memory_files
    }

    /// Waits until there is no more of anything than before. Calls `nudge` meanwhile.
    pub async fn back_to(before: &Self, mut nudge: impl FnMut()) {
        let start = Instant::now();
        loop {
            let now = Self::now();
            if now.is_within(before) {
                return;
            }
            assert!(start.elapsed() < patient(PATIENCE), "left: {now:?}, before: {before:?}");
            nudge();
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Commands that end in every possible way.
async fn every_ending(session: &Session, rounds: usize) {
    for round in 0..rounds {
        let mut command = session.command("sh");
        match round % 8 {
            0 => drop(in_time(session.command("absent-program").output()).await.unwrap_err()),
            1 => drop(in_time(session.command("true").current_dir("/absent").output()).await.unwrap_err()),
            2 => drop(in_time(command.args(["-c", "sleep 60 & exit 3"]).output()).await.unwrap()),
            3 => drop(in_time(session.command("sleep").arg("60").terminal(9, 9).spawn()).await.unwrap()),
            4 => drop(in_time(session.command("true").no_network().output()).await.unwrap()),
            5 => drop(in_time(session.command("true").background(true).status()).await.unwrap()),
            6 => drop(in_time(session.command("true").arg("x".repeat(60_000)).output()).await.unwrap()),
            _ => drop(in_time(session.command("true").output()).await.unwrap()),
        }
    }
}

async fn settled(session: &Session) {
    eventually("ready workers", || session.stats().ready == 2 && session.stats().running == 0).await;
}

#[test]
fn five_hundred_commands_leave_nothing() {
    alone("counts::five_hundred_commands_leave_nothing", async || {
        let world = World::new();
        let session = world.session().await;
        // Descriptors that the runtime and the first use of anything open for good.
        every_ending(&session, 8).await;
        settled(&session).await;
        eventually("the zygote and two workers", || Counts::now().processes == 5).await;
        let before = Counts::now();
        every_ending(&session, 500).await;
        // The session lets the last background command go with the next command.
        in_time(session.command("true").background(true).status()).await.unwrap();
        settled(&session).await;
        Counts::back_to(&before, || _ = session.stats()).await;
        assert_eq!(session.stats().served, 508 + 1);
    });
}

#[test]
fn fifty_sessions_leave_nothing() {
    alone("counts::fifty_sessions_leave_nothing", async || {
        let world = World::new();
        let policy = world.policy();
        let cycle = async |round: usize| {
            let session = Session::prepare(&policy).await.unwrap();
            every_ending(&session, round % 10).await;
            if round.is_multiple_of(3) {
                in_time(session.shutdown()).await;
            }
        };
        for round in 0..3 {
            cycle(round).await;
        }
        eventually("no process", || Counts::now().processes == 0).await;
        let before = Counts::now();
        for round in 0..50 {
            cycle(round).await;
        }
        Counts::back_to(&before, || {}).await;
    });
}

#[test]
fn twenty_sessions_at_once_leave_nothing() {
    alone("counts::twenty_sessions_at_once_leave_nothing", async || {
        let world = World::new();
        shell(&world.session().await, "true").await;
        eventually("no process", || Counts::now().processes == 0).await;
        let before = Counts::now();
        let mut all = Vec::new();
        for number in 0..20 {
            let session = Session::prepare(&world.policy().hostname(format!("host-{number}"))).await.unwrap();
            all.push(session);
        }
        for (number, session) in all.iter().enumerate() {
            assert_eq!(shell(session, "uname -n").await, format!("host-{number}\n"));
        }
        all.truncate(10);
        shell(&all[9], "true").await;
        drop(all);
        Counts::back_to(&before, || {}).await;
    });
}
