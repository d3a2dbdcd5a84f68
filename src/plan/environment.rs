//! The environment of commands: from the caller's, without changing it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use crate::plan::compile::CommandDefaults;
use crate::plan::network;
use crate::policy::Policy;
use crate::policy::env::EnvBase;
use crate::policy::known_variables::{
    SYSTEM_PATH, TEMPORARY, is_kept, is_locale, is_registry, may_hold_credentials,
};
use crate::policy::network::NetworkMode;
use crate::policy::network::proxy_variables::{JAVA_OPTIONS, is_proxy_variable};
use crate::report::error::{Error, KEPT_VARIABLE, VARIABLE};
use crate::report::remedy::{SettingKey, remedy};
use crate::view::inputs::{Inputs, Subject};
use crate::view::paths::source::exists;
use crate::view::root::OtherRoot;
use crate::view::{Node, View, ViewEntry, certificates, toolchains};

/// Variables of the caller that a program by manifest gets, beside `LC_*`: the manifest lists all others.
const KEPT_FOR_PROGRAMS: &[&str] = &["HOME", "LANG", "PATH", "TERM", "USER"];

/// Builds the environment. Later parts override earlier ones: base, toolchains, proxy and certificates,
/// `env.pass`, `env.set`. Notes in the view say what is left out, and what leads nowhere.
pub(crate) fn environment(inputs: &Inputs<'_>, view: &mut View) -> BTreeMap<OsString, OsString> {
    let mut variables = base(inputs, view);
    let mut put = |name: &str, value: &OsStr| variables.insert(name.into(), value.to_owned());
    put("HOME", inputs.home().as_os_str());
    if inputs.caller.variable("PATH").is_none() && inputs.root.is_none() {
        put("PATH", OsStr::new(SYSTEM_PATH));
    }
    let is_program = matches!(inputs.subject, Subject::Program(_));
    if inputs.policy.profile.meaning().knows_caller && !is_program {
        // ss(8) of iproute2 then reads /proc/net at once. Else it complains first: the filter refuses
        // sock_diag(7), by which any user can make the kernel load modules.
        put("PROC_ROOT", OsStr::new("/proc"));
    }
    if inputs.root.is_none() {
        variables.extend(toolchains::variables(inputs, view));
    }
    variables.extend(network::variables(inputs));
    variables.extend(certificates::variables(view));
    for (name, value) in inputs.passed() {
        note_missing(inputs, view, name, value);
        variables.insert(name.into(), value.to_owned());
    }
    if let Some(options) = network::java_options(inputs) {
        variables.insert(JAVA_OPTIONS.into(), options);
    }
    variables.extend(inputs.policy.env.set.iter().map(|(name, value)| (name.into(), value.into())));
    if !is_program && !inputs.are_shared() {
        keep_git_in_front(&mut variables);
    }
    variables
}

/// Configuration of git in variables, see git-config(1). Linux distributions have it since git 2.31.
const GIT_COUNT: &str = "GIT_CONFIG_COUNT";

/// What makes git maintain a repository before its command ends. In the background, the maintenance would end
/// with the command, half done.
const IN_FRONT: [&str; 2] = ["gc.autoDetach", "maintenance.autoDetach"];

/// Adds entries after those that are there. An entry of the caller for the same key counts.
fn keep_git_in_front(variables: &mut BTreeMap<OsString, OsString>) {
    let count = variables.get(OsStr::new(GIT_COUNT)).map_or(Some(0), |count| count.to_str()?.parse().ok());
    // Git refuses a count that is no number, and says so.
    let Some(first) = count.filter(|count| *count < 1_000_000) else { return };
    let is_set = |key: &&str| {
        (0..first).any(|at| {
            let name = OsString::from(format!("GIT_CONFIG_KEY_{at}"));
            variables.get(&name).is_some_and(|set| set.eq_ignore_ascii_case(key))
        })
    };
    let keys: Vec<&str> = IN_FRONT.into_iter().filter(|key| !is_set(key)).collect();
    for (at, key) in (first..).zip(&keys) {
        variables.insert(format!("GIT_CONFIG_KEY_{at}").into(), key.into());
        variables.insert(format!("GIT_CONFIG_VALUE_{at}").into(), "false".into());
    }
    let count: usize = first + keys.len();
    variables.insert(GIT_COUNT.into(), count.to_string().into());
}

