//! What runs in a session: the processes below its zygote, as /proc of the host shows them. Kennel's own are
//! left out.
//!
//! Commands choose their names, their command lines and how many processes they have. So each is read up to a
//! limit, and who belongs to the session follows from numbers that no command can change: parents, and marks.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use procfs::process::{LimitValue, Process, Stat, all_processes};
use procfs::{ProcError, page_size, ticks_per_second};
use serde::{Deserialize, Serialize};

use crate::launch::inside::{CommandKey, Inside};
use crate::session::warm::WarmInterpreter;
use crate::sys::blocking;

/// The most processes that a list describes.
const MOST: usize = 1024;

/// The longest command line that is read, in bytes.
const LONGEST: u64 = 2048;

/// The longest `status` of a process, in bytes.
const LONGEST_STATUS: u64 = 64 << 10;

/// How long a list may take. The kernel reads a command line from the memory of the process, which may be
/// slow.
const PATIENCE: Duration = Duration::from_secs(3);

/// What runs in a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SessionProcesses {
    /// The processes, oldest first, 1,024 at most.
    pub processes: Vec<SessionProcess>,
    /// How many more there are.
    pub unlisted: u64,
    /// The interpreters that start before their command is known.
    #[serde(default)]
    pub interpreters: Vec<WarmInterpreter>,
}

/// A process of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SessionProcess {
    /// Its number inside. Commands that do not share their processes have numbers of their own.
    pub pid: i32,
    /// Its number on the host.
    pub host_pid: i32,
    /// The number of the [detached](crate::command::Command::detach) command that started it.
    pub command: Option<u32>,
    /// What it does.
    pub state: ProcessState,
    /// The time since it was started.
    #[serde(rename = "age_ms", with = "milliseconds")]
    pub age: Duration,
    /// The processor time that it has used.
    #[serde(rename = "cpu_ms", with = "milliseconds")]
    pub cpu: Duration,
    /// The memory that it has in RAM, in bytes; some of it may be shared.
    pub memory: u64,
    /// The kernel's short name for it. The process can change it.
    pub name: String,
    /// Its program and arguments, of which the process can change each, and of which the first 2 KiB are
    /// read. Empty if it has ended or has none.
    #[serde(with = "texts")]
    pub arguments: Vec<OsString>,
    /// Whether arguments are missing or cut.
    pub is_cut: bool,
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProcessState {
    /// It runs, or waits for a processor.
    Running,
    /// It waits for something.
    Sleeping,
    /// It waits in the kernel, and no signal reaches it until that ends.
    Blocked,
    /// A signal or a tracer has stopped it.
    Stopped,
    /// It has ended, and its parent has not read its status.
    Zombie,
}

impl ProcessState {
    /// The state for a letter of proc_pid_stat(5).
    pub(crate) fn of_letter(letter: char) -> Self {
        match letter {
            'R' => Self::Running,
            'D' => Self::Blocked,
            'T' | 't' => Self::Stopped,
            'Z' | 'X' | 'x' => Self::Zombie,
            _ => Self::Sleeping,
        }
    }

    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Sleeping => "sleeping",
            Self::Blocked => "blocked",
            Self::Stopped => "stopped",
            Self::Zombie => "zombie",
        }
    }
}

