//! What the caller typed, as the shell of `sh -c` would read it: programs and their arguments.
//!
//! It is only good for hints. It expands no variable and no pattern: words with them are left out.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// How many words are read.
const MOST: usize = 256;

/// Shells, which read a script from the argument after `-c`.
const SHELLS: &[&str] = &["sh", "bash", "dash", "zsh", "ksh", "ash"];

/// A program and its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Typed {
    pub(crate) words: Vec<String>,
    /// Files that the shell opens for writing.
    pub(crate) outputs: Vec<String>,
    /// Whether the shell does not wait for it.
    pub(crate) is_background: bool,
}

impl Typed {
    /// The last part of the program's path.
    pub(crate) fn program(&self) -> &str {
        let first = self.words.iter().find(|word| !is_assignment(word));
        first.map_or("", |word| word.rsplit('/').next().unwrap_or(word))
    }

    /// The words after the program.
    pub(crate) fn arguments(&self) -> impl DoubleEndedIterator<Item = &str> + Clone {
        let at = self.words.iter().position(|word| !is_assignment(word)).unwrap_or(self.words.len());
        self.words.iter().skip(at + 1).map(String::as_str)
    }
}

/// `NAME=value` before a program.
fn is_assignment(word: &str) -> bool {
    let name = word.split_once('=').map(|(name, _)| name);
    name.is_some_and(|name| !name.is_empty() && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric()))
}

/// The commands of a command line: the one that Kennel starts and, if that is a shell with `-c`, those of the
/// script.
pub(crate) fn typed(program: &OsStr, arguments: &[OsString]) -> Vec<Typed> {
    let words = std::iter::once(program).chain(arguments.iter().map(OsString::as_os_str)).take(MOST);
    let words: Vec<String> = words.filter_map(OsStr::to_str).map(str::to_owned).collect();
    let line = Typed { words, ..Typed::default() };
    let is_shell = SHELLS.contains(&line.program());
    let is_command = |word: &&str| word.starts_with('-') && !word.starts_with("--") && word.ends_with('c');
    let mut rest = line.arguments().skip_while(|word| !is_command(word));
    let script = rest.next().and_then(|_| rest.next()).filter(|_| is_shell).map(script_of);
    drop(rest);
    script.unwrap_or_else(|| vec![line])
}

/// Splits a script at the operators of the shell.
fn script_of(script: &str) -> Vec<Typed> {
    let mut reader = Reader::default();
    let mut chars = script.chars().peekable();
    while let Some(c) = chars.next() {
        match (reader.quote, c) {
            (Some(quote), _) if c == quote => reader.quote = None,
            (None, '\'' | '"') => {
                reader.quote = Some(c);
                reader.is_word = true;
            }
            (Some('"') | None, '\\') => reader.push(chars.next().unwrap_or(' ')),
            (Some('"') | None, '$' | '`') | (None, '*' | '?' | '[') => reader.spoil(),
            (None, '>') => {
                // A number or `&` before belongs to the operator.
                reader.drop_number();
                while chars.next_if(|next| ">|&".contains(*next)).is_some() {}
                reader.begin_output();
            }
            (None, '&') if chars.peek() == Some(&'>') => {}
            (None, '<') => reader.end_word(),
            (None, '&') => {
                let is_and = chars.next_if_eq(&'&').is_some();
                reader.end_command(!is_and);
            }
            (None, ';' | '|' | '\n' | '(' | ')') => reader.end_command(false),
            (None, _) if c.is_whitespace() => reader.end_word(),
            _ => reader.push(c),
        }
    }
    reader.end_command(false);
    reader.all
}

#[derive(Default)]
struct Reader {
    all: Vec<Typed>,
    command: Typed,
    word: String,
    quote: Option<char>,
    is_word: bool,
    /// Whether the word holds what only a shell can expand.
    is_spoilt: bool,
    is_output: bool,
    count: usize,
}

