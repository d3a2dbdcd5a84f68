//! What was enforced, as data: one entry a protection, never only a log line.

use Protection::{
    Capabilities, CpuTime, Cpus, Cpuset, FileSize, Io, Keyring, LandlockScope, Memory, MountNamespace,
    NetworkNamespace, NoNewPrivs, OpenFiles, PidNamespace, Pids, Root, Seccomp,
};
use serde::Serialize;
use serde::ser::SerializeStruct;

use crate::report::escape::harmless;
use crate::report::words::words;

/// State of one protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// In force as documented.
    Enforced,
    /// In force, but weaker than documented; the detail says how.
    Degraded,
    /// Not in force.
    Off,
}

/// One protection in the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Which one.
    pub name: Protection,
    /// Its state.
    pub state: State,
    /// What it consists of here, or why it is weaker or off.
    pub detail: String,
    /// Of a limit that no cgroup holds: why not. Usually the same for all of them, so say it once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// What would help against `cause`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Whether the policy asked for it; what it did not ask for does not lower the level.
    #[serde(skip)]
    pub asked: bool,
}

/// The report as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Everything that the policy asked for is in force.
    Full,
    /// Something that it asked for is degraded or off.
    Partial,
    /// Nothing is in force.
    None,
}

/// What was enforced for a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Enforcement {
    entries: Vec<Entry>,
}

impl Enforcement {
    /// The level over all protections.
    #[must_use]
    pub fn level(&self) -> Level {
        let mut asked = self.entries.iter().filter(|entry| entry.asked).peekable();
        if asked.peek().is_none() {
            return Level::None;
        }
        if asked.all(|entry| entry.state == State::Enforced) { Level::Full } else { Level::Partial }
    }

    /// Every protection that the policy touches, in the order in which walls go up.
    #[must_use]
    pub fn protections(&self) -> &[Entry] {
        &self.entries
    }

    /// What is worth showing to a person who runs a command: everything that was asked for and is not in force, except what
    /// other walls enforce anyway. Common kernels lack that, so it would be said of every command.
    ///
    /// - Landlock's scopes (Linux 6.12) keep signals and abstract sockets inside. So do a pid namespace and a network
    ///   namespace of the sandbox's own.
    /// - A session keyring of its own (refused by the lists of many container engines) keeps the caller's keys out of
    ///   reach. So does the filter of system calls.
    ///
    /// ```no_run
    /// # async fn example(outcome: kennel::Outcome) {
    /// for entry in outcome.enforcement.remarkable() {
    ///     eprintln!("{}: {} {}", entry.name, entry.detail, entry.cause.as_deref().unwrap_or_default());
    /// }
    /// # }
    /// ```
    pub fn remarkable(&self) -> impl Iterator<Item = &Entry> {
        let weak = self.entries.iter().filter(|entry| entry.asked && entry.state != State::Enforced);
        weak.filter(|entry| !self.is_kept_otherwise(entry.name))
    }

    fn is_kept_otherwise(&self, name: Protection) -> bool {
        let others = match name {
            LandlockScope => &[NetworkNamespace, PidNamespace][..],
            Keyring => &[Seccomp],
            _ => return false,
        };
        others.iter().all(|other| self.get(*other).is_some_and(|entry| entry.state == State::Enforced))
    }

    /// The entry of one protection.
    #[must_use]
    pub fn get(&self, name: Protection) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    pub(crate) fn set(&mut self, name: Protection, state: State, detail: impl Into<String>) {
        self.put(Entry { name, state, detail: detail.into(), cause: None, remedy: None, asked: true });
    }

    /// The state of a limit that no cgroup holds, for a `cause`.
    pub(crate) fn set_without_cgroup(
        &mut self,
        name: Protection,
        state: State,
        detail: &str,
        [cause, remedy]: [String; 2],
    ) {
        let [cause, remedy] = [cause, remedy].map(|text| Some(harmless(&text)));
        self.put(Entry { name, state, detail: detail.to_owned(), cause, remedy, asked: true });
    }

    /// What was thought in force is not in full.
    pub(crate) fn weaken(&mut self, name: Protection, reason: &str) {
        let in_force = |entry: &&mut Entry| entry.name == name && entry.state == State::Enforced;
        if let Some(entry) = self.entries.iter_mut().find(in_force) {
            (entry.state, entry.detail) = (State::Degraded, harmless(reason));
        }
    }

    /// A protection that the policy does without.
    pub(crate) fn not_asked(&mut self, name: Protection, detail: impl Into<String>) {
        let (state, detail) = (State::Off, detail.into());
        self.put(Entry { name, state, detail, cause: None, remedy: None, asked: false });
    }

    /// Details name paths, which are anybody's.
    fn put(&mut self, mut entry: Entry) {
        entry.detail = harmless(&entry.detail);
        match self.entries.iter_mut().find(|old| old.name == entry.name) {
            Some(old) => *old = entry,
            None => self.entries.push(entry),
        }
    }
}

