//! Audit records of the proxy: one for each decision and one for each finished connection.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::audit::record::{Egress, Record};
use crate::audit::trail::millis;
use crate::network::meter::Traffic;
use crate::network::proxy::Proxy;
use crate::network::refusal::{ProxyRefusal, Reason};
use crate::policy::destination::{Destination, Host};

/// An open connection. Dropping it writes its audit record, however the connection ends.
pub(crate) struct ConnectionRecord {
    proxy: Arc<Proxy>,
    pub(crate) traffic: Arc<Traffic>,
    destination: Destination,
    address: Option<IpAddr>,
    exec: Option<u64>,
    reason: &'static str,
}

impl ConnectionRecord {
    pub(crate) fn new(
        proxy: &Arc<Proxy>,
        destination: &Destination,
        address: Option<IpAddr>,
        reason: &'static str,
    ) -> Self {
        Self {
            exec: proxy.trail.only(),
            proxy: Arc::clone(proxy),
            traffic: Arc::new(Traffic::new()),
            destination: destination.clone(),
            address,
            reason,
        }
    }
}

impl Drop for ConnectionRecord {
    fn drop(&mut self) {
        let _ = self.proxy.trail.write(self.exec, || {
            Record::Egress(Egress {
                address: self.address,
                bytes_up: self.traffic.up.load(Relaxed),
                bytes_down: self.traffic.down.load(Relaxed),
                duration_ms: millis(self.traffic.age()),
                ..connection(&self.destination, "allowed", self.reason)
            })
        });
    }
}

impl Proxy {
    /// Records a refusal. A failing log changes nothing: the connection is refused anyway.
    pub(crate) fn write_refusal(&self, refusal: &ProxyRefusal) {
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

    /// In strict mode, records a connection before it is made. The record of the finished connection follows at
    /// its end.
    ///
    /// # Errors
    /// The audit log cannot be written.
    pub(crate) fn write_begin(
        &self,
        destination: &Destination,
        reason: &'static str,
    ) -> Result<(), ProxyRefusal> {
        if !self.trail.is_strict() {
            return Ok(());
        }
        let record = || Record::Egress(connection(destination, "begun", reason));
        match self.trail.write(self.trail.only(), record) {
            Ok(_) => Ok(()),
            Err(_) => Err(ProxyRefusal::of(destination, Reason::Unrecorded)),
        }
    }
}

fn host(destination: &Destination) -> String {
    match &destination.host {
        Host::Name(name) => name.to_string(),
        Host::Address(address) => address.to_string(),
    }
}

fn connection(destination: &Destination, decision: &'static str, reason: &'static str) -> Egress {
    egress(host(destination), Some(destination.port), decision, reason)
}

fn egress(host: String, port: Option<u16>, decision: &'static str, reason: &'static str) -> Egress {
    let (address, class) = (None, None);
    Egress { host, port, address, decision, reason, class, bytes_up: 0, bytes_down: 0, duration_ms: 0 }
}
