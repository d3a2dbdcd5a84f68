//! The contract of manifests and envelopes, line by line: what is accepted and what it becomes, what is
//! refused and the exact reason. `docs/contracts.md` names these tables.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use super::*;
use crate::report::failure::Details;

/// What a manifest says, and what Kennel answers.
type ManifestRow = (&'static str, Result<&'static str, &'static str>);

/// `[capabilities.spawn]` after its programs, an envelope, and what Kennel answers.
type EnvelopeRow = (&'static str, &'static str, Result<&'static str, &'static str>);

/// Manifests, with `[capabilities.spawn]` and the program `/bin/sh` written as `SPAWN`.
const MANIFESTS: &[ManifestRow] = &[
    // Sections. What is absent is denied.
    ("", Err("manifest:1:1: the manifest is empty; list at least one program")),
    ("[capabilities]", Ok("")),
    ("[capabilities.spawn]", Ok("")),
    ("SPAWN", Ok("programs 1")),
    ("[capabilities]\nspawn = 1", Err("manifest:2:9: invalid type: integer `1`, expected a table")),
    ("SPAWN\ncwd = '/a'\ncwd = '/b'", Err("manifest:4:1: duplicate key")),
    // Hosts: exact host and port, in lower case.
    (
        "[capabilities.network]\nhosts = ['API.GitHub.com:443', '[::1]:80']",
        Ok("hosts api.github.com:443 [::1]:80"),
    ),
    ("[capabilities.network]\nhosts = []", Ok("")),
    (
        "[capabilities.network]\nhosts = ['*.github.com:443']",
        Err("manifest:2:9: `*.github.com:443`: a host is exact, such as api.github.com:443"),
    ),
    (
        "[capabilities.network]\nhosts = ['github.com:*']",
        Err("manifest:2:9: `github.com:*`: a host is exact, such as api.github.com:443"),
    ),
    (
        "[capabilities.network]\nhosts = ['10.0.0.0/8:443']",
        Err("manifest:2:9: `10.0.0.0/8:443`: a host is exact, such as api.github.com:443"),
    ),
    (
        "[capabilities.network]\nhosts = ['github.com']",
        Err("manifest:2:9: `github.com`: the port is missing; write `github.com:443`"),
    ),
    (
        "[capabilities.network]\nhosts = ['github.com:0']",
        Err("manifest:2:9: `github.com:0`: port `0` is neither * nor a number from 1 to 65535"),
    ),
    (
        "[capabilities.network]\nhosts = ['github.com:65536']",
        Err("manifest:2:9: `github.com:65536`: port `65536` is neither * nor a number from 1 to 65535"),
    ),
    (
        "[capabilities.network]\nhosts = ['https://github.com:443']",
        Err("manifest:2:9: `https://github.com:443`: a host is exact, such as api.github.com:443"),
    ),
    ("[capabilities.network]\nhosts = [':443']", Err("manifest:2:9: `:443`: the host is missing")),
    (
        "[capabilities.network]\nhosts = 'github.com:443'",
        Err("manifest:2:9: invalid type: string \"github.com:443\", expected a list"),
    ),
    (
        "[capabilities.network]\nhosts = [443]",
        Err("manifest:2:10: invalid type: integer `443`, expected a string"),
    ),
    // Programs: absolute or below ~/, with a hash or without.
    (
        "[capabilities.spawn]\nprograms = [{ path = '~/bin/tool' }, { path = '/usr/bin/gh' }]",
        Ok("programs 2"),
    ),
    (
        "[capabilities.spawn]\nprograms = [{ path = 'gh' }]",
        Err("capabilities.spawn.programs `gh`: must be absolute, or begin with ~/"),
    ),
    (
        "[capabilities.spawn]\nprograms = [{ path = './gh' }]",
        Err("capabilities.spawn.programs `./gh`: must be absolute, or begin with ~/"),
    ),
    (
        "[capabilities.spawn]\nprograms = [{ path = '~me/gh' }]",
        Err("capabilities.spawn.programs `~me/gh`: must be absolute, or begin with ~/"),
    ),
    (
        "[capabilities.spawn]\nprograms = [{ path = '' }]",
        Err("capabilities.spawn.programs: must be absolute, or begin with ~/"),
    ),
    (
        "[capabilities.spawn]\nprograms = [{ path = \"/a\\u0000\" }]",
        Err("capabilities.spawn.programs `/a\\u{0}`: must be absolute, or begin with ~/"),
    ),
    ("[capabilities.spawn]\nprograms = [{}]", Err("manifest:2:13: missing field `path`")),
    (
        "[capabilities.spawn]\nprograms = ['/usr/bin/gh']",
        Err("manifest:2:13: invalid type: string \"/usr/bin/gh\", expected a table"),
    ),
    (
        "[capabilities.spawn]\nprograms = '/usr/bin/gh'",
        Err("manifest:2:12: invalid type: string \"/usr/bin/gh\", expected a list"),
    ),
    (
        "[capabilities.spawn]\nprograms = [{ path = '/a', hash = \
         'sha256:BA7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad' }]",
        Ok("programs 1"),
    ),
    (
        "[capabilities.spawn]\nprograms = [{ path = '/a', hash = 'sha256:ba78' }]",
        Err(
            "manifest:2:35: a hash is written `sha256:` and 64 hexadecimal digits, as `sha256sum` prints them",
        ),
    ),
    (
        "[capabilities.spawn]\nprograms = [{ path = '/a', hash = 'md5:ba7816bf8f01cfea414140de5dae2223' }]",
        Err(
            "manifest:2:35: a hash is written `sha256:` and 64 hexadecimal digits, as `sha256sum` prints them",
        ),
    ),
    (
        "[capabilities.spawn]\nprograms = [{ path = '/a', hash = 1 }]",
        Err("manifest:2:35: invalid type: integer `1`, expected a string"),
    ),
    // Variables and credentials by name.
    ("SPAWN\nenv_passthrough = ['GH_HOST']\ncredential_env_keys = ['GH_TOKEN']", Ok("programs 1")),
    (
        "SPAWN\nenv_passthrough = ['A=B']",
        Err("manifest:3:19: `A=B` is not a name of an environment variable"),
    ),
    ("SPAWN\nenv_passthrough = ['']", Err("manifest:3:19: `` is not a name of an environment variable")),
    ("SPAWN\nenv_passthrough = 'A'", Err("manifest:3:19: invalid type: string \"A\", expected a list")),
    (
        "SPAWN\ncredential_env_keys = [\"A\\u0000\"]",
        Err("manifest:3:23: `A\\u{0}` is not a name of an environment variable"),
    ),
    ("SPAWN\ncredential_env_keys = [1]", Err("manifest:3:24: invalid type: integer `1`, expected a string")),
    // Directories: absolute or below ~/.
    ("SPAWN\nfs_read = ['~', '/srv']\nfs_write = ['~/out']\ncwd = '~/work'", Ok("programs 1")),
    (
        "SPAWN\nfs_read = ['work']",
        Err("capabilities.spawn.fs_read `work`: must be absolute, or begin with ~/"),
    ),
    (
        "SPAWN\nfs_write = ['../work']",
        Err("capabilities.spawn.fs_write `../work`: must be absolute, or begin with ~/"),
    ),
    ("SPAWN\ncwd = ''", Err("capabilities.spawn.cwd: must be absolute, or begin with ~/")),
    ("SPAWN\ncwd = 1", Err("manifest:3:7: invalid type: integer `1`, expected a string")),
    // Operations: patterns of tokens, placeholders and groups.
    ("SPAWN\noperations.x = 'sh -c {text} [--body {body}] --a={a}'", Ok("programs 1 operations x")),
    ("SPAWN\noperations.x = 'sh [-r {owner}/{repo} {branch}]'", Ok("programs 1 operations x")),
    ("SPAWN\noperations.x = { argv = 'sh {a}', allow_dash = ['a'] }", Ok("programs 1 operations x")),
    ("SPAWN\noperations.x = '/bin/sh {a}'", Ok("programs 1 operations x")),
    (
        "SPAWN\noperations.x = ''",
        Err("manifest:3:16: ``: an operation begins with its program, such as `gh issue create`"),
    ),
    (
        "SPAWN\noperations.x = '{program} x'",
        Err("manifest:3:16: `{program}`: an operation begins with its program, such as `gh issue create`"),
    ),
    (
        "SPAWN\noperations.x = 'gh x'",
        Err(
            "capabilities.spawn.operations.x `gh`: is not one of the programs; list it there, or correct the name",
        ),
    ),
    (
        "SPAWN\noperations.x = 'sh {a'",
        Err("manifest:3:16: `{a`: a brace that is not part of a placeholder such as {title}"),
    ),
    (
        "SPAWN\noperations.x = 'sh a}'",
        Err("manifest:3:16: `a}`: a brace that is not part of a placeholder such as {title}"),
    ),
    (
        "SPAWN\noperations.x = 'sh {}'",
        Err("manifest:3:16: `{}`: a brace that is not part of a placeholder such as {title}"),
    ),
    (
        "SPAWN\noperations.x = 'sh {a b}'",
        Err("manifest:3:16: `{a`: a brace that is not part of a placeholder such as {title}"),
    ),
    ("SPAWN\noperations.x = 'sh {a} {a}'", Err("manifest:3:16: `{a}` is used twice")),
    (
        "SPAWN\noperations.x = 'sh {a}{b}'",
        Err("manifest:3:16: `{a}{b}`: two placeholders need literal text between them"),
    ),
    ("SPAWN\noperations.x = 'sh [{a}'", Err("manifest:3:16: `sh [{a}`: the group is not closed")),
    (
        "SPAWN\noperations.x = 'sh {a}]'",
        Err(
            "manifest:3:16: `{a}]`: a bracket opens a group before its first token and closes it after its last",
        ),
    ),
    (
        "SPAWN\noperations.x = 'sh [{a} [{b}]]'",
        Err(
            "manifest:3:16: `[{b}]]`: a bracket opens a group before its first token and closes it after its last",
        ),
    ),
    (
        "SPAWN\noperations.x = 'sh [--verbose]'",
        Err(
            "manifest:3:16: `sh [--verbose]`: a group needs at least one placeholder, whose value decides whether the group is used",
        ),
    ),
    (
        "SPAWN\noperations.x = { argv = 'sh {a}', allow_dash = ['b'] }",
        Err("manifest:3:16: allow_dash names `b`, which is not a placeholder of the pattern"),
    ),
    (
        "SPAWN\noperations.x = { argv = 'sh {a}', allow_dash = 'a' }",
        Err("manifest:3:48: invalid type: string \"a\", expected a list"),
    ),
    ("SPAWN\noperations.x = { allow_dash = [] }", Err("manifest:3:16: missing field `argv`")),
    (
        "SPAWN\noperations.x = 1",
        Err(
            "manifest:3:16: invalid type: integer `1`, expected a pattern such as \"gh issue list [--state {state}]\", or a table with `argv`",
        ),
    ),
    // Limits.
    ("SPAWN\nlimits = { max_stdout_bytes = 0, max_stderr_bytes = 9999999999 }", Ok("programs 1")),
    (
        "SPAWN\nlimits.max_memory_bytes = 0",
        Err("capabilities.spawn.limits.max_memory_bytes `0`: must be at least 1"),
    ),
    (
        "SPAWN\nlimits.max_wall_seconds = 0",
        Err("capabilities.spawn.limits.max_wall_seconds `0`: must be at least 1"),
    ),
    (
        "SPAWN\nlimits.max_stdout_bytes = -1",
        Err("manifest:3:27: invalid value: integer `-1`, expected a whole number, 0 or more"),
    ),
    (
        "SPAWN\nlimits.max_stderr_bytes = '1 MiB'",
        Err("manifest:3:27: invalid type: string \"1 MiB\", expected a whole number, 0 or more"),
    ),
    // Of connectors: name, credential, limits.
    ("[connector]\nname = 'mail'\nversion = '1'\npublisher = 'me'\n[capabilities]", Ok("")),
    ("[connector]\nname = 1", Err("manifest:2:8: invalid type: integer `1`, expected a string")),
    ("[capabilities.credential]\nkind = 'oauth2'", Ok("")),
    ("[capabilities.credential]\nkind = 'api_key'\nheader = 'X-Key'\nformat = 'key {key}'", Ok("")),
    (
        "[capabilities.credential]\nkind = 'basic'",
        Err("manifest:2:8: unknown variant `basic`, expected `oauth2` or `api_key`"),
    ),
    (
        "[capabilities.credential]\nheader = 'X-Key'",
        Err("manifest:1:1: missing field `kind`: oauth2 or api_key"),
    ),
    (
        "[capabilities.credential]\nkind = 'oauth2'\nheader = 'X-Key'",
        Err("manifest:1:1: `header` and `format` are for the kind `api_key` only"),
    ),
    (
        "[capabilities.credential]\nkind = 'oauth2'\nformat = '{key}'",
        Err("manifest:1:1: `header` and `format` are for the kind `api_key` only"),
    ),
    (
        "[capabilities.credential]\nkind = 'api_key'\nformat = 'Bearer'",
        Err("manifest:1:1: `Bearer`: a format is plain text with `{key}` in it once"),
    ),
    (
        "[capabilities.credential]\nkind = 'api_key'\nheader = 'a b'",
        Err("manifest:1:1: `a b` is not a name of a header"),
    ),
    ("[capabilities.limits]\nmemory_bytes = 1\nwall_seconds = 1", Ok("")),
    (
        "[capabilities.limits]\nmemory_bytes = 0",
        Err("capabilities.limits.memory_bytes `0`: must be at least 1"),
    ),
    (
        "[capabilities.limits]\nwall_seconds = 1.5",
        Err("manifest:2:16: invalid type: number `1.5`, expected a whole number, 0 or more"),
    ),
    // Keys of other tools: tables where they may be, and any other key with a note.
    (
        "[capabilities]\n[tool.x]\ny = 1\n[capabilities.credential]\nkind = 'oauth2'\n[capabilities.credential.oauth2]",
        Ok(""),
    ),
    ("SPAWN\nforwarder = 'ssh'", Ok("programs 1 noted 3:1")),
    ("x = 1\n[capabilities]\ny = 1\n[capabilities.network]\nz = 1", Ok("noted 1:1 3:1 5:1")),
    ("[capabilities.spawn]\nprograms = [{ path = '/a', sha = 'x' }]", Ok("programs 1 noted 2:28")),
];

/// What an accepted manifest became.
fn read(manifest: &Manifest) -> String {
    let places = manifest.notes().iter().map(|note| note.subject.trim_start_matches("manifest:"));
    let mut places: Vec<_> = places.collect();
    places.sort_unstable();
    let programs = manifest.spawn.programs.len();
    [
        ("programs", if programs == 0 { String::new() } else { programs.to_string() }),
        ("hosts", manifest.hosts.join(" ")),
        ("operations", manifest.operations().collect::<Vec<_>>().join(" ")),
        ("noted", places.join(" ")),
    ]
    .into_iter()
    .filter(|(_, text)| !text.is_empty())
    .map(|(what, text)| format!("{what} {text}"))
    .collect::<Vec<_>>()
    .join(" ")
}

#[test]
fn manifests_are_read_as_the_contract_says() {
    let mut wrong = Vec::new();
    for (text, answer) in MANIFESTS {
        let full = text.replace("SPAWN", "[capabilities.spawn]\nprograms = [{ path = '/bin/sh' }]");
        let found =
            Manifest::from_toml(&full).map(|manifest| read(&manifest)).map_err(|error| error.to_string());
        if found != answer.map(str::to_owned).map_err(str::to_owned) {
            wrong.push(format!("{text:?}\n    is {found:?}\n    not {answer:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const VIEW: &str = "operations = { view = 'tool view {n} [--web {w}]', dash = { argv = 'tool d {n}', allow_dash = \
                    ['n'] }, pair = 'tool p [-r {o}/{r} {b}] {last}', in_word = 'tool w --t={t} {k}.git', back = \
                    'tool b [{x}] [{y} y] z {z}', other = 'other' }";
/// What stands for `OPERATIONS` in answers: those of `tool`.
const OPERATIONS: &str = "[tool b [{x}] [{y} y] z {z}, tool d {n}, tool w --t={t} {k}.git, tool p [-r {o}/{r} {b}] {last}, \
                          tool view {n} [--web {w}]]";
const DIRECTORIES: &str = "fs_read = ['~/work', '~/way_in']\nfs_write = ['~/work/out']";
const RULE: &str = "fs_read = ['~/work']\nfs_write = ['~/work/out']\ncwd = '~/work/in'";
const NAMES: &str = "env_passthrough = ['A', 'B', 'T']\ncredential_env_keys = ['T', 'U']";

/// Envelopes. The manifest has the programs `~/bin/tool` and `~/bin/other`, and the host
/// `api.github.com:443`.
const ENVELOPES: &[EnvelopeRow] = &[
    // Shape: JSON with program and argv.
    ("", "", Err("action: envelope:1:1: the envelope is empty")),
    ("", "[]", Err("action: envelope:1:1: expected an object, not an array")),
    ("", "{}", Err("action: envelope:1:2: missing field `program`")),
    (
        "",
        r#"{"program": "tool", "argv": "tool"}"#,
        Err("action: envelope:1:34: invalid type: string, expected a list"),
    ),
    (
        "",
        r#"{"program": "tool", "argv": [1]}"#,
        Err("action: envelope:1:30: invalid type: integer, expected a string"),
    ),
    (
        "",
        r#"{"program": "tool", "argv": ["tool"], "env": {"A": 1}}"#,
        Err("action: envelope:1:52: invalid type: integer, expected a string"),
    ),
    (
        "",
        r#"{"program": "tool", "argv": ["tool"], "env": {"A": "1", "A": "2"}}"#,
        Err("action: envelope:1:59: duplicate key `A`"),
    ),
    (
        "",
        r#"{"program": "tool", "argv": ["tool"], "stdin": ["x"]}"#,
        Err("action: envelope:1:47: invalid type: list, expected a string"),
    ),
    (
        "",
        r#"{"program": "tool", "program": "other", "argv": ["tool"]}"#,
        Err("action: envelope:1:29: duplicate field `program`"),
    ),
    ("", r#"{"program": "tool", "argv": ["tool"], "forwarder": true}"#, Ok("~/bin/tool []")),
    (
        "",
        r#"{"program": "tool", "argv": ["tool"], "env": null, "cwd": null, "stdin": null, "credential_env_keys": null}"#,
        Ok("~/bin/tool []"),
    ),
    ("", r#"{"program": "tool", "argv": ["tool"], "cwd": "", "stdin": ""}"#, Ok("~/bin/tool [] stdin 0")),
    ("", r#"{"program": "tool", "argv": ["tool"], "stdin": "abc"}"#, Ok("~/bin/tool [] stdin 3")),
    // Program: by name, or by where a path leads.
    ("", r#"{"program": "~/bin/tool", "argv": ["x"]}"#, Ok("~/bin/tool []")),
    ("", r#"{"program": "~/bin/../bin/./link", "argv": ["x"]}"#, Ok("~/bin/tool []")),
    (
        "",
        r#"{"program": "sh", "argv": ["sh"]}"#,
        Err("manifest: program sh: is not in the manifest [~/bin/tool, ~/bin/other]"),
    ),
    (
        "",
        r#"{"program": "/bin/sh", "argv": ["sh"]}"#,
        Err("manifest: program /bin/sh: is not in the manifest [~/bin/tool, ~/bin/other]"),
    ),
    (
        "",
        r#"{"program": "~/bin/unlisted", "argv": ["x"]}"#,
        Err("manifest: program ~/bin/unlisted: is not in the manifest [~/bin/tool, ~/bin/other]"),
    ),
    (
        "",
        r#"{"program": "./tool", "argv": ["x"]}"#,
        Err("manifest: program ./tool: is not in the manifest [~/bin/tool, ~/bin/other]"),
    ),
    (
        "",
        r#"{"program": "", "argv": ["x"]}"#,
        Err("manifest: program : is not in the manifest [~/bin/tool, ~/bin/other]"),
    ),
    // argv begins with argv[0], and the program runs with what follows.
    ("", r#"{"program": "tool", "argv": ["tool", "a b", "-x", ""]}"#, Ok(r#"~/bin/tool ["a b", "-x", ""]"#)),
    ("", r#"{"program": "tool", "argv": ["anything", "a"]}"#, Ok(r#"~/bin/tool ["a"]"#)),
    ("", r#"{"program": "tool", "argv": []}"#, Err("action: argument list of 0 arguments: argv is required")),
    (
        "",
        r#"{"program": "tool", "argv": null}"#,
        Err("action: argument list of 0 arguments: argv is required"),
    ),
    ("", r#"{"program": "tool"}"#, Err("action: argument list of 0 arguments: argv is required")),
    (
        "",
        r#"{"program": "tool", "argv": ["tool", "a\u0000"]}"#,
        Err("manifest: argument list of 1 arguments: contains a NUL byte"),
    ),
    // Patterns, matched whole from the program on.
    (
        VIEW,
        r#"{"program": "tool", "argv": ["tool", "view", "7"]}"#,
        Ok(r#"~/bin/tool ["view", "7"] as view"#),
    ),
    (
        VIEW,
        r#"{"program": "~/bin/link", "argv": ["tool", "view", "7"]}"#,
        Ok(r#"~/bin/tool ["view", "7"] as view"#),
    ),
    (
        VIEW,
        r#"{"program": "tool", "argv": ["tool", "view", "7; rm *", "--web", ""]}"#,
        Ok(r#"~/bin/tool ["view", "7; rm *", "--web", ""] as view"#),
    ),
    (
        VIEW,
        r#"{"program": "tool", "argv": []}"#,
        Err("action: argument list of 0 arguments: argv is required"),
    ),
    (
        VIEW,
        r#"{"program": "tool", "argv": ["view", "7"]}"#,
        Err("manifest: argument list of 1 arguments: is not one of the manifest's operations OPERATIONS"),
    ),
    (
        VIEW,
        r#"{"program": "tool", "argv": ["other", "view", "7"]}"#,
        Err("manifest: argument list of 2 arguments: is not one of the manifest's operations OPERATIONS"),
    ),
    (
        VIEW,
        r#"{"program": "tool", "argv": ["~/bin/tool", "view", "7"]}"#,
        Err("manifest: argument list of 2 arguments: is not one of the manifest's operations OPERATIONS"),
    ),
    (
        VIEW,
        r#"{"program": "tool", "argv": ["tool"]}"#,
        Err("manifest: argument list of 0 arguments: is not one of the manifest's operations OPERATIONS"),
    ),
    (
        VIEW,
        r#"{"program": "tool", "argv": ["tool", "view"]}"#,
        Err("manifest: argument list of 1 arguments: is not one of the manifest's operations OPERATIONS"),
    ),
    (
        VIEW,
        r#"{"program": "tool", "argv": ["tool", "view", "7", "--web"]}"#,
        Err("manifest: argument list of 3 arguments: is not one of the manifest's operations OPERATIONS"),
    ),
    (
        VIEW,
        r#"{"program": "tool", "argv": ["tool", "view", "7", "more"]}"#,
        Err("manifest: argument list of 3 arguments: is not one of the manifest's operations OPERATIONS"),
    ),
    (
        VIEW,
        r#"{"program": "tool", "argv": ["tool", "VIEW", "7"]}"#,
        Err("manifest: argument list of 2 arguments: is not one of the manifest's operations OPERATIONS"),
    ),
    (VIEW, r#"{"program": "other", "argv": ["other"]}"#, Ok("~/bin/other [] as other")),
    (
        VIEW,
        r#"{"program": "other", "argv": ["tool", "view", "7"]}"#,
        Err("manifest: argument list of 2 arguments: is not one of the manifest's operations [other]"),
    ),
    // Groups are there whole or not at all.
    (VIEW, r#"{"program": "tool", "argv": ["tool", "p", "l"]}"#, Ok(r#"~/bin/tool ["p", "l"] as pair"#)),
    (
        VIEW,
        r#"{"program": "tool", "argv": ["tool", "p", "-r", "o/r", "b", "l"]}"#,
        Ok(r#"~/bin/tool ["p", "-r", "o/r", "b", "l"] as pair"#),
    ),
    (
        VIEW,
        r#"{"program": "tool", "argv": ["tool", "p", "-r", "o/r", "l"]}"#,
        Err("manifest: argument list of 4 arguments: is not one of the manifest's operations OPERATIONS"),
    ),
    (
        VIEW,
        r#"{"program": "tool", "argv": ["tool", "p", "-r", "o", "b", "l"]}"#,
        Err("manifest: argument list of 5 arguments: is not one of the manifest's operations OPERATIONS"),
    ),
    // Placeholders within a word, and matching that comes back.
    (
        VIEW,
        r#"{"program": "tool", "argv": ["tool", "w", "--t=-x", "a.git.git"]}"#,
        Ok(r#"~/bin/tool ["w", "--t=-x", "a.git.git"] as in_word"#),
    ),
    (
        VIEW,
        r#"{"program": "tool", "argv": ["tool", "w", "--t", "a.git"]}"#,
        Err("manifest: argument list of 3 arguments: is not one of the manifest's operations OPERATIONS"),
    ),
    (
        VIEW,
        r#"{"program": "tool", "argv": ["tool", "b", "1", "y", "z", "2"]}"#,
        Ok(r#"~/bin/tool ["b", "1", "y", "z", "2"] as back"#),
    ),
    (
        VIEW,
        r#"{"program": "tool", "argv": ["tool", "b", "1", "2", "z", "3"]}"#,
        Err("manifest: argument list of 5 arguments: is not one of the manifest's operations OPERATIONS"),
    ),
    // A value is no option, unless the operation says so.
    (
        VIEW,
        r#"{"program": "tool", "argv": ["tool", "view", "--web"]}"#,
        Err("manifest: argument list of 2 arguments: is not one of the manifest's operations OPERATIONS"),
    ),
    (
        VIEW,
        r#"{"program": "tool", "argv": ["tool", "view", "-"]}"#,
        Err("manifest: argument list of 2 arguments: is not one of the manifest's operations OPERATIONS"),
    ),
    (
        VIEW,
        r#"{"program": "tool", "argv": ["tool", "d", "--any"]}"#,
        Ok(r#"~/bin/tool ["d", "--any"] as dash"#),
    ),
    (
        VIEW,
        r#"{"program": "tool", "argv": ["tool", "w", "--t=a", "-x.git"]}"#,
        Err("manifest: argument list of 3 arguments: is not one of the manifest's operations OPERATIONS"),
    ),
    // Directories, compared by whole components where they lead.
    (
        DIRECTORIES,
        r#"{"program": "tool", "argv": ["tool"]}"#,
        Ok("~/bin/tool [] reads ~/work ~/work/in writes ~/work/out"),
    ),
    (
        DIRECTORIES,
        r#"{"program": "tool", "argv": ["tool"], "cwd": "~/work/in/../out"}"#,
        Ok("~/bin/tool [] in ~/work/out reads ~/work ~/work/in writes ~/work/out"),
    ),
    (
        DIRECTORIES,
        r#"{"program": "tool", "argv": ["tool"], "cwd": "~/way_in"}"#,
        Ok("~/bin/tool [] in ~/work/in reads ~/work ~/work/in writes ~/work/out"),
    ),
    (
        DIRECTORIES,
        r#"{"program": "tool", "argv": ["tool"], "cwd": "~/workshop"}"#,
        Err(
            "manifest: working directory ~/workshop: is a directory in neither fs_read nor fs_write [~/work, ~/work/in, ~/work/out]",
        ),
    ),
    (
        DIRECTORIES,
        r#"{"program": "tool", "argv": ["tool"], "cwd": "~/work/leads"}"#,
        Err(
            "manifest: working directory ~/work/leads: is a directory in neither fs_read nor fs_write [~/work, ~/work/in, ~/work/out]",
        ),
    ),
    (
        DIRECTORIES,
        r#"{"program": "tool", "argv": ["tool"], "cwd": "~"}"#,
        Err(
            "manifest: working directory ~: is a directory in neither fs_read nor fs_write [~/work, ~/work/in, ~/work/out]",
        ),
    ),
    (
        DIRECTORIES,
        r#"{"program": "tool", "argv": ["tool"], "cwd": "/tmp"}"#,
        Err(
            "manifest: working directory /tmp: is a directory in neither fs_read nor fs_write [~/work, ~/work/in, ~/work/out]",
        ),
    ),
    (
        DIRECTORIES,
        r#"{"program": "tool", "argv": ["tool"], "cwd": "work"}"#,
        Err(
            "manifest: working directory work: is a directory in neither fs_read nor fs_write [~/work, ~/work/in, ~/work/out]",
        ),
    ),
    (
        DIRECTORIES,
        r#"{"program": "tool", "argv": ["tool"], "cwd": "~/work/absent"}"#,
        Err(
            "manifest: working directory ~/work/absent: is a directory in neither fs_read nor fs_write [~/work, ~/work/in, ~/work/out]",
        ),
    ),
    (
        "",
        r#"{"program": "tool", "argv": ["tool"], "cwd": "~/work"}"#,
        Err("manifest: working directory ~/work: is a directory in neither fs_read nor fs_write"),
    ),
    (
        "cwd = '~/work'",
        r#"{"program": "tool", "argv": ["tool"]}"#,
        Err("manifest: working directory ~/work: is a directory in neither fs_read nor fs_write"),
    ),
    (
        "fs_read = ['~/work']\ncwd = '~/absent'",
        r#"{"program": "tool", "argv": ["tool"]}"#,
        Err("manifest: cwd ~/absent: No such file or directory"),
    ),
    (
        "fs_read = ['~/absent']",
        r#"{"program": "tool", "argv": ["tool"]}"#,
        Err("manifest: fs_read ~/absent: No such file or directory"),
    ),
    (
        "fs_write = ['~/work', '~/work/leads']",
        r#"{"program": "tool", "argv": ["tool"]}"#,
        Err(
            "manifest: fs_write ~/work/leads: is reached through fs_write, so commands could make it lead elsewhere",
        ),
    ),
    (
        "fs_write = ['~/bin']",
        r#"{"program": "tool", "argv": ["tool"]}"#,
        Err("manifest: program ~/bin/tool: is in fs_write, where commands could replace it; give its hash"),
    ),
    // The cwd of the manifest is a rule.
    (
        RULE,
        r#"{"program": "tool", "argv": ["tool"]}"#,
        Ok("~/bin/tool [] in ~/work/in reads ~/work writes ~/work/out"),
    ),
    (
        RULE,
        r#"{"program": "tool", "argv": ["tool"], "cwd": "~/way_in/."}"#,
        Ok("~/bin/tool [] in ~/work/in reads ~/work writes ~/work/out"),
    ),
    (
        RULE,
        r#"{"program": "tool", "argv": ["tool"], "cwd": "~/work"}"#,
        Err("manifest: working directory ~/work: is not the cwd of the manifest [~/work/in]"),
    ),
    (
        RULE,
        r#"{"program": "tool", "argv": ["tool"], "cwd": "~/work/out"}"#,
        Err("manifest: working directory ~/work/out: is not the cwd of the manifest [~/work/in]"),
    ),
    (
        RULE,
        r#"{"program": "tool", "argv": ["tool"], "cwd": "~/work/absent"}"#,
        Err("manifest: working directory ~/work/absent: is not the cwd of the manifest [~/work/in]"),
    ),
    // Variables: listed, and no credentials.
    (NAMES, r#"{"program": "tool", "argv": ["tool"]}"#, Ok("~/bin/tool [] with A=of A B=of B")),
    (
        NAMES,
        r#"{"program": "tool", "argv": ["tool"], "env": {"A": "", "B": "x"}}"#,
        Ok("~/bin/tool [] with A= B=x"),
    ),
    (
        NAMES,
        r#"{"program": "tool", "argv": ["tool"], "env": {"LD_PRELOAD": "x"}}"#,
        Err("manifest: environment variable LD_PRELOAD: is not in env_passthrough [A, B, T]"),
    ),
    (
        NAMES,
        r#"{"program": "tool", "argv": ["tool"], "env": {"a": "x"}}"#,
        Err("manifest: environment variable a: is not in env_passthrough [A, B, T]"),
    ),
    (
        NAMES,
        r#"{"program": "tool", "argv": ["tool"], "env": {"": "x"}}"#,
        Err("manifest: environment variable : is not in env_passthrough [A, B, T]"),
    ),
    (
        NAMES,
        r#"{"program": "tool", "argv": ["tool"], "env": {"U": "x"}}"#,
        Err(
            "manifest: environment variable U: is a credential, whose value only the host resolves [A, B, T]",
        ),
    ),
    (
        NAMES,
        r#"{"program": "tool", "argv": ["tool"], "env": {"A": "x\u0000"}}"#,
        Err("manifest: environment variable A: contains a NUL byte [A, B, T]"),
    ),
    (
        "",
        r#"{"program": "tool", "argv": ["tool"], "env": {"PATH": "/x"}}"#,
        Err("manifest: environment variable PATH: is not in env_passthrough"),
    ),
    // Credentials: of either list, each once, and never with a value.
    (
        NAMES,
        r#"{"program": "tool", "argv": ["tool"], "credential_env_keys": ["U"]}"#,
        Ok("~/bin/tool [] with A=of A B=of B asks U"),
    ),
    (
        NAMES,
        r#"{"program": "tool", "argv": ["tool"], "credential_env_keys": ["U", "B", "T"]}"#,
        Ok("~/bin/tool [] with A=of A asks U B T"),
    ),
    (
        NAMES,
        r#"{"program": "tool", "argv": ["tool"], "credential_env_keys": ["GH_TOKEN"]}"#,
        Err("manifest: credential GH_TOKEN: is not in credential_env_keys [T, U, A, B, T]"),
    ),
    (
        NAMES,
        r#"{"program": "tool", "argv": ["tool"], "credential_env_keys": ["U", "U"]}"#,
        Err("manifest: credential U: is listed twice [T, U, A, B, T]"),
    ),
    (
        NAMES,
        r#"{"program": "tool", "argv": ["tool"], "env": {"A": "x"}, "credential_env_keys": ["A"]}"#,
        Err(
            "manifest: environment variable A: is a credential, whose value only the host resolves [A, B, T]",
        ),
    ),
    (
        "",
        r#"{"program": "tool", "argv": ["tool"], "credential_env_keys": ["U"]}"#,
        Err("manifest: credential U: is not in credential_env_keys"),
    ),
    // Limits: those of the manifest, else the defaults, at most the maximum.
    (
        "limits.max_stdout_bytes = 10",
        r#"{"program": "tool", "argv": ["tool"]}"#,
        Ok("~/bin/tool [] keeps 10 262144"),
    ),
    (
        "limits = { max_stdout_bytes = 0, max_stderr_bytes = 99999999999 }",
        r#"{"program": "tool", "argv": ["tool"]}"#,
        Ok("~/bin/tool [] keeps 1048576 67108864"),
    ),
    (
        "limits.max_memory_bytes = 99999999999",
        r#"{"program": "tool", "argv": ["tool"]}"#,
        Ok("~/bin/tool [] memory 1024M"),
    ),
    (
        "limits.max_wall_seconds = 9999",
        r#"{"program": "tool", "argv": ["tool"]}"#,
        Ok("~/bin/tool [] wall 300s"),
    ),
];

/// A home with the files that the envelopes name.
fn home() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let home = fs::canonicalize(dir.path()).expect("a path");
    for name in ["bin", "work/in", "work/out", "workshop", "secret"] {
        fs::create_dir_all(home.join(name)).expect("a directory");
    }
    for name in ["bin/tool", "bin/other", "bin/unlisted"] {
        fs::write(home.join(name), "").expect("a file");
    }
    symlink("tool", home.join("bin/link")).expect("a link");
    symlink("../secret", home.join("work/leads")).expect("a link");
    symlink("work/in", home.join("way_in")).expect("a link");
    (dir, home)
}

/// What a checked spawn is. Defaults are left out.
fn granted(spawn: &CheckedSpawn) -> String {
    let paths =
        |paths: &[PathBuf]| paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ");
    let variables =
        spawn.environment().map(|(name, value)| format!("{name}={}", value.to_str().expect("text")));
    let limits = spawn.limits();
    let caps = [spawn.stdout_cap(), spawn.stderr_cap()];
    let is_default = caps == [SpawnLimits::DEFAULT_STDOUT_BYTES, SpawnLimits::DEFAULT_STDERR_BYTES];
    let seconds = limits.wall_time().as_secs();
    let parts = [
        ("as", spawn.operation().unwrap_or_default().to_owned()),
        ("in", spawn.cwd().map(|cwd| cwd.display().to_string()).unwrap_or_default()),
        ("stdin", spawn.stdin().map(|stdin| stdin.len().to_string()).unwrap_or_default()),
        ("with", variables.collect::<Vec<_>>().join(" ")),
        ("asks", spawn.credentials().join(" ")),
        ("reads", paths(spawn.fs_read())),
        ("writes", paths(spawn.fs_write())),
        ("keeps", if is_default { String::new() } else { format!("{} {}", caps[0], caps[1]) }),
        (
            "memory",
            match limits.memory_bytes() {
                SpawnLimits::DEFAULT_MEMORY_BYTES => String::new(),
                bytes => format!("{}M", bytes >> 20),
            },
        ),
        (
            "wall",
            if seconds == SpawnLimits::DEFAULT_WALL_SECONDS { String::new() } else { format!("{seconds}s") },
        ),
    ];
    let parts = parts.into_iter().filter(|(_, text)| !text.is_empty());
    let parts: String = parts.map(|(what, text)| format!(" {what} {text}")).collect();
    format!("{} {:?}{parts}", spawn.program().display(), spawn.arguments())
}

/// Who refused it, why, and what is granted instead.
fn refusal(error: &SpawnError) -> String {
    let failure = error.failure();
    assert_eq!(failure.class, crate::report::failure::Class::CapabilityDenied, "{error:?}");
    let boundary = format!("{:?}", failure.boundary).to_lowercase();
    match failure.details {
        Details::Granted { granted, .. } if !granted.is_empty() => {
            format!("{boundary}: {} [{}]", failure.message, granted.join(", "))
        }
        _ => format!("{boundary}: {}", failure.message),
    }
}

#[test]
fn envelopes_are_checked_as_the_contract_says() {
    let (_dir, home) = home();
    let mut wrong = Vec::new();
    for (spawn, envelope, answer) in ENVELOPES {
        let text = format!(
            "[capabilities.network]\nhosts = ['api.github.com:443']\n[capabilities.spawn]\n\
             programs = [{{ path = '~/bin/tool' }}, {{ path = '~/bin/other' }}]\n{spawn}"
        );
        let manifest = Manifest::from_toml(&text).unwrap_or_else(|error| panic!("{spawn}: {error}"));
        let policy = SpawnPolicy { home: home.clone(), ..SpawnPolicy::new(manifest) };
        let policy = policy.variables(|name| Some(format!("of {name}").into()));
        let checked = Envelope::from_json(envelope).and_then(|envelope| policy.check(&envelope));
        let plain = |text: String| text.replace(home.to_str().expect("text"), "~");
        let found = match checked {
            Ok(spawn) => {
                assert_eq!(spawn.hosts(), ["api.github.com:443"]);
                Ok(plain(granted(&spawn)))
            }
            Err(error) => Err(plain(refusal(&error))),
        };
        if found != answer.map(str::to_owned).map_err(|error| error.replace("OPERATIONS", OPERATIONS)) {
            wrong.push(format!("{spawn:?} {envelope}\n    is {found:?}\n    not {answer:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Operations of [`VIEW`] with values, and their argument vector or the reason.
#[expect(clippy::type_complexity, reason = "a table")]
const VALUES: &[(&str, &[(&str, &str)], Result<&[&str], &str>)] = &[
    ("view", &[("n", "7; rm *")], Ok(&["tool", "view", "7; rm *"])),
    ("view", &[("n", "7"), ("w", "y")], Ok(&["tool", "view", "7", "--web", "y"])),
    ("view", &[("n", ""), ("w", "")], Ok(&["tool", "view", ""])),
    ("dash", &[("n", "-x")], Ok(&["tool", "d", "-x"])),
    ("pair", &[("last", "l")], Ok(&["tool", "p", "l"])),
    ("pair", &[("o", ""), ("r", ""), ("b", ""), ("last", "l")], Ok(&["tool", "p", "l"])),
    ("pair", &[("o", "o"), ("r", "r"), ("b", "b"), ("last", "l")], Ok(&["tool", "p", "-r", "o/r", "b", "l"])),
    ("in_word", &[("t", "-x"), ("k", "a")], Ok(&["tool", "w", "--t=-x", "a.git"])),
    ("view", &[], Err("action: operation view: `n` is missing; it is `tool view {n} [--web {w}]`")),
    ("view", &[("n", "-7")], Err("action: operation view: `n` begins with `-`")),
    ("view", &[("n", "7"), ("w", "--all")], Err("action: operation view: `w` begins with `-`")),
    ("view", &[("n", "7"), ("x", "")], Err("action: operation view: there is no placeholder `x`")),
    ("view", &[("n", "7\0")], Err("action: operation view: `n` contains a NUL byte")),
    ("view", &[("n", "7"), ("n", "8")], Err("action: operation view: `n` is given twice")),
    (
        "pair",
        &[("o", "o"), ("r", ""), ("last", "l")],
        Err("action: operation pair: `r` is missing, but another"),
    ),
    (
        "pair",
        &[("o", "-o"), ("r", "r"), ("b", "b"), ("last", "l")],
        Err("action: operation pair: `o` begins with `-`"),
    ),
    ("other", &[("n", "7")], Err("action: operation other: there is no placeholder `n`")),
    (
        "absent",
        &[],
        Err("manifest: operation absent: is not in the manifest; it has back, dash, in_word, other, pair"),
    ),
];

#[test]
fn operations_are_filled_in_as_the_contract_says() {
    let (_dir, home) = home();
    let text = format!(
        "[capabilities.spawn]\nprograms = [{{ path = '~/bin/tool' }}, {{ path = '~/bin/other' }}]\n{VIEW}"
    );
    let manifest = Manifest::from_toml(&text).expect("a manifest");
    let policy = SpawnPolicy { home, ..SpawnPolicy::new(manifest) };
    for (name, values, answer) in VALUES {
        match (policy.operation(name, values), answer) {
            (Ok(envelope), Ok(argv)) => {
                assert_eq!(envelope.argv, *argv, "{name} {values:?}");
                let checked = policy.check(&envelope).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(checked.operation(), Some(*name), "what an operation builds passes the gate");
            }
            (Err(error), Err(reason)) => {
                let told = refusal(&error);
                assert!(told.starts_with(reason), "{name} {values:?}: {told}");
            }
            (found, _) => panic!("{name} {values:?}: {found:?}"),
        }
    }
}
