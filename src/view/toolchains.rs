//! Toolchains outside the system directories, shown read-only so that `kennel run -- cargo build` works.
//!
//! The table is data: add a row to support another tool. Never add one with credentials in it.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::policy::profile::Toolchains;
use crate::view::inputs::Inputs;
use crate::view::source::exists;
use crate::view::{View, search_path, tool_variables};

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

/// Adds the caller's toolchains to the view.
pub(crate) fn show(view: &mut View, inputs: &Inputs<'_>) {
    if !is_wanted(inputs) || inputs.policy.profile.meaning().shows_host {
        return;
    }
    for toolchain in TOOLCHAINS {
        let home = home_of(toolchain, inputs);
        if !inputs.names.may_exist(&home) || !exists(&home) {
            continue;
        }
        for part in toolchain.parts {
            search_path::offer(view, inputs, &if *part == "." { home.clone() } else { home.join(part) });
        }
    }
    tool_variables::show(view, inputs);
    search_path::show(view, inputs);
}

/// The variables of the caller that name toolchains, if what they name is visible.
pub(crate) fn variables(inputs: &Inputs<'_>, view: &View) -> Vec<(OsString, OsString)> {
    if !is_wanted(inputs) {
        return Vec::new();
    }
    let rows = TOOLCHAINS.iter().map(|toolchain| toolchain.variable);
    tool_variables::visible(inputs, view, rows)
}

/// Variables of the caller that decide which toolchains are visible, and where.
pub(crate) fn deciding_variables() -> impl Iterator<Item = &'static str> {
    let rows = TOOLCHAINS.iter().map(|toolchain| toolchain.variable);
    ["HOME", "PATH"].into_iter().chain(rows).chain(tool_variables::names())
}

fn is_wanted(inputs: &Inputs<'_>) -> bool {
    inputs.policy.profile.meaning().knows_caller && inputs.policy.toolchains == Toolchains::Auto
}

fn home_of(toolchain: &Toolchain, inputs: &Inputs<'_>) -> PathBuf {
    let moved =
        inputs.caller.variable(toolchain.variable).map(PathBuf::from).filter(|path| path.is_absolute());
    moved.unwrap_or_else(|| inputs.caller.home.join(toolchain.home))
}
