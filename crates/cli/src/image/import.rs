//! `kennel image import`.

use std::{fs::File, io, os::fd::AsFd, path::Path, process::ExitCode};

use kennel::{
    Error,
    image::{Digest, Given, Imported, LayerNote, Reference, StoredLayer},
    internal::escape::harmless,
};
use serde::Serialize;

use super::{namespace, writer};
use crate::{args::image::Import, report};

/// An image that was imported, as `--json` has it.
#[derive(Serialize)]
struct Shown {
    digest: Digest,
    names: Vec<String>,
    layers: usize,
    /// Bytes of the layers' archives, uncompressed.
    size: u64,
    /// What was left out of the layers.
    left_out: Vec<LayerNote>,
}

pub(super) fn import(arguments: &Import) -> Result<ExitCode, Error> {
    let name = arguments.name.as_deref().map(name).transpose()?;
    let given = given(&arguments.source)?;
    if matches!(given, Given::Path(path) if path.is_dir()) {
        namespace::enter();
    }
    tell(&kennel::image::import(&writer()?, given, name.as_ref())?, arguments.output.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints what is in the store now.
pub(super) fn tell(imported: &[Imported], is_json: bool) -> Result<(), Error> {
    let text = if is_json {
        report::json(&imported.iter().map(shown).collect::<Vec<_>>())? + "\n"
    } else {
        imported.iter().for_each(notes);
        imported.iter().map(line).collect()
    };
    report::print(text.as_bytes())
}

/// A name that an image can have.
pub(super) fn name(text: &str) -> Result<Reference, Error> {
    let name: Reference = text.parse().map_err(Error::from)?;
    if name.tag().is_some() {
        return Ok(name);
    }
    Err(Error::Command {
        what: "name",
        value: text.to_owned(),
        reason: "a digest is no name; write NAME:TAG, as in python:3.12".to_owned(),
    })
}

fn given(source: &Path) -> Result<Given<'_>, Error> {
    if source != Path::new("-") {
        return Ok(Given::Path(source));
    }
    let stdin = io::stdin().as_fd().try_clone_to_owned();
    let stdin = stdin.map_err(|source| Error::Io { what: "read stdin", source })?;
    Ok(Given::Stream(File::from(stdin)))
}

fn shown(imported: &Imported) -> Shown {
    Shown {
        digest: imported.digest,
        names: imported.names.iter().map(Reference::familiar).collect(),
        layers: imported.layers.len(),
        size: imported.layers.iter().map(StoredLayer::size).sum(),
        left_out: imported.notes(),
    }
}

/// The digest, then the names.
fn line(imported: &Imported) -> String {
    let names = imported.names.iter().map(|name| format!("  {}", name.familiar()));
    format!("{}{}\n", imported.digest, names.collect::<String>())
}

/// Says what layers lack.
pub(super) fn left_out(notes: &[LayerNote]) {
    for note in notes {
        let entries = if note.count == 1 { "entry" } else { "entries" };
        report::say(format_args!("kennel: note: left out: {} ({} {entries})", note.dropped, note.count));
    }
}

/// Says what is not as in the archive.
fn notes(imported: &Imported) {
    left_out(&imported.notes());
    for path in imported.left_out.iter().take(10) {
        let path = harmless(&path.to_string_lossy());
        report::say(format_args!("kennel: note: left out: {path}, which no image can hold"));
    }
    if imported.names.is_empty() {
        let why = match imported.other_names.first() {
            Some(other) => format!("the archive has only `{}`", harmless(other)),
            None => "it has no name".to_owned(),
        };
        report::say(format_args!("kennel: note: {why}, so it is known by its digest; --name gives it one"));
    }
}
