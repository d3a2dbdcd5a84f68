//! Denials: what the sandbox refused, and the texts for people about it.

use std::collections::HashSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::report::enforcement::{FlagsOf, Protection};
use crate::report::escape::{harmless, is_harmless};

/// Something that the sandbox blocked or moved aside, or kept for you to check ([`Basis::Kept`]).
///
/// Connections and protected paths are always reported, the rest only with [`Policy::explain`], which reads the
/// command's output and finds only what it says in English.
///
/// [`Policy::explain`]: crate::policy::Policy::explain
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// The protection that refused it.
    pub protection: Protection,
    /// What was refused: a path, a destination, a system call. One line, without control characters.
    pub subject: String,
    /// Why, and what Kennel did about it.
    pub reason: String,
    /// How Kennel knows.
    pub basis: Basis,
    /// The flag of `kennel run` or `kennel session start` that would allow it, if there is one. `reason` contains it, too.
    /// Unknown parts are in capitals: `--allow HOST:PORT`.
    pub remedy: Option<String>,
    /// The preset that has the host, such as `@cargo`: it would allow the other hosts of that registry too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// Whether package managers ask this host for newer versions of themselves. If the command succeeded, it did not need it.
    #[serde(skip)]
    pub(crate) is_update_check: bool,
}

impl Denial {
    /// A denial that no flag changes.
    pub(crate) fn new(protection: Protection, subject: String, reason: String, basis: Basis) -> Self {
        Self { protection, subject, reason, basis, remedy: None, preset: None, is_update_check: false }
    }

    /// The line for people. Escaped.
    #[must_use]
    pub fn line(&self) -> String {
        self.line_of(FlagsOf::Command)
    }

    /// The line for people, with flags as `kennel run` or `kennel session start` takes them. The reason names the wall.
    pub(crate) fn line_of(&self, flags_of: FlagsOf) -> String {
        let verb = match self.basis {
            Basis::Observed | Basis::Derived => "denied",
            Basis::Possible => "possibly denied",
            Basis::Kept => "note",
        };
        harmless(&format!("kennel: {verb}: {}: {}", self.subject, self.reason_with(flags_of)))
    }

    /// `reason`, with the flag as the one who reads it can pass it.
    pub(crate) fn reason_with(&self, flags_of: FlagsOf) -> String {
        let before = flags_of.words();
        match (&self.remedy, self.flag_of_preset()) {
            (Some(flag), Some(preset)) => self.reason.replacen(
                &format!("; {flag} {WOULD_ALLOW}"),
                &format!("; {before}{preset} {WOULD_ALLOW}, or {flag} that one host"),
                1,
            ),
            (Some(flag), None) => self.reason.replacen(&format!("; {flag}"), &format!("; {before}{flag}"), 1),
            (None, _) => self.reason.clone(),
        }
    }

    /// The flag that would allow the preset of the host.
    fn flag_of_preset(&self) -> Option<String> {
        let (before, _) = self.remedy.as_ref()?.rsplit_once(' ')?;
        Some(format!("{before} {}", self.preset.as_ref()?))
    }

    /// The flag to advise: that of the preset, or else `remedy`.
    pub(crate) fn advised_flag(&self) -> Option<String> {
        self.flag_of_preset().or_else(|| self.remedy.clone())
    }
}

/// How Kennel knows that something was refused.
///
/// ```
/// use kennel::Basis;
///
/// assert!(Basis::Observed.is_certain() && Basis::Derived.is_certain() && !Basis::Possible.is_certain());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Basis {
    /// Kennel refused it, or the kernel reported it.
    Observed,
    /// The command's output names it with an error, and under this policy no other result is possible. Kennel knows only
    /// from the output that the command tried.
    Derived,
    /// The command's output names it with an error that this policy causes there. Something else may have caused it too.
    Possible,
    /// Nothing was refused: the command created something at a protected path, and Kennel kept it because its directory is
    /// new, too.
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

/// The flag that lets commands change what git obeys in repositories.
pub(crate) const TRUST_GIT: &str = "--git trust";

/// What follows a flag that would change a refusal.
pub(crate) const WOULD_ALLOW: &str = "would allow it";

/// A reason, followed by the flag that would change it.
pub(crate) fn advice(reason: String, flag: Option<&str>, would: &str) -> String {
    match flag {
        Some(flag) => format!("{reason}; {flag} {would}"),
        None => reason,
    }
}

/// A path for people: one line, with unsafe characters replaced by `?`, and in quotes if its end would not be clear.
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

/// Why a flag names no port.
pub(crate) const ONLY_LOOKED_UP: &str = " (the command only looked up the name, which tells no port)";

/// The most flags, and the most hosts of a preset, in one line.
const MOST_FLAGS: usize = 5;

/// Several destinations that no rule allows, each once.
pub(crate) struct UnlistedHosts<'d> {
    denials: Vec<&'d Denial>,
}

