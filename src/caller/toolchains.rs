//! The directories that tools keep below HOME: programs and what they load, and what can be computed again.
//!
//! The table is data: add a row to support another tool. Never add one with credentials in it.

use std::env;
use std::path::{Path, PathBuf};

use Kind::{Cache, Toolchain};

use crate::caller::Caller;
use crate::report::place_kind::PlaceKind;

/// The variable that names the base of caches, instead of `~/.cache`.
pub(crate) const CACHE_BASE: &str = "XDG_CACHE_HOME";

/// What a row of the table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Programs and what they load.
    Toolchain,
    /// What a tool can download or compute again.
    Cache,
}

impl Kind {
    pub(crate) fn place(self) -> PlaceKind {
        match self {
            Self::Toolchain => PlaceKind::Toolchain,
            Self::Cache => PlaceKind::Cache,
        }
    }
}

/// What a tool keeps below one directory.
pub(crate) struct Row {
    pub(crate) kind: Kind,
    /// The variable that names the directory, if there is one. It is passed on if it is set.
    pub(crate) variable: &'static str,
    /// The default directory, below HOME. `.cache` stands for XDG_CACHE_HOME.
    pub(crate) home: &'static str,
    /// The parts that are shown; `.` is all of it.
    pub(crate) parts: &'static [&'static str],
}

const fn row(kind: Kind, variable: &'static str, home: &'static str, parts: &'static [&'static str]) -> Row {
    Row { kind, variable, home, parts }
}

