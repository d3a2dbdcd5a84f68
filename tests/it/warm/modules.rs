//! Modules that an interpreter imports ahead: one that was replaced is imported anew, and one that cannot be
//! imported harms nothing.

use std::{
    fs,
    os::unix::fs::symlink,
    time::{Duration, Instant},
};

use kennel::{Isolation, Policy, Session, Start, WarmState};

use super::{ISOLATIONS, executed_said, in_time, require_python, settled, text, waiting, warm_said};
use crate::support::{World, past_the_tick};

/// A policy whose commands find modules in `lib` of the workspace.
fn policy(world: &World, isolation: Isolation) -> Policy {
    fs::create_dir_all(world.at("lib")).unwrap();
    fs::create_dir_all(world.at("work")).unwrap();
    let mut policy = world.policy().set_env("PYTHONPATH", world.at("lib").to_str().unwrap());
    policy.cwd = Some(world.at("work"));
    policy.isolation(isolation)
}

#[tokio::test]
async fn a_module_that_was_replaced_is_imported_anew() {
    let python = require_python!();
    let script = "import mine; print(mine.VALUE)";
    for isolation in ISOLATIONS {
        let world = World::new();
        let policy = policy(&world, isolation);
        let module = world.at("lib/mine.py");
        fs::write(&module, "VALUE = 1\n").unwrap();
        let session = waiting(policy, python, &["mine"]).await;
        assert_eq!(warm_said(&session, &mut text(&session, python, script)).await, "1\n");
        // Its length changes too: Python compares times in seconds.
        for (value, is_renamed) in [(20, false), (300, true)] {
            in_time(session.interpreters_started()).await;
            past_the_tick();
            let new = if is_renamed { world.at("lib/new") } else { module.clone() };
            fs::write(&new, format!("VALUE = {value}\n")).unwrap();
            fs::rename(new, &module).unwrap();
            let (said, reason) = executed_said(&mut text(&session, python, script)).await;
            assert_eq!(said, format!("{value}\n"));
            assert!(reason.ends_with(" has changed") && reason.contains("/lib"), "{reason}");
            let said = warm_said(&session, &mut text(&session, python, script)).await;
            assert_eq!(said, format!("{value}\n"));
        }
        // A command may replace it too, and the next one sees that.
        in_time(session.interpreters_started()).await;
        past_the_tick();
        let mut replace = session.command("sh");
        let write = format!("echo 'VALUE = 4000' > {}", module.display());
        in_time(replace.args(["-c", &write]).output()).await.unwrap();
        let (said, reason) = executed_said(&mut text(&session, python, script)).await;
        assert!(said == "4000\n" && reason.ends_with(" has changed"), "{said} {reason}");
    }
}

#[tokio::test]
async fn a_module_that_comes_before_an_imported_one_is_imported() {
    let python = require_python!();
    let script = "import json; print(hasattr(json, 'MINE'))";
    for isolation in ISOLATIONS {
        let world = World::new();
        let session = waiting(policy(&world, isolation), python, &["json"]).await;
        assert_eq!(warm_said(&session, &mut text(&session, python, script)).await, "False\n");
        in_time(session.interpreters_started()).await;
        past_the_tick();
        fs::write(world.at("lib/json.py"), "MINE = 1\n").unwrap();
        let (said, reason) = executed_said(&mut text(&session, python, script)).await;
        assert_eq!((said.as_str(), reason), ("True\n", format!("{} has changed", world.at("lib").display())));
        assert_eq!(warm_said(&session, &mut text(&session, python, script)).await, "True\n");
    }
}

/// The first entry of `sys.path` is the directory of the script, or that of the command.
#[tokio::test]
async fn a_module_beside_the_script_comes_before_an_imported_one() {
    let python = require_python!();
    let script = "import json; print(hasattr(json, 'MINE'))";
    for isolation in ISOLATIONS {
        let world = World::new();
        let policy = policy(&world, isolation);
        for directory in ["work/file", "work/package/json", "work/apart"] {
            fs::create_dir_all(world.at(directory)).unwrap();
            fs::write(world.at(directory).join("script.py"), script).unwrap();
        }
        fs::write(world.at("work/file/json.py"), "MINE = 1\n").unwrap();
        fs::write(world.at("work/package/json/__init__.py"), "MINE = 1\n").unwrap();
        fs::write(world.at("work/package/script.py"), script).unwrap();
        symlink("../file/script.py", world.at("work/apart/link.py")).unwrap();
        let session = waiting(policy, python, &["json"]).await;
        for (directory, arguments) in [
            ("work/file", &["-c", script][..]),
            ("work/file", &["script.py"]),
            ("work/file", &["-m", "script"]),
            ("work", &["file/script.py"]),
            ("work", &["package/script.py"]),
            ("work/package", &["-c", script]),
            ("work/apart", &["link.py"]),
        ] {
            in_time(session.interpreters_started()).await;
            let mut command = session.command(python);
            command.args(arguments).current_dir(world.at(directory));
            let (said, reason) = executed_said(&mut command).await;
            assert_eq!(said, "True\n", "{directory} {arguments:?}");
            assert!(reason.contains("json"), "{directory} {arguments:?}: {reason}");
        }
        for arguments in [&["-c", script][..], &["script.py"], &["-m", "script"], &["../apart/script.py"]] {
            let mut command = session.command(python);
            command.args(arguments).current_dir(world.at("work/apart"));
            assert_eq!(warm_said(&session, &mut command).await, "False\n", "{arguments:?}");
        }
    }
}

