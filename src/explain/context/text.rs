//! Finds error messages in text that programs write: the words of an errno and, near them, a path or a
//! destination. It knows no policy. It is careful: it misses a message rather than report a wrong one.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::path::PathBuf;

use nix::errno::Errno;

/// How many messages are kept: the last ones.
const MOST: usize = 64;

/// How much of a line is read, in bytes.
const LONGEST_LINE: usize = 8192;

/// How many lines above an error may name its path, as with `Caused by:`.
const NEAR: usize = 4;

/// The words of strerror(3) for errors that a wall may cause, in lower case, and what programs say instead.
/// Words that say less are explained only for a path that the sandbox does not show.
const WORDS: &[(&str, Errno)] = &[
    ("read-only file system", Errno::EROFS),
    ("readonly filesystem", Errno::EROFS),
    ("isn't writable", Errno::EROFS),
    ("not writable", Errno::EROFS),
    ("no such file or directory", Errno::ENOENT),
    ("device or resource busy", Errno::EBUSY),
    ("resource busy or locked", Errno::EBUSY),
    ("invalid cross-device link", Errno::EXDEV),
    ("cross-device link not permitted", Errno::EXDEV),
    ("no space left on device", Errno::ENOSPC),
    ("file too large", Errno::EFBIG),
    ("too many open files", Errno::EMFILE),
    ("cannot allocate memory", Errno::ENOMEM),
    ("memoryerror", Errno::ENOMEM),
    ("resource temporarily unavailable", Errno::EAGAIN),
    // dash and Python do not print the errno.
    ("cannot fork", Errno::EAGAIN),
    ("can't start new thread", Errno::EAGAIN),
    ("network is unreachable", Errno::ENETUNREACH),
    ("network unreachable", Errno::ENETUNREACH),
    ("permission denied", Errno::EACCES),
    // dash.
    ("no such file", Errno::ENOENT),
    ("directory nonexistent", Errno::ENOENT),
    ("can't cd to", Errno::ENOENT),
    ("not found", Errno::ENOENT),
    ("does not exist", Errno::ENOENT),
    ("nosuchfileexception", Errno::ENOENT),
    ("not a git repository", Errno::ENOENT),
    ("is not a valid editable requirement", Errno::ENOENT),
    ("cannot find", Errno::ENOENT),
    ("cannot open", Errno::ENOENT),
    ("can't open", Errno::ENOENT),
    ("could not open", Errno::ENOENT),
    ("couldn't open", Errno::ENOENT),
    ("unable to open", Errno::ENOENT),
    ("unable to access", Errno::ENOENT),
    ("could not access", Errno::ENOENT),
    ("is not a directory", Errno::ENOENT),
];

/// Parts of words about an attempt to write.
const WRITING: &[&str] = &["creat", "mkdir", "touch", "writ", "output", "temporary", "rename"];

/// Words for a failed name lookup, and whether the name follows them.
const LOOKUPS: &[(&str, bool)] = &[
    ("could not resolve host: ", true),
    ("couldn't resolve host ", true),
    ("unable to resolve host address ", true),
    ("getaddrinfo enotfound ", true),
    ("getaddrinfo eai_again ", true),
    ("failed to resolve ", true),
    ("unknownhostexception: ", true),
    ("dial tcp: lookup ", true),
    ("temporary failure in name resolution", false),
    ("name or service not known", false),
    ("failed to lookup address information", false),
];

/// An error message of the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Complaint {
    /// About a file or a resource.
    File(FileTrouble),
    /// About the network.
    Network(Trouble),
}

/// An error with a file or a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileTrouble {
    pub(crate) errno: Errno,
    /// Whether the message speaks of writing.
    pub(crate) writes: bool,
    /// The paths that the message may mean.
    pub(crate) named: Vec<Named>,
}

/// A path that a message may mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) path: PathBuf,
    /// Whether it is in the same line as the error.
    pub(crate) is_same_line: bool,
    /// Whether it is another reading of the one before, which may have spaces in it.
    pub(crate) is_alternative: bool,
}

/// A network error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// There is no route.
    Unreachable,
    /// A name lookup failed; the name, if the message has it.
    Name(Option<String>),
    /// A connection to a port failed with EACCES.
    Port(u16),
}

/// The error messages in a text, each once; the last ones if there are too many.
pub(crate) fn complaints(text: &[u8]) -> Vec<Complaint> {
    let mut found: VecDeque<Complaint> = VecDeque::new();
    let mut above: VecDeque<String> = VecDeque::new();
    for line in text.split(|&byte| byte == b'\n' || byte == b'\r') {
        let line = line.get(..LONGEST_LINE).unwrap_or(line);
        let line = without_colours(&String::from_utf8_lossy(line));
        if line.trim().is_empty() {
            continue;
        }
        if let Some(complaint) = complaint(&line, &above)
            && !found.contains(&complaint)
        {
            if found.len() == MOST {
                found.pop_front();
            }
            found.push_back(complaint);
        }
        if above.len() == NEAR {
            above.pop_front();
        }
        above.push_back(line);
    }
    found.into()
}