/// PATH in another root that names none: docker's.
const ROOT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The variables of another root: those of its image, over what terminals and languages of the caller need
/// fits everywhere.
fn base_of_root(inputs: &Inputs<'_>, root: &OtherRoot) -> BTreeMap<OsString, OsString> {
    let fits = |name: &OsStr| FIT_EVERYWHERE.iter().any(|kept| name == *kept) || is_locale(name);
    let mut variables = match inputs.policy.profile.meaning().knows_caller {
        true => inputs.caller.environment.clone(),
        false => BTreeMap::new(),
    };
    variables.retain(|name, _| fits(name));
    variables.insert("PATH".into(), ROOT_PATH.into());
    variables.extend(root.variables().map(|(name, value)| (name.into(), value.into())));
    variables
}

/// Variables that mean the same in every root, beside `LC_*`.
const FIT_EVERYWHERE: &[&str] = &["COLORTERM", "LANG", "NO_COLOR", "TERM", "TZ"];

fn base(inputs: &Inputs<'_>, view: &mut View) -> BTreeMap<OsString, OsString> {
    if let Some(root) = inputs.root {
        return base_of_root(inputs, root);
    }
    if !inputs.policy.profile.meaning().knows_caller {
        let fixed =
            [("CI", "true"), ("LANG", "C.UTF-8"), ("LOGNAME", "ci"), ("PATH", SYSTEM_PATH), ("USER", "ci")];
        return fixed.map(|(name, value)| (name.into(), value.into())).into();
    }
    let mut variables = inputs.caller.environment.clone();
    if matches!(inputs.subject, Subject::Program(_)) {
        let is_kept = |name: &OsStr| KEPT_FOR_PROGRAMS.iter().any(|kept| name == *kept) || is_locale(name);
        variables.retain(|name, _| is_kept(name));
        return variables;
    }
    match inputs.policy.env.base {
        EnvBase::Scrubbed => variables.retain(|name, value| {
            is_kept(name) || is_registry(name) && !note_credentials(inputs, view, name, value)
        }),
        EnvBase::Inherit => variables.retain(|name, _| !TEMPORARY.iter().any(|temporary| name == temporary)),
    }
    variables.retain(|name, value| missing(inputs, view, name, value).is_none());
    variables
}

