//! Denials: what the sandbox refused, and the texts for people about it.

use std::collections::HashSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::report::enforcement::{Protection, Scope};
use crate::report::escape::is_harmless;
use crate::report::remedy::{Remedy, Setting, SettingKey, Wording, remedy};

/// Something that the sandbox blocked or moved aside, or kept for you to check ([`Basis::Kept`]).
///
/// What the proxy refuses is always reported, the rest mostly only with [`Policy::explain`], which follows
/// the system calls of the command.
///
/// [`Policy::explain`]: crate::policy::Policy::explain
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Denial {
    /// The protection that refused it.
    pub protection: Protection,
    /// What was refused: a path, a destination, a system call. One line, without control characters.
    pub subject: String,
    /// Why, and what Kennel did about it.
    pub reason: String,
    /// How Kennel knows.
    pub basis: Basis,
    /// What would allow it, if there is something. Its [`settings`](Remedy::settings) are those of the next
    /// command or session.
    pub remedy: Option<Remedy>,
    /// The preset that has the host, such as `@cargo`: it would allow the other hosts of that registry too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// Whether package managers ask this host for newer versions of themselves. If the command succeeded, it
    /// did not need it.
    #[serde(skip)]
    pub(crate) is_update_check: bool,
    /// Whether the list of what is allowed merely lacks the destination. Then the remedy allows it.
    #[serde(skip)]
    pub(crate) is_unlisted: bool,
}

impl Denial {
    /// A denial that no setting changes.
    pub(crate) fn new(protection: Protection, subject: String, reason: String, basis: Basis) -> Self {
        let (is_update_check, is_unlisted) = (false, false);
        Self { protection, subject, reason, basis, remedy: None, preset: None, is_update_check, is_unlisted }
    }

    /// The line for people, with settings in the words of a front end. Escaped.
    #[must_use]
    pub fn line(&self, wording: Wording) -> String {
        self.sentence(Scope::Command).in_words(wording)
    }

    /// The line for people. The reason names the wall.
    pub(crate) fn sentence(&self, scope: Scope) -> Remedy {
        let verb = match self.basis {
            Basis::Observed | Basis::Derived => "denied",
            Basis::Possible => "possibly denied",
            Basis::Kept => "note",
        };
        let mut line = Remedy::from(format!("kennel: {verb}: {}: {}", self.subject, self.reason));
        if let Some(remedy) = self.remedy_or_preset() {
            line.push(remedy!["; ", scope.of(&remedy)]);
        }
        line
    }

    /// The remedy, with that of the preset before it.
    fn remedy_or_preset(&self) -> Option<Remedy> {
        let remedy = self.remedy.clone()?;
        let Some(preset) = self.settings_of_preset() else { return Some(remedy) };
        let only = remedy!["or ", remedy.settings().to_vec(), " that one host"];
        Some(remedy![preset, WOULD_ALLOW, ", ", only, remedy.after(2)])
    }

    /// The settings that would allow the preset of the host.
    fn settings_of_preset(&self) -> Option<Vec<Setting>> {
        let (allow, before) = self.remedy.as_ref()?.settings().split_last()?;
        let preset = allow.key.to(self.preset.as_ref()?);
        Some(before.iter().cloned().chain([preset]).collect())
    }

    /// The settings to advise: those of the preset, or else those of the remedy. Empty if there are none.
    #[must_use]
    pub fn advised(&self) -> Vec<Setting> {
        let own = || self.remedy.as_ref().map_or_else(Vec::new, |remedy| remedy.settings().to_vec());
        self.settings_of_preset().unwrap_or_else(own)
    }

    /// The same for readers of JSON, in the words of a front end: `remedy` names its settings alone, and
    /// `reason` says what they would do.
    #[must_use]
    pub fn worded(mut self, wording: Wording) -> Self {
        let Some(remedy) = self.remedy.take() else { return self };
        self.reason = format!("{}; {}", self.reason, remedy.in_words(wording));
        let settings = Some(remedy.settings()).filter(|settings| !settings.is_empty());
        Self { remedy: settings.map(|settings| wording.of(settings).into()), ..self }
    }
}

/// How Kennel knows that something was refused.
///
/// ```
/// use kennel::report::Basis;
///
/// assert!(Basis::Observed.is_certain() && Basis::Derived.is_certain() && !Basis::Possible.is_certain());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Basis {
    /// Kennel refused it, or the kernel reported it.
    Observed,
    /// The command's output names it with an error, and under this policy no other result is possible. Kennel
    /// knows only from the output that the command tried.
    Derived,
    /// The command's output names it with an error that this policy causes there. Something else may have
    /// caused it too.
    Possible,
    /// Nothing was refused: the command created something at a protected path, and Kennel kept it because its
    /// directory is new, too.
    Kept,
}

impl Basis {
    /// Whether it is certain that the sandbox refused it.
    #[must_use]
    pub fn is_certain(self) -> bool {
        matches!(self, Self::Observed | Self::Derived)
    }
}

// Texts of a denial.

/// Longest subject of a denial, in characters.
pub(crate) const LONGEST: usize = 300;

