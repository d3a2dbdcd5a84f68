//! Steps in words, for the message when one fails: what was being done, with the user's own path.

use std::{ffi::CStr, fmt};

use kennel_helper::plan::Step;

/// A step as a person would say it.
pub(crate) fn describe(step: &Step<'_>) -> String {
    match *step {
        Step::Write { path, .. } => format!("write {}", text(path)),
        Step::Unshare { flags } => format!("new {} namespace", namespace(flags)),
        Step::Separate {} => "keep mounts from the host".to_owned(),
        Step::Hostname { .. } => "set the host name".to_owned(),
        Step::LoopbackUp {} => "bring the loopback device up".to_owned(),
        Step::NewRoot { .. } => "mount a tmpfs for the root".to_owned(),
        Step::MakeDir { path, .. } => format!("make directory {}", target(path)),
        Step::Symlink { path, .. } => format!("make link {}", target(path)),
        Step::MakeFile { path, .. } => format!("make file {}", target(path)),
        Step::Bind { source, target: at, .. } => format!("bind {} at {}", text(source), target(at)),
        Step::Mount { kind, target: at, .. } => format!("mount {} at {}", text(kind), target(at)),
        Step::Cover { target: at, .. } => format!("cover {}", target(at)),
        Step::BindOwn { source, target: at } => {
            format!("bind {} of the sandbox at {}", target(source), target(at))
        }
        Step::SetMode { path, .. } => format!("set the mode of {}", target(path)),
        Step::MakeMountPoint { path } => format!("make mount point {}", target(path)),
        Step::PivotRoot {} => "make the new root the root".to_owned(),
        Step::SetAttributes { target: at, .. } => format!("make {} read-only", target(at)),
        Step::LandlockRuleset { .. } => "make a Landlock ruleset".to_owned(),
        Step::LandlockRule { path, .. } => format!("allow {} in Landlock", target(path)),
        Step::LandlockRestrict {} => "restrict by Landlock".to_owned(),
        Step::Prctl { option, .. } => format!("set process attribute {option}"),
        Step::DropCapabilities {} => "drop capabilities".to_owned(),
        Step::DropBoundingSet {} => "empty the bounding set".to_owned(),
        Step::NewKeyring {} => "make a session keyring".to_owned(),
        Step::Limit { resource, soft, .. } => format!("limit {} to {soft}", limit(resource)),
        Step::Seccomp { .. } | Step::SeccompAsking { .. } => "install the seccomp filter".to_owned(),
        Step::EnterRoot {} => "enter the root".to_owned(),
        Step::Move { from, to, .. } => format!("move {} to {}", target(from), target(to)),
        Step::Detach { target: at } => format!("unmount {}", target(at)),
        Step::MountAgain { target: at, .. } => {
            format!("mount {} again, which was replaced outside", target(at))
        }
        Step::Room { path } => format!("look at what is free at {}", target(path)),
        Step::Forgo { path } => format!("go without {}", target(path)),
        Step::LoopbackAddress { .. } => "add an address to loopback".to_owned(),
        Step::LandlockPort { port, .. } => format!("add the Landlock rule for port {port}"),
        Step::Listen { port, .. } => format!("listen on port {port} of the sandbox"),
        Step::HandOutUpper { .. } => "hand out the changes".to_owned(),
        Step::Pin { target: at, .. } => format!("keep {} in its place", target(at)),
        Step::Ordinary { .. } => "take an ordinary priority".to_owned(),
        Step::DropCapability { capability } => format!("drop capability {capability}"),
        Step::HandOut {} => "hand out the view".to_owned(),
        Step::NewSession {} => "start a session".to_owned(),
    }
}

fn text(path: &CStr) -> impl fmt::Display {
    path.to_string_lossy()
}

/// Targets lie relative to the root in the plan; people know them as absolute.
fn target(path: &CStr) -> String {
    match path.to_bytes() {
        b"." => "/".to_owned(),
        _ => format!("/{}", path.to_string_lossy()),
    }
}

fn namespace(flags: u32) -> &'static str {
    match flags.cast_signed() {
        libc::CLONE_NEWNS => "mount",
        libc::CLONE_NEWIPC => "ipc",
        libc::CLONE_NEWUTS => "uts",
        libc::CLONE_NEWNET => "network",
        libc::CLONE_NEWCGROUP => "cgroup",
        _ => "unknown",
    }
}

fn limit(resource: u32) -> &'static str {
    match resource {
        libc::RLIMIT_CORE => "core file size",
        libc::RLIMIT_CPU => "cpu time",
        libc::RLIMIT_DATA => "memory",
        libc::RLIMIT_FSIZE => "file size",
        libc::RLIMIT_NOFILE => "open files",
        libc::RLIMIT_NPROC => "processes",
        _ => "a resource",
    }
}
