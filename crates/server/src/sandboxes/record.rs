//! What a sandbox leaves on disk: its record, and its directory. A record is written whole or not at all.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::wire::StateDirectory;
use crate::wire::id::SandboxId;
use crate::wire::sandbox::{NewSandbox, State, Summary};

/// A sandbox, as a later process of the server needs to know it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) id: SandboxId,
    pub(crate) new: NewSandbox,
    pub(crate) state: State,
    /// Milliseconds since 1970.
    pub(crate) started: u64,
    /// Milliseconds since 1970.
    pub(crate) deadline: u64,
}

impl Record {
    pub(crate) fn summary(&self) -> Summary {
        Summary {
            id: self.id.clone(),
            owner: self.new.owner.clone(),
            template: self.new.making.template.clone(),
            metadata: self.new.metadata.clone(),
            state: self.state,
            started: self.started,
            deadline: self.deadline,
            public_ports: self.new.making.public_ports,
            memory: self.new.making.policy.limits.memory.map(kennel::Size::bytes),
        }
    }
}

/// The directory of a sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn new(state: &StateDirectory, id: &SandboxId) -> Self {
        Self(state.sandboxes().join(id.as_str()))
    }

    /// Makes it, with an empty directory: for the files of the sandbox, or for what it changes of a
    /// template's.
    pub(crate) fn create(&self, has_files: bool) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(&self.0)?;
        match has_files {
            true => DirBuilder::new().mode(0o700).create(self.changes()),
            false => DirBuilder::new().mode(0o755).create(self.home()),
        }
    }

    /// The sandbox's own files.
    pub(crate) fn home(&self) -> PathBuf {
        self.0.join("home")
    }

    /// What it changes of a template's files.
    pub(crate) fn changes(&self) -> PathBuf {
        self.0.join("changes")
    }

    pub(crate) fn write(&self, record: &Record) -> io::Result<()> {
        let (new, place) = (self.0.join("record.new"), self.0.join("record.json"));
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        fs::rename(new, place)
    }

    fn read(&self) -> io::Result<Record> {
        Ok(serde_json::from_slice(&fs::read(self.0.join("record.json"))?)?)
    }

    /// Removes everything. Processes of the sandbox may just be dying, and still make files: it tries again
    /// for a while.
    pub(crate) fn remove(&self) -> io::Result<()> {
        const TRIES: u32 = 200;
        const PAUSE: std::time::Duration = std::time::Duration::from_millis(25);
        let mut tries = TRIES;
        loop {
            match remove_all(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) if tries == 0 => return Err(error),
                Err(_) => std::thread::sleep(PAUSE),
                Ok(()) => return Ok(()),
            }
            tries -= 1;
        }
    }
}

/// remove_dir_all(3), also where a command has taken its own rights to a directory away.
fn remove_all(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_directories(path)?;
            fs::remove_dir_all(path)
        }
        done => done,
    }
}

/// Gives the owner all rights to every directory below `path`. Links are not followed.
fn open_directories(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if !fs::symlink_metadata(path)?.is_dir() {
        return Ok(());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(path)? {
        open_directories(&entry?.path())?;
    }
    Ok(())
}

/// The records of a host in the state directory. What cannot be read was never finished, and is removed.
pub(crate) fn of_host(state: &StateDirectory, host: u8) -> io::Result<Vec<Record>> {
    let mut records = Vec::new();
    for entry in fs::read_dir(state.sandboxes())? {
        let name = entry?.file_name();
        let Some(id) = name.to_str().and_then(|name| name.parse::<SandboxId>().ok()) else { continue };
        if id.host() != host {
            continue;
        }
        let place = Place::new(state, &id);
        match place.read() {
            Ok(record) => records.push(record),
            Err(_) => place.remove()?,
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn directories_without_rights_are_removed_and_links_are_not_followed() {
        let dir = tempfile::tempdir().expect("a directory");
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).expect("made");
        fs::write(outside.join("kept"), "").expect("written");
        let inside = dir.path().join("sandbox");
        fs::create_dir_all(inside.join("closed/deep")).expect("made");
        std::os::unix::fs::symlink(&outside, inside.join("closed/link")).expect("linked");
        fs::set_permissions(inside.join("closed"), fs::Permissions::from_mode(0o000)).expect("closed");
        remove_all(&inside).expect("removed");
        assert!(!inside.exists());
        assert!(outside.join("kept").exists());
    }
}
