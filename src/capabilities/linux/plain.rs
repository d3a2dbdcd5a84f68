//! A command without confinement, with its own directory and environment. Kennel finds the program itself;
//! otherwise the standard library would fork the embedding program to search PATH.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::caller::Caller;
use crate::capabilities::linux::granted;
use crate::capabilities::linux::granted::{Granted, GrantedPath};
use crate::capabilities::{Capabilities, environment};
use crate::process::program::{check_words, executable};
use crate::report::error::Error;

/// Builds the command. The caller spawns it.
pub(crate) fn command(wanted: &PlainCommand) -> Command {
    let path = wanted.environment.get(std::ffi::OsStr::new("PATH"));
    let mut command = Command::new(executable(&wanted.program, path.map(AsRef::as_ref), &wanted.cwd.path));
    command
        .arg0(&wanted.program)
        .args(&wanted.arguments)
        .current_dir(&wanted.cwd.path)
        .env_clear()
        .envs(&wanted.environment);
    command
}

// Checks before there is a process.

/// A checked command, and what its capabilities grant.
pub(crate) struct PlainCommand {
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) environment: BTreeMap<OsString, OsString>,
    pub(crate) cwd: GrantedPath,
    /// `None` if no layer of the operating system is needed.
    pub(crate) granted: Option<Granted>,
    pub(crate) caller: Caller,
}

impl PlainCommand {
    /// # Errors
    /// The program is empty, an argument has a NUL byte, or a directory or path is missing.
    pub(crate) fn new(
        program: &OsStr,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        cwd: &Path,
        caps: &Capabilities,
    ) -> Result<Self, Error> {
        let arguments: Vec<OsString> =
            arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
        check_words(program, &arguments)?;
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
mod wanted_tests {
    use super::*;

    fn wanted(program: &str, arguments: &[&str], cwd: &Path) -> Result<PlainCommand, Error> {
        PlainCommand::new(OsStr::new(program), arguments, cwd, &Capabilities::default())
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
        assert_eq!(wanted("true", &[], &link).expect("wanted").cwd.path, Path::new("/usr"));
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::{OsStr, OsString};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;
    use crate::capabilities::{Capabilities, EnvPolicy};

    /// The path that is executed for `program` with this PATH, in this directory.
    fn found(program: &str, path: Option<&str>, cwd: &Path) -> OsString {
        let caps = Capabilities { env: EnvPolicy::Vars(Vec::new()), ..Capabilities::default() };
        let mut wanted = PlainCommand::new(OsStr::new(program), [""; 0], cwd, &caps).expect("wanted");
        wanted.environment.extend(path.map(|path| ("PATH".into(), path.into())));
        command(&wanted).get_program().to_owned()
    }

    #[test]
    fn program_is_looked_for_in_the_path_that_the_command_gets() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = fs::canonicalize(dir.path()).expect("canonical");
        for (name, mode) in [("a/x", 0o644), ("b/x", 0o755), ("x", 0o755)] {
            let file = dir.join(name);
            fs::create_dir_all(file.parent().expect("a parent")).expect("made");
            fs::write(&file, "").expect("a file");
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("a mode");
        }
        fs::create_dir_all(dir.join("d/x")).expect("made");
        let at = |path: &str| dir.join(path).into_os_string();
        let found = |program: &str, path| found(program, path, &dir);
        let every = format!("{0}/d:{0}/a:{0}/b", dir.display());
        assert_eq!(found("x", Some(&every)), at("b/x"), "neither a directory nor what cannot be executed");
        assert_eq!(found("x", Some("a:b")), at("b/x"), "relative to the directory of the command");
        assert_eq!(found("x", Some("")), at("x"), "an empty entry is the directory");
        assert_eq!(found("./x", None), at("./x"));
        assert_eq!(found("/bin/absent", None), "/bin/absent");
        assert_eq!(found("absent", Some("/q:/r")), "/q/absent", "spawning says that it is not there");
        assert_eq!(found("-x", Some("/q")), "/q/-x");
    }

    #[test]
    fn without_a_path_the_system_is_searched_and_not_the_directory() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("sh");
        fs::write(&file, "").expect("a file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("a mode");
        let found = found("sh", None, dir.path());
        assert!(
            Path::new(&found).ends_with("bin/sh") && !Path::new(&found).starts_with(dir.path()),
            "{found:?}"
        );
    }
}
