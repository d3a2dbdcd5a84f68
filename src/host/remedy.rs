//! What a person can do when the kernel refuses a protection. It depends on the errno and on the settings of
//! the host.

use std::path::Path;
use std::{fs, io};

use Protection::*;
use caps::{CapSet, Capability};

use crate::report::enforcement::Protection;
use crate::report::remedy::{Remedy, SettingKey, remedy};
use crate::report::shortage::{Confined, is_shortage, shortage};

/// How to get a cgroup in which Kennel can create cgroups for commands.
pub(crate) fn delegate() -> Remedy {
    remedy![
        "give kennel its own cgroup: systemd-run --user --scope -p Delegate=yes kennel …; in a service: Delegate=yes and \
         DelegateSubgroup=; or name a cgroup with ",
        SettingKey::Cgroup,
    ]
}

/// How to get controllers back from cgroup v1.
pub(crate) const UNIFIED: &str = "boot with systemd.unified_cgroup_hierarchy=1 on the kernel's command line (without systemd: cgroup_no_v1=all), so that \
     cgroup v2 has all controllers; or do without the limit";

/// The remedy for `errno`, returned when Kennel set up `protection`. The sentence starts with the action.
pub(crate) fn remedy(protection: Protection, errno: i32) -> Option<Remedy> {
    HostState::here().remedy(protection, errno)
}

/// Like [`remedy()`], if clone(2) created no process. At that point, no process has mapped IDs yet.
pub(crate) fn remedy_for_clone(protection: Protection, error: &io::Error) -> Option<Remedy> {
    let errno = error.raw_os_error().unwrap_or_default();
    HostState { root_lacks_setfcap: false, ..HostState::here() }.remedy(protection, errno)
}

/// What root can do as an alternative.
fn go_without_user_namespace() -> Remedy {
    remedy![
        "or let root's commands run without one: ",
        SettingKey::OnUnavailable.to("degrade"),
        ", or [require] user_namespace = \"if_available\" (not with profile ci-only)",
    ]
}

/// What every caller can do as an alternative, except with a profile that requires everything.
pub(crate) fn go_without(protection: Protection) -> String {
    format!("or set [require] {protection} = \"if_available\" (not with profile ci-only)")
}

/// What the remedy depends on besides the errno.
struct HostState<'s> {
    /// The value of a sysctl, if it exists.
    setting: &'s dyn Fn(&str) -> Option<String>,
    container: bool,
    confined: Confined,
    /// Whether the caller is root without CAP_SETFCAP, which the kernel requires to map uid 0.
    root_lacks_setfcap: bool,
    /// Whether the caller is root and could do without a user namespace.
    root_has_capabilities: bool,
}

impl HostState<'static> {
    fn here() -> Self {
        Self {
            setting: &sysctl,
            container: in_container(),
            confined: Confined::here(),
            root_lacks_setfcap: root_cannot_map_itself(),
            root_has_capabilities: crate::host::root_suffices(),
        }
    }
}

