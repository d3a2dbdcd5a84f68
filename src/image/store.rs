//! The store as readers see it: names lead to images, images to layers. Nothing here writes but the time at
//! which an image was used last.
//!
//! | in the store | is |
//! | --- | --- |
//! | `names/HASH.json` | a name, the digest of its image, and that of the registry's manifest |
//! | `images/DIGEST.json` | an image: its configuration, and its layers, lowest first |
//! | `layers/ID/` | a layer in the form of overlayfs with `userxattr` |
//! | `layers/ID.json` | what is known of a layer; its lock while one imports or removes it |
//! | `tmp/` | what is half made, or about to be deleted |
//!
//! A shared lock on the file of an image keeps the image, and so its layers, for as long as somebody holds
//! it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use std::{env, fs, io};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::caller::Caller;
use crate::image::config::{ImageConfig, Platform};
use crate::image::digest::Digest;
use crate::image::reference::Reference;
use crate::report::error::image::ImageError;

pub(crate) const NAMES: &str = "names";
pub(crate) const IMAGES: &str = "images";
pub(crate) const LAYERS: &str = "layers";
pub(crate) const RECORD_SUFFIX: &str = ".json";

/// A store of images: a directory that only its owner can enter.
#[derive(Clone, Debug)]
pub struct Store {
    path: PathBuf,
}

/// An image of the store. Its layers stay for as long as this or a clone of it lives.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Image {
    /// The digest of its configuration.
    pub digest: Digest,
    /// What it says about itself.
    pub config: ImageConfig,
    /// The directories of its layers, lowest first. They are read-only: writing to one changes every image
    /// that has it.
    pub layers: Vec<PathBuf>,
    json: Arc<str>,
    _lease: Arc<Flock<File>>,
}

impl Image {
    /// The configuration, byte for byte.
    #[must_use]
    pub fn config_json(&self) -> &str {
        &self.json
    }
}

/// A line of the list of images.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageSummary {
    /// The digest of its configuration.
    pub digest: Digest,
    /// Its names, sorted.
    pub names: Vec<Reference>,
    /// What it was built for.
    pub platform: Platform,
    /// When it was built, as RFC 3339 writes times.
    pub created: Option<String>,
    /// The bytes of its layers' archives, uncompressed.
    pub size: u64,
    /// How many layers it has.
    pub layers: usize,
    /// When it was used last, or imported.
    pub used: SystemTime,
}

/// The file of an image.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ImageRecord {
    pub(crate) config: String,
    pub(crate) layers: Vec<String>,
    pub(crate) size: u64,
}

/// The file of a name.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NameRecord {
    pub(crate) name: String,
    pub(crate) image: Digest,
    /// The manifest or index that the registry had for the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) manifest: Option<Digest>,
}

/// An image's file, locked: nobody removes the image.
#[derive(Debug)]
pub(crate) struct LockedImage {
    pub(crate) record: ImageRecord,
    pub(crate) lock: Flock<File>,
}

