//! The enforcement report: one entry for each protection, as data.

use Protection::{
    Capabilities, CpuTime, Cpus, Cpuset, FileSize, Io, Keyring, LandlockScope, Memory, MountNamespace,
    NetworkNamespace, NoNewPrivs, OpenFiles, PidNamespace, Pids, Root, Seccomp,
};
use serde::Serialize;
use serde::ser::SerializeStruct;

use crate::report::error::policy::policy_words;
use crate::report::escape::harmless;
use crate::report::remedy::{Remedy, SettingKey, Wording, remedy};

/// The state of one protection.
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

/// The entry of one protection in the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Entry {
    /// The protection.
    pub name: Protection,
    /// Its state.
    pub state: State,
    /// What it consists of on this host, or why it is weaker or off.
    pub detail: String,
    /// For a limit without a cgroup: why no cgroup enforces it. Usually all such limits have the same cause,
    /// so show it once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// What a person can do about `cause`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Remedy>,
    /// Whether the policy asks for it. Otherwise it does not lower the level.
    #[serde(skip)]
    pub asked: bool,
}

/// The level over all protections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Everything that the policy asked for is in force.
    Full,
    /// Something that the policy asked for is degraded or off.
    Partial,
    /// Nothing is in force.
    None,
}

/// Something that a person should know about a sandbox. Nothing was refused, and nothing is weaker than
/// asked.
///
/// ```no_run
/// # async fn example(outcome: kennel::Outcome) {
/// for note in outcome.enforcement.notes() {
///     eprintln!("{}: {}", note.subject, note.text);
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Note {
    /// What the note is about: a path, or a value of the policy. One line, without control characters.
    pub subject: String,
    /// What there is to know. One line.
    pub text: String,
    /// What a person can do about it, if there is something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Remedy>,
}

impl Note {
    /// A note with these texts. Control characters are escaped.
    #[must_use]
    pub fn new(subject: &str, text: &str, remedy: Option<Remedy>) -> Self {
        Self { subject: harmless(subject), text: harmless(text), remedy }
    }

    /// The line for people, with settings in the words of a front end.
    #[must_use]
    pub fn line(&self, wording: Wording) -> String {
        self.sentence("note", Scope::Command).in_words(wording)
    }

    /// The line for people, if it is one of [`Outcome::hints`](crate::report::outcome::Outcome::hints).
    #[must_use]
    pub fn hint(&self, wording: Wording) -> String {
        self.sentence("hint", Scope::Command).in_words(wording)
    }

    /// The line for people.
    pub(crate) fn sentence(&self, kind: &str, scope: Scope) -> Remedy {
        let Self { subject, text, remedy } = self;
        let mut line = Remedy::from(format!("kennel: {kind}: {subject}: {text}"));
        if let Some(remedy) = remedy {
            line.push(remedy!["; ", scope.of(remedy)]);
        }
        line
    }

    /// Whether it advises to set this.
    #[must_use]
    pub fn sets(&self, key: SettingKey) -> bool {
        let mut settings = self.remedy.iter().flat_map(Remedy::settings);
        settings.any(|setting| setting.key == key)
    }

    /// The same with the remedy as a text, in the words of a front end.
    #[must_use]
    pub fn worded(self, wording: Wording) -> Self {
        Self { remedy: self.remedy.map(|remedy| remedy.worded(wording)), ..self }
    }
}

