//! `sandbox-exec -p TEXT PROGRAM ARG…`. Never run here.

use std::{ffi::OsString, path::Path};

use tokio::process::Command;

/// Its place on every macOS: not looked for in a PATH that somebody may have set.
const SANDBOX_EXEC: &str = "/usr/bin/sandbox-exec";

/// A command that runs `program`, an absolute path, under `profile`.
pub(crate) fn command(profile: &str, program: &Path, args: &[OsString], cwd: &Path) -> Command {
    let mut command = Command::new(SANDBOX_EXEC);
    command.arg("-p").arg(profile).arg(program).args(args).current_dir(cwd);
    command
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn profile_comes_as_one_argument_before_the_program() {
        let args = ["--".into(), "-p".into()];
        let command = command("(version 1)", Path::new("/bin/x"), &args, Path::new("/w"));
        let given: Vec<&OsStr> = command.as_std().get_args().collect();
        assert_eq!(given, ["-p", "(version 1)", "/bin/x", "--", "-p"]);
        assert_eq!(command.as_std().get_program(), SANDBOX_EXEC);
    }
}
