//! Says on a terminal what takes longer than a second, and erases that when it is done. What is fast costs a
//! timer.

use std::{
    env,
    io::{IsTerminal, Write, stderr},
    os::fd::AsFd,
    pin::pin,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, poll};
use tokio::time::sleep;

use crate::process::descriptor::poll_timeout;

/// How long something may take before a line shows.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long each picture stays.
const TURN: Duration = Duration::from_millis(120);

const PICTURES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// Waits for `work`. `what` is what it does, such as `committing changes`.
pub(crate) async fn awaiting<T>(what: &str, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let begun = Instant::now();
    tokio::select! {
        biased;
        done = &mut work => return done,
        () = sleep(PATIENCE) => {}
    }
    let Some(line) = Line::new() else { return work.await };
    for picture in PICTURES.iter().cycle() {
        line.draw(&progress_line(picture, what, begun));
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = sleep(TURN) => {}
        }
    }
    work.await
}

/// Does `work`, which blocks, in this thread.
pub(crate) fn during<T>(what: &str, work: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        let (ends, end) = mpsc::channel::<()>();
        let still_runs = move |time| end.recv_timeout(time) == Err(mpsc::RecvTimeoutError::Timeout);
        // Without a thread, nothing shows.
        let _ = thread::Builder::new().spawn_scoped(scope, move || turn(what, still_runs));
        let done = work();
        drop(ends);
        done
    })
}

/// Waits until a pipe has something to read or is closed, for a program without a runtime.
pub(crate) fn until_readable(what: &str, pipe: &impl AsFd) {
    turn(what, |time| {
        let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
        // An error means that there is nothing to wait for: the read that follows tells it.
        poll(&mut fds, poll_timeout(Some(time))).is_ok_and(|ready| ready == 0)
    });
}

/// Shows the line while `still_runs`, which waits for as long as it is told.
fn turn(what: &str, still_runs: impl Fn(Duration) -> bool) {
    let begun = Instant::now();
    if !still_runs(PATIENCE) {
        return;
    }
    let Some(line) = Line::new() else { return };
    for picture in PICTURES.iter().cycle() {
        line.draw(&progress_line(picture, what, begun));
        if !still_runs(TURN) {
            return;
        }
    }
}

fn progress_line(picture: &str, what: &str, begun: Instant) -> String {
    format!("{picture} {what}, {} s", begun.elapsed().as_secs())
}

/// A line of the terminal that is erased when this is dropped.
struct Line;

impl Line {
    /// `None` if stderr is no terminal, or one that cannot erase.
    fn new() -> Option<Self> {
        let can_erase = env::var_os("TERM").is_some_and(|kind| kind != "dumb");
        (stderr().is_terminal() && can_erase).then(|| Self)
    }

    /// A terminal that is gone shows nothing.
    fn draw(&self, text: &str) {
        let _ = stderr().write_all(format!("\r\x1b[K{text}").as_bytes());
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.draw("");
    }
}