impl HostState<'_> {
    fn remedy(&self, protection: Protection, errno: i32) -> Option<Remedy> {
        match (protection, errno) {
            (UserNamespace, _) if self.root_has_capabilities && !is_shortage(errno) => {
                Some(remedy![self.user_namespaces(errno), "; ", go_without_user_namespace()])
            }
            (Root, libc::ENOSPC) => Some(remedy![
                "give the private places more room: ",
                SettingKey::TmpSize,
                ", ",
                SettingKey::TmpInodes,
                "; where a mount was refused, ",
                self.raise_to("fs.mount-max", 1_000_000),
            ]),
            _ => self.plain_remedy(protection, errno).map(Remedy::from),
        }
    }

    /// A remedy without settings.
    fn plain_remedy(&self, protection: Protection, errno: i32) -> Option<String> {
        let sentence = match (protection, errno) {
            (_, errno) if is_shortage(errno) => shortage(errno)?.to_owned(),
            (UserNamespace, _) => self.user_namespaces(errno),
            (_, libc::ENOSPC) if sysctl_of(protection).is_some() => self.raise(sysctl_of(protection)?),
            (_, libc::EPERM | libc::EACCES) if sysctl_of(protection).is_some() => self.user_namespaces(errno),
            (_, libc::ENOSYS | libc::EINVAL) if sysctl_of(protection).is_some() => format!(
                "use a kernel with namespaces of this kind (CONFIG_NAMESPACES=y), {}",
                go_without(protection)
            ),
            (Root, libc::EPERM) => self.mounts(),
            (ProtectedPaths, libc::EACCES) => {
                "give yourself access to the path that the message names, and to the directories around it"
                    .to_owned()
            }
            (Root, libc::EACCES) => {
                format!(
                    "check that the caller may enter the path that the message names; otherwise {}",
                    self.mounts()
                )
            }
            (Root, libc::ENOSYS) => format!(
                "use Linux {} or later: the mount calls of this kernel are too old, or a seccomp filter hides them",
                crate::host::OLDEST
            ),
            (Root | ProtectedPaths, libc::ESTALE) => {
                "run again: another file replaced the path while the sandbox started".to_owned()
            }
            (Root, libc::ENODEV) => "load the module of the file system: modprobe overlay".to_owned(),
            (Landlock, _) => format!(
                "boot with landlock in the lsm= list (CONFIG_SECURITY_LANDLOCK=y, Linux 5.13 or later){}, {}",
                self.filter_too("landlock_create_ruleset"),
                go_without(protection)
            ),
            (LandlockScope, _) => {
                format!("use Linux 6.12 or later with landlock in the lsm= list, {}", go_without(protection))
            }
            (LandlockNetwork, _) => {
                format!("use Linux 6.7 or later with landlock in the lsm= list, {}", go_without(protection))
            }
            (Seccomp, _) => format!(
                "use a kernel with CONFIG_SECCOMP_FILTER=y{}, {}",
                self.filter_too("seccomp"),
                go_without(protection)
            ),
            (Keyring, libc::ENOSYS) => {
                format!("use a kernel with CONFIG_KEYS=y, {}", go_without(protection))
            }
            (Keyring, libc::EDQUOT) => self.raise("kernel.keys.maxkeys"),
            (OpenFiles | FileSize | Memory | Pids | CpuTime, libc::EPERM) => {
                "ask for no more than the caller's own hard limit (ulimit -H -a)".to_owned()
            }
            (_, libc::EPERM | libc::EACCES | libc::ENOSYS) => self.refused(),
            _ => shortage(errno)?.to_owned(),
        };
        Some(sentence)
    }

    /// The remedy if the kernel refuses a user namespace, or privileges in one.
    fn user_namespaces(&self, errno: i32) -> String {
        // Of the causes below, only an AppArmor profile gives EACCES.
        if errno == libc::EACCES && self.confined.profile.is_some() {
            return self.refused();
        }
        if self.is("kernel.unprivileged_userns_clone", "0") {
            return "allow unprivileged user namespaces: sysctl -w kernel.unprivileged_userns_clone=1".into();
        }
        if self.is("kernel.apparmor_restrict_unprivileged_userns", "1") {
            return "give the program an AppArmor profile with `userns,` (Ubuntu 23.10 and later require one), or \
                    run sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
                .into();
        }
        // One clone(2) creates the first namespaces together, so its errno does not tell which limit was
        // reached.
        let first = ["user.max_user_namespaces", "user.max_pid_namespaces"];
        if let Some(exhausted) = first.into_iter().find(|name| self.is(name, "0")) {
            return self.raise(exhausted);
        }
        if self.root_lacks_setfcap {
            return "give root CAP_SETFCAP (docker run --cap-add SETFCAP), which Linux 5.12 and later require to map \
                    uid 0, or run as an ordinary user"
                .into();
        }
        match errno {
            libc::ENOSPC => {
                format!(
                    "{}, or start it in fewer nested user namespaces: at most 32 are possible",
                    self.raise("user.max_user_namespaces")
                )
            }
            libc::EUSERS => "start it in fewer nested user namespaces: at most 32 are possible".into(),
            libc::ENOSYS | libc::EINVAL => "use a kernel with CONFIG_USER_NS=y and CONFIG_PID_NS=y".into(),
            _ => self.refused(),
        }
    }

    /// The remedy if the kernel refuses mounts inside a user namespace.
    fn mounts(&self) -> String {
        if self.is("kernel.apparmor_restrict_unprivileged_userns", "1") {
            return self.user_namespaces(libc::EPERM);
        }
        if self.container || self.confined.sandboxed || self.confined.profile.is_some() {
            return self.refused();
        }
        "look for a security module that refuses mounts in user namespaces, and for masked paths below /proc \
         (findmnt -R /proc): a new procfs needs an existing one that is fully visible"
            .into()
    }

    /// The remedy if the cause is not known.
    pub(crate) fn refused(&self) -> String {
        if self.confined.sandboxed {
            return "this process runs in a sandbox already, and sandboxes do not nest: run the command there without \
                    kennel, or start kennel outside"
                .into();
        }
        if self.container {
            return container();
        }
        if let Some(profile) = &self.confined.profile {
            return self.profile(profile);
        }
        "look for a security module (AppArmor, SELinux: journalctl -k | grep -i denied), a chroot, or a seccomp filter of the \
         service manager (RestrictNamespaces=, SystemCallFilter=) that refuses it"
            .into()
    }

    /// The remedy for an AppArmor profile. A profile that refuses one of these operations rarely allows the
    /// others.
    fn profile(&self, name: &str) -> String {
        let filter = match self.confined.filtered {
            true => "; the seccomp filter of this process may refuse it too",
            false => "",
        };
        format!(
            "let this process's AppArmor profile {name} allow what a sandbox needs (rules `userns,` \
             `capability,` `mount,` `umount,` `pivot_root,`, no `deny` of them, flags=(attach_disconnected); \
             journalctl -k | grep -i denied shows what it refused), or start it without that profile{filter}"
        )
    }

    /// An addition for a system call that a seccomp filter around this process may hide.
    fn filter_too(&self, call: &str) -> String {
        match self.confined.filtered {
            true => format!(", let the seccomp filter of this process allow {call}(2)"),
            false => String::new(),
        }
    }

    fn raise(&self, name: &str) -> String {
        self.raise_to(name, 15_000)
    }

    fn raise_to(&self, name: &str, value: u32) -> String {
        let now = (self.setting)(name).unwrap_or_else(|| "unknown".into());
        format!("raise the limit: sysctl -w {name}={value} (it is {now})")
    }

    fn is(&self, name: &str, value: &str) -> bool {
        (self.setting)(name).as_deref() == Some(value)
    }
}

