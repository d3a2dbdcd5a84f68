//! Processes that refuse to end, and processes that reach for others.

use std::{
    fs::{self, File},
    io::Write,
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{call::raw, say};

const TICK: Duration = Duration::from_millis(5);

pub(crate) fn fork() -> Result<i64, i32> {
    raw(libc::SYS_fork, [0; 6])
}

fn leave() -> ! {
    // Flush the output first: _exit(2) does not.
    let _ = std::io::stdout().flush();
    leave_now()
}

fn leave_now() -> ! {
    let _ = raw(libc::SYS_exit_group, [0; 6]);
    std::process::abort()
}

/// A daemon by the book: two forks and a session of its own. It appends to the file until it is killed.
pub(crate) fn daemon(arguments: &[&str]) {
    let path = arguments.first().copied().unwrap_or_default().to_owned();
    if fork() == Ok(0) {
        let _ = raw(libc::SYS_setsid, [0; 6]);
        if fork() == Ok(0) {
            ignore_signals();
            loop {
                let file = File::options().create(true).append(true).open(&path);
                let _ = file.and_then(|mut file| file.write_all(b"."));
                sleep(TICK);
            }
        }
        leave();
    }
    let end = Instant::now() + Duration::from_secs(5);
    while !fs::read(&path).is_ok_and(|beat| !beat.is_empty()) {
        if Instant::now() > end {
            return say(Err(libc::ETIMEDOUT));
        }
        sleep(TICK);
    }
    println!("ok");
}

/// A daemon whose parent stays as well.
pub(crate) fn daemon_and_wait(arguments: &[&str]) {
    daemon(arguments);
    sleep(Duration::from_secs(60));
}

fn ignore_signals() {
    for number in 1..32 {
        // SAFETY: SIG_IGN runs no code of ours.
        let _ = unsafe { libc::signal(number, libc::SIG_IGN) };
    }
}

/// kill(2) of everybody. The kernel spares the caller.
pub(crate) fn kill_everyone(_: &[&str]) {
    if fork() == Ok(0) {
        sleep(Duration::from_secs(60));
        leave();
    }
    say(raw(libc::SYS_kill, [-1, libc::SIGKILL.into(), 0, 0, 0, 0]));
}

/// Forks in every generation until a fork is refused. The first process prints the errno.
pub(crate) fn fork_bomb(_: &[&str]) {
    let end = Instant::now() + Duration::from_secs(30);
    while Instant::now() < end {
        match fork() {
            Ok(0) => {
                sleep(Duration::from_secs(60));
                leave();
            }
            Ok(_) => {}
            refused => {
                say(refused);
                return;
            }
        }
    }
    println!("never refused");
}

/// So many chains of processes for so many seconds: each process appends to the file, forks the next one and
/// ends. With `cont` each also continues whatever is stopped. With `kill` the first one kills its parent.
/// Stays for that long.
pub(crate) fn storm(arguments: &[&str]) {
    let text = |at: usize| arguments.get(at).copied().unwrap_or_default();
    let (chains, seconds) = (text(0).parse().unwrap_or(1), text(1).parse().unwrap_or(1));
    let end = Instant::now() + Duration::from_secs(seconds);
    let Ok(mut file) = File::options().create(true).append(true).open(text(2)) else {
        return say(Err(libc::ENOENT));
    };
    for _ in 0..chains {
        if fork() != Ok(0) {
            continue;
        }
        let _ = raw(libc::SYS_setsid, [0; 6]);
        while Instant::now() < end {
            let _ = file.write_all(b".");
            if text(3) == "cont" {
                let _ = raw(libc::SYS_kill, [-1, libc::SIGCONT.into(), 0, 0, 0, 0]);
            }
            match fork() {
                Ok(0) => {}
                Ok(_) => leave(),
                Err(_) => sleep(TICK),
            }
        }
        leave();
    }
    println!("ready");
    let _ = std::io::stdout().flush();
    if text(3) == "kill" {
        sleep(TICK);
        let parent = i64::from(std::os::unix::process::parent_id());
        say(raw(libc::SYS_kill, [parent, libc::SIGKILL.into(), 0, 0, 0, 0]));
    }
    sleep(end.saturating_duration_since(Instant::now()));
}

/// A chain whose processes share their memory: clone(2) copies nothing, and each lives for some microseconds.
struct Chain {
    file: File,
    end: Instant,
    /// What each process does besides: `timer` or `parent`.
    more: String,
    born: AtomicUsize,
    stacks: Vec<[u8; 16 << 10]>,
}

/// So many chains of processes for so many seconds, as in `storm`, but each process shares the memory of the
/// one before. With `timer` a timer continues each process once it is stopped, with `parent` the end of its
/// parent does. Stays for that long.
pub(crate) fn chain(arguments: &[&str]) {
    let text = |at: usize| arguments.get(at).copied().unwrap_or_default();
    let (chains, seconds) = (text(0).parse().unwrap_or(1), text(1).parse().unwrap_or(1));
    let end = Instant::now() + Duration::from_secs(seconds);
    for number in 0..chains {
        let Ok(file) = File::options().create(true).append(true).open(text(2)) else {
            return say(Err(libc::ENOENT));
        };
        let stacks = vec![[0; 16 << 10]; 64];
        let chain = Chain { file, end, more: text(3).to_owned(), born: AtomicUsize::new(0), stacks };
        if fork() == Ok(0) {
            let _ = raw(libc::SYS_setsid, [0; 6]);
            stay_on(number);
            link((&raw const chain).cast_mut().cast());
        }
    }
    println!("ready");
    let _ = std::io::stdout().flush();
    sleep(end.saturating_duration_since(Instant::now()));
}

/// Binds this process and its children to one processor: a child that starts on another one takes longer.
fn stay_on(number: usize) {
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut mask = [1u64 << (number % count.min(64))];
    let address = mask.as_mut_ptr().expose_provenance().cast_signed() as i64;
    let _ = raw(libc::SYS_sched_setaffinity, [0, 8, address, 0, 0, 0]);
}

/// One process of a chain.
extern "C" fn link(chain: *mut libc::c_void) -> i32 {
    // SAFETY: the first process made it, and none of them drops it.
    let Chain { file, end, more, born, stacks } = unsafe { &*chain.cast::<Chain>() };
    match more.as_str() {
        "timer" => continue_soon(),
        "parent" => {
            let signal = libc::SIGCONT.into();
            let _ = raw(libc::SYS_prctl, [libc::PR_SET_PDEATHSIG.into(), signal, 0, 0, 0, 0]);
        }
        _ => {}
    }
    while Instant::now() < *end {
        let count = born.fetch_add(1, Relaxed);
        // A file takes as long as some births.
        if count % 16 == 0 {
            let _ = (&*file).write_all(b".");
        }
        let stack = &stacks[count % stacks.len()];
        let top = stack.as_ptr_range().end.cast_mut().cast();
        // SAFETY: the processes that used this stack have ended: 63 others were born since.
        if unsafe { libc::clone(link, top, libc::CLONE_VM | libc::SIGCHLD, chain) } > 0 {
            break;
        }
        sleep(TICK);
    }
    leave_now()
}

/// A timer of this process that sends SIGCONT every millisecond.
fn continue_soon() {
    // SAFETY: all-zero bytes are a valid value of this plain record.
    let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
    (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_SIGNAL, libc::SIGCONT);
    let (mut timer, mut every) = (0i32, [0i64, 1_000_000, 0, 1_000_000]);
    let address = |pointer: *mut libc::c_void| pointer.expose_provenance().cast_signed() as i64;
    let event = address((&raw mut event).cast());
    let _ = raw(
        libc::SYS_timer_create,
        [libc::CLOCK_MONOTONIC.into(), event, address((&raw mut timer).cast()), 0, 0, 0],
    );
    let _ = raw(libc::SYS_timer_settime, [timer.into(), 0, address(every.as_mut_ptr().cast()), 0, 0, 0]);
}

/// A thousand orphans that end at once. Afterwards prints how many zombies are visible.
pub(crate) fn orphans(_: &[&str]) {
    for _ in 0..1000 {
        if fork() == Ok(0) {
            let _ = fork();
            leave();
        }
        let _ = raw(libc::SYS_wait4, [-1, 0, libc::WNOHANG.into(), 0, 0, 0]);
    }
    while raw(libc::SYS_wait4, [-1, 0, 0, 0, 0, 0]).is_ok() {}
    let end = Instant::now() + Duration::from_secs(5);
    while zombies() > 0 && Instant::now() < end {
        sleep(TICK);
    }
    println!("{}", zombies());
}

fn zombies() -> usize {
    let stats = fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = stats.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    stats.filter(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z"))).count()
}

/// As subreaper, adopts a grandchild that would otherwise go to init, and leaves it running.
pub(crate) fn subreaper(arguments: &[&str]) {
    say(raw(libc::SYS_prctl, [libc::PR_SET_CHILD_SUBREAPER.into(), 1, 0, 0, 0, 0]));
    daemon(arguments);
}

/// Ignores every signal that can be ignored and stays.
pub(crate) fn stubborn(_: &[&str]) {
    ignore_signals();
    println!("ok");
    let _ = std::io::stdout().flush();
    sleep(Duration::from_secs(60));
}

/// Stops itself.
pub(crate) fn stop_self(_: &[&str]) {
    println!("ok");
    let _ = std::io::stdout().flush();
    say(raw(libc::SYS_kill, [0, libc::SIGSTOP.into(), 0, 0, 0, 0]));
}

/// Leaves a stopped child behind.
pub(crate) fn stop_and_leave(_: &[&str]) {
    if fork() == Ok(0) {
        let pid = i64::from(std::process::id());
        let _ = raw(libc::SYS_kill, [pid, libc::SIGSTOP.into(), 0, 0, 0, 0]);
        leave();
    }
    println!("ok");
}

/// Debuggers do this to their own child: PTRACE_ATTACH and process_vm_readv(2) work.
pub(crate) fn debug_child(_: &[&str]) {
    let Ok(mut child) = Command::new("/proc/self/exe").arg("stubborn").stdout(Stdio::null()).spawn() else {
        return say(Err(libc::ECHILD));
    };
    let pid = i64::from(child.id());
    say(raw(libc::SYS_ptrace, [libc::PTRACE_SEIZE.into(), pid, 0, 0, 0, 0]));
    let _ = child.kill();
    let _ = child.wait();
}

/// Takes that many MiB of memory and writes to every page. Then prints a line and waits that many seconds.
pub(crate) fn hog(arguments: &[&str]) {
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(0u64);
    let mut held = Vec::new();
    for mebibyte in 0..number(0) {
        // Not zero: a page of zeroes may need no memory.
        held.push(vec![u8::try_from(mebibyte % 255).unwrap_or(0) | 1; 1 << 20]);
    }
    println!("has {}", held.len());
    let _ = std::io::stdout().flush();
    sleep(Duration::from_secs(number(1)));
    assert!(held.iter().all(|part| part.len() == 1 << 20));
}

/// Keeps that many processes busy until they are killed.
pub(crate) fn busy(arguments: &[&str]) {
    let count: u64 = arguments.first().and_then(|text| text.parse().ok()).unwrap_or(1);
    for _ in 1..count {
        if fork() == Ok(0) {
            break;
        }
    }
    let mut spun = 0u64;
    loop {
        spun = std::hint::black_box(spun.wrapping_add(1));
    }
}
