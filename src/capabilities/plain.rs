//! A command with the rails alone: pinned directory, environment made, and a program that is found beforehand, so that
//! the standard library need not fork the embedding program to look for it.

use nix::unistd::{AccessFlags, access};
use tokio::process::Command;

use super::wanted::Wanted;
use crate::{Error, compile::request::places};

/// The command, to be spawned by whoever asked for it.
///
/// # Errors
/// A program without a slash, where the command gets no PATH to look for it in.
pub(super) fn command(wanted: &Wanted) -> Result<Command, Error> {
    let path = wanted.environment.get(std::ffi::OsStr::new("PATH"));
    let places = places(&wanted.program, path.map(AsRef::as_ref).unwrap_or_default(), &wanted.cwd.path);
    // Where none can be executed, the first that is there says why at spawning, else the first of all.
    let place = places
        .iter()
        .find(|place| place.is_file() && access(*place, AccessFlags::X_OK).is_ok())
        .or_else(|| places.iter().find(|place| place.exists()))
        .or(places.first());
    let Some(place) = place else {
        return Err(Error::NoProgram { program: wanted.program.to_string_lossy().into_owned() });
    };
    let mut command = Command::new(place);
    command
        .arg0(&wanted.program)
        .args(&wanted.arguments)
        .current_dir(&wanted.cwd.path)
        .env_clear()
        .envs(&wanted.environment);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use std::{
        ffi::{OsStr, OsString},
        fs,
        os::unix::fs::PermissionsExt,
        path::Path,
    };

    use super::*;
    use crate::{Capabilities, EnvPolicy};

    /// What is executed for `program` with that PATH, in that directory.
    fn found(program: &str, path: Option<&str>, cwd: &Path) -> Result<OsString, Error> {
        let caps = Capabilities { env: EnvPolicy::Vars(Vec::new()), ..Capabilities::default() };
        let mut wanted = Wanted::new(OsStr::new(program), [""; 0], cwd, &caps)?;
        wanted.environment.extend(path.map(|path| ("PATH".into(), path.into())));
        Ok(command(&wanted)?.as_std().get_program().to_owned())
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
        let found = |program: &str, path| found(program, path, &dir).expect(program);
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
    fn without_a_path_a_bare_name_is_not_found() {
        let error = found("sh", None, Path::new("/usr")).expect_err("no PATH");
        assert_eq!((error.exit_code(), error.to_string().as_str()), (127, "sh: not found"));
    }
}
