//! Variables that Kennel knows, and what the scrubbed environment keeps of the caller's.
//!
//! The tables are data: add a row to pass on another variable. Never add one that may hold a secret.

use std::ffi::OsStr;

/// Variables that the scrubbed environment keeps, beside `LC_*` and registries: first those about the user.
const KEPT: &[&str] = &[
    "EMAIL",
    "GIT_AUTHOR_EMAIL",
    "GIT_AUTHOR_NAME",
    "GIT_COMMITTER_EMAIL",
    "GIT_COMMITTER_NAME",
    "HOME",
    "LANG",
    "LANGUAGE",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TZ",
    "USER",
    // How programs show things, and what they ask a person with.
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "COLORFGBG",
    "COLORTERM",
    "COLUMNS",
    "EDITOR",
    "FORCE_COLOR",
    "LESS",
    "LINES",
    "LS_COLORS",
    "NO_COLOR",
    "PAGER",
    "TERM",
    "TERMINFO",
    "TERMINFO_DIRS",
    "TERM_PROGRAM",
    "TERM_PROGRAM_VERSION",
    "VISUAL",
    // How tools build.
    "AR",
    "CC",
    "CFLAGS",
    "CGO_ENABLED",
    "CI",
    "CPPFLAGS",
    "CXX",
    "CXXFLAGS",
    "DEBIAN_FRONTEND",
    "GOARCH",
    "GOFLAGS",
    "GOOS",
    "LDFLAGS",
    "NODE_ENV",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONHASHSEED",
    "PYTHONUNBUFFERED",
    "RUSTDOCFLAGS",
    "RUSTFLAGS",
    "RUST_BACKTRACE",
    "RUST_LOG",
    "SOURCE_DATE_EPOCH",
];

/// Variables that name the registries of a company, and what tools trust and ask there. The scrubbed
/// environment keeps those that hold no credentials.
const REGISTRIES: &[&str] = &[
    "BUN_CONFIG_REGISTRY",
    "CARGO_REGISTRY_DEFAULT",
    "CONDA_CHANNEL_ALIAS",
    "COREPACK_NPM_REGISTRY",
    "DENO_TLS_CA_STORE",
    "FLUTTER_STORAGE_BASE_URL",
    "GOINSECURE",
    "GONOPROXY",
    "GONOSUMDB",
    "GOPRIVATE",
    "GOPROXY",
    "GOSUMDB",
    "HEX_MIRROR",
    "HF_ENDPOINT",
    "JSR_URL",
    "JULIA_PKG_SERVER",
    "NODE_USE_SYSTEM_CA",
    "NPM_CONFIG_REGISTRY",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_INDEX_URL",
    "PIP_TRUSTED_HOST",
    "PLAYWRIGHT_DOWNLOAD_HOST",
    "PUB_HOSTED_URL",
    "PUPPETEER_DOWNLOAD_BASE_URL",
    "RUSTUP_DIST_SERVER",
    "RUSTUP_UPDATE_ROOT",
    "UV_DEFAULT_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_INDEX",
    "UV_INDEX_URL",
    "UV_NATIVE_TLS",
    "UV_PYTHON_INSTALL_MIRROR",
    "UV_SYSTEM_CERTS",
    "YARN_NPM_REGISTRY_SERVER",
    "YARN_REGISTRY",
    "npm_config_registry",
    "yarn_registry",
];

/// Start and end of more of them, with a name that the caller chose between.
const NAMED_REGISTRIES: &[(&str, &str)] = &[("CARGO_REGISTRIES_", "_INDEX")];

/// The search path if the caller has no PATH, or its PATH must not count.
pub(crate) const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Variables that name a temporary directory of the host.
pub(crate) const TEMPORARY: &[&str] = &["TMPDIR", "TMP", "TEMP", "TEMPDIR"];

/// Whether the scrubbed environment keeps a variable whatever its value is.
pub(crate) fn is_kept(name: &OsStr) -> bool {
    KEPT.iter().any(|kept| name == *kept) || is_locale(name)
}

/// Whether a variable is one of the locale's, `LC_*`.
pub(crate) fn is_locale(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"LC_")
}

/// Whether a variable names a registry. It may hold credentials.
pub(crate) fn is_registry(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let is_named = |(start, end): &(&str, &str)| {
        let chosen = name.strip_prefix(start).and_then(|rest| rest.strip_suffix(end));
        chosen.is_some_and(|chosen| !chosen.is_empty())
    };
    REGISTRIES.contains(&name) || NAMED_REGISTRIES.iter().any(is_named)
}

/// Whether the value may hold a password or a token: `user:password@` or the query of a URL.
pub(crate) fn may_hold_credentials(value: &OsStr) -> bool {
    value.as_encoded_bytes().iter().any(|byte| b"@?".contains(byte))
}
