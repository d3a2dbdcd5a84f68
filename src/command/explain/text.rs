//! Finds error messages in text that programs write: the words of an errno and, near them, a path or a destination. It knows
//! no policy. It is careful: it misses a message rather than report a wrong one.

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

/// The words of strerror(3) for errors that a wall may cause, in lower case. Some runtimes have their own words.
const WORDS: &[(&str, Errno)] = &[
    ("read-only file system", Errno::EROFS),
    ("readonly filesystem", Errno::EROFS),
    ("no such file or directory", Errno::ENOENT),
    ("device or resource busy", Errno::EBUSY),
    ("resource busy or locked", Errno::EBUSY),
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
];

/// Words for a failed name lookup, and whether the name follows them.
const LOOKUPS: &[(&str, bool)] = &[
    ("could not resolve host: ", true),
    ("couldn't resolve host ", true),
    ("getaddrinfo enotfound ", true),
    ("getaddrinfo eai_again ", true),
    ("temporary failure in name resolution", false),
    ("name or service not known", false),
    ("failed to lookup address information", false),
];

/// An error message of the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Complaint {
    /// About a file or a resource, with the paths that the message may mean.
    File(Errno, Vec<Named>),
    /// About the network.
    Network(Trouble),
}

/// A path that a message may mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) path: PathBuf,
    /// Whether it is in the same line as the error.
    pub(crate) is_same_line: bool,
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
    let (at, words, errno) = found.max_by_key(|(at, ..)| *at)?;
    let (before, after) = (line.get(..at)?, line.get(at + words.len()..)?);
    match errno {
        Errno::ENETUNREACH => return Some(Complaint::Network(Trouble::Unreachable)),
        // The modes of files also cause EACCES. Only for a connection is it clear that a wall did.
        Errno::EACCES if !lower.contains("connect") => return None,
        Errno::EACCES => return port(before).map(|port| Complaint::Network(Trouble::Port(port))),
        _ => {}
    }
    let mut named = same_line(before, after);
    if named.is_empty() && before.trim().is_empty() {
        let quoted = above.iter().rev().flat_map(|line| quoted(line));
        named = quoted.filter(|path| path.starts_with('/')).take(1).map(|path| name(&path, false)).collect();
    }
    Some(Complaint::File(errno, named))
}

/// The paths in the line of an error, the surest kind only: in quotes; else before the error, the nearest first; else after it.
fn same_line(before: &str, after: &str) -> Vec<Named> {
    let in_quotes: Vec<String> = quoted(before).into_iter().chain(quoted(after)).collect();
    let mut paths: Vec<String> = in_quotes.into_iter().filter(|path| is_path(path)).collect();
    if paths.is_empty() {
        paths = unquoted_before(before);
    }
    if paths.is_empty() {
        let segments = after.split(": ").flat_map(|segment| segment.split(", "));
        paths = segments.filter_map(absolute).take(1).collect();
    }
    paths.truncate(4);
    paths.iter().map(|path| name(path, true)).collect()
}

fn name(path: &str, is_same_line: bool) -> Named {
    Named { path: path.into(), is_same_line }
}

/// `prog: PATH: words`, `prog: 1: cannot create PATH: words`, `open PATH: words`.
fn unquoted_before(before: &str) -> Vec<String> {
    let before = before.trim_end().trim_end_matches(['(', '[', ':', '-', ' ']);
    let segments: Vec<&str> = before.split(": ").collect();
    for (index, segment) in segments.iter().enumerate().rev() {
        if let Some(path) = absolute(segment) {
            let single = path.split_whitespace().next().filter(|first| first.len() < path.len());
            return single.map(str::to_owned).into_iter().chain([path]).rev().collect();
        }
        let words: Vec<&str> = segment.split_whitespace().collect();
        let is_sentence =
            matches!(words.first(), Some(&("cannot" | "can't" | "could" | "failed" | "unable")));
        match words.as_slice() {
            // The first segment of a line is the name of the program.
            [word] if index > 0 && is_path(word) => return vec![(*word).to_owned()],
            [_, _, .., last] if is_sentence && is_path(last) => return vec![(*last).to_owned()],
            _ => {}
        }
    }
    Vec::new()
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
    segment.get(start..).filter(|path| is_path(path)).map(str::to_owned)
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

/// Whether a text may be a path: not a sentence, an option or a URL.
fn is_path(text: &str) -> bool {
    let is_short = !text.is_empty() && text.len() < 4096;
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let is_url = !text.starts_with('/') && text.contains("://");
    is_short
        && !is_number
        && !is_url
        && !text.starts_with('-')
        && (text.starts_with('/') || !text.contains(' '))
}

/// The host name at the beginning of a text.
fn host(text: &str) -> Option<String> {
    let is_part = |c: &char| c.is_ascii_alphanumeric() || ".-_".contains(*c);
    let host: String =
        text.trim_start_matches(['\'', '"', ' ']).chars().take_while(is_part).take(253).collect();
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
