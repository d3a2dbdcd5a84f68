//! The paths of a declaration as it writes them: `cwd`, `~/`, relative ones.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

/// Converts a declared path to an absolute path. Pure.
///
/// # Errors
/// The reason why the path is invalid.
pub(crate) fn meant(given: &Path, cwd: &Path, home: Option<&Path>) -> Result<PathBuf, &'static str> {
    if given.as_os_str().is_empty() {
        return Err("is empty");
    }
    if given == Path::new("cwd") {
        return Ok(cwd.to_owned());
    }
    let mut parts = given.components();
    match parts.next() {
        Some(Component::Normal(first)) if first == OsStr::new("~") => {
            let home = home.ok_or("begins with ~/, and HOME is not set")?;
            Ok(home.join(parts.as_path()))
        }
        Some(Component::Normal(first)) if first.as_encoded_bytes().starts_with(b"~") => {
            Err("names another user's home; write the whole path, or put ./ before the name of a file")
        }
        _ => Ok(cwd.join(given)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_mean_what_the_contract_says() {
        let meant = |given: &str| meant(Path::new(given), Path::new("/w"), Some(Path::new("/home/me")));
        for (given, path) in [
            ("cwd", "/w"),
            ("./cwd", "/w/./cwd"),
            ("cwd/x", "/w/cwd/x"),
            ("~/out", "/home/me/out"),
            ("~", "/home/me/"),
            ("~/", "/home/me/"),
            ("~/../x", "/home/me/../x"),
            ("/srv", "/srv"),
            ("sub", "/w/sub"),
            ("a~b", "/w/a~b"),
            ("./~x", "/w/./~x"),
        ] {
            assert_eq!(meant(given).expect(given), Path::new(path), "{given}");
        }
        for given in ["", "~root", "~root/x", "~~"] {
            meant(given).expect_err(given);
        }
    }
}
