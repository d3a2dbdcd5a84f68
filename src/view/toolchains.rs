//! Toolchains outside the system directories, shown read-only so that `kennel run -- cargo build` works.
//!
//! The table is data: add a row to support another tool. Never add one with credentials in it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::policy::profile::Toolchains;
use crate::view::inputs::Inputs;
use crate::view::resolved_path::ResolvedPath;
use crate::view::source::{BindSource, exists};
use crate::view::{Access, Node, View, secrets};

/// A toolchain with its own directory.
struct Toolchain {
    /// The variable that names its directory. It is passed on if it is set.
    variable: &'static str,
    /// The default directory, below HOME.
    home: &'static str,
    /// The parts that are shown; `.` is all of it.
    parts: &'static [&'static str],
}

const TOOLCHAINS: &[Toolchain] = &[
    Toolchain { variable: "RUSTUP_HOME", home: ".rustup", parts: &["."] },
    Toolchain { variable: "CARGO_HOME", home: ".cargo", parts: &["bin", "git", "registry"] },
    Toolchain { variable: "PYENV_ROOT", home: ".pyenv", parts: &["."] },
    Toolchain { variable: "RBENV_ROOT", home: ".rbenv", parts: &["."] },
    Toolchain { variable: "NVM_DIR", home: ".nvm", parts: &["."] },
    Toolchain { variable: "FNM_DIR", home: ".local/share/fnm", parts: &["."] },
    Toolchain { variable: "VOLTA_HOME", home: ".volta", parts: &["."] },
    Toolchain { variable: "BUN_INSTALL", home: ".bun", parts: &["bin", "install/global"] },
    Toolchain { variable: "DENO_INSTALL", home: ".deno", parts: &["bin"] },
    Toolchain { variable: "GOROOT", home: "sdk", parts: &["."] },
    Toolchain { variable: "GOPATH", home: "go", parts: &["bin", "pkg"] },
    Toolchain { variable: "SDKMAN_DIR", home: ".sdkman", parts: &["bin", "candidates", "src"] },
    Toolchain { variable: "JAVA_HOME", home: ".jdks", parts: &["."] },
    Toolchain { variable: "UV_PYTHON_INSTALL_DIR", home: ".local/share/uv/python", parts: &["."] },
    Toolchain { variable: "UV_TOOL_DIR", home: ".local/share/uv/tools", parts: &["."] },
    Toolchain { variable: "PIPX_HOME", home: ".local/share/pipx", parts: &["."] },
    Toolchain {
        variable: "MISE_DATA_DIR",
        home: ".local/share/mise",
        parts: &["installs", "shims", "plugins"],
    },
    Toolchain { variable: "ASDF_DATA_DIR", home: ".asdf", parts: &["."] },
];

/// No toolchain is in one of these, whatever a variable says, or is a directory directly below `/`.
const NEVER_A_TOOLCHAIN: &[&str] = &["/boot", "/dev", "/etc", "/proc", "/run", "/sys", "/var"];

/// For `bin` on PATH below HOME: the siblings from which its programs load files.
const PREFIX_PARTS: &[&str] = &["include", "lib", "lib64", "libexec"];

/// Adds the caller's toolchains to the view.
pub(crate) fn show(view: &mut View, inputs: &Inputs<'_>) {
    if !is_wanted(inputs) {
        return;
    }
    for toolchain in TOOLCHAINS {
        let home = home_of(toolchain, inputs);
        if !inputs.names.may_exist(&home) || !exists(&home) {
            continue;
        }
        for part in toolchain.parts {
            offer(view, inputs, &if *part == "." { home.clone() } else { home.join(part) });
        }
    }
    let entries: BTreeSet<PathBuf> = inputs.caller.search_path().into_iter().collect();
    for entry in entries {
        if let Ok(below_opt) = entry.strip_prefix("/opt") {
            // A package in /opt has everything in one directory.
            offer(view, inputs, &Path::new("/opt").join(below_opt.iter().next().unwrap_or_default()));
        } else if entry.starts_with(&inputs.caller.home) && offer_plain(view, inputs, &entry) {
            offer_prefix(view, inputs, &entry);
        }
    }
}

/// The variables of the caller that name toolchains.
pub(crate) fn variables(inputs: &Inputs<'_>) -> Vec<(OsString, OsString)> {
    if !is_wanted(inputs) {
        return Vec::new();
    }
    let set = |toolchain: &Toolchain| {
        let value = inputs.caller.variable(toolchain.variable)?;
        Some((toolchain.variable.into(), value.to_owned()))
    };
    TOOLCHAINS.iter().filter_map(set).collect()
}

/// Variables of the caller that decide which toolchains are visible, and where.
pub(crate) fn deciding() -> impl Iterator<Item = &'static str> {
    ["HOME", "PATH"].into_iter().chain(TOOLCHAINS.iter().map(|toolchain| toolchain.variable))
}

fn is_wanted(inputs: &Inputs<'_>) -> bool {
    let profile = inputs.policy.profile.meaning();
    profile.knows_caller && !profile.shows_host && inputs.policy.toolchains == Toolchains::Auto
}

fn home_of(toolchain: &Toolchain, inputs: &Inputs<'_>) -> PathBuf {
    let moved =
        inputs.caller.variable(toolchain.variable).map(PathBuf::from).filter(|path| path.is_absolute());
    moved.unwrap_or_else(|| inputs.caller.home.join(toolchain.home))
}

/// For `~/x/bin` on PATH, shows `~/x/lib` and the like too, unless `~/x` is HOME itself.
fn offer_prefix(view: &mut View, inputs: &Inputs<'_>, bin: &Path) {
    let Some(prefix) = bin.parent().filter(|prefix| *prefix != inputs.caller.home && bin.ends_with("bin"))
    else {
        return;
    };
    for part in PREFIX_PARTS {
        offer_plain(view, inputs, &prefix.join(part));
    }
}

/// Shows a path read-only if it exists and is fit. Links on the way are allowed, unless commands may have made them. A
/// variable must not be able to expose HOME, a secret, or a place that the system shows already.
fn offer(view: &mut View, inputs: &Inputs<'_>, path: &Path) {
    if !view.is_free(path) || !is_fit(path, inputs) {
        return;
    }
    let Ok(resolved) = ResolvedPath::follow(path) else { return };
    if let Some(link) = resolved.link_in_writable_grant(view) {
        let (path, link) = (path.display(), link.display());
        tracing::warn!(%path, %link, "no toolchain is shown: commands could have made this link to it");
    } else if is_fit(&resolved.source.path, inputs) {
        view.offer("toolchain", path, Node::Bind { source: resolved.source, access: Access::Read });
    }
}

/// As [`offer`], for a path that another project may have made: no link may be on the way.
fn offer_plain(view: &mut View, inputs: &Inputs<'_>, path: &Path) -> bool {
    let shown = view.is_free(path) && is_fit(path, inputs);
    match BindSource::exact(path) {
        Ok(source) if shown => view.offer("toolchain", path, Node::Bind { source, access: Access::Read }),
        _ => return false,
    }
    true
}

fn is_fit(path: &Path, inputs: &Inputs<'_>) -> bool {
    let in_home = inputs.caller.homes.iter().any(|home| path.starts_with(home));
    let of_system =
        NEVER_A_TOOLCHAIN.iter().any(|place| path.starts_with(place)) || path.components().count() < 3;
    !inputs.caller.holds_home(path) && (in_home || !of_system) && !secrets::is_secret(path, inputs.caller)
}
