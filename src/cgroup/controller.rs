//! Controllers of cgroup v2, by their names. Data only.

use std::fmt;

/// What a cgroup can hold its processes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Controller {
    Memory,
    Pids,
    Cpu,
    Io,
    Cpuset,
}

impl Controller {
    pub(crate) const ALL: [Self; 5] = [Self::Memory, Self::Pids, Self::Cpu, Self::Io, Self::Cpuset];

    /// The name that cgroup v1 has for it.
    const fn name_of_v1(self) -> &'static str {
        match self {
            Self::Io => "blkio",
            other => other.name(),
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
            Self::Io => "io",
            Self::Cpuset => "cpuset",
        }
    }

    /// Those that a list of the kernel's names, separated by white space.
    pub(crate) fn listed(list: &str) -> Vec<Self> {
        Self::ALL
            .into_iter()
            .filter(|known| list.split_whitespace().any(|name| name == known.name()))
            .collect()
    }

    /// Those that are among the names of cgroup v1.
    pub(crate) fn of_v1(names: &[String]) -> Vec<Self> {
        Self::ALL.into_iter().filter(|known| names.iter().any(|name| name == known.name_of_v1())).collect()
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One file of a cgroup, and what it is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) file: &'static str,
    pub(crate) value: String,
    /// Whether a kernel may lack the file: then nothing of the kind is there to be limited.
    pub(crate) may_lack: bool,
}

impl Setting {
    pub(crate) fn new(file: &'static str, value: impl fmt::Display) -> Self {
        Self { file, value: value.to_string(), may_lack: false }
    }

    /// One that a kernel may lack.
    pub(crate) fn where_there(file: &'static str, value: impl fmt::Display) -> Self {
        Self { may_lack: true, ..Self::new(file, value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_are_read() {
        use Controller::{Cpu, Io, Memory, Pids};
        assert_eq!(Controller::listed("cpuset_x cpu io memory hugetlb pids\n"), [Memory, Pids, Cpu, Io]);
        assert_eq!(Controller::listed(""), []);
        let of_v1 = ["cpuset", "cpu", "cpuacct", "blkio", "net_cls"].map(str::to_owned);
        assert_eq!(Controller::of_v1(&of_v1), [Cpu, Io, Controller::Cpuset]);
    }
}
