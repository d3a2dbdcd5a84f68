//! Messages of real programs whose attempts a sandbox refused, and what Kennel says about them.
//!
//! `{hid}` is a directory that the sandbox does not show, `{ro}` one that is granted read-only, and `{file}`
//! a file that is granted by itself in `{dir}`.

use super::tests::{judge, workspace};
use crate::policy::Policy;
use crate::policy::mount::Mount;
use crate::policy::profile::{OnUnavailable, Profile};
use crate::report::denial::Denial;
use crate::report::remedy::Wording;

/// The message, the subject, and the flag.
type Sample = (&'static str, &'static str, &'static str);

/// The path is not visible.
const HIDDEN: &[Sample] = &[
    ("dash: 1: cannot open {hid}/f: No such file", "{hid}/f", "ro {hid}/f"),
    ("dash: 1: cannot create {hid}/new: Directory nonexistent", "{hid}/new", "rw {hid}"),
    ("dash: 1: cd: can't cd to {hid}", "{hid}", "ro {hid}"),
    ("dash: 1: {hid}/f: not found", "{hid}/f", "ro {hid}/f"),
    ("dash: 0: cannot open {hid}/f: No such file", "{hid}/f", "ro {hid}/f"),
    ("bash: line 1: {hid}/f: No such file or directory", "{hid}/f", "ro {hid}/f"),
    ("bash: line 1: cd: {hid}: No such file or directory", "{hid}", "ro {hid}"),
    ("zsh:1: no such file or directory: {hid}/f", "{hid}/f", "ro {hid}/f"),
    ("zsh: can't open input file: {hid}/f", "{hid}/f", "ro {hid}/f"),
    ("mkdir: cannot create directory ‘{hid}/new’: No such file or directory", "{hid}/new", "rw {hid}"),
    ("cp: cannot stat '{hid}/f': No such file or directory", "{hid}/f", "ro {hid}/f"),
    (
        "E: List directory {hid}/partial is missing. - Acquire (2: No such file or directory)",
        "{hid}/partial",
        "ro {hid}/partial",
    ),
    (
        "E: unable to read {hid}/apt.conf.d - DirectoryExists (2: No such file or directory)",
        "{hid}/apt.conf.d",
        "ro {hid}/apt.conf.d",
    ),
    ("find: ‘{hid}’: No such file or directory", "{hid}", "ro {hid}"),
    ("grep: {hid}/f: No such file or directory", "{hid}/f", "ro {hid}/f"),
    ("tar: {hid}/f.tar: Cannot open: No such file or directory", "{hid}/f.tar", "ro {hid}/f.tar"),
    ("fatal: cannot change to '{hid}': No such file or directory", "{hid}", "ro {hid}"),
    ("fatal: repository '{hid}' does not exist", "{hid}", "ro {hid}"),
    ("fatal: not a git repository: '{hid}/.git'", "{hid}/.git", "ro {hid}/.git"),
    ("error: Could not access '{hid}/f'", "{hid}/f", "ro {hid}/f"),
    (
        "error: `{hid}/d` is not a directory. --path must point to a directory containing a Cargo.toml file.",
        "{hid}/d",
        "ro {hid}/d",
    ),
    ("fatal: cannot mkdir {hid}/d/r: Read-only file system", "{hid}/d/r", "rw {hid}/d"),
    (
        "Caused by:\n  failed to create directory `{hid}/d/p`\n\nCaused by:\n  Read-only file system (os error 30)",
        "{hid}/d/p",
        "rw {hid}/d",
    ),
    ("fatal: not a git repository: {hid}/out.git", "{hid}/out.git", "ro {hid}/out.git"),
    ("FileNotFoundError: [Errno 2] No such file or directory: '{hid}/f'", "{hid}/f", "ro {hid}/f"),
    (
        "/root/.pyenv/versions/3.11.7/bin/python3: can't open file '{hid}/f': [Errno 2] No such file or directory",
        "{hid}/f",
        "ro {hid}/f",
    ),
    ("cannot open {hid}/f: No such file or directory at -e line 1.", "{hid}/f", "ro {hid}/f"),
    ("Can't open perl script \"{hid}/f\": No such file or directory", "{hid}/f", "ro {hid}/f"),
    (
        "-e:1:in `read': No such file or directory @ rb_sysopen - {hid}/f (Errno::ENOENT)",
        "{hid}/f",
        "ro {hid}/f",
    ),
    ("ruby: No such file or directory -- {hid}/f (LoadError)", "{hid}/f", "ro {hid}/f"),
    (
        "Warning: file_get_contents({hid}/f): Failed to open stream: No such file or directory in Command line code on line 1",
        "{hid}/f",
        "ro {hid}/f",
    ),
    ("Could not open input file: {hid}/f", "{hid}/f", "ro {hid}/f"),
    ("Error: ENOENT: no such file or directory, open '{hid}/f'", "{hid}/f", "ro {hid}/f"),
    ("Error: Cannot find module '{hid}/f'", "{hid}/f", "ro {hid}/f"),
    (
        "npm error enoent Could not read package.json: Error: ENOENT: no such file or directory, open '{hid}/package.json'",
        "{hid}/package.json",
        "ro {hid}/package.json",
    ),
    (
        "ERROR: Could not open requirements file: [Errno 2] No such file or directory: '{hid}/r.txt'",
        "{hid}/r.txt",
        "ro {hid}/r.txt",
    ),
    (
        "WARNING: Requirement '{hid}/p.whl' looks like a filename, but the file does not exist",
        "{hid}/p.whl",
        "ro {hid}/p.whl",
    ),
    (
        "ERROR: {hid} is not a valid editable requirement. It should either be a path to a local project or a VCS URL (beginning with bzr+http).",
        "{hid}",
        "ro {hid}",
    ),
    ("make: *** {hid}: No such file or directory.  Stop.", "{hid}", "ro {hid}"),
    ("CMake Error: The source directory \"{hid}\" does not exist.", "{hid}", "ro {hid}"),
    ("cc1: fatal error: {hid}/f.c: No such file or directory", "{hid}/f.c", "ro {hid}/f.c"),
    ("/usr/bin/ld: cannot find {hid}/lib.a: No such file or directory", "{hid}/lib.a", "ro {hid}/lib.a"),
    ("curl: (37) Couldn't open file {hid}/f", "{hid}/f", "ro {hid}/f"),
    (
        "Warning: Identity file {hid}/key not accessible: No such file or directory.",
        "{hid}/key",
        "ro {hid}/key",
    ),
    ("Error: unable to open database \"{hid}/db\": unable to open database file", "{hid}/db", "ro {hid}/db"),
    (
        "Exception in thread \"main\" java.nio.file.NoSuchFileException: {hid}/f\n\tat java.base/sun.nio.fs.UnixException.translateToIOException(UnixException.java:92)",
        "{hid}/f",
        "ro {hid}/f",
    ),
    (
        "Exception in thread \"main\" java.io.FileNotFoundException: {hid}/f (No such file or directory)",
        "{hid}/f",
        "ro {hid}/f",
    ),
    ("Error: Unable to access jarfile {hid}/f.jar", "{hid}/f.jar", "ro {hid}/f.jar"),
    ("error: file not found: {hid}/F.java", "{hid}/F.java", "ro {hid}/F.java"),
    (
        "POM file {hid}/pom.xml specified with the -f/--file command line argument does not exist",
        "{hid}/pom.xml",
        "ro {hid}/pom.xml",
    ),
    (
        "Caused by:\n  failed to read `{hid}/d/Cargo.toml`\n\nCaused by:\n  No such file or directory (os error 2)",
        "{hid}/d/Cargo.toml",
        "ro {hid}/d/Cargo.toml",
    ),
    ("error: manifest path `{hid}/Cargo.toml` does not exist", "{hid}/Cargo.toml", "ro {hid}/Cargo.toml"),
    (
        "error: couldn't read `{hid}/m.rs`: No such file or directory (os error 2)",
        "{hid}/m.rs",
        "ro {hid}/m.rs",
    ),
    ("open {hid}/f: no such file or directory", "{hid}/f", "ro {hid}/f"),
    ("stat {hid}/m.go: no such file or directory", "{hid}/m.go", "ro {hid}/m.go"),
    ("In file(con, \"r\") : cannot open file '{hid}/f': No such file or directory", "{hid}/f", "ro {hid}/f"),
];

/// The path is granted read-only.
const READ_ONLY: &[Sample] = &[
    ("dash: 1: cannot create {ro}/new: Read-only file system", "{ro}/new", "rw {ro}"),
    ("bash: line 1: {ro}/new: Read-only file system", "{ro}/new", "rw {ro}"),
    ("zsh:1: read-only file system: {ro}/new", "{ro}/new", "rw {ro}"),
    (
        "E: Could not open lock file {ro}/lock-frontend - open (30: Read-only file system)",
        "{ro}/lock-frontend",
        "rw {ro}",
    ),
    (
        "dpkg: error: cannot create the dpkg database directory {ro}/dpkg: Read-only file system",
        "{ro}/dpkg",
        "rw {ro}",
    ),
    (
        "fatal: Unable to create '{ro}/.git/index.lock': Read-only file system",
        "{ro}/.git/index.lock",
        "rw {ro}",
    ),
    (
        "error: cannot lock ref 'HEAD': Unable to create '{ro}/.git/HEAD.lock': Read-only file system",
        "{ro}/.git/HEAD.lock",
        "rw {ro}",
    ),
    (
        "npm error code EROFS\nnpm error syscall open\nnpm error path {ro}/package.json\nnpm error errno -30\nnpm error rofs EROFS: read-only file system, open '{ro}/package.json'",
        "{ro}/package.json",
        "rw {ro}",
    ),
    ("go: updating go.mod: open {ro}/go.mod: read-only file system", "{ro}/go.mod", "rw {ro}"),
    ("Warning: Failed to open the file {ro}/x: Read-only file system", "{ro}/x", "rw {ro}"),
    ("error Error: EROFS: read-only file system, mkdir '{ro}/node_modules'", "{ro}/node_modules", "rw {ro}"),
    ("rm: cannot remove '{ro}/f': Read-only file system", "{ro}/f", "rw {ro}"),
    ("sed: couldn't open temporary file {ro}/sedaCOxFx: Read-only file system", "{ro}/sedaCOxFx", "rw {ro}"),
    ("rsync: [Receiver] mkdir \"{ro}/sub\" failed: Read-only file system (30)", "{ro}/sub", "rw {ro}"),
    ("fatal: cannot mkdir {ro}/repo: Read-only file system", "{ro}/repo", "rw {ro}"),
    ("OSError: [Errno 30] Read-only file system: '{ro}/f'", "{ro}/f", "rw {ro}"),
    ("-e:1:in `write': Read-only file system @ rb_sysopen - {ro}/f (Errno::EROFS)", "{ro}/f", "rw {ro}"),
    (
        "Warning: file_put_contents({ro}/f): Failed to open stream: Read-only file system in Command line code on line 1",
        "{ro}/f",
        "rw {ro}",
    ),
    ("Error: EROFS: read-only file system, open '{ro}/f'", "{ro}/f", "rw {ro}"),
    ("/usr/bin/ld: cannot open output file {ro}/a: Read-only file system", "{ro}/a", "rw {ro}"),
    ("{ro}/x: Read-only file system", "{ro}/x", "rw {ro}"),
    (
        "Exception in thread \"main\" java.nio.file.FileSystemException: {ro}/f: Read-only file system",
        "{ro}/f",
        "rw {ro}",
    ),
    (
        "Exception in thread \"main\" java.io.FileNotFoundException: {ro}/f (Read-only file system)",
        "{ro}/f",
        "rw {ro}",
    ),
    (
        "R.java:2: error: error while writing R: {ro}/R.class: Read-only file system",
        "{ro}/R.class",
        "rw {ro}",
    ),
    ("Error: [Errno 30] Read-only file system: '{ro}/venv'", "{ro}/venv", "rw {ro}"),
    ("error: Read-only file system (os error 30) at path \"{ro}/tXNNJ64\"", "{ro}/tXNNJ64", "rw {ro}"),
    (
        "error: failed to open: {ro}/.crates.toml\n\nCaused by:\n  Read-only file system (os error 30)",
        "{ro}/.crates.toml",
        "rw {ro}",
    ),
    (
        "go build command-line-arguments: copying /tmp/go-build1390643622/b001/exe/a.out: open {ro}/m: read-only file system",
        "{ro}/m",
        "rw {ro}",
    ),
    ("pyenv: cannot rehash: {ro}/shims isn't writable", "{ro}/shims", "rw {ro}"),
];

/// A file is granted without its directory, and a program replaces it.
const ALONE: &[Sample] = &[
    ("sed: cannot rename {dir}/sedEABHOx: Device or resource busy", "{file}", "rw {dir}"),
    ("sed: couldn't open temporary file {dir}/sedX: Read-only file system", "{file}", "rw {dir}"),
    ("OSError: [Errno 16] Device or resource busy: '{dir}/conf.t' -> '{file}'", "{file}", "rw {dir}"),
    ("OSError: [Errno 18] Invalid cross-device link: 'y' -> '{file}'", "{file}", "rw {dir}"),
    (
        "Cannot complete in-place edit of {file}: failed to rename work file '{dir}/XXs12KNA' to '{file}': Device or resource busy, <> line 1.",
        "{file}",
        "rw {dir}",
    ),
    (
        "-e:1:in `rename': Invalid cross-device link @ rb_file_s_rename - (y, {file}) (Errno::EXDEV)",
        "{file}",
        "rw {dir}",
    ),
    (
        "Exception in thread \"main\" java.nio.file.AtomicMoveNotSupportedException: y -> {file}: Invalid cross-device link",
        "{file}",
        "rw {dir}",
    ),
    ("Error: EXDEV: cross-device link not permitted, rename 'y' -> '{file}'", "{file}", "rw {dir}"),
    ("Error: EBUSY: resource busy or locked, rename '{dir}/y' -> '{file}'", "{file}", "rw {dir}"),
    ("panic: rename y {file}: invalid cross-device link", "{file}", "rw {dir}"),
    ("panic: rename {dir}/y {file}: device or resource busy", "{file}", "rw {dir}"),
    ("mv: cannot move 'x' to '{file}': Device or resource busy", "{file}", "rw {dir}"),
];

/// The network.
const NETWORK: &[Sample] = &[
    ("curl: (6) Could not resolve host: example.com", "example.com", "network.allow example.com:PORT"),
    ("wget: unable to resolve host address ‘example.com’", "example.com", "network.allow example.com:PORT"),
    (
        "Exception in thread \"main\" java.net.UnknownHostException: example.com",
        "example.com",
        "network.allow example.com:PORT",
    ),
    (
        "Exception in thread \"main\" java.net.SocketException: Network is unreachable",
        "network",
        "network.allow HOST:PORT",
    ),
    (
        "npm error request to https://registry.npmjs.org/left-pad failed, reason: getaddrinfo EAI_AGAIN registry.npmjs.org",
        "registry.npmjs.org",
        "network.allow registry.npmjs.org:PORT",
    ),
    (
        "m.go:3:2: Get \"https://proxy.golang.org/x\": dial tcp: lookup proxy.golang.org on 127.0.0.1:53: read: connection refused",
        "proxy.golang.org",
        "network.allow proxy.golang.org:PORT",
    ),
    (
        "WARNING: Retrying after connection broken by 'NameResolutionError(\"Failed to resolve 'pypi.org' ([Errno -3] Temporary failure in name resolution)\")'",
        "pypi.org",
        "network.allow pypi.org:PORT",
    ),
];

/// Nothing that the sandbox caused, or nothing that names a path.
const NOTHING: &[&str] = &[
    "called `Result::unwrap()` on an `Err` value: Os { code: 2, kind: NotFound, message: \"No such file or directory\" }",
    "thread 'main' panicked: `DirectoryExists (2`, \"x\"': No such file or directory",
    "sh: 1: foo: not found",
    "fatal: not a git repository (or any of the parent directories): .git",
    "error[E0433]: failed to resolve: use of undeclared crate `x`",
    "Error: Cannot find module 'left-pad'",
    "make: *** No rule to make target 'x'.  Stop.",
    "Read-only file system at -e line 1.",
    "404 Not Found: https://example.com/srv/x",
    "ld: cannot find -lfoo",
    "E: Unable to locate package x: not found",
];

#[test]
fn messages_of_real_programs_are_explained() {
    let (workspace, ro, dir) = (workspace(), workspace(), workspace());
    let file = dir.path().join("conf");
    std::fs::write(&file, "").expect("a file");
    // Without a proxy, which would tell by itself which hosts it refuses.
    let policy = Policy::profile(Profile::RepoWrite, workspace.path())
        .on_unavailable(OnUnavailable::Degrade)
        .mount(Mount::ReadOnly { source: ro.path().to_owned(), target: None })
        .mount(Mount::ReadWrite { source: file.clone(), target: None });
    let judge = judge(policy, workspace.path());
    let fill = |text: &str| {
        [("{hid}", "/srv/kh".as_ref()), ("{ro}", ro.path()), ("{dir}", dir.path()), ("{file}", &*file)]
            .iter()
            .fold(text.to_owned(), |text, (name, path)| text.replace(name, &path.display().to_string()))
    };
    for (message, subject, flag) in [HIDDEN, READ_ONLY, ALONE, NETWORK].into_iter().flatten() {
        let denials = judge.denials(fill(message).as_bytes());
        let found: Vec<&str> = denials.iter().map(|denial| &*denial.subject).collect();
        assert_eq!(found, [fill(subject)], "{message}: {denials:?}");
        for Denial { remedy, reason, .. } in denials.into_iter().map(|it| it.worded(Wording::default())) {
            assert_eq!(remedy, Some(fill(flag).into()), "{message}");
            assert!(reason.contains(&fill(flag)), "{message}: {reason}");
        }
    }
    for message in NOTHING {
        assert_eq!(judge.denials(message.as_bytes()), [], "{message}");
    }
}
