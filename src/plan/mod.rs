//! The plan: policy, view and facts of the host become steps that the inside carries out.

pub(crate) mod bridge;
pub(crate) mod cgroup;
pub(crate) mod compile;
pub(crate) mod emit;
pub(crate) mod explain;
pub(crate) mod landlock;
pub(crate) mod limits;
pub(crate) mod mount_state;
pub(crate) mod namespaces;
pub(crate) mod network;
pub(crate) mod overlay;
pub(crate) mod request;
pub(crate) mod restrict;
pub(crate) mod seccomp;
pub(crate) mod sections;
pub(crate) mod worker_mounts;

use kennel_helper::plan::{Entry, Step};
use kennel_helper::wire::Field;

use crate::policy::Policy;
use crate::policy::require::Requirement;
use crate::report::enforcement::Protection;

/// A list of encoded steps, and the protection that each belongs to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Section {
    pub(crate) bytes: Vec<u8>,
    protections: Vec<Protection>,
}

impl Section {
    /// Appends a step. If it fails, the sandbox does not start.
    pub(crate) fn push(&mut self, protection: Protection, step: &Step<'_>) {
        self.put(protection, step, false);
    }

    /// Appends a step that may fail if the policy says `if_available` for `protection`.
    pub(crate) fn push_by(&mut self, policy: &Policy, protection: Protection, step: &Step<'_>) {
        let optional = policy.effective_requirement(protection) == Requirement::IfAvailable;
        self.put(protection, step, optional);
    }

    fn put(&mut self, protection: Protection, step: &Step<'_>, optional: bool) {
        Entry { optional, step: *step }.put(&mut self.bytes);
        self.protections.push(protection);
    }

    /// The steps of `self`, then those of `other`.
    pub(crate) fn followed_by(&self, other: &Self) -> Self {
        Self {
            bytes: [&*self.bytes, &other.bytes].concat(),
            protections: [&*self.protections, &other.protections].concat(),
        }
    }

    /// The step at `index`, and its protection.
    pub(crate) fn step(&self, index: u32) -> Option<(Protection, Step<'_>)> {
        let index = usize::try_from(index).ok()?;
        let entry = kennel_helper::plan::entries(&self.bytes).nth(index)??;
        Some((*self.protections.get(index)?, entry.step))
    }
}
