//! What people type all day prints the same inside as outside.
//!
//! Each file in `jobs/` is a job: a shell script that runs twice, bare and under `kennel run`, each time in
//! an empty workspace with a HOME of its own. Its stdout and status must be the same. Comments at the start
//! describe it, and `docs/compatibility.md` shows them:
//!
//! | comment | meaning |
//! | --- | --- |
//! | `# subject:` | the table of the document in which the job is a row |
//! | `# tool:`, `# job:` | what runs and what it does there |
//! | `# version:` | which version was tried |
//! | `# needs:` | commands that must be on PATH; `scripts/everyday-tools` installs them |
//! | `# by-hand: yes` | the job runs only with `KENNEL_BY_HAND=1`: the tool is large, or not to be had everywhere |
//! | `# user: yes` | the tool refuses to work as root |
//! | `# flags:` | flags of `kennel run` that the job needs |
//! | `# path:` | a directory to put first on PATH |
//! | `# server:` | a script of `servers/` that runs on the host first, and leaves its process in `../pid` |
//! | `# cwd:` | the directory below the workspace in which the job starts |
//! | `# fails:` | the job fails inside, and its output has this text; it does not run bare |
//! | `# note:` | why a flag is needed, or why it fails |
//!
//! Then come up to three sections: `# before:` runs on the host, `# job:` is the job, `# after:` runs on the
//! host in any case. All of them know `$HOME` and `$PORT`, a port of the host that was free; flags and paths
//! do too. A section `before` may put things beside the workspace, in `..`.

mod table;

use std::{
    collections::BTreeMap,
    env,
    fs::{self, File},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    as_user::is_left_to_user,
    support::{
        TempDir, ends, has, is_emulated, is_second_pass, kennel_path, require, skip, workspace_on_disk,
    },
};

/// A test for each job, so that they run side by side.
macro_rules! jobs {
    ($($name:ident,)*) => {
        /// The jobs and their scripts. The second pass cannot always read the sources.
        const JOBS: &[(&str, &str)] =
            &[$((stringify!($name), include_str!(concat!("jobs/", stringify!($name), ".sh")))),*];

        $(#[test]
        fn $name() {
            prints_the_same(&Job::named(stringify!($name)));
        })*
    };
}

jobs! {
    apt_fails,
    autotools,
    bsdtar_archives,
    bun_runs,
    c_make,
    cargo_build_offline,
    cargo_new_crate,
    ccache_hits,
    chromium_dump,
    clang_builds,
    cmake_build,
    composer_project,
    conda_prefix,
    curl_host,
    deno_runs,
    docker_fails,
    dpkg_queries,
    elixir_runs,
    emacs_batch,
    eslint_prettier,
    expect_dialogue,
    gcc_sanitizers,
    gdb_runs,
    gfortran_builds,
    git_bisect,
    git_clone_and_push,
    git_commit,
    git_config_protected,
    git_config_trusted,
    git_filters_and_ignores,
    git_gc_and_blame,
    git_hooks_run,
    git_https,
    git_merge,
    git_patches,
    git_rebase,
    git_separate_dir,
    git_shared_clone,
    git_shared_group,
    git_stash,
    git_subdirectory,
    git_submodule_add,
    git_submodule_workspace,
    git_worktree,
    go_build,
    go_modules,
    gpg_signs,
    gradle_version,
    java_localhost,
    java_runs,
    jupyter_kernel,
    ltrace_traces,
    lua_runs,
    man_pages,
    mariadb_server,
    maven_package,
    maven_version,
    media_tools,
    memcached_server,
    mercurial_commit,
    meson_build,
    mocha_jest,
    mypy_black,
    nginx_serves,
    node_test,
    npm_install,
    numpy_blas,
    ocaml_builds,
    own_server,
    pager_and_top,
    parallel_jobs,
    pdflatex_document,
    perf_stat,
    perl_modules,
    php_extensions,
    ping_fails,
    pip_install,
    playwright_page,
    pnpm_install,
    podman_fails,
    poetry_install,
    poetry_project,
    postgres_host,
    postgres_server,
    pytest_xdist,
    python_venv,
    python_venv_outside,
    r_package,
    r_script,
    redis_host,
    redis_server,
    rsync_copies,
    ruby_bundler,
    screen_session,
    script_terminal,
    search_tools,
    shells,
    sqlite_queries,
    ssh_connects,
    ssh_key,
    strace_traces,
    subversion_commit,
    sudo_fails,
    system_facts,
    tar_archives,
    tar_of_others,
    tmux_session,
    tox_runs,
    typescript_esbuild,
    uv_project,
    valgrind_finds,
    vim_edits,
    vim_terminal,
    vitest_runs,
    yarn_install,
    zip_archives,
}

