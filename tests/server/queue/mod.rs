//! Jobs from NATS JetStream, with a real server of NATS.
//!
//! | module | what |
//! | --- | --- |
//! | `bad` | jobs that nobody should send, and that mean harm |
//! | `jobs` | a job's command, its result, its limits, its end |
//! | `losses` | workers and NATS die; every job has one outcome |
//! | `nats` | the server of NATS, and a client |

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test that is skipped says so, and a long one what it did"
)]

mod bad;
mod jobs;
mod losses;
mod nats;
