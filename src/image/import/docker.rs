//! The archives of `docker save` before version 25, and of programs that write the same: `manifest.json`
//! names the configuration and the layers of each image by their paths.

use serde::Deserialize;

use super::layout::lacks;
use super::members::{Members, check};
use super::{Found, FoundLayer};
use crate::image::digest::Digest;
use crate::image::manifest::{parse, platform_here, platform_of};
use crate::report::error::import::ImportError;

/// What lists the images.
pub(super) const MANIFEST: &str = "manifest.json";

/// What archives before docker 1.10 have alone.
pub(super) const REPOSITORIES: &str = "repositories";

/// An image of the list.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Vec<String>,
}

/// Whether a text is the list of such an archive. Manifests of registries are objects.
pub(super) fn is_list(text: &[u8]) -> bool {
    text.trim_ascii_start().starts_with(b"[")
}

/// The images for this machine.
///
/// # Errors
/// There is none, or a description is wrong.
pub(super) fn images(members: &Members) -> Result<Vec<Found>, ImportError> {
    let list = listed(members)?;
    if list.is_empty() {
        let reason = "it names no image".to_owned();
        return Err(ImportError::Document { document: MANIFEST.to_owned(), reason });
    }
    let (mut images, mut platforms) = (Vec::new(), Vec::new());
    for one in list {
        let config = members.document(&one.config)?.ok_or_else(|| lacks(MANIFEST, &one.config))?;
        if let Some(digest) = digest_in(&one.config) {
            check(&one.config, digest, &config)?;
        }
        match platform_of(&one.config, &config)? {
            Some(found) if found != platform_here() => platforms.push(found),
            _ => images.push(image(members, one, config)?),
        }
    }
    if images.is_empty() {
        return Err(ImportError::Platform { wanted: platform_here(), found: platforms });
    }
    Ok(images)
}

fn listed(members: &Members) -> Result<Vec<Listed>, ImportError> {
    let text = members.document(MANIFEST)?.ok_or_else(|| lacks("the archive", MANIFEST))?;
    parse(MANIFEST, &text)
}

fn image(members: &Members, listed: Listed, config: Vec<u8>) -> Result<Found, ImportError> {
    let mut layers = Vec::new();
    for name in listed.layers {
        let part = members.open(&name)?.ok_or_else(|| lacks(MANIFEST, &name))?;
        // Older archives name layers by numbers that are no digests; the configuration has those of the
        // contents.
        let digest = name.strip_prefix("blobs/").and_then(digest_in);
        layers.push(FoundLayer { digest, part });
    }
    Ok(Found { names: listed.repo_tags.unwrap_or_default(), config, layers })
}

/// Gives images the names that the list has for their configurations: newer archives have both descriptions.
///
/// # Errors
/// The list is wrong.
pub(super) fn add_names(members: &Members, images: &mut [Found]) -> Result<(), ImportError> {
    match members.document(MANIFEST)? {
        Some(text) if is_list(&text) => {}
        _ => return Ok(()),
    }
    for listed in listed(members)? {
        let Some(config) = members.document(&listed.config)? else { continue };
        let same = images.iter_mut().filter(|image| image.config == config);
        same.for_each(|image| image.names.extend(listed.repo_tags.iter().flatten().cloned()));
    }
    Ok(())
}

/// The digest that the name of a file has: `…/HEX`, `HEX.json`, `sha256:HEX`.
fn digest_in(name: &str) -> Option<Digest> {
    let name = name.rsplit('/').next()?;
    let name = name.strip_prefix("sha256:").unwrap_or(name);
    format!("sha256:{}", name.strip_suffix(".json").unwrap_or(name)).parse().ok()
}
