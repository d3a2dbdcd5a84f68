//! The names of submodules, by which git finds their repositories: git-config(1), "Syntax".

use std::{
    ffi::OsString,
    os::unix::ffi::OsStringExt,
    path::{Component, Path, PathBuf},
};

/// Those that a repository's config has sections of. The user's git wrote them, and no command can take them away.
pub(super) fn names(config: &[u8]) -> impl Iterator<Item = PathBuf> {
    let lines = config.split(|byte| *byte == b'\n');
    lines.filter_map(name).filter_map(|name| below(Path::new(&OsString::from_vec(name))))
}

/// The name in a line `[submodule "NAME"]`.
fn name(line: &[u8]) -> Option<Vec<u8>> {
    let section = line.trim_ascii_start().strip_prefix(b"[")?;
    let (kind, rest) = section.split_at_checked("submodule".len())?;
    let quoted = rest.trim_ascii_start().strip_prefix(b"\"")?;
    let mut name = Vec::new();
    let mut bytes = quoted.iter();
    loop {
        match bytes.next()? {
            b'"' => return kind.eq_ignore_ascii_case(b"submodule").then_some(name),
            b'\\' => name.push(*bytes.next()?),
            byte => name.push(*byte),
        }
    }
}

/// The path below the directory that they lie in. Git takes `/` and `.` in a name, and none that leads out.
fn below(name: &Path) -> Option<PathBuf> {
    let goes_up = name.components().any(|part| part == Component::ParentDir);
    let parts = name.components().filter(|part| matches!(part, Component::Normal(_)));
    Some(parts.collect::<PathBuf>()).filter(|path| !goes_up && path != Path::new(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_git_writes_them() {
        let config = b"[core]\n\tbare = false\n[submodule \"tools/logs\"]\n\turl = [submodule \"no\"]\n\
            \t[SubModule\t\"a \\\"b\\\" \\\\\"] active = true\n[submodule \"../up\"]\n[submodule \"\"]\n\
            [submodules \"x\"]\n[submodule \"/abs\"]\n[submodule \"no end\n[submodule]\n[";
        let found: Vec<PathBuf> = names(config).collect();
        assert_eq!(found, ["tools/logs", "a \"b\" \\", "abs"].map(PathBuf::from));
    }
}