impl Serialize for Enforcement {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Enforcement", 2)?;
        object.serialize_field("level", &self.level())?;
        object.serialize_field("protections", &self.entries)?;
        object.end()
    }
}

words! {
    /// One way in which a command is confined; the enforcement report has an entry for each.
    ///
    /// ```
    /// use kennel::Protection;
    ///
    /// assert_eq!(Protection::NoNewPrivs.as_str(), "no_new_privs");
    /// assert_eq!("landlock".parse::<Protection>()?, Protection::Landlock);
    /// # Ok::<(), kennel::PolicyError>(())
    /// ```
    pub enum Protection as "protection" {
        /// A user namespace: root inside has no rights outside.
        UserNamespace = "user_namespace",
        /// A mount namespace: mounts inside are not seen outside.
        MountNamespace = "mount_namespace",
        /// A process namespace: other processes are neither seen nor signalled.
        PidNamespace = "pid_namespace",
        /// A network namespace: no interface of the host.
        NetworkNamespace = "network_namespace",
        /// A proxy as the only way out of the network namespace.
        Proxy = "proxy",
        /// A System V and POSIX message-queue namespace.
        IpcNamespace = "ipc_namespace",
        /// A host name of its own.
        UtsNamespace = "uts_namespace",
        /// A cgroup tree of its own.
        CgroupNamespace = "cgroup_namespace",
        /// A file tree in which only what is granted exists.
        Root = "root",
        /// All capabilities dropped.
        Capabilities = "capabilities",
        /// No program gives new privileges, set-user-ID ones included.
        NoNewPrivs = "no_new_privs",
        /// Landlock rules with the same grants as the file tree.
        Landlock = "landlock",
        /// Landlock scopes: abstract sockets and signals end at the sandbox.
        LandlockScope = "landlock_scope",
        /// Landlock rules for the TCP ports that may be connected to, where the host's network is narrowed.
        LandlockNetwork = "landlock_network",
        /// A filter of system calls.
        Seccomp = "seccomp",
        /// A session keyring of its own.
        Keyring = "keyring",
        /// No core dumps.
        CoreDumps = "core_dumps",
        /// Paths inside a writable workspace that stay read-only.
        ProtectedPaths = "protected_paths",
        /// The limit of memory.
        Memory = "memory",
        /// The limit of processes.
        Pids = "pids",
        /// The limit of processors.
        Cpus = "cpus",
        /// Which processors may be used.
        Cpuset = "cpuset",
        /// The limit of reading from and writing to a block device.
        Io = "io",
        /// The limit of processor time.
        CpuTime = "cpu_time",
        /// The limit of open files.
        OpenFiles = "open_files",
        /// The limit of the size of a file.
        FileSize = "file_size",
    }
}

impl Protection {
    /// Whether there is no sandbox at all without it. Such protections are required whatever a policy says.
    ///
    /// [`UserNamespace`](Self::UserNamespace) is not among them, but only real root can run without it, and then needs
    /// every other namespace and the filter of system calls.
    pub const fn is_indispensable(self) -> bool {
        matches!(self, MountNamespace | Root | NoNewPrivs | Capabilities)
    }

    /// Whether it holds commands to one of the [`Limits`](crate::policy::limits::Limits).
    pub const fn is_limit(self) -> bool {
        matches!(self, Memory | Pids | Cpus | Cpuset | Io | CpuTime | OpenFiles | FileSize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remarks(of: &[(Protection, State)]) -> Vec<Protection> {
        let mut enforcement = Enforcement::default();
        of.iter().for_each(|&(name, state)| enforcement.set(name, state, ""));
        enforcement.remarkable().map(|entry| entry.name).collect()
    }

    #[test]
    fn what_other_walls_keep_is_no_remark() {
        use Protection::*;
        use State::*;
        let walls = [(PidNamespace, Enforced), (NetworkNamespace, Enforced), (Seccomp, Enforced)];
        for missing in [LandlockScope, Keyring] {
            assert_eq!(remarks(&[&walls[..], &[(missing, Off)]].concat()), []);
        }
        for (missing, down) in
            [(LandlockScope, NetworkNamespace), (LandlockScope, PidNamespace), (Keyring, Seccomp)]
        {
            let others = walls.map(|(name, state)| (name, if name == down { Degraded } else { state }));
            assert_eq!(remarks(&[&others[..], &[(missing, Off)]].concat()), [down, missing]);
        }
        // With the host's network there is no entry that could be in force.
        assert_eq!(remarks(&[(PidNamespace, Enforced), (LandlockScope, Off)]), [LandlockScope]);
    }

    #[test]
    fn whatever_else_is_weaker_is_a_remark() {
        for name in Protection::ALL {
            assert_eq!(remarks(&[(name, State::Degraded)]), [name]);
            assert_eq!(remarks(&[(name, State::Enforced)]), []);
        }
        let mut enforcement = Enforcement::default();
        enforcement.not_asked(Protection::NetworkNamespace, "granted");
        assert_eq!(enforcement.remarkable().count(), 0);
    }
}
