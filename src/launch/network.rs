//! Takes the sockets of a sandbox that was just started, and begins to serve them: before any command can use them, so
//! that what goes wrong is an error of the start.

use std::sync::Arc;

use kennel_helper::control::Report;

use crate::audit::trail::Trail;
use crate::launch::bridge::Bridge;
use crate::launch::inside::{Arrival, Inside};
use crate::launch::prepared::Prepared;
use crate::network::proxy::{ForeignProxy, Serving};
use crate::report::error::Error;

impl Serving {
    /// Serves the network of a sandbox or session whose steps are being carried out; waits until its sockets have come.
    /// `None` where the policy has no proxy. What else was said meanwhile is left in `said`.
    ///
    /// # Errors
    /// A step that failed, no room for a descriptor.
    pub(crate) async fn open(
        prepared: &Prepared,
        inside: &Inside,
        trail: &Arc<Trail>,
        said: &mut Vec<Report>,
    ) -> Result<Option<Self>, Error> {
        let Some(gate) = prepared.gate() else { return Ok(None) };
        let bridge = prepared.compiled.bridge.as_ref();
        // It gets ready beside the sandbox.
        let bridge = bridge.map(|plan| Bridge::start(&prepared.images, plan)).transpose()?;
        let serving =
            Self::new(gate, trail, bridge.map(|bridge| -> Arc<dyn ForeignProxy> { Arc::new(bridge) }));
        let mut missing = gate.settings().sockets;
        while missing > 0 {
            match inside.next().await.map_err(Error::io("read the control socket"))? {
                Arrival::Listening(listening) => {
                    serving.take(listening).await?;
                    missing -= 1;
                }
                Arrival::Report(Report::Failed { section, index, errno }) => {
                    return Err(prepared.step_failed(None, (section, index), errno));
                }
                // Its descriptor was lost for want of room for one.
                Arrival::Report(Report::Listening { .. }) => return Err(Error::no_descriptor()),
                Arrival::Report(report) => said.push(report),
                Arrival::Closed => return Err(Error::Lost),
                Arrival::Born(_)
                | Arrival::Terminal(_)
                | Arrival::Refusing(_)
                | Arrival::Root(_)
                | Arrival::Upper(_)
                | Arrival::Mounts(_) => {}
            }
        }
        Ok(Some(serving))
    }
}
