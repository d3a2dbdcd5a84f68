//! Where cgroups of commands may be made, and what they hold of input and output. Plain data; whether the host has it is
//! said by the enforcement.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::policy::limits::check_size;
use crate::policy::units::Size;
use crate::report::policy_error::PolicyError;

/// Which cgroup (v2) the groups of commands are made in. A group holds a command to its limits together with all that it
/// starts; without one, limits are of each process.
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
    /// One that is delegated to the caller, if a limit asks for it. If this program is the only one in it, it is moved with
    /// all its threads to a group below, `kennel-host`: a cgroup that holds processes cannot limit groups below it.
    #[default]
    Auto,
    /// None.
    Off,
    /// This directory of the cgroup v2 file system, even if no limit asks for it: usage is counted then too.
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

/// How fast commands may read from and write to the block device that the workspace lies on, and that of the directory of an
/// overlay ([`Overlay::upper`](crate::policy::overlay::Overlay::upper)), for each of the two. Only a cgroup can limit this.
///
/// As a flag: `read=10M,write=5M,read_ops=100,write_ops=50`, each of them optional.
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
    /// Bytes read, a second.
    pub read: Option<Size>,
    /// Bytes written, a second.
    pub write: Option<Size>,
    /// Reads, a second.
    pub read_ops: Option<u64>,
    /// Writes, a second.
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
        let wrong = |reason: &str| {
            PolicyError::value("io", text, format!("{reason}: read=10M,write=5M,read_ops=100,write_ops=50"))
        };
        let count = |value: &str| value.parse::<u64>().ok().filter(|count| *count > 0);
        let mut io = Self::default();
        for part in text.split(',') {
            let (name, value) = part.split_once('=').ok_or_else(|| wrong("expected parts of"))?;
            let twice = match name {
                "read" => io.read.replace(value.parse()?).is_some(),
                "write" => io.write.replace(value.parse()?).is_some(),
                "read_ops" => io
                    .read_ops
                    .replace(count(value).ok_or_else(|| wrong("a number above 0, as in"))?)
                    .is_some(),
                "write_ops" => io
                    .write_ops
                    .replace(count(value).ok_or_else(|| wrong("a number above 0, as in"))?)
                    .is_some(),
                _ => return Err(wrong("expected parts of")),
            };
            if twice {
                return Err(wrong("each part once, as in"));
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

/// A list of processors such as `0-3,6`, as cpuset(7) has them.
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

/// Whether a list of processors is one.
pub(crate) fn check_cpuset(list: &str) -> Result<(), PolicyError> {
    let error =
        || PolicyError::value("limits.cpuset", list, "expected numbers of processors, such as `0-3,6`");
    processors(list).map(drop).ok_or_else(error)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn groups_are_made_where_a_word_or_an_absolute_path_says() {
        for text in ["auto", "off", "/sys/fs/cgroup", "/a b"] {
            let cgroup: Cgroup = text.parse().expect(text);
            assert_eq!(cgroup.to_string(), text);
        }
        for text in ["", "Auto", "on", "sys/fs/cgroup", "./x", "/x\0"] {
            let error = text.parse::<Cgroup>().expect_err(text).to_string();
            assert!(error.ends_with("expected `auto`, `off` or an absolute path"), "{error}");
        }
        Cgroup::At("x".into()).check().expect_err("made in code, and relative");
    }

    #[test]
    fn input_and_output_are_said_part_by_part() {
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
    fn processors_are_numbers_and_ranges() {
        for list in ["0", "0-1", "0-1,3", "7,5"] {
            check_cpuset(list).expect(list);
        }
        for list in ["", "a", "1-", "-1", "2-1", "0,", "0 1", "+1", "99999", "0-1\n0", "0-1-2"] {
            check_cpuset(list).expect_err(list);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_the_same(read in 1u64.., ops in proptest::option::of(1u64..)) {
            let io = IoLimits { read: Some(Size::from_bytes(read)), write_ops: ops, ..IoLimits::default() };
            prop_assert_eq!(io.to_string().parse::<IoLimits>().expect("reads"), io);
        }

        #[test]
        fn no_text_makes_reading_panic(text in ".{0,40}") {
            let _ = (text.parse::<IoLimits>(), text.parse::<Cgroup>(), check_cpuset(&text));
        }
    }
}
