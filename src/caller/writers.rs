//! Who else may write a file or directory: by owner, mode, group or POSIX access list.
//!
//! Groups are those of /etc/passwd and /etc/group alone. A group that is not there counts as one with others.

use std::fmt;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::caller::account::{fields, number};

/// The attribute that holds a file's POSIX access control list.
pub(crate) const ACCESS_LIST: &str = "system.posix_acl_access";

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;

/// Who may write. Its text is a subject: `group 50`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// Every user of this machine.
    Everyone,
    /// A group with a member that is not trusted.
    Group(u32),
    /// A user that is not trusted.
    User(u32),
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everyone => f.write_str("every user"),
            Self::Group(gid) => write!(f, "group {gid}"),
            Self::User(uid) => write!(f, "uid {uid}"),
        }
    }
}

/// Somebody who may write what is at `path`, and is none of the `trusted` users. `metadata` is that of the
/// path, which is no link.
pub fn another_writer(path: &Path, metadata: &Metadata, trusted: &[u32]) -> Option<Writer> {
    let (owner, mode) = (metadata.uid(), metadata.mode());
    if !trusted.contains(&owner) {
        return Some(Writer::User(owner));
    }
    if mode & OTHERS_WRITE != 0 {
        return Some(Writer::Everyone);
    }
    // Where there is an access list, these bits are its mask: without them, no entry lets anybody write.
    if mode & GROUP_WRITES == 0 {
        return None;
    }
    match xattr::get_deref(path, ACCESS_LIST) {
        Ok(Some(list)) => writer_in(&list, metadata.gid(), trusted),
        Ok(None) => group_writer(metadata.gid(), trusted),
        // A file system without access lists.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => group_writer(metadata.gid(), trusted),
        Err(_) => Some(Writer::Everyone),
    }
}

/// Somebody whom an access list lets write; see acl(5) and `linux/posix_acl_xattr.h`.
fn writer_in(list: &[u8], owner: u32, trusted: &[u32]) -> Option<Writer> {
    const WRITE: u16 = 2;
    const USER: u16 = 0x02;
    const OWNING_GROUP: u16 = 0x04;
    const GROUP: u16 = 0x08;
    const MASK: u16 = 0x10;
    let entries = || {
        list.get(4..).unwrap_or_default().chunks_exact(8).map(|entry| {
            let [a, b, c, d, id @ ..] = entry else { return (0, 0, 0) };
            let id = id.try_into().map(u32::from_le_bytes).unwrap_or_default();
            (u16::from_le_bytes([*a, *b]), u16::from_le_bytes([*c, *d]), id)
        })
    };
    let mask = entries().find(|(tag, ..)| *tag == MASK).map_or(u16::MAX, |(_, rights, _)| rights);
    entries().filter(|(_, rights, _)| rights & mask & WRITE != 0).find_map(|(tag, _, id)| match tag {
        USER => (!trusted.contains(&id)).then_some(Writer::User(id)),
        OWNING_GROUP => group_writer(owner, trusted),
        GROUP => group_writer(id, trusted),
        _ => None,
    })
}

fn group_writer(gid: u32, trusted: &[u32]) -> Option<Writer> {
    let read = |path| fs::read(path).unwrap_or_default();
    let has_others = has_others(&read("/etc/passwd"), &read("/etc/group"), gid, trusted);
    has_others.then_some(Writer::Group(gid))
}

/// Whether a group has a member that is none of the `trusted` users. The private group of a user has none.
fn has_others(passwd: &[u8], groups: &[u8], gid: u32, trusted: &[u32]) -> bool {
    let accounts = || {
        fields(passwd).filter_map(|line| {
            let &[name, _, uid, gid, ..] = &*line else { return None };
            Some((name, number(uid)?, number(gid)?))
        })
    };
    let is_trusted = |member: &[u8]| {
        accounts().find(|(name, ..)| *name == member).is_some_and(|(_, uid, _)| trusted.contains(&uid))
    };
    let mut lines =
        fields(groups).filter(|line| matches!(&**line, [_, _, id, _] if number(id) == Some(gid))).peekable();
    let is_unknown = lines.peek().is_none();
    let mut members = lines.flat_map(|line| {
        line.last().map(|names| names.split(|byte| *byte == b',').collect::<Vec<_>>()).unwrap_or_default()
    });
    is_unknown
        || members.any(|member| !member.is_empty() && !is_trusted(member))
        || accounts().any(|(_, uid, primary)| primary == gid && !trusted.contains(&uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &[u8] = b"root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/:/\nbob:x:1001:1001::/:/\n";
    const GROUPS: &[u8] =
        b"root:x:0:\nann:x:1000:\nbob:x:1001:ann\nstaff:x:50:\ndev:x:60:root,ann\nout:x:70:gone\n";

    #[test]
    fn a_group_is_one_of_others_if_one_of_them_is_in_it() {
        let has = |gid, trusted: &[u32]| has_others(PASSWD, GROUPS, gid, trusted);
        assert!(!has(0, &[0]) && !has(50, &[0]), "nobody else");
        assert!(!has(1000, &[0, 1000]) && has(1000, &[0]), "a private group");
        assert!(has(1001, &[0, 1000]), "of another account");
        assert!(!has(60, &[0, 1000]) && has(60, &[0]), "a member");
        assert!(has(70, &[0]), "a member without an account");
        assert!(has(80, &[0]), "a group that is not there");
    }

    #[test]
    fn an_access_list_names_who_writes() {
        let list = |entries: &[(u16, u16, u32)]| {
            let mut list = 2u32.to_le_bytes().to_vec();
            for (tag, rights, id) in entries {
                list.extend([tag.to_le_bytes(), rights.to_le_bytes()].concat());
                list.extend(id.to_le_bytes());
            }
            list
        };
        let own = (1, 7, u32::MAX);
        let named = list(&[own, (2, 7, 4242), (4, 5, u32::MAX), (0x10, 7, u32::MAX), (0x20, 5, u32::MAX)]);
        assert_eq!(writer_in(&named, 0, &[0]), Some(Writer::User(4242)));
        assert_eq!(writer_in(&named, 0, &[0, 4242]), None);
        let masked = list(&[own, (2, 7, 4242), (4, 7, u32::MAX), (0x10, 5, u32::MAX), (0x20, 5, u32::MAX)]);
        assert_eq!(writer_in(&masked, 4243, &[0]), None);
        let group = list(&[own, (4, 5, u32::MAX), (8, 6, 4_000_000), (0x10, 7, u32::MAX)]);
        assert_eq!(writer_in(&group, 0, &[0]), Some(Writer::Group(4_000_000)));
        let owning = list(&[own, (4, 7, u32::MAX), (0x10, 7, u32::MAX)]);
        assert_eq!(writer_in(&owning, 4_000_000, &[0]), Some(Writer::Group(4_000_000)));
    }
}
