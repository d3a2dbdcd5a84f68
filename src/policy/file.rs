//! Policy files: TOML and JSON, parsed strictly. An unknown key, a duplicate key or a value of the wrong type
//! is an error with line and column, so that a misspelled restriction never counts as no restriction.
//!
//! [`Policy::load`] is the only function of this folder that reads from the host.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::policy::image_upper::ImageUpper;
use crate::policy::mount::Mount;
use crate::policy::{Policy, text};
use crate::report::error::policy::PolicyError;
use crate::sys::descriptor::inherited_descriptor;

/// The message for an empty file.
const EMPTY: &str = "the policy is empty; say at least which profile";

const NO_HOME: &str = "HOME is not an absolute path; write the path in full";
const TILDE_OUTSIDE_FILE: &str = "`~/` is the home directory only in policy files; write the path in full";

impl Policy {
    /// Parses a policy from TOML. Every key is optional; the default workspace is `.`. Paths stay as written.
    ///
    /// This checks only the form of the text; [`Policy::validate`] checks the values.
    ///
    /// # Errors
    /// [`PolicyError::Syntax`] with line and column.
    ///
    /// ```
    /// use kennel::{Policy, Profile};
    ///
    /// let policy = Policy::from_toml("profile = 'ci-only'\nlimits.memory = '64M'")?;
    /// assert_eq!(policy.profile, Profile::CiOnly);
    ///
    /// let error = Policy::from_toml("profil = 'ci-only'").unwrap_err();
    /// assert!(error.to_string().starts_with("policy:1:1: unknown field `profil`"));
    /// # Ok::<(), kennel::report::PolicyError>(())
    /// ```
    pub fn from_toml(text: &str) -> Result<Policy, PolicyError> {
        parse_toml("policy", text)
    }

    /// Parses a policy from JSON, with the same keys as in TOML.
    ///
    /// # Errors
    /// [`PolicyError::Syntax`] with line and column.
    ///
    /// ```
    /// use kennel::Policy;
    ///
    /// let policy = Policy::default().read_only("/srv/data");
    /// let text = serde_json::to_string(&policy).unwrap();
    /// assert_eq!(Policy::from_json(&text)?, policy);
    /// # Ok::<(), kennel::report::PolicyError>(())
    /// ```
    pub fn from_json(text: &str) -> Result<Policy, PolicyError> {
        parse_json("policy", text)
    }

