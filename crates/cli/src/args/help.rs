//! What help says beside the flags: examples and exit statuses.

pub(crate) const KENNEL: &str = "\
Examples:
  kennel run make test        run it here: it changes this directory only
  kennel run --explain npm install
                              say what was refused, and which flag allows it
  kennel policy show          what a command may read, write and reach
  kennel probe                what this machine enforces

`kennel run -h` lists the flags that most people need.";

pub(crate) const COMPLETIONS: &str = "\
Examples:
  kennel completions bash > ~/.local/share/bash-completion/completions/kennel
  kennel completions zsh > ~/.zfunc/_kennel
                              put fpath+=~/.zfunc before compinit
  kennel completions fish > ~/.config/fish/completions/kennel.fish";

pub(crate) const MAN: &str = "\
Examples:
  kennel man | man -l -
  kennel man run > /usr/local/share/man/man1/kennel-run.1";

pub(crate) const RUN: &str = "\
Examples:
  kennel run make test        the current directory is writable
  kennel run --profile read-only rg TODO
                              nothing is writable but /tmp
  kennel run --allow @cargo,@github cargo build
                              only these registries can be reached
  kennel run --overlay ./install.sh
                              then kennel diff, kennel commit or kennel discard
  kennel run --learn ~/.config/kennel/t.toml make test
                              then read it, and run with --policy t
  kennel run --ro ~/models --timeout 30s --memory 2G python3 eval.py

Exit status: the command's own; 124 on timeout; if a signal ended the command, Kennel dies of the same signal, which a \
shell shows as 128+N, and with --exit-code it exits with 128+N; 125 if Kennel failed, could not commit \
every change, could not undo a successful command's change of a protected path, or could not pass its output on; 126 \
if the command cannot be executed; 127 if it is not found.";

pub(crate) const PUBLISH: &str = "\
Examples:
  kennel session publish agent-1 8080:3000
                              http://127.0.0.1:8080/ is the server at port 3000 inside
  kennel session publish agent-1 0:3000
                              at a port that is free";

pub(crate) const OP: &str = "\
Examples:
  GH_TOKEN=… kennel op gh.toml issue_create --arg title='It works'
  kennel op gh.toml issue_list --credential GH_TOKEN=/run/secrets/gh

Kennel takes each credential of the manifest from the variable of that name, or from a file (/dev/fd/N for a \
descriptor). Only the environment of the program receives it. The program gets no stdin; Kennel shows its output \
after it ends.

Largest files: a manifest 1 MiB, a credential 128 KiB, a program with a hash 512 MiB. Kennel keeps at most 64 MiB \
each of stdout and stderr (max_stdout_bytes, max_stderr_bytes).

Exit status: the program's own; 128+N if signal N ended it; 124 on timeout; 125 if the manifest does not allow it, \
Kennel failed or could not pass its output on; 126 if it cannot be executed; 127 if it is not found.";

pub(crate) const VERIFY: &str = "\
Examples:
  kennel audit verify exec-2026-01-31.log
  kennel audit verify --head \"$HASH\" exec.log
                              also checks that the line with HASH remains

Prints the number of records in each log, the number of chained ones (--audit-chain), and the hash of the last. \
Checks every log, even after an error.

Exit status: 0 if every log is intact; 1 if one is not; 125 if one cannot be read.";

pub(crate) const CACHE: &str = "\
Examples:
  kennel cache list
  kennel cache clear          everything that is kept
  kennel cache clear ~/.cargo/registry
                              what commands have added; the host's own stays

Exit status: 0 on success; 125 if a sandbox uses a cache, or nothing is kept for a PATH.";

pub(crate) const SHOW: &str = "\
Examples:
  kennel policy show --allow crates.io:443
  kennel policy show --diff repo-write ci-only
  kennel policy show --ro ~/models --as-file > models.json";

pub(crate) const SESSION: &str = "\
Examples:
  kennel session start --name a1
                              the current directory is writable
  kennel exec a1 make test    as often as you like
  kennel session list
  kennel session stop a1

`start` takes the flags of `kennel run`, also --policy, except --overlay-size, --diff, --commit, --discard, --ask, --learn, \
--tty, --exit-code, --json and --entrypoint. With --overlay, kennel diff NAME shows the changes. Stopping a session that does not \
exist is not an error.";

pub(crate) const START: &str = "\
Examples:
  kennel session start --name a1
  kennel session start --name a2 --workspace ~/repo --tmp session

Kennel creates the socket in $XDG_RUNTIME_DIR/kennel or /tmp/kennel-UID, and the small client `kennel-exec` beside \
it: `kennel-exec SOCKET CMD` runs a command in the caller's directory and environment. `kennel exec` needs only the \
name.

Exit status: 0 once the session takes commands; 125 if Kennel cannot prepare it or the name is taken.";

pub(crate) const EXEC: &str = "\
Examples:
  kennel exec a1 make test
  kennel exec a1 --cwd src --setenv RUST_LOG=debug --timeout 30s cargo test
  kennel exec a1 -it bash

The command starts in the session's directory, not in yours, with the session's environment. It has no more access \
than the session.

Exit status: as with `kennel run`; 125 also if there is no session of that name.";

pub(crate) const MCP: &str = "\
Examples, as the command of an MCP server in the settings of an agent:
  kennel mcp --workspace ~/repo
  kennel mcp --workspace ~/repo --allow @pypi,@github --timeout 10m
  kennel mcp --workspace ~/repo --overlay
                              then kennel diff and kennel commit; with --allow-commit, the agent may, too

It takes the flags of `kennel session start`. docs/mcp.md has the tools, and the settings of common agents.

Exit status: 0 at the end of stdin; 128+N after signal N; 125 if Kennel cannot prepare the sandbox.";

