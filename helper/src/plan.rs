//! The plan: policy turned into a flat list of steps, each one system call or one short fixed sequence.
//!
//! The outside writes the plan once; the inside carries it out in order. Target paths are relative to the
//! sandbox's root (`usr/bin`, never `/usr/bin`); `.` is the root itself. The source of a `Bind` is a host
//! path and may contain links: the step also names the expected inode. The sources of `BindOwn` and `Cover`
//! are in the new root.

use core::ffi::CStr;

use crate::wire::{Cursor, Field, List, Sink, records};

/// First bytes of a plan. They reveal a descriptor that was mixed up with another.
const MAGIC: u32 = 0x4b4e_4c33;

/// Most paths that one command can do without ([`Step::Forgo`]).
pub const MOST_FORGONE: usize = 32;

/// Most overlays whose parts are shown ([`Step::Layer`]).
pub const MOST_LAYERS: usize = 16;

/// The source of the overlay of another root, by which its mount is known.
pub const ROOT_SOURCE: &CStr = c"kennel-root";

/// Where the new root is mounted until it is the root. Any directory works, and /proc always exists.
pub const NEW_ROOT: &CStr = c"/proc";

/// Where the overlay of another root is mounted: a directory of the new root.
pub const OTHER_ROOT: &CStr = c"/proc/root";

/// Most private file systems that the inside checks after a command ([`Step::CheckTmpfs`]).
pub const MOST_TMPFS: usize = 8;