    /// Reads a policy file of at most 1 MiB. Its name ends in `.toml` or `.json`. An inherited
    /// [descriptor](crate::sys::descriptor::inherited_descriptor) needs no such name: its text is JSON if it
    /// begins with `{`, otherwise TOML.
    ///
    /// Relative paths start at the directory of the file: workspace, working directory, sources of mounts,
    /// and masks. A missing workspace is that directory. For a descriptor, the current directory takes its
    /// place. `~/` at the start of any path is the home directory that `HOME` names. Targets stay as written;
    /// they must be absolute.
    ///
    /// The file stays read-only in every writable grant, like a path under [`Policy::protect`]: a command
    /// that could write to it would decide about the next sandbox. Kennel cannot protect a file that comes
    /// through a descriptor.
    ///
    /// This checks only the form of the text; [`Policy::validate`] checks the values.
    ///
    /// # Errors
    /// [`PolicyError::Read`] if the file cannot be read. [`PolicyError::Syntax`] with line and column if it
    /// is not a policy. [`PolicyError::Value`] if it is not a regular file, is too large or has another
    /// ending, or if it uses `~/` while `HOME` is not an absolute path.
    ///
    /// ```no_run
    /// let policy = kennel::Policy::load("ci/kennel.toml".as_ref())?;
    /// policy.validate()?;
    /// # Ok::<(), kennel::report::PolicyError>(())
    /// ```
    pub fn load(path: &Path) -> Result<Policy, PolicyError> {
        let is_descriptor = inherited_descriptor(path).is_some();
        let parse = match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => Some(parse_toml as fn(&str, &str) -> _),
            Some("json") => Some(parse_json as fn(&str, &str) -> _),
            _ if is_descriptor => None,
            _ => return Err(PolicyError::path("policy file", path, "the name must end in .toml or .json")),
        };
        let text = text::read("policy file", path)?;
        // TOML never begins with `{`.
        let by_text = || if text.trim_start().starts_with('{') { parse_json } else { parse_toml };
        let parse = parse.unwrap_or_else(by_text);
        let mut policy = parse(&path.display().to_string(), &text)?;
        let from = if is_descriptor { Path::new("policy") } else { path };
        let absolute = text::absolute(from, path)?;
        apply(&mut policy, absolute.parent().unwrap_or(Path::new("/")))?;
        // The path of a descriptor is unknown, and the next caller has to open it again anyway.
        policy.files.extend((!is_descriptor).then_some(absolute));
        Ok(policy)
    }

    /// Parses the text of a policy file in TOML that the caller has read. Errors name `file`. Relative paths
    /// start at `directory`, which must be absolute; otherwise paths are as in [`load`](Self::load).
    /// [`files`](Self::files) stays empty.
    ///
    /// # Errors
    /// As for [`load`](Self::load), except those of reading the file.
    ///
    /// ```
    /// use kennel::Policy;
    ///
    /// let text = "protect = ['ci']\nmounts = [{ type = 'ro', source = 'models' }]";
    /// let policy = Policy::from_file_text("kennel.toml".as_ref(), text, "/srv/repo".as_ref())?;
    /// let same = Policy { workspace: "/srv/repo".into(), ..Policy::default() };
    /// assert_eq!(policy, same.protect("ci").read_only("/srv/repo/models"));
    /// # Ok::<(), kennel::report::PolicyError>(())
    /// ```
    pub fn from_file_text(file: &Path, text: &str, directory: &Path) -> Result<Policy, PolicyError> {
        let mut policy = parse_toml(&file.display().to_string(), text)?;
        apply(&mut policy, directory)?;
        Ok(policy)
    }

    /// The same policy with its relative paths joined to `directory`, which must be absolute.
    ///
    /// # Errors
    /// [`PolicyError::Value`] if a path begins with `~/`, which has a meaning only in policy files.
    ///
    /// ```
    /// let policy = kennel::Policy::profile(kennel::Profile::RepoWrite, "repo");
    /// assert_eq!(policy.based_in("/home/me".as_ref())?.workspace, std::path::Path::new("/home/me/repo"));
    /// # Ok::<(), kennel::report::PolicyError>(())
    /// ```
    pub fn based_in(mut self, directory: &Path) -> Result<Policy, PolicyError> {
        Base { directory, home: Err(TILDE_OUTSIDE_FILE) }.apply(&mut self)?;
        Ok(self)
    }
}

fn parse_toml(file: &str, text: &str) -> Result<Policy, PolicyError> {
    let policy = text::parse_toml(file, text, EMPTY)?;
    Ok(without_unnamed_workspace(policy, || toml::from_str::<NamedKeys>(text).ok()))
}

fn parse_json(file: &str, text: &str) -> Result<Policy, PolicyError> {
    let policy = text::parse_json(file, text, EMPTY)?;
    Ok(without_unnamed_workspace(policy, || serde_json::from_str::<NamedKeys>(text).ok()))
}

/// The keys of a policy whose absence has a meaning of its own.
#[derive(Deserialize)]
struct NamedKeys {
    workspace: Option<PathBuf>,
}

/// With another root, there is a workspace only if the text names one.
fn without_unnamed_workspace(policy: Policy, keys: impl Fn() -> Option<NamedKeys>) -> Policy {
    let is_unnamed = || keys().is_some_and(|keys| keys.workspace.is_none());
    match policy.has_other_root() && is_unnamed() {
        true => Policy { workspace: PathBuf::new(), ..policy },
        false => policy,
    }
}

