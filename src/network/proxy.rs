//! The proxy of one sandbox: its decisions, limits and records, shared by all of its connections.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::audit::trail::Trail;
use crate::network::gate::Gate;
use crate::network::loopback_names::LoopbackNames;
use crate::network::meter::Meter;
use crate::network::refusal::{Denials, ProxyRefusal};
use crate::policy::destination::{Destination, Host};

/// How long the proxy delays an answer at most, for a client that causes too many refusals.
const MAX_DELAY: Duration = Duration::from_secs(2);

/// The proxy of one network namespace.
pub(crate) struct Proxy {
    pub(crate) gate: Arc<Gate>,
    pub(crate) names: LoopbackNames,
    pub(crate) denials: Denials,
    pub(crate) meter: Meter,
    pub(crate) slots: Arc<Semaphore>,
    /// Pairs of descriptors beside the two of each connection: for pipes, and for parallel connection attempts.
    pub(crate) spare: Arc<Semaphore>,
    pub(crate) trail: Arc<Trail>,
    closing: watch::Sender<bool>,
}

impl Proxy {
    pub(crate) fn new(gate: &Arc<Gate>, trail: &Arc<Trail>) -> Self {
        let limits = &gate.settings().limits;
        Self {
            names: LoopbackNames::default(),
            denials: Denials::default(),
            meter: Meter::new(limits.bytes, limits.rate),
            slots: Arc::new(Semaphore::new(limits.connections)),
            spare: Arc::new(Semaphore::new(limits.connections / 8)),
            trail: Arc::clone(trail),
            closing: watch::Sender::new(false),
            gate: Arc::clone(gate),
        }
    }

    /// Records a refusal for the running commands and for the audit log. Call it before the client gets its
    /// answer: then no command ends before its denial is known.
    ///
    /// It delays a client that causes too many refusals, so that a command cannot fill the disk with them.
    pub(crate) async fn record(&self, refusal: &ProxyRefusal) {
        self.write_refusal(refusal);
        if let Some(until) = self.denials.add(refusal) {
            // Only a short delay: the waiting client occupies a connection slot.
            tokio::time::sleep_until(until.min(Instant::now() + MAX_DELAY)).await;
        }
    }

    /// Like [`record`](Self::record); returns the refusal.
    pub(crate) async fn recorded(&self, refusal: ProxyRefusal) -> ProxyRefusal {
        self.record(&refusal).await;
        refusal
    }

    /// Like [`record`](Self::record), for an answer that may be left out. Returns whether the proxy may answer.
    pub(crate) fn may_answer_refusal(&self, refusal: &ProxyRefusal) -> bool {
        if self.denials.is_flooded() {
            return false;
        }
        self.write_refusal(refusal);
        self.denials.add(refusal);
        true
    }

    /// Replaces a loopback address that the DNS stub gave out by the name it stands for.
    pub(crate) fn with_name(&self, destination: Destination) -> Destination {
        match destination.host {
            Host::Address(IpAddr::V4(ip)) => match self.names.name_of(ip) {
                Some(name) => Destination { host: Host::Name(name), ..destination },
                None => destination,
            },
            _ => destination,
        }
    }

    /// Makes [`closing`](Self::closing) return.
    pub(crate) fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Returns once the command of the sandbox has ended.
    pub(crate) async fn closing(&self) {
        // The sender lives as long as `self`.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }
}
