//! `kennel image`: the store of images. It is in the executable `kennel-image`, so that `kennel run` carries
//! no code that unpacks archives. It runs no command of the user.

mod export;
mod import;
pub(crate) mod missing;
mod namespace;
mod pull;
mod remove;
mod show;
pub(crate) mod snapshot;

use std::{
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use kennel::{
    Error, Size,
    image::{Image, ImageError, ImageLimits, Reference, Store, StoreWriter},
};

use crate::{args::image::ImageAction, config::images::table::images};

/// Runs `kennel image`.
pub(crate) fn image(action: &ImageAction) -> Result<ExitCode, Error> {
    match action {
        ImageAction::Import(arguments) => import::import(arguments),
        ImageAction::Pull(arguments) => pull::pull(arguments),
        ImageAction::List(output) => show::list(output.json),
        ImageAction::Inspect { image, output } => show::inspect(image, output.json),
        ImageAction::Remove { images, output } => remove::remove(images, output.json),
        ImageAction::Prune { unused_for, output } => remove::prune(*unused_for, output.json),
        ImageAction::Df(output) => show::df(output.json),
        ImageAction::Export { image, file, output } => export::export(image, file, output.json),
    }
}

fn store() -> Result<Store, Error> {
    Ok(Store::open_default()?)
}

/// The store with the limits of the user's configuration.
fn writer() -> Result<StoreWriter, Error> {
    let (set, default) = (images()?, ImageLimits::default());
    let mut limits = default;
    limits.max_size = set.max_size.map_or(default.max_size, Size::bytes);
    limits.max_files = set.max_files.unwrap_or(default.max_files);
    Ok(store()?.writer()?.with_limits(limits))
}

/// The image that a word of the command line means.
fn find(store: &Store, word: &str) -> Result<Image, Error> {
    let reference: Reference = word.parse().map_err(Error::from)?;
    let found = store.find(&reference)?;
    found.ok_or_else(|| ImageError::NotFound { name: word.to_owned() }.into())
}

/// A number of bytes for people, rounded up.
fn size(bytes: u64) -> String {
    let unit = if bytes < 10 << 20 { 1 << 10 } else { 1 << 20 };
    Size::from_bytes(bytes.max(1).next_multiple_of(unit)).to_string()
}

/// Seconds since 1970.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
