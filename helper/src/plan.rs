//! The plan: policy turned into a flat list of steps, each one system call or one short fixed sequence.
//!
//! The outside writes it once; the inside carries it out in order. Paths of targets are relative to the
//! sandbox's root (`usr/bin`, never `/usr/bin`); `.` is the root itself. The source
//! of a `Bind` is a path of the host that may pass links: the inode beside it says what must be found there. Those of
//! `BindOwn` and `Cover` lie in the new root.

use core::ffi::CStr;

use crate::wire::{Cursor, Field, List, Sink, records};

/// First bytes of a plan, so that a descriptor mixed up with another is noticed.
const MAGIC: u32 = 0x4b4e_4c33;

/// More places than that no command goes without ([`Step::Forgo`]).
pub const MOST_FORGONE: usize = 32;

/// More private file systems than that are not looked at after a command ([`Step::Room`]).
pub const MOST_ROOMS: usize = 8;

records! { 'w,
/// One step of a plan.
enum Step<'w> {
    /// open(2), write(2): gives an existing kernel file its content (id maps).
    1 = Write { path: &'w CStr, bytes: &'w [u8] },
    /// unshare(2): a new namespace of each kind in `flags`.
    2 = Unshare { flags: u32 },
    /// mount(MS_SLAVE | MS_REC): what is mounted from here on is not seen where the mounts were copied from. A copy in a
    /// new user namespace is like this from its birth.
    53 = Separate {},
    /// sethostname(2) in the new UTS namespace.
    3 = Hostname { name: &'w [u8] },
    /// rtnetlink(7), RTM_SETLINK: brings the loopback device of the new network namespace up.
    4 = LoopbackUp {},
    /// mount(2): an empty tmpfs that will become the root; entered.
    5 = NewRoot { options: &'w CStr },
    /// mkdirat(2) in the new root.
    6 = MakeDir { path: &'w CStr, mode: u32 },
    /// symlinkat(2) in the new root.
    7 = Symlink { path: &'w CStr, points_to: &'w CStr },
    /// openat(2), write(2): a file of the sandbox's own.
    8 = MakeFile { path: &'w CStr, mode: u32, bytes: &'w [u8] },
    /// open_tree(2), mount_setattr(2), move_mount(2): makes `source` visible at `target`. The source must still
    /// be the inode that the outside looked at.
    9 = Bind { source: &'w CStr, device: u64, inode: u64, target: &'w CStr, within: Within, attributes: u64 },
    /// mount(2): a file system of its own, such as a private tmpfs, procfs or devpts.
    10 = Mount { kind: &'w CStr, target: &'w CStr, within: Within, flags: u64, options: &'w CStr },
    /// mount(MS_BIND): something of the root's own, with the attributes it has there, at another place; or over
    /// itself, so that it stays writable when the root does not.
    11 = BindOwn { source: &'w CStr, target: &'w CStr },
    /// mknodat(2): an empty file in the new root, to mount on.
    12 = MakeMountPoint { path: &'w CStr },
    /// pivot_root(2), umount2(2): the new root becomes `/`, the old one is gone.
    13 = PivotRoot {},
    /// mount_setattr(2) on a mount that is already in place; with `recursive` not zero also on all below it.
    14 = SetAttributes { target: &'w CStr, attributes: u64, recursive: u32 },
    /// landlock_create_ruleset(2).
    15 = LandlockRuleset { fs: u64, net: u64, scoped: u64 },
    /// landlock_add_rule(2): what is allowed beneath `path` in the finished view.
    16 = LandlockRule { path: &'w CStr, access: u64 },
    /// ioctl(SIOCSIFADDR): one more address of the loopback device.
    33 = LoopbackAddress { address: u32 },
    /// landlock_add_rule(2): what is allowed with a TCP port. Linux 6.7.
    32 = LandlockPort { access: u64, port: u64 },
    /// landlock_restrict_self(2).
    17 = LandlockRestrict {},
    /// prctl(2).
    18 = Prctl { option: u32, argument: u64 },
    /// capset(2): none is left.
    19 = DropCapabilities {},
    /// keyctl(KEYCTL_JOIN_SESSION_KEYRING): an empty anonymous session keyring.
    20 = NewKeyring {},
    /// prlimit(2).
    21 = Limit { resource: u32, soft: u64, hard: u64 },
    /// seccomp(SECCOMP_SET_MODE_FILTER).
    22 = Seccomp { program: &'w [u8] },
    /// setsid(2): no controlling terminal is inherited.
    23 = NewSession {},
    /// open_tree(2), mount_setattr(2), move_mount(2): something empty of the root's own, read-only, over something
    /// that must not be seen. Needs no right to it.
    24 = Cover { empty: &'w CStr, target: &'w CStr, within: Within },
    /// open_tree(2), mount_setattr(2), move_mount(2): puts a mount of `from`, a place of the view, at `target`; who
    /// renames or removes a mount point outside takes the mount away, or puts another there. A writable one is put
    /// where no mount is, the others on top. Without `from` it cannot be put there again: then the target must be the
    /// root of a mount, and where `inode` is not zero of that one, else `ESTALE`.
    29 = MountAgain { from: &'w CStr, target: &'w CStr, attributes: u64, device: u64, inode: u64 },
    /// Leaves out the Landlock rules for a place and all below it.
    30 = Forgo { path: &'w CStr },
    /// statfs(2), when a command has failed: whether nothing is left in a private file system, which lies at `path`.
    42 = Room { path: &'w CStr },
    /// prctl(PR_CAPBSET_DROP) for every capability: no program can give one back.
    28 = DropBoundingSet {},
    /// open(2), fchdir(2): the root, as the mount namespace has it that was made last.
    25 = EnterRoot {},
    /// mount(MS_MOVE) or move_mount(2): a mount, with all below it, from one place of the view to another. `within` is
    /// about both.
    26 = Move { from: &'w CStr, to: &'w CStr, within: Within },
    /// umount2(MNT_DETACH): takes a mount of the root's own away.
    27 = Detach { target: &'w CStr },
    /// socket(2), bind(2), listen(2) in the new network namespace: a socket at an IPv4 address, of the kind that
    /// `kind` says as socket(2) does, handed to the outside ([`Report::Listening`](crate::control::Report::Listening)).
    31 = Listen { kind: u32, address: u32, port: u32 },
    /// open(2) of the mount namespace: it and the root are handed to the outside
    /// ([`Report::Root`](crate::control::Report::Root), [`Report::Mounts`](crate::control::Report::Mounts)).
    34 = HandOut {},
    /// open(2) of a directory of the new root, handed to the outside
    /// ([`Report::Upper`](crate::control::Report::Upper)): where an overlay keeps what is written to it.
    50 = HandOutUpper { path: &'w CStr },
    /// open_tree(2), mount_setattr(2), move_mount(2): what lies at `target` in the view over itself, with `attributes`.
    51 = Pin { target: &'w CStr, attributes: u64 },
    /// capset(2): one capability less, for good.
    52 = DropCapability { capability: u32 },
    /// sched_setscheduler(2) to SCHED_OTHER where `policy` is not zero, setpriority(2) to 0 where `nice` is not,
    /// ioprio_set(2) to none where `io` is not: of the calling process.
    54 = Ordinary { policy: u32, nice: u32, io: u32 },
    /// fchmodat(2): the mode of a place of the root's own, by its absolute path.
    55 = SetMode { path: &'w CStr, mode: u32 },
    /// seccomp(SECCOMP_FILTER_FLAG_NEW_LISTENER): `program` asks the outside what it refuses, by a descriptor that is
    /// handed to it ([`Report::Refusing`](crate::control::Report::Refusing)). Where the kernel makes no such
    /// descriptor, as where another filter has one already, `plain` is installed in its place.
    41 = SeccompAsking { program: &'w [u8], flags: u64, plain: &'w [u8] },
}
}

/// What a mount point lies in, and so how it has to be approached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// The new root's own directories, which nobody else can reach.
    Root,
    /// A directory of the host, where others may exchange parts of the path at any time: every part of it must be
    /// a directory, never a link.
    Granted,
}

impl<'w> Field<'w> for Within {
    fn take(cursor: &mut Cursor<'w>) -> Option<Self> {
        match u16::take(cursor)? {
            0 => Some(Self::Root),
            1 => Some(Self::Granted),
            _ => None,
        }
    }

    fn put(&self, out: &mut impl Sink) {
        u16::from(*self == Self::Granted).put(out);
    }
}

/// A step and what its failure means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'w> {
    /// Whether the sandbox may start without it; the failure is then reported as `Skipped`.
    pub optional: bool,
    /// What to do.
    pub step: Step<'w>,
}

impl<'w> Field<'w> for Entry<'w> {
    fn take(cursor: &mut Cursor<'w>) -> Option<Self> {
        Some(Self { optional: u16::take(cursor)? != 0, step: Field::take(cursor)? })
    }

    fn put(&self, out: &mut impl Sink) {
        u16::from(self.optional).put(out);
        self.step.put(out);
    }
}

/// What one command is: everything that differs between two commands under one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'w> {
    /// Working directory, absolute in the sandbox.
    pub cwd: &'w CStr,
    /// Absolute paths to try in order; the search path was already applied to the name.
    pub programs: List<'w>,
    /// Arguments, the zeroth included.
    pub arguments: List<'w>,
    /// `NAME=value` strings.
    pub environment: List<'w>,
    /// Nonzero: a new pseudoterminal becomes stdio and controlling terminal.
    pub terminal: u32,
    /// Window size of that terminal, rows in the high and columns in the low 16 bits.
    pub window: u32,
    /// Nonzero: processes that the command leaves behind live on, until the outside lets go of the worker.
    pub background: u32,
    /// Steps of this command alone, right before execve(2): limits.
    pub limits: &'w [u8],
}

impl<'w> Field<'w> for Request<'w> {
    fn take(cursor: &mut Cursor<'w>) -> Option<Self> {
        Some(Self {
            cwd: Field::take(cursor)?,
            programs: Field::take(cursor)?,
            arguments: Field::take(cursor)?,
            environment: Field::take(cursor)?,
            terminal: Field::take(cursor)?,
            window: Field::take(cursor)?,
            background: Field::take(cursor)?,
            limits: Field::take(cursor)?,
        })
    }

    fn put(&self, out: &mut impl Sink) {
        self.cwd.put(out);
        self.programs.put(out);
        self.arguments.put(out);
        self.environment.put(out);
        self.terminal.put(out);
        self.window.put(out);
        self.background.put(out);
        self.limits.put(out);
    }
}

impl Request<'_> {
    /// Bytes of scratch that the inside needs for the pointer arrays of execve(2), terminators included.
    #[must_use]
    pub fn scratch(&self) -> usize {
        let pointers = self.arguments.count().saturating_add(self.environment.count()).saturating_add(2);
        pointers.saturating_mul(size_of::<usize>())
    }
}

/// A whole plan, ready to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan<'w> {
    /// Steps of PID 1: namespaces and view, once for a session.
    pub setup: &'w [u8],
    /// Steps of each worker of a session: what it does not share with others. Empty for a one-shot.
    pub worker: &'w [u8],
    /// Steps of each worker, the last before its payload is born: what it gives up.
    pub walls: &'w [u8],
    /// Steps of the payload between its birth and its command.
    pub payload: &'w [u8],
}

impl<'w> Field<'w> for Plan<'w> {
    fn take(cursor: &mut Cursor<'w>) -> Option<Self> {
        (u32::take(cursor)? == MAGIC).then_some(())?;
        Some(Self {
            setup: Field::take(cursor)?,
            worker: Field::take(cursor)?,
            walls: Field::take(cursor)?,
            payload: Field::take(cursor)?,
        })
    }

    fn put(&self, out: &mut impl Sink) {
        MAGIC.put(out);
        self.setup.put(out);
        self.worker.put(out);
        self.walls.put(out);
        self.payload.put(out);
    }
}

/// The entries of one section of a plan; ends at the first malformed one, with `None` as its last item.
pub fn entries(section: &[u8]) -> impl Iterator<Item = Option<Entry<'_>>> {
    let mut cursor = Cursor::new(section);
    let mut broken = false;
    core::iter::from_fn(move || {
        if cursor.is_empty() || broken {
            return None;
        }
        let entry = Entry::take(&mut cursor);
        broken = entry.is_none();
        Some(entry)
    })
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
