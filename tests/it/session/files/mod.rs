//! Files of a session: the program that has the session reads and writes them.
//!
//! | module | promise |
//! | --- | --- |
//! | `basics` | written files exist, complete, with their mode; listing, metadata, directories, removal |
//! | `refused` | a path that a command could not read or write is refused, with the errno that the command
//! would get |
//! | `protected` | protected paths cannot be made, changed or removed, even if they do not exist |
//! | `hostile` | links, hard links, FIFOs, huge files and names that commands leave there |
//! | `race` | a command swaps files for links all the time: nothing outside is read or changed |
//! | `rename` | files move within the view, with the errno that a command would get |
//! | `ids` | the embedding program may change its ids meanwhile, as file servers do |
//! | `stream` | large files in pieces; nothing is left of a dropped call |

mod basics;
mod hostile;
mod ids;
mod protected;
mod race;
mod refused;
mod rename;
mod stream;

use std::{fs, path::Path};

use kennel::Error;

use super::{in_time, shell};
use crate::support::workspace;

/// The errno of a call that must fail.
fn errno<T: std::fmt::Debug>(answer: Result<T, Error>) -> i32 {
    match answer {
        Err(Error::File { source, .. }) => source.raw_os_error().expect("an errno"),
        other => panic!("not refused as a file: {other:?}"),
    }
}

/// The names in a directory of the host.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
