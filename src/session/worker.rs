//! A worker that has no command yet, as far as it was heard of.

use std::{io, os::fd::OwnedFd, sync::Arc};

use kennel_helper::control::Report;
use nix::errno::Errno;

use super::{
    ground::{Hold, Making, Own},
    stats::Counts,
};
use crate::{
    Error,
    audit::Trail,
    compile::Section,
    inside::{Arrival, Inside},
    prepared::Prepared,
    proxy::Serving,
    start,
    watch::Watch,
};

/// A worker for a command.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) inside: Inside,
    /// What it said that its command has to know.
    pub(crate) said: Vec<Report>,
    /// The proxy of a one-shot.
    pub(crate) serving: Option<Serving>,
    /// What its filter of system calls tells its refusals by, where that has come already.
    pub(crate) listener: Option<OwnedFd>,
    own: Option<Arc<Own>>,
}

impl Taken {
    /// The only worker of a one-shot.
    pub(crate) async fn one_shot(
        prepared: &Prepared,
        trail: &Arc<Trail>,
        steps: Option<Section>,
    ) -> Result<Self, Error> {
        let own = steps.map(Own::of).transpose();
        let own = own.map_err(Error::io("write the steps of the command to a memfd"))?.map(Arc::new);
        let inside = start::start_one_shot(prepared, own.as_ref().map(|own| &own.bytes))?;
        let mut said = Vec::new();
        let serving = Serving::open(prepared, &inside, trail, &mut said).await?;
        Ok(Self { inside, said, serving, listener: None, own })
    }

    /// Its steps that are not in the plan.
    pub(crate) fn steps(&self) -> Option<Section> {
        self.own.as_ref().map(|own| own.section.clone())
    }
}

#[derive(Debug)]
pub(super) struct Worker {
    inside: Inside,
    own: Option<Arc<Own>>,
    /// To be looked at after its command, and not where it never gets one.
    watches: Arc<[Watch]>,
    generation: u64,
    is_born: bool,
    is_ready: bool,
    /// Steps that it went on without.
    skipped: Vec<Report>,
    /// What kept it from getting ready: told to the command that it was made for, if it was made for one.
    failed: Option<(u32, u32, i32)>,
    /// Whether its pidfd came when there was no room for it.
    is_out_of_hold: bool,
    /// Its root and its mount namespace, where its steps hand them out.
    root: Option<OwnedFd>,
    mounts: Option<OwnedFd>,
    /// What its filter of system calls tells its refusals by.
    listener: Option<OwnedFd>,
}

impl Worker {
    /// One that the zygote has yet to fork.
    pub(super) fn ordered(inside: Inside, making: Making) -> Self {
        Self {
            inside,
            own: making.own,
            watches: making.watches,
            generation: making.generation,
            is_born: false,
            is_ready: false,
            skipped: Vec::new(),
            failed: None,
            is_out_of_hold: false,
            root: None,
            mounts: None,
            listener: None,
        }
    }

    /// Whether it waits for its command, as far as was heard.
    pub(super) fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// How often something had changed outside when it was ordered.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// For a command, whose hold goes where the hold on its sandbox goes.
    pub(super) fn taken(self, hold: Hold) -> Taken {
        let mut inside = self.inside;
        inside.hold(hold, &self.watches);
        Taken { inside, said: self.skipped, serving: None, listener: self.listener, own: self.own }
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

    /// Waits until it has handed out its root and its mount namespace.
    pub(super) async fn view(
        &mut self,
        prepared: &Prepared,
        counts: &Counts,
    ) -> Result<(OwnedFd, OwnedFd), Error> {
        loop {
            if let Some(root) = self.root.take_if(|_| self.mounts.is_some())
                && let Some(mounts) = self.mounts.take()
            {
                return Ok((root, mounts));
            }
            let arrival = self.inside.next().await;
            self.heard(arrival.map_err(Error::io("read the socket of a worker"))?, prepared, counts)?;
        }
    }

    /// Takes in what it said, and waits for nothing.
    pub(super) fn listen(&mut self, prepared: &Prepared, counts: &Counts) -> Result<(), Error> {
        loop {
            if let Some(failed) = self.failed {
                return Err(self.refused(prepared, failed));
            }
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
                self.inside.set_pidfd(pidfd);
                self.is_born = true;
            }
            Arrival::Report(Report::Ready { took_us }) => {
                self.is_ready = true;
                counts.refilled(took_us);
            }
            Arrival::Report(Report::Failed { section, index, errno }) => {
                // Told at once: it may be a moment before the worker is gone, and it takes no command any more.
                self.failed = Some((section, index, errno));
                return Err(self.refused(prepared, (section, index, errno)));
            }
            Arrival::Closed => return Err(Error::Lost),
            Arrival::Report(report @ Report::Skipped { .. }) => self.skipped.push(report),
            Arrival::Root(root) => self.root = Some(root),
            Arrival::Mounts(mounts) => self.mounts = Some(mounts),
            Arrival::Report(Report::Root {} | Report::Mounts {}) => return Err(Error::no_descriptor()),
            Arrival::Refusing(listener) => self.listener = Some(listener),
            // Nobody would answer what it refuses.
            Arrival::Report(Report::Born {} | Report::Refusing {}) => self.is_out_of_hold = true,
            Arrival::Report(_) | Arrival::Terminal(_) | Arrival::Listening(_) | Arrival::Upper(_) => {}
        }
        Ok(())
    }

    fn refused(&self, prepared: &Prepared, (section, index, errno): (u32, u32, i32)) -> Error {
        let own = self.own.as_ref().map(|own| &own.section);
        prepared.step_failed(own, (section, index), errno)
    }
}
