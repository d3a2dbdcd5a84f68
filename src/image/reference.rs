//! Names of images, read as docker reads them.

use std::fmt;
use std::str::FromStr;

use crate::image::digest::{Digest, PREFIX};
use crate::report::error::image::ImageError;

/// The registry of names without one, and the folder of its own images.
const HUB: &str = "docker.io";
const HUB_FOLDER: &str = "library";
const LATEST: &str = "latest";

/// The fewest digits of a digest that name an image.
const FEWEST_DIGITS: usize = 4;

/// A reference of an image: a name with a tag or a digest, or the beginning of an image's digest.
///
/// `python:3.12` is `docker.io/library/python:3.12`, a name alone has the tag `latest`, and with tag and
/// digest together the digest counts.
///
/// ```
/// use kennel::image::Reference;
///
/// let python: Reference = "python:3.12".parse()?;
/// assert_eq!(python.to_string(), "docker.io/library/python:3.12");
/// assert_eq!((python.registry(), python.repository()), (Some("docker.io"), Some("library/python")));
/// assert_eq!(python.familiar(), "python:3.12");
/// # Ok::<(), kennel::image::ImageError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference(ReferenceKind);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum ReferenceKind {
    Named {
        registry: String,
        repository: String,
        version: ReferenceVersion,
    },
    /// The hexadecimal digits that an image's digest begins with.
    Id(String),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum ReferenceVersion {
    Tag(String),
    Digest(Digest),
}

impl Reference {
    /// The image with this digest, whatever its names are.
    #[must_use]
    pub fn of_image(image: Digest) -> Self {
        Self(ReferenceKind::Id(image.hex()))
    }

    /// The registry: `docker.io`, `localhost:5000`. `None` for the digest of an image.
    #[must_use]
    pub fn registry(&self) -> Option<&str> {
        match &self.0 {
            ReferenceKind::Named { registry, .. } => Some(registry),
            ReferenceKind::Id(_) => None,
        }
    }

    /// The repository in the registry: `library/python`. `None` for the digest of an image.
    #[must_use]
    pub fn repository(&self) -> Option<&str> {
        match &self.0 {
            ReferenceKind::Named { repository, .. } => Some(repository),
            ReferenceKind::Id(_) => None,
        }
    }

    /// The tag; `None` if a digest counts.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        match &self.0 {
            ReferenceKind::Named { version: ReferenceVersion::Tag(tag), .. } => Some(tag),
            _ => None,
        }
    }

    /// The digest of a manifest or index in the registry.
    #[must_use]
    pub fn digest(&self) -> Option<Digest> {
        match &self.0 {
            ReferenceKind::Named { version: ReferenceVersion::Digest(digest), .. } => Some(*digest),
            _ => None,
        }
    }

    /// The same repository with a digest in place of tag or digest. The digest of an image stays as it is.
    #[must_use]
    pub fn with_digest(&self, digest: Digest) -> Self {
        let mut named = self.clone();
        if let ReferenceKind::Named { version, .. } = &mut named.0 {
            *version = ReferenceVersion::Digest(digest);
        }
        named
    }

    /// The shortest form that means the same, as docker shows it: `python:3.12`.
    #[must_use]
    pub fn familiar(&self) -> String {
        let whole = self.to_string();
        let Some(below) = whole.strip_prefix(HUB).and_then(|rest| rest.strip_prefix('/')) else {
            return whole;
        };
        let own = below.strip_prefix(HUB_FOLDER).and_then(|rest| rest.strip_prefix('/'));
        own.filter(|own| !own.contains('/')).unwrap_or(below).to_owned()
    }

    /// The digits that an image's digest must begin with, if this can mean an image by its digest. A name
    /// such as `cafe` can be both; then the name counts first.
    pub(crate) fn id_prefix(&self) -> Option<&str> {
        match &self.0 {
            ReferenceKind::Id(digits) => Some(digits),
            ReferenceKind::Named { registry, repository, version: ReferenceVersion::Tag(tag) }
                if registry == HUB && tag == LATEST =>
            {
                let own = repository.strip_prefix(HUB_FOLDER)?.strip_prefix('/')?;
                is_prefix(own).then_some(own)
            }
            ReferenceKind::Named { .. } => None,
        }
    }

    /// The name to look up; `None` for the digest of an image.
    pub(crate) fn name(&self) -> Option<String> {
        matches!(self.0, ReferenceKind::Named { .. }).then(|| self.to_string())
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ReferenceKind::Id(digits) => write!(f, "{PREFIX}{digits}"),
            ReferenceKind::Named { registry, repository, version: ReferenceVersion::Tag(tag) } => {
                write!(f, "{registry}/{repository}:{tag}")
            }
            ReferenceKind::Named { registry, repository, version: ReferenceVersion::Digest(digest) } => {
                write!(f, "{registry}/{repository}@{digest}")
            }
        }
    }
}

