//! The terminal of a command: a pair from the sandbox's own devpts. The outside gets the master; init leads
//! the session of the peer, and the command is a job in it.

use crate::{
    channel::Channel,
    control::Report,
    kernel::{EINVAL, SIGWINCH, TERMIOS, TIOCSCTTY},
    sys::{self, Errno, Fd},
};

/// What the outside asks for.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    /// Rows in the high, columns in the low 16 bits; zero leaves the size unset.
    pub(crate) window: u32,
    /// A `struct termios`, or nothing.
    pub(crate) modes: &'static [u8],
}

/// The terminal of this sandbox.
pub(crate) struct Terminal {
    /// The side of the command.
    pub(crate) peer: Fd,
    /// The group of init, which leads the session of the terminal.
    own_group: i32,
    /// The group that last had the terminal; zero if none had it yet.
    group: i32,
    /// Its size when it was taken away.
    window: Option<[u16; 2]>,
}

impl Terminal {
    /// Opens a pair, makes it the controlling terminal of init, and hands the master out. Init must not lead
    /// a process group.
    pub(crate) fn open(wish: &Wish, channel: &Channel) -> Result<Self, Errno> {
        let master = sys::open_terminal(c"/dev/pts/ptmx")?;
        sys::unlock_terminal(&master)?;
        let peer = sys::open_peer(&master)?;
        if wish.window != 0 {
            sys::set_window(&peer, (wish.window >> 16) as u16, wish.window as u16)?;
        }
        if !wish.modes.is_empty() {
            let modes: &[u8; TERMIOS] = wish.modes.try_into().map_err(|_| Errno(EINVAL))?;
            sys::set_modes(&peer, modes)?;
        }
        sys::new_session()?;
        sys::ioctl(&peer, TIOCSCTTY, 0)?;
        channel.report_with(&Report::Terminal {}, Some(&master))?;
        let own_group = sys::own_group()?;
        Ok(Self { own_group, peer: channel.above(&peer)?, group: 0, window: None })
    }

    /// Takes the terminal away.
    pub(crate) fn take(&mut self) -> Result<(), Errno> {
        self.group = sys::foreground(&self.peer)?;
        // Before it is taken: a later change of size is not told to the command.
        self.window = sys::window(&self.peer).ok();
        self.set(self.own_group)
    }

    /// Gives the terminal to the group that had it before, which the command may have chosen. If that is
    /// gone, or the command itself `needs` it, the command gets it.
    pub(crate) fn give(&mut self, command: i32, needs: bool) -> Result<(), Errno> {
        match self.group {
            group if group == 0 || group == self.own_group || needs => self.set(command),
            group => self.set(group).or_else(|_| self.set(command)),
        }
    }

    /// The kernel tells only the owner of a terminal that its size has changed. A new owner learns it here.
    fn set(&mut self, group: i32) -> Result<(), Errno> {
        sys::set_foreground(&self.peer, group)?;
        if group == self.own_group {
            return Ok(());
        }
        match self.window.take() {
            Some(before) if before != sys::window(&self.peer)? => sys::kill(group.wrapping_neg(), SIGWINCH),
            _ => Ok(()),
        }
    }
}
