//! Patterns of paths, as in .gitignore: `*.key`, `**/.env`, `sub/**`. Nothing here looks up a path.
//!
//! A path that contains `*`, `?`, `[` or `{` is a pattern. Whether it exists as it is written does not
//! matter, because a command could make it exist. Patterns are matched one name at a time, so that a search
//! enters only directories in which something can match.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};

/// Most parts of a pattern: each is one bit of [`Progress`], and the end is one more.
const MOST_PARTS: usize = 63;

/// No wildcard matches this name: what git keeps there are no files of the workspace.
const GIT: &[u8] = b".git";

/// A pattern, relative to the directory where a search starts. A match stands for everything below it, too.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
enum Part {
    /// `**`: any number of directories, also none.
    Directories,
    /// A name without wildcards.
    Name(Vec<u8>),
    Wildcards(GlobMatcher),
}

/// How far the names of a path match a pattern: one bit for each part that may match the next name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress(u64);

impl Progress {
    /// Whether nothing below can match any more.
    pub(crate) fn is_over(self) -> bool {
        self.0 == 0
    }
}

/// Whether a path of the policy is a pattern.
pub(crate) fn is_pattern(path: &Path) -> bool {
    has_wildcards(path.as_os_str().as_bytes())
}

fn has_wildcards(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b'*' | b'?' | b'[' | b'{'))
}

/// Whether a pattern means a name at any depth of the workspace: it has one part.
pub(crate) fn is_name(path: &Path) -> bool {
    is_pattern(path) && path.components().count() == 1 && path.is_relative()
}

/// `path` below `directory`, where `path` may be a pattern and `directory` is none.
pub(crate) fn join(directory: &Path, path: &Path) -> PathBuf {
    match (is_pattern(path) && path.is_relative(), directory.to_str()) {
        (true, Some(text)) if is_pattern(directory) => Path::new(&globset::escape(text)).join(path),
        _ => directory.join(path),
    }
}

impl Pattern {
    /// Reads a path of `protect` in a workspace, if it is a pattern.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn of_protect(path: &Path, workspace: &Path) -> Option<Result<Self, String>> {
        let below = path.strip_prefix(workspace).ok().filter(|_| path.is_absolute());
        match below {
            Some(below) => is_pattern(below).then(|| Self::after(Vec::new(), below)),
            None => is_pattern(path).then(|| Self::read(path)),
        }
    }

    /// Reads a relative pattern. One without a slash matches at any depth; a slash at the end does not count.
    ///
    /// # Errors
    /// Why it is no pattern, as the end of a sentence about it.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let start = if is_name(path) { vec![Part::Directories] } else { Vec::new() };
        Self::after(start, path)
    }

    /// Splits an absolute pattern into the directory where its search starts, which has no wildcards, and the
    /// rest.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn read_absolute(path: &Path) -> Result<(PathBuf, Self), String> {
        let mut parts: Vec<Component<'_>> = path.components().collect();
        while parts.pop_if(|last| last.as_os_str() == "**").is_some() {}
        let is_plain = |part: &&Component<'_>| !has_wildcards(part.as_os_str().as_bytes());
        // The last part is what the pattern names, also if it has no wildcards.
        let most = parts.len().saturating_sub(1);
        let (base, rest) = parts.split_at(parts.iter().take(most).take_while(is_plain).count());
        Ok((base.iter().collect(), Self::after(Vec::new(), &rest.iter().collect::<PathBuf>())?))
    }

    fn after(mut parts: Vec<Part>, path: &Path) -> Result<Self, String> {
        for part in path.components() {
            match part {
                Component::Normal(name) if name == "**" => {
                    if !matches!(parts.last(), Some(Part::Directories)) {
                        parts.push(Part::Directories);
                    }
                }
                Component::Normal(name) => parts.push(Part::read(name)?),
                Component::CurDir => {}
                _ => return Err("must not contain `..`".to_owned()),
            }
        }
        // Everything in a directory is the directory.
        parts.pop_if(|last| matches!(last, Part::Directories));
        match parts.len() {
            0 => Err("names everything; choose profile read-only, or name a directory".to_owned()),
            1..=MOST_PARTS => Ok(Self { parts }),
            _ => Err(format!("has more than {MOST_PARTS} parts")),
        }
    }

    /// The text of the pattern, for [`of_text`](Self::of_text).
    pub(crate) fn text(&self) -> PathBuf {
        self.parts.iter().map(Part::text).collect()
    }

    /// Reads what [`text`](Self::text) wrote.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn of_text(text: &Path) -> Result<Self, String> {
        Self::after(Vec::new(), text)
    }

    /// The start of a search.
    pub(crate) fn start(&self) -> Progress {
        self.closed(1)
    }

    /// Goes on with the next name of a path. Returns whether the path up to this name matches.
    pub(crate) fn next(&self, progress: Progress, name: &OsStr) -> (Progress, bool) {
        let name = name.as_bytes();
        let mut next = 0;
        for (index, part) in self.parts.iter().enumerate().filter(|(index, _)| progress.0 >> index & 1 == 1) {
            next |= match part {
                Part::Directories if name != GIT => 1 << index,
                part if part.matches(name) => 1 << (index + 1),
                _ => 0,
            };
        }
        let progress = self.closed(next);
        (progress, progress.0 >> self.parts.len() & 1 == 1)
    }

    /// Goes on with all names of a relative path; `None` if it matches, or something above it does.
    pub(crate) fn after_all(&self, path: &Path) -> Option<Progress> {
        path.iter().try_fold(self.start(), |progress, name| {
            let (progress, is_match) = self.next(progress, name);
            (!is_match).then_some(progress)
        })
    }

    /// Whether `path`, which is relative, matches, or something above it.
    pub(crate) fn covers(&self, path: &Path) -> bool {
        self.after_all(path).is_none()
    }

    /// `**` also matches no directory, so the part after it may match at once.
    fn closed(&self, mut bits: u64) -> Progress {
        for (index, part) in self.parts.iter().enumerate() {
            if bits >> index & 1 == 1 && matches!(part, Part::Directories) {
                bits |= 1 << (index + 1);
            }
        }
        Progress(bits)
    }
}

