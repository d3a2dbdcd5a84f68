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
}

impl Denial {
    /// The line for people. Escaped.
    #[must_use]
    pub fn line(&self) -> String {
        self.line_of(FlagsOf::Command)
    }

    /// The line for people, with flags as `kennel run` or `kennel session start` takes them.
    pub(crate) fn line_of(&self, flags_of: FlagsOf) -> String {
        let verb = match self.basis {
            Basis::Observed | Basis::Derived => "denied by ",
            Basis::Possible => "possibly denied by ",
            Basis::Kept => "note: ",
        };
        let Self { protection, subject, .. } = self;
        harmless(&format!("kennel: {verb}{protection}: {subject}: {}", self.reason_with(flags_of)))
    }

    /// `reason`, with the flag as the one who reads it can pass it.
    pub(crate) fn reason_with(&self, flags_of: FlagsOf) -> String {
        match &self.remedy {
            Some(flag) => {
                self.reason.replacen(&format!("; {flag}"), &format!("; {}{flag}", flags_of.words()), 1)
            }
            None => self.reason.clone(),
        }
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

/// The most flags in one line.
const MOST_FLAGS: usize = 5;

/// Several destinations that no rule allows, each once.
pub(crate) struct UnlistedHosts<'d> {
    /// Host and flag.
    flags: Vec<(&'d str, &'d str)>,
}

/// Takes the hosts that no rule allows out of `denials`, if there are several. The second result is what has a line of its
/// own.
pub(crate) fn apart(denials: &[Denial]) -> (Option<UnlistedHosts<'_>>, Vec<&Denial>) {
    let is_connection = |denial: &Denial| split_port(&denial.subject).1.is_some();
    let all: Vec<&Denial> = denials.iter().filter(|denial| unlisted(denial).is_some()).collect();
    // A connection names the port that a program without proxy support only asks for next.
    let is_said_better = |denial: &&Denial| {
        let same_host = |other: &&Denial| is_connection(other) && host(other) == host(denial);
        !is_connection(denial) && all.iter().any(same_host)
    };
    let flags: Vec<_> = all
        .iter()
        .filter(|denial| !is_said_better(denial))
        .filter_map(|denial| Some((host(denial), unlisted(denial)?)))
        .collect();
    let has_own_line = |denial: &&Denial| match unlisted(denial) {
        Some(_) => flags.len() < 2 && !is_said_better(denial),
        None => true,
    };
    let others = denials.iter().filter(has_own_line).collect();
    ((flags.len() > 1).then_some(UnlistedHosts { flags }), others)
}

impl UnlistedHosts<'_> {
    /// The line for people.
    pub(crate) fn line(&self, flags_of: FlagsOf) -> String {
        let hosts: HashSet<&str> = self.flags.iter().map(|(host, _)| *host).collect();
        let mut line = match hosts.len() {
            1 => "1 host was refused:".to_owned(),
            count => format!("{count} hosts were refused:"),
        };
        if flags_of == FlagsOf::Session {
            line += " start the session with";
        }
        for (_, flag) in self.flags.iter().take(MOST_FLAGS) {
            line += &format!(" {flag}");
        }
        match self.flags.len().saturating_sub(MOST_FLAGS) {
            0 => line,
            more => line + &format!(" and {more} more"),
        }
    }
}

/// The flag that would allow the destination, if it is one that the list merely lacks.
fn unlisted(denial: &Denial) -> Option<&str> {
    let flag = denial.remedy.as_deref().filter(|_| denial.protection == Protection::Proxy)?;
    let reason = denial.reason.strip_suffix(ONLY_LOOKED_UP).unwrap_or(&denial.reason);
    let says_more = reason != advice(NOT_LISTED.to_owned(), Some(flag), "would allow it");
    (!says_more).then_some(flag)
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
            reason: advice(NOT_LISTED.to_owned(), Some(&flag), "would allow it") + why,
            basis: Basis::Observed,
            remedy: Some(flag),
        }
    }

    fn line(subjects: &[&str]) -> (Option<String>, usize) {
        let denials: Vec<Denial> = subjects.iter().map(|subject| unlisted(subject)).collect();
        let (hosts, others) = apart(&denials);
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
        let (hosts, _) = apart(&denials);
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
        let (hosts, others) = apart(&denials);
        assert_eq!(hosts.map(|hosts| hosts.flags.len()), Some(2));
        assert_eq!(others, [&metadata]);
    }
}
