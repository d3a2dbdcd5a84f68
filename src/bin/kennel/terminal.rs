//! The user's own terminal while a command runs on another: raw, its size followed, put back at the end.

use std::{
    io::{self, Read, Write},
    sync::mpsc::{SyncSender, sync_channel},
    thread,
};

use kennel::Terminal;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc::{Receiver, Sender, channel},
};

/// The user's terminal in raw mode; put back when this is dropped.
pub(crate) struct Raw {
    before: Termios,
}

impl Raw {
    pub(crate) fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(io::stdin(), SetArg::TCSANOW, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // The terminal may be gone; then there is nothing to put back.
        let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, &self.before);
    }
}

/// What is typed, read by a thread of its own: a read of a terminal cannot be made to give up. The thread is had before the
/// command starts, which can use up all there are, and reads nothing before that.
pub(crate) struct Keyboard {
    begin: SyncSender<()>,
    typed: Receiver<Vec<u8>>,
}

impl Keyboard {
    pub(crate) fn ready() -> io::Result<Self> {
        let (begin, begins) = sync_channel(1);
        let (sender, typed) = channel(16);
        thread::Builder::new().spawn(move || {
            if begins.recv().is_ok() {
                read_into(&sender);
            }
        })?;
        Ok(Self { begin, typed })
    }

    /// What is typed from now on.
    pub(crate) fn typed(self) -> Receiver<Vec<u8>> {
        // The thread waits for it.
        let _ = self.begin.send(());
        self.typed
    }
}

fn read_into(sender: &Sender<Vec<u8>>) {
    let mut buffer = [0u8; 4096];
    while let Ok(count @ 1..) = io::stdin().read(&mut buffer) {
        if sender.blocking_send(buffer[..count].to_vec()).is_err() {
            return;
        }
    }
}

/// Copies what is typed to the command, until either side ends.
pub(crate) async fn type_in(mut typed: Receiver<Vec<u8>>, mut to: Terminal) {
    while let Some(bytes) = typed.recv().await {
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// Copies what the command writes to stdout, until it ends.
pub(crate) async fn show(mut from: Terminal) -> io::Result<()> {
    let mut buffer = [0u8; 8192];
    loop {
        match from.read(&mut buffer).await? {
            0 => return Ok(()),
            count => {
                let mut stdout = io::stdout();
                stdout.write_all(&buffer[..count])?;
                stdout.flush()?;
            }
        }
    }
}
