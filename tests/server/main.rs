//! `kennel serve`, asked by hand: what no client of E2B can say. Those clients drive `tests/server/e2b`.
//!
//! | module | what |
//! | --- | --- |
//! | `access` | keys, tokens of sandboxes, signatures, quotas |
//! | `attacks` | clients and servers in sandboxes that mean harm |
//! | `bad_input` | bodies, headers and connections that nobody should send |
//! | `front` | admission, metrics, drain, hosts |
//! | `fuzz` | requests of every route, damaged at random |
//! | `load` | slow clients, a drain, deadlines and a full disk, with much at once |
//! | `memory` | what a container's limit of memory does |
//! | `own` | Kennel's own routes: commands with their files, blobs, reports, changes |
//! | `pods` | a worker in the conditions of Kubernetes |
//! | `ports` | servers in sandboxes, by header and by name |
//! | `queue` | jobs from NATS JetStream, with a real server that dies |
//! | `route` | the router before several workers, and `kennel fleet status` |
//! | `streams` | events of commands: order, silence, slow readers |
//! | `templates` | policies, files, limits, what a client may narrow |
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests")]

mod access;
mod attacks;
mod bad_input;
mod front;
mod fuzz;
mod load;
mod memory;
mod own;
mod pods;
mod ports;
#[cfg(feature = "nats")]
mod queue;
mod route;
mod server;
mod streams;
mod templates;