/// What a setting does that would change a refusal.
pub(crate) const WOULD_ALLOW: &str = " would allow it";

/// The setting that lets commands change what git obeys in repositories.
pub(crate) fn trust_git() -> Setting {
    SettingKey::Git.to("trust")
}

/// A path for people: one line, with unsafe characters replaced by `?`, and in quotes if its end would not be
/// clear.
pub(crate) fn shown(path: &Path) -> String {
    let text = clean(&path.to_string_lossy());
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+@%,=:~".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', "?")) }
}

/// A command's text for people: unsafe characters replaced by `?`, and cut to [`LONGEST`].
pub(crate) fn clean(text: &str) -> String {
    let plain = |c: char| if is_harmless(c) { c } else { '?' };
    text.chars().take(LONGEST).map(plain).collect()
}

// Hosts that no rule allows. Several of them are one line for people.

/// The reason of the proxy for what no rule allows.
pub(crate) const NOT_LISTED: &str = "not on the list of what is allowed";

/// What would allow what the list of a manifest lacks.
pub(crate) const ADD_TO_MANIFEST: &str = "add it to capabilities.network.hosts of the manifest";

/// Why a setting names no port.
pub(crate) const ONLY_LOOKED_UP: &str = " (the command only looked up the name, which tells no port)";

/// The most settings, and the most hosts of a preset, in one line.
const MOST_NAMED: usize = 5;

/// Several destinations that no rule allows, each once.
pub(crate) struct UnlistedHosts<'d> {
    denials: Vec<&'d Denial>,
}

/// Takes the hosts that no rule allows out of `denials`, if there are several. The second result is what has
/// a line of its own.
pub(crate) fn split_unlisted_hosts<'d>(
    denials: &[&'d Denial],
) -> (Option<UnlistedHosts<'d>>, Vec<&'d Denial>) {
    let is_connection = |denial: &Denial| split_port(&denial.subject).1.is_some();
    let all: Vec<&Denial> = denials.iter().copied().filter(|denial| denial.is_unlisted).collect();
    // A connection names the port that a program without proxy support only asks for next.
    let is_said_better = |denial: &&Denial| {
        let same_host = |other: &&Denial| is_connection(other) && host(other) == host(denial);
        !is_connection(denial) && all.iter().any(same_host)
    };
    let together: Vec<_> = all.iter().copied().filter(|denial| !is_said_better(denial)).collect();
    let has_own_line =
        |denial: &&Denial| !denial.is_unlisted || together.len() < 2 && !is_said_better(denial);
    let others = denials.iter().copied().filter(has_own_line).collect();
    ((together.len() > 1).then_some(UnlistedHosts { denials: together }), others)
}

impl UnlistedHosts<'_> {
    /// The line for people.
    pub(crate) fn sentence(&self, scope: Scope) -> Remedy {
        let hosts: HashSet<&str> = self.denials.iter().map(|denial| host(denial)).collect();
        let refused = match hosts.len() {
            1 => "kennel: 1 host was refused: ".to_owned(),
            count => format!("kennel: {count} hosts were refused: "),
        };
        let start = if scope == Scope::Session { "start the session with " } else { "" };
        let mut settings: Vec<Setting> = Vec::new();
        for setting in self.denials.iter().flat_map(|denial| denial.advised()) {
            if !settings.contains(&setting) {
                settings.push(setting);
            }
        }
        let more = match settings.len().saturating_sub(MOST_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        settings.truncate(MOST_NAMED);
        remedy![refused, start, settings, more, self.hosts_of_presets()]
    }

    /// Which of the hosts the presets stand for.
    fn hosts_of_presets(&self) -> String {
        let of: Vec<&Denial> =
            self.denials.iter().copied().filter(|denial| denial.preset.is_some()).collect();
        let mut hosts: Vec<&str> = of.iter().map(|denial| host(denial)).collect();
        hosts.dedup();
        let more = hosts.len().saturating_sub(MOST_NAMED);
        hosts.truncate(MOST_NAMED);
        match (hosts.is_empty(), more) {
            (true, _) => String::new(),
            (false, 0) => format!(" (or one by one: {})", hosts.join(", ")),
            (false, more) => format!(" (or one by one: {} and {more} more)", hosts.join(", ")),
        }
    }
}

fn host(denial: &Denial) -> &str {
    split_port(&denial.subject).0
}