/// Makes the paths of a policy file absolute: relative ones start at `directory`.
fn apply(policy: &mut Policy, directory: &Path) -> Result<(), PolicyError> {
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    Base { directory, home: home.as_deref().ok_or(NO_HOME) }.apply(policy)
}

/// Where relative paths start.
struct Base<'a> {
    directory: &'a Path,
    /// The directory for `~/`, or why there is none.
    home: Result<&'a Path, &'static str>,
}

impl Base<'_> {
    fn apply(&self, policy: &mut Policy) -> Result<(), PolicyError> {
        self.join("workspace", &mut policy.workspace)?;
        if let Some(root) = &mut policy.root {
            self.join("root", root)?;
        }
        if let Some(upper) = policy.image_upper.as_mut().and_then(ImageUpper::directory_mut) {
            self.join("image_upper", upper)?;
        }
        if let Some(cwd) = &mut policy.cwd {
            self.join("cwd", cwd)?;
        }
        if let Some(upper) = policy.overlay.as_mut().and_then(|overlay| overlay.upper.as_mut()) {
            self.join("overlay.upper", upper)?;
        }
        if let Some(audit) = &mut policy.audit {
            self.join("audit", &mut audit.path)?;
        }
        if let Some(proxy) = &mut policy.network.proxy {
            self.join("network.proxy.unix", &mut proxy.unix)?;
        }
        policy.protect.iter_mut().try_for_each(|path| self.expand("protect", path))?;
        for (index, mount) in policy.mounts.iter_mut().enumerate() {
            self.apply_to_mount(&format!("mounts[{index}]"), mount)?;
        }
        Ok(())
    }

    fn apply_to_mount(&self, key: &str, mount: &mut Mount) -> Result<(), PolicyError> {
        match mount {
            Mount::ReadOnly { source, target } | Mount::ReadWrite { source, target } => {
                self.join(key, source)?;
                target.as_mut().map_or(Ok(()), |target| self.expand(key, target))
            }
            Mount::Mask { path } => {
                self.expand(key, path)?;
                *mount = Mount::mask_in(self.directory, path);
                Ok(())
            }
            Mount::Tmpfs { target, .. } | Mount::File { target, .. } | Mount::Proc { target } => {
                self.expand(key, target)
            }
            Mount::Symlink { target, points_to } => {
                self.expand(key, target)?;
                self.expand(key, points_to)
            }
            Mount::Device { path } => self.expand(key, path),
        }
    }

    /// Makes a path of the host absolute. An empty path stays empty, so that [`Policy::validate`] refuses it.
    fn join(&self, key: &str, path: &mut PathBuf) -> Result<(), PolicyError> {
        self.expand(key, path)?;
        if path.is_relative() && !path.as_os_str().is_empty() {
            // Collecting the components drops the `.` of `workspace = "."`.
            *path = self.directory.join(&path).components().collect();
        }
        Ok(())
    }

    /// Replaces `~` at the start of a path.
    fn expand(&self, key: &str, path: &mut PathBuf) -> Result<(), PolicyError> {
        let Ok(rest) = path.strip_prefix("~") else { return Ok(()) };
        let home = self.home.map_err(|reason| PolicyError::path(key, path, reason))?;
        *path = home.join(rest).components().collect();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::arbitrary::policies;
    use crate::policy::env::EnvBase;
    use crate::policy::network::NetworkMode;
    use crate::policy::profile::{OnUnavailable, Profile, TmpLife, Toolchains};
    use crate::policy::require::Requirement;
    use crate::policy::units::Size;
    use crate::report::enforcement::Protection;
    use proptest::prelude::*;
    use std::time::Duration;

    const FULL: &str = r#"
profile = "repo-write"
workspace = "."
toolchains = "auto"
tmp = "session"
protect = [".env"]
hostname = "kennel"
cwd = "sub"
on_unavailable = "refuse"
[[mounts]]
type = "ro"
source = "/srv/data"
target = "/data"
[network]
mode = "none"
allow = ["crates.io:443"]
[env]
base = "scrubbed"
pass = ["CI"]
set = { A = "b" }
[limits]
memory = "64M"
timeout = "30s"
[require]
landlock = "if_available"
"#;

    fn toml_error(text: &str) -> String {
        Policy::from_toml(text).expect_err(text).to_string()
    }

    fn json_error(text: &str) -> String {
        Policy::from_json(text).expect_err(text).to_string()
    }

    #[test]
    fn documented_file_is_read_in_full() {
        let policy = Policy::from_toml(FULL).expect("the documented form");
        assert_eq!(policy.profile, Profile::RepoWrite);
        assert_eq!((policy.toolchains, policy.on_unavailable), (Toolchains::Auto, OnUnavailable::Refuse));
        assert_eq!(policy.tmp, TmpLife::Session);
        let data = Mount::ReadOnly { source: "/srv/data".into(), target: Some("/data".into()) };
        assert_eq!(policy.mounts, [data]);
        assert_eq!(policy.network.mode, Some(NetworkMode::None));
        assert_eq!((policy.env.base, policy.env.set["A"].as_str()), (EnvBase::Scrubbed, "b"));
        assert_eq!(policy.limits.memory, Some(Size::from_bytes(64 << 20)));
        assert_eq!(policy.limits.timeout, Some(Duration::from_secs(30).into()));
        assert_eq!(policy.require.get(Protection::Landlock), Some(Requirement::IfAvailable));
        assert_eq!(policy.cwd, Some("sub".into()));
        assert_eq!(policy.protect, [PathBuf::from(".env")]);
    }

    #[test]
    fn every_key_can_be_left_out() {
        assert_eq!(Policy::from_toml("# defaults").expect("comment"), Policy::default());
        assert_eq!(Policy::from_json("{}").expect("empty object"), Policy::default());
    }

    #[test]
    fn unknown_keys_are_refused_with_name_and_line() {
        for (text, start) in [
            ("a = 1", "policy:1:1: unknown field `a`"),
            ("\n[network]\nmod = 'none'", "policy:3:1: unknown field `mod`"),
            ("[env]\nsett = {}", "policy:2:1: unknown field `sett`"),
            ("[limits]\npids = 1\nmem = 1", "policy:3:1: unknown field `mem`"),
            ("[require]\nlandlok = 'required'", "policy:2:1: unknown variant `landlok`"),
            ("[[mounts]]\ntype = 'proc'\ntarget = '/p'\ntaget = '/p'", "policy:4:1: unknown field `taget`"),
            (
                "[[mounts]]\ntype = 'proc'\ntarget = '/p'\nsize = 1",
                "policy:4:1: mounts[0]: field `size` does not belong to this type",
            ),
            ("[audit]\npath = '/l'\nchian = true", "policy:3:1: unknown field `chian`"),
        ] {
            let error = toml_error(text);
            assert!(error.starts_with(start), "{error}");
        }
        let error = json_error("{\n \"network\": {\"mod\": 1}}");
        assert!(error.starts_with("policy:2:") && error.contains("unknown field `mod`"), "{error}");
        let error = json_error("{\"mounts\": [\n{\"type\": \"ro\", \"source\": \"/a\", \"sorce\": 1}]}");
        assert!(error.starts_with("policy:2:") && error.contains("unknown field `sorce`"), "{error}");
    }

    #[test]
    fn unknown_words_list_the_known_ones() {
        for (text, words) in [
            ("profile = 'ci'", "`read-only`, `repo-write`, `no-network`, `full-dev`, `ci-only`"),
            ("network.mode = 'all'", "`none`, `proxy`, `host`"),
            ("require.landlock = 'no'", "`required` or `if_available`"),
            ("[[mounts]]\ntype = 'bind'", "`ro`, `rw`, `tmpfs`, `mask`, `file`, `symlink`, `device`, `proc`"),
        ] {
            let error = toml_error(text);
            assert!(error.contains("unknown variant") && error.contains(words), "{error}");
        }
    }

    #[test]
    fn duplicate_keys_are_refused() {
        assert!(toml_error("hostname = 'a'\nhostname = 'b'").starts_with("policy:2:1: duplicate key"));
        for text in [
            r#"{"hostname": "a", "hostname": "b"}"#,
            r#"{"limits": {"pids": 1, "pids": 2}}"#,
            r#"{"env": {"set": {"A": "1", "A": "2"}}}"#,
            r#"{"require": {"root": "required", "root": "required"}}"#,
            r#"{"mounts": [{"type": "proc", "target": "/a", "target": "/b"}]}"#,
            r#"{"mounts": [{"type": "proc", "type": "mask", "target": "/a"}]}"#,
        ] {
            let error = json_error(text);
            assert!(error.contains("duplicate"), "{error}");
        }
    }

    #[test]
    fn values_of_the_wrong_kind_are_refused_at_their_line() {
        for (text, start) in [
            ("\nhostname = 1", "policy:2:12: invalid type: integer"),
            ("limits.memory = '1.5G'", "policy:1:17: size `1.5G`: expected"),
            ("limits.memory = 0", "policy:1:17: size `0`: expected"),
            ("limits.timeout = '1d'", "policy:1:18: time `1d`: expected"),
            ("limits.pids = -1", "policy:1:15: "),
            ("[[mounts]]\ntype = 'tmpfs'\ntarget = '/t'\nsize = 'x'", "policy:4:8: size `x`: "),
        ] {
            let error = toml_error(text);
            assert!(error.starts_with(start), "{error}");
        }
    }

    #[test]
    fn other_inputs_are_errors_and_not_panics() {
        let garbage: String = (0..10_u32 << 20)
            .map(|i| char::from(i.wrapping_mul(0x9E37_79B1).to_be_bytes()[0] & 0x7F))
            .collect();
        let deep = "[".repeat(200_000);
        let tables = "{\"env\":".repeat(200_000);
        for text in ["", " \n\t", "\0", "[]", "null", "\u{feff}", "=", "profile", &garbage, &deep, &tables] {
            assert!(toml_error(text).len() < 1200);
            assert!(json_error(text).len() < 1200);
        }
        assert!(toml_error(&format!("mounts = {deep}")).contains("recurs"));
        assert!(json_error(&format!("{{\"mounts\": {deep}")).starts_with("policy:1:"));
        assert_eq!(toml_error(""), "policy:1:1: the policy is empty; say at least which profile");
        assert!(json_error(&format!("{{\"{}\": 1}}", "k".repeat(1 << 20))).len() < 1200);
    }

    fn load(directory: &Path, name: &str, text: &[u8]) -> Result<Policy, PolicyError> {
        let path = directory.join(name);
        std::fs::write(&path, text).expect("writes a file of the test");
        Policy::load(&path)
    }

    #[test]
    fn relative_paths_start_at_the_directory_of_the_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let dir = directory.path();
        let text = "workspace = '.'\ncwd = 'sub'\nprotect = ['.env']\n\
            [[mounts]]\ntype = 'rw'\nsource = './cache'\n[[mounts]]\ntype = 'mask'\npath = 'keys'\n\
            [[mounts]]\ntype = 'ro'\nsource = '/abs'\ntarget = 'rel'\n";
        let policy = load(dir, "p.toml", text.as_bytes()).expect("loads");
        assert_eq!(policy.workspace.as_os_str(), dir.as_os_str());
        assert_eq!(policy.cwd, Some(dir.join("sub")));
        assert_eq!(policy.protect, [PathBuf::from(".env")]);
        assert_eq!(policy.mounts[0], Mount::ReadWrite { source: dir.join("cache"), target: None });
        assert_eq!(policy.mounts[1], Mount::Mask { path: dir.join("keys") });
        let error = policy.validate().expect_err("targets stay as written").to_string();
        assert!(error.starts_with("mounts[2].target `rel`: must be absolute"), "{error}");
    }

    #[test]
    fn missing_workspace_is_the_directory_of_the_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let policy = load(directory.path(), "p.json", b"{}").expect("loads");
        let files = vec![directory.path().join("p.json")];
        assert_eq!(policy, Policy { files, ..Policy::profile(Profile::RepoWrite, directory.path()) });
    }

    #[test]
    fn the_text_of_a_policy_does_not_name_its_files() {
        let directory = tempfile::tempdir().expect("a directory");
        let policy = load(directory.path(), "p.toml", b"profile = 'repo-write'").expect("loads");
        let text = serde_json::to_string(&policy).expect("serialises");
        assert!(!text.contains("p.toml"), "{text}");
        assert!(json_error("{\"files\": [\"/p.toml\"]}").contains("unknown field `files`"));
    }

    #[test]
    fn tilde_is_the_home_directory() {
        let base = Base { directory: Path::new("/dir"), home: Ok(Path::new("/home/me")) };
        for (written, joined) in
            [("~", "/home/me"), ("~/a", "/home/me/a"), ("~me/a", "/dir/~me/a"), ("a/~", "/dir/a/~")]
        {
            let mut path = PathBuf::from(written);
            base.join("cwd", &mut path).expect(written);
            assert_eq!(path, Path::new(joined));
        }
        let homeless = Base { home: Err(NO_HOME), ..base };
        let error = homeless.join("cwd", &mut "~/a".into()).expect_err("no home").to_string();
        assert_eq!(error, "cwd `~/a`: HOME is not an absolute path; write the path in full");
    }

    #[test]
    fn invalid_files_are_refused_by_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let dir = directory.path();
        let large = vec![b'#'; (1 << 20) + 1];
        for (result, words) in [
            (load(dir, "large.toml", &large), "is larger than 1 MiB"),
            (load(dir, "binary.toml", b"a = 1\nb = \xff"), "binary.toml:2:5: the text is not UTF-8"),
            (load(dir, "policy.yaml", b""), "must end in .toml or .json"),
            (load(dir, "empty.json", b""), "empty.json:1:1: the policy is empty"),
            (load(dir, "wrong.toml", b"\na = 1"), "wrong.toml:2:1: unknown field `a`"),
            (Policy::load(&dir.join("absent.toml")), "read "),
        ] {
            let error = result.expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        }
        load(dir, "limit.toml", &large[1..]).expect("exactly 1 MiB");
        std::fs::create_dir(dir.join("dir.toml")).expect("makes a directory");
        let fifo = std::process::Command::new("mkfifo").arg(dir.join("fifo.toml")).status();
        assert!(fifo.expect("mkfifo").success());
        for name in ["dir.toml", "fifo.toml"] {
            let error = Policy::load(&dir.join(name)).expect_err(name).to_string();
            assert!(error.contains(name) && error.ends_with("is not a regular file"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn json_round_trips(policy in policies()) {
            let text = serde_json::to_string(&policy).expect("serialises");
            prop_assert_eq!(Policy::from_json(&text).expect("reads its own"), policy);
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in ".*|[\\[\\]{}=\"'.,:a-z\n0-9]*") {
            let _ = Policy::from_toml(&text);
            let _ = Policy::from_json(&text);
        }

        #[test]
        fn validation_never_panics(policy in policies()) {
            let _ = policy.validate();
        }

        #[test]
        fn damaged_files_are_parsed_or_refused(at in 0..FULL.len(), with in any::<char>()) {
            let mut text = FULL.to_owned();
            text.replace_range(at..=at, with.encode_utf8(&mut [0; 4]));
            let _ = Policy::from_toml(&text).map(|policy| policy.validate().is_ok());
        }
    }
}
