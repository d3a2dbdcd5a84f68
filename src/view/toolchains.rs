//! Toolchains that people keep outside the system directories, shown read-only so that `kennel run -- cargo build`
//! just works. The table is data: to support another tool, add a row. Never a row with credentials in it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::policy::profile::Toolchains;
use crate::view::inputs::Inputs;
use crate::view::resolved_path::ResolvedPath;
use crate::view::source::{BindSource, exists};
use crate::view::{Access, Node, View, secrets};

/// A toolchain with a home of its own.
struct Toolchain {
    /// Variable that moves its home; passed on when set.
    variable: &'static str,
    /// Where it lives otherwise, below HOME.
    home: &'static str,
    /// What of it is shown; `.` is all of it.
    inputs: &'static [&'static str],
}

const TOOLCHAINS: &[Toolchain] = &[
    Toolchain { variable: "RUSTUP_HOME", home: ".rustup", inputs: &["."] },
    Toolchain { variable: "CARGO_HOME", home: ".cargo", inputs: &["bin", "git", "registry"] },
    Toolchain { variable: "PYENV_ROOT", home: ".pyenv", inputs: &["."] },
    Toolchain { variable: "RBENV_ROOT", home: ".rbenv", inputs: &["."] },
    Toolchain { variable: "NVM_DIR", home: ".nvm", inputs: &["."] },
    Toolchain { variable: "FNM_DIR", home: ".local/share/fnm", inputs: &["."] },
    Toolchain { variable: "VOLTA_HOME", home: ".volta", inputs: &["."] },
    Toolchain { variable: "BUN_INSTALL", home: ".bun", inputs: &["bin", "install/global"] },
    Toolchain { variable: "DENO_INSTALL", home: ".deno", inputs: &["bin"] },
    Toolchain { variable: "GOROOT", home: "sdk", inputs: &["."] },
    Toolchain { variable: "GOPATH", home: "go", inputs: &["bin", "pkg"] },
    Toolchain { variable: "SDKMAN_DIR", home: ".sdkman", inputs: &["bin", "candidates", "src"] },
    Toolchain { variable: "JAVA_HOME", home: ".jdks", inputs: &["."] },
    Toolchain { variable: "UV_PYTHON_INSTALL_DIR", home: ".local/share/uv/python", inputs: &["."] },
    Toolchain { variable: "UV_TOOL_DIR", home: ".local/share/uv/tools", inputs: &["."] },
    Toolchain { variable: "PIPX_HOME", home: ".local/share/pipx", inputs: &["."] },
    Toolchain {
        variable: "MISE_DATA_DIR",
        home: ".local/share/mise",
        inputs: &["installs", "shims", "plugins"],
    },
    Toolchain { variable: "ASDF_DATA_DIR", home: ".asdf", inputs: &["."] },
];

/// Where no toolchain lives, whatever a variable says. Nor is a directory right below `/` one.
const NO_PLACE: &[&str] = &["/boot", "/dev", "/etc", "/proc", "/run", "/sys", "/var"];

/// Of a directory on PATH below HOME, its siblings that programs in it load from.
const PREFIX_PARTS: &[&str] = &["include", "lib", "lib64", "libexec"];

/// Adds the caller's toolchains to the view.
pub(crate) fn show(view: &mut View, inputs: &Inputs<'_>) {
    if !wanted(inputs) {
        return;
    }
    for toolchain in TOOLCHAINS {
        let home = home_of(toolchain, inputs);
        if !inputs.names.may_exist(&home) || !exists(&home) {
            continue;
        }
        for part in toolchain.inputs {
            offer(view, inputs, &if *part == "." { home.clone() } else { home.join(part) });
        }
    }
    let entries: BTreeSet<PathBuf> = inputs.caller.search_path().into_iter().collect();
    for entry in entries {
        if let Ok(below_opt) = entry.strip_prefix("/opt") {
            // Packages in /opt keep everything below one directory of their own.
            offer(view, inputs, &Path::new("/opt").join(below_opt.iter().next().unwrap_or_default()));
        } else if entry.starts_with(&inputs.caller.home) && offer_plain(view, inputs, &entry) {
            offer_prefix(view, inputs, &entry);
        }
    }
}

/// Variables that tell tools where their toolchain lives, as the caller has them.
pub(crate) fn variables(inputs: &Inputs<'_>) -> Vec<(OsString, OsString)> {
    if !wanted(inputs) {
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

fn wanted(inputs: &Inputs<'_>) -> bool {
    let profile = inputs.policy.profile.meaning();
    profile.knows_caller && !profile.shows_host && inputs.policy.toolchains == Toolchains::Auto
}

fn home_of(toolchain: &Toolchain, inputs: &Inputs<'_>) -> PathBuf {
    let moved =
        inputs.caller.variable(toolchain.variable).map(PathBuf::from).filter(|path| path.is_absolute());
    moved.unwrap_or_else(|| inputs.caller.home.join(toolchain.home))
}

/// `~/x/bin` on PATH: its `lib` and the like too, but not when `~/x` is HOME itself.
fn offer_prefix(view: &mut View, inputs: &Inputs<'_>, bin: &Path) {
    let Some(prefix) = bin.parent().filter(|prefix| *prefix != inputs.caller.home && bin.ends_with("bin"))
    else {
        return;
    };
    for part in PREFIX_PARTS {
        offer_plain(view, inputs, &prefix.join(part));
    }
}

/// Shows a path read-only if it exists and is fit to be shown, whatever links of the user's it is named by: a variable must not
/// be able to name HOME, a secret, or a place that the system shows already; nor must a link that commands may have laid.
fn offer(view: &mut View, inputs: &Inputs<'_>, path: &Path) {
    if !view.is_free(path) || !is_fit(path, inputs) {
        return;
    }
    let Ok(led) = ResolvedPath::follow(path) else { return };
    if let Some(link) = led.by_commands(view) {
        let (path, link) = (path.display(), link.display());
        tracing::warn!(%path, %link, "no toolchain is shown: commands could have laid this link to it");
    } else if is_fit(&led.source.path, inputs) {
        view.offer("toolchain", path, Node::Bind { source: led.source, access: Access::Read });
    }
}

/// As [`offer`], for a path that another project may have been able to lay: no link may be on the way.
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
    let of_system = NO_PLACE.iter().any(|place| path.starts_with(place)) || path.components().count() < 3;
    !inputs.caller.holds_home(path) && (in_home || !of_system) && !secrets::is_secret(path, inputs.caller)
}
