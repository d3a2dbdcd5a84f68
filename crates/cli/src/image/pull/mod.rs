//! `kennel image pull`: an image from a registry. It reads top to bottom: `endpoint` says where the registry
//! is, `credentials` who asks it, `registry`, `authorization` and `patience` speak with it, `search` finds
//! the image for this machine, and `layers` brings what is missing to the store.

mod authorization;
mod cause;
mod credentials;
mod endpoint;
mod layers;
mod patience;
mod registry;
mod search;
#[cfg(test)]
mod tests;
mod words;

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    sync::Arc,
};

use kennel::{
    Error,
    image::{Digest, ImageError, ImportError, LayerNote, PullError, Reference, StoreWriter, StoredLayer},
};
use serde::Serialize;

use super::{import, size, writer};
use crate::{args::image::Pull, config::images::table::images, report};
use credentials::Credentials;
use endpoint::Endpoint;
use patience::Patience;
use registry::Registry;
use search::FoundLayer;

/// An image that is in the store now, as `--json` has it.
#[derive(Serialize)]
struct Pulled {
    digest: Digest,
    name: String,
    /// The digest of the manifest or index in the registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    manifest: Option<Digest>,
    layers: usize,
    /// How many of the layers were fetched.
    fetched_layers: usize,
    /// Bytes of these, as they were sent.
    fetched_size: u64,
    /// What was left out of the layers.
    left_out: Vec<LayerNote>,
}

pub(super) fn pull(arguments: &Pull) -> Result<ExitCode, Error> {
    let name: Reference = arguments.image.parse()?;
    let config = images()?;
    let Some(endpoint) = Endpoint::of(&name, &config) else {
        let reason = "the digest of an image is known to no registry: write NAME@DIGEST or NAME:TAG";
        return Err(ImageError::Reference { text: arguments.image.clone(), reason }.into());
    };
    // The store is tried out before anything is fetched.
    let writer = writer()?;
    let pulled = match here(&writer, &name, name.digest()) {
        Some(pulled) => pulled,
        None => {
            let credentials = Credentials::find(&credentials::files(), &endpoint.credential_keys());
            fetch(&writer, &name, endpoint, credentials, Patience::default())?
        }
    };
    if !arguments.output.json {
        import::left_out(&pulled.left_out);
    }
    summary(&pulled);
    let text = match arguments.output.json {
        true => report::json(&pulled)? + "\n",
        false => format!("{}  {}\n", pulled.digest, pulled.name),
    };
    report::print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// What the store has, if that is what the registry has for the name.
fn here(writer: &StoreWriter, name: &Reference, manifest: Option<Digest>) -> Option<Pulled> {
    let manifest = manifest?;
    // What is damaged is fetched again.
    let known = writer.store().manifest(name).ok().flatten();
    let image = writer.store().find(name).ok().flatten().filter(|_| known == Some(manifest))?;
    Some(Pulled {
        digest: image.digest,
        name: name.familiar(),
        manifest: Some(manifest),
        layers: image.layers.len(),
        fetched_layers: 0,
        fetched_size: 0,
        left_out: Vec::new(),
    })
}

/// Asks the registry, and fetches what the store does not have.
fn fetch(
    writer: &StoreWriter,
    name: &Reference,
    endpoint: Endpoint,
    credentials: Credentials,
    patience: Patience,
) -> Result<Pulled, Error> {
    let failed = |source: PullError| {
        Error::from(ImageError::Pull { image: name.familiar(), source: Box::new(source) })
    };
    let registry = Arc::new(Registry::new(endpoint, credentials, patience).map_err(failed)?);
    let current = match name.tag() {
        Some(tag) => registry.digest_of(tag).map_err(failed)?,
        None => None,
    };
    if let Some(pulled) = here(writer, name, current) {
        return Ok(pulled);
    }
    let image = search::find(&registry, writer.store(), name, current).map_err(failed)?;
    let diff_ids: Vec<Digest> = image.layers.iter().map(|layer| layer.diff_id).collect();
    let found = writer.find_layers(&diff_ids)?;
    let missing = image.layers.iter().zip(&found).filter(|(_, known)| known.is_none());
    let sizes: Vec<u64> = missing.map(|(layer, _)| layer.size).collect();
    let fetched_size = sizes.iter().fold(0_u64, |sum, size| sum.saturating_add(*size));
    let limit = writer.limits().max_size;
    if fetched_size > limit {
        return Err(failed(ImportError::TooLarge { limit }.into()));
    }
    let count = image.layers.len();
    let told = |at: usize, layer: &FoundLayer| {
        if io::stderr().is_terminal() {
            report::say(format_args!("kennel: layer {} of {count}: {}", at + 1, size(layer.size)));
        }
    };
    let layers = layers::store(writer, &registry, &image.layers, found, &failed, &told)?;
    let stored = writer.add_pulled_image(&image.config, &layers, name, &image.manifest)?;
    Ok(Pulled {
        digest: stored.digest,
        name: name.familiar(),
        manifest: Some(image.manifest),
        layers: count,
        fetched_layers: sizes.len(),
        fetched_size,
        left_out: LayerNote::sum(layers.iter().flat_map(StoredLayer::notes)),
    })
}

/// Says on stderr what was done, also to who sees no stdout: the user of `kennel run --image`.
fn summary(Pulled { name, layers, fetched_layers, fetched_size, .. }: &Pulled) {
    match fetched_layers {
        0 => report::say(format_args!("kennel: {name}: everything was here")),
        some => report::say(format_args!(
            "kennel: {name}: {some} of {layers} {} fetched, {}",
            if *layers == 1 { "layer" } else { "layers" },
            size(*fetched_size)
        )),
    }
}
