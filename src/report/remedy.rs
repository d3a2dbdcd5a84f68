//! What a person can do about an error or a refusal: a short sentence whose settings are data. This file
//! knows no flag of any program: each front end puts a setting into its own words, with a [`Wording`].

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::report::escape::harmless;
use crate::report::words::words;

/// A short sentence that says what a person can do.
///
/// `Display` names settings as [policy files](crate::policy::Policy) do. [`in_words`](Self::in_words) takes
/// the words of another front end, as `kennel` has flags. Serialised, it is a text; with settings, a list of
/// texts and of lists of settings.
///
/// ```
/// use kennel::{Error, report::{Setting, SettingKey, Wording}};
///
/// let remedy = Error::NotFound { program: "/srv/tool".to_owned() }.remedy().unwrap();
/// assert_eq!(remedy.to_string(), "only granted paths exist inside: check the path, or grant it with ro");
/// let mine = Wording::new(|settings| match settings {
///     [Setting { key: SettingKey::Ro, .. }] => "the button Show".to_owned(),
///     others => Setting::in_policy(others),
/// });
/// assert!(remedy.in_words(mine).ends_with("or grant it with the button Show"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "Sent")]
pub struct Remedy {
    parts: Vec<Part>,
}

/// A part of a sentence.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
enum Part {
    Text(Cow<'static, str>),
    /// Settings that belong together.
    Settings(Vec<Setting>),
}

/// Something that a caller can set or do.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Setting {
    /// What to set.
    #[serde(rename = "set")]
    pub key: SettingKey,
    /// The value, as in a policy. What the caller must fill in is in capitals: `HOST:PORT`. `None` if any may
    /// do, or if nothing has a value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

words! {
    /// What a [`Setting`] sets: a key of a policy, or something else that a caller can do.
    ///
    /// ```
    /// assert_eq!(kennel::report::SettingKey::Allow.as_str(), "network.allow");
    /// ```
    pub enum SettingKey {
        /// The profile.
        Profile = "profile",
        /// The disk for the changes of another root.
        ImageUpper = "image_upper",
        /// An image as the root file system.
        Image = "image",
        /// Another root file system.
        Root = "root",
        /// The user in another root.
        User = "user",
        /// The workspace.
        Workspace = "workspace",
        /// A path of the host that is visible: `SOURCE`, or `SOURCE:TARGET`.
        Ro = "ro",
        /// The same, writable.
        Rw = "rw",
        /// An empty directory in memory: `TARGET:SIZE`.
        Tmpfs = "tmpfs",
        /// What commands see and change of git repositories.
        Git = "git",
        /// The directory in which a command starts.
        Cwd = "cwd",
        /// The host name that commands see.
        Hostname = "hostname",
        /// What commands can do with caches.
        Caches = "caches",
        /// What to do when the host lacks a required protection.
        OnUnavailable = "on_unavailable",
        /// How much of the network there is.
        NetworkMode = "network.mode",
        /// A destination that may be reached, or a preset.
        Allow = "network.allow",
        /// A destination that may not be reached.
        Deny = "network.deny",
        /// Special addresses that names may resolve to.
        AllowAddress = "network.allow_addresses",
        /// The HTTP proxy that connections go through.
        Upstream = "network.upstream",
        /// A variable that is passed on.
        PassEnv = "env.pass",
        /// A variable with its value.
        SetEnv = "env.set",
        /// The limit of memory.
        Memory = "limits.memory",
        /// The limit of processes.
        Pids = "limits.pids",
        /// The limit of processor time.
        CpuTime = "limits.cpu_time",
        /// The time after which the command is killed.
        Timeout = "limits.timeout",
        /// The limit of collected output.
        Output = "limits.output",
        /// The size of private places.
        TmpSize = "limits.tmp_size",
        /// The number of files in private places.
        TmpInodes = "limits.tmp_inodes",
        /// Where cgroups are made.
        Cgroup = "limits.cgroup",
        /// Keep changes apart from the workspace.
        Overlay = "overlay",
        /// The directory for changes.
        OverlayUpper = "overlay.upper",
        /// Learn what a command uses.
        Learn = "learn",
        /// A program that one call of a connector may run.
        Program = "program",
        /// What knows the values of credentials. The value is `call` for those of a connector's call.
        Credentials = "credentials",
        /// Keep no changes.
        Discard = "discard",
        /// Run as the owner of the workspace.
        AsOwner = "as_owner",
        /// Start a session.
        StartSession = "session.start",
        /// End a session.
        StopSession = "session.stop",
        /// List sessions.
        ListSessions = "session.list",
        /// Run a command in a session.
        Exec = "session.exec",
        /// Drop the kept changes of a workspace.
        DropChanges = "changes.discard",
        /// List caches that are kept.
        ListCaches = "caches.list",
        /// List the imports of a connector.
        CheckConnector = "connector.check",
    }
}

impl SettingKey {
    /// The setting, without a value.
    pub(crate) fn any(self) -> Setting {
        Setting { key: self, value: None }
    }