/// Whether Kennel knows what a variable means, and its value holds no password: those that the scrubbed
/// environment keeps, and those that decide about toolchains, certificates and the way to the network.
///
/// A program that changes its user passes these on, and no other variable.
///
/// ```
/// assert!(kennel::internal::is_known_variable("LANG", "C.UTF-8"));
/// assert!(kennel::internal::is_known_variable("https_proxy", "http://proxy:3128"));
/// assert!(!kennel::internal::is_known_variable("https_proxy", "http://user:password@proxy:3128"));
/// assert!(!kennel::internal::is_known_variable("AWS_SECRET_ACCESS_KEY", "x"));
/// ```
pub fn is_known_variable(name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> bool {
    let (name, value) = (name.as_ref(), value.as_ref());
    is_kept(name)
        || toolchains::deciding_variables().any(|known| name == known)
        || certificates::CERTIFICATE_VARIABLES.iter().any(|known| name == *known)
        || (is_registry(name) || is_proxy_variable(name)) && !may_hold_credentials(value)
}

/// Whether the value may hold a password or a token: `user:password@` or the query of a URL. A note says that
/// the variable is left out, unless the policy passes it on by name.
fn note_credentials(inputs: &Inputs<'_>, view: &mut View, name: &OsStr, value: &OsStr) -> bool {
    let may_hold = may_hold_credentials(value);
    let name = name.to_string_lossy();
    if may_hold && !inputs.policy.env.pass.iter().any(|passed| *passed == name) {
        let text = "left out of the environment, because it may hold a password";
        view.note(&name, text, Some(remedy![SettingKey::PassEnv.to(&name), " passes it on"]));
    }
    may_hold
}

// Variables that name what is not there. Without such a variable, a program goes another way; with it, the
// program fails.

/// What a variable names, if commands do not see or reach it.
enum Missing {
    Path(PathBuf),
    /// A socket without a path, in the abstract namespace of the host.
    Abstract,
    Display(u16),
}

/// Whether a variable names a place of the host that commands do not see. A value is a place if it is one
/// absolute path, or an address with one, or has a form that is known for its name. Lists of paths are kept:
/// programs skip what is missing.
fn missing(inputs: &Inputs<'_>, view: &View, name: &OsStr, value: &OsStr) -> Option<Missing> {
    let value = value.to_str()?;
    let socket = match name.to_str()? {
        "HOME" | "PATH" => return None,
        "DISPLAY" => match display(value)? {
            Display::Socket(path) => path,
            Display::Tcp { port } if reaches_display(inputs, port) => return None,
            Display::Tcp { port } => return Some(Missing::Display(port)),
        },
        // A name in the runtime directory, or a path.
        "WAYLAND_DISPLAY" => Path::new(inputs.caller.variable("XDG_RUNTIME_DIR")?).join(value),
        // A socket, a process and a number.
        "TMUX" => value.split(',').next()?.into(),
        "GPG_AGENT_INFO" => value.split(':').next()?.into(),
        // The name of a screen, without its directory.
        "STY" => "/run/screen".into(),
        _ if value.starts_with('/') => {
            let is_missing = !value.contains(':') && !may_use(view, Path::new(value));
            return is_missing.then(|| Missing::Path(value.into()));
        }
        _ if value.starts_with("unix:abstract=") => return Some(Missing::Abstract),
        _ => socket(value)?.into(),
    };
    (!exists(&socket) || !is_shown(view, &socket)).then_some(Missing::Path(socket))
}

/// The path in `unix:/path`, `unix:///path` or `unix:path=/path,guid=…`.
fn socket(value: &str) -> Option<&str> {
    let path =
        ["unix:path=", "unix://", "unix:"].into_iter().find_map(|prefix| value.strip_prefix(prefix))?;
    path.split([',', ';']).next().filter(|path| path.starts_with('/'))
}

/// Whether commands see what is at a path of the host, or may make it if nothing is there.
fn may_use(view: &View, path: &Path) -> bool {
    let Some(existing) = path.ancestors().find(|above| exists(above)) else { return true };
    if existing == path {
        return is_shown(view, path);
    }
    let is_private = |place: &ViewEntry| matches!(place.node, Node::Private { .. } | Node::Tmpfs { .. });
    // Below the root, a value such as `/api` is rather the path of a URL.
    existing.parent().is_none()
        || view.host_path(existing).is_some()
        || view.get(existing).is_some_and(is_private)
}

fn is_shown(view: &View, path: &Path) -> bool {
    let has = |path: &Path| {
        let is_there = view.get(path).is_some() || view.has_children(path) || view.host_path(path).is_some();
        is_there && !view.is_covered(path)
    };
    has(path) || path.canonicalize().is_ok_and(|path| has(&path))
}

/// Where X clients connect to.
enum Display {
    Socket(PathBuf),
    Tcp { port: u16 },
}

/// Parses `DISPLAY`, see X(7): `:0`, `unix:0.0`, `localhost:10.0`.
fn display(value: &str) -> Option<Display> {
    let (host, number) = value.rsplit_once(':')?;
    let number = number.split('.').next()?;
    if matches!(host, "" | "unix") {
        return Some(Display::Socket(format!("/tmp/.X11-unix/X{number}").into()));
    }
    Some(Display::Tcp { port: number.parse::<u16>().ok()?.checked_add(6000)? })
}

/// Whether X clients reach a display of the host, which ssh makes on its loopback.
fn reaches_display(inputs: &Inputs<'_>, port: u16) -> bool {
    match inputs.policy.effective_network() {
        NetworkMode::Host => true,
        NetworkMode::None => false,
        NetworkMode::Proxy => network::reaches_loopback(inputs, IpAddr::V4(Ipv4Addr::LOCALHOST), port),
    }
}

/// Notes that a variable is passed on by name and leads nowhere.
fn note_missing(inputs: &Inputs<'_>, view: &mut View, name: &str, value: &OsStr) {
    let Some(missing) = missing(inputs, view, OsStr::new(name), value) else { return };
    let (what, remedy) = match missing {
        Missing::Path(path) => {
            let path = path.display();
            let remedy = remedy![SettingKey::Rw.to(&path), " grants it"];
            (format!("{path}, which commands do not see"), Some(remedy))
        }
        Missing::Display(port) => (
            format!("port {port} of the host, which commands do not reach"),
            Some(remedy![SettingKey::Allow.to(format!("localhost:{port}")), " allows it"]),
        ),
        Missing::Abstract => ("an abstract socket, which commands do not reach".to_owned(), None),
    };
    view.note(name, &format!("it names {what}"), remedy);
}

/// Which variables a client may set in the environment of its session.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientVariables {
    /// If set, the client may set these variables only.
    only: Option<Vec<OsString>>,
    /// Whether the session's variables for the proxy stay as they are.
    keeps_proxy: bool,
}

