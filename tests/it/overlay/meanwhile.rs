//! What others put into a directory while a commit deletes it.

use std::{
    fs::{self, File},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use nix::{
    fcntl::{AT_FDCWD, OFlag, open, renameat},
    sys::stat::Mode,
};

use super::{CONFLICT, refusals, require_overlay, session, shell, workspace};
use crate::support::patient;

/// How often to be in time for it.
const TIMES: u32 = 3;
const MOST_TIMES: u32 = 30;

/// Whoever has a directory open can move something into it whatever its name is by now: an old file, or a directory that
/// only he may look into.
#[tokio::test]
async fn what_is_moved_into_a_directory_that_is_being_deleted_is_kept() {
    require_overlay!();
    let mut in_time = 0;
    for _ in 0..MOST_TIMES {
        let dir = workspace();
        let (doomed, precious) = (dir.path().join("d"), dir.path().join("precious"));
        fs::create_dir_all(doomed.join("z")).unwrap();
        for name in 0..2000 {
            fs::write(doomed.join(name.to_string()), "").unwrap();
        }
        fs::write(&precious, "keep").unwrap();
        let session = session(dir.path()).await;
        shell(&session, "rm -r d").await;
        let hold = |path: &Path| {
            File::from(open(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty()).unwrap())
        };
        let (held, last, from) = (hold(&doomed), hold(&doomed.join("z")), precious.clone());
        let mover = thread::spawn(move || {
            let (modified, begun) = (|| held.metadata().unwrap().modified().unwrap(), Instant::now());
            let before = modified();
            while modified() == before && begun.elapsed() < patient(Duration::from_secs(20)) {
                std::hint::spin_loop();
            }
            renameat(AT_FDCWD, &from, &last, "precious").is_ok()
        });
        let refused = refusals(&session).await;
        if mover.join().unwrap() {
            assert_eq!(refused, [format!("D d/: {CONFLICT}")]);
            assert_eq!(fs::read(dir.path().join("d/z/precious")).unwrap(), b"keep");
            in_time += 1;
        } else {
            assert_eq!(fs::read(&precious).unwrap(), b"keep");
        }
        if in_time == TIMES {
            return;
        }
    }
    assert!(in_time > 0, "nothing was ever moved in time");
}
