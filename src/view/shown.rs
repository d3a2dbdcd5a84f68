//! Where a view shows a path of the host.

use std::path::{Path, PathBuf};

use crate::sys::lexical;
use crate::sys::lexical::clean;
use crate::view::{Origin, View};

/// The places of a view that show files of the host, as they were when [`View::shown`] was called. Walls that
/// are added later show nothing new.
pub(crate) struct Shown(Vec<Place>);

struct Place {
    target: PathBuf,
    /// The path of the host.
    source: PathBuf,
    /// Whether the profile shows it, and no policy names it.
    is_of_profile: bool,
}

impl Shown {
    /// Every place in the sandbox that shows the host's `path`, except places that the policy names itself.
    pub(crate) fn at(&self, path: &Path) -> Vec<PathBuf> {
        let path = clean(path);
        self.0.iter().filter_map(|place| place.shows(&path)).collect()
    }

    /// Whether [`at`](Self::at) finds a place.
    pub(crate) fn has(&self, path: &Path) -> bool {
        let path = clean(path);
        self.0.iter().any(|place| place.shows(&path).is_some())
    }
}

impl Place {
    fn shows(&self, path: &Path) -> Option<PathBuf> {
        let below = lexical::below(path, &self.source)?;
        if below.as_os_str().is_empty() {
            return self.is_of_profile.then(|| self.target.clone());
        }
        Some(self.target.join(below))
    }
}

impl View {
    /// Where this view shows files of the host. To ask for many paths, ask this for all of them.
    pub(crate) fn shown(&self) -> Shown {
        let places = self.iter().filter_map(|(target, place)| {
            let source = place.node.source()?.path.clone();
            Some(Place { target: target.to_owned(), source, is_of_profile: place.origin == Origin::Profile })
        });
        Shown(places.collect())
    }
}