/// Lists the processes below the zygote. `keys` tell those of detached commands.
///
/// # Errors
/// `/proc` of the host cannot be read; `ETIMEDOUT` if that takes longer than three seconds.
pub(crate) async fn processes(
    zygote: Option<Arc<OwnedFd>>,
    keys: BTreeMap<u32, CommandKey>,
) -> io::Result<SessionProcesses> {
    let listed = blocking(move || list(zygote.as_deref(), &keys));
    let listed = tokio::time::timeout(PATIENCE, listed).await;
    listed.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Whether a command of the zygote's session has a process. `false` if /proc cannot be read.
pub(crate) async fn is_any_left(zygote: &Inside) -> bool {
    let Some(zygote) = zygote.pidfd().cloned() else { return false };
    let found = blocking(move || pid_of(&zygote).map_or(Ok(Vec::new()), descendants));
    found.await.is_ok_and(|found| !found.is_empty())
}

/// What a process is known by while the tree is walked.
#[derive(Clone, Copy)]
struct Node {
    /// In clock ticks since the host booted.
    started: u64,
    is_zombie: bool,
}

/// A process of the session's commands.
#[derive(Clone, Copy)]
struct Found {
    pid: i32,
    started: u64,
    /// The child of the zygote that it descends from.
    init: i32,
}

fn list(zygote: Option<&OwnedFd>, keys: &BTreeMap<u32, CommandKey>) -> io::Result<SessionProcesses> {
    // A session that has ended has no processes.
    let Some(zygote) = zygote.and_then(pid_of) else { return Ok(SessionProcesses::default()) };
    let mut found = descendants(zygote)?;
    found.sort_by_key(|process| (process.started, process.pid));
    let unlisted = found.len().saturating_sub(MOST);
    found.truncate(MOST);
    let commands = Commands::of(keys);
    // The numbers of the zygote in each pid namespace. Those of a command have one more.
    let depth = Process::new(zygote).map_or(1, |zygote| numbers(&zygote).len());
    let uptime = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME)?);
    let describe = |process: &Found| describe(process, depth, uptime, &commands);
    Ok(SessionProcesses {
        processes: found.iter().filter_map(describe).collect(),
        unlisted: u64::try_from(unlisted).unwrap_or(u64::MAX),
        interpreters: Vec::new(),
    })
}

/// The number of a process that has not ended.
fn pid_of(pidfd: &OwnedFd) -> Option<i32> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    let number = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    number.trim().parse().ok().filter(|&pid| pid > 0)
}

/// The processes below the zygote, without Kennel's own: the zygote's children, and whatever executes its
/// image. Commands cannot open that image. A zombie executes nothing: one whose parent is Kennel's is about
/// to be reaped, whatever it was.
fn descendants(zygote: i32) -> io::Result<Vec<Found>> {
    let mut nodes = BTreeMap::new();
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for process in all_processes().map_err(to_io)?.flatten() {
        // It may have ended meanwhile.
        let Ok(stat) = process.stat() else { continue };
        children.entry(stat.ppid).or_default().push(stat.pid);
        let is_zombie = stat.state == 'Z';
        nodes.insert(stat.pid, Node { started: stat.starttime, is_zombie });
    }
    let own = image(zygote);
    let mut found = Vec::new();
    let mut next: VecDeque<(i32, Option<i32>)> = VecDeque::from([(zygote, None)]);
    while let Some((parent, init)) = next.pop_front() {
        let parent_started = nodes.get(&parent).map_or(u64::MAX, |node| node.started);
        let is_of_own = own.is_some() && image(parent) == own;
        for &pid in children.get(&parent).into_iter().flatten() {
            // If a process ended and another one took its number, that one is younger than the children.
            let Some(node) = nodes.get(&pid).filter(|node| node.started >= parent_started) else { continue };
            next.push_back((pid, init.or(Some(pid))));
            let Some(init) = init else { continue };
            let is_own = if node.is_zombie { is_of_own } else { own.is_some() && image(pid) == own };
            if !is_own {
                found.push(Found { pid, started: node.started, init });
            }
        }
    }
    Ok(found)
}

/// Device and inode of the file that a process executes. `None` for a zombie, or if this process may not
/// look.
fn image(pid: i32) -> Option<(u64, u64)> {
    let file = fs::metadata(format!("/proc/{pid}/exe")).ok()?;
    Some((file.dev(), file.ino()))
}

/// The detached commands by what tells their processes.
struct Commands {
    by_init: BTreeMap<i32, u32>,
    by_mark: BTreeMap<u64, u32>,
}

impl Commands {
    fn of(keys: &BTreeMap<u32, CommandKey>) -> Self {
        let mut commands = Self { by_init: BTreeMap::new(), by_mark: BTreeMap::new() };
        for (id, key) in keys {
            match key {
                CommandKey::Mark(mark) => {
                    commands.by_mark.insert(*mark, *id);
                }
                CommandKey::Init(pidfd) => {
                    if let Some(pid) = pidfd.upgrade().and_then(|pidfd| pid_of(&pidfd)) {
                        commands.by_init.insert(pid, *id);
                    }
                }
            }
        }
        commands
    }

    fn find(&self, init: i32, process: &Process) -> Option<u32> {
        if let Some(id) = self.by_init.get(&init) {
            return Some(*id);
        }
        if self.by_mark.is_empty() {
            return None;
        }
        match process.limits().ok()?.max_realtime_timeout.hard_limit {
            LimitValue::Value(mark) => self.by_mark.get(&mark).copied(),
            LimitValue::Unlimited => None,
        }
    }
}