/// Splits a destination of the proxy. A name that was only looked up has no port.
fn split_port(subject: &str) -> (&str, Option<&str>) {
    match subject.rsplit_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (subject, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unlisted(subject: &str) -> Denial {
        let (port, why) = if subject.contains(':') { ("", "") } else { (":PORT", ONLY_LOOKED_UP) };
        let allow = SettingKey::Allow.to(format!("{subject}{port}"));
        let (subject, reason) = (subject.to_owned(), NOT_LISTED.to_owned());
        Denial {
            preset: subject.contains("crates.io").then(|| "@cargo".to_owned()),
            remedy: Some(remedy![allow, WOULD_ALLOW, why]),
            is_unlisted: true,
            ..Denial::new(Protection::Proxy, subject, reason, Basis::Observed)
        }
    }

    /// As a front end with flags says it.
    fn with_flags(sentence: &Remedy) -> String {
        let flags = Wording::new(|settings| {
            let flag =
                |setting: &Setting| format!("--allow {}", setting.value.as_deref().unwrap_or_default());
            settings.iter().map(flag).collect::<Vec<_>>().join(" ")
        });
        sentence.in_words(flags).replace("kennel: ", "")
    }

    fn line(subjects: &[&str]) -> (Option<String>, usize) {
        let denials: Vec<Denial> = subjects.iter().map(|subject| unlisted(subject)).collect();
        let (hosts, others) = split_unlisted_hosts(&denials.iter().collect::<Vec<_>>());
        (hosts.map(|hosts| with_flags(&hosts.sentence(Scope::Command))), others.len())
    }

    #[test]
    fn several_hosts_are_one_line_with_each_once() {
        let one = |text: &str| (Some(text.to_owned()), 0);
        assert_eq!(line(&[]), (None, 0));
        assert_eq!(line(&["a.example:80"]), (None, 1), "a single one says why");
        assert_eq!(line(&["a.example", "a.example:80"]), (None, 1), "the name and its connection");
        assert_eq!(
            line(&["a.example:80", "b.example"]),
            one("2 hosts were refused: --allow a.example:80 --allow b.example:PORT")
        );
        assert_eq!(
            line(&["a.example:80", "a.example", "a.example:443"]),
            one("1 host was refused: --allow a.example:80 --allow a.example:443")
        );
        assert_eq!(
            line(&["[2001:db8::1]:443", "192.0.2.1:443"]),
            one("2 hosts were refused: --allow [2001:db8::1]:443 --allow 192.0.2.1:443")
        );
        let many: Vec<String> = (0..8).map(|n| format!("n{n}.example:443")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let (told, _) = line(&many);
        let said = told.expect("a line");
        assert!(said.starts_with("8 hosts were refused: --allow n0.example:443 "), "{said}");
        assert!(said.ends_with(" --allow n4.example:443 and 3 more"), "{said}");
    }

    #[test]
    fn settings_of_a_session_say_so() {
        let denials = [unlisted("a.example:80"), unlisted("b.example:80")];
        assert_eq!(
            with_flags(&denials[0].sentence(Scope::Session)),
            "denied: a.example:80: not on the list of what is allowed; a session started with --allow a.example:80 would allow it"
        );
        let (hosts, _) = split_unlisted_hosts(&denials.iter().collect::<Vec<_>>());
        assert_eq!(
            hosts.map(|hosts| with_flags(&hosts.sentence(Scope::Session))).as_deref(),
            Some("2 hosts were refused: start the session with --allow a.example:80 --allow b.example:80")
        );
    }

    #[test]
    fn what_says_more_keeps_its_line() {
        let mut metadata = unlisted("169.254.169.254:80");
        metadata.is_unlisted = false;
        metadata.reason = "resolves to 169.254.169.254, which is not a public address".to_owned();
        let denials = [unlisted("a.example:80"), metadata.clone(), unlisted("b.example:80")];
        let (hosts, others) = split_unlisted_hosts(&denials.iter().collect::<Vec<_>>());
        assert_eq!(hosts.map(|hosts| hosts.denials.len()), Some(2));
        assert_eq!(others, [&metadata]);
    }

    #[test]
    fn a_host_of_a_preset_offers_it_and_itself() {
        let one = unlisted("index.crates.io:443");
        assert_eq!(one.advised(), [SettingKey::Allow.to("@cargo")]);
        assert_eq!(
            with_flags(&one.sentence(Scope::Session)),
            "denied: index.crates.io:443: not on the list of what is allowed; a session started with --allow @cargo would allow it, or --allow \
             index.crates.io:443 that one host"
        );
        assert_eq!(
            line(&["index.crates.io:443", "a.example:80", "static.crates.io:443"]).0.as_deref(),
            Some(
                "3 hosts were refused: --allow @cargo --allow a.example:80 (or one by one: index.crates.io, \
                 static.crates.io)"
            )
        );
    }

    #[test]
    fn in_json_the_reason_has_the_words_and_the_remedy_its_settings() {
        let flags = Wording::new(|settings| format!("<{}>", Setting::in_policy(settings)));
        let of = |denial: Denial| {
            let Denial { reason, remedy, .. } = denial.worded(flags);
            (reason, remedy.map(|remedy| remedy.to_string()))
        };
        let (reason, remedy) = of(unlisted("a.example"));
        assert_eq!(
            reason,
            format!("{NOT_LISTED}; <network.allow a.example:PORT> would allow it{ONLY_LOOKED_UP}")
        );
        assert_eq!(remedy.as_deref(), Some("<network.allow a.example:PORT>"));
        let remove = remedy!["remove ", SettingKey::Deny.to("a:1"), " to allow it"];
        let (reason, remedy) = of(Denial { remedy: Some(remove), ..unlisted("a:1") });
        assert_eq!(
            (&*reason, remedy),
            (&*format!("{NOT_LISTED}; remove <network.deny a:1> to allow it"), None)
        );
    }
}