impl FromStr for Reference {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self, ImageError> {
        parse(text).map(Self).map_err(|reason| {
            let text = text.chars().take(80).collect();
            ImageError::Reference { text, reason }
        })
    }
}

fn parse(text: &str) -> Result<ReferenceKind, &'static str> {
    if let Some(digits) = text.strip_prefix(PREFIX) {
        return match is_prefix(digits) {
            true => Ok(ReferenceKind::Id(digits.to_owned())),
            false => Err("a digest has 4 to 64 hexadecimal digits"),
        };
    }
    // A whole digest is no name.
    if text.len() == 64 && is_prefix(text) {
        return Ok(ReferenceKind::Id(text.to_owned()));
    }
    let (name, digest) = match text.split_once('@') {
        Some((name, digest)) => {
            let digest =
                digest.parse::<Digest>().map_err(|_| "after @ comes sha256: and 64 hexadecimal digits")?;
            (name, Some(digest))
        }
        None => (text, None),
    };
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    let colon = name.get(last..).and_then(|leaf| leaf.find(':')).map(|colon| last + colon);
    let (name, tag) = match colon {
        Some(colon) => (name.get(..colon).unwrap_or_default(), name.get(colon + 1..)),
        None => (name, None),
    };
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return Err("a tag has 1 to 128 letters, digits, _, . and -, and begins with none of the last two");
    }
    // Its first part is a registry if it looks like a host.
    let (registry, below) = match name.split_once('/') {
        Some((host, below)) if host.contains(['.', ':']) || host == "localhost" => (host, below),
        _ => (HUB, name),
    };
    if !is_host(registry) {
        return Err("the part before the first / is no HOST or HOST:PORT");
    }
    let registry = if registry == "index.docker.io" { HUB } else { registry };
    let repository = match registry == HUB && !below.contains('/') {
        true => format!("{HUB_FOLDER}/{below}"),
        false => below.to_owned(),
    };
    if below.is_empty() {
        return Err("it has no name");
    }
    if registry.len() + repository.len() > 254 {
        return Err("its name is longer than 255 characters");
    }
    if !repository.split('/').all(is_component) {
        return Err("a name has lower-case letters and digits, with single . _ __ or - between them");
    }
    let tag = tag.unwrap_or(LATEST).to_owned();
    Ok(ReferenceKind::Named {
        registry: registry.to_owned(),
        repository,
        version: digest.map_or(ReferenceVersion::Tag(tag), ReferenceVersion::Digest),
    })
}

fn is_prefix(digits: &str) -> bool {
    (FEWEST_DIGITS..=64).contains(&digits.len())
        && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= 128
        && tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'))
}

/// A host name or an address, with or without a port.
fn is_host(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    let bracketed = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_name = |name: &str| {
        name.split('.').all(|label| {
            let inside = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            !label.is_empty() && label.bytes().all(inside) && !label.starts_with('-') && !label.ends_with('-')
        })
    };
    let is_valid = match bracketed {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => is_name(name),
    };
    is_valid && port.is_none_or(|port| port.parse::<u16>().is_ok() && !port.starts_with('+'))
}

/// A part of a repository's name: `[a-z0-9]+` with `.`, `_`, `__` or dashes between.
fn is_component(part: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [part.bytes().next(), part.bytes().next_back()];
    let mut separators =
        part.split(|c: char| u8::try_from(c).is_ok_and(is_word)).filter(|run| !run.is_empty());
    ends.iter().all(|end| end.is_some_and(is_word))
        && separators.all(|run| matches!(run, "." | "_" | "__") || run.bytes().all(|byte| byte == b'-'))
}
