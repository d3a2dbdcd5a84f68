//! A client's connection whose traffic is noticed, so that one whose client is gone does not stay for ever: a client that
//! has ended its side and waits for an answer looks the same as one that is dead.

use std::{io, os::fd::RawFd, sync::Arc, time::Duration};

use nix::sys::socket::{MsgFlags, recv};
use tokio::{net::TcpStream, time::sleep};

use super::{
    counted::{Count, Counted},
    meter::{Heading, Tally},
};

pub(super) type Watched = Counted<TcpStream, Arc<Tally>>;

impl Count for Arc<Tally> {
    fn read(&self, bytes: usize) -> io::Result<()> {
        self.add(Heading::Up, bytes);
        Ok(())
    }

    fn written(&self, bytes: usize) {
        self.add(Heading::Down, bytes);
    }
}

/// Returns once the client has ended its side and nothing has passed for so long. `socket` is that of a `Watched`, which
/// must live as long as this is waited for.
pub(super) async fn is_left(socket: RawFd, tally: &Tally, time: Duration) {
    loop {
        tally.idle(time).await;
        // At its end there is nothing to see, and nothing is to come.
        let seen = recv(socket, &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT);
        if seen == Ok(0) {
            return;
        }
        sleep(time).await;
    }
}
