//! What a policy comes to on macOS, for people.

use crate::macos::cell::Cell;
use crate::macos::places::ShownPlace;
use crate::policy::network::NetworkMode;
use crate::report::in_force::{InForce, Place, PlaceAccess, PlaceOrigin};
use crate::report::place_kind::PlaceKind;
use crate::seatbelt::{Use, system};

impl Cell {
    /// What holds for commands, as far as it is known before one starts.
    pub(crate) fn in_force(&self) -> InForce {
        let grants = &self.places.grants;
        let system = system(grants.tools).filter(|_| !grants.reads_all);
        let system = system.chain(grants.reads_all.then_some("/")).map(|path| ShownPlace {
            path: path.into(),
            granted: Use::Read,
            what: PlaceKind::System,
        });
        // Many are for what a command could make.
        let is_there = |place: &&ShownPlace| {
            !matches!(place.what, PlaceKind::Secret | PlaceKind::ProtectedPath) || place.path.exists()
        };
        let shown = self.places.shown.iter().filter(is_there).cloned();
        let mut places: Vec<Place> = system.chain(shown).map(place).collect();
        places.sort_by(|one, other| one.path.cmp(&other.path));
        places.dedup();
        let shows_proxy = (self.policy.effective_network() == NetworkMode::Proxy).then_some(0);
        let own = crate::macos::environment::of_command(&self.policy, "".as_ref(), shows_proxy);
        let names = self.variables.keys().chain(own.keys());
        let mut variables: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        variables.sort();
        variables.dedup();
        InForce { directory: self.places.directory.clone(), root: None, places, variables }
    }
}

fn place(ShownPlace { path, granted, what }: ShownPlace) -> Place {
    let access = match granted {
        Use::Read => PlaceAccess::Read,
        Use::Write => PlaceAccess::Write,
        Use::Hidden => PlaceAccess::Hidden,
    };
    let origin = match what {
        PlaceKind::System | PlaceKind::Toolchain | PlaceKind::Cache => PlaceOrigin::Profile,
        PlaceKind::Secret | PlaceKind::ProtectedPath | PlaceKind::File => PlaceOrigin::Wall,
        _ => PlaceOrigin::Policy,
    };
    let host = (granted != Use::Hidden).then(|| path.clone());
    Place { path, host, access, what, origin }
}
