//! What is measured: the same program bare, confined, and under another sandbox.

pub(crate) const TRUE: &str = "/bin/true";

/// bubblewrap, isolated as a command of ours is: the same namespaces, read-only system, private /tmp.
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
