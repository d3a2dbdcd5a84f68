//! `kennel image list`, `inspect` and `df`: what is in the store.

use std::{process::ExitCode, time::SystemTime};

use kennel::{
    Error,
    image::{Image, ImageSummary, Reference},
    internal::escape::harmless,
};
use serde_json::{Value, json};

use super::{find, seconds, size, store};
use crate::{
    report,
    terminal::{
        style::{self, Paint},
        table::{Table, age},
    },
};

/// Digits of a digest in the list. As many as docker shows.
const DIGITS: usize = 12;

pub(super) fn list(json: bool) -> Result<ExitCode, Error> {
    let images = store()?.images()?;
    let text = if json {
        report::json(&images.iter().map(summary).collect::<Vec<_>>())? + "\n"
    } else {
        table(&images)
    };
    report::print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// A line of the list, as `--json` has it.
fn summary(image: &ImageSummary) -> Value {
    json!({
        "digest": image.digest,
        "names": image.names.iter().map(Reference::familiar).collect::<Vec<_>>(),
        "os": image.platform.os,
        "architecture": image.platform.architecture,
        "created": image.created,
        "layers": image.layers,
        "size": image.size,
        "used": seconds(image.used),
    })
}

fn table(images: &[ImageSummary]) -> String {
    let mut rows: Vec<(String, &ImageSummary)> = Vec::new();
    for image in images {
        rows.extend(image.names.iter().map(|name| (name.familiar(), image)));
        if image.names.is_empty() {
            rows.push(("-".to_owned(), image));
        }
    }
    rows.sort_by(|(one, _), (other, _)| one.cmp(other));
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default().max("NAME".len());
    let header =
        format!("{:width$}  {:DIGITS$}  {:>6}  {:>8}  {:>6}", "NAME", "DIGEST", "LAYERS", "SIZE", "USED");
    let mut text = Paint::stdout().paint(style::TITLE, &header) + "\n";
    for (name, image) in rows {
        let hex = image.digest.hex();
        let digest = hex.get(..DIGITS).unwrap_or(&hex);
        let used = SystemTime::now().duration_since(image.used).unwrap_or_default().as_secs();
        let (size, used) = (size(image.size), age(used));
        text.push_str(&format!("{name:width$}  {digest}  {:>6}  {size:>8}  {used:>6}\n", image.layers));
    }
    text
}

pub(super) fn inspect(word: &str, json: bool) -> Result<ExitCode, Error> {
    let store = store()?;
    let image = find(&store, word)?;
    let summaries = store.images()?;
    let Some(known) = summaries.iter().find(|one| one.digest == image.digest) else {
        return Err(kennel::image::ImageError::NotFound { name: word.to_owned() }.into());
    };
    let layers = store.layers(&image)?;
    let text = if json {
        let mut shown = summary(known);
        shown["layers"] = json!(layers);
        shown["config"] = serde_json::from_str(image.config_json()).unwrap_or_default();
        report::json(&shown)? + "\n"
    } else {
        page(&image, known, &layers)
    };
    report::print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// An image for people.
fn page(image: &Image, known: &ImageSummary, layers: &[kennel::image::LayerSummary]) -> String {
    let table = Table::stdout();
    let mut text = String::new();
    let mut entry = |label: &str, value: &str| {
        if !value.is_empty() {
            text += &table.entry(label, value, "");
        }
    };
    entry("digest", &image.digest.to_string());
    known.names.iter().for_each(|name| entry("name", &name.familiar()));
    entry("platform", &format!("{}/{}", image.config.platform.os, image.config.platform.architecture));
    entry("created", image.config.created.as_deref().unwrap_or_default());
    entry("size", &size(known.size));
    entry("entrypoint", &words(&image.config.entrypoint));
    entry("cmd", &words(&image.config.cmd));
    entry("user", image.config.user.as_deref().unwrap_or_default());
    entry("working directory", image.config.working_dir.as_deref().unwrap_or_default());
    image.config.env.iter().for_each(|variable| entry("env", variable));
    for layer in layers {
        entry("layer", &format!("{}  {}, {} files", layer.diff_id, size(layer.size), layer.files));
    }
    text
}

/// Words as JSON, so that their borders can be seen.
fn words(words: &[String]) -> String {
    match words.is_empty() {
        true => String::new(),
        false => harmless(&json!(words).to_string()),
    }
}

pub(super) fn df(json: bool) -> Result<ExitCode, Error> {
    let store = store()?;
    let usage = store.writer()?.usage()?;
    // What the images would take if none shared a layer.
    let apart: u64 = store.images()?.iter().map(|image| image.size).sum();
    let shared = apart.saturating_sub(usage.size);
    let text = if json {
        let shown = json!({
            "path": store.path().to_string_lossy(),
            "images": usage.images,
            "names": usage.names,
            "layers": usage.layers,
            "files": usage.files,
            "size": usage.size,
            "shared": shared,
            "reclaimable": usage.reclaimable,
        });
        report::json(&shown)? + "\n"
    } else {
        let table = Table::stdout();
        let size = |bytes: u64| if bytes == 0 { "0".to_owned() } else { size(bytes) };
        table.entry("store", &store.path().to_string_lossy(), "")
            + &table.entry("images", &usage.images.to_string(), "")
            + &table.entry("names", &usage.names.to_string(), "")
            + &table.entry("layers", &usage.layers.to_string(), "")
            + &table.entry("files", &usage.files.to_string(), "")
            + &table.entry("size", &size(usage.size), "of the layers' archives, uncompressed")
            + &table.entry("shared", &size(shared), "what it saves that images share layers")
            + &table.entry(
                "reclaimable",
                &size(usage.reclaimable),
                "in images without a name; kennel image prune",
            )
    };
    report::print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
