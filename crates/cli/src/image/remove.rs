//! `kennel image remove` and `kennel image prune`.

use std::{process::ExitCode, time::Duration};

use kennel::{
    Error,
    image::{Digest, ImageError, Pruned, Reference, StoreWriter},
    report::Failure,
};
use serde::Serialize;

use super::{size, writer};
use crate::{process::exit_status::FAILED, report};

/// What was removed, as `--json` has it.
#[derive(Default, Serialize)]
struct Removed {
    names: Vec<String>,
    images: Vec<Digest>,
    layers: u64,
    /// Bytes of the layers' archives, uncompressed.
    size: u64,
    /// Only of `remove`: what could not be removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failures: Vec<NotRemoved>,
}

#[derive(Serialize)]
struct NotRemoved {
    image: String,
    failure: Failure,
}

impl Removed {
    fn add(&mut self, pruned: &Pruned) {
        self.names.extend(pruned.names.iter().map(Reference::familiar));
        self.images.extend(&pruned.images);
        self.layers += pruned.layers;
        self.size += pruned.size;
    }

    /// The names and digests that are gone, and what that freed.
    fn text(&self) -> String {
        let names = self.names.iter().map(|name| format!("removed name {name}\n"));
        let images = self.images.iter().map(|digest| format!("removed image {digest}\n"));
        let layers = if self.layers == 1 { "layer" } else { "layers" };
        let size = if self.size == 0 { "0".to_owned() } else { size(self.size) };
        names.chain(images).collect::<String>() + &format!("freed {} {layers}, {size}\n", self.layers)
    }
}

pub(super) fn remove(images: &[String], json: bool) -> Result<ExitCode, Error> {
    let writer = writer()?;
    let mut removed = Removed::default();
    for image in images {
        match remove_one(&writer, image) {
            Ok(pruned) => removed.add(&pruned),
            Err(error) => {
                report::error(&error);
                removed.failures.push(NotRemoved { image: image.clone(), failure: error.failure() });
            }
        }
    }
    let status = if removed.failures.is_empty() { ExitCode::SUCCESS } else { FAILED.into() };
    // If nothing was removed, the errors say all.
    if json || removed.failures.len() < images.len() {
        print(&removed, json)?;
    }
    Ok(status)
}

fn remove_one(writer: &StoreWriter, image: &str) -> Result<Pruned, Error> {
    writer.remove(&image.parse::<Reference>()?).map_err(|error| match error {
        ImageError::NotFound { .. } => ImageError::NotFound { name: image.to_owned() }.into(),
        error => error.into(),
    })
}

pub(super) fn prune(unused_for: Option<Duration>, json: bool) -> Result<ExitCode, Error> {
    let mut removed = Removed::default();
    removed.add(&writer()?.prune(unused_for)?);
    print(&removed, json)?;
    Ok(ExitCode::SUCCESS)
}

fn print(removed: &Removed, json: bool) -> Result<(), Error> {
    let text = if json { report::json(removed)? + "\n" } else { removed.text() };
    report::print(text.as_bytes())
}