    /// The setting with this value.
    pub(crate) fn to(self, value: impl fmt::Display) -> Setting {
        Setting { key: self, value: Some(harmless(&value.to_string())) }
    }

    /// What Rust programs call it, if it is not in a policy.
    fn in_rust(self) -> Option<&'static str> {
        Some(match self {
            Self::Learn => "Policy::learn",
            Self::Program => "a program of the call",
            Self::Credentials => "the credential resolver",
            Self::Discard => "Session::discard",
            Self::AsOwner => "a process of that user",
            Self::StartSession => "Session::listen",
            Self::StopSession => "Session::shutdown",
            Self::ListSessions => "Client::sessions",
            Self::Exec => "Session::command",
            Self::DropChanges => "KeptChanges::discard",
            Self::ListCaches => "kept_caches",
            Self::CheckConnector => "the manifest",
            _ => return None,
        })
    }
}

impl Setting {
    /// Settings that belong together, in the words of policy files: `network.allow crates.io:443`.
    #[must_use]
    pub fn in_policy(settings: &[Self]) -> String {
        settings.iter().map(Self::to_string).collect::<Vec<_>>().join(" and ")
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.key.in_rust(), &self.value) {
            (Some(words), _) => f.write_str(words),
            (None, Some(value)) => write!(f, "{} {value}", self.key),
            (None, None) => f.write_str(self.key.as_str()),
        }
    }
}

/// How a front end names settings that belong together. The default is that of policy files.
#[derive(Clone, Copy)]
pub struct Wording(fn(&[Setting]) -> String);

impl Wording {
    /// Names settings with this function.
    #[must_use]
    pub const fn new(words: fn(&[Setting]) -> String) -> Self {
        Self(words)
    }

    /// The words for these settings.
    #[must_use]
    pub fn of(self, settings: &[Setting]) -> String {
        self.0(settings)
    }
}

impl Default for Wording {
    fn default() -> Self {
        Self(Setting::in_policy)
    }
}

impl fmt::Debug for Wording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wording")
    }
}

impl PartialEq for Wording {
    /// How something is said changes nothing else.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// A [`Remedy`] of texts, settings, and other remedies, one after the other.
macro_rules! remedy {
    ($($part:expr),+ $(,)?) => {{
        let mut remedy = $crate::report::remedy::Remedy::default();
        $(remedy.push($part);)+
        remedy
    }};
}
pub(crate) use remedy;

impl Remedy {
    /// Appends a text, a setting, several, or a whole sentence.
    pub(crate) fn push(&mut self, more: impl Into<Self>) {
        self.parts.extend(more.into().parts);
    }

    /// The sentence, with settings in the words of a front end. One line, without control characters.
    #[must_use]
    pub fn in_words(&self, wording: Wording) -> String {
        let words = |part: &Part| match part {
            Part::Text(text) => harmless(text),
            Part::Settings(settings) => harmless(&wording.of(settings)),
        };
        self.parts.iter().map(words).collect()
    }

    /// The same as a text alone, in the words of a front end.
    pub(crate) fn worded(&self, wording: Wording) -> Self {
        self.in_words(wording).into()
    }

