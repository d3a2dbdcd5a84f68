//! What a repository's config says: git-config(1), "Syntax". Of interest are the names of submodules, by which git finds their
//! repositories, and whether it is one of git's at all.

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

/// What `git init` writes into a config, in the section `core`. Other programs have such a section too.
const OF_GIT: [&[u8]; 2] = [b"repositoryformatversion", b"bare"];

/// Whether a config is a repository's.
pub(super) fn is_of_git(config: &[u8]) -> bool {
    let mut is_core = false;
    config.split(|byte| *byte == b'\n').any(|line| {
        let mut rest = line.trim_ascii_start();
        if let Some(section) = rest.strip_prefix(b"[") {
            let end = section.iter().position(|byte| *byte == b']').unwrap_or(section.len());
            let (name, after) = section.split_at(end);
            is_core = name.trim_ascii().eq_ignore_ascii_case(b"core");
            rest = after.strip_prefix(b"]").unwrap_or_default().trim_ascii_start();
        }
        let end = rest.iter().position(|byte| !byte.is_ascii_alphanumeric()).unwrap_or(rest.len());
        is_core && rest.get(..end).is_some_and(|key| OF_GIT.iter().any(|of| key.eq_ignore_ascii_case(of)))
    })
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
    fn a_config_of_git_has_its_keys() {
        for config in ["[core]\n\tbare = true\n", "[user]\n[CORE] RepositoryFormatVersion=0", "[core]\nbare"]
        {
            assert!(is_of_git(config.as_bytes()), "{config}");
        }
        for config in [
            "",
            "[core]\n remote = barebones\n",
            "[core]\nrepo_version=1\nmode=bare-user\n",
            "bare = true\n[core]\n[x]\nbare = true",
            "# [core]\n#bare\n[core]\n;bare\nbarely = true",
        ] {
            assert!(!is_of_git(config.as_bytes()), "{config}");
        }
    }

    #[test]
    fn names_are_as_git_writes_them() {
        let config = b"[core]\n\tbare = false\n[submodule \"tools/logs\"]\n\turl = [submodule \"no\"]\n\
            \t[SubModule\t\"a \\\"b\\\" \\\\\"] active = true\n[submodule \"../up\"]\n[submodule \"\"]\n\
            [submodules \"x\"]\n[submodule \"/abs\"]\n[submodule \"no end\n[submodule]\n[";
        let found: Vec<PathBuf> = names(config).collect();
        assert_eq!(found, ["tools/logs", "a \"b\" \\", "abs"].map(PathBuf::from));
    }
}