impl ClientVariables {
    fn allows(&self, name: &OsStr) -> bool {
        // They name paths of the host, or a proxy that is not there.
        let is_of_host = name == "HOME" || TEMPORARY.iter().any(|temporary| name == *temporary);
        if is_of_host || self.keeps_proxy && is_proxy_variable(name) {
            return false;
        }
        self.only.as_ref().is_none_or(|names| names.iter().any(|other| other == name))
    }
}

impl CommandDefaults {
    /// Checks that a client may set a variable, or sets it to what it is anyway.
    ///
    /// # Errors
    /// The sandbox keeps the variable as it is.
    pub(crate) fn check_client_variable(&self, name: &OsStr, value: &OsStr) -> Result<(), Error> {
        let is_set = || self.environment.0.get(name).is_some_and(|set| set == value);
        if self.client_variables.allows(name) || is_set() {
            return Ok(());
        }
        let value = name.to_string_lossy().chars().take(80).collect();
        Err(Error::Command { what: VARIABLE, value, reason: KEPT_VARIABLE.to_owned() })
    }
}

pub(crate) fn client_variables(policy: &Policy) -> ClientVariables {
    let is_fixed = !policy.profile.meaning().knows_caller;
    let only = is_fixed.then(|| policy.env.pass.iter().map(OsString::from).collect());
    ClientVariables { only, keeps_proxy: policy.effective_network() == NetworkMode::Proxy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::profile::Profile;

    #[test]
    fn git_is_kept_in_front_after_the_entries_of_the_caller() {
        let of = |pairs: &[(&str, &str)]| {
            let mut variables = pairs.iter().map(|(name, value)| (name.into(), value.into())).collect();
            keep_git_in_front(&mut variables);
            let text = |text: OsString| text.into_string().unwrap_or_default();
            variables.into_iter().map(|(name, value)| (text(name), text(value))).collect::<Vec<_>>()
        };
        let pairs = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(
            of(&[]),
            pairs(&[
                ("GIT_CONFIG_COUNT", "2"),
                ("GIT_CONFIG_KEY_0", "gc.autoDetach"),
                ("GIT_CONFIG_KEY_1", "maintenance.autoDetach"),
                ("GIT_CONFIG_VALUE_0", "false"),
                ("GIT_CONFIG_VALUE_1", "false"),
            ])
        );
        let own = [
            ("GIT_CONFIG_COUNT", "1"),
            ("GIT_CONFIG_KEY_0", "GC.autodetach"),
            ("GIT_CONFIG_VALUE_0", "true"),
        ];
        let mut expected = pairs(&own);
        expected[0].1 = "2".to_owned();
        expected.insert(2, ("GIT_CONFIG_KEY_1".to_owned(), "maintenance.autoDetach".to_owned()));
        expected.push(("GIT_CONFIG_VALUE_1".to_owned(), "false".to_owned()));
        assert_eq!(of(&own), expected);
        let wrong = [("GIT_CONFIG_COUNT", "many")];
        assert_eq!(of(&wrong), pairs(&wrong));
    }

    #[test]
    fn a_client_cannot_set_paths_of_the_host() {
        let free = client_variables(&Policy::default().network_mode(NetworkMode::None));
        for name in ["HOME", "TMPDIR", "TMP", "TEMP", "TEMPDIR"] {
            assert!(!free.allows(OsStr::new(name)), "{name}");
        }
        assert!(free.allows(OsStr::new("TERM")) && free.allows(OsStr::new("https_proxy")));
        let fixed = client_variables(&Policy::profile(Profile::CiOnly, ".").pass_env("A"));
        assert!(fixed.allows(OsStr::new("A")) && !fixed.allows(OsStr::new("B")));
    }

    #[test]
    fn a_client_cannot_replace_the_proxy() {
        for policy in [Policy::default(), Policy::default().allow("a.example:443")] {
            let proxied = client_variables(&policy);
            for name in ["https_proxy", "HTTPS_PROXY", "no_proxy", "npm_config_proxy"] {
                assert!(!proxied.allows(OsStr::new(name)), "{name}");
            }
            assert!(proxied.allows(OsStr::new("TERM")));
        }
    }
}