/// What was enforced for a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Enforcement {
    entries: Vec<Entry>,
    notes: Vec<Note>,
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

    /// Every protection that the policy affects, in the order in which Kennel sets them up.
    #[must_use]
    pub fn protections(&self) -> &[Entry] {
        &self.entries
    }

    /// What a person should know about the sandbox besides its protections, in the order in which Kennel
    /// noticed it.
    #[must_use]
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Adds notes; one that is there already is left out.
    pub(crate) fn add_notes(&mut self, notes: impl IntoIterator<Item = Note>) {
        for note in notes {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }

    /// The same with each remedy as a text, in the words of a front end.
    #[must_use]
    pub fn worded(mut self, wording: Wording) -> Self {
        let remedies = self.entries.iter_mut().map(|entry| &mut entry.remedy);
        for remedy in remedies.chain(self.notes.iter_mut().map(|note| &mut note.remedy)).flatten() {
            *remedy = remedy.worded(wording);
        }
        self
    }

    /// A copy of the entries alone.
    pub(crate) fn without_notes(&self) -> Self {
        Self { entries: self.entries.clone(), notes: Vec::new() }
    }

    /// Only the protections that the policy asks for and that are not enforced; `None` if there are none.
    pub(crate) fn weaker(mut self) -> Option<Self> {
        self.entries.retain(|entry| entry.asked && entry.state != State::Enforced);
        self.notes.clear();
        (!self.entries.is_empty()).then_some(self)
    }

    /// What a person who runs a command should see: every protection that the policy asked for and that is
    /// not in force, except those whose purpose another one serves. Common kernels lack those, so every
    /// command would report them.
    ///
    /// - A Landlock scope (Linux 6.12) keeps signals and abstract sockets inside. So do the sandbox's own pid
    ///   and network namespaces.
    /// - A session keyring (which many container engines refuse) keeps the caller's keys out of reach. So
    ///   does the seccomp filter.
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

    /// Sets the state of a limit that no cgroup enforces because of `cause`.
    pub(crate) fn set_without_cgroup(
        &mut self,
        name: Protection,
        state: State,
        detail: &str,
        cause: &str,
        remedy: Remedy,
    ) {
        let (cause, remedy) = (Some(harmless(cause)), Some(remedy));
        self.put(Entry { name, state, detail: detail.to_owned(), cause, remedy, asked: true });
    }

    /// Sets the state of a limit that nobody asked for.
    pub(crate) fn set_by_default(&mut self, name: Protection, detail: &str) {
        let detail = detail.to_owned();
        self.put(Entry { name, state: State::Enforced, detail, cause: None, remedy: None, asked: false });
    }

    /// Sets a protection off because its step failed.
    pub(crate) fn turn_off(&mut self, name: Protection, detail: String) {
        let asked = self.get(name).is_none_or(|entry| entry.asked);
        self.put(Entry { name, state: State::Off, detail, cause: None, remedy: None, asked });
    }

    /// Marks a protection as degraded if it was reported as enforced.
    pub(crate) fn weaken(&mut self, name: Protection, reason: &str) {
        let in_force = |entry: &&mut Entry| entry.name == name && entry.state == State::Enforced;
        if let Some(entry) = self.entries.iter_mut().find(in_force) {
            (entry.state, entry.detail) = (State::Degraded, harmless(reason));
        }
    }

    /// Records a protection that the policy turns off.
    pub(crate) fn not_asked(&mut self, name: Protection, detail: impl Into<String>) {
        let (state, detail) = (State::Off, detail.into());
        self.put(Entry { name, state, detail, cause: None, remedy: None, asked: false });
    }

    /// Puts an entry in the place of the old one. Details contain paths with arbitrary names, so this escapes
    /// them.
    pub(crate) fn put(&mut self, mut entry: Entry) {
        entry.detail = harmless(&entry.detail);
        match self.entries.iter_mut().find(|old| old.name == entry.name) {
            Some(old) => *old = entry,
            None => self.entries.push(entry),
        }
    }
}

impl Serialize for Enforcement {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Enforcement", 3)?;
        object.serialize_field("level", &self.level())?;
        object.serialize_field("protections", &self.entries)?;
        object.serialize_field("notes", &self.notes)?;
        object.end()
    }
}

