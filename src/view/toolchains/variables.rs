//! Variables by which programs find themselves: the directory of an activated environment, of a JDK, of an
//! SDK.
//!
//! The tables are data: add a row for one more. Never add a variable that may hold a credential.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::view::View;
use crate::view::inputs::Inputs;
use crate::view::paths::resolved::ResolvedPath;
use crate::view::toolchains::search_path::{is_visible, offer};

/// Each names one path or several, separated by colons. Directories among them are shown read-only, and the
/// variable is passed on if everything that it names is visible.
const PATHS: &[&str] = &[
    "ANDROID_HOME",
    "ANDROID_NDK_HOME",
    "ANDROID_SDK_ROOT",
    "ANT_HOME",
    "CONDA_EXE",
    "CONDA_PREFIX",
    "CONDA_PYTHON_EXE",
    "CUDA_HOME",
    "CUDA_PATH",
    "DOTNET_ROOT",
    "EMSDK",
    "FNM_MULTISHELL_PATH",
    "GEM_HOME",
    "GEM_PATH",
    "GRADLE_HOME",
    "GROOVY_HOME",
    "HADOOP_HOME",
    "HOMEBREW_CELLAR",
    "HOMEBREW_PREFIX",
    "HOMEBREW_REPOSITORY",
    "JDK_HOME",
    "JRE_HOME",
    "KOTLIN_HOME",
    "LOCALE_ARCHIVE",
    "M2_HOME",
    "MAMBA_ROOT_PREFIX",
    "MAVEN_HOME",
    "NVM_BIN",
    "NVM_INC",
    "OPAM_SWITCH_PREFIX",
    "PERL5LIB",
    "PERL_LOCAL_LIB_ROOT",
    "PKG_CONFIG_PATH",
    "PNPM_HOME",
    "ROCM_PATH",
    "R_LIBS_SITE",
    "R_LIBS_USER",
    "SCALA_HOME",
    "SPARK_HOME",
    "TEXMFHOME",
    "TEXMFLOCAL",
    "VCPKG_ROOT",
    "VIRTUAL_ENV",
    "VULKAN_SDK",
];

/// Separated by spaces.
const NIX_PROFILES: &str = "NIX_PROFILES";

/// Variables that name no path, each with the variable that it comes with.
const COMPANIONS: &[(&str, &str)] = &[
    ("CONDA_DEFAULT_ENV", "CONDA_PREFIX"),
    ("CONDA_PROMPT_MODIFIER", "CONDA_PREFIX"),
    ("CONDA_SHLVL", "CONDA_PREFIX"),
    ("PYENV_VERSION", "PYENV_ROOT"),
    ("RBENV_VERSION", "RBENV_ROOT"),
    ("VIRTUAL_ENV_PROMPT", "VIRTUAL_ENV"),
];

/// The names in the tables.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let companions = COMPANIONS.iter().map(|(name, _)| *name);
    PATHS.iter().copied().chain([NIX_PROFILES]).chain(companions)
}

/// Shows the directories that the caller's variables name.
pub(crate) fn show(view: &mut View, inputs: &Inputs<'_>) {
    for name in PATHS.iter().copied().chain([NIX_PROFILES]) {
        for path in paths(name, inputs).filter(|path| path.is_absolute()) {
            offer(view, inputs, &path);
        }
    }
}

/// The variables of the tables, and of `more`, if everything that they name is visible.
pub(crate) fn visible(
    inputs: &Inputs<'_>,
    view: &View,
    more: impl Iterator<Item = &'static str>,
) -> Vec<(OsString, OsString)> {
    let is_passed = |name: &str| {
        let mut paths = paths(name, inputs).peekable();
        paths.peek().is_some() && paths.all(|path| leads_to_visible(view, &path))
    };
    let mut passed: Vec<&str> =
        PATHS.iter().copied().chain([NIX_PROFILES]).chain(more).filter(|name| is_passed(name)).collect();
    let with = |(name, main): &(&'static str, &str)| passed.contains(main).then_some(*name);
    let companions: Vec<&str> = COMPANIONS.iter().filter_map(with).collect();
    passed.extend(companions);
    let value = |name: &str| Some((name.into(), inputs.caller.variable(name)?.to_owned()));
    passed.into_iter().filter_map(value).collect()
}

/// Whether `path` leads to the same place inside, or to a directory that the view shows in part.
fn leads_to_visible(view: &View, path: &Path) -> bool {
    let is_there = |end: &Path| is_visible(view, end) || view.has_children(end);
    path.is_absolute() && ResolvedPath::resolve(path).is_ok_and(|resolved| is_there(&resolved.source.path))
}

/// The paths in the value of a variable.
fn paths(name: &str, inputs: &Inputs<'_>) -> impl Iterator<Item = PathBuf> {
    let parts: Vec<PathBuf> = match inputs.caller.variable(name) {
        None => Vec::new(),
        Some(value) if name == NIX_PROFILES => {
            value.as_bytes().split(|byte| *byte == b' ').map(OsStr::from_bytes).map(PathBuf::from).collect()
        }
        Some(value) => env::split_paths(value).collect(),
    };
    parts.into_iter().filter(|path| !path.as_os_str().is_empty())
}
