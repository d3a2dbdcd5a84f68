//! What a program notices: each line of the table in `docs/warm.md`.

use std::fs;

use super::{in_time, require_python, text, waiting, warm_said};
use crate::support::World;

/// What the program says warm, and what it says executed, with these modules imported ahead.
async fn both(modules: &[&str], script: &str) -> (String, String) {
    let python = super::python().expect("a Python");
    let world = World::new();
    let session = waiting(world.policy(), python, modules).await;
    let warm = warm_said(&session, &mut text(&session, python, script)).await;
    let executed = in_time(text(&session, python, script).warm(false).output()).await.unwrap();
    (warm, String::from_utf8_lossy(&executed.stdout).into_owned())
}

#[tokio::test]
async fn what_was_imported_ahead_is_loaded() {
    let _ = require_python!();
    let script =
        "import sys; print('decimal' in sys.modules, '_decimal' in sys.modules, 'ctypes' in sys.modules)";
    let (warm, executed) = both(&["decimal"], script).await;
    assert_eq!((&*warm, &*executed), ("True True False\n", "False False False\n"));
}

#[tokio::test]
async fn the_time_of_the_imports_counts() {
    let _ = require_python!();
    let script = "import resource, time; print(time.process_time() > 0, resource.getrusage(resource.RUSAGE_SELF).ru_utime >= 0)";
    let (warm, executed) = both(&["decimal", "json", "asyncio"], script).await;
    assert_eq!(warm, executed);
    let script = "import os, time; started = int(open('/proc/self/stat').read().rpartition(')')[2].split()[19]); \
                  print(started / os.sysconf('SC_CLK_TCK') <= time.clock_gettime(time.CLOCK_BOOTTIME))";
    let (warm, executed) = both(&[], script).await;
    assert_eq!((&*warm, &*executed), ("True\n", "True\n"));
}

#[tokio::test]
async fn a_module_reads_the_session_s_environment_while_it_is_imported() {
    let python = require_python!();
    let world = World::new();
    fs::write(world.path().join("reads.py"), "import os, sys\nSAID = os.environ.get('MARK'), sys.argv\n")
        .unwrap();
    let mut policy = world.policy();
    policy.env.set.insert("PYTHONPATH".to_owned(), world.path().display().to_string());
    policy.env.set.insert("MARK".to_owned(), "session".to_owned());
    let session = waiting(policy, python, &["reads"]).await;
    let script = "import os, reads; print(*reads.SAID, os.environ['MARK'])";
    let mut command = text(&session, python, script);
    let warm = warm_said(&session, command.env("MARK", "command")).await;
    assert_eq!(warm, "session [''] command\n");
    let executed = in_time(command.warm(false).output()).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&executed.stdout), "command ['-c'] command\n");
}

#[tokio::test]
async fn below_runpy_is_one_more_frame() {
    let python = require_python!();
    let world = World::new();
    let count = "import sys\nframe, depth = sys._getframe(), 0\nwhile frame: frame, depth = frame.f_back, depth + 1\nprint(depth)\n";
    fs::write(world.path().join("count.py"), count).unwrap();
    let session = waiting(world.policy(), python, &[]).await;
    let mut command = session.command(python);
    let warm: u32 = warm_said(&session, command.args(["-m", "count"])).await.trim().parse().unwrap();
    let executed = in_time(command.warm(false).output()).await.unwrap();
    let executed: u32 = String::from_utf8_lossy(&executed.stdout).trim().parse().unwrap();
    assert_eq!(warm, executed + 1);
}

#[tokio::test]
async fn a_few_calls_of_c_are_below_the_program() {
    let _ = require_python!();
    let script = "depth = 0\ndef deeper():\n  global depth\n  depth += 1\n  deeper()\ntry: deeper()\nexcept RecursionError: print(depth)";
    let (warm, executed) = both(&[], script).await;
    let [warm, executed] = [warm, executed].map(|said| said.trim().parse::<u32>().unwrap());
    assert!(warm <= executed && executed - warm <= 10, "{warm} {executed}");
}

#[tokio::test]
async fn the_end_leaves_out_what_was_loaded_before_and_nothing_else() {
    let python = require_python!();
    let world = World::new();
    let ends = "class Ends:\n  def __init__(self, name): self.name = name\n  def __del__(self): print('end of', self.name)\n";
    fs::write(world.path().join("ahead.py"), format!("{ends}KEPT = Ends('ahead')\n")).unwrap();
    fs::write(world.path().join("own.py"), "import ahead\nKEPT = ahead.Ends('own')\n").unwrap();
    let mut policy = world.policy();
    policy.env.set.insert("PYTHONPATH".to_owned(), world.path().display().to_string());
    let session = waiting(policy, python, &["ahead"]).await;
    // The last two are in cycles, which only the collector finds.
    let script = "import ahead, gc, own\nKEPT = ahead.Ends('main')\nfile = open('unflushed', 'w'); file.write('all')\n\
        own.cycle = [ahead.Ends('cycle')]; own.cycle.append(own.cycle)\n\
        lost = [ahead.Ends('garbage')]; lost.append(lost); del lost\nprint(gc.get_freeze_count() > 0)";
    let mut command = text(&session, python, script);
    let lines = |said: &str| {
        let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    let warm = warm_said(&session, &mut command).await;
    assert_eq!(lines(&warm), ["True", "end of cycle", "end of garbage", "end of main", "end of own"]);
    assert_eq!(fs::read_to_string(world.path().join("unflushed")).unwrap(), "all");
    let executed = in_time(command.warm(false).output()).await.unwrap();
    let executed = String::from_utf8_lossy(&executed.stdout).into_owned();
    assert_eq!(
        lines(&executed),
        ["False", "end of ahead", "end of cycle", "end of garbage", "end of main", "end of own"]
    );
}