impl Reader {
    fn push(&mut self, c: char) {
        self.is_word = true;
        self.word.push(c);
    }

    fn spoil(&mut self) {
        (self.is_word, self.is_spoilt) = (true, true);
    }

    fn drop_number(&mut self) {
        if self.word.chars().all(|c| c.is_ascii_digit()) {
            (self.word, self.is_word) = (String::new(), false);
        }
    }

    fn begin_output(&mut self) {
        self.end_word();
        self.is_output = true;
    }

    fn end_word(&mut self) {
        let word = std::mem::take(&mut self.word);
        if !self.is_word {
            return;
        }
        self.is_word = false;
        if !std::mem::take(&mut self.is_spoilt) && self.count < MOST {
            self.count += 1;
            let place = if self.is_output { &mut self.command.outputs } else { &mut self.command.words };
            place.push(word);
        }
        self.is_output = false;
    }

    fn end_command(&mut self, is_background: bool) {
        self.end_word();
        self.is_output = false;
        let command = std::mem::take(&mut self.command);
        if command != Typed::default() {
            self.all.push(Typed { is_background, ..command });
        }
    }
}

/// The paths that a word may name: `PATH`, `--flag=PATH`, `-IPATH`, `@PATH`, `PATH:PATH`.
pub(crate) fn paths<'w>(word: &'w str, home: &Path) -> Vec<std::path::PathBuf> {
    let is_url = |text: &str| text.contains("://");
    let word: &'w str = match word.split_once('=') {
        Some((name, value)) if !name.contains('/') => value,
        _ if word.starts_with("--") => return Vec::new(),
        _ => match word.strip_prefix('-') {
            Some(rest) => {
                rest.find(['/', '.']).filter(|at| *at <= 1).and_then(|at| rest.get(at..)).unwrap_or_default()
            }
            None => word.strip_prefix('@').unwrap_or(word),
        },
    };
    if word.is_empty() || is_url(word) {
        return Vec::new();
    }
    let parts = word.split(':').filter(|part| !part.is_empty());
    let of_home = |part: &str| match part.strip_prefix("~/") {
        Some(rest) => home.join(rest),
        None if part == "~" => home.to_owned(),
        None => part.into(),
    };
    if word.starts_with('/') { parts.map(of_home).collect() } else { vec![of_home(word)] }
}

/// The host and port that a word names: `https://HOST/…`, `user@HOST:path`.
pub(crate) fn destination(word: &str) -> Option<(&str, u16)> {
    let (scheme, rest) = match word.split_once("://") {
        Some((scheme, rest)) => (scheme.rsplit('=').next().unwrap_or(scheme), rest),
        None => ("ssh", word.split_once('@').filter(|(user, _)| is_name(user)).map(|(_, rest)| rest)?),
    };
    let is_url = word.contains("://");
    let end = if is_url { &['/', '?', '#'][..] } else { &[':'][..] };
    let (authority, _) = rest.split_once(end).or((is_url).then_some((rest, "")))?;
    let authority = authority.rsplit('@').next().unwrap_or(authority);
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()?),
        None => (authority, default_port(scheme.strip_prefix("git+").unwrap_or(scheme))?),
    };
    (is_name(host) && host != "localhost" && !host.starts_with("127.")).then_some((host, port))
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
}