/// A script of `jobs/`, taken apart.
struct Job {
    name: &'static str,
    fields: BTreeMap<&'static str, &'static str>,
    before: &'static str,
    job: &'static str,
    after: &'static str,
}

/// Servers that several jobs use. The second pass cannot always read the sources.
const SERVERS: [(&str, &str); 2] = [
    ("npm_registry", include_str!("servers/npm_registry.sh")),
    ("python_index", include_str!("servers/python_index.sh")),
];

/// The fields that a script may have.
const FIELDS: [&str; 13] = [
    "subject", "tool", "version", "job", "needs", "by-hand", "user", "flags", "path", "server", "cwd",
    "fails", "note",
];

impl Job {
    fn named(name: &str) -> Self {
        let (name, text) = JOBS.iter().find(|(other, _)| *other == name).unwrap();
        Self::parse(name, text)
    }

    fn parse(name: &'static str, text: &'static str) -> Self {
        let (text, after) = text.split_once("\n# after:\n").unwrap_or((text, ""));
        let (text, job) =
            text.split_once("\n# job:\n").unwrap_or_else(|| panic!("{name} has no section `job`"));
        let (head, before) = text.split_once("\n# before:\n").unwrap_or((text, ""));
        let fields = head.lines().map(|line| {
            let field = line.strip_prefix("# ").and_then(|line| line.split_once(": "));
            let (key, value) =
                field.unwrap_or_else(|| panic!("{name}: not a comment `# field: value`: {line}"));
            assert!(FIELDS.contains(&key), "{name}: no such field: {key}");
            (key, value)
        });
        Self { name, fields: fields.collect(), before, job, after }
    }

    fn field(&self, key: &str) -> &'static str {
        self.fields.get(key).copied().unwrap_or_default()
    }

    /// What runs on the host first.
    fn preparation(&self) -> String {
        let name = self.field("server");
        let server = SERVERS.iter().find(|(other, _)| *other == name).map(|(_, script)| *script);
        assert!(name.is_empty() || server.is_some(), "{}: no such server: {name}", self.name);
        server.unwrap_or_default().to_owned() + self.before
    }

    /// The first command that is not here.
    fn missing(&self) -> Option<&'static str> {
        self.field("needs").split(' ').find(|command| !command.is_empty() && !has(command))
    }
}

/// A place to run a job once: a workspace, a HOME and a port. Dropping it runs the section `after`.
struct Place<'j> {
    job: &'j Job,
    dir: TempDir,
    port: u16,
}

impl<'j> Place<'j> {
    /// Prepares a place by the section `before`.
    fn new(job: &'j Job) -> Self {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let place = Self { job, dir: workspace_on_disk(), port };
        for name in ["work", "home"] {
            fs::create_dir(place.dir.path().join(name)).unwrap();
        }
        let (said, status) =
            place.run(&mut place.shell(&job.preparation()), "before", &place.dir.path().join("work"));
        assert_eq!(status, Some(0), "{}: the section `before` failed: {said:?}", job.name);
        place
    }

    fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// Puts HOME and the port into flags and paths.
    fn filled_in(&self, text: &str) -> String {
        text.replace("$HOME", self.home().to_str().unwrap()).replace("$PORT", &self.port.to_string())
    }

    fn shell(&self, section: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-euc", &format!("PORT={}\n{section}", self.port)]);
        shell
    }

    /// The job, under `kennel run`.
    fn confined(&self) -> Command {
        let mut kennel = Command::new(kennel_path());
        let flags = self.filled_in(self.job.field("flags"));
        kennel.arg("run").args(flags.split_whitespace()).arg("--");
        let shell = self.shell(self.job.job);
        kennel.arg(shell.get_program()).args(shell.get_args());
        kennel
    }

