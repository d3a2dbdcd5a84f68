//! `kennel image export`.

use std::{
    fs::{self, File},
    io::{self, BufWriter, IsTerminal, Write},
    os::fd::AsFd,
    path::Path,
    process::ExitCode,
};

use kennel::{
    Error,
    image::{Exported, Reference},
};
use serde_json::json;

use super::{find, namespace, size, store};
use crate::report;

/// Bytes that are written at once.
const BUFFER: usize = 1 << 17;

pub(super) fn export(image: &str, file: &Path, json: bool) -> Result<ExitCode, Error> {
    namespace::enter();
    let store = store()?;
    let found = find(&store, image)?;
    // By its digest, it gets all its names.
    let named: Option<Reference> = image.parse().ok().filter(|name: &Reference| name.tag().is_some());
    let all = store.images()?.into_iter().find(|one| one.digest == found.digest).map(|one| one.names);
    let mut names = all.unwrap_or_default();
    if let Some(named) = named
        && names.contains(&named)
    {
        names = vec![named];
    }
    let is_stdout = file == Path::new("-");
    let output = if is_stdout { stdout()? } else { create(file)? };
    let mut output = BufWriter::with_capacity(BUFFER, output);
    let exported = kennel::image::export(&found, &names, &mut output).map_err(Error::from);
    let exported =
        exported.and_then(|done| output.flush().map(|()| done).map_err(|error| unwritten(file, error)));
    if exported.is_err() && !is_stdout {
        // It was made by this process.
        let _ = fs::remove_file(file);
    }
    let exported = exported?;
    let text = if json { as_json(&exported, file)? } else { line(&exported) };
    // stdout is the archive.
    if is_stdout {
        report::say(format_args!("kennel: {}", text.trim_end()));
    } else {
        report::print(text.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn line(exported: &Exported) -> String {
    format!("{}  {}, manifest {}\n", exported.digest, size(exported.size), exported.manifest)
}

fn as_json(exported: &Exported, file: &Path) -> Result<String, Error> {
    let Exported { digest, manifest, size, .. } = exported;
    let file = file.to_string_lossy();
    Ok(report::json(&json!({ "file": file, "digest": digest, "manifest": manifest, "size": size }))? + "\n")
}

fn stdout() -> Result<File, Error> {
    let failed = |source| unwritten(Path::new("stdout"), source);
    if io::stdout().is_terminal() {
        return Err(failed(io::Error::other("it is a terminal")));
    }
    Ok(File::from(io::stdout().as_fd().try_clone_to_owned().map_err(failed)?))
}

/// Creates the file. A link that somebody put there is not followed.
fn create(path: &Path) -> Result<File, Error> {
    File::options().write(true).create_new(true).open(path).map_err(|source| unwritten(path, source))
}

fn unwritten(path: &Path, source: io::Error) -> Error {
    let remedy = match source.kind() {
        io::ErrorKind::AlreadyExists => "remove the file, or name another one",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free space there, or write it elsewhere"
        }
        _ if path == Path::new("stdout") => "pass it to a program or a file: … - > image.tar",
        _ => "name a file in a directory that you can write to",
    };
    Error::Grant { what: "archive", path: path.to_owned(), source, remedy: Some(remedy.into()) }
}
