//! Takes what other processes of the same user hold. It runs outside of a sandbox, beside Kennel.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
};

use crate::call::{address_of, raw};

/// Robs every process whose command line has the first argument, again and again until stdin ends. Looks for
/// the second one in environments and memory. Prints each finding once: `environ`, `memory`, `cwd PATH`,
/// `link PATH` for a descriptor that is seen, `taken PATH` for one that was copied by pidfd_getfd(2), `typed
/// PATH` if TIOCSTI worked on that; then how many processes there were.
pub(crate) fn rob(arguments: &[&str]) {
    let [mark, secret] = arguments else { return println!("usage: rob MARK SECRET") };
    let (mut found, mut seen) = (BTreeSet::new(), BTreeSet::new());
    println!("begins");
    while !stdin_has_ended() {
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let has = |file: &str, text: &str| {
                let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
                bytes.windows(text.len()).any(|part| part == text.as_bytes())
            };
            if pid == std::process::id() || !has("cmdline", mark) {
                continue;
            }
            seen.insert(pid);
            if has("environ", secret) {
                found.insert("environ".to_owned());
            }
            if memory_has(pid, secret) {
                found.insert("memory".to_owned());
            }
            if let Ok(cwd) = fs::read_link(format!("/proc/{pid}/cwd")) {
                found.insert(format!("cwd {}", cwd.display()));
            }
            for descriptor in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
                if let Ok(target) = fs::read_link(descriptor.path()) {
                    found.insert(format!("link {}", target.display()));
                }
            }
            take_from(pid, &mut found);
        }
    }
    found.iter().for_each(|finding| println!("{finding}"));
    println!("processes {}", seen.len());
}

fn stdin_has_ended() -> bool {
    let fds = [libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 }];
    raw(libc::SYS_poll, [address_of(&fds), 1, 0, 0, 0, 0]).is_ok_and(|count| count > 0)
}

/// Copies descriptors by number, whatever /proc says.
fn take_from(pid: u32, found: &mut BTreeSet<String>) {
    let Ok(process) = raw(libc::SYS_pidfd_open, [pid.into(), 0, 0, 0, 0, 0]) else { return };
    for number in 0..24 {
        let Ok(copy) = raw(libc::SYS_pidfd_getfd, [process, number, 0, 0, 0, 0]) else { continue };
        let target = fs::read_link(format!("/proc/self/fd/{copy}")).unwrap_or_default();
        found.insert(format!("taken {}", target.display()));
        let byte = b'x';
        let request = libc::TIOCSTI.cast_signed();
        if raw(libc::SYS_ioctl, [copy, request, address_of(&byte), 0, 0, 0]).is_ok() {
            found.insert(format!("typed {}", target.display()));
        }
        let _ = raw(libc::SYS_close, [copy, 0, 0, 0, 0, 0]);
    }
    let _ = raw(libc::SYS_close, [process, 0, 0, 0, 0, 0]);
}

fn memory_has(pid: u32, secret: &str) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let Ok(mut memory) = File::open(format!("/proc/{pid}/mem")) else { return false };
    maps.lines().filter(|line| line.ends_with("[stack]") || line.ends_with("[heap]")).any(|line| {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let Some((from, to)) = range else { return false };
        let number = |text| u64::from_str_radix(text, 16).unwrap_or_default();
        let (from, to) = (number(from), number(to));
        let mut bytes = Vec::new();
        let read = memory
            .seek(SeekFrom::Start(from))
            .and_then(|_| memory.by_ref().take(to - from).read_to_end(&mut bytes));
        let _ = read;
        bytes.windows(secret.len()).any(|part| part == secret.as_bytes())
    })
}
