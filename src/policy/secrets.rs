//! Places of secrets. The lists are data: add a row to cover more.

use std::path::{Path, PathBuf};

use crate::sys::lexical::is_within;

/// Below HOME.
pub(crate) const HOME_SECRETS: &[&str] = &[
    ".aws",
    ".android/adbkey",
    ".azure",
    ".bash_history",
    ".bundle/config",
    ".cache/huggingface/stored_tokens",
    ".cache/huggingface/token",
    ".cache/kennel",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".composer/auth.json",
    ".conan2/credentials.json",
    ".config/composer/auth.json",
    ".config/dart/pub-tokens.json",
    ".config/BraveSoftware",
    ".config/chromium",
    ".config/gcloud",
    ".config/gh",
    ".config/glab-cli",
    ".config/google-chrome",
    ".config/op",
    ".config/sops",
    ".docker",
    ".dotnet/corefx",
    ".fly/config.yml",
    ".foundry/keystores",
    ".gem/credentials",
    ".git-credentials",
    ".config/git/credentials",
    ".gnupg",
    ".gradle/gradle.properties",
    ".huggingface/token",
    ".ivy2/.credentials",
    ".julia/servers",
    ".kube",
    ".local/share/keyrings",
    ".m2/settings-security.xml",
    ".m2/settings.xml",
    ".mozilla",
    ".netrc",
    ".npmrc",
    ".password-store",
    ".pgpass",
    ".pub-cache/credentials.json",
    ".pulumi/credentials.json",
    ".pypirc",
    ".python_history",
    ".ray/auth_token",
    ".ssh",
    ".terraform.d",
    ".thunderbird",
    ".vault-token",
    ".zsh_history",
];

/// Of the system. Most are readable only by root or a group, so this matters if the caller is one of these.
/// These paths must have no links on the way, because the view is asked for exactly these.
pub(crate) const SYSTEM_SECRETS: &[&str] = &[
    "/boot",
    "/etc/NetworkManager/system-connections",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/krb5.keytab",
    "/etc/pki/tls/private",
    "/etc/ppp",
    "/etc/security/opasswd",
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/ssh/ssh_host_dsa_key",
    "/etc/ssh/ssh_host_ecdsa_key",
    "/etc/ssh/ssh_host_ed25519_key",
    "/etc/ssh/ssh_host_rsa_key",
    "/etc/ssl/private",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/wireguard",
    "/run/containerd/containerd.sock",
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/var/lib/docker",
    "/var/lib/kubelet",
    // On hosts where /var/run is no link to /run.
    "/var/run/docker.sock",
];

/// Whether `path` is a place of secrets or inside one, for a caller with these home directories.
pub(crate) fn is_secret_of(path: &Path, homes: &[PathBuf]) -> bool {
    let lies_in = |path: &Path, secrets: &[&str]| secrets.iter().any(|name| is_within(path, Path::new(name)));
    let of_home = |home: &PathBuf| path.strip_prefix(home).is_ok_and(|below| lies_in(below, HOME_SECRETS));
    homes.iter().any(of_home) || lies_in(path, SYSTEM_SECRETS)
}
