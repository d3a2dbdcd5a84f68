//! The proxy of one sandbox: its decisions, limits and records, shared by all of its connections.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::audit::record::{Egress, Record};
use crate::audit::trail::{Trail, millis};
use crate::network::dns::LoopbackNames;
use crate::network::gate::Gate;
use crate::network::meter::{Meter, Traffic};
use crate::network::refusal::{Denials, ProxyRefusal, Reason};
use crate::network::relay::Relays;
use crate::policy::network::destination::{Destination, DestinationHost};
use crate::policy::network::preset;
use crate::sys::descriptor::share_of_descriptors;

/// How long the proxy delays an answer at most, for a client that causes too many refusals.
const MAX_DELAY: Duration = Duration::from_secs(2);

/// How many connections the proxy serves at a time, if no policy says it.
const MOST_CONNECTIONS: usize = 4096;

/// The proxy of one network namespace.
pub(crate) struct Proxy {
    pub(crate) gate: Arc<Gate>,
    pub(crate) names: LoopbackNames,
    pub(crate) denials: Denials,
    pub(crate) relays: Relays,
    pub(crate) slots: Arc<Semaphore>,
    pub(crate) trail: Arc<Trail>,
}

impl Proxy {
    pub(crate) fn new(gate: &Arc<Gate>, trail: &Arc<Trail>) -> Self {
        let limits = &gate.settings().limits;
        // Each connection takes two descriptors.
        let connections = limits.connections.unwrap_or_else(|| share_of_descriptors(4, MOST_CONNECTIONS));
        Self {
            names: LoopbackNames::default(),
            denials: Denials::new(gate.settings().decides),
            relays: Relays::new(
                Some(limits.idle_time),
                Meter::new(limits.bytes, limits.rate),
                connections / 8,
            ),
            slots: Arc::new(Semaphore::new(connections)),
            trail: Arc::clone(trail),
            gate: Arc::clone(gate),
        }
    }

    /// Records a refusal for the running commands and for the audit log. Call it before the client gets its
    /// answer: then no command ends before its denial is known.
    ///
    /// It delays a client that causes too many refusals, so that a command cannot fill the disk with them.
    pub(crate) async fn record(&self, refusal: &ProxyRefusal) {
        self.write_refusal(refusal);
        if let Some(until) = self.denials.add(refusal, self.has_unused_upstream(refusal)) {
            // Only a short delay: the waiting client occupies a connection slot.
            tokio::time::sleep_until(until.min(Instant::now() + MAX_DELAY)).await;
        }
    }

    /// Like [`record`](Self::record); returns the refusal.
    pub(crate) async fn recorded(&self, refusal: ProxyRefusal) -> ProxyRefusal {
        self.record(&refusal).await;
        refusal
    }

    /// Like [`record`](Self::record), for an answer that may be left out. Returns whether the proxy may
    /// answer.
    pub(crate) fn may_answer_refusal(&self, refusal: &ProxyRefusal) -> bool {
        if self.denials.is_flooded() {
            return false;
        }
        self.write_refusal(refusal);
        self.denials.add(refusal, false);
        true
    }

    /// Whether the caller's environment names a proxy for what could not be reached.
    fn has_unused_upstream(&self, refusal: &ProxyRefusal) -> bool {
        let host = refusal.destination.as_ref().map(|destination| &destination.host);
        let unused = self.gate.settings().unused_upstream.as_ref();
        host.zip(unused).is_some_and(|(host, unused)| !host.is_loopback() && !unused.passes_by(host))
    }

    /// Replaces a loopback address that the DNS stub gave out by the name it stands for.
    pub(crate) fn with_name(&self, destination: Destination) -> Destination {
        match destination.host {
            DestinationHost::Address(IpAddr::V4(ip)) => match self.names.name_of(ip) {
                Some(name) => Destination { host: DestinationHost::Name(name), ..destination },
                None => destination,
            },
            _ => destination,
        }
    }

    /// What a client asks for that has connected to this address of the sandbox.
    pub(crate) fn destination_at(&self, asked: SocketAddr) -> Option<Destination> {
        let port = asked.port();
        match self.with_name(Destination { host: DestinationHost::of(asked.ip()), port }) {
            named @ Destination { host: DestinationHost::Name(_), .. } => Some(named),
            _ => {
                let host = self.gate.settings().allow.loopback_host(asked.ip(), port)?;
                Some(Destination { host, port })
            }
        }
    }
}

// Audit records of the proxy: one for each decision and one for each finished connection.

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
        let registry = proxy.gate.settings().notes_registries.then(|| preset::with_cache(destination));
        proxy.denials.reached(destination, registry.flatten());
        Self {
            exec: proxy.trail.only_command(),
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
        let _ = self.trail.write(self.trail.only_command(), || {
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

    /// In strict mode, records a connection before it is made. The record of the finished connection follows
    /// at its end.
    ///
    /// # Errors
    /// The audit log cannot be written.
    pub(crate) fn write_begin(
        &self,
        destination: &Destination,
        reason: &'static str,
    ) -> Result<(), ProxyRefusal> {
        if !self.trail.is_fail_closed() {
            return Ok(());
        }
        let record = || Record::Egress(connection(destination, "begun", reason));
        match self.trail.write(self.trail.only_command(), record) {
            Ok(_) => Ok(()),
            Err(_) => Err(ProxyRefusal::of(destination, Reason::Unrecorded)),
        }
    }
}

fn host(destination: &Destination) -> String {
    match &destination.host {
        DestinationHost::Name(name) => name.to_string(),
        DestinationHost::Address(address) => address.to_string(),
    }
}

fn connection(destination: &Destination, decision: &'static str, reason: &'static str) -> Egress {
    egress(host(destination), Some(destination.port), decision, reason)
}

fn egress(host: String, port: Option<u16>, decision: &'static str, reason: &'static str) -> Egress {
    let (address, class) = (None, None);
    Egress { host, port, address, decision, reason, class, bytes_up: 0, bytes_down: 0, duration_ms: 0 }
}
