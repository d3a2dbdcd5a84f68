//! Compiled code on disk, by the hash of its program.
//!
//! Compiled code is trusted: it is mapped and run. So the directory must be one that nobody but the caller can write to,
//! and so must each directory above it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use wasmtime::component::Component;
use wasmtime::{Engine, Module};

use crate::report::error::Error;
use crate::sys::dirfd::own_path;

/// The permission bits of group and others to write.
const WRITABLE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// A directory of compiled code.
#[derive(Debug)]
pub(crate) struct Cache {
    directory: PathBuf,
}

/// Compiled code.
pub(crate) enum Code {
    Module(Module),
    Component(Component),
}

impl Cache {
    /// Opens the directory, and creates it if it does not exist.
    ///
    /// # Errors
    /// Others could write to it, or replace it.
    pub(crate) fn open(directory: &Path) -> Result<Self, Error> {
        let failed = |source| Error::File {
            what: "use the cache of compiled connectors in",
            path: directory.to_owned(),
            source,
            remedy: Some("choose a directory that only you can write to, and its parents too".to_owned()),
        };
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let directory_path = fs::canonicalize(directory).map_err(failed)?;
        for (above, path) in directory_path.ancestors().enumerate() {
            let metadata = fs::symlink_metadata(path).map_err(failed)?;
            let is_own = metadata.uid() == nix::unistd::geteuid().as_raw();
            let is_safe = match above {
                0 => is_own && metadata.mode() & WRITABLE == 0,
                // In a sticky directory, only the owner of an entry can replace it.
                _ => {
                    (is_own || metadata.uid() == 0)
                        && (metadata.mode() & WRITABLE == 0 || metadata.mode() & STICKY != 0)
                }
            };
            if !is_safe {
                let reason = format!("others can write to {}", path.display());
                return Err(failed(io::Error::new(io::ErrorKind::PermissionDenied, reason)));
            }
        }
        Ok(Self { directory: directory_path })
    }

    /// Where the code of a program is kept. Another version or other settings of the compiler have another place.
    fn place(&self, engine: &Engine, program: &[u8]) -> PathBuf {
        let mut settings = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut settings);
        let mut name = format!("{:016x}-", settings.finish());
        name.extend(Sha256::digest(program).iter().map(|byte| format!("{byte:02x}")));
        self.directory.join(name + ".cwasm")
    }

    /// The compiled code of a program, if it is there and its file is the caller's own.
    pub(crate) fn load(&self, engine: &Engine, program: &[u8]) -> Option<Code> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(self.place(engine, program))
            .ok()?;
        let metadata = file.metadata().ok()?;
        let is_own = metadata.is_file()
            && metadata.uid() == nix::unistd::geteuid().as_raw()
            && metadata.mode() & WRITABLE == 0;
        if !is_own {
            tracing::warn!(directory = %self.directory.display(), "compiled code that others can change is ignored");
            return None;
        }
        match deserialize(engine, &file, super::program::is_component(program)) {
            Ok(code) => Some(code),
            Err(error) => {
                tracing::warn!(%error, "compiled code that does not load is compiled anew");
                None
            }
        }
    }

    /// Keeps compiled code. A failure costs only time: the program is compiled again next time.
    pub(crate) fn store(&self, engine: &Engine, program: &[u8], code: &Code) -> io::Result<()> {
        let bytes = match code {
            Code::Module(module) => module.serialize(),
            Code::Component(component) => component.serialize(),
        };
        let bytes = bytes.map_err(|error| io::Error::other(error.to_string()))?;
        let place = self.place(engine, program);
        // Unique, so two processes that compile the same program do not write to one file.
        let number = std::process::id();
        let temporary = place.with_extension(format!("{number}.{:p}.new", &raw const *code));
        let written = write(&temporary, &bytes).and_then(|()| fs::rename(&temporary, &place));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)
}

#[expect(unsafe_code, reason = "compiled code is run as it is")]
fn deserialize(engine: &Engine, file: &File, is_component: bool) -> wasmtime::Result<Code> {
    let path = own_path(file);
    if is_component {
        // SAFETY: `serialize` wrote the file: it belongs to the caller, and nobody else could write to it or to a directory
        // on the way. The engine checks its version and settings.
        let component = unsafe { Component::deserialize_file(engine, path) }?;
        Ok(Code::Component(component))
    } else {
        // SAFETY: as above.
        let module = unsafe { Module::deserialize_file(engine, path) }?;
        Ok(Code::Module(module))
    }
}
