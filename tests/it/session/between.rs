//! Only shared things pass from one command of a session to the next.

use std::time::Duration;

use kennel::{Command, Session};
use tokio::time::sleep;

use super::{attempt, check, eventually, in_time, policy, probing, ready, said, session, shell};
use crate::support::{HEARTBEAT, beats, is_silent, require, workspace};

/// Every process that a command sees.
async fn seen(session: &Session) -> Vec<String> {
    let list = said(&mut attempt(session, "list /proc")).await;
    let names = list.trim().trim_matches(['[', ']']).split(' ');
    names.filter(|name| name.parse::<u32>().is_ok()).map(str::to_owned).collect()
}

/// A command that leaves a heartbeat behind.
fn leaves_a_heart(session: &Session) -> Command {
    let mut command = session.command("sh");
    let heart =
        format!("(trap '' TERM HUP; setsid sh -c '{HEARTBEAT}') & until [ -s beat ]; do sleep 0.01; done");
    command.args(["-c", &heart]).stdin(kennel::Stdio::null()).stdout(kennel::Stdio::null());
    command
}

#[tokio::test]
async fn background_processes_are_dead_when_their_command_has_ended() {
    let dir = workspace();
    let session = session(dir.path()).await;
    let outcome = in_time(leaves_a_heart(&session).status()).await.unwrap();
    let at_end = beats(dir.path());
    assert!(outcome.status.success() && outcome.usage.killed >= 1 && at_end > 0, "{outcome:?}");
    sleep(Duration::from_millis(100)).await;
    assert_eq!(beats(dir.path()), at_end);
}

#[tokio::test]
async fn a_background_command_lives_until_the_session_ends() {
    let dir = workspace();
    let session = probing(dir.path()).await;
    let outcome = in_time(leaves_a_heart(&session).background(true).status()).await.unwrap();
    assert!(outcome.status.success() && outcome.usage.killed == 0, "{outcome:?}");
    for _ in 0..5 {
        let before = beats(dir.path());
        assert_eq!(seen(&session).await, ["1", "2"], "the next command sees itself alone");
        assert_eq!(said(&mut attempt(&session, "kill-everyone")).await, "ok\n");
        eventually("it lives on", || beats(dir.path()) > before).await;
    }
    drop(session);
    eventually("it ends with the session", || is_silent(dir.path())).await;
}

#[tokio::test]
async fn a_background_command_that_leaves_nothing_is_gone() {
    let dir = workspace();
    let session = session(dir.path()).await;
    for _ in 0..5 {
        let outcome = in_time(session.command("true").background(true).status()).await.unwrap();
        assert!(outcome.status.success());
    }
    let mut command = session.command("sh");
    command.args(["-c", "sleep 60 >/dev/null 2>&1 & echo started"]).background(true);
    assert_eq!(said(&mut command).await, "started\n");
    in_time(session.shutdown()).await;
}

#[tokio::test]
async fn background_is_refused_outside_of_a_session() {
    let dir = workspace();
    let sandbox = kennel::Sandbox::new(&policy(dir.path())).unwrap();
    let error = in_time(sandbox.command("true").background(true).status()).await.unwrap_err();
    assert!(matches!(&error, kennel::Error::Command { what: "background", .. }), "{error:?}");
}

/// Objects that a command makes, the result, and how the next command would find each.
fn objects() -> Vec<(String, &'static str, String)> {
    let (sem, msg) = (libc::SYS_semget, libc::SYS_msgget);
    // The filter refuses to make a queue, as no rule of Landlock would let a command open it.
    vec![
        ("shmget 0x6b65 4096 0x3b6".into(), "ok", "shmget 0x6b65 4096 0".into()),
        (format!("{sem} 0x6b65 1 0x3b6"), "ok", format!("{sem} 0x6b65 1 0")),
        (format!("{msg} 0x6b65 0x3b6"), "ok", format!("{msg} 0x6b65 0")),
        ("mq_open s:left 0x42 0x1b6 0".into(), "EACCES", "mq_open s:left 2 0 0".into()),
        ("open s:/dev/shm/left 0x42 0x1b6".into(), "ok", "open s:/dev/shm/left 2".into()),
    ]
}

#[tokio::test]
async fn ipc_objects_do_not_pass_to_the_next_command() {
    let dir = workspace();
    let session = probing(dir.path()).await;
    let objects = objects();
    let made: Vec<(&str, &str)> = objects.iter().map(|(make, answer, _)| (&**make, *answer)).collect();
    // What cannot be made is not there.
    let there = |answer: &str| if answer == "ok" { "ok" } else { "ENOENT" };
    let both: Vec<(&str, &str)> = objects
        .iter()
        .flat_map(|(make, answer, find)| [(make.as_str(), *answer), (find.as_str(), there(answer))])
        .collect();
    let found: Vec<(&str, &str)> = objects.iter().map(|(.., find)| (&**find, "ENOENT")).collect();
    check(&session, &both).await;
    for _ in 0..4 {
        check(&session, &made).await;
        check(&session, &found).await;
    }
    let made: Vec<&str> = made.iter().map(|(make, _)| *make).collect();
    let pause = libc::SYS_pause;
    let holding = format!("call {} + {pause}", made.join(" + "));
    let _holding = ready(&mut attempt(&session, &holding), 5).await;
    check(&session, &found).await;
}

