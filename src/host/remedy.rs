//! What a person can do when the kernel refuses a protection: the errno and the host's own settings say which.

use std::{fs, path::Path};

use crate::policy::Protection;

/// A sentence that starts with what to do, for `errno` met while putting up `protection`.
pub(crate) fn remedy(protection: Protection, errno: i32) -> Option<String> {
    let sentence = match (protection, errno) {
        (Protection::UserNamespace, _) => user_namespaces(errno),
        (_, libc::ENOSPC) if is_namespace(protection) => format!(
            "raise the limit: sysctl -w {}=15000 (it is {})",
            namespace_sysctl(protection),
            setting(namespace_sysctl(protection)).unwrap_or_else(|| "unknown".into()),
        ),
        (Protection::Root, libc::EPERM | libc::EACCES) => mounts(),
        (Protection::Root, libc::ENOSYS) => format!(
            "use Linux {} or later: the mount calls of this kernel are too old, or a seccomp filter hides them",
            crate::host::OLDEST
        ),
        (Protection::Root, libc::ESTALE) => {
            "run again: the path was exchanged for another file while the sandbox started".to_owned()
        }
        (Protection::Landlock | Protection::LandlockScope, _) => {
            "boot with landlock in the lsm= list (CONFIG_LANDLOCK=y, Linux 5.13 or later), or set \
             [require] landlock = \"if_available\""
                .to_owned()
        }
        (Protection::Seccomp, _) => {
            "use a kernel with CONFIG_SECCOMP_FILTER=y, or set [require] seccomp = \"if_available\""
                .to_owned()
        }
        (_, libc::EPERM | libc::EACCES) if is_namespace(protection) => user_namespaces(errno),
        _ => return None,
    };
    Some(sentence)
}

/// Why user namespaces are refused here, from the settings that are known to do so.
fn user_namespaces(errno: i32) -> String {
    let is = |name: &str, value: &str| setting(name).as_deref() == Some(value);
    if is("kernel.unprivileged_userns_clone", "0") {
        return "allow unprivileged user namespaces: sysctl -w kernel.unprivileged_userns_clone=1".into();
    }
    if is("kernel.apparmor_restrict_unprivileged_userns", "1") {
        return "give the program an AppArmor profile with `userns,`, or run \
                sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
            .into();
    }
    if errno == libc::ENOSPC || is("user.max_user_namespaces", "0") {
        return format!(
            "raise the limit: sysctl -w user.max_user_namespaces=15000 (it is {})",
            setting("user.max_user_namespaces").unwrap_or_else(|| "unknown".into())
        );
    }
    if errno == libc::ENOSYS || errno == libc::EINVAL {
        return "use a kernel with CONFIG_USER_NS=y and CONFIG_PID_NS=y".into();
    }
    if in_container() {
        return container();
    }
    "look for a security module (AppArmor, SELinux, Yama) or a seccomp filter that refuses user namespaces"
        .into()
}

/// Why mounts are refused inside a user namespace.
fn mounts() -> String {
    if setting("kernel.apparmor_restrict_unprivileged_userns").as_deref() == Some("1") {
        return user_namespaces(libc::EPERM);
    }
    if in_container() {
        return container();
    }
    "look for a security module that refuses mounts in user namespaces, and for masked paths below /proc \
     (findmnt -R /proc): a fresh procfs needs one that is fully visible"
        .into()
}

fn container() -> String {
    "inside Docker or Kubernetes: run the container with --security-opt seccomp=unconfined --security-opt \
     apparmor=unconfined --security-opt systempaths=unconfined (Kubernetes: procMount: Unmasked)"
        .into()
}

/// Whether this looks like the inside of a container.
fn in_container() -> bool {
    Path::new("/.dockerenv").exists()
        || Path::new("/run/.containerenv").exists()
        || std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

/// The value of a sysctl, if it exists.
fn setting(name: &str) -> Option<String> {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn is_namespace(protection: Protection) -> bool {
    namespace_sysctl(protection) != ""
}

fn namespace_sysctl(protection: Protection) -> &'static str {
    match protection {
        Protection::UserNamespace => "user.max_user_namespaces",
        Protection::MountNamespace => "user.max_mnt_namespaces",
        Protection::PidNamespace => "user.max_pid_namespaces",
        Protection::NetworkNamespace => "user.max_net_namespaces",
        Protection::IpcNamespace => "user.max_ipc_namespaces",
        Protection::UtsNamespace => "user.max_uts_namespaces",
        Protection::CgroupNamespace => "user.max_cgroup_namespaces",
        _ => "",
    }
}