pub(crate) const PS: &str = "\
Examples:
  kennel session ps a1
  kennel session ps a1 --all --json

PID is the number inside; --json has that of the host, too. ID is the number of the command of `kennel exec -d` that started
the process, and - for others. Names and arguments are what the processes say they are.

Exit status: 0; 125 if there is no such session.";

pub(crate) const LOGS: &str = "\
Examples:
  kennel session logs a1 1 --tail 20
  kennel session logs a1 1 -f

A note on stderr says how much is missing, if the command wrote more than the session keeps.

Exit status: 0, whatever the command's own; 125 if there is no such session or command.";

pub(crate) const DIFF: &str = "\
Examples:
  kennel run --overlay ./refactor.sh
  kennel diff --stat                what changed, a line each
  kennel diff src                   only below src
  kennel diff a1                    what the commands of session a1 changed

The form is that of git. Names and lines are escaped, so a diff is safe on a terminal. Nothing is shown of binary files \
and of files above 4 MiB. A change that was moved counts as one if the files are similar by half.

Exit status: 0, also if nothing was changed; 125 if the changes cannot be read.";

pub(crate) const COMMIT: &str = "\
Examples:
  kennel commit                     everything
  kennel commit src Cargo.toml      these, and what is below them
  kennel commit a1                  what the commands of session a1 changed
  kennel commit --force src/main.rs replace what others wrote there

A commit overwrites nothing that others changed in the workspace since the command saw it, and nothing that is \
protected; it says what it left out, and that stays.

Exit status: 0; 125 if something could not be committed, or nothing was changed at a PATH.";

pub(crate) const DISCARD: &str = "\
Examples:
  kennel discard                    everything
  kennel discard target             what is there, and below it
  kennel discard a1                 what the commands of session a1 changed; stop it first

Exit status: 0; 125 if something could not be discarded, or nothing was changed at a PATH.";

pub(crate) const INIT: &str = "\
The file allows the hosts that the package managers of the project fetch from. It is trusted at once; \
after you change it, run `kennel trust`. A file that exists stays as it is.

Exit status: 0 on success; 125 if there is a file, or it cannot be written.";

pub(crate) const TRUST: &str = "\
Examples:
  kennel trust --show     print kennel.toml, and what is new since it was trusted
  kennel trust            trust it as it is now, and print what that is

Kennel uses a kennel.toml only while it is exactly what you trusted, because commands can write to a workspace.

Exit status: 0 on success, with --show only if the file is trusted, else 1; 125 if there is no usable file.";

pub(crate) const IMAGE: &str = "\
Examples:
  docker save python:3.12 | kennel image import -
  kennel image import ./debian --name debian:12
                              a directory, as debootstrap makes it
  kennel image pull python:3.12
  kennel image list
  kennel image prune --unused-for 30d

Images are in $XDG_DATA_HOME/kennel/images, or ~/.local/share/kennel/images; KENNEL_IMAGES names another directory. They \
belong to you, and no daemon is needed.

Exit status: 0 on success, 125 on failure.";

pub(crate) const IMAGE_PULL: &str = "\
Examples:
  kennel image pull python:3.12
  kennel image pull ghcr.io/astral-sh/uv:latest
  kennel image pull python@sha256:DIGEST

Of several platforms, that of this machine is taken. A pull that was cut goes on where it ended. In config.toml, \
images.mirrors names registries that are asked in place of others, and images.insecure_registries those that speak plain \
HTTP. Proxies are those of HTTPS_PROXY and NO_PROXY, certificates those of the host or of SSL_CERT_FILE.

Exit status: 0 if the image is there; 125 if it is not.";

pub(crate) const IMAGE_IMPORT: &str = "\
Examples:
  docker save python:3.12 | kennel image import -
  skopeo copy docker://debian:12 oci-archive:debian.tar:debian:12
  kennel image import debian.tar
  kennel image import ./rootfs --name mine:1
  curl -L https://example.com/rootfs.tar.xz | xz -d | kennel image import - --name mine:2

Compression may be gzip or zstd. Of several platforms, that of this machine is taken. Left out, with a note: set-id bits, \
file capabilities, device nodes. Nothing is taken if anything is wrong.

Exit status: 0 if the image is there; 125 if it is not.";

pub(crate) const IMAGE_REMOVE: &str = "\
Examples:
  kennel image remove python:3.12
  kennel image remove sha256:1f2e3d

A name that cannot be removed does not keep the others from it.

Exit status: 0 if all are removed; 125 if one is not.";

pub(crate) const IMAGE_PRUNE: &str = "\
Examples:
  kennel image prune          images without a name, layers that no image has, what a killed import has left
  kennel image prune --unused-for 30d
                              also images that nothing has used for 30 days

Nothing that a running sandbox uses is removed.

Exit status: 0 on success, also if there was nothing to remove; 125 on failure.";

pub(crate) const SNAPSHOT: &str = "\
Examples:
  kennel session start --name setup --image python:3.12 --allow @pypi
  kennel exec setup -- pip install numpy
  kennel session snapshot setup numpy:1
  kennel run --image numpy:1 -- python -c 'import numpy'

Set-user-id bits, capabilities of files, device nodes and sockets are left out. What a command left running may write \
meanwhile. The name is taken from an image that has it.

Exit status: 0 if the image is stored; 125 on failure, such as a command that runs.";

pub(crate) const IMAGE_EXPORT: &str = "\
Examples:
  kennel image export python:3.12 python.tar
  kennel image export python:3.12 - | skopeo copy oci-archive:/dev/stdin docker-daemon:python:3.12
  kennel image export mine:1 - | gzip > mine.tar.gz

The archive holds the layers as they are in the store, uncompressed. So its digest is another one than that of the archive \
which was imported.

Exit status: 0 if the archive is complete; 125 if it is not.";
