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
use crate::host::{Host, OLDEST_IN_MEMORY};
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

/// The most bytes of the names of layers, with a byte between them. The options of mount(2) are a page, with
/// the byte at its end; the other options have at most 120.
const LONGEST_NAMES: usize = 4095 - 120;

/// A root that the policy names, and who commands are there.
#[derive(Debug)]
pub(crate) struct OtherRoot {
    /// The directory of its layers.
    pub(crate) layers: BindSource,
    /// The names of its layers there, uppermost first, with `:` between them.
    pub(crate) names: String,
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
        let (image, layers, names) = match (&policy.image, &policy.root) {
            (Some(name), _) => {
                let (image, layers) = find_image(name, caller)?;
                let names = image.layers.iter().rev().filter_map(|layer| layer.file_name()?.to_str());
                let names: Vec<String> = names.map(str::to_owned).collect();
                (Some(image), layers, names)
            }
            (None, Some(given)) => (None, directory(&caller.absolute(given), caller)?, vec![".".to_owned()]),
            (None, None) => return Ok(None),
        };
        check_host(host, policy)?;
        let tree = LayerTree::new(names.iter().map(|name| layers.path.join(name)));
        let names = joined(&names)?;
        let of_image = image.as_ref().and_then(|image| image.config.user.as_deref());
        let user = RootUser::of(policy.user.as_deref().or(of_image), &tree)?;
        Ok(Some(Arc::new(Self { layers, names, user, tree, image })))
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
        match &self.image {
            Some(image) => format!("image {}", image.digest),
            None => format!("directory {}", shown(&self.layers.path)),
        }
    }

    /// What the root has at a path without links.
    pub(crate) fn kind(&self, path: &Path) -> Option<SourceKind> {
        match self.tree.find(path) {
            Found::Nothing => None,
            Found::Directory => Some(SourceKind::Directory),
            Found::Link { .. } | Found::File => Some(SourceKind::File),
        }
    }
}

/// The image of that name in the caller's store, and the directory of the store's layers.
fn find_image(name: &str, caller: &Caller) -> Result<(Image, BindSource), Error> {
    let store = Store::open(Store::path_of(caller))?;
    let image = store.find(&name.parse()?)?.ok_or_else(|| ImageError::NotFound { name: name.to_owned() })?;
    let path = store.layers_path();
    // Other users cannot enter it, and what is in it never changes.
    let layers = BindSource::resolve(&path).map_err(ImageError::io("look at the layers of", &path))?;
    Ok((image, layers))
}

fn check_host(host: &Host, policy: &Policy) -> Result<(), Error> {
    if host.kernel >= OLDEST_IN_MEMORY || policy.image_upper.is_some() {
        return Ok(());
    }
    let remedy = remedy![
        "keep the changes on a disk with ",
        SettingKey::ImageUpper.to("disk"),
        format!(", or use Linux {OLDEST_IN_MEMORY} or later")
    ];
    Err(Error::Unavailable {
        protection: Protection::Root,
        reason: format!("Linux {} cannot keep changes of another root in memory", host.kernel),
        remedy: Some(remedy),
    })
}

/// The names of layers as the option `lowerdir` takes them.
fn joined(names: &[String]) -> Result<String, Error> {
    let text = names.join(":");
    if text.len() <= LONGEST_NAMES {
        return Ok(text);
    }
    Err(Error::Unavailable {
        protection: Protection::Root,
        reason: format!("the names of {} layers do not fit into the page that mount(2) takes", names.len()),
        remedy: Some(
            "make an image of fewer layers, for example of the exported files of a container".into(),
        ),
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
