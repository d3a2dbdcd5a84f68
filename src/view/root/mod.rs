//! A root file system other than the host's: an image, or a directory of the caller.
//!
//! The root is an overlay, and commands can change all of it. Over it are the kernel's file systems, the
//! devices, a few files about the sandbox, and what the policy grants. Of the host nothing else is shown.

pub(crate) mod over;
pub(crate) mod tree;
pub(crate) mod user;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::caller::Caller;
use crate::host::{Host, Version};
use crate::image::{Image, ImageError, Store};
use crate::policy::Policy;
use crate::report::enforcement::Protection;
use crate::report::error::Error;
use crate::report::failure::shown;
use crate::report::remedy::{SettingKey, remedy};
use crate::report::shortage::of_path;
use crate::sys::lexical::clean;
use crate::view::paths::source::{BindSource, SourceKind};
use crate::view::root::tree::{Found, LayerTree};
use crate::view::root::user::RootUser;

/// First kernel that takes the layers of an overlay one by one (`lowerdir+`), so that they need not fit into
/// a page. User extended attributes on tmpfs, for the changes, came with 6.6.
const OLDEST: Version = Version(6, 8);

/// A root that the policy names, and who commands are there.
#[derive(Debug)]
pub(crate) struct OtherRoot {
    /// Its layers, uppermost first.
    pub(crate) layers: Vec<BindSource>,
    pub(crate) user: RootUser,
    pub(crate) tree: LayerTree,
    /// The image, which stays in its store while this lives.
    pub(crate) image: Option<Image>,
}

impl OtherRoot {
    /// Finds the root of a policy; `None` if that is the host's.
    ///
    /// # Errors
    /// It is no directory, or has no such user; this host cannot mount it.
    pub(crate) fn find(policy: &Policy, host: &Host, caller: &Caller) -> Result<Option<Arc<Self>>, Error> {
        let (image, layers) = match (&policy.image, &policy.root) {
            (Some(name), _) => {
                let image = find_image(name, caller)?;
                let layers = image.layers.iter().rev().map(|layer| layer_of_store(layer));
                let layers = layers.collect::<Result<_, _>>()?;
                (Some(image), layers)
            }
            (None, Some(given)) => (None, vec![directory(&caller.absolute(given), caller)?]),
            (None, None) => return Ok(None),
        };
        check_host(host)?;
        let tree = LayerTree::new(layers.iter().map(|layer: &BindSource| layer.path.clone()));
        let of_image = image.as_ref().and_then(|image| image.config.user.as_deref());
        let user = RootUser::of(policy.user.as_deref().or(of_image), &tree)?;
        Ok(Some(Arc::new(Self { layers, user, tree, image })))
    }

    /// The variables of an image: those with a name.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.image.iter().flat_map(|image| &image.config.env);
        all.filter_map(|variable| variable.split_once('=').filter(|(name, _)| !name.is_empty()))
    }

    /// The directory in which commands of an image start.
    pub(crate) fn directory(&self) -> Option<PathBuf> {
        let given = self.image.as_ref()?.config.working_dir.as_deref()?;
        Some(clean(Path::new("/").join(given)))
    }

    /// What the root is, in the words of reports.
    pub(crate) fn words(&self) -> String {
        match (&self.image, self.layers.first()) {
            (Some(image), _) => format!("image {}", image.digest),
            (None, layer) => format!("directory {}", shown(layer.map_or(Path::new(""), |layer| &layer.path))),
        }
    }

    /// What the root has at a path without links.
    pub(crate) fn kind(&self, path: &Path) -> Option<SourceKind> {
        match self.tree.find(path) {
            Found::Nothing => None,
            Found::Directory => Some(SourceKind::Directory),
            Found::Link { .. } | Found::File { .. } => Some(SourceKind::File),
        }
    }
}

/// The image of that name in the caller's store.
fn find_image(name: &str, caller: &Caller) -> Result<Image, Error> {
    let found = Store::open(Store::path_of(caller))?.find(&name.parse()?)?;
    found.ok_or_else(|| ImageError::NotFound { name: name.to_owned() }.into())
}

/// A layer of the store, which other users cannot enter.
fn layer_of_store(path: &Path) -> Result<BindSource, Error> {
    BindSource::resolve(path).map_err(|source| {
        Error::from(ImageError::Io {
            what: "look at a layer of the image store",
            path: path.to_owned(),
            source,
        })
    })
}

fn check_host(host: &Host) -> Result<(), Error> {
    if host.kernel >= OLDEST {
        return Ok(());
    }
    Err(Error::Unavailable {
        protection: Protection::Root,
        reason: format!("Linux {} cannot mount another root layer by layer", host.kernel),
        remedy: Some(format!("use Linux {OLDEST} or later").into()),
    })
}

/// The directory that becomes the root. Its files must belong to the caller: nobody else has an id in the
/// sandbox, so files of others could not be changed there.
fn directory(path: &Path, caller: &Caller) -> Result<BindSource, Error> {
    let refused = |error: io::Error| {
        let other = remedy!["name an existing directory with ", SettingKey::Root];
        let remedy = of_path(&error, "run as a user who may reach it", other);
        Error::Grant { what: "root", path: path.to_owned(), source: error, remedy: Some(remedy) }
    };
    let source = BindSource::resolve(path).map_err(refused)?;
    let metadata = fs::symlink_metadata(&source.path).map_err(refused)?;
    if !source.is_dir() {
        return Err(refused(io::ErrorKind::NotADirectory.into()));
    }
    if metadata.uid() != caller.uid {
        let reason =
            format!("belongs to uid {}, so its files could not be changed in the sandbox", metadata.uid());
        let error = io::Error::new(io::ErrorKind::InvalidInput, reason);
        let remedy = "copy it as yourself, or run as its owner".into();
        return Err(Error::Grant {
            what: "root",
            path: path.to_owned(),
            source: error,
            remedy: Some(remedy),
        });
    }
    fs::read_dir(&source.path).map_err(refused)?;
    Ok(source)
}
