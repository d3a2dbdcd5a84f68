//! Compiled code on disk, by the hash of its program.
//!
//! Compiled code is trusted: it is mapped and run. So the directory must be one that nobody but the caller
//! can write to, and so must each directory above it. Nothing else protects it: neither the engine nor Kennel
//! would notice machine code that somebody has changed.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{env, process};

use sha2::{Digest, Sha256};
use wasmtime::component::Component;
use wasmtime::{Engine, Module};

use crate::caller::Caller;
use crate::caller::toolchains::CACHE_BASE;
use crate::caller::writers::another_writer;
use crate::connector::guest::imports::is_component;
use crate::report::error::Error;
use crate::sys::own_path;
use crate::view::cache_store::own_directory_in;

const STICKY: u32 = 0o1000;

/// The extension of a file that is not whole yet.
const UNFINISHED: &str = "new";
/// The age of an unfinished file that nobody finishes any more.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A directory of compiled code.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) directory: PathBuf,
}

/// Compiled code.
pub(crate) enum Code {
    Module(Module),
    Component(Component),
}

/// The directory for compiled code of this user: `$XDG_CACHE_HOME/kennel/connectors`, or
/// `~/.cache/kennel/connectors`. `None` if the user has no home. Commands in a sandbox never see it, whatever
/// is granted around it.
#[must_use]
pub fn default_cache() -> Option<PathBuf> {
    let base = env::var_os(CACHE_BASE).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = Caller::current_home();
    let is_known = base.is_some() || home.parent().is_some();
    is_known.then(|| own_directory_in(base, &home).join("connectors"))
}

impl Cache {
    /// Opens the directory, and creates it if it does not exist.
    ///
    /// # Errors
    /// Others could write to it, or replace it.
    pub(crate) fn open(directory: &Path) -> Result<Self, Error> {
        let failed = |source| {
            Error::File {
            what: "use the cache of compiled connectors in",
            path: directory.to_owned(),
            source,
            remedy: Some(
                "choose a directory that only you can write to, below directories that only you or root can write to"
                    .into(),
            ),
        }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        // No link is left in it, and those who could make one are checked below.
        let directory = fs::canonicalize(directory).map_err(failed)?;
        for path in directory.ancestors() {
            let metadata = fs::symlink_metadata(path).map_err(failed)?;
            if let Some(who) = who_can_write(path, &metadata, path != directory) {
                let reason = format!("{who} can write to {}", path.display());
                return Err(failed(io::Error::new(io::ErrorKind::PermissionDenied, reason)));
            }
        }
        Ok(Self { directory })
    }

    /// Where the code of a program is kept. Another version or other settings of the compiler have another
    /// place.
    pub(crate) fn place(&self, engine: &Engine, program: &[u8]) -> PathBuf {
        let mut settings = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut settings);
        let mut name = format!("{:016x}-", settings.finish());
        name.extend(Sha256::digest(program).iter().map(|byte| format!("{byte:02x}")));
        self.directory.join(name + ".cwasm")
    }

    /// The compiled code of a program, if it is there and its file is the caller's own.
    pub(crate) fn load(&self, engine: &Engine, program: &[u8]) -> Option<Code> {
        let place = self.place(engine, program);
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&place).ok()?;
        let metadata = file.metadata().ok()?;
        if !metadata.is_file() || who_can_write(&own_path(&file), &metadata, false).is_some() {
            tracing::warn!(file = %place.display(), "compiled code that is not the caller's own is ignored");
            return None;
        }
        match deserialize(engine, &file, is_component(program)) {
            Ok(code) => Some(code),
            Err(error) => {
                tracing::warn!(%error, "compiled code that does not load is compiled anew");
                None
            }
        }
    }

    /// Keeps compiled code, in place of what is there.
    ///
    /// # Errors
    /// The file system is full, or the directory cannot be written.
    pub(crate) fn store(&self, engine: &Engine, program: &[u8], code: &Code) -> io::Result<()> {
        /// Makes names unique, so that two threads or processes never write to one file.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let bytes = match code {
            Code::Module(module) => module.serialize(),
            Code::Component(component) => component.serialize(),
        };
        let bytes = bytes.map_err(|error| io::Error::other(error.to_string()))?;
        self.remove_abandoned();
        let place = self.place(engine, program);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let unfinished = place.with_extension(format!("{}-{number}.{UNFINISHED}", process::id()));
        let written = write(&unfinished, &bytes).and_then(|()| fs::rename(&unfinished, &place));
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        written
    }

    /// Removes what killed processes left behind.
    fn remove_abandoned(&self) {
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
            if path.extension() == Some(OsStr::new(UNFINISHED)) && age().is_some_and(|age| age > ABANDONED) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// Who else than the caller can write to a file or directory. In one that is `above` the cache, root may, and
/// in a sticky one only the owner of an entry can replace it.
fn who_can_write(path: &Path, metadata: &Metadata, is_above: bool) -> Option<String> {
    let (owner, own) = (metadata.uid(), nix::unistd::geteuid().as_raw());
    if owner != own && !(is_above && owner == 0) {
        return Some(format!("uid {owner}"));
    }
    if is_above && metadata.mode() & STICKY != 0 {
        return None;
    }
    // What is here runs as it is: so no group may write, even one that has no other member today.
    let is_open = metadata.mode() & 0o022 != 0;
    (is_open || another_writer(path, metadata, &[0, own]).is_some()).then(|| "others".to_owned())
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    // After a loss of power, the file must not be there with holes in place of code.
    file.sync_data()
}

#[expect(unsafe_code, reason = "compiled code is run as it is")]
fn deserialize(engine: &Engine, file: &File, is_component: bool) -> wasmtime::Result<Code> {
    let path = own_path(file);
    if is_component {
        // SAFETY: `serialize` wrote the file: it belongs to the caller, and nobody else could write to it or
        // to a directory on the way. The engine checks its version and settings.
        let component = unsafe { Component::deserialize_file(engine, path) }?;
        Ok(Code::Component(component))
    } else {
        // SAFETY: as above.
        let module = unsafe { Module::deserialize_file(engine, path) }?;
        Ok(Code::Module(module))
    }
}

#[cfg(test)]
mod tests {
    use wasmtime::Config;

    use super::*;

    /// Compiled with other settings, or by another version, code is elsewhere. In the wrong place it is not
    /// loaded.
    #[test]
    fn code_of_another_compiler_is_not_loaded() {
        let directory = tempfile::tempdir().expect("a directory");
        let cache = Cache::open(directory.path()).expect("a cache");
        let program = wat::parse_str("(module)").expect("a module");
        // What was compiled without epochs could not be interrupted.
        let engine = |is_ended| Engine::new(Config::new().epoch_interruption(is_ended)).expect("an engine");
        let [endless, ended] = [false, true].map(engine);
        let code = Code::Module(Module::from_binary(&endless, &program).expect("compiled"));
        cache.store(&endless, &program, &code).expect("stored");
        assert!(cache.load(&endless, &program).is_some() && cache.load(&ended, &program).is_none());
        assert_ne!(cache.place(&endless, &program), cache.place(&ended, &program));
        fs::copy(cache.place(&endless, &program), cache.place(&ended, &program)).expect("copied");
        assert!(cache.load(&ended, &program).is_none());
        // A module is no component.
        let component = wat::parse_str("(component)").expect("a component");
        fs::copy(cache.place(&endless, &program), cache.place(&endless, &component)).expect("copied");
        assert!(cache.load(&endless, &component).is_none());
    }
}
