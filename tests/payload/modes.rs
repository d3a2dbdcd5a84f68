//! Tries to give a file the set-group-id bit by exchanging it for a directory while the supervisor looks.
//! Each attempt prints the results that it met.

use std::{
    collections::BTreeSet,
    ffi::CStr,
    fs::File,
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use crate::{call::raw, word};

/// The mode: rwxrwsr-x.
const MODE: i64 = 0o2775;

/// How long an attempt goes on at most, if it does not meet both results.
const LONGEST: Duration = Duration::from_secs(20);

/// Calls of each attempt, at least.
const LEAST: u32 = 300;

/// A number that the process does not use.
const NUMBER: i64 = 77;

/// `race-modes`: in a directory with a directory `d` and a file `f`.
pub(crate) fn race(_: &[&str]) {
    let (d, f) = (address(c"d"), address(c"f"));
    let exchange = || raw(libc::SYS_renameat2, [here(), d, here(), f, 2, 0]);
    attack("exchange", &exchange, &|| raw(libc::SYS_chmod, [d, MODE, 0, 0, 0, 0]));
    attack("exchange-at", &exchange, &|| raw(libc::SYS_fchmodat, [here(), d, MODE, 0, 0, 0]));
    attack("exchange-without-links", &exchange, &|| {
        raw(libc::SYS_fchmodat2, [here(), d, MODE, libc::AT_SYMLINK_NOFOLLOW.into(), 0, 0])
    });
    let text = [AtomicU8::new(b'd'), AtomicU8::new(0)];
    let rewrite = || {
        text[0].fetch_xor(b'd' ^ b'f', Relaxed);
        Ok(0)
    };
    let at = i64::try_from(text.as_ptr().expose_provenance()).unwrap_or_default();
    attack("rewrite", &rewrite, &|| raw(libc::SYS_chmod, [at, MODE, 0, 0, 0, 0]));
    let turn = AtomicBool::new(false);
    let link = || {
        let to = if turn.fetch_xor(true, Relaxed) { d } else { f };
        raw(libc::SYS_unlink, [address(c"next"), 0, 0, 0, 0, 0]).ok();
        raw(libc::SYS_symlink, [to, address(c"next"), 0, 0, 0, 0])?;
        raw(libc::SYS_rename, [address(c"next"), address(c"link"), 0, 0, 0, 0])
    };
    let _ = link();
    attack("link", &link, &|| raw(libc::SYS_chmod, [address(c"link"), MODE, 0, 0, 0, 0]));
    let (Ok(directory), Ok(file)) = (File::open("d"), File::open("f")) else { return };
    let of_descriptor = || {
        let from = if turn.fetch_xor(true, Relaxed) { &directory } else { &file };
        raw(libc::SYS_dup2, [from.as_raw_fd().into(), NUMBER, 0, 0, 0, 0])
    };
    let _ = of_descriptor();
    attack("descriptor", &of_descriptor, &|| raw(libc::SYS_fchmod, [NUMBER, MODE, 0, 0, 0, 0]));
    let in_proc = address(c"/proc/self/fd/77");
    attack("descriptor-in-proc", &of_descriptor, &|| raw(libc::SYS_chmod, [in_proc, MODE, 0, 0, 0, 0]));
    let empty = address(c"");
    attack("empty-path", &of_descriptor, &|| {
        raw(libc::SYS_fchmodat2, [NUMBER, empty, MODE, libc::AT_EMPTY_PATH.into(), 0, 0])
    });
}

/// `crowd-modes THREADS`: every thread sets the mode of `d` a hundred times.
pub(crate) fn crowd(arguments: &[&str]) {
    let threads = arguments.first().and_then(|text| text.parse().ok()).unwrap_or(1);
    let d = address(c"d");
    let one = || (0..100).map(|_| word(raw(libc::SYS_chmod, [d, MODE, 0, 0, 0, 0]))).collect::<BTreeSet<_>>();
    let met: BTreeSet<String> = thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        all.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    });
    println!("{}", Vec::from_iter(met).join(" "));
}

fn attack(
    name: &str,
    turn: &(impl Fn() -> Result<i64, i32> + Sync),
    call: &(impl Fn() -> Result<i64, i32> + Sync),
) {
    let is_over = AtomicBool::new(false);
    let mut met = BTreeSet::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                let _ = turn();
            }
        });
        let (begun, mut calls) = (Instant::now(), 0);
        while calls < LEAST || met.len() < 2 && begun.elapsed() < LONGEST {
            met.insert(word(call()));
            calls += 1;
        }
        is_over.store(true, Relaxed);
    });
    println!("{name} {}", Vec::from_iter(met).join(" "));
}

fn here() -> i64 {
    libc::AT_FDCWD.into()
}

fn address(text: &'static CStr) -> i64 {
    i64::try_from(text.as_ptr().expose_provenance()).unwrap_or_default()
}
