//! `kennel trust`, and the record of the files that the user trusts: a copy of each text, in
//! `~/.config/kennel/trust`. No command can write there, so a command that changes a file of a workspace
//! changes nothing that Kennel uses.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    process::ExitCode,
};

use kennel::{Error, Policy, internal::escape::harmless};
use sha2::{Digest, Sha256};

use super::{
    file::{self, ConfigFile, Links, Owner},
    source::{directory, unusable},
    workspace::{FILE, Workspace},
};
use crate::{
    args::config::TrustArguments,
    changes::hunks::{self, CONTEXT, Format},
    report,
    terminal::style::Paint,
};

/// Runs `kennel trust`.
pub(crate) fn trust(arguments: &TrustArguments) -> Result<ExitCode, Error> {
    let top = Workspace::of(arguments.directory.as_deref()).top.unwrap_or_default();
    let top = fs::canonicalize(&top)
        .map_err(|source| unusable(&top, source, "name the directory of kennel.toml"))?;
    let path = top.join(FILE);
    if arguments.remove {
        return forget(&path).map(|()| ExitCode::SUCCESS);
    }
    let found = file::read(&path, Links::Refused, Owner::Any);
    let found = found.and_then(|found| found.ok_or(io::ErrorKind::NotFound.into()));
    let file = found.map_err(|source| unusable(&path, source, "`kennel init` writes one"))?;
    let trusted = of(&path)?;
    print(&file, trusted.as_deref())?;
    if !arguments.show {
        // Trust nothing that would be refused later.
        Policy::from_file_text(&path, &file.text, &top)?;
        remember(&path, &file.text)?;
        report::say("kennel: it is trusted as it is printed here; `kennel trust --remove` takes that back");
        return Ok(ExitCode::SUCCESS);
    }
    let is_trusted = trusted.as_ref() == Some(&file.text);
    report::say(match &trusted {
        _ if is_trusted => "kennel: it is trusted",
        Some(_) => "kennel: it has changed since it was trusted",
        None => "kennel: it is not trusted",
    });
    Ok(if is_trusted { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints a file with its path, and what is new in it since it was trusted. A command may have written it, so
/// nothing in it reaches a terminal as it is.
fn print(file: &ConfigFile, trusted: Option<&str>) -> Result<(), Error> {
    let mut text = format!("# {}\n", harmless(&file.path.to_string_lossy()));
    for line in file.text.lines() {
        text += &harmless(&line.replace('\t', "    "));
        text.push('\n');
    }
    if let Some(trusted) = trusted {
        let format = Format { paint: Paint::stdout(), context: CONTEXT };
        text += &hunks::of_texts(["as you trusted it", "as it is now"], [trusted, &file.text], format);
    }
    report::print(text.as_bytes())
}

/// The text at `path` that the user trusts, if any.
///
/// # Errors
/// The record cannot be read, or others can write it.
pub(super) fn of(path: &Path) -> Result<Option<String>, Error> {
    let Some(record) = record_of(path) else { return Ok(None) };
    let found = file::read(&record, Links::Refused, Owner::Caller);
    let found =
        found.map_err(|source| unusable(&record, source, "remove it, and run `kennel trust` again"))?;
    Ok(found.map(|found| found.text))
}

/// Makes `text` what the user trusts at `path`.
///
/// # Errors
/// There is no home, or it cannot be written.
pub(super) fn remember(path: &Path, text: &str) -> Result<(), Error> {
    let record = record_of(path).ok_or_else(no_home)?;
    let failed = |source| unusable(&record, source, "make its directory yours and writable");
    let directory = record.parent().unwrap_or(Path::new("/"));
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    replace(&record, text).map_err(failed)
}

/// Writes a file anew: whoever reads it meanwhile sees the old text or the new one.
///
/// # Errors
/// It cannot be written.
pub(super) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension(format!("new-{}", std::process::id()));
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&new, path));
    written.inspect_err(|_| drop(fs::remove_file(&new)))
}

fn forget(path: &Path) -> Result<(), Error> {
    let record = record_of(path).ok_or_else(no_home)?;
    match fs::remove_file(&record) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(unusable(&record, source, "make its directory yours and writable"))
        }
        _ => Ok(()),
    }
}

fn no_home() -> Error {
    let source = io::Error::other("HOME is not an absolute path");
    unusable(Path::new("~/.config/kennel"), source, "set HOME or XDG_CONFIG_HOME")
}

/// Where the record of a file is. The name is a hash, because a path may be longer than a name.
fn record_of(path: &Path) -> Option<PathBuf> {
    let hash = Sha256::digest(path.as_os_str().as_bytes());
    let name: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(directory()?.join("trust").join(name))
}
