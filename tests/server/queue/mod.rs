//! Jobs from NATS JetStream, with a real server of NATS.
//!
//! | module | what |
//! | --- | --- |
//! | `bad` | jobs that nobody should send, and that mean harm |
//! | `jobs` | a job's command, its result, its limits, its end |
//! | `losses` | workers and NATS die; every job has one outcome |
//! | `nats` | the server of NATS, and a client |

mod bad;
mod jobs;
mod losses;
mod nats;
