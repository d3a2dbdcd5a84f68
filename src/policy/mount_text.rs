//! Mounts in text: the arguments of flags, and the keys of policy files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, de};

use crate::policy::mount::Mount;
use crate::policy::units::Size;
use crate::report::error::policy::PolicyError;

impl Mount {
    /// Splits `PATH[:TARGET]`, the argument of `--ro` and `--rw`, into source and target.
    ///
    /// # Errors
    /// [`PolicyError::Value`] if a part is empty, if the target is not absolute, or if there is another
    /// colon. This form cannot express a path that contains a colon; a policy file can.
    ///
    /// ```
    /// use kennel::Mount;
    ///
    /// assert_eq!(Mount::parse_bind("/srv/data:/data")?, ("/srv/data".into(), Some("/data".into())));
    /// assert_eq!(Mount::parse_bind("data")?, ("data".into(), None));
    /// # Ok::<(), kennel::PolicyError>(())
    /// ```
    pub fn parse_bind(spec: &str) -> Result<(PathBuf, Option<PathBuf>), PolicyError> {
        let refuse = || {
            let reason = "expected PATH or PATH:TARGET with an absolute TARGET; write a path with a colon in a policy file";
            PolicyError::value("bind", spec, reason)
        };
        let (source, target) = match spec.split_once(':') {
            Some((source, target)) => (source, Some(target)),
            None => (spec, None),
        };
        let is_target_valid = target.is_none_or(|target| target.starts_with('/') && !target.contains(':'));
        if source.is_empty() || !is_target_valid {
            return Err(refuse());
        }
        Ok((source.into(), target.map(PathBuf::from)))
    }

    /// Splits `PATH[:SIZE]`, the argument of `--tmpfs`, into target and size.
    ///
    /// # Errors
    /// [`PolicyError::Value`] if the path is not absolute or the size is not valid.
    ///
    /// ```
    /// use kennel::{Mount, Size};
    ///
    /// let size = Size::from_bytes(64 << 20);
    /// assert_eq!(Mount::parse_tmpfs("/scratch:64M")?, ("/scratch".into(), Some(size)));
    /// # Ok::<(), kennel::PolicyError>(())
    /// ```
    pub fn parse_tmpfs(spec: &str) -> Result<(PathBuf, Option<Size>), PolicyError> {
        let (target, size) = match spec.split_once(':') {
            Some((target, size)) => (target, Some(size.parse()?)),
            None => (spec, None),
        };
        if !target.starts_with('/') {
            return Err(PolicyError::value(
                "tmpfs",
                spec,
                "expected PATH or PATH:SIZE with an absolute path",
            ));
        }
        Ok((target.into(), size))
    }
}

/// The keys of a mount in a policy file. Serde could derive this from [`Mount`], but it buffers the keys
/// until it knows the type, and so loses the line of a wrong key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MountKeys {
    #[serde(rename = "type")]
    kind: Option<Kind>,
    source: Option<PathBuf>,
    target: Option<PathBuf>,
    path: Option<PathBuf>,
    size: Option<Size>,
    contents: Option<String>,
    executable: Option<bool>,
    points_to: Option<PathBuf>,
}

/// The values of `type`: one for each variant of [`Mount`].
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Ro,
    Rw,
    Tmpfs,
    Mask,
    File,
    Symlink,
    Device,
    Proc,
}

impl<'de> Deserialize<'de> for Mount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        MountKeys::deserialize(deserializer)?.try_into().map_err(de::Error::custom)
    }
}

impl TryFrom<MountKeys> for Mount {
    type Error = String;

    fn try_from(mut keys: MountKeys) -> Result<Self, Self::Error> {
        let Some(kind) = keys.kind else {
            return Err("missing field `type`: ro, rw, tmpfs, mask, file, symlink, device or proc".to_owned());
        };
        let need = |key, value: &mut Option<PathBuf>| value.take().ok_or_else(|| kind.missing_key(key));
        let mount = match kind {
            Kind::Ro => {
                Mount::ReadOnly { source: need("source", &mut keys.source)?, target: keys.target.take() }
            }
            Kind::Rw => {
                Mount::ReadWrite { source: need("source", &mut keys.source)?, target: keys.target.take() }
            }
            Kind::Tmpfs => Mount::Tmpfs { target: need("target", &mut keys.target)?, size: keys.size.take() },
            Kind::Mask => Mount::Mask { path: need("path", &mut keys.path)? },
            Kind::File => Mount::File {
                target: need("target", &mut keys.target)?,
                contents: keys.contents.take().ok_or_else(|| kind.missing_key("contents"))?,
                executable: keys.executable.take().unwrap_or(false),
            },
            Kind::Symlink => Mount::Symlink {
                target: need("target", &mut keys.target)?,
                points_to: need("points_to", &mut keys.points_to)?,
            },
            Kind::Device => Mount::Device { path: need("path", &mut keys.path)? },
            Kind::Proc => Mount::Proc { target: need("target", &mut keys.target)? },
        };
        match keys.unused() {
            Some(key) => Err(format!("field `{key}` does not belong to this type: {}", kind.keys())),
            None => Ok(mount),
        }
    }
}

impl Kind {
    /// The keys of this type, for messages.
    fn keys(self) -> &'static str {
        match self {
            Self::Ro => "type ro has source and optionally target",
            Self::Rw => "type rw has source and optionally target",
            Self::Tmpfs => "type tmpfs has target and optionally size",
            Self::Mask => "type mask has path",
            Self::File => "type file has target, contents and optionally executable",
            Self::Symlink => "type symlink has target and points_to",
            Self::Device => "type device has path",
            Self::Proc => "type proc has target",
        }
    }

    fn missing_key(self, key: &str) -> String {
        format!("missing field `{key}`: {}", self.keys())
    }
}

