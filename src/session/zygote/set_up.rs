//! The set-up of a zygote, up to the first workers.

use std::os::fd::OwnedFd;

use kennel_helper::control::Report;

use crate::launch::bridge::HandedOut;
use crate::launch::control::Arrival;
use crate::launch::prepared::FailedStep;
use crate::launch::supervisor::Supervisor;
use crate::network::serving::Serving;
use crate::report::error::Error;
use crate::session::log::stats::Counts;
use crate::session::zygote::Zygote;
use crate::session::zygote::common_init::CommonInit;
use crate::session::zygote::worker::Worker;

/// What a zygote has handed out once it has carried out its plan.
pub(crate) struct SetUp {
    /// The proxy, if the policy needs one.
    pub(crate) proxy: Option<Serving>,
    /// The upper directory of the workspace, if that is an overlay.
    pub(crate) upper: Option<OwnedFd>,
    /// The upper directory of the root, if that is an overlay.
    pub(crate) root_upper: Option<OwnedFd>,
}

impl Zygote {
    /// Waits until the zygote has carried out the session's steps.
    pub(crate) async fn set_up(&mut self) -> Result<SetUp, Error> {
        let (mut early_reports, mut upper, mut root_upper) = (Vec::new(), None, None);
        let trail = self.log.trail();
        let handed_out = HandedOut::receive(&self.prepared, &self.init, trail, &mut early_reports).await;
        let HandedOut { proxy, seccomp_listener, .. } = handed_out.map_err(|error| match error {
            Error::Lost => Error::SessionEnded,
            error => error,
        })?;
        seccomp_listener.map(|listener| self.supervise(listener)).transpose()?;
        let mut early_reports = early_reports.into_iter();
        loop {
            let arrival = match early_reports.next() {
                Some(report) => Arrival::Report(report),
                None => self.init.next().await.map_err(Error::io("read the control socket"))?,
            };
            match arrival {
                Arrival::Report(Report::Ready { .. }) => return Ok(SetUp { proxy, upper, root_upper }),
                Arrival::Upper(directory) => upper = Some(directory),
                Arrival::RootUpper(directory) => root_upper = Some(directory),
                Arrival::Refusing(listener) => self.supervise(listener)?,
                Arrival::Report(Report::Upper { .. } | Report::Refusing {}) => {
                    return Err(Error::no_descriptor());
                }
                Arrival::Report(Report::Failed { section, index, errno }) => {
                    return Err(self.prepared.step_failed(None, FailedStep { section, index, errno }));
                }
                Arrival::Report(Report::Skipped { section, index, errno }) => {
                    let skipped = FailedStep { section, index, errno };
                    self.prepared.step_skipped(None, skipped, &mut self.enforcement);
                }
                Arrival::Closed => return Err(Error::SessionEnded),
                _ => {}
            }
        }
    }

    /// Answers for the seccomp filter of all commands.
    fn supervise(&mut self, listener: OwnedFd) -> Result<(), Error> {
        self.supervisor = Some(Supervisor::follow(listener, &self.prepared.compiled)?);
        Ok(())
    }

    /// Orders the common init of the commands.
    pub(crate) fn order_common_init(&self) -> Result<Worker, Error> {
        let files = &self.prepared.compiled.steps.files;
        self.try_order_of_zygote(Some(files), true).map_err(Error::io("order the common init of the session"))
    }

    /// Waits for the common init of a session that has been set up.
    pub(crate) async fn share(&mut self, mut worker: Worker) -> Result<(), Error> {
        let counts = Counts::default();
        let (root, mounts) = self.unless_gone(worker.wait_for_view(&self.prepared, &counts)).await?;
        self.unless_gone(worker.wait_until_ready(&self.prepared, &counts)).await?;
        self.common_init = Some(CommonInit::new(worker, root, mounts)?);
        Ok(())
    }
}
