//! A command with the rails alone: pinned directory, environment made, and a program that is found beforehand, so that
//! the standard library need not fork the embedding program to look for it.

use nix::unistd::{AccessFlags, access};
use tokio::process::Command;

use super::wanted::Wanted;
use crate::compile::request::places;

/// The command, to be spawned by whoever asked for it.
pub(super) fn command(wanted: &Wanted) -> Command {
    let path = wanted.environment.get(std::ffi::OsStr::new("PATH"));
    let places = places(&wanted.program, path.map(AsRef::as_ref), &wanted.cwd.path);
    // Where none can be executed, the first that is there says why at spawning, else the first of all.
    let place = places
        .iter()
        .find(|place| place.is_file() && access(*place, AccessFlags::X_OK).is_ok())
        .or_else(|| places.iter().find(|place| place.exists()))
        .or(places.first());
    let mut command = Command::new(place.map_or(wanted.program.as_os_str(), |place| place.as_os_str()));
    command
        .arg0(&wanted.program)
        .args(&wanted.arguments)
        .current_dir(&wanted.cwd.path)
        .env_clear()
        .envs(&wanted.environment);
    command
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
    fn found(program: &str, path: Option<&str>, cwd: &Path) -> OsString {
        let caps = Capabilities { env: EnvPolicy::Vars(Vec::new()), ..Capabilities::default() };
        let mut wanted = Wanted::new(OsStr::new(program), [""; 0], cwd, &caps).ok().expect("wanted");
        wanted.environment.extend(path.map(|path| ("PATH".into(), path.into())));
        command(&wanted).as_std().get_program().to_owned()
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
