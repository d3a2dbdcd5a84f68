//! A host and a caller for unit tests, which compile for machines that the tests do not run on.

use std::collections::BTreeMap;
use std::path::Path;

use crate::caller::Caller;
use crate::host::scheduling::SchedulingPrivileges;
use crate::host::{Host, Version};

/// A host that has everything except cgroups.
pub(crate) fn host() -> Host {
    Host {
        kernel: Version(6, 18),
        landlock_abi: 7,
        seccomp: true,
        user_namespaces: true,
        possible_cpus: 4,
        etc_overlays: true,
        core_socket: false,
        ahead: SchedulingPrivileges::default(),
    }
}

/// An ordinary user without an environment who works in `directory`. Nothing in its home counts as secret.
pub(crate) fn caller(directory: &Path) -> Caller {
    Caller {
        uid: 1000,
        gid: 1000,
        user: "me".into(),
        home: "/home/me".into(),
        homes: Vec::new(),
        directory: directory.to_owned(),
        environment: BTreeMap::new(),
        descriptors: [1024, 4096],
    }
}