/// The tools.
#[rustfmt::skip]
pub(crate) const TABLE: &[Row] = &[
    row(Toolchain, "RUSTUP_HOME", ".rustup", &["."]),
    row(Toolchain, "CARGO_HOME", ".cargo", &["bin"]),
    row(Toolchain, "PYENV_ROOT", ".pyenv", &["."]),
    row(Toolchain, "RBENV_ROOT", ".rbenv", &["."]),
    row(Toolchain, "NVM_DIR", ".nvm", &["."]),
    row(Toolchain, "FNM_DIR", ".local/share/fnm", &["."]),
    row(Toolchain, "VOLTA_HOME", ".volta", &["."]),
    row(Toolchain, "BUN_INSTALL", ".bun", &["bin", "install/global"]),
    row(Toolchain, "DENO_INSTALL", ".deno", &["bin"]),
    row(Toolchain, "GOROOT", "sdk", &["."]),
    row(Toolchain, "GOPATH", "go", &["bin"]),
    row(Toolchain, "SDKMAN_DIR", ".sdkman", &["bin", "candidates", "src"]),
    row(Toolchain, "JAVA_HOME", ".jdks", &["."]),
    row(Toolchain, "DOTNET_ROOT", ".dotnet", &["dotnet", "host", "packs", "sdk", "sdk-manifests", "shared", "templates", "tools"]),
    row(Toolchain, "GHCUP_INSTALL_BASE_PREFIX", ".ghcup", &["."]),
    row(Toolchain, "OPAMROOT", ".opam", &["."]),
    row(Toolchain, "", ".gem", &["ruby"]),
    row(Toolchain, "rvm_path", ".rvm", &["."]),
    row(Toolchain, "", ".rubies", &["."]),
    row(Toolchain, "", ".local/share/gem", &["ruby"]),
    row(Toolchain, "UV_PYTHON_INSTALL_DIR", ".local/share/uv/python", &["."]),
    row(Toolchain, "UV_TOOL_DIR", ".local/share/uv/tools", &["."]),
    row(Toolchain, "PIPX_HOME", ".local/share/pipx", &["."]),
    row(Toolchain, "", "R", &["x86_64-pc-linux-gnu-library", "x86_64-redhat-linux-gnu-library", "x86_64-suse-linux-gnu-library"]),
    row(Toolchain, "", ".julia", &["bin", "conda", "environments", "juliaup"]),
    row(Toolchain, "JUPYTER_DATA_DIR", ".local/share/jupyter", &["kernels", "labextensions", "nbconvert", "nbextensions"]),
    row(Toolchain, "", ".fonts", &["."]),
    row(Toolchain, "", ".local/share/fonts", &["."]),
    row(Toolchain, "MISE_DATA_DIR", ".local/share/mise", &["installs", "shims", "plugins"]),
    row(Toolchain, "ASDF_DATA_DIR", ".asdf", &["."]),

    row(Cache, "CARGO_HOME", ".cargo", &["git", "registry"]),
    row(Cache, "SCCACHE_DIR", ".cache/sccache", &["."]),
    row(Cache, "CCACHE_DIR", ".cache/ccache", &["."]),
    row(Cache, "", ".ccache", &["."]),
    row(Cache, "GOPATH", "go", &["pkg"]),
    row(Cache, "GOMODCACHE", "go/pkg/mod", &["."]),
    row(Cache, "GOCACHE", ".cache/go-build", &["."]),
    row(Cache, "GOLANGCI_LINT_CACHE", ".cache/golangci-lint", &["."]),
    row(Cache, "npm_config_cache", ".npm", &["_cacache", "_npx"]),
    row(Cache, "", ".cache/node-gyp", &["."]),
    row(Cache, "COREPACK_HOME", ".cache/node/corepack", &["."]),
    row(Cache, "YARN_CACHE_FOLDER", ".cache/yarn", &["."]),
    row(Cache, "YARN_GLOBAL_FOLDER", ".yarn/berry", &["cache", "index", "metadata"]),
    row(Cache, "PNPM_HOME", ".local/share/pnpm", &["store"]),
    row(Cache, "", ".cache/pnpm", &["."]),
    row(Cache, "BUN_INSTALL_CACHE_DIR", ".bun/install/cache", &["."]),
    row(Cache, "DENO_DIR", ".cache/deno", &["."]),
    row(Cache, "PLAYWRIGHT_BROWSERS_PATH", ".cache/ms-playwright", &["."]),
    row(Cache, "PUPPETEER_CACHE_DIR", ".cache/puppeteer", &["."]),
    row(Cache, "CYPRESS_CACHE_FOLDER", ".cache/Cypress", &["."]),
    row(Cache, "ELECTRON_CACHE", ".cache/electron", &["."]),
    row(Cache, "PIP_CACHE_DIR", ".cache/pip", &["."]),
    row(Cache, "UV_CACHE_DIR", ".cache/uv", &["."]),
    row(Cache, "POETRY_CACHE_DIR", ".cache/pypoetry", &["."]),
    row(Cache, "PIPENV_CACHE_DIR", ".cache/pipenv", &["."]),
    row(Cache, "PDM_CACHE_DIR", ".cache/pdm", &["."]),
    row(Cache, "PRE_COMMIT_HOME", ".cache/pre-commit", &["."]),
    row(Cache, "CONDA_PKGS_DIRS", ".conda/pkgs", &["."]),
    row(Cache, "HF_HOME", ".cache/huggingface", &["assets", "datasets", "hub", "modules", "xet"]),
    row(Cache, "TORCH_HOME", ".cache/torch", &["."]),
    row(Cache, "KERAS_HOME", ".keras", &["datasets", "models"]),
    row(Cache, "", ".m2", &["repository", "wrapper"]),
    row(Cache, "GRADLE_USER_HOME", ".gradle", &["caches", "jdks", "native", "wrapper"]),
    row(Cache, "", ".ivy2", &["cache", "local"]),
    row(Cache, "", ".sbt", &["boot"]),
    row(Cache, "COURSIER_CACHE", ".cache/coursier", &["."]),
    row(Cache, "COMPOSER_CACHE_DIR", ".cache/composer", &["."]),
    row(Cache, "COMPOSER_HOME", ".composer", &["cache"]),
    row(Cache, "NUGET_PACKAGES", ".nuget/packages", &["."]),
    row(Cache, "", ".local/share/NuGet", &["http-cache", "plugins-cache", "v3-cache"]),
    row(Cache, "BUNDLE_USER_CACHE", ".bundle/cache", &["."]),
    row(Cache, "PUB_CACHE", ".pub-cache", &["bin", "git", "global_packages", "hosted"]),
    row(Cache, "HEX_HOME", ".hex", &["packages"]),
    row(Cache, "MIX_HOME", ".mix", &["archives", "elixir"]),
    row(Cache, "", ".cache/rebar3", &["."]),
    row(Cache, "CABAL_DIR", ".cabal", &["bin", "packages", "store"]),
    row(Cache, "", ".cache/cabal", &["."]),
    row(Cache, "STACK_ROOT", ".stack", &["indices", "pantry", "programs", "snapshots"]),
    row(Cache, "ZIG_GLOBAL_CACHE_DIR", ".cache/zig", &["."]),
    row(Cache, "CONAN_HOME", ".conan2", &["p"]),
    row(Cache, "VCPKG_DEFAULT_BINARY_CACHE", ".cache/vcpkg", &["."]),
    row(Cache, "", ".cache/bazel", &["."]),
    row(Cache, "", ".cache/bazelisk", &["."]),
    row(Cache, "RENV_PATHS_ROOT", ".cache/R", &["."]),
    row(Cache, "JULIA_DEPOT_PATH", ".julia", &["artifacts", "clones", "compiled", "packages", "registries"]),
    row(Cache, "NLTK_DATA", "nltk_data", &["."]),
    row(Cache, "MPLCONFIGDIR", ".cache/matplotlib", &["."]),
    row(Cache, "", ".cache/fontconfig", &["."]),
    row(Cache, "", ".fontconfig", &["."]),
    row(Cache, "MISE_CACHE_DIR", ".cache/mise", &["."]),
];

/// What is shown of a row whose directory is `home`.
pub(crate) fn parts(row: &'static Row, home: &Path) -> impl Iterator<Item = PathBuf> {
    row.parts.iter().map(|part| if *part == "." { home.to_owned() } else { home.join(part) })
}

/// Whether a variable of the caller names the directory of a row, or the base of caches that it is in.
pub(crate) fn is_named(row: &Row, caller: &Caller) -> bool {
    caller.variable(row.variable).is_some()
        || row.home.starts_with(".cache/") && caller.variable(CACHE_BASE).is_some()
}

/// The directory of a row.
pub(crate) fn home_of(row: &Row, caller: &Caller) -> PathBuf {
    // Some variables name several directories: tools put what is new into the first.
    let named = caller.path_in(row.variable).and_then(|paths| env::split_paths(&paths).next());
    let below_base = || {
        let below = row.home.strip_prefix(".cache/")?;
        Some(caller.path_in(CACHE_BASE)?.join(below))
    };
    named.or_else(below_base).unwrap_or_else(|| caller.home.join(row.home))
}