impl Part {
    fn read(name: &OsStr) -> Result<Self, String> {
        if !has_wildcards(name.as_bytes()) {
            return Ok(Self::Name(name.as_bytes().to_owned()));
        }
        let text = name.to_str().ok_or("has a part with wildcards that is not UTF-8")?;
        let glob = GlobBuilder::new(text).literal_separator(true).backslash_escape(true).build();
        glob.map(|glob| Self::Wildcards(glob.compile_matcher())).map_err(|error| {
            format!(
                "is no pattern ({}): `[` and `{{` need their end in the same part of the path, and `\\` before one takes \
                 its meaning away",
                error.kind()
            )
        })
    }

    fn text(&self) -> &OsStr {
        match self {
            Self::Directories => OsStr::new("**"),
            Self::Name(name) => OsStr::from_bytes(name),
            Self::Wildcards(glob) => OsStr::new(glob.glob().glob()),
        }
    }

    fn matches(&self, name: &[u8]) -> bool {
        match self {
            Self::Directories => false,
            Self::Name(own) => own == name,
            Self::Wildcards(glob) => name != GIT && glob.is_match(OsStr::from_bytes(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn covers(pattern: &str, path: &str) -> bool {
        Pattern::read(Path::new(pattern)).expect(pattern).covers(Path::new(path))
    }

    #[test]
    fn patterns_mean_what_they_mean_in_gitignore() {
        for (pattern, yes, no) in [
            (
                "*.key",
                &["a.key", "d/e/b.key", ".key", "a.key/below"][..],
                &["key", "a.keys", ".git/a.key"][..],
            ),
            ("**/.env", &[".env", "a/b/.env"], &["a.env", ".env.local"]),
            ("src/*.rs", &["src/a.rs", "src/a.rs/b"], &["a.rs", "src/d/a.rs", "d/src/a.rs"]),
            ("src/**/*.rs", &["src/a.rs", "src/d/e/a.rs"], &["a.rs", "src/a", "d/src/a.rs"]),
            ("sub/**", &["sub", "sub/a", "sub/a/b"], &["subs", "a/sub"]),
            ("**/secrets/**", &["secrets", "a/secrets/b"], &["a/secret"]),
            ("**/**/a?", &["ab", "d/e/ac"], &["a", "abc"]),
            ("{a,b}.[ck]ey", &["a.key", "d/b.cey"], &["c.key", "a.ley"]),
            ("[!a].key", &["b.key"], &["a.key"]),
            ("a\\*", &["a*", "d/a*"], &["ab"]),
            ("build*/", &["build", "d/build2/x"], &["abuild"]),
            ("*", &["a", "a/b", ".gitignore"], &[".git", ".git/config"]),
            (".git/*.lock", &[".git/a.lock"], &["a.lock", "d/.git/a.lock"]),
            ("./a/*", &["a/b"], &["a"]),
        ] {
            yes.iter().for_each(|path| assert!(covers(pattern, path), "{pattern} {path}"));
            no.iter().for_each(|path| assert!(!covers(pattern, path), "{pattern} {path}"));
        }
    }

    #[test]
    fn names_are_bytes() {
        for name in [&b"a\nb.key"[..], b"\xff\xfe.key", &[b'a'; 251], b" .key", b"\\.key"] {
            let name = if name.len() == 251 { [name, b".key"].concat() } else { name.to_owned() };
            let pattern = Pattern::read(Path::new("*.key")).expect("a pattern");
            assert!(pattern.covers(&Path::new("d").join(OsStr::from_bytes(&name))), "{name:?}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused_in_words() {
        for (text, words) in [
            ("[a", "is no pattern"),
            ("{a/b,c}", "in the same part"),
            ("a/{b", "is no pattern"),
            ("../*", "`..`"),
            ("**", "names everything"),
            ("**/**", "names everything"),
            (&"*/".repeat(64), "more than 63 parts"),
        ] {
            let said = Pattern::read(Path::new(text)).expect_err(text);
            assert!(said.contains(words), "{text}: {said}");
        }
        Pattern::read(Path::new(OsStr::from_bytes(b"\xff*"))).expect_err("not UTF-8");
    }

    #[test]
    fn an_absolute_pattern_is_searched_from_its_last_plain_directory() {
        for (text, base, yes) in [
            ("/w/*.key", "/w", "a.key"),
            ("/w/a/**/*.key", "/w/a", "b/c.key"),
            ("/*/x", "/", "w/x"),
            ("/w/[[]a[]]/*", "/w", "[a]/b"),
            ("/w/a/**", "/w", "a"),
            ("/w/**/a/**/**", "/w", "b/a"),
        ] {
            let (found, pattern) = Pattern::read_absolute(Path::new(text)).expect(text);
            assert_eq!(found, Path::new(base), "{text}");
            assert!(pattern.covers(Path::new(yes)), "{text}");
        }
        for text in ["/**", "/**/**", "/"] {
            Pattern::read_absolute(Path::new(text)).expect_err(text);
        }
        let (_, pattern) = Pattern::read_absolute(Path::new("/w/*.key")).expect("a pattern");
        assert!(!pattern.covers(Path::new("d/a.key")), "it says where");
    }

    #[test]
    fn a_directory_is_no_pattern_whatever_its_name() {
        let joined = join(Path::new("/w/[id]"), Path::new("*.key"));
        let (base, pattern) = Pattern::read_absolute(&joined).expect("a pattern");
        assert_eq!(base, Path::new("/w"));
        assert!(pattern.covers(Path::new("[id]/a.key")) && !pattern.covers(Path::new("i/a.key")));
        assert_eq!(join(Path::new("/w/[id]"), Path::new("a")), Path::new("/w/[id]/a"));
        assert_eq!(join(Path::new("/w"), Path::new("/a*")), Path::new("/a*"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[a*?\\[\\]{},!./\\\\-]{0,12}|.{0,8}", path in "[a.b*/]{1,8}") {
            if let Ok(pattern) = Pattern::read(Path::new(&text)) {
                let relative = path.trim_start_matches('/');
                prop_assert!(!pattern.covers(Path::new("")));
                let _ = pattern.covers(Path::new(relative));
            }
        }

        /// The same as globset's own answer for whole paths, for patterns whose parts are all plain.
        #[test]
        fn whole_paths_match_as_globset_says(
            parts in proptest::collection::vec(prop_oneof!["[ab]{1,2}", "[ab]\\*", Just("**".to_owned()), "\\?"], 1..5),
            path in proptest::collection::vec("[ab]{1,2}", 1..5),
        ) {
            let text = parts.join("/");
            let path = path.join("/");
            prop_assume!(parts.len() > 1 && parts.last().is_some_and(|last| last != "**"));
            let Ok(pattern) = Pattern::read(Path::new(&text)) else { return Ok(()) };
            let glob = GlobBuilder::new(&text).literal_separator(true).build().expect("a glob").compile_matcher();
            let whole = Path::new(&path).ancestors().any(|above| !above.as_os_str().is_empty() && glob.is_match(above));
            prop_assert_eq!(pattern.covers(Path::new(&path)), whole, "{} {}", text, path);
        }
    }
}
