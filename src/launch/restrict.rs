//! Restrictions of one command: steps for its worker that take away a part of what the policy grants. They
//! can never grant more, because they only take away.

use std::path::{Path, PathBuf};

use kennel_helper::plan::{MOST_FORGONE, Step, Within};

use crate::plan::{Section, empty_directory, namespaces, relative};
use crate::report::enforcement::Protection;
use crate::report::error::Error;
use crate::view::{Node, Origin, View, ViewEntry};

/// A part of the policy that a command does without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Restriction {
    /// Make a grant read-only.
    ReadOnly(PathBuf),
    /// Hide a grant.
    Hide(PathBuf),
    /// Take away the network.
    NoNetwork,
}

impl Restriction {
    /// Whether this hides `path`.
    pub(crate) fn hides(&self, path: &Path) -> bool {
        matches!(self, Self::Hide(grant) if path.starts_with(grant))
    }
}

/// Whether the policy's grant at `path` is a directory.
fn is_dir(view: &View, path: &Path) -> Result<bool, Error> {
    let granted = |place: &&ViewEntry| place.origin != Origin::Wall && is_grant(&place.node);
    // The view knows its places without a slash at their ends.
    let place: PathBuf = path.components().collect();
    view.get(&place).filter(granted).map(|place| place.node.is_dir()).ok_or_else(|| Error::Command {
        what: "grant",
        value: path.display().to_string(),
        reason: "the policy has no such grant: name it by its path in the sandbox".to_owned(),
    })
}

fn is_grant(node: &Node) -> bool {
    matches!(node, Node::Bind { .. } | Node::Layered { .. } | Node::Tmpfs { .. })
}

/// The steps for all restrictions; `None` if there are none.
///
/// # Errors
/// A path that is no grant, or too many restrictions.
pub(crate) fn steps(view: &View, restrictions: &[Restriction]) -> Result<Option<Section>, Error> {
    if restrictions.is_empty() {
        return Ok(None);
    }
    if restrictions.len() > MOST_FORGONE {
        return Err(Error::Command {
            what: "grants to go without",
            value: restrictions.len().to_string(),
            reason: format!("a command can go without {MOST_FORGONE} at most: give it a policy of its own"),
        });
    }
    let is_hidden_above = |grant: &Path| {
        grant.parent().is_some_and(|above| restrictions.iter().any(|restriction| restriction.hides(above)))
    };
    let mut section = Section::default();
    for restriction in restrictions {
        match restriction {
            // Another restriction hides it already.
            Restriction::ReadOnly(grant) | Restriction::Hide(grant) if is_hidden_above(grant) => {
                is_dir(view, grant)?;
            }
            Restriction::ReadOnly(grant) => {
                is_dir(view, grant)?;
                let grant = &relative(grant);
                section.push(Protection::Root, &crate::plan::read_only(grant, true));
                // Also through a descriptor that another command passes on.
                section.push(Protection::Landlock, &Step::Forgo { path: grant });
            }
            Restriction::Hide(grant) => {
                let empty =
                    if is_dir(view, grant)? { &*relative(empty_directory(view)) } else { crate::plan::NULL };
                let (target, within) = (&*relative(grant), Within::Granted);
                // First read-only, then covered: the step applies to what is mounted there, not to something
                // that was put in its place.
                section.push(Protection::Root, &crate::plan::read_only(target, true));
                section.push(Protection::Root, &Step::Cover { empty, target, within });
                section.push(Protection::Landlock, &Step::Forgo { path: target });
            }
            Restriction::NoNetwork => namespaces::new_network(&mut section),
        }
    }
    Ok(Some(section))
}
