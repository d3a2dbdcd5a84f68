//! Where Kennel may create cgroups for commands, and limits of input and output. Plain data; the enforcement
//! report says what the host supports.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::policy::units::{Size, check_size};
use crate::report::error::policy::PolicyError;

/// The cgroup (v2) in which Kennel creates a group for each command. A group applies limits to a command
/// together with everything it starts; without one, limits apply to each process separately.
///
/// Written `auto`, `off`, or an absolute path.
///
/// ```
/// use kennel::Cgroup;
///
/// assert_eq!("auto".parse::<Cgroup>()?, Cgroup::Auto);
/// assert_eq!("/sys/fs/cgroup/ci".parse::<Cgroup>()?, Cgroup::At("/sys/fs/cgroup/ci".into()));
/// assert!("ci".parse::<Cgroup>().is_err());
/// # Ok::<(), kennel::PolicyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cgroup {
    /// A cgroup that is delegated to the caller, if a limit needs one. A cgroup that contains processes
    /// cannot limit groups below it. So if this program is alone in that cgroup, Kennel moves it with all its
    /// threads into a group below, `kennel-host`.
    #[default]
    Auto,
    /// No cgroup.
    Off,
    /// This directory of the cgroup v2 file system, even if no limit needs it: Kennel then also reports
    /// usage.
    At(PathBuf),
}

impl FromStr for Cgroup {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            path if path.starts_with('/') && !path.contains('\0') => Ok(Self::At(path.into())),
            other => Err(PolicyError::value("cgroup", other, "expected `auto`, `off` or an absolute path")),
        }
    }
}

impl fmt::Display for Cgroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Off => f.pad("off"),
            Self::At(path) => path.display().fmt(f),
        }
    }
}

impl Serialize for Cgroup {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cgroup {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Cgroup {
    pub(crate) fn check(&self) -> Result<(), PolicyError> {
        match self {
            Self::At(path) if !path.is_absolute() => {
                Err(PolicyError::path("limits.cgroup", path, "must be an absolute path"))
            }
            _ => Ok(()),
        }
    }
}

/// How fast commands may read and write the block device of the workspace, and that of the directory of an
/// overlay ([`Overlay::upper`](crate::policy::overlay::Overlay::upper)). The limits apply to each of the two
/// devices. They need a cgroup.
///
/// As a flag: `read=10M,write=5M,read_ops=100,write_ops=50`; each part is optional.
///
/// ```
/// use kennel::{IoLimits, Size};
///
/// let io: IoLimits = "write=5M,read_ops=100".parse()?;
/// assert_eq!((io.write, io.read_ops), (Some(Size::from_bytes(5 << 20)), Some(100)));
/// assert_eq!(io.to_string(), "write=5M,read_ops=100");
/// assert!("write".parse::<IoLimits>().is_err());
/// # Ok::<(), kennel::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IoLimits {
    /// Bytes read per second.
    pub read: Option<Size>,
    /// Bytes written per second.
    pub write: Option<Size>,
    /// Read operations per second.
    pub read_ops: Option<u64>,
    /// Write operations per second.
    pub write_ops: Option<u64>,
}

impl IoLimits {
    pub(crate) fn check(&self) -> Result<(), PolicyError> {
        check_size("limits.io.read", self.read)?;
        check_size("limits.io.write", self.write)?;
        for (key, count) in [("limits.io.read_ops", self.read_ops), ("limits.io.write_ops", self.write_ops)] {
            if count == Some(0) {
                return Err(PolicyError::value(key, 0, "must be at least 1"));
            }
        }
        Ok(())
    }
}

impl FromStr for IoLimits {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |expected: &str| {
            let reason = format!("expected {expected} read=10M,write=5M,read_ops=100,write_ops=50");
            PolicyError::value("io", text, reason)
        };
        let count = |value: &str| {
            let count = value.parse::<u64>().ok().filter(|count| *count > 0);
            count.ok_or_else(|| error("a number above 0, as in"))
        };
        let mut io = Self::default();
        for part in text.split(',') {
            let (name, value) = part.split_once('=').ok_or_else(|| error("parts of"))?;
            let is_duplicate = match name {
                "read" => io.read.replace(value.parse()?).is_some(),
                "write" => io.write.replace(value.parse()?).is_some(),
                "read_ops" => io.read_ops.replace(count(value)?).is_some(),
                "write_ops" => io.write_ops.replace(count(value)?).is_some(),
                _ => return Err(error("parts of")),
            };
            if is_duplicate {
                return Err(error("each part once, as in"));
            }
        }
        Ok(io)
    }
}

impl fmt::Display for IoLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.read.map(|size| format!("read={size}")),
            self.write.map(|size| format!("write={size}")),
            self.read_ops.map(|count| format!("read_ops={count}")),
            self.write_ops.map(|count| format!("write_ops={count}")),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(","))
    }
}

/// Parses a list of processors such as `0-3,6`, in the list format of cpuset(7).
pub(crate) fn processors(list: &str) -> Option<Vec<RangeInclusive<u16>>> {
    let number =
        |text: &str| text.parse::<u16>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = number(first).zip(number(last))?;
        (first <= last).then_some(first..=last)
    };
    list.split(',').map(range).collect()
}

/// Checks the form of a list of processors.
pub(crate) fn check_cpuset(list: &str) -> Result<(), PolicyError> {
    let error =
        || PolicyError::value("limits.cpuset", list, "expected a list of processor numbers, such as `0-3,6`");
    processors(list).map(drop).ok_or_else(error)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_cgroup_is_a_word_or_an_absolute_path() {
        for text in ["auto", "off", "/sys/fs/cgroup", "/a b"] {
            let cgroup: Cgroup = text.parse().expect(text);
            assert_eq!(cgroup.to_string(), text);
        }
        for text in ["", "Auto", "on", "sys/fs/cgroup", "./x", "/x\0"] {
            let error = text.parse::<Cgroup>().expect_err(text).to_string();
            assert!(error.ends_with("expected `auto`, `off` or an absolute path"), "{error}");
        }
        Cgroup::At("x".into()).check().expect_err("a relative path from code");
    }

    #[test]
    fn invalid_io_limits_are_refused() {
        for text in
            ["", "read", "read=", "read=0", "read_ops=0", "read_ops=-1", "read=1,read=2", "x=1", "read=1,"]
        {
            text.parse::<IoLimits>().expect_err(text);
        }
        IoLimits { read: Some(Size::from_bytes(0)), ..IoLimits::default() }
            .check()
            .expect_err("made in code");
        IoLimits { write_ops: Some(0), ..IoLimits::default() }.check().expect_err("made in code");
    }

    #[test]
    fn a_cpuset_is_numbers_and_ranges() {
        for list in ["0", "0-1", "0-1,3", "7,5"] {
            check_cpuset(list).expect(list);
        }
        for list in ["", "a", "1-", "-1", "2-1", "0,", "0 1", "+1", "99999", "0-1\n0", "0-1-2"] {
            check_cpuset(list).expect_err(list);
        }
    }

    proptest! {
        #[test]
        fn io_limits_round_trip(read in 1u64.., ops in proptest::option::of(1u64..)) {
            let io = IoLimits { read: Some(Size::from_bytes(read)), write_ops: ops, ..IoLimits::default() };
            prop_assert_eq!(io.to_string().parse::<IoLimits>().expect("reads"), io);
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in ".{0,40}") {
            let _ = (text.parse::<IoLimits>(), text.parse::<Cgroup>(), check_cpuset(&text));
        }
    }
}
