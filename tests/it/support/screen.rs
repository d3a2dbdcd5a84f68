//! A program on a terminal: what a person types there, and sees.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::AsFd,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    pty::{Winsize, openpty},
};

use super::patient;

/// A terminal of 33 rows and 77 columns, and the program on it. Dropping it kills the program.
pub struct Screen {
    /// The side of the person.
    pub master: File,
    /// The side of the program.
    pub peer: File,
    pub child: Child,
    /// What the program has shown.
    pub seen: String,
    /// How long the program may take to show something, or to end.
    patience: Duration,
}

impl Screen {
    /// Starts a program with the terminal as its three standard descriptors.
    pub fn start(program: &mut Command, patience: Duration) -> Self {
        let size = Winsize { ws_row: 33, ws_col: 77, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        let peer = File::from(pty.slave);
        let end = || Stdio::from(peer.try_clone().unwrap());
        let child = program.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        Self { master: pty.master.into(), peer, child, seen: String::new(), patience }
    }

    pub fn type_in(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    /// Reads until `is_there` holds for what was seen.
    pub fn until(&mut self, what: &str, is_there: impl Fn(&str) -> bool) {
        let start = Instant::now();
        while !is_there(&self.seen) {
            assert!(start.elapsed() < patient(self.patience), "no {what:?} in {:?}", self.seen);
            self.read_some();
        }
    }

    /// Reads until `text` appears.
    pub fn expect(&mut self, text: &str) {
        self.until(text, |seen| seen.contains(text));
    }

    /// Reads for a moment. Returns whether anything came.
    pub fn read_some(&mut self) -> bool {
        let mut ready = [PollFd::new(self.master.as_fd(), PollFlags::POLLIN)];
        // A signal of another test interrupts the read.
        if !poll(&mut ready, PollTimeout::from(50u8)).is_ok_and(|count| count > 0) {
            return false;
        }
        let mut bytes = [0; 4096];
        let count = self.master.read(&mut bytes).unwrap();
        self.seen.push_str(&String::from_utf8_lossy(&bytes[..count]));
        true
    }

    /// Waits until the program ends. Returns its exit status, as a shell shows it, and all output with plain
    /// line ends.
    pub fn end(&mut self) -> (Option<i32>, String) {
        let (status, seen) = self.end_with(self.patience, |_| None);
        (super::shown(status), seen)
    }

    /// Waits for at most that long, and types meanwhile what `talk` returns for what was seen so far.
    pub fn end_with(
        &mut self,
        within: Duration,
        mut talk: impl FnMut(&str) -> Option<&'static str>,
    ) -> (ExitStatus, String) {
        let start = Instant::now();
        let status = loop {
            self.read_some();
            if let Some(text) = talk(&self.seen) {
                self.type_in(text);
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < patient(within), "still running: {:?}", self.seen);
        };
        while self.read_some() {}
        (status, self.seen.replace("\r\n", "\n"))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // It ended long ago, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
