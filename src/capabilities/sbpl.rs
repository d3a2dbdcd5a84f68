//! The Seatbelt text for capabilities. Pure: resolves no path.

#[cfg(test)]
mod tests;

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::capabilities::Capabilities;
use crate::capabilities::declared::meant;
use crate::report::failure;
use crate::report::failure::{Boundary, Class, Details, Failure, failure_of};
use crate::seatbelt::{Grants, Reach, SeatbeltPath, Use};

/// Why the Seatbelt text for capabilities cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {}: {reason}", failure::shown(path))]
#[non_exhaustive]
pub struct SbplError {
    /// The kind of path: `working directory`, `write path`, `read path`, `home`.
    pub what: &'static str,
    /// The declared path.
    pub path: PathBuf,
    /// Why a profile cannot contain it.
    pub reason: &'static str,
}

failure_of!(SbplError);

impl SbplError {
    /// The machine-readable failure.
    #[must_use]
    pub fn failure(&self) -> Failure {
        Failure::new(Class::CapabilityDenied, Boundary::Action, failure::chain(self), Details::None)
    }
}

/// Builds the Seatbelt text for `caps` and a command in `cwd`, for `sandbox-exec -p`. The text begins with
/// `(version 1) (deny default)` and grants what is declared. It grants the same as a layer on Linux, as far
/// as Seatbelt can express it. It gives the command no private `/tmp`.
///
/// `cwd` and the declared paths should be canonical, because Seatbelt compares the real path of a file. The
/// text treats `/tmp`, `/var` and `/etc` as links into `/private`. `~/` means `HOME`. The text does not
/// restrict the environment.
///
/// The text can be built on every system, and used on macOS.
///
/// ```
/// use kennel::capabilities::{Capabilities, sbpl};
///
/// let write_paths = vec!["/tmp/a \"b\"".into()];
/// let caps = Capabilities { net: false, write_paths, ..Capabilities::default() };
/// let text = sbpl(&caps, "/Users/me/repo".as_ref())?;
/// assert!(text.starts_with("(version 1)\n(deny default)\n"));
/// assert!(text.contains(r#"(subpath "/private/tmp/a \"b\"")"#) && !text.contains("(remote ip)"));
/// # Ok::<(), kennel::capabilities::SbplError>(())
/// ```
///
/// # Errors
/// A path is not UTF-8, contains NUL or `..`, is `/` (on Linux, that can be read without its secrets), or has
/// an unknown form; `cwd` is not absolute.
pub fn sbpl(caps: &Capabilities, cwd: &Path) -> Result<String, SbplError> {
    text(caps, cwd, env::var_os("HOME").as_deref())
}

/// Like [`sbpl`], with the given `HOME`.
fn text(caps: &Capabilities, cwd: &Path, home: Option<&OsStr>) -> Result<String, SbplError> {
    Ok(grants(caps, cwd, home)?.profile())
}

/// What the text grants.
pub(crate) fn grants(caps: &Capabilities, cwd: &Path, home: Option<&OsStr>) -> Result<Grants, SbplError> {
    let place = |what, given: &Path, path: &Path, granted| {
        let refused = |reason| SbplError { what, path: given.to_owned(), reason };
        Ok((SeatbeltPath::new(path).map_err(refused)?, granted))
    };
    let mut places = vec![place("working directory", cwd, cwd, Use::Write)?];
    for (what, paths, granted) in
        [("write path", &caps.write_paths, Use::Write), ("read path", &caps.read_paths, Use::Read)]
    {
        for path in paths {
            let refused = |reason| SbplError { what, path: path.to_owned(), reason };
            let meant = meant(path, cwd, home.map(Path::new)).map_err(refused)?;
            places.push(place(what, path, &meant, granted)?);
        }
    }
    // What is writable is readable, and reading it takes nothing away.
    let written: Vec<SeatbeltPath> =
        places.iter().filter(|(_, granted)| *granted == Use::Write).map(|(path, _)| path.clone()).collect();
    places.retain(|(path, granted)| {
        *granted == Use::Write || written.iter().all(|written| !path.is_in(written))
    });
    let reach = if caps.net { Reach::Everywhere } else { Reach::Nowhere };
    Ok(Grants { tools: caps.read_paths.is_empty(), places, reach, ..Grants::default() })
}