impl MountKeys {
    /// A key that the type of the mount does not have.
    fn unused(&self) -> Option<&'static str> {
        let keys = [
            ("source", self.source.is_some()),
            ("target", self.target.is_some()),
            ("path", self.path.is_some()),
            ("size", self.size.is_some()),
            ("contents", self.contents.is_some()),
            ("executable", self.executable.is_some()),
            ("points_to", self.points_to.is_some()),
        ];
        keys.into_iter().find_map(|(key, is_unused)| is_unused.then_some(key))
    }
}

/// Deserializes the mounts of a policy. An error begins with the number of the mount.
pub(crate) fn deserialize_all<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Mount>, D::Error> {
    let all = Vec::<MountKeys>::deserialize(deserializer)?.into_iter().enumerate();
    let mount = |(index, keys)| {
        Mount::try_from(keys).map_err(|message| de::Error::custom(format!("mounts[{index}]: {message}")))
    };
    all.map(mount).collect()
}

/// The offset in a TOML text, in bytes, of the mount or the key that an error message names. The parser
/// itself knows only where the list of mounts begins.
pub(crate) fn offset(text: &str, message: &str) -> Option<usize> {
    #[derive(Deserialize)]
    struct Spans {
        mounts: Vec<toml::Spanned<BTreeMap<toml::Spanned<String>, de::IgnoredAny>>>,
    }
    let (index, problem) = message.strip_prefix("mounts[")?.split_once("]: ")?;
    let spans: Spans = toml::from_str(text).ok()?;
    let mount = spans.mounts.get(index.parse::<usize>().ok()?)?;
    let field = problem.strip_prefix("field `").and_then(|rest| rest.split_once('`'));
    let key = field.and_then(|(name, _)| mount.get_ref().keys().find(|key| key.get_ref() == name));
    Some(key.map_or(mount.span(), |key| key.span()).start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(toml: &str) -> Result<Mount, String> {
        toml::from_str(toml).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn each_type_has_its_keys() {
        for (toml, mount) in [
            ("type='ro'\nsource='/a'", Mount::ReadOnly { source: "/a".into(), target: None }),
            (
                "type='rw'\nsource='/a'\ntarget='/b'",
                Mount::ReadWrite { source: "/a".into(), target: Some("/b".into()) },
            ),
            (
                "type='tmpfs'\ntarget='/t'\nsize=5",
                Mount::Tmpfs { target: "/t".into(), size: Some(Size::from_bytes(5)) },
            ),
            ("type='mask'\npath='/m'", Mount::Mask { path: "/m".into() }),
            (
                "type='file'\ntarget='/f'\ncontents=''",
                Mount::File { target: "/f".into(), contents: String::new(), executable: false },
            ),
            (
                "type='symlink'\ntarget='/l'\npoints_to='x'",
                Mount::Symlink { target: "/l".into(), points_to: "x".into() },
            ),
            ("type='device'\npath='/dev/kvm'", Mount::Device { path: "/dev/kvm".into() }),
            ("type='proc'\ntarget='/p'", Mount::Proc { target: "/p".into() }),
        ] {
            assert_eq!(read(toml).as_ref(), Ok(&mount));
            let json = serde_json::to_string(&mount).expect("serialises");
            assert_eq!(serde_json::from_str::<Mount>(&json).expect("reads its own"), mount);
        }
    }

    #[test]
    fn missing_and_unexpected_keys_are_named() {
        for (toml, message) in [
            ("source='/a'", "missing field `type`: ro, rw, tmpfs"),
            ("type='ro'", "missing field `source`: type ro has source and optionally target"),
            (
                "type='file'\ntarget='/f'",
                "missing field `contents`: type file has target, contents and optionally exec",
            ),
            (
                "type='ro'\nsource='/a'\nsize=1",
                "field `size` does not belong to this type: type ro has source",
            ),
            (
                "type='mask'\npath='/a'\ntarget='/b'",
                "field `target` does not belong to this type: type mask has path",
            ),
        ] {
            let error = read(toml).expect_err(toml);
            assert!(error.starts_with(message), "{error}");
        }
    }

    #[test]
    fn bind_arguments() {
        assert_eq!(Mount::parse_bind("/a").expect("source"), ("/a".into(), None));
        assert_eq!(Mount::parse_bind("a b:/c d").expect("both"), ("a b".into(), Some("/c d".into())));
        for spec in ["", ":", ":/t", "/a:", "/a:b", "/a:/b:", "/a:/b:/c", "/a::/b"] {
            let error = Mount::parse_bind(spec).expect_err(spec).to_string();
            let start = if spec.is_empty() { "bind: ".to_owned() } else { format!("bind `{spec}`: ") };
            assert!(error.starts_with(&start), "{error}");
        }
    }

    #[test]
    fn tmpfs_arguments() {
        assert_eq!(Mount::parse_tmpfs("/t").expect("target"), ("/t".into(), None));
        assert_eq!(Mount::parse_tmpfs("/t:1K").expect("both"), ("/t".into(), Some(Size::from_bytes(1024))));
        for spec in ["", "t", ":1K", "/t:", "/t:0", "/t:1K:", "t:1K"] {
            Mount::parse_tmpfs(spec).expect_err(spec);
        }
    }

    proptest! {
        #[test]
        fn any_argument_is_parsed_or_refused(spec in "[/a:.0-9K]{0,12}|.*") {
            if let Ok((source, target)) = Mount::parse_bind(&spec) {
                prop_assert!(!source.as_os_str().is_empty());
                prop_assert!(target.is_none_or(|target| target.is_absolute()));
            }
            if let Ok((target, _)) = Mount::parse_tmpfs(&spec) {
                prop_assert!(target.is_absolute());
            }
        }
    }
}
