//! Other programs put files into a directory while a commit deletes it.

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

use super::{CONFLICT, overlaid, refusals, require_overlay, shell};
use crate::support::patient;

/// The number of attempts to be in time.
const TIMES: u32 = 3;
const MOST_TIMES: u32 = 30;

/// A process with an open directory can move files into it, whatever its name is by now: an old file, or a
/// directory that only it may read.
#[tokio::test]
async fn files_moved_into_a_directory_that_is_being_deleted_are_kept() {
    require_overlay!();
    let mut in_time = 0;
    for _ in 0..MOST_TIMES {
        let world = overlaid();
        let (doomed, precious) = (world.at("d"), world.at("precious"));
        fs::create_dir_all(doomed.join("z")).unwrap();
        for name in 0..2000 {
            fs::write(doomed.join(name.to_string()), "").unwrap();
        }
        fs::write(&precious, "keep").unwrap();
        let session = world.session().await;
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
            assert_eq!(fs::read(world.at("d/z/precious")).unwrap(), b"keep");
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

/// Another process changes a file while the commit copies its successor, or closes its directory. The process
/// sets the times of the file back, as `rsync --inplace --times` does.
#[tokio::test]
async fn changes_while_a_file_is_copied_are_kept() {
    require_overlay!();
    for _ in 0..MOST_TIMES {
        let world = overlaid();
        let (closed, big) = (world.at("d"), world.at("d/big"));
        fs::create_dir(&closed).unwrap();
        fs::write(&big, vec![b'a'; 64 << 20]).unwrap();
        let mode = |mode| <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(mode);
        fs::set_permissions(&closed, mode(0o555)).unwrap();
        let session = world.session().await;
        shell(&session, "chmod 755 d; printf Z | dd of=d/big conv=notrunc; chmod 555 d").await;
        let file = File::options().write(true).open(&big).unwrap();
        let last = big.metadata().unwrap().modified().unwrap();
        let at = closed.clone();
        let changer = thread::spawn(move || {
            let begun = Instant::now();
            let is_copying = || {
                let mut entries = fs::read_dir(&at).unwrap().flatten();
                entries.any(|it| {
                    it.file_name() != "big" && it.metadata().is_ok_and(|it| (1..64 << 20).contains(&it.len()))
                })
            };
            while !is_copying() && begun.elapsed() < patient(Duration::from_secs(5)) {}
            std::os::unix::fs::FileExt::write_all_at(&file, b"theirs", 1000).unwrap();
            file.set_modified(last).unwrap();
            fs::set_permissions(&at, mode(0o700)).unwrap();
            is_copying()
        });
        let refused = refusals(&session).await;
        if changer.join().unwrap() {
            assert_eq!(refused, [format!("M d/big: {CONFLICT}")]);
            assert_eq!(fs::read(&big).unwrap()[1000..1006], *b"theirs");
            let now = closed.metadata().unwrap().permissions();
            assert_eq!(std::os::unix::fs::PermissionsExt::mode(&now) & 0o777, 0o700);
            return;
        }
    }
    panic!("nothing was ever changed in time");
}
