//! Counts of everything on the host that a sandbox could leave behind.

use std::{
    fmt, fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// The time that a killed process may take to go.
const PATIENCE: Duration = Duration::from_secs(10);

/// Growth of the resident set that an allocator may keep, in KiB.
const SLACK_KIB: u64 = 8 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    descriptors: usize,
    children: usize,
    /// Processes of sandboxes, including those of killed programs.
    inside: usize,
    mounts: usize,
    resident_kib: u64,
}

impl Counts {
    /// The counts once they are no higher than `before`, or the last ones when the time is up.
    pub(crate) fn settled(before: Option<&Self>) -> Self {
        let begun = Instant::now();
        loop {
            let now = Self::now();
            if before.is_none_or(|before| now.is_no_more_than(before)) || begun.elapsed() > PATIENCE {
                return now;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn now() -> Self {
        Self {
            descriptors: entries("/proc/self/fd"),
            children: of_each_thread("children"),
            inside: insides(),
            mounts: fs::read_to_string("/proc/self/mountinfo").unwrap_or_default().lines().count(),
            resident_kib: resident_kib(),
        }
    }

    pub(crate) fn is_no_more_than(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors
            && self.children <= before.children
            && self.inside <= before.inside
            && self.mounts <= before.mounts
            && self.resident_kib <= before.resident_kib + SLACK_KIB
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { descriptors, children, inside, mounts, resident_kib } = self;
        write!(
            f,
            "{descriptors} descriptors, {children} children, {inside} processes of sandboxes, {mounts} mounts, \
             {resident_kib} KiB"
        )
    }
}

fn entries(directory: &str) -> usize {
    fs::read_dir(directory).into_iter().flatten().count()
}

fn of_each_thread(file: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join(file)).ok());
    lists.map(|list| list.split_whitespace().count()).sum()
}

/// Zygotes and inits of this run: their command line is the word that their start gave them, and their
/// session is ours.
fn insides() -> usize {
    let ours = nix::unistd::getsid(None).ok().map(|leader| leader.to_string());
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|process| process.path());
    let is_ours = |process: &Path| {
        let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
        // After the name, which may contain anything, come state, parent, group, session.
        let session = stat.rsplit(')').next().and_then(|fields| fields.split_whitespace().nth(3));
        session.map(str::to_owned) == ours
    };
    let is_inside = |process: &Path| fs::read(process.join("cmdline")).is_ok_and(|line| line == b"kennel\0");
    processes.filter(|process| is_inside(process) && is_ours(process)).count()
}

fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|size| size.parse().ok()).unwrap_or_default()
}
