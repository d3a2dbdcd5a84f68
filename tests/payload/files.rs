//! Looks for files, descriptors and ways up.

use std::{
    ffi::CString,
    fs::{self, File},
    io::Read,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    call::{address_of, raw},
    from_std, say, word,
};

/// The contents of the files, each on one line, cut to a kilobyte.
pub(crate) fn read(paths: &[&str]) {
    for path in paths {
        let mut bytes = Vec::new();
        let result = File::open(path).and_then(|file| file.take(1024).read_to_end(&mut bytes));
        match from_std(result) {
            Ok(_) => println!("[{}]", String::from_utf8_lossy(&bytes).replace(['\n', '\0'], " ").trim()),
            refused => say(refused),
        }
    }
}

/// The names in each directory, sorted, on one line.
pub(crate) fn list(paths: &[&str]) {
    for path in paths {
        match fs::read_dir(path) {
            Ok(entries) => {
                let mut names: Vec<String> =
                    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
                names.sort();
                println!("[{}]", names.join(" "));
            }
            refused => say(from_std(refused)),
        }
    }
}

/// Numbers of all open descriptors, found by asking the kernel about each.
pub(crate) fn descriptors(_: &[&str]) {
    let open = (0..4096).filter(|&fd| raw(libc::SYS_fcntl, [fd, libc::F_GETFD.into(), 0, 0, 0, 0]).is_ok());
    println!("{}", open.map(|fd| fd.to_string()).collect::<Vec<_>>().join(" "));
}

/// Looks for the inode (device and number) in the whole visible tree and behind every magic link. Prints the
/// places, or `nowhere`.
pub(crate) fn hunt(arguments: &[&str]) {
    let wanted = arguments.iter().filter_map(|text| text.parse().ok()).collect::<Vec<u64>>();
    let [device, inode] = wanted[..] else { return say(Err(libc::EINVAL)) };
    let found = search(Path::new("/"), (device, inode), 0);
    println!("{}", found.unwrap_or_else(|| "nowhere".to_owned()));
}

fn search(dir: &Path, wanted: (u64, u64), depth: u32) -> Option<String> {
    for entry in fs::read_dir(dir).ok()?.flatten() {
        let path = entry.path();
        let magic = ["cwd", "root", "exe"].iter().any(|name| path.ends_with(name)) || dir.ends_with("fd");
        let is_magic = path.starts_with("/proc") && magic;
        let metadata = if is_magic { fs::metadata(&path) } else { fs::symlink_metadata(&path) };
        let Ok(metadata) = metadata else { continue };
        if (metadata.dev(), metadata.ino()) == wanted {
            return Some(path.display().to_string());
        }
        let large = path.starts_with("/usr") || path.starts_with("/sys");
        let deeper = metadata.is_dir() && !is_magic && depth < 6 && !large;
        if let Some(found) = deeper.then(|| search(&path, wanted, depth + 1)).flatten() {
            return Some(found);
        }
    }
    None
}

/// Exchanges two names as fast as it can for the given number of milliseconds.
pub(crate) fn flip(arguments: &[&str]) {
    let [one, other, span] = arguments else { return say(Err(libc::EINVAL)) };
    let (one, other) = (CString::new(*one).unwrap_or_default(), CString::new(*other).unwrap_or_default());
    let end = Instant::now() + Duration::from_millis(span.parse().unwrap_or_default());
    let cwd = i64::from(libc::AT_FDCWD);
    let exchange = libc::RENAME_EXCHANGE.into();
    let arguments = [cwd, address_of(one.as_ptr()), cwd, address_of(other.as_ptr()), exchange, 0];
    let mut result = Ok(0);
    while Instant::now() < end && result.is_ok() {
        result = raw(libc::SYS_renameat2, arguments);
    }
    say(result);
}

/// Enters the directory, prints a line, waits until `go` appears beside it, and then climbs: prints the
/// targets of `..`.
pub(crate) fn walk_up(arguments: &[&str]) {
    let [dir, go] = arguments else { return say(Err(libc::EINVAL)) };
    say(from_std(std::env::set_current_dir(dir)));
    let end = Instant::now() + Duration::from_secs(10);
    while !Path::new(go).exists() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(2));
    }
    say(from_std(File::open("..")));
    say(from_std(fs::read_dir("../..")));
    say(from_std(fs::metadata("../../etc/shadow")));
}

/// open_by_handle_at(2) with handles of the first inodes of the file's file system.
pub(crate) fn spray_handles(arguments: &[&str]) {
    let Some(Ok(file)) = arguments.first().map(File::open) else { return say(Err(libc::EINVAL)) };
    let mut answers: Vec<String> = (1u32..64)
        .map(|inode| {
            // struct file_handle: bytes of the handle, its kind (FILEID_INO32_GEN), inode, generation 0.
            let handle = [8u32, 1, inode, 0];
            let arguments = [i64::from(file.as_raw_fd()), address_of(handle.as_ptr()), 0, 0, 0, 0];
            word(raw(libc::SYS_open_by_handle_at, arguments))
        })
        .collect();
    answers.dedup();
    println!("{}", answers.join(" "));
}
