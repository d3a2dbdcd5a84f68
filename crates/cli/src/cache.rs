//! `kennel cache`: lists and clears what `--caches keep` has kept.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use kennel::{
    Error, Size,
    overlay::{KeptCache, clear_kept_caches, kept_caches},
};

use crate::{
    args::CacheAction,
    escape::harmless,
    report,
    style::{self, Paint},
};

/// Runs `kennel cache`.
pub(crate) fn cache(action: &CacheAction) -> Result<ExitCode, Error> {
    match action {
        CacheAction::List { json } => list(*json),
        CacheAction::Clear { paths } => clear(paths),
    }
}

fn list(json: bool) -> Result<ExitCode, Error> {
    let found = kept_caches()?;
    let text = if json { report::json(&found)? + "\n" } else { table(&found) };
    report::print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn table(found: &[KeptCache]) -> String {
    let header = format!("{:>10}  {:>8}  {:6}  PATH", "SIZE", "AGE", "STATE");
    let mut text = Paint::stdout().paint(style::TITLE, &header) + "\n";
    for cache in found {
        let state = if cache.in_use { "in use" } else { "" };
        let path = harmless(&cache.path.to_string_lossy());
        let unit = if cache.size < 10 << 20 { 1 << 10 } else { 1 << 20 };
        let size = Size::from_bytes(cache.size.next_multiple_of(unit)).to_string();
        let since =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + Duration::from_secs(cache.changed));
        let age = age(since.unwrap_or_default().as_secs());
        text.push_str(&format!("{size:>10}  {age:>8}  {state:6}  {path}\n"));
    }
    text
}

/// A time in its largest unit.
pub(crate) fn age(seconds: u64) -> String {
    let units = [("d", 86_400), ("h", 3_600), ("m", 60)];
    let unit = units.iter().find(|(_, length)| seconds >= *length);
    unit.map_or_else(|| format!("{seconds}s"), |(unit, length)| format!("{}{unit}", seconds / length))
}

fn clear(paths: &[PathBuf]) -> Result<ExitCode, Error> {
    clear_kept_caches(paths).map(|()| ExitCode::SUCCESS)
}
