//! What a program imports, and whether its manifest covers that.

use std::fmt;

use crate::broker::manifest::Manifest;

/// The module of Kennel's functions, as core modules import them.
pub(crate) const MODULE: &str = "aileron_host";
/// The interface of the same functions, as components import them.
pub(crate) const INTERFACE: &str = "kennel:connector/host@1.0.0";
/// The interface without its version: a component may import any version that is compatible.
const ANY_VERSION: &str = "kennel:connector/host@";

/// What a program imports, and what its manifest covers.
///
/// ```
/// use kennel::broker::Manifest;
/// use kennel::connector::Runtime;
///
/// let program = r#"(module (import "aileron_host" "http_response_status" (func (result i32))))"#;
/// # let program = wat::parse_str(program)?;
/// let imports = Runtime::builder().build()?.inspect(&program)?;
/// let manifest = Manifest::from_toml("[capabilities]")?;
/// let missing = imports.missing(&manifest).next().expect("no host is declared");
/// assert_eq!(missing.to_string(), "aileron_host.http_response_status");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Imports {
    /// Whether it is a component. Otherwise it is a core module.
    pub is_component: bool,
    /// The imports, in the order of the program.
    pub all: Vec<Import>,
}

/// One import of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Import {
    /// Its module or interface.
    pub module: String,
    /// Its name.
    pub name: String,
}

/// What a function of Kennel's needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    Hosts,
    Programs,
}

impl Import {
    /// What it needs, if it is a function of Kennel's.
    pub(crate) fn need(&self) -> Need {
        let is_own = self.module == MODULE || self.module.starts_with(ANY_VERSION);
        match self.name.split(['_', '-']).next() {
            Some("http") if is_own => Need::Hosts,
            Some("spawn") if is_own => Need::Programs,
            _ => Need::Nothing,
        }
    }

    /// Whether `manifest` grants something that the function could be used for.
    fn is_covered(&self, manifest: &Manifest) -> bool {
        match self.need() {
            Need::Nothing => true,
            Need::Hosts => !manifest.hosts.is_empty(),
            Need::Programs => !manifest.spawn.programs.is_empty(),
        }
    }

    /// Why a program that has this import does not load, if its manifest does not cover it.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self.need() {
            Need::Hosts => "the manifest has no capabilities.network.hosts",
            Need::Programs => "the manifest has no capabilities.spawn.programs",
            Need::Nothing => "Kennel does not offer it",
        }
    }
}

impl fmt::Display for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.is_empty() {
            true => f.write_str(&self.module),
            false => write!(f, "{}.{}", self.module, self.name),
        }
    }
}

impl Imports {
    /// The imports that `manifest` does not cover: a program that has one does not load.
    pub fn missing<'i>(&'i self, manifest: &'i Manifest) -> impl Iterator<Item = &'i Import> {
        self.all.iter().filter(|import| !import.is_covered(manifest))
    }

    /// Whether the program can make requests.
    #[must_use]
    pub fn can_request(&self) -> bool {
        self.all.iter().any(|import| import.need() == Need::Hosts)
    }

    /// Whether the program can spawn programs.
    #[must_use]
    pub fn can_spawn(&self) -> bool {
        self.all.iter().any(|import| import.need() == Need::Programs)
    }
}

/// Whether a program is a component. Its first eight bytes tell: the magic number, and the layer of the
/// version.
pub(crate) fn is_component(program: &[u8]) -> bool {
    matches!(program, [0, b'a', b's', b'm', _, _, 1, 0, ..])
}