/// Which options of a container engine allow a sandbox.
pub(crate) fn container() -> String {
    "inside Docker or Kubernetes: run the container with --security-opt seccomp=unconfined --security-opt \
     apparmor=unconfined --security-opt systempaths=unconfined (Kubernetes: procMount: Unmasked)"
        .into()
}

/// user_namespaces(7): since Linux 5.12, only a process with CAP_SETFCAP may map uid 0.
fn root_cannot_map_itself() -> bool {
    let missing = || caps::has_cap(None, CapSet::Effective, Capability::CAP_SETFCAP).is_ok_and(|has| !has);
    nix::unistd::geteuid().is_root() && missing()
}

/// Whether this looks like the inside of a container.
fn in_container() -> bool {
    Path::new("/.dockerenv").exists()
        || Path::new("/run/.containerenv").exists()
        || std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

fn sysctl(name: &str) -> Option<String> {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The sysctl that limits the number of namespaces of one kind.
fn sysctl_of(protection: Protection) -> Option<&'static str> {
    Some(match protection {
        Protection::UserNamespace => "user.max_user_namespaces",
        Protection::MountNamespace => "user.max_mnt_namespaces",
        Protection::PidNamespace => "user.max_pid_namespaces",
        Protection::NetworkNamespace => "user.max_net_namespaces",
        Protection::IpcNamespace => "user.max_ipc_namespaces",
        Protection::UtsNamespace => "user.max_uts_namespaces",
        Protection::CgroupNamespace => "user.max_cgroup_namespaces",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::error::{Error, TERMINAL};
    use crate::report::shortage::of_call;

    /// The remedy on a host with exactly these settings.
    fn on(settings: &[(&str, &str)], container: bool, protection: Protection, errno: i32) -> String {
        let setting = |name: &str| {
            let found = settings.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let surroundings = HostState {
            setting: &setting,
            container,
            confined: Confined::default(),
            root_lacks_setfcap: false,
            root_has_capabilities: false,
        };
        let remedy = surroundings.remedy(protection, errno);
        remedy.unwrap_or_else(|| panic!("{protection} {errno} has no remedy")).to_string()
    }

    #[test]
    fn refused_user_namespaces_name_the_setting_that_refuses_them() {
        use Protection::UserNamespace as User;
        for (settings, errno, words) in [
            (&[("kernel.unprivileged_userns_clone", "0")][..], libc::EPERM, "unprivileged_userns_clone=1"),
            (&[("kernel.apparmor_restrict_unprivileged_userns", "1")], libc::EPERM, "AppArmor profile"),
            (&[("user.max_user_namespaces", "0")], libc::ENOSPC, "user.max_user_namespaces=15000 (it is 0)"),
            (&[("user.max_pid_namespaces", "0")], libc::ENOSPC, "user.max_pid_namespaces=15000 (it is 0)"),
            (&[], libc::ENOSPC, "user.max_user_namespaces=15000 (it is unknown)"),
            (&[], libc::EUSERS, "nested"),
            (&[], libc::EINVAL, "CONFIG_USER_NS"),
            (&[], libc::EACCES, "security module"),
            // A setting that permits user namespaces is not the cause.
            (&[("kernel.unprivileged_userns_clone", "1")], libc::EPERM, "security module"),
            (&[("kernel.apparmor_restrict_unprivileged_userns", "0")], libc::EPERM, "security module"),
        ] {
            let remedy = on(settings, false, User, errno);
            assert!(remedy.contains(words), "{settings:?} {errno}: {remedy}");
        }
    }

    #[test]
    fn a_sandbox_in_a_sandbox_is_told_so() {
        let surroundings = HostState {
            setting: &|_| None,
            container: true,
            confined: Confined { filtered: true, sandboxed: true, profile: Some("ours".to_owned()) },
            root_lacks_setfcap: false,
            root_has_capabilities: false,
        };
        for protection in [Protection::UserNamespace, Protection::Root, Protection::Keyring] {
            let remedy = surroundings.remedy(protection, libc::EPERM).expect("a remedy").to_string();
            assert!(remedy.starts_with("this process runs in a sandbox already"), "{protection}: {remedy}");
        }
        let confined = Confined { filtered: true, ..Confined::default() };
        let hidden = HostState { confined, ..surroundings };
        let remedy = hidden.remedy(Protection::Landlock, libc::ENOSYS).expect("a remedy").to_string();
        assert!(remedy.contains("allow landlock_create_ruleset(2)"), "{remedy}");
    }

    #[test]
    fn an_apparmor_profile_is_named_unless_a_setting_or_an_engine_is_to_blame() {
        let under = |settings: &'static [(&str, &str)], container, protection, errno| {
            let setting = |name: &str| {
                let found = settings.iter().find(|(other, _)| *other == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            let confined = Confined { profile: Some("agent".to_owned()), ..Confined::default() };
            let (root_lacks_setfcap, root_has_capabilities) = (false, false);
            let here = HostState {
                setting: &setting,
                container,
                confined,
                root_lacks_setfcap,
                root_has_capabilities,
            };
            here.remedy(protection, errno).expect("a remedy").to_string()
        };
        let words = "let this process's AppArmor profile agent allow";
        for (protection, errno) in [
            (Protection::UserNamespace, libc::EACCES),
            (Protection::PidNamespace, libc::EPERM),
            (Protection::NetworkNamespace, libc::EPERM),
            (Protection::Root, libc::EPERM),
        ] {
            assert!(under(&[], false, protection, errno).starts_with(words), "{protection}");
            assert!(under(&[], true, protection, errno).contains("--security-opt"), "{protection}");
        }
        assert!(under(&[], false, Protection::Root, libc::EACCES).contains(words));
        let ubuntu = &[("kernel.apparmor_restrict_unprivileged_userns", "1")][..];
        assert!(under(ubuntu, false, Protection::UserNamespace, libc::EACCES).starts_with(words));
        assert!(
            under(ubuntu, false, Protection::PidNamespace, libc::EPERM).starts_with("give the program an")
        );
        let none = &[("user.max_user_namespaces", "0")][..];
        assert!(under(none, false, Protection::UserNamespace, libc::ENOSPC).starts_with("raise the limit"));
    }

    #[test]
    fn root_who_could_go_without_is_told_how() {
        let root = |root_has_capabilities| HostState {
            setting: &|_| Some("0".to_owned()),
            container: false,
            confined: Confined::default(),
            root_lacks_setfcap: false,
            root_has_capabilities,
        };
        let remedy = |sufficient| {
            root(sufficient).remedy(Protection::UserNamespace, libc::ENOSPC).expect("a remedy").to_string()
        };
        let flag = "; or let root's commands run without one: on_unavailable degrade";
        assert!(remedy(true).contains(flag) && !remedy(false).contains(flag));
        // The pid namespace has no such alternative.
        let pid = root(true).remedy(Protection::PidNamespace, libc::ENOSPC).expect("a remedy").to_string();
        assert!(pid.contains("user.max_pid_namespaces") && !pid.contains(flag), "{pid}");
    }

    #[test]
    fn a_shortage_is_told_as_one_whatever_ran_short() {
        for protection in Protection::ALL {
            for (errno, words) in
                [(libc::EMFILE, "ulimit -n"), (libc::EAGAIN, "ulimit -u"), (libc::ENOMEM, "ulimit -v")]
            {
                assert!(on(&[("user.max_user_namespaces", "0")], true, protection, errno).contains(words));
            }
        }
        let of = |errno| of_call(&io::Error::from_raw_os_error(errno));
        assert!(of(libc::ENOSPC).is_some_and(|remedy| remedy.contains("room")));
        assert!(of(libc::EPERM).is_some_and(|remedy| remedy.contains("seccomp filter")));
        let none_left = Error::io(TERMINAL)(io::Error::from_raw_os_error(libc::ENOSPC));
        assert!(
            none_left.remedy().is_some_and(|remedy| remedy.to_string().contains("kernel.pty.max")),
            "{none_left:?}"
        );
        assert_eq!((of(libc::EPIPE), of_call(&io::ErrorKind::InvalidData.into())), (None, None));
    }

    #[test]
    fn limits_of_each_namespace_are_named() {
        let remedy =
            on(&[("user.max_net_namespaces", "0")], false, Protection::NetworkNamespace, libc::ENOSPC);
        assert_eq!(remedy, "raise the limit: sysctl -w user.max_net_namespaces=15000 (it is 0)");
    }

    #[test]
    fn containers_get_the_flags_of_their_engine() {
        for (protection, errno) in [
            (Protection::UserNamespace, libc::EPERM),
            (Protection::NetworkNamespace, libc::EPERM),
            (Protection::Root, libc::EPERM),
            (Protection::Keyring, libc::EPERM),
        ] {
            assert!(on(&[], true, protection, errno).contains("--security-opt"), "{protection}");
        }
    }

    #[test]
    fn ubuntu_lets_the_namespace_pass_and_refuses_the_mounts() {
        let settings = [("kernel.apparmor_restrict_unprivileged_userns", "1")];
        assert!(on(&settings, false, Protection::Root, libc::EACCES).contains("AppArmor profile"));
        assert!(on(&[], false, Protection::Root, libc::EPERM).contains("findmnt -R /proc"));
    }

    #[test]
    fn every_refused_protection_has_a_remedy() {
        for protection in Protection::ALL {
            for errno in [libc::EPERM, libc::EACCES, libc::ENOSYS] {
                assert!(!on(&[], false, protection, errno).is_empty());
            }
        }
        assert!(on(&[], false, Protection::LandlockNetwork, libc::ENOSYS).contains("6.7"));
    }
}
