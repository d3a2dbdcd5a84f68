//! The directory that holds what commands change in another root, for as long as the session lives.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, mkdirat};

use crate::caller::Caller;
use crate::image::work::{TEMPORARY, WorkDirectory};
use crate::image::{ImageError, Store};
use crate::overlay::claim::Claim;
use crate::policy::Policy;
use crate::policy::image_upper::ImageUpper;
use crate::report::error::Error;

/// What of a directory in the store holds changes.
const CHANGES: &str = "changes";

/// Dropping it removes the changes.
#[derive(Debug)]
pub(crate) struct RootUpper {
    pub(crate) claim: Claim,
    /// The directory of Kennel's own, with the changes in it.
    _own: Option<WorkDirectory>,
}

impl RootUpper {
    /// Claims the directory that a policy wants, and gives the policy with its path. `None` if it wants none.
    ///
    /// # Errors
    /// The store cannot be used, or those of [`Claim::take_for_root`].
    pub(crate) fn of(policy: &Policy, caller: &Caller) -> Result<Option<(Policy, Self)>, Error> {
        let (path, own) = match &policy.image_upper {
            None => return Ok(None),
            Some(ImageUpper::Directory(path)) => (caller.absolute(path), None),
            Some(ImageUpper::Disk) => {
                let (path, own) = own_directory(caller)?;
                (path, Some(own))
            }
        };
        let claim = Claim::take_for_root(&path)?;
        let policy = Policy { image_upper: Some(ImageUpper::Directory(path)), ..policy.clone() };
        Ok(Some((policy, Self { claim, _own: own })))
    }
}

/// A new directory in the store, in one that belongs to this process.
fn own_directory(caller: &Caller) -> Result<(PathBuf, WorkDirectory), ImageError> {
    let store = Store::open(Store::path_of(caller))?;
    let make = |path: &Path| {
        let made = fs::DirBuilder::new().mode(0o700).recursive(true).create(path);
        made.map_err(ImageError::io("make", path))
    };
    // With a root that is no image there may be no store yet.
    make(&store.path().join(TEMPORARY))?;
    store.check()?;
    WorkDirectory::clean_up(&store)?;
    let own = WorkDirectory::make(&store)?;
    let path = own.path.join(CHANGES);
    let made = mkdirat(&*own.directory, CHANGES, Mode::S_IRWXU);
    made.map_err(|errno| ImageError::io("make", &path)(errno.into()))?;
    Ok((path, own))
}
