//! What git obeys, in every directory named `.git`, as rules. Whatever the case of the letters: most file
//! systems of macOS ignore it. `.git` itself is neither made nor renamed, or a directory of another name
//! could become one.

use super::{all, deny, not, quoted, rule};

/// The end of the name of `.git` itself.
const ITSELF: &str = "/[.]git$";

/// Settings and hooks, of submodules and worktrees too.
const OBEYED: &str = "/[.]git/(.*/)?(hooks(/|$)|(config([.]worktree)?|commondir)$)";

/// There, a name is that of a branch. Not so below `modules`: a submodule may be named `a/refs/b`.
const NAMES: &str = "/[.]git/(worktrees/[^/]+/)?(refs|logs)/";

/// Other repositories, in a form from before `config`.
const REMOTES: &str = "/[.]git/(.*/)?(remotes|branches)(/|$)";

/// Below, what `REMOTES` matches is a branch.
const REFS: &str = "/[.]git/(.*/)?(refs|logs)/";

/// Each holds settings and hooks: they would come and go with it.
const REPOSITORIES: &str = "/[.]git/(modules|worktrees)(/[^/]*)?$";

/// The same for submodules with a slash in their name, at any depth. git itself makes directories only below
/// `OBJECTS` when it commits and fetches.
const MODULES: &str = "/[.]git/(worktrees/[^/]+/)?modules(/|$)";
const OBJECTS: &str = "/[.]git/(worktrees/[^/]+/)?modules/.+/(objects|refs|logs)/";

/// Appends the rules.
pub(super) fn protect(text: &mut String) {
    let regex = |pattern| quoted("regex", &any_case(pattern));
    let directory = || "(vnode-type DIRECTORY)".to_owned();
    deny(text, "file-write*", "regex", &[any_case(ITSELF)]);
    rule(text, "deny", "file-write*", [all(&[regex(OBEYED), not(&regex(NAMES))])]);
    rule(text, "deny", "file-write*", [all(&[regex(REMOTES), not(&regex(REFS))])]);
    deny(text, "file-write-create file-write-unlink", "regex", &[any_case(REPOSITORIES)]);
    rule(text, "deny", "file-write-unlink", [all(&[directory(), regex(MODULES)])]);
    rule(text, "deny", "file-write-create", [all(&[directory(), regex(MODULES), not(&regex(OBJECTS))])]);
}

/// The pattern for its letters in either case. It has no letters in brackets.
fn any_case(pattern: &str) -> String {
    let either = |letter: char| match letter.is_ascii_lowercase() {
        true => format!("[{letter}{}]", letter.to_ascii_uppercase()),
        false => letter.to_string(),
    };
    pattern.chars().map(either).collect()
}
