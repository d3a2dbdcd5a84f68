//! Toolchains outside the system directories, and the caches of package managers and compilers.
//!
//! The table is data: add a row to support another tool. Never add one with credentials in it.

pub(crate) mod search_path;
pub(crate) mod variables;

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use Kind::{Cache, Toolchain};

use crate::caller::Caller;
use crate::policy::profile::{Caches, Toolchains};
use crate::report::place_kind::PlaceKind;
use crate::view::cache_store::CACHE_BASE;
use crate::view::inputs::{Inputs, may_have_layers};
use crate::view::paths::source::exists;
use crate::view::toolchains::variables as tool_variables;
use crate::view::{Access, Node, Origin, Unlayered, View, layers};

/// What a row of the table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Programs and what they load.
    Toolchain,
    /// What a tool can download or compute again.
    Cache,
}

impl Kind {
    fn place(self) -> PlaceKind {
        match self {
            Self::Toolchain => PlaceKind::Toolchain,
            Self::Cache => PlaceKind::Cache,
        }
    }
}

/// What a tool keeps below one directory.
struct Row {
    kind: Kind,
    /// The variable that names the directory, if there is one. It is passed on if it is set.
    variable: &'static str,
    /// The default directory, below HOME. `.cache` stands for XDG_CACHE_HOME.
    home: &'static str,
    /// The parts that are shown; `.` is all of it.
    parts: &'static [&'static str],
}

const fn row(kind: Kind, variable: &'static str, home: &'static str, parts: &'static [&'static str]) -> Row {
    Row { kind, variable, home, parts }
}

#[rustfmt::skip]
const TABLE: &[Row] = &[
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

/// Adds the caller's toolchains and caches to the view.
pub(crate) fn show(view: &mut View, inputs: &Inputs<'_>) {
    if !is_wanted(inputs) {
        return;
    }
    if let Some(base) = inputs.caller.variable(CACHE_BASE) {
        make_room(view, inputs, Path::new(base));
    }
    for row in TABLE.iter().filter(|row| row.kind == Toolchain || inputs.policy.caches != Caches::None) {
        let home = home_of(row, inputs.caller);
        if row.kind == Cache {
            make_room(view, inputs, &home);
        }
        for path in parts(row, &home) {
            offer(view, inputs, row.kind, &path);
        }
    }
    if !inputs.policy.profile.meaning().shows_host {
        tool_variables::show(view, inputs);
        search_path::show(view, inputs);
    }
}

fn parts(row: &'static Row, home: &Path) -> impl Iterator<Item = PathBuf> {
    row.parts.iter().map(|part| if *part == "." { home.to_owned() } else { home.join(part) })
}

/// The caches of the table, whether they exist or not.
pub(crate) fn caches(caller: &Caller) -> impl Iterator<Item = PathBuf> {
    let caches = TABLE.iter().filter(|row| row.kind == Cache);
    caches.flat_map(|row| parts(row, &home_of(row, caller)).collect::<Vec<_>>())
}

/// The variables of the caller that name toolchains and caches, if what they name is visible, or can be made.
pub(crate) fn variables(inputs: &Inputs<'_>, view: &View) -> Vec<(OsString, OsString)> {
    if !is_wanted(inputs) {
        return Vec::new();
    }
    let mut found = tool_variables::visible(inputs, view, names());
    for name in names().filter(|name| is_of_cache(name)) {
        if let Some(value) = inputs.caller.variable(name).filter(|value| is_room(view, Path::new(value)))
            && !found.iter().any(|(known, _)| known == name)
        {
            found.push((name.into(), value.to_owned()));
        }
    }
    found
}

/// Variables of the caller that decide which toolchains and caches are visible, and where.
pub(crate) fn deciding_variables() -> impl Iterator<Item = &'static str> {
    ["HOME", "PATH"].into_iter().chain(names()).chain(tool_variables::names())
}

/// The variables of the table, each once.
fn names() -> impl Iterator<Item = &'static str> {
    let of_rows = TABLE.iter().map(|row| row.variable).filter(|name| !name.is_empty());
    of_rows.chain([CACHE_BASE]).collect::<BTreeSet<_>>().into_iter()
}

fn is_of_cache(name: &str) -> bool {
    name == CACHE_BASE || TABLE.iter().any(|row| row.variable == name && row.kind == Cache)
}

/// Whether commands can make a directory at `path`.
fn is_room(view: &View, path: &Path) -> bool {
    let place = path.ancestors().find_map(|above| view.get(above));
    path.is_absolute()
        && place.is_some_and(|place| matches!(place.node, Node::Private { .. } | Node::Layered { .. }))
}

fn is_wanted(inputs: &Inputs<'_>) -> bool {
    inputs.policy.profile.meaning().knows_caller && inputs.policy.toolchains == Toolchains::Auto
}

fn home_of(row: &Row, caller: &Caller) -> PathBuf {
    let base = || caller.path_in(CACHE_BASE);
    // Some variables name several directories: tools put what is new into the first.
    let named = caller.path_in(row.variable).and_then(|paths| env::split_paths(&paths).next());
    named.unwrap_or_else(|| match (row.home.strip_prefix(".cache/"), base()) {
        (Some(below), Some(base)) => base.join(below),
        _ => caller.home.join(row.home),
    })
}

/// Outside of HOME, which is private, tools need a directory to make their caches in.
fn make_room(view: &mut View, inputs: &Inputs<'_>, at: &Path) {
    let is_outside = at.is_absolute() && !inputs.caller.homes.iter().any(|home| at.starts_with(home));
    if is_outside && view.is_free(at) && search_path::is_fit(at, inputs) {
        view.offer(PlaceKind::PrivateDirectory, at, Node::Private { mode: 0o755 });
    }
}

/// Shows a part of a row, at the path that it leads to.
fn offer(view: &mut View, inputs: &Inputs<'_>, kind: Kind, path: &Path) {
    let Some(found) = search_path::fit(inputs, path) else {
        if kind == Cache
            && inputs.policy.caches == Caches::Keep
            && !(inputs.names.may_exist(path) && exists(path))
        {
            layers::show_absent(view, inputs, Cache.place(), path);
        }
        return;
    };
    let (source, links) = (&found.source, &found.links);
    let is_open = view.is_free(&source.path) || is_shown_read_only(view, inputs, &source.path);
    if is_open && search_path::is_trusted(view, inputs, path, &found) {
        let otherwise = match kind {
            Toolchain => Unlayered::ReadOnly,
            Cache => Unlayered::Empty,
        };
        let node = layers::node(view, inputs, source.clone(), otherwise);
        view.offer(kind.place(), &source.path, node);
    }
    view.offer_links(links, path, &source.path);
}

/// Whether the profile shows `path` read-only, where the caller could write outside. Then commands may write
/// to a layer there.
fn is_shown_read_only(view: &View, inputs: &Inputs<'_>, path: &Path) -> bool {
    let above = path.ancestors().find_map(|above| view.get(above));
    let of_profile = above.is_some_and(|place| {
        place.origin == Origin::Profile && matches!(place.node, Node::Bind { access: Access::Read, .. })
    });
    of_profile
        && may_have_layers(inputs.policy)
        && layers::are_possible(inputs)
        && layers::is_writable_outside(path)
}
