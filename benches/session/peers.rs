//! The measured variants: the same program bare, confined, and under another sandbox.

pub(crate) const TRUE: &str = "/bin/true";

/// bubblewrap with the isolation of a Kennel command: the same namespaces, a read-only system, a private
/// /tmp.
pub(crate) const BWRAP: &[&str] = &[
    "--unshare-all",
    "--ro-bind",
    "/",
    "/",
    "--tmpfs",
    "/tmp",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--die-with-parent",
    TRUE,
];