    /// Runs the job. Returns its stdout, its stderr and its status.
    fn job(&self, mut command: Command) -> ([String; 2], Option<i32>) {
        let first = self.filled_in(self.job.field("path"));
        if !first.is_empty() {
            let path = env::var("PATH").unwrap();
            command.env("PATH", format!("{first}:{path}"));
        }
        self.run(&mut command, "job", &self.dir.path().join("work").join(self.job.field("cwd")))
    }

    /// Runs a command of section `name` in `cwd` to its end, in the environment of a plain login.
    fn run(&self, command: &mut Command, name: &str, cwd: &Path) -> ([String; 2], Option<i32>) {
        let log = |stream: &str| self.dir.path().join(format!("{name}.{stream}"));
        command.current_dir(cwd).stdin(Stdio::null());
        command.stdout(File::create(log("out")).unwrap()).stderr(File::create(log("err")).unwrap());
        let kept = ["PATH", "RUSTUP_HOME", "PYENV_ROOT", "KENNEL_WITHOUT_USER_NAMESPACE"];
        let set = command.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
        let set: Vec<_> = set.collect();
        command.env_clear().env("HOME", self.home()).env("LC_ALL", "C.UTF-8").env("TERM", "dumb");
        command.envs(kept.iter().filter_map(|name| Some((name, env::var_os(name)?)))).envs(set);
        // Toolchains of the caller stay where they are, although HOME is another.
        let own = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        for (variable, place) in [("RUSTUP_HOME", ".rustup"), ("PYENV_ROOT", ".pyenv")] {
            if env::var_os(variable).is_none() && own.join(place).is_dir() {
                command.env(variable, own.join(place));
            }
        }
        let mut child = command.spawn().unwrap();
        let status = ends(&format!("{name} of {}", self.job.name), &mut child);
        let read = |stream: &str| {
            let text = String::from_utf8_lossy(&fs::read(log(stream)).unwrap()).into_owned();
            text.replace(self.dir.path().to_str().unwrap(), "/place")
        };
        ([read("out"), read("err")], status.code())
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.job.after.is_empty() {
            let mut shell = self.shell(self.job.after);
            shell.current_dir(self.dir.path().join("work")).env("HOME", self.home());
            let _ = shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}

/// Runs a job bare and confined, and compares.
fn prints_the_same(job: &Job) {
    if !job.field("user").is_empty() && is_left_to_user(&format!("everyday::{}", job.name)) {
        return skip(module_path!(), &format!("{}: not as root", job.name));
    }
    if is_emulated() {
        return skip(module_path!(), "everyday jobs do not depend on the kernel");
    }
    if !job.field("by-hand").is_empty() && env::var_os("KENNEL_BY_HAND").is_none() {
        return skip(module_path!(), &format!("{}: by hand, with KENNEL_BY_HAND=1", job.name));
    }
    if let Some(missing) = job.missing() {
        // Toolchains below root's HOME are not there for others.
        if is_second_pass() {
            return skip(module_path!(), &format!("{}: needs {missing}", job.name));
        }
        require!(false, missing);
    }
    let confined = Place::new(job);
    let ([out, err], status) = confined.job(confined.confined());
    let fails = job.field("fails");
    if !fails.is_empty() {
        assert_ne!(status, Some(0), "{} did not fail: {out}{err}", job.name);
        assert!(format!("{out}{err}").contains(fails), "{} fails without {fails:?}:\n{out}{err}", job.name);
        return;
    }
    let bare = Place::new(job);
    let (expected, bare_status) = bare.job(bare.shell(job.job));
    assert_eq!(bare_status, Some(0), "{} fails outside: {expected:?}", job.name);
    assert!(!expected[0].is_empty(), "{} prints nothing", job.name);
    let name = job.name;
    assert!(
        out == expected[0] && status == Some(0),
        "{name}: status {status:?}\noutside:\n{}\ninside:\n{out}\nstderr inside:\n{err}",
        expected[0]
    );
}