fn complaint(line: &str, above: &VecDeque<String>) -> Option<Complaint> {
    // Lower case of ASCII only: offsets in `lower` are then offsets in `line`.
    let lower = line.to_ascii_lowercase();
    for (words, is_followed) in LOOKUPS {
        if let Some(at) = lower.find(words) {
            let rest = line.get(at + words.len()..).unwrap_or_default();
            return Some(Complaint::Network(Trouble::Name(host(rest).filter(|_| *is_followed))));
        }
    }
    // The last match counts: a file name may contain such words.
    let found = WORDS.iter().filter_map(|(words, errno)| Some((lower.rfind(words)?, *words, *errno)));
    let (at, words, errno) = found.max_by_key(|(at, words, _)| (*at, words.len()))?;
    let (before, after) = (line.get(..at)?, line.get(at + words.len()..)?);
    match errno {
        Errno::ENETUNREACH => return Some(Complaint::Network(Trouble::Unreachable)),
        // The modes of files also cause EACCES. Only for a connection is it clear that a wall did.
        Errno::EACCES if !lower.contains("connect") => return None,
        Errno::EACCES => return port(before).map(|port| Complaint::Network(Trouble::Port(port))),
        _ => {}
    }
    let writes = WRITING.iter().any(|word| lower.contains(word));
    let mut named = same_line(before, after);
    if named.is_empty() && before.trim().is_empty() {
        let above = above.iter().rev().flat_map(|line| absolute_paths(line));
        named = above
            .take(1)
            .map(|path| Named { path: path.into(), is_same_line: false, is_alternative: false })
            .collect();
    }
    Some(Complaint::File(FileTrouble { errno, writes, named }))
}

/// The absolute paths in a line, the surest kind only.
fn absolute_paths(line: &str) -> Vec<String> {
    let in_quotes: Vec<String> = quoted(line).into_iter().filter(|path| path.starts_with('/')).collect();
    if in_quotes.is_empty() { line.split(": ").filter_map(absolute).collect() } else { in_quotes }
}

/// The paths in the line of an error, the surest kind only: in quotes, if one of them is absolute; absolute
/// before the error, the nearest first; absolute after it; the first segment of the line, which may be the
/// program; relative ones.
fn same_line(before: &str, after: &str) -> Vec<Named> {
    let in_quotes: Vec<String> = quoted(before).into_iter().chain(quoted(after)).collect();
    let mut in_quotes: Vec<String> = in_quotes.into_iter().filter(|path| is_path(path)).collect();
    in_quotes.truncate(4);
    let before = before.trim_end().trim_end_matches(['(', '[', ':', '-', ' ']);
    let segments: Vec<&str> = before.split(": ").collect();
    let (program, others) = segments.split_first().map_or(("", &[][..]), |(first, rest)| (*first, rest));
    if in_quotes.iter().any(|path| path.starts_with('/')) {
        return in_quotes.into_iter().map(|path| name(path, false)).collect();
    }
    // zsh: `no such file or directory: PATH`.
    let only_after = after.strip_prefix(": ").filter(|path| !path.contains(' '));
    let after = after.split(": ").flat_map(|segment| segment.split(", "));
    let absolute = others.iter().rev().copied().chain(after).chain([program]).find_map(readings);
    if let Some(readings) = absolute {
        return readings;
    }
    if in_quotes.is_empty() {
        // The first segment of a line is the name of the program.
        in_quotes.extend(others.iter().rev().copied().chain(only_after).find_map(relative));
    }
    in_quotes.into_iter().map(|path| name(path, false)).collect()
}

fn name(path: String, is_alternative: bool) -> Named {
    Named { path: path.into(), is_same_line: true, is_alternative }
}

/// The absolute paths of a segment. A path with spaces has no clear end: what is most likely comes first.
fn readings(segment: &str) -> Option<Vec<Named>> {
    let whole = absolute(segment)?;
    if let Some((one, other)) = whole.split_once(" /") {
        // Two names, as `rename /a /b`. In `/a /b/c`, the space may be part of one name.
        let one = one.trim_end_matches([' ', '-', '>', ',', '\'', '"']);
        if !one.contains(' ') {
            return Some(vec![name(one.to_owned(), false), name(first_word(&format!("/{other}")), false)]);
        }
    }
    let single = first_word(&whole);
    if single == whole {
        return Some(vec![name(whole, false)]);
    }
    let leading = segment.split(" /").next().unwrap_or_default().split_whitespace();
    let is_whole = segment.trim_start().starts_with('/')
        || leading.clone().count() <= 1
        || leading.clone().next().is_some_and(is_refusal)
        || whole.rsplit(' ').next().is_some_and(|last| last.contains('/'));
    Some(if is_whole { vec![name(whole, false), name(single, true)] } else { vec![name(single, false)] })
}