/// Reads what is shown about a process; `None` if it has ended.
fn describe(found: &Found, depth: usize, uptime: Duration, commands: &Commands) -> Option<SessionProcess> {
    let process = Process::new(found.pid).ok()?;
    let stat = process.stat().ok().filter(|stat| stat.starttime == found.started)?;
    let numbers = numbers(&process);
    let (arguments, is_cut) = arguments(&process);
    Some(SessionProcess {
        pid: numbers.get(depth).or(numbers.last()).copied().unwrap_or(found.pid),
        host_pid: found.pid,
        command: commands.find(found.init, &process),
        state: ProcessState::of_letter(stat.state),
        age: uptime.saturating_sub(of_ticks(stat.starttime)),
        cpu: of_ticks(stat.utime.saturating_add(stat.stime)),
        memory: resident(&stat),
        name: stat.comm,
        arguments,
        is_cut,
    })
}

fn of_ticks(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1000) / ticks_per_second().max(1))
}

fn resident(stat: &Stat) -> u64 {
    stat.rss.saturating_mul(page_size())
}

/// The numbers of a process, outermost first. `procfs` does not read the status of a process whose name is
/// not UTF-8.
fn numbers(process: &Process) -> Vec<i32> {
    let read = process.open_relative("status").map(|file| read(file, LONGEST_STATUS));
    let status = read.unwrap_or_default();
    // The kernel escapes line breaks in names.
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"NSpid:"));
    let text = String::from_utf8_lossy(line.unwrap_or_default());
    text.split_whitespace().map_while(|number| number.parse().ok()).collect()
}

/// The command line, and whether it is longer than what was read.
fn arguments(process: &Process) -> (Vec<OsString>, bool) {
    let read = process.open_relative("cmdline").map(|file| read(file, LONGEST + 1));
    split(read.unwrap_or_default())
}

/// The arguments in a command line as the kernel gives it, each with a NUL at its end.
fn split(mut line: Vec<u8>) -> (Vec<OsString>, bool) {
    let longest = usize::try_from(LONGEST).unwrap_or(usize::MAX);
    let is_cut = line.len() > longest;
    line.truncate(longest);
    if line.last() == Some(&0) {
        line.pop();
    } else if line.is_empty() {
        return (Vec::new(), false);
    }
    (line.split(|&byte| byte == 0).map(|argument| OsString::from_vec(argument.to_vec())).collect(), is_cut)
}

/// What can be read of a file, up to a limit.
fn read(file: File, most: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A process may end meanwhile.
    let _ = file.take(most).read_to_end(&mut bytes);
    bytes
}

fn to_io(error: ProcError) -> io::Error {
    match error {
        ProcError::Io(error, _) => error,
        error => io::Error::other(error),
    }
}

mod milliseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

mod texts {
    use std::ffi::OsString;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(texts: &[OsString], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(texts.iter().map(|text| text.to_string_lossy()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<OsString>, D::Error> {
        Ok(Vec::<String>::deserialize(deserializer)?.into_iter().map(OsString::from).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_split_at_its_nuls_and_cut_where_it_is_too_long() {
        let of = |line: &[u8]| split(line.into());
        assert_eq!(of(b""), (vec![], false));
        assert_eq!(of(b"\0"), (vec!["".into()], false));
        assert_eq!(of(b"a\0\0b\0"), (vec!["a".into(), "".into(), "b".into()], false));
        assert_eq!(of(b"title"), (vec!["title".into()], false));
        let longest = usize::try_from(LONGEST).unwrap_or_default();
        let (arguments, is_cut) = split(vec![b'x'; longest + 1]);
        assert_eq!((arguments[0].len(), is_cut), (longest, true));
        assert!(!split(vec![b'x'; longest]).1);
    }

    #[test]
    fn each_letter_is_a_state() {
        for (letter, state) in [
            ('R', ProcessState::Running),
            ('S', ProcessState::Sleeping),
            ('D', ProcessState::Blocked),
            ('T', ProcessState::Stopped),
            ('t', ProcessState::Stopped),
            ('Z', ProcessState::Zombie),
            ('X', ProcessState::Zombie),
            ('I', ProcessState::Sleeping),
        ] {
            assert_eq!(ProcessState::of_letter(letter), state);
        }
    }
}