/// Takes the hosts that no rule allows out of `denials`, if there are several. The second result is what has a line of its
/// own.
pub(crate) fn apart<'d>(denials: &[&'d Denial]) -> (Option<UnlistedHosts<'d>>, Vec<&'d Denial>) {
    let is_connection = |denial: &Denial| split_port(&denial.subject).1.is_some();
    let all: Vec<&Denial> = denials.iter().copied().filter(|denial| is_unlisted(denial)).collect();
    // A connection names the port that a program without proxy support only asks for next.
    let is_said_better = |denial: &&Denial| {
        let same_host = |other: &&Denial| is_connection(other) && host(other) == host(denial);
        !is_connection(denial) && all.iter().any(same_host)
    };
    let together: Vec<_> = all.iter().copied().filter(|denial| !is_said_better(denial)).collect();
    let has_own_line =
        |denial: &&Denial| !is_unlisted(denial) || together.len() < 2 && !is_said_better(denial);
    let others = denials.iter().copied().filter(has_own_line).collect();
    ((together.len() > 1).then_some(UnlistedHosts { denials: together }), others)
}

impl UnlistedHosts<'_> {
    /// The line for people.
    pub(crate) fn line(&self, flags_of: FlagsOf) -> String {
        let hosts: HashSet<&str> = self.denials.iter().map(|denial| host(denial)).collect();
        let mut line = match hosts.len() {
            1 => "1 host was refused:".to_owned(),
            count => format!("{count} hosts were refused:"),
        };
        if flags_of == FlagsOf::Session {
            line += " start the session with";
        }
        let mut flags: Vec<String> = Vec::new();
        for flag in self.denials.iter().filter_map(|denial| denial.advised_flag()) {
            if !flags.contains(&flag) {
                flags.push(flag);
            }
        }
        line.extend(flags.iter().take(MOST_FLAGS).map(|flag| format!(" {flag}")));
        match flags.len().saturating_sub(MOST_FLAGS) {
            0 => {}
            more => line += &format!(" and {more} more"),
        }
        line + &self.hosts_of_presets()
    }

    /// Which of the hosts the presets stand for.
    fn hosts_of_presets(&self) -> String {
        let of: Vec<&Denial> =
            self.denials.iter().copied().filter(|denial| denial.preset.is_some()).collect();
        let mut hosts: Vec<&str> = of.iter().map(|denial| host(denial)).collect();
        hosts.dedup();
        let more = hosts.len().saturating_sub(MOST_FLAGS);
        hosts.truncate(MOST_FLAGS);
        match (hosts.is_empty(), more) {
            (true, _) => String::new(),
            (false, 0) => format!(" (or one by one: {})", hosts.join(", ")),
            (false, more) => format!(" (or one by one: {} and {more} more)", hosts.join(", ")),
        }
    }
}

/// Whether the list merely lacks the destination, so that a flag would allow it.
fn is_unlisted(denial: &Denial) -> bool {
    let flag = denial.remedy.as_deref().filter(|_| denial.protection == Protection::Proxy);
    let reason = denial.reason.strip_suffix(ONLY_LOOKED_UP).unwrap_or(&denial.reason);
    flag.is_some() && reason == advice(NOT_LISTED.to_owned(), flag, WOULD_ALLOW)
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
        let flag = format!("--allow {subject}{port}");
        Denial {
            protection: Protection::Proxy,
            subject: subject.to_owned(),
            reason: advice(NOT_LISTED.to_owned(), Some(&flag), WOULD_ALLOW) + why,
            basis: Basis::Observed,
            remedy: Some(flag),
            preset: subject.contains("crates.io").then(|| "@cargo".to_owned()),
            is_update_check: false,
        }
    }

    fn line(subjects: &[&str]) -> (Option<String>, usize) {
        let denials: Vec<Denial> = subjects.iter().map(|subject| unlisted(subject)).collect();
        let (hosts, others) = apart(&denials.iter().collect::<Vec<_>>());
        (hosts.map(|hosts| hosts.line(FlagsOf::Command)), others.len())
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
        let (said, _) = line(&many);
        let said = said.expect("a line");
        assert!(said.starts_with("8 hosts were refused: --allow n0.example:443 "), "{said}");
        assert!(said.ends_with(" --allow n4.example:443 and 3 more"), "{said}");
    }

    #[test]
    fn flags_of_a_session_say_so() {
        let denials = [unlisted("a.example:80"), unlisted("b.example:80")];
        assert_eq!(
            denials[0].reason_with(FlagsOf::Session),
            "not on the list of what is allowed; a session started with --allow a.example:80 would allow it"
        );
        let (hosts, _) = apart(&denials.iter().collect::<Vec<_>>());
        assert_eq!(
            hosts.map(|hosts| hosts.line(FlagsOf::Session)).as_deref(),
            Some("2 hosts were refused: start the session with --allow a.example:80 --allow b.example:80")
        );
    }

    #[test]
    fn what_says_more_keeps_its_line() {
        let mut metadata = unlisted("169.254.169.254:80");
        metadata.reason = "resolves to 169.254.169.254, which is not a public address".to_owned();
        let denials = [unlisted("a.example:80"), metadata.clone(), unlisted("b.example:80")];
        let (hosts, others) = apart(&denials.iter().collect::<Vec<_>>());
        assert_eq!(hosts.map(|hosts| hosts.denials.len()), Some(2));
        assert_eq!(others, [&metadata]);
    }

    #[test]
    fn a_host_of_a_preset_offers_it_and_itself() {
        let one = unlisted("index.crates.io:443");
        assert_eq!(one.advised_flag().as_deref(), Some("--allow @cargo"));
        assert_eq!(
            one.reason_with(FlagsOf::Session),
            "not on the list of what is allowed; a session started with --allow @cargo would allow it, or --allow \
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
}