/// The default place, by variables and the home.
fn default_path(variable: impl Fn(&str) -> Option<OsString>, home: impl Fn() -> PathBuf) -> PathBuf {
    let set = |name: &str| variable(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    set("KENNEL_IMAGES").unwrap_or_else(|| {
        // The specification of XDG says that a relative path there does not count.
        let data = set("XDG_DATA_HOME").filter(|path| path.is_absolute());
        data.unwrap_or_else(|| home().join(".local/share")).join("kennel/images")
    })
}

impl Store {
    /// The store in this directory. One that does not exist yet is empty; a writer makes it.
    ///
    /// # Errors
    /// It is no directory, belongs to another user, or other users can enter it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ImageError> {
        let path = path.as_ref();
        let path = std::path::absolute(path).map_err(ImageError::io("find the image store", path))?;
        let store = Self { path };
        store.check()?;
        Ok(store)
    }

    /// The store of this user: `KENNEL_IMAGES`, else `$XDG_DATA_HOME/kennel/images`, else
    /// `~/.local/share/kennel/images`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_default() -> Result<Self, ImageError> {
        Self::open(default_path(|name| env::var_os(name), Caller::current_home))
    }

    /// Where [`open_default`](Self::open_default) looks for the store of a caller.
    pub(crate) fn path_of(caller: &Caller) -> PathBuf {
        let variable = |name: &str| caller.variable(name).map(OsStr::to_owned);
        caller.absolute(&default_path(variable, || caller.home.clone()))
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks the directory, if there is one.
    pub(crate) fn check(&self) -> Result<(), ImageError> {
        let refused =
            |reason: String, remedy| Err(ImageError::Store { path: self.path.clone(), reason, remedy });
        const ELSEWHERE: &str = "let KENNEL_IMAGES name a directory of your own";
        let metadata = match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            metadata => metadata.map_err(ImageError::io("look at the image store", &self.path))?,
        };
        if !metadata.is_dir() {
            return refused("it is no directory".to_owned(), ELSEWHERE);
        }
        if metadata.uid() != geteuid().as_raw() {
            return refused(format!("it belongs to user {}, not to you", metadata.uid()), ELSEWHERE);
        }
        if metadata.mode() & 0o077 != 0 {
            let reason = format!("it is open to others (mode {:o})", metadata.mode() & 0o7777);
            return refused(reason, "close it to others with chmod 700");
        }
        Ok(())
    }

    /// The image that a reference means. It stays in the store for as long as what this returns lives.
    ///
    /// # Errors
    /// More than one image has a digest that begins so; the store cannot be read or has lost a layer.
    pub fn find(&self, reference: &Reference) -> Result<Option<Image>, ImageError> {
        match self.resolve(reference)? {
            Some(digest) => self.image(&digest),
            None => Ok(None),
        }
    }

    /// The digest of the image that a reference means.
    pub(crate) fn resolve(&self, reference: &Reference) -> Result<Option<Digest>, ImageError> {
        if let Some(name) = reference.name()
            && let Some(record) = read_record::<NameRecord>(&self.name_path(&name))?
        {
            return Ok(Some(record.image));
        }
        let Some(prefix) = reference.id_prefix() else { return Ok(None) };
        let found: Vec<Digest> =
            self.digests()?.into_iter().filter(|it| it.hex().starts_with(prefix)).collect();
        match found.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(*one)),
            several => Err(ImageError::Ambiguous {
                prefix: prefix.to_owned(),
                candidates: several.iter().map(Digest::to_string).collect(),
            }),
        }
    }

    /// The digest of the manifest or index that a registry had for a name. `None` if the store does not have
    /// the name, or nobody pulled it.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn manifest(&self, name: &Reference) -> Result<Option<Digest>, ImageError> {
        let Some(name) = name.name() else { return Ok(None) };
        Ok(read_record::<NameRecord>(&self.name_path(&name))?.and_then(|record| record.manifest))
    }

    /// Opens an image and keeps it.
    pub(crate) fn image(&self, digest: &Digest) -> Result<Option<Image>, ImageError> {
        let Some(LockedImage { record, lock }) = self.lock_image(digest, FlockArg::LockShared)? else {
            return Ok(None);
        };
        // mount(2) gets the names as they are.
        let is_there =
            |id: &&String| id.bytes().all(|it| it.is_ascii_alphanumeric()) && self.layer_path(id).is_dir();
        if let Some(layer) = record.layers.iter().find(|id| !is_there(id)) {
            return Err(ImageError::LayerLost { image: digest.to_string(), layer: layer.clone() });
        }
        let layers = record.layers.iter().map(|id| self.layer_path(id)).collect();
        // The store may be on a read-only file system. Then nobody prunes it.
        let _ = lock.set_modified(SystemTime::now());
        let config = ImageConfig::from_json(record.config.as_bytes())?;
        let (json, lease) = (record.config.into(), Arc::new(lock));
        Ok(Some(Image { digest: *digest, config, layers, json, _lease: lease }))
    }

    /// Locks the file of an image and reads it; `None` if there is no such image.
    pub(crate) fn lock_image(
        &self,
        digest: &Digest,
        how: FlockArg,
    ) -> Result<Option<LockedImage>, ImageError> {
        let Some(lock) = self.lock_record(digest, how)? else { return Ok(None) };
        let path = self.image_path(digest);
        let record: ImageRecord = parse_record(&lock, &path)?;
        if Digest::of(record.config.as_bytes()) != *digest {
            let reason = "the configuration has another digest".to_owned();
            return Err(ImageError::Damaged { path, reason });
        }
        Ok(Some(LockedImage { record, lock }))
    }

    /// Locks the file of an image, whatever is in it. With a lock that does not wait, an error if somebody
    /// uses the image.
    pub(crate) fn lock_record(
        &self,
        digest: &Digest,
        how: FlockArg,
    ) -> Result<Option<Flock<File>>, ImageError> {
        let path = self.image_path(digest);
        loop {
            let failed = || ImageError::io("lock image", &path);
            let Some(file) = open_record(&path)? else { return Ok(None) };
            let lock = match lock_file(file, how) {
                Err(Errno::EAGAIN) => return Err(ImageError::InUse { image: digest.to_string() }),
                lock => lock.map_err(|errno| failed()(errno.into()))?,
            };
            // Else somebody removed it between the opening and the lock.
            if lock.metadata().map_err(failed())?.nlink() > 0 {
                return Ok(Some(lock));
            }
        }
    }

    /// All images, sorted by their digests. One whose record is damaged is left out.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn images(&self) -> Result<Vec<ImageSummary>, ImageError> {
        let mut names: BTreeMap<Digest, Vec<Reference>> = BTreeMap::new();
        for NameRecord { name, image, .. } in self.names()? {
            names.entry(image).or_default().extend(name.parse::<Reference>());
        }
        let mut images = Vec::new();
        for digest in self.digests()? {
            let path = self.image_path(&digest);
            // It may have been removed meanwhile.
            let Some(file) = open_record(&path)? else { continue };
            let Some(record) = undamaged(parse_record::<ImageRecord>(&file, &path))? else { continue };
            let used = file.metadata().and_then(|metadata| metadata.modified());
            let config = ImageConfig::from_json(record.config.as_bytes())?;
            let mut names = names.remove(&digest).unwrap_or_default();
            names.sort();
            images.push(ImageSummary {
                digest,
                names,
                platform: config.platform,
                created: config.created,
                size: record.size,
                layers: record.layers.len(),
                used: used.map_err(ImageError::io("look at image", &path))?,
            });
        }
        Ok(images)
    }

    /// When an image was used last; `None` if there is no such image.
    #[cfg(feature = "image")]
    pub(crate) fn last_use(&self, digest: &Digest) -> Result<Option<SystemTime>, ImageError> {
        let path = self.image_path(digest);
        let used = open_record(&path)?.map(|file| file.metadata()?.modified()).transpose();
        used.map_err(ImageError::io("look at image", &path))
    }

    /// The digests of all images, sorted.
    pub(crate) fn digests(&self) -> Result<Vec<Digest>, ImageError> {
        let names = file_names(&self.path.join(IMAGES))?;
        let digest = |name: &String| format!("sha256:{}", name.strip_suffix(RECORD_SUFFIX)?).parse().ok();
        Ok(names.iter().filter_map(digest).collect())
    }

    /// All names, but for damaged ones.
    pub(crate) fn names(&self) -> Result<Vec<NameRecord>, ImageError> {
        let directory = self.path.join(NAMES);
        let mut names = Vec::new();
        for name in file_names(&directory)? {
            names.extend(undamaged(read_record(&directory.join(name)))?.flatten());
        }
        Ok(names)
    }

    pub(crate) fn name_path(&self, name: &str) -> PathBuf {
        self.path.join(NAMES).join(format!("{}{RECORD_SUFFIX}", Digest::of(name.as_bytes()).hex()))
    }

    pub(crate) fn image_path(&self, digest: &Digest) -> PathBuf {
        self.path.join(IMAGES).join(format!("{}{RECORD_SUFFIX}", digest.hex()))
    }

    /// The directory of all layers.
    pub(crate) fn layers_path(&self) -> PathBuf {
        self.path.join(LAYERS)
    }

    pub(crate) fn layer_path(&self, id: &str) -> PathBuf {
        self.layers_path().join(id)
    }
}

