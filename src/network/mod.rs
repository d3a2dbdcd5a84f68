//! The proxy: the only way out of a sandbox with the network mode `proxy`. [`SpawnProxy`] is the same proxy
//! on listeners of yours, for a program that you run yourself, and [`HostPolicy`] the list of hosts of a
//! manifest.

pub(crate) mod accept;
pub(crate) mod ask;
pub(crate) mod dial;
pub(crate) mod dns;
pub(crate) mod forward;
pub(crate) mod gate;
pub(crate) mod hosts;
pub(crate) mod http;
pub(crate) mod meter;
pub(crate) mod metered;
#[cfg(target_os = "linux")]
pub(crate) mod namespace;
pub(crate) mod proxy;
pub(crate) mod refusal;
pub(crate) mod relay;
pub(crate) mod resolve;
pub(crate) mod serving;
pub(crate) mod spawn_proxy;
pub(crate) mod stream;
pub(crate) mod upgrade;

pub use crate::network::hosts::HostPolicy;
pub use crate::network::spawn_proxy::SpawnProxy;
pub use crate::network::stream::ProxyListener;