fn first_word(text: &str) -> String {
    text.split_whitespace().next().unwrap_or_default().trim_end_matches([',', ')', ';']).to_owned()
}

/// The first word of `cannot create PATH` and the like: the path ends with the segment.
fn is_refusal(word: &str) -> bool {
    ["cannot", "can't", "could", "couldn't", "failed", "unable"].contains(&word)
}

/// `x`, `cannot create x`.
fn relative(segment: &str) -> Option<String> {
    let words: Vec<&str> = segment.split_whitespace().collect();
    let last = match words.as_slice() {
        [word] => word,
        [first, _, .., last] if is_refusal(first) => last,
        _ => return None,
    };
    is_path(last).then(|| (*last).to_owned())
}

/// The rest of a segment from the first word that begins with a slash.
fn absolute(segment: &str) -> Option<String> {
    let segment = segment.trim().trim_end_matches([')', ']', '.', ',', ';']);
    let start = if segment.starts_with('/') {
        0
    } else {
        let before = segment.find(" /").map(|at| at + 1);
        before.or_else(|| segment.find("(/").map(|at| at + 1))?
    };
    // `PATH (No such file …`, `PATH (Errno::ENOENT)`, `PATH - open (2: No such file …`.
    let path = segment.get(start..)?.split(" (").next().unwrap_or_default();
    let path = path.split(" - ").next().unwrap_or_default();
    let path = path.trim_end_matches([')', ']', ',', ';', ' ']);
    is_path(path).then(|| path.to_owned())
}

/// All texts in quotes.
fn quoted(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some((at, open)) = rest.char_indices().find(|(_, c)| "'\"`\u{2018}\u{201c}".contains(*c)) {
        let close = match open {
            '\u{2018}' => '\u{2019}',
            '\u{201c}' => '\u{201d}',
            // Old GNU programs write `this'.
            '`' => '`',
            same => same,
        };
        // An apostrophe inside a word does not open a quote.
        let in_word =
            rest.get(..at).and_then(|text| text.chars().next_back()).is_some_and(char::is_alphanumeric);
        rest = rest.get(at + open.len_utf8()..).unwrap_or_default();
        if in_word {
            continue;
        }
        let Some(end) = rest.find(close).or_else(|| rest.find('\'').filter(|_| open == '`')) else { break };
        found.push(rest.get(..end).unwrap_or_default().to_owned());
        rest =
            rest.get(end..).and_then(|rest| rest.get(rest.chars().next()?.len_utf8()..)).unwrap_or_default();
    }
    found
}

/// Whether a text may be a path: absolute, or a plain name; not a sentence, an option, a URL or code.
fn is_path(text: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+@%~,=".contains(c);
    !text.is_empty()
        && text.len() < 4096
        && (text.starts_with('/')
            || (text.chars().all(is_plain)
                && !text.starts_with('-')
                && !text.bytes().all(|byte| byte.is_ascii_digit())))
}

/// The host name at the beginning of a text.
fn host(text: &str) -> Option<String> {
    let is_part = |c: &char| c.is_ascii_alphanumeric() || ".-_".contains(*c);
    let host: String =
        text.trim_start_matches(['\'', '"', ' ', '\u{2018}']).chars().take_while(is_part).take(253).collect();
    let host = host.trim_end_matches('.');
    (!host.is_empty()).then(|| host.to_ascii_lowercase())
}

/// The port of a connection in text like `port 25: ` or `10.0.0.1:25: `.
fn port(before: &str) -> Option<u16> {
    let before = before.trim_end().trim_end_matches([':', '(', ' ']);
    let words: Vec<&str> = before.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let number = |text: &str| text.trim_end_matches([':', ')', '.']).parse::<u16>().ok();
    let after_word = words.windows(2).rev().find(|pair| pair.first() == Some(&"port"));
    if let Some([_, port]) = after_word {
        return number(port);
    }
    let last = words.last()?;
    let (address, port) = last.rsplit_once(':')?;
    let is_address = address.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    number(port).filter(|_| is_address)
}

/// Removes terminal colour sequences.
fn without_colours(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        if c != '\u{1b}' {
            plain.push(c);
        } else if rest.next_if_eq(&'[').is_some() {
            rest.by_ref().find(|c| ('\u{40}'..='\u{7e}').contains(c));
        }
    }
    plain
}
