//! What a compiled policy shows to commands, as [`InForce`] has it.

use crate::plan::compile::Compiled;
use crate::report::in_force::{InForce, Place, PlaceAccess, PlaceOrigin};
use crate::view::{Access, Node, Origin, ViewEntry};

impl Compiled {
    /// What holds for commands, as far as it is known before one starts.
    pub(crate) fn in_force(&self) -> InForce {
        let names = self.commands.environment.0.keys().map(|name| name.to_string_lossy().into_owned());
        let places = self.view.iter().filter_map(|(path, entry)| {
            Some(Place {
                path: path.to_owned(),
                host: entry.node.source().map(|source| source.path.clone()),
                access: access(entry)?,
                what: entry.what,
                origin: match entry.origin {
                    Origin::Profile => PlaceOrigin::Profile,
                    Origin::Policy => PlaceOrigin::Policy,
                    Origin::Wall => PlaceOrigin::Wall,
                },
            })
        });
        InForce {
            root: self.view.root.as_ref().map(|root| root.words()),
            directory: self.commands.directory.clone(),
            places: places.collect(),
            variables: names.collect(),
        }
    }
}

/// `None` for directories that only lead to other places.
fn access(entry: &ViewEntry) -> Option<PlaceAccess> {
    Some(match &entry.node {
        Node::Dir | Node::OwnTmpfs { .. } => return None,
        Node::Bind { access: Access::Read, .. } | Node::Merged { .. } => PlaceAccess::Read,
        Node::Bind { access: Access::Write, .. } => PlaceAccess::Write,
        Node::Bind { access: Access::Device, .. } => PlaceAccess::Device,
        Node::Layered { .. } | Node::Root { is_writable: true } => PlaceAccess::Copy,
        Node::Root { is_writable: false } => PlaceAccess::Read,
        Node::Private { .. } | Node::Tmpfs { .. } => PlaceAccess::Private,
        Node::File { .. }
        | Node::OwnFile { .. }
        | Node::Symlink { .. }
        | Node::Proc { .. }
        | Node::DevPts => PlaceAccess::Own,
        Node::Cover | Node::CoverFile | Node::Absent => PlaceAccess::Hidden,
    })
}