policy_words! {
    /// One way in which a command is confined; the enforcement report has an entry for each.
    ///
    /// ```
    /// use kennel::report::Protection;
    ///
    /// assert_eq!(Protection::NoNewPrivs.as_str(), "no_new_privs");
    /// assert_eq!("landlock".parse::<Protection>()?, Protection::Landlock);
    /// # Ok::<(), kennel::report::PolicyError>(())
    /// ```
    #[non_exhaustive]
    pub enum Protection as "protection" {
        /// A user namespace: root inside has no rights outside.
        UserNamespace = "user_namespace",
        /// A mount namespace: mounts inside are invisible outside.
        MountNamespace = "mount_namespace",
        /// A pid namespace: the command cannot see or signal other processes.
        PidNamespace = "pid_namespace",
        /// A network namespace: the host's interfaces are absent.
        NetworkNamespace = "network_namespace",
        /// A proxy as the only way out of the network namespace.
        Proxy = "proxy",
        /// A System V and POSIX message-queue namespace.
        IpcNamespace = "ipc_namespace",
        /// A UTS namespace: the sandbox has its own host name.
        UtsNamespace = "uts_namespace",
        /// A cgroup namespace: the sandbox sees its own cgroup tree.
        CgroupNamespace = "cgroup_namespace",
        /// A root file system that contains only what the policy grants.
        Root = "root",
        /// All capabilities dropped.
        Capabilities = "capabilities",
        /// No program gains privileges, not even a set-user-ID one.
        NoNewPrivs = "no_new_privs",
        /// Landlock rules with the same grants as the root file system.
        Landlock = "landlock",
        /// Landlock scopes: abstract sockets and signals stay inside the sandbox.
        LandlockScope = "landlock_scope",
        /// Landlock rules for the TCP ports that the command may connect to on the host's network.
        LandlockNetwork = "landlock_network",
        /// A seccomp filter of system calls.
        Seccomp = "seccomp",
        /// A new session keyring.
        Keyring = "keyring",
        /// No core dumps.
        CoreDumps = "core_dumps",
        /// Paths inside a writable workspace that stay read-only.
        ProtectedPaths = "protected_paths",
        /// The memory limit.
        Memory = "memory",
        /// The limit of processes and threads.
        Pids = "pids",
        /// The limit of CPU bandwidth.
        Cpus = "cpus",
        /// The set of processors that the command may use.
        Cpuset = "cpuset",
        /// The limit of reads from and writes to a block device.
        Io = "io",
        /// The limit of CPU time.
        CpuTime = "cpu_time",
        /// The limit of open files.
        OpenFiles = "open_files",
        /// The limit of the size of a file.
        FileSize = "file_size",
    }
}

impl Protection {
    /// Whether no sandbox can exist without it. Every policy requires such a protection.
    ///
    /// [`UserNamespace`](Self::UserNamespace) is not indispensable, but only real root can run without it,
    /// and then needs every other namespace and the seccomp filter.
    pub const fn is_indispensable(self) -> bool {
        matches!(self, MountNamespace | Root | NoNewPrivs | Capabilities)
    }

    /// Whether it enforces one of the [`Limits`](crate::policy::limits::Limits).
    pub const fn is_limit(self) -> bool {
        matches!(self, Memory | Pids | Cpus | Cpuset | Io | CpuTime | OpenFiles | FileSize)
    }
}

/// What a setting holds for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The next command.
    Command,
    /// All commands of a session, which has to be started with it.
    Session,
}

impl Scope {
    /// A remedy that says what its settings hold for.
    pub(crate) fn of(self, remedy: &Remedy) -> Remedy {
        match self {
            Self::Session if !remedy.settings().is_empty() => {
                remedy!["a session started with ", remedy.clone()]
            }
            _ => remedy.clone(),
        }
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
    fn a_protection_that_others_replace_is_not_remarkable() {
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
        // With the host's network there is no network namespace that could replace it.
        assert_eq!(remarks(&[(PidNamespace, Enforced), (LandlockScope, Off)]), [LandlockScope]);
    }

    #[test]
    fn every_other_weaker_protection_is_remarkable() {
        for name in Protection::ALL {
            assert_eq!(remarks(&[(name, State::Degraded)]), [name]);
            assert_eq!(remarks(&[(name, State::Enforced)]), []);
        }
        let mut enforcement = Enforcement::default();
        enforcement.not_asked(Protection::NetworkNamespace, "granted");
        assert_eq!(enforcement.remarkable().count(), 0);
    }
}
