//! The variables and files that the manual pages list.

/// Variables that Kennel itself obeys, for the manual pages.
pub(super) const ENVIRONMENT: [(&str, &str); 19] = [
    ("HOME", "what ~/ means in flags and policy files, and the home that commands see, empty"),
    ("PATH", "where commands are searched, and which directories of programs are visible"),
    (
        "CARGO_HOME, RUSTUP_HOME, GOPATH and others",
        "where a toolchain or a cache is, and is visible; docs/policy.md lists them",
    ),
    ("TERMINFO, TERMINFO_DIRS", "where terminals are described, besides ~/.terminfo; commands see it"),
    ("NO_COLOR, CLICOLOR=0, TERM=dumb", "no colours, unless --color asks for them"),
    ("CLICOLOR_FORCE=1", "colours in pipes and files too"),
    ("COLUMNS", "the width of help if no terminal tells it"),
    ("KENNEL_PAGER, PAGER, LESS", "the pager of kennel diff on a terminal, and its options; cat is none"),
    ("XDG_RUNTIME_DIR", "where the sockets of sessions are; the sandbox hides it"),
    ("XDG_CONFIG_HOME", "where your policies and git's configuration are, in place of ~/.config"),
    ("XDG_STATE_HOME", "where --overlay keeps changes, in place of ~/.local/state"),
    ("XDG_CACHE_HOME", "where caches are, and what --caches keep keeps of them, in place of ~/.cache"),
    ("XDG_DATA_HOME", "where images are, in place of ~/.local/share"),
    ("KENNEL_IMAGES", "the directory of images, in place of kennel/images there"),
    ("KUBERNETES_SERVICE_HOST", "set in a pod: remedies then name what a pod needs"),
    ("SUDO_UID", "for root: also the repositories of this user are the caller's, as for git"),
    (
        "https_proxy, http_proxy, all_proxy, no_proxy",
        "the proxy of kennel image pull, and of --upstream environment; without that flag commands do not use it",
    ),
    (
        "SSL_CERT_FILE, SSL_CERT_DIR",
        "the certificates that kennel image pull and kennel connector trust, in place of the system's",
    ),
    (
        "DOCKER_CONFIG, REGISTRY_AUTH_FILE",
        "where credentials of registries are, in place of ~/.docker and of where podman keeps them",
    ),
];

/// Files that Kennel reads and writes by itself, for the manual pages.
pub(super) const FILES: [(&str, &str); 9] = [
    ("kennel.toml", "in the workspace: its policy, which counts once `kennel trust` has taken its text"),
    (
        "$XDG_CONFIG_HOME/kennel/config.toml, or ~/.config/kennel/config.toml",
        "your policy for every workspace",
    ),
    ("~/.config/kennel/NAME.toml", "the policy that --policy NAME starts from"),
    ("~/.config/kennel/trust", "copies of each kennel.toml that you trust"),
    ("$XDG_RUNTIME_DIR/kennel, or /tmp/kennel-UID", "sockets of sessions, and the client kennel-exec"),
    (
        "$XDG_CACHE_HOME/kennel/caches, or ~/.cache/kennel/caches",
        "what commands added to caches, with --caches keep",
    ),
    ("$XDG_STATE_HOME/kennel/changes, or ~/.local/state/kennel/changes", "what --overlay keeps"),
    ("$XDG_DATA_HOME/kennel/images, or ~/.local/share/kennel/images", "the store of kennel image"),
    ("/sys/fs/cgroup", "cgroups of commands with limits, where the system has delegated one"),
];

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    /// The names in the calls that read a variable, in code that is no test.
    fn read_in(directory: &Path, names: &mut Vec<String>) {
        for entry in fs::read_dir(directory).expect("a directory of the sources") {
            let path = entry.expect("an entry").path();
            if path.ends_with("tests") {
                continue;
            }
            if path.is_dir() {
                read_in(&path, names);
            } else if path.extension().is_some_and(|it| it == "rs") && !path.ends_with("tests.rs") {
                let text = fs::read_to_string(&path).expect("UTF-8");
                let code = text.split("#[cfg(test)]").next().unwrap_or_default();
                let is_code = |line: &&str| !line.trim_start().starts_with("//");
                let code = code.lines().filter(is_code).collect::<Vec<_>>().join("\n");
                for call in ["env::var(", "var_os(", "variable(", "path_in("] {
                    let given = code.split(call).skip(1).filter_map(|rest| rest.split(')').next());
                    names.extend(
                        given.flat_map(|given| given.split('"').skip(1).step_by(2)).map(str::to_owned),
                    );
                }
            }
        }
    }

    #[test]
    fn the_manual_lists_each_variable_that_the_code_reads() {
        let listed = super::ENVIRONMENT.iter().flat_map(|(names, _)| names.split([',', ' ', '=']));
        let listed: Vec<_> = listed.map(str::to_lowercase).collect();
        let mut read = vec![];
        for package in [".", "../.."] {
            read_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join(package).join("src"), &mut read);
        }
        for known in ["HOME", "XDG_STATE_HOME", "no_proxy"] {
            assert!(read.iter().any(|name| name == known), "{known} is read: {read:?}");
        }
        read.retain(|name| !listed.contains(&name.to_lowercase()));
        assert_eq!(read, Vec::<String>::new(), "not in the manual");
    }
}