    /// The settings that a caller can add: the sentence begins with them. Empty if it advises something else.
    #[must_use]
    pub fn settings(&self) -> &[Setting] {
        match self.parts.first() {
            Some(Part::Settings(settings)) => settings,
            _ => &[],
        }
    }

    /// Whether it names these settings together, anywhere.
    pub(crate) fn names(&self, settings: &[Setting]) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Settings(named) if named == settings))
    }

    /// The sentence without its first parts.
    pub(crate) fn after(&self, parts: usize) -> Self {
        Self { parts: self.parts.iter().skip(parts).cloned().collect() }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.in_words(Wording::default()))
    }
}

impl From<Cow<'static, str>> for Remedy {
    fn from(text: Cow<'static, str>) -> Self {
        Self { parts: vec![Part::Text(text)] }
    }
}

impl From<&'static str> for Remedy {
    fn from(text: &'static str) -> Self {
        Cow::Borrowed(text).into()
    }
}

impl From<String> for Remedy {
    fn from(text: String) -> Self {
        Cow::<str>::Owned(text).into()
    }
}

impl From<Vec<Setting>> for Remedy {
    fn from(settings: Vec<Setting>) -> Self {
        Self { parts: vec![Part::Settings(settings)] }
    }
}

impl From<Setting> for Remedy {
    fn from(setting: Setting) -> Self {
        vec![setting].into()
    }
}

/// A setting without a value.
impl From<SettingKey> for Remedy {
    fn from(key: SettingKey) -> Self {
        key.any().into()
    }
}

/// The two forms of a sentence in JSON.
#[derive(Deserialize)]
#[serde(untagged)]
enum Sent {
    Text(String),
    Parts(Vec<Part>),
}

impl From<Sent> for Remedy {
    fn from(sent: Sent) -> Self {
        match sent {
            Sent::Text(text) => text.into(),
            Sent::Parts(parts) => Self { parts },
        }
    }
}

impl Serialize for Remedy {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.parts.iter().all(|part| matches!(part, Part::Text(_))) {
            return serializer.serialize_str(&self.in_words(Wording::default()));
        }
        self.parts.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reader_has_its_words() {
        let remedy = remedy!["grant it with ", SettingKey::Ro, ", or ", SettingKey::Rw.to("/a\u{1b}")];
        assert_eq!(remedy.to_string(), "grant it with ro, or rw /a\\u{1b}");
        let shout = Wording::new(|settings| Setting::in_policy(settings).to_uppercase());
        assert_eq!(remedy.in_words(shout), "grant it with RO, or RW /A\\U{1B}");
    }

    #[test]
    fn only_a_sentence_that_begins_with_settings_adds_them() {
        let both = vec![SettingKey::NetworkMode.to("proxy"), SettingKey::Allow.to("a:1")];
        let adds = remedy![both.clone(), " would allow it"];
        assert_eq!(adds.settings(), both);
        assert_eq!(adds.to_string(), "network.mode proxy and network.allow a:1 would allow it");
        assert_eq!(adds.after(1).to_string(), " would allow it");
        let other = remedy!["remove ", SettingKey::Deny.to("a:1")];
        assert!(other.settings().is_empty());
        assert!(other.names(&[SettingKey::Deny.to("a:1")]) && !other.names(&both));
    }

    #[test]
    fn json_is_a_text_or_a_list_and_is_read_back() {
        for (remedy, json) in [
            (Remedy::from("run it again"), serde_json::json!("run it again")),
            (
                remedy![SettingKey::Allow.to("a:1"), " would allow it"],
                serde_json::json!([[{"set": "network.allow", "value": "a:1"}], " would allow it"]),
            ),
            (
                remedy!["use ", SettingKey::StopSession],
                serde_json::json!(["use ", [{"set": "session.stop"}]]),
            ),
        ] {
            assert_eq!(serde_json::to_value(&remedy).expect("plain data"), json);
            assert_eq!(serde_json::from_value::<Remedy>(json).expect("read back"), remedy);
        }
    }
}
