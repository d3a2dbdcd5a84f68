//! Nothing passes from one warm command to the next, but what every command of the session would pass on.

use std::fs;

use kennel::{Isolation, TmpLife};

use super::{ISOLATIONS, in_time, require_python, text, waiting, warm_said};
use crate::support::World;

/// Changes everything of the interpreter that a program can change.
const CHANGE: &str = "
import atexit, builtins, gc, json, locale, os, resource, signal, socket, sys, threading, time
LEFT = json.LEFT = builtins.LEFT = sys.LEFT = os.LEFT = 1
os.environ['LEFT'] = '1'
json.dumps = print
sys.modules['absent'] = json
sys.path.append('/left')
os.chdir('/')
os.umask(0o777)
sys.setrecursionlimit(77)
gc.disable()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGUSR1, print)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
signal.setitimer(signal.ITIMER_REAL, 100)
resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99))
os.nice(5)
os.open('/dev/null', os.O_RDONLY)
os.environ['TZ'] = 'Asia/Tokyo'; time.tzset()
threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
atexit.register(print, 'left')
sys.stdout.reconfigure(encoding='latin-1')
";

const SHOW: &str = "
import builtins, gc, json, os, resource, signal, sys, time
print([hasattr(place, 'LEFT') for place in (builtins, json, os, sys)], 'LEFT' in globals(), 'LEFT' in os.environ)
print(json.dumps([1]), 'absent' in sys.modules, '/left' in sys.path, os.getcwd(), sys.getrecursionlimit(), gc.isenabled())
print(signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGUSR1), signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(signal.getitimer(signal.ITIMER_REAL), resource.getrlimit(resource.RLIMIT_NOFILE), os.nice(0), time.tzname)
print(sorted(os.listdir('/proc/self/fd')), len(os.listdir('/proc/self/task')), sys.stdout.encoding)
mask = os.umask(0); print(oct(mask))
";

#[tokio::test]
async fn nothing_of_a_command_is_in_the_next_one() {
    let python = require_python!();
    for isolation in ISOLATIONS {
        let world = World::new();
        let session = waiting(world.policy().isolation(isolation), python, &["json", "os"]).await;
        let before = warm_said(&session, &mut text(&session, python, SHOW)).await;
        assert!(before.starts_with("[False, False, False, False] False False\n[1] False False"), "{before}");
        for _ in 0..3 {
            assert_eq!(warm_said(&session, &mut text(&session, python, CHANGE)).await, "left\n");
            assert_eq!(warm_said(&session, &mut text(&session, python, SHOW)).await, before);
        }
    }
}

/// The interpreter that waits has its private places already when a command writes to its own.
#[tokio::test]
async fn private_files_are_those_that_an_executed_command_has() {
    let python = require_python!();
    let script = "import os; print([[name for name in os.listdir(at) if name == 'x'] for at in ('/tmp', '/dev/shm', '.')]); \
                  [open(at, 'w').close() for at in ('/tmp/x', '/dev/shm/x', 'x')]";
    for isolation in ISOLATIONS {
        for tmp in [TmpLife::Exec, TmpLife::Session] {
            if (isolation, tmp) == (Isolation::Session, TmpLife::Exec) {
                continue;
            }
            let (one, other) = (World::new(), World::new());
            let policy = |world: &World| world.policy().isolation(isolation).tmp(tmp);
            let of_warm = waiting(policy(&one), python, &[]).await;
            let of_executed = waiting(policy(&other), python, &[]).await;
            for round in 0..3 {
                let said = warm_said(&of_warm, &mut text(&of_warm, python, script)).await;
                let mut executed = text(&of_executed, python, script);
                let executed = in_time(executed.warm(false).output()).await.unwrap();
                assert_eq!(said.as_bytes(), executed.stdout, "{round} {isolation:?} {tmp:?}");
                let is_seen = said.starts_with("[['x'], ");
                assert_eq!(is_seen, round > 0 && tmp == TmpLife::Session, "{said}");
            }
        }
    }
}

/// What is in the workspace, and who is in the environment, is looked up when the command starts.
#[tokio::test]
async fn files_and_variables_are_those_of_now() {
    let python = require_python!();
    for isolation in ISOLATIONS {
        let world = World::new();
        let session = waiting(world.policy().isolation(isolation), python, &[]).await;
        for round in 0..3 {
            fs::create_dir(world.at(format!("d{round}"))).unwrap();
            fs::write(world.at(format!("d{round}/file")), format!("written {round}")).unwrap();
            let mut command = text(
                &session,
                python,
                "import os; print(open('file').read(), os.environ['ROUND'], os.environ.get('LEFT'))",
            );
            command.current_dir(format!("d{round}")).env("ROUND", round.to_string());
            assert_eq!(warm_said(&session, &mut command).await, format!("written {round} {round} None\n"));
        }
    }
}

#[tokio::test]
async fn no_two_commands_have_the_same_random_numbers() {
    let python = require_python!();
    for isolation in ISOLATIONS {
        let world = World::new();
        let session =
            waiting(world.policy().isolation(isolation), python, &["random", "uuid", "tempfile"]).await;
        for script in [
            "import random; print(random.random())",
            "import uuid; print(uuid.uuid4())",
            "import tempfile; print(tempfile.mktemp())",
            "import secrets; print(secrets.token_hex())",
            "print(hash('x'))",
            "import os; print(os.urandom(9))",
        ] {
            let mut seen = Vec::new();
            for _ in 0..3 {
                seen.push(warm_said(&session, &mut text(&session, python, script)).await);
            }
            seen.sort();
            seen.dedup();
            assert_eq!(seen.len(), 3, "{script}");
        }
    }
}

#[tokio::test]
async fn the_socket_to_kennel_is_closed() {
    let python = require_python!();
    for isolation in ISOLATIONS {
        let world = World::new();
        let session = waiting(world.policy().isolation(isolation), python, &["asyncio", "ssl"]).await;
        let script = "import os
for name in sorted(os.listdir('/proc/self/fd'), key=int):
    try: print(name, os.readlink('/proc/self/fd/' + name).split(':')[0])
    except FileNotFoundError: pass
";
        let said = warm_said(&session, &mut text(&session, python, script)).await;
        let executed = text(&session, python, script).warm(false).output().await.unwrap();
        assert_eq!(said, String::from_utf8_lossy(&executed.stdout));
    }
}
