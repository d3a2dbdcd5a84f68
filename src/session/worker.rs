//! A worker that has no command yet, as far as it was heard of.

use std::io;

use kennel_helper::control::Report;
use nix::errno::Errno;

use super::stats::Counts;
use crate::{
    Error,
    inside::{Arrival, Inside},
    prepared::Prepared,
};

#[derive(Debug)]
pub(super) struct Worker {
    inside: Inside,
    is_born: bool,
    is_ready: bool,
    /// What kept it from getting ready, told to the command that gets it.
    failed: Option<(u32, u32, i32)>,
    /// Whether its pidfd came when there was no room for it.
    is_out_of_hold: bool,
}

impl Worker {
    /// One that the zygote has yet to fork.
    pub(super) fn ordered(inside: Inside) -> Self {
        Self { inside, is_born: false, is_ready: false, failed: None, is_out_of_hold: false }
    }

    /// Whether it waits for its command, as far as was heard.
    pub(super) fn is_ready(&self) -> bool {
        self.is_ready
    }

    pub(super) fn into_inside(self) -> Inside {
        self.inside
    }

    /// Takes in what it said; waits for its birth, unless in a hurry.
    pub(super) async fn hear(
        &mut self,
        prepared: &Prepared,
        counts: &Counts,
        in_a_hurry: bool,
    ) -> Result<(), Error> {
        loop {
            self.listen(prepared, counts)?;
            if self.is_born || in_a_hurry {
                return Ok(());
            }
            let arrival = self.inside.next().await;
            self.heard(arrival.map_err(Error::io("read the socket of a worker"))?, prepared, counts)?;
        }
    }

    /// Takes in what it said, and waits for nothing.
    pub(super) fn listen(&mut self, prepared: &Prepared, counts: &Counts) -> Result<(), Error> {
        loop {
            if self.is_out_of_hold {
                return Err(Error::io("take hold of a worker")(Errno::EMFILE.into()));
            }
            match self.inside.receive() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                arrival => {
                    self.heard(arrival.map_err(Error::io("read the socket of a worker"))?, prepared, counts)?
                }
            }
        }
    }

    fn heard(&mut self, arrival: Arrival, prepared: &Prepared, counts: &Counts) -> Result<(), Error> {
        match arrival {
            Arrival::Born(pidfd) => {
                self.inside.is_born(pidfd);
                self.is_born = true;
            }
            Arrival::Report(Report::Ready { took_us }) => {
                self.is_ready = true;
                counts.refilled(took_us);
            }
            Arrival::Report(Report::Failed { section, index, errno }) => {
                self.failed = Some((section, index, errno));
            }
            Arrival::Closed => {
                let Some((section, index, errno)) = self.failed else { return Err(Error::Lost) };
                return Err(prepared.step_failed(None, (section, index), errno));
            }
            Arrival::Report(Report::Born {}) => self.is_out_of_hold = true,
            Arrival::Report(_) | Arrival::Terminal(_) => {}
        }
        Ok(())
    }
}
