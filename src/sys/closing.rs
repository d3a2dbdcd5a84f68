//! Closes what strangers gave, on threads where nobody waits. It never reads or writes it.
//!
//! close(2) takes as long as the giver likes: a socket with SO_LINGER waits for its peer, a file of FUSE or
//! NFS for its server, and a Unix socket closes what is in its queue. Only a pipe without a name and
//! `/dev/null` are closed at once.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::SigSet;
use tokio::sync::mpsc::Sender;

use crate::sys::{closes_at_once, locked};

/// The most threads. Each can be held up by one descriptor; what comes then waits in the queue.
const MOST_THREADS: usize = 64;

/// How often a waiting thread looks for jobs that nobody told it about.
const LOOK: Duration = Duration::from_millis(500);

/// How often in vain, before it ends.
const MOST_LOOKS: u32 = 20;

/// The most jobs that wait for that look.
const MOST_UNTOLD: usize = 8;

/// Stack of a thread in bytes, with room to spare.
const STACK: usize = 128 << 10;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hurry {
    /// A thread is told.
    High,
    /// A thread finds it when it looks.
    Low,
}

/// The jobs that wait, and the threads.
struct Queue {
    jobs: VecDeque<(Job, Hurry)>,
    /// How many of them are urgent.
    urgent: usize,
    threads: usize,
    /// How many of the threads wait for a job.
    idle: usize,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { jobs: VecDeque::new(), urgent: 0, threads: 0, idle: 0 });
static COMES: Condvar = Condvar::new();

/// Does what may block on a thread where nobody waits. Jobs start in order. If the kernel refuses the first
/// thread, the job is done here: it must not wait for ever.
pub(crate) fn elsewhere(job: impl FnOnce() + Send + 'static) {
    add(Box::new(job), Hurry::High);
}

/// The same for a job without hurry, to wake no thread for it alone.
pub(crate) fn elsewhere_later(job: impl FnOnce() + Send + 'static) {
    add(Box::new(job), Hurry::Low);
}

fn add(job: Job, hurry: Hurry) {
    let mut queue = locked(&QUEUE);
    queue.jobs.push_back((job, hurry));
    let lacks_thread = match hurry {
        Hurry::High => {
            queue.urgent += 1;
            queue.idle < queue.urgent
        }
        Hurry::Low => queue.threads == 0 || (queue.idle == 0 && queue.jobs.len() > MOST_UNTOLD),
    };
    if !lacks_thread || queue.threads == MOST_THREADS {
        let is_told = hurry == Hurry::High || queue.jobs.len() > MOST_UNTOLD;
        drop(queue);
        if is_told {
            COMES.notify_one();
        }
        return;
    }
    queue.threads += 1;
    drop(queue);
    let thread = thread::Builder::new().name("kennel-close".to_owned()).stack_size(STACK);
    if thread.spawn(work).is_err() {
        let mut queue = locked(&QUEUE);
        queue.threads -= 1;
        // Another thread will come to it.
        let job = if queue.threads == 0 { queue.next() } else { None };
        drop(queue);
        job.into_iter().for_each(|job| job());
    }
}

impl Queue {
    fn next(&mut self) -> Option<Job> {
        let (job, hurry) = self.jobs.pop_front()?;
        self.urgent -= usize::from(hurry == Hurry::High);
        Some(job)
    }
}

/// Does jobs until none has come for a while.
fn work() {
    // Handlers of the program may need a larger stack.
    let _ = SigSet::all().thread_block();
    let mut queue = locked(&QUEUE);
    let mut looks = 0;
    loop {
        if let Some(job) = queue.next() {
            drop(queue);
            job();
            queue = locked(&QUEUE);
            looks = 0;
            continue;
        }
        if looks == MOST_LOOKS {
            queue.threads -= 1;
            return;
        }
        looks += 1;
        queue.idle += 1;
        (queue, _) = COMES.wait_timeout(queue, LOOK).unwrap_or_else(PoisonError::into_inner);
        queue.idle -= 1;
    }
}

/// A descriptor that is closed by a drop: here if it is this program's own, elsewhere if a stranger gave it.
#[derive(Debug)]
pub(crate) struct HeldFd {
    fd: ManuallyDrop<OwnedFd>,
    is_strange: bool,
    /// Dropped once it is closed.
    open: Option<Sender<()>>,
}

impl HeldFd {
    /// A descriptor that a stranger gave.
    pub(crate) fn strange(fd: OwnedFd) -> Self {
        Self { fd: ManuallyDrop::new(fd), is_strange: true, open: None }
    }

    /// Keeps a clone of this as long as it is open.
    pub(crate) fn known_open(self, open: &Sender<()>) -> Self {
        let mut this = self;
        this.open = Some(open.clone());
        this
    }

    /// Takes it over as this program's own.
    pub(crate) fn into_own(self) -> OwnedFd {
        let mut this = ManuallyDrop::new(self);
        this.open = None;
        // SAFETY: `this` is never dropped, so nothing else takes the descriptor.
        unsafe { ManuallyDrop::take(&mut this.fd) }
    }
}

impl From<OwnedFd> for HeldFd {
    fn from(fd: OwnedFd) -> Self {
        Self { fd: ManuallyDrop::new(fd), is_strange: false, open: None }
    }
}

impl Drop for HeldFd {
    fn drop(&mut self) {
        // SAFETY: this value is dropped once, and nothing uses the descriptor after that.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        let open = self.open.take();
        if self.is_strange && !closes_at_once(&fd) {
            elsewhere(move || drop((fd, open)));
        } else {
            drop((fd, open));
        }
    }
}

impl AsFd for HeldFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for HeldFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Closes these with one job. The program's own are closed here.
pub(crate) fn together(held: impl IntoIterator<Item = HeldFd>) {
    let mut strange = Vec::new();
    for mut held in held {
        if held.is_strange && !closes_at_once(&held) {
            let open = held.open.take();
            strange.push((held.into_own(), open));
        } else {
            held.is_strange = false;
        }
    }
    if !strange.is_empty() {
        elsewhere(move || drop(strange));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_job_that_is_held_up_holds_up_no_other() {
        let (release, held) = mpsc::channel::<()>();
        elsewhere(move || {
            let _ = held.recv();
        });
        let (done, jobs) = mpsc::channel();
        for number in 0..20 {
            let done = done.clone();
            let job = move || done.send(number).expect("the test waits");
            if number % 2 == 0 { elsewhere(job) } else { elsewhere_later(job) }
        }
        let mut numbers: Vec<i32> =
            (0..20).map(|_| jobs.recv_timeout(Duration::from_secs(60)).expect("done")).collect();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..20));
        drop(release);
    }
}
