//! The user of another root: its own passwd(5) and group(5) say who that is.

use std::path::{Path, PathBuf};

use crate::report::error::Error;
use crate::report::error::policy::PolicyError;
use crate::view::root::tree::LayerTree;

/// Who commands are in another root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RootUser {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: PathBuf,
}

/// A line of passwd(5) or group(5).
struct Line<'t> {
    name: &'t str,
    id: u32,
    /// The fields after the id.
    rest: Vec<&'t str>,
}

impl RootUser {
    /// The user that `given` names: `NAME`, `UID`, `NAME:GROUP`, `UID:GID`; root without it.
    ///
    /// # Errors
    /// A name that the root does not have; a number that no user can have.
    pub(crate) fn of(given: Option<&str>, tree: &LayerTree) -> Result<Self, Error> {
        let given = given.unwrap_or("0");
        let (user, group) = given.split_once(':').map_or((given, None), |(user, group)| (user, Some(group)));
        let passwd = tree.read("/etc/passwd").unwrap_or_default();
        let unknown = |what: &str, file: &str| {
            let reason =
                format!("the root has no such {what} in {file}: name one that is there, or a number");
            Error::from(PolicyError::value("user", given, reason))
        };
        let known = find(&passwd, if user.is_empty() { "0" } else { user });
        let uid = match &known {
            Some(line) => line.id,
            None => number(if user.is_empty() { "0" } else { user })
                .ok_or_else(|| unknown("user", "/etc/passwd"))?,
        };
        let gid = match group {
            Some(group) => {
                let groups = tree.read("/etc/group").unwrap_or_default();
                let found = find(&groups, group).map(|line| line.id);
                found.or_else(|| number(group)).ok_or_else(|| unknown("group", "/etc/group"))?
            }
            None => known.as_ref().and_then(|line| number(line.rest.first()?)).unwrap_or(0),
        };
        let home = known.as_ref().and_then(|line| line.rest.get(2)).map(Path::new);
        let home = home.filter(|home| home.is_absolute()).unwrap_or(Path::new("/")).to_owned();
        Ok(Self { uid, gid, home })
    }
}

/// The first line with this name, or with this number.
fn find<'t>(text: &'t str, wanted: &str) -> Option<Line<'t>> {
    let lines = || text.lines().filter_map(line);
    lines().find(|line| line.name == wanted).or_else(|| {
        let id = number(wanted)?;
        lines().find(|line| line.id == id)
    })
}

fn line(text: &str) -> Option<Line<'_>> {
    let mut fields = text.split(':');
    let name = fields.next().filter(|name| !name.is_empty())?;
    let id = number(fields.nth(1)?)?;
    Some(Line { name, id, rest: fields.collect() })
}

/// An id: a number that is not the one for "no change" (chown(2)).
fn number(text: &str) -> Option<u32> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|id| is_plain && *id != u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn users_are_those_of_the_root() {
        let dir = tempfile::tempdir().expect("works");
        fs::create_dir(dir.path().join("etc")).expect("works");
        let passwd = "root:x:0:0:root:/root:/bin/bash\n# comment\npostgres:x:101:104:a:/var/lib/postgresql:/bin/sh\nshort:x:7:8\n";
        fs::write(dir.path().join("etc/passwd"), passwd).expect("works");
        fs::write(dir.path().join("etc/group"), "staff:x:50:\n").expect("works");
        let tree = LayerTree::new([dir.path().to_owned()].into_iter());
        let of = |given: Option<&str>| RootUser::of(given, &tree).map(|user| (user.uid, user.gid, user.home));
        for (given, uid, gid, home) in [
            (None, 0, 0, "/root"),
            (Some("postgres"), 101, 104, "/var/lib/postgresql"),
            (Some("101"), 101, 104, "/var/lib/postgresql"),
            (Some("1000"), 1000, 0, "/"),
            (Some("1000:1000"), 1000, 1000, "/"),
            (Some("postgres:staff"), 101, 50, "/var/lib/postgresql"),
            (Some(":50"), 0, 50, "/root"),
            (Some("short"), 7, 8, "/"),
        ] {
            assert_eq!(of(given).expect("works"), (uid, gid, home.into()), "{given:?}");
        }
        for wrong in ["nobody", "-1", "+5", "4294967295", "postgres:wheel", "postgres:", "0x1", " 0"] {
            let error = of(Some(wrong)).expect_err(wrong);
            assert!(format!("{error:?}").contains("the root has no such"), "{wrong}: {error:?}");
        }
    }
}
