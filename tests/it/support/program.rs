//! Programs that a test makes and then executes. Another process writes them: a descriptor of ours that may
//! write could be in a child that another test has just forked, and until that child executes something, the
//! program is busy (ETXTBSY).

use std::{
    ffi::OsStr,
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

/// Copies a program, with its mode.
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<OsStr>) {
    let mut copy = Command::new("cp");
    copy.arg("--preserve=mode").arg(from.as_ref()).arg(to.as_ref());
    assert!(copy.status().unwrap().success(), "{copy:?}");
}

/// Writes a program with mode 755, and the directories above it.
pub fn write_program(path: impl AsRef<Path>, contents: impl AsRef<[u8]>) {
    let path = path.as_ref();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "cat > \"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    shell.stdin.take().unwrap().write_all(contents.as_ref()).unwrap();
    assert!(shell.wait().unwrap().success(), "{}", path.display());
}