fn default_port(scheme: &str) -> Option<u16> {
    Some(match scheme {
        "https" | "wss" => 443,
        "http" | "ws" => 80,
        "ssh" => 22,
        "git" => 9418,
        "ftp" => 21,
        "postgres" | "postgresql" => 5432,
        "mysql" => 3306,
        "redis" => 6379,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn script(text: &str) -> Vec<Typed> {
        typed("/bin/sh".as_ref(), &["-ec".into(), text.into()])
    }

    fn command(words: &[&str], outputs: &[&str], is_background: bool) -> Typed {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Typed { words: owned(words), outputs: owned(outputs), is_background }
    }

    #[test]
    fn a_script_is_read_as_the_shell_reads_it() {
        for (text, expected) in [
            ("cat /srv/x", vec![command(&["cat", "/srv/x"], &[], false)]),
            ("cat '/srv/a b'\"c\"", vec![command(&["cat", "/srv/a bc"], &[], false)]),
            ("echo > /srv/x 2>&1", vec![command(&["echo"], &["/srv/x", "1"], false)]),
            ("echo x>>/srv/x", vec![command(&["echo", "x"], &["/srv/x"], false)]),
            ("a && b | c; d", ["a", "b", "c", "d"].map(|word| command(&[word], &[], false)).into()),
            ("server & sleep 1", vec![command(&["server"], &[], true), command(&["sleep", "1"], &[], false)]),
            ("a &> f", vec![command(&["a"], &["f"], false)]),
            ("cat $X /srv/*.txt \"$Y\"/z '$Z'", vec![command(&["cat", "$Z"], &[], false)]),
            ("cat < /srv/x", vec![command(&["cat", "/srv/x"], &[], false)]),
        ] {
            assert_eq!(script(text), expected, "{text}");
        }
        let words = |program: &str, words: &[&str]| {
            typed(program.as_ref(), &words.iter().map(Into::into).collect::<Vec<_>>())
        };
        assert_eq!(words("cat", &["a b"]), [command(&["cat", "a b"], &[], false)]);
        assert_eq!(words("python3", &["-c", "a b"]), [command(&["python3", "-c", "a b"], &[], false)]);
        let typed = &words("sh", &["-c", "A=1 B=2 /bin/cp x y"])[0];
        assert_eq!((typed.program(), typed.arguments().collect::<Vec<_>>()), ("cp", vec!["x", "y"]));
    }

    #[test]
    fn any_script_is_read() {
        for text in ["", "'", "\"", "\\", ">", "> ", "&", "&&&", "a >", "$", "`", "\"\\", "\u{1f980}'"] {
            script(text);
        }
        assert!(script(&"a ".repeat(100_000))[0].words.len() == MOST);
    }

    #[test]
    fn words_name_paths() {
        for (word, expected) in [
            ("/srv/x", &["/srv/x"][..]),
            ("../x", &["../x"]),
            ("--file=/srv/x", &["/srv/x"]),
            ("of=/srv/x", &["/srv/x"]),
            ("-I/srv/include", &["/srv/include"]),
            ("-C../x", &["../x"]),
            ("@/srv/body", &["/srv/body"]),
            ("/srv/a:/srv/b", &["/srv/a", "/srv/b"]),
            ("~/x", &["/home/me/x"]),
            ("host:/srv/x", &["host:/srv/x"]),
            ("-rf", &[]),
            ("--flag", &[]),
            ("https://example.org/srv/x", &[]),
            ("--url=https://example.org/srv/x", &[]),
        ] {
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(paths(word, Path::new("/home/me")), expected, "{word}");
        }
    }

    #[test]
    fn words_name_destinations() {
        for (word, expected) in [
            ("https://example.org/x", Some(("example.org", 443))),
            ("http://example.org", Some(("example.org", 80))),
            ("https://me:word@example.org:8443/x", Some(("example.org", 8443))),
            ("--url=https://example.org?x", Some(("example.org", 443))),
            ("git+https://example.org/x", Some(("example.org", 443))),
            ("git@example.org:me/x", Some(("example.org", 22))),
            ("postgres://me@db.example.org/x", Some(("db.example.org", 5432))),
            ("http://localhost:80/", None),
            ("http://127.0.0.1/", None),
            ("http://[::1]/", None),
            ("file:///srv/x", None),
            ("me@example.org", None),
            ("example.org", None),
            ("pkg@1.0:x", Some(("1.0", 22))),
        ] {
            assert_eq!(destination(word), expected, "{word}");
        }
    }
}
