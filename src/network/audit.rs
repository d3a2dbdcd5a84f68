//! What the proxy writes down: a record for each decision.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::audit::record::{Egress, Record};
use crate::audit::trail::millis;
use crate::network::meter::Tally;
use crate::network::proxy::Proxy;
use crate::network::refusal::{Reason, Refusal};
use crate::policy::destination::{Destination, Host};

fn host(destination: &Destination) -> String {
    match &destination.host {
        Host::Name(name) => name.to_string(),
        Host::Address(address) => address.to_string(),
    }
}

fn passed(destination: &Destination, decision: &'static str, reason: &'static str) -> Egress {
    egress(host(destination), Some(destination.port), decision, reason)
}

fn egress(host: String, port: Option<u16>, decision: &'static str, reason: &'static str) -> Egress {
    let (address, class) = (None, None);
    Egress { host, port, address, decision, reason, class, bytes_up: 0, bytes_down: 0, duration_ms: 0 }
}

impl Proxy {
    /// Writes down what did not pass. It did not, whether that is written or not.
    pub(crate) fn record_refusal(&self, refusal: &Refusal) {
        let _ = self.trail.write(self.trail.only(), || {
            let decision = if refusal.is_denial() { "denied" } else { "failed" };
            let (host, port) = match &refusal.destination {
                Some(destination) => (host(destination), Some(destination.port)),
                None => (refusal.subject.clone(), None),
            };
            Record::Egress(Egress {
                class: Some(refusal.class()),
                ..egress(host, port, decision, refusal.word())
            })
        });
    }

    /// Writes down what will be dialled, where nothing may be that is not written down: its record comes at its end.
    ///
    /// # Errors
    /// It cannot be.
    pub(crate) fn record_begin(
        &self,
        destination: &Destination,
        reason: &'static str,
    ) -> Result<(), Refusal> {
        if !self.trail.is_strict() {
            return Ok(());
        }
        let record = || Record::Egress(passed(destination, "begun", reason));
        match self.trail.write(self.trail.only(), record) {
            Ok(_) => Ok(()),
            Err(_) => Err(Refusal::of(destination, Reason::Unrecorded)),
        }
    }
}

/// A connection that passed; its record is written when it ends, however it ends.
pub(crate) struct Passage {
    proxy: Arc<Proxy>,
    pub(crate) tally: Arc<Tally>,
    destination: Destination,
    address: Option<IpAddr>,
    exec: Option<u64>,
    reason: &'static str,
}

impl Passage {
    pub(crate) fn new(
        proxy: &Arc<Proxy>,
        destination: &Destination,
        address: Option<IpAddr>,
        reason: &'static str,
    ) -> Self {
        Self {
            exec: proxy.trail.only(),
            proxy: Arc::clone(proxy),
            tally: Arc::new(Tally::new()),
            destination: destination.clone(),
            address,
            reason,
        }
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        let _ = self.proxy.trail.write(self.exec, || {
            Record::Egress(Egress {
                address: self.address,
                bytes_up: self.tally.up.load(Relaxed),
                bytes_down: self.tally.down.load(Relaxed),
                duration_ms: millis(self.tally.age()),
                ..passed(&self.destination, "allowed", self.reason)
            })
        });
    }
}