/// Modules that fail, and what the reason says.
const FAILING: &[(&str, &str, &str)] = &[
    ("raises", "raise ValueError('no')", "import raises: ValueError: no"),
    ("exits", "import sys; sys.exit(3)", "import exits: SystemExit: 3"),
    ("ends", "import os; os._exit(3)", "the interpreter ended before it waited: nobody knows why"),
    (
        "kills",
        "import os; os.kill(os.getpid(), 9)",
        "the interpreter ended before it waited: nobody knows why",
    ),
    ("prints", "print('hello')\nprint('more')", "its imports print: hello"),
    ("warns", "import sys; sys.stderr.write('careful')", "its imports print: careful"),
    ("writes", "import os; os.write(1, b'raw')", "its imports print: raw"),
    (
        "starts",
        "import subprocess; subprocess.Popen(['sleep', '1000'])",
        "the import of starts starts processes",
    ),
    ("broken", "x = (", "import broken: SyntaxError: "),
    ("absent", "", "import absent: ModuleNotFoundError: No module named 'absent'"),
    ("deep", "import raises", "import deep: ValueError: no"),
    ("loops", "def f(): f()\nf()", "import loops: RecursionError: "),
];

#[tokio::test]
async fn a_module_that_cannot_be_imported_harms_nothing() {
    let python = require_python!();
    for isolation in ISOLATIONS {
        let world = World::new();
        let policy = policy(&world, isolation);
        for (name, contents, _) in FAILING.iter().filter(|(_, contents, _)| !contents.is_empty()) {
            fs::write(world.at(format!("lib/{name}.py")), contents).unwrap();
        }
        for (name, _, expected) in FAILING {
            let session = Session::prepare(&policy.clone().warm(python, ["json", name])).await.unwrap();
            let interpreter = settled(&session).await;
            let reason = interpreter.reason.expect("a reason");
            assert_eq!((interpreter.state, interpreter.memory), (WarmState::Failed, None), "{name}");
            let expected = expected.replace(&format!("import of {name}"), &format!("import of json, {name}"));
            assert!(reason.starts_with(&expected), "{name}: {reason}");
            for _ in 0..2 {
                let (said, given) = executed_said(&mut text(&session, python, "print('served')")).await;
                assert_eq!((said.as_str(), &given), ("served\n", &reason), "{name}");
            }
            in_time(session.shutdown()).await;
        }
    }
}

/// One that takes for ever is no reason to wait, or to stay.
#[tokio::test]
async fn commands_do_not_wait_for_a_module_that_hangs() {
    let python = require_python!();
    for isolation in ISOLATIONS {
        let world = World::new();
        let policy = policy(&world, isolation);
        fs::write(world.at("lib/hangs.py"), "import time; time.sleep(1000)").unwrap();
        let session = Session::prepare(&policy.warm(python, ["hangs"])).await.unwrap();
        for _ in 0..3 {
            assert_eq!(session.interpreters()[0].state, WarmState::Starting);
            let (said, reason) = executed_said(&mut text(&session, python, "print('served')")).await;
            assert_eq!((said.as_str(), reason.as_str()), ("served\n", "the interpreter is getting ready"));
        }
        in_time(session.shutdown()).await;
    }
}

/// Descriptors, threads and handlers of a module are still there when the command comes, as after a plain
/// import.
#[tokio::test]
async fn what_a_module_made_is_there() {
    let python = require_python!();
    let module = "import signal, threading, queue, os, atexit
FILE = open('/dev/null')
asked, answers = queue.Queue(), queue.Queue()
def serve():
    while True: answers.put(asked.get() * 2)
threading.Thread(target=serve, daemon=True).start()
signal.signal(signal.SIGUSR1, lambda *_: print('signal'))
atexit.register(lambda: print('end'))
";
    let script = "import made, os, signal
made.asked.put(21); print(made.answers.get(), made.FILE.read() == '')
os.kill(os.getpid(), signal.SIGUSR1)
";
    for isolation in ISOLATIONS {
        let world = World::new();
        let policy = policy(&world, isolation);
        fs::write(world.at("lib/made.py"), module).unwrap();
        let session = waiting(policy, python, &["made"]).await;
        for _ in 0..3 {
            let said = warm_said(&session, &mut text(&session, python, script)).await;
            assert_eq!(said, "42 True\nsignal\nend\n");
        }
    }
}

#[tokio::test]
async fn several_interpreters_wait_side_by_side() {
    let python = require_python!();
    let world = World::new();
    let policy = policy(&world, Isolation::Session);
    let other = world.at("work/python3");
    symlink(python, &other).unwrap();
    let other = other.to_str().unwrap();
    let session = waiting(policy.warm(other, ["json"]), python, &["decimal"]).await;
    let script = "import sys; print('json' in sys.modules, 'decimal' in sys.modules, sys.executable)";
    for _ in 0..3 {
        let said = warm_said(&session, &mut text(&session, other, script)).await;
        assert_eq!(said, format!("True False {other}\n"));
        let said = warm_said(&session, &mut text(&session, python, script)).await;
        assert_eq!(said, format!("False True {python}\n"));
    }
}

#[tokio::test]
async fn a_module_that_is_installed_later_is_imported_then() {
    let python = require_python!();
    let world = World::new();
    let session =
        Session::prepare(&policy(&world, Isolation::Command).warm(python, ["later"])).await.unwrap();
    let interpreter = settled(&session).await;
    assert_eq!(interpreter.state, WarmState::Failed);
    assert!(interpreter.reason.is_some_and(|reason| reason.contains("later")));
    fs::write(world.at("lib/later.py"), "VALUE = 1\n").unwrap();
    let mut command = text(&session, python, "import later; print(later.VALUE)");
    let begun = Instant::now();
    while in_time(command.output()).await.unwrap().outcome.start != Start::Warm {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", session.interpreters());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