#[tokio::test]
async fn keys_are_refused_to_every_command() {
    let dir = workspace();
    let session = probing(dir.path()).await;
    for _ in 0..3 {
        // Session and user keyring; joining one by name.
        check(
            &session,
            &[
                ("add_key s:user s:x s:y 1 -3", "EPERM"),
                ("add_key s:user s:x s:y 1 -4", "EPERM"),
                ("keyctl 0 -3 0", "EPERM"),
                ("keyctl 1 s:_ses.1", "EPERM"),
                ("request_key s:user s:x 0 -3", "EPERM"),
            ],
        )
        .await;
    }
}

#[tokio::test]
async fn abstract_sockets_of_another_command_are_out_of_reach() {
    require!(
        kennel::probe::Host::detect().landlock_abi >= 6,
        "Landlock ABI 6, which scopes abstract sockets"
    );
    let dir = workspace();
    let session = probing(dir.path()).await;
    // AF_UNIX, "\0left"; a stream and a datagram socket.
    let serve = |kind: u8, rest: &str| format!("socket 1 {kind} 0 + bind $ x:0100006c656674 7 {rest}");
    let pause = libc::SYS_pause;
    let stream =
        ready(&mut attempt(&session, &format!("call {} + {pause}", serve(1, "+ listen $ 5"))), 3).await;
    assert_eq!(said(&mut attempt(&session, "abstract left")).await.lines().next(), Some("EPERM"));
    drop(stream);
    let _datagram = ready(&mut attempt(&session, &format!("call {} + {pause}", serve(2, ""))), 2).await;
    assert_eq!(said(&mut attempt(&session, "abstract left")).await.lines().last(), Some("EPERM"));
    // Its own socket is reachable: the refusal was for the other command's.
    check(
        &session,
        &[
            ("socket 1 1 0", "ok"),
            ("bind $ x:0100006d696e65 7", "ok"),
            ("listen $ 5", "ok"),
            ("socket 1 1 0", "ok"),
            ("connect $ x:0100006d696e65 7", "ok"),
        ],
    )
    .await;
}

#[tokio::test]
async fn process_attributes_do_not_pass_to_the_next_command() {
    let dir = workspace();
    let session = probing(dir.path()).await;
    let show = "umask; pwd; ulimit -n; ulimit -f; ulimit -c; grep -E '^(Sig(Blk|Ign)|Cpus_allowed|Seccomp|Uid|Gid|Groups|NoNewPrivs|Cap)' /proc/self/status;
        cat /proc/self/oom_score_adj; nice; set | grep -c LEFT; echo $LEFT";
    let before = shell(&session, show).await;
    let change = "umask 0777; cd /; ulimit -n 9; ulimit -f 1; trap '' TERM HUP INT QUIT; export LEFT=1; renice -n 19 $$ >/dev/null;
        taskset -p 1 $$ >/dev/null 2>&1; echo 1000 2>/dev/null > /proc/self/oom_score_adj; true";
    for _ in 0..4 {
        shell(&session, change).await;
        assert_eq!(shell(&session, show).await, before);
    }
}

#[tokio::test]
async fn watches_and_timers_do_not_pass_to_the_next_command() {
    let dir = workspace();
    let session = probing(dir.path()).await;
    let (inotify, watch) = (libc::SYS_inotify_init1, libc::SYS_inotify_add_watch);
    let calls = format!("{inotify} 0 + {watch} $ s:{} 0xfff + {} 2", dir.path().display(), libc::SYS_alarm);
    for _ in 0..3 {
        assert_eq!(said(&mut attempt(&session, &format!("call {calls}"))).await, "ok\nok\nok\n");
        assert_eq!(said(&mut attempt(&session, "descriptors")).await, "0 1 2\n");
        // alarm(2) returns the remaining time of the last alarm.
        assert_eq!(
            said(&mut attempt(&session, &format!("call {} 0 + dup2 % 1", libc::SYS_alarm)))
                .await
                .lines()
                .next(),
            Some("ok")
        );
    }
    let mut watching = ready(&mut attempt(&session, &format!("call {calls} + {}", libc::SYS_pause)), 3).await;
    assert_eq!(said(&mut attempt(&session, "descriptors")).await, "0 1 2\n");
    assert_eq!(
        in_time(watching.wait()).await.unwrap().exit_code(),
        128 + 14,
        "its own alarm, and only its own"
    );
}

#[tokio::test]
async fn a_command_cannot_change_the_init_of_the_next_one() {
    let dir = workspace();
    let session = probing(dir.path()).await;
    for _ in 0..2 {
        check(
            &session,
            &[
                ("ptrace 16 1 0 0", "EPERM"),
                ("process_vm_readv 1 p:0x10000,8 1 p:0x10000,8 1 0", "EPERM"),
                ("process_vm_writev 1 p:0x10000,8 1 p:0x10000,8 1 0", "EPERM"),
                ("prlimit64 1 7 p:3,3 0", "EPERM"),
                ("setpriority 0 1 19", "EPERM"),
                ("open s:/proc/1/mem 0", "EACCES"),
                ("open s:/proc/1/ns/ipc 0", "EACCES"),
                ("pidfd_open 1 0", "ok"),
                ("pidfd_getfd $ 8 0", "EPERM"),
                ("setns $ 0x8000000", "EPERM"),
            ],
        )
        .await;
    }
}
