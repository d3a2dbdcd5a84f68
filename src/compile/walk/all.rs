//! All that a path of the host comes by, from the root.

use std::path::{Path, PathBuf};

use super::{Aim, Bases, Met, Walk, Way};
use crate::Error;

/// Every place that decides where `path`, which is absolute, leads: links and `..` on the way, and its end. Messages call
/// it `what`.
///
/// # Errors
/// Where it is not allowed to look.
pub(crate) fn on_the_way(what: &'static str, path: &Path) -> Result<Vec<PathBuf>, Error> {
    let decides = |met: Met| match met {
        // Up from a directory decides who can put a link in its place: who may write to the one that it lies in.
        Met::Up { at } => at.ancestors().nth(2).map(Path::to_owned),
        met => Some(met.at()),
    };
    Ok(all_on(what, path)?.into_iter().filter_map(decides).collect())
}

/// The links that `path`, which is absolute, leads over, and where they lead in the end.
///
/// # Errors
/// Where it is not allowed to look.
pub(in crate::compile) fn links_on(path: &Path) -> Result<(Vec<PathBuf>, PathBuf), Error> {
    let mut met = all_on("path", path)?;
    // Nothing is told of the root itself.
    let end = met.pop_if(|met| met.is_end()).map_or_else(|| "/".into(), Met::at);
    let links = met.into_iter().filter(|met| matches!(met, Met::Link { .. }));
    Ok((links.map(Met::at).collect(), end))
}

/// Everything that a way comes by, to its end.
fn all_on(what: &'static str, path: &Path) -> Result<Vec<Met>, Error> {
    let root = Bases::new([PathBuf::from("/")]);
    let mut walk = Walk { what, ..Walk::new(&root, &Way::new(Path::new("/"), path), Aim::Path) };
    let mut all = Vec::new();
    while let Some(met) = walk.go_on(|_| false)? {
        let is_end = met.is_end();
        all.push(met);
        if is_end {
            break;
        }
    }
    Ok(all)
}

impl Met {
    fn is_end(&self) -> bool {
        !matches!(self, Self::Link { .. } | Self::Up { .. })
    }

    fn at(self) -> PathBuf {
        match self {
            Self::Link { at, .. }
            | Self::Up { at }
            | Self::Thing { at, .. }
            | Self::Far { at, .. }
            | Self::Nothing { first: at, .. } => at,
        }
    }
}
