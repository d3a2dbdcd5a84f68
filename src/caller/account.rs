//! A line of the password database. It is read from /etc/passwd alone: getpwuid(3) would load plugins into
//! the program, which a library must not do and a static program cannot.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// An account of this host.
#[derive(Debug, PartialEq, Eq)]
pub struct Account {
    /// Its name.
    pub name: OsString,
    /// The group that a login starts with.
    pub gid: u32,
    /// Its home as the file has it, if that is an absolute path.
    pub home: Option<PathBuf>,
}

impl Account {
    /// The account of a user.
    pub fn of(uid: u32) -> Option<Self> {
        Self::find(&fs::read("/etc/passwd").ok()?, uid)
    }

    /// Works on bytes, because names in the file may have any encoding.
    fn find(passwd: &[u8], uid: u32) -> Option<Self> {
        fields(passwd).find_map(|line| {
            let &[name, _, id, gid, _, home, ..] = &*line else { return None };
            let (name, home) = (OsStr::from_bytes(name).to_owned(), Path::new(OsStr::from_bytes(home)));
            let home = home.is_absolute().then(|| home.to_owned());
            if number(id) == Some(uid) { Some(Self { name, gid: number(gid)?, home }) } else { None }
        })
    }
}

/// The fields of each line of a file such as /etc/passwd.
pub fn fields(file: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    file.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b':').collect())
}

/// The number in a field.
pub fn number(field: &[u8]) -> Option<u32> {
    str::from_utf8(field).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names in one file may have several encodings.
    #[test]
    fn an_account_is_found_whatever_bytes_others_have() {
        let passwd = b"root:x:0:0:root:/root:/bin/sh\njoerg:x:7:70:J\xf6rg:/home/joerg:/bin/sh\n\
            short:x:8\n+nis\n\nlinks:x:9:9::/home/l\xfcnk/:/bin/sh\nm\xfcll:x:10:10::home/m:\n";
        let account = |name: &[u8], gid, home: Option<&[u8]>| {
            let home = home.map(|home| Path::new(OsStr::from_bytes(home)).to_owned());
            Some(Account { name: OsStr::from_bytes(name).to_owned(), gid, home })
        };
        assert_eq!(Account::find(passwd, 0), account(b"root", 0, Some(b"/root")));
        assert_eq!(Account::find(passwd, 7), account(b"joerg", 70, Some(b"/home/joerg")));
        assert_eq!(Account::find(passwd, 9), account(b"links", 9, Some(b"/home/l\xfcnk/")));
        assert_eq!(Account::find(passwd, 10), account(b"m\xfcll", 10, None));
        assert!(Account::find(passwd, 8).is_none() && Account::find(passwd, 11).is_none());
    }
}