/// flock(2), repeated when a signal interrupts it.
pub(crate) fn lock_file(mut file: File, how: FlockArg) -> nix::Result<Flock<File>> {
    loop {
        match Flock::lock(file, how) {
            Err((back, Errno::EINTR)) => file = back,
            Err((_, errno)) => return Err(errno),
            Ok(lock) => return Ok(lock),
        }
    }
}

/// The names in a directory, sorted; none if it does not exist. Names that are no text are none of the
/// store's.
pub(crate) fn file_names(directory: &Path) -> Result<Vec<String>, ImageError> {
    let failed = || ImageError::io("list", directory);
    let listing = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listing => listing.map_err(failed())?,
    };
    let mut names = Vec::new();
    for entry in listing {
        names.extend(entry.map_err(failed())?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

/// `None` in place of what is damaged. Who asks for that very file is told.
pub(crate) fn undamaged<T>(read: Result<T, ImageError>) -> Result<Option<T>, ImageError> {
    match read {
        Err(error @ ImageError::Damaged { .. }) => {
            tracing::warn!(%error, "left out");
            Ok(None)
        }
        read => read.map(Some),
    }
}

fn open_record(path: &Path) -> Result<Option<File>, ImageError> {
    // Changing its time takes no right to write.
    match fs::OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        file => file.map(Some).map_err(ImageError::io("open", path)),
    }
}

/// Reads a file of the store.
pub(crate) fn parse_record<T: DeserializeOwned>(mut file: &File, path: &Path) -> Result<T, ImageError> {
    let mut text = Vec::new();
    file.read_to_end(&mut text).map_err(ImageError::io("read", path))?;
    serde_json::from_slice(&text)
        .map_err(|error| ImageError::Damaged { path: path.to_owned(), reason: error.to_string() })
}

/// Reads a file of the store; `None` if it does not exist.
pub(crate) fn read_record<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ImageError> {
    open_record(path)?.map(|file| parse_record(&file, path)).transpose()
}
