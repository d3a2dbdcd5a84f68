//! A command that is to be wrapped, checked: what can be known before there is a process is said before.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    path::Path,
};

use super::{
    Capabilities, environment,
    granted::{self, Granted, Place},
};
use crate::{Error, caller::Caller, compile::request::c_string};

/// A command, and what its capabilities mean.
pub(super) struct Wanted {
    pub(super) program: OsString,
    pub(super) arguments: Vec<OsString>,
    pub(super) environment: BTreeMap<OsString, OsString>,
    pub(super) cwd: Place,
    /// `None` where the rails are enough.
    pub(super) granted: Option<Granted>,
    pub(super) caller: Caller,
}

impl Wanted {
    /// # Errors
    /// A program without a name, a NUL anywhere, a directory or path that is not there.
    pub(super) fn new(
        program: &OsStr,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        cwd: &Path,
        caps: &Capabilities,
    ) -> Result<Self, Error> {
        let arguments: Vec<OsString> =
            arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
        if program.is_empty() {
            let reason = "is empty".to_owned();
            return Err(Error::Command { what: "program", value: String::new(), reason });
        }
        c_string("program", program)?;
        arguments.iter().try_for_each(|argument| c_string("argument", argument).map(drop))?;
        let caller = Caller::current();
        let environment = environment::variables(&caps.env, &caller.environment, caps.engages_layer())?;
        let cwd = granted::working_directory(cwd)?;
        let granted = match caps.engages_layer() {
            true => Some(granted::granted(caps, cwd.clone(), &caller.home)?),
            false => None,
        };
        Ok(Self { program: program.to_owned(), arguments, environment, cwd, granted, caller })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(program: &str, arguments: &[&str], cwd: &Path) -> Result<Wanted, Error> {
        Wanted::new(OsStr::new(program), arguments, cwd, &Capabilities::default())
    }

    #[test]
    fn what_no_process_could_be_is_refused_before_there_is_one() {
        let dir = tempfile::tempdir().expect("a directory");
        for (program, arguments) in [("", &[][..]), ("a\0b", &[]), ("true", &["x", "a\0"])] {
            let error = wanted(program, arguments, dir.path()).err().expect("refused");
            assert!(matches!(error, Error::Command { .. }), "{error:?}");
        }
        assert!(wanted("-x", &["", "-", "--"], dir.path()).is_ok());
    }

    #[test]
    fn directory_is_canonical() {
        let dir = tempfile::tempdir().expect("a directory");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/usr", &link).expect("a link");
        assert_eq!(wanted("true", &[], &link).ok().expect("wanted").cwd.path, Path::new("/usr"));
    }
}