records! { 'w,
/// One step of a plan.
enum Step<'w> {
    /// open(2), write(2): writes to an existing kernel file (id maps).
    Write { path: &'w CStr, bytes: &'w [u8] },
    /// unshare(2): a new namespace of each kind in `flags`.
    Unshare { flags: u32 },
    /// mount(MS_SLAVE | MS_REC): later mounts do not propagate to the namespace that the mounts were copied
    /// from. A copy in a new user namespace is like this from its creation.
    Separate {},
    /// sethostname(2) in the new UTS namespace.
    Hostname { name: &'w [u8] },
    /// rtnetlink(7), RTM_SETLINK: brings the loopback device of the new network namespace up.
    LoopbackUp {},
    /// mount(2), chdir(2): an empty tmpfs that will become the root.
    NewRoot { options: &'w CStr },
    /// mkdirat(2) in the new root.
    MakeDir { path: &'w CStr, mode: u32 },
    /// symlinkat(2) in the new root.
    Symlink { path: &'w CStr, points_to: &'w CStr },
    /// openat(2), write(2): a file that belongs to the sandbox.
    MakeFile { path: &'w CStr, mode: u32, bytes: &'w [u8] },
    /// open_tree(2), mount_setattr(2), move_mount(2): makes `source` visible at `target`. The source must
    /// still be the inode that the outside checked.
    Bind { source: &'w CStr, device: u64, inode: u64, target: &'w CStr, within: Within, attributes: u64 },
    /// mount(2): a separate file system, such as a private tmpfs, procfs or devpts.
    Mount { kind: &'w CStr, target: &'w CStr, within: Within, flags: u64, options: &'w CStr },
    /// mount(MS_BIND): binds a path of the new root to another path, with the attributes it has there; or to
    /// itself, so that it stays writable if the root becomes read-only.
    BindOwn { source: &'w CStr, target: &'w CStr },
    /// mknodat(2): an empty file in the new root as a mount point.
    MakeMountPoint { path: &'w CStr },
    /// mknodat(2): a whiteout. An overlay over this directory then shows nothing by that name.
    Whiteout { path: &'w CStr },
    /// mount(2) of an overlay that cannot be written. The process that opens a file of it needs the right to
    /// do so, and so does the process that mounts it. With a `reader`, that is this process without groups,
    /// and with this id for setfsuid(2) and setfsgid(2); or a child, if this process could not get its groups
    /// back.
    Merge { target: &'w CStr, options: &'w CStr, reader: u32 },
    /// pivot_root(2), umount2(2): the new root becomes `/`, and the old one is gone.
    PivotRoot {},
    /// mount_setattr(2) on an existing mount; if `recursive` is not zero, also on every mount below it.
    SetAttributes { target: &'w CStr, attributes: u64, recursive: u32 },
    /// landlock_create_ruleset(2).
    LandlockRuleset { fs: u64, net: u64, scoped: u64 },
    /// landlock_add_rule(2): what is allowed beneath `path` in the finished view.
    LandlockRule { path: &'w CStr, access: u64 },
    /// ioctl(SIOCSIFADDR): another address of the loopback device.
    LoopbackAddress { address: u32 },
    /// landlock_add_rule(2): allowed access to a TCP port. Linux 6.7.
    LandlockPort { access: u64, port: u64 },
    /// landlock_restrict_self(2).
    LandlockRestrict {},
    /// prctl(2).
    Prctl { option: u32, argument: u64 },
    /// capset(2): drops every capability, but for the low 32 ones in `but`. Of these execve(2) makes the
    /// ambient ones effective; until then none is.
    DropCapabilities { but: u32 },
    /// keyctl(KEYCTL_JOIN_SESSION_KEYRING): an empty anonymous session keyring.
    NewKeyring {},
    /// prlimit(2).
    Limit { resource: u32, soft: u64, hard: u64 },
    /// seccomp(SECCOMP_SET_MODE_FILTER).
    Seccomp { program: &'w [u8] },
    /// setsid(2): the command inherits no controlling terminal. If init has opened one for it: setpgid(2).
    NewSession {},
    /// open_tree(2), mount_setattr(2), move_mount(2): covers `target`, which must stay hidden, with an empty
    /// read-only file or directory of the new root. Needs no access to `target`.
    Cover { empty: &'w CStr, target: &'w CStr, within: Within },
    /// open_tree(2), mount_setattr(2), move_mount(2): puts a mount of `from`, a path of the view, at `target`
    /// again. Renaming or removing the mount point outside takes the mount away or replaces it. A writable
    /// mount is attached only if `target` has no mount; the others go on top. Without `from` the step cannot
    /// attach anything: then `target` must be the root of a mount, and that of `inode` if it is not zero,
    /// else `ESTALE`.
    MountAgain { from: &'w CStr, target: &'w CStr, attributes: u64, device: u64, inode: u64 },
    /// Skips the Landlock rules for `path` and everything below it.
    Forgo { path: &'w CStr },
    /// statfs(2) after a command failed: checks whether the private file system at `path` is full.
    CheckTmpfs { path: &'w CStr },
    /// prctl(PR_CAPBSET_DROP) for every capability: no program can regain one.
    DropBoundingSet {},
    /// open(2), fchdir(2): enters the root of the newest mount namespace.
    EnterRoot {},
    /// mount(MS_MOVE) or move_mount(2): moves a mount, with every mount below it, to another path of the
    /// view. `within` applies to both paths.
    Move { from: &'w CStr, to: &'w CStr, within: Within },
    /// umount2(MNT_DETACH): removes a mount of the new root.
    Detach { target: &'w CStr },
    /// socket(2), bind(2), listen(2) in the new network namespace: opens a socket at an IPv4 address and
    /// hands it to the outside ([`Report::Listening`](crate::control::Report::Listening)). `kind` is as in
    /// socket(2).
    Listen { kind: u32, address: u32, port: u32 },
    /// socket(2), bind(2), listen(2) in the new network namespace: a TCP listener at every address, of IPv6
    /// too if the kernel has it. It is handed out as that of `Listen`.
    ListenEverywhere { port: u32 },
    /// open(2) of the mount namespace: hands it and the root to the outside
    /// ([`Report::Root`](crate::control::Report::Root), [`Report::Mounts`](crate::control::Report::Mounts)).
    HandOut {},
    /// open(2) of a directory of the new root: hands the upper directory of an overlay to the outside
    /// ([`Report::Upper`](crate::control::Report::Upper)). `is_root` is not zero if it is that of the root.
    HandOutUpper { path: &'w CStr, is_root: u32 },
    /// open_tree(2), mount_setattr(2), move_mount(2): mounts `target` over itself with `attributes`.
    Pin { target: &'w CStr, attributes: u64 },
    /// fsopen(2), fsconfig(2), fsmount(2): a copy-on-write layer over the host's directory `lower`, mounted
    /// at `at` for now. Changes go to `upper` and `work` in `at`, or in the host's directory `kept` if that
    /// is not empty. Linux 6.6.
    Layer { lower: Inode<'w>, kept: Inode<'w>, at: &'w CStr, layer: u32 },
    /// openat2(2), open_tree(2), move_mount(2): makes `below`, a path of a layer, visible at `target`. It
    /// must still be the host's directory `source`, unless that has no identity. If the layer cannot show it,
    /// `target` gets an empty directory of its own, or with `or_shows` the host's directory read-only.
    ShowLayered { layer: u32, below: &'w CStr, source: Inode<'w>, target: &'w CStr, within: Within, or_shows: u32 },
    /// move_mount(2) of all layers into the old root, which [`PivotRoot`](Step::PivotRoot) detaches. What
    /// they show stays.
    DetachLayers {},
    /// mount(2): mounts an overlay at [`OTHER_ROOT`] with these options. The names of its layers lead from
    /// the host's directory `layers`. The options may name directories of the new root, which is at
    /// [`NEW_ROOT`], and the host's directory `kept`, which is bound to `kept` there unless its path is
    /// empty. Later steps see the overlay as the new root.
    Root { layers: Inode<'w>, options: &'w CStr, kept: Inode<'w> },
    /// openat2(2), mkdirat(2) or mknodat(2): a mount point `name` in `parent`, a directory of a root that is
    /// an overlay, unless something has that name. With a `mode` a directory, without one a file.
    MakeMissing { parent: &'w CStr, name: &'w CStr, mode: u32 },
    /// capset(2): drops one capability for good.
    DropCapability { capability: u32 },
    /// capset(2): makes one permitted capability effective, or if `has` is zero not effective.
    SetEffective { capability: u32, has: u32 },
    /// Resets the calling process: sched_setscheduler(2) to SCHED_OTHER if `policy` is not zero,
    /// setpriority(2) to 0 if `nice` is not, ioprio_set(2) to none if `io` is not.
    Ordinary { policy: u32, nice: u32, io: u32 },
    /// fchmodat(2): sets the mode of a path in the new root, given as an absolute path.
    SetMode { path: &'w CStr, mode: u32 },
    /// seccomp(SECCOMP_FILTER_FLAG_NEW_LISTENER): installs `program` and hands its listener, which reports
    /// refused system calls, to the outside ([`Report::Refusing`](crate::control::Report::Refusing)). If the
    /// kernel creates no listener, for example because another filter has one, installs `plain` instead. If
    /// `with_start` is not zero, the listener goes out with
    /// [`Report::Started`](crate::control::Report::Started).
    SeccompAsking { program: &'w [u8], flags: u64, plain: &'w [u8], with_start: u32 },
}
}

/// A path of the host, and what must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode<'w> {
    /// The path. It may contain links.
    pub path: &'w CStr,
    /// Device and inode number.
    pub identity: (u64, u64),
}

/// Where a mount goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'w> {
    /// The path, relative to the new root.
    pub path: &'w CStr,
    /// What the path leads through.
    pub within: Within,
}

impl Inode<'_> {
    /// No path.
    pub const NONE: Self = Self { path: c"", identity: (0, 0) };
}

impl<'w> Field<'w> for Inode<'w> {
    fn take(cursor: &mut Cursor<'w>) -> Option<Self> {
        Some(Self { path: Field::take(cursor)?, identity: (Field::take(cursor)?, Field::take(cursor)?) })
    }

    fn put(&self, out: &mut impl Sink) {
        let (device, inode) = self.identity;
        self.path.put(out);
        device.put(out);
        inode.put(out);
    }
}

/// The directory of a mount point, which decides how to open it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// A directory of the new root, which no other process can reach.
    Root,
    /// A directory of the host. Other processes may replace parts of the path at any time, so every part must
    /// be a directory and never a link.
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

/// A step, and whether its failure is fatal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'w> {
    /// Whether the sandbox may start without this step; a failure is then reported as `Skipped`.
    pub optional: bool,
    /// The step.
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

/// A bit of [`Request::terminal`].
pub const IN_FOREGROUND: u32 = 8;

/// One command: everything that differs between two commands under one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'w> {
    /// Working directory, an absolute path in the sandbox.
    pub cwd: &'w CStr,
    /// Absolute paths to try in order. The outside has applied the search path already.
    pub programs: List<'w>,
    /// Arguments, including the program's name.
    pub arguments: List<'w>,
    /// `NAME=value` strings.
    pub environment: List<'w>,
    /// The standard descriptors that are the command's terminal, bit 0 for stdin. With
    /// [`IN_FOREGROUND`] the terminal belongs to the command from the start.
    pub terminal: u32,
    /// Nonzero: processes that the command leaves behind live until the outside closes the worker.
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

/// A whole plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan<'w> {
    /// Steps of PID 1, once for a session: namespaces and view.
    pub setup: &'w [u8],
    /// Steps of each worker of a session, for what it does not share with others. Empty for a one-shot.
    pub worker: &'w [u8],
    /// Last steps of each worker before it starts its payload: what it gives up.
    pub walls: &'w [u8],
    /// Steps of the payload before its command.
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

/// The entries of one section of a plan. Ends at the first malformed entry, with `None` as its last item.
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
