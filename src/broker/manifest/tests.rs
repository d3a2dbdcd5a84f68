use super::*;

const FULL: &str = r#"
[capabilities.network]
hosts = ["API.github.com:443", "192.0.2.1:8443"]
[capabilities.spawn]
programs = [
    { path = "/usr/bin/gh", hash = "sha256:BA7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
    { path = "~/bin/tool" },
]
env_passthrough = ["GH_HOST"]
credential_env_keys = ["GH_TOKEN"]
fs_read = ["~/work"]
fs_write = ["~/work/out"]
cwd = "~/work"
[capabilities.spawn.operations]
issue_create = "gh issue create --title {title} [--body {body}]"
view = { argv = "~/bin/tool {number}", allow_dash = ["number"] }
[capabilities.spawn.limits]
max_stdout_bytes = 1048576
max_stderr_bytes = 262144
max_memory_bytes = 268435456
max_wall_seconds = 60
"#;

#[test]
fn the_documented_manifest_is_read_in_full() {
    let manifest = Manifest::from_toml(FULL).expect("the documented form");
    assert_eq!(manifest.hosts, ["api.github.com:443", "192.0.2.1:8443"]);
    let spawn = &manifest.spawn;
    assert_eq!((spawn.programs.len(), spawn.programs[1].hash), (2, None));
    assert_eq!(
        spawn.programs[0].hash.expect("a hash").to_string(),
        "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
    assert_eq!((&*spawn.env_passthrough[0].0, &*spawn.credential_env_keys[0].0), ("GH_HOST", "GH_TOKEN"));
    assert_eq!((&*spawn.fs_read, &*spawn.fs_write), (&["~/work".into()][..], &["~/work/out".into()][..]));
    assert_eq!(spawn.cwd.as_deref(), Some("~/work"));
    assert_eq!(manifest.operations().collect::<Vec<_>>(), ["issue_create", "view"]);
    assert_eq!(spawn.limits.max_memory_bytes, Some(256 << 20));
}

#[test]
fn what_is_absent_is_denied() {
    let manifest = Manifest::from_toml("[capabilities.spawn]").expect("nothing");
    assert!(manifest.hosts.is_empty() && manifest.spawn == Spawn::default());
}

#[test]
fn every_mistake_has_its_place() {
    for (text, said) in [
        ("", "manifest:1:1: the manifest is empty"),
        (
            "[capabilities.network]\nhosts = ['*.github.com:443']",
            "manifest:2:9: `*.github.com:443`: a host is exact",
        ),
        ("[capabilities.network]\nhosts = ['a:*']", "manifest:2:9: `a:*`: a host is exact"),
        ("[capabilities.network]\nhosts = ['10.0.0.0/8:1']", "manifest:2:9: `10.0.0.0/8:1`: a host is exact"),
        ("[capabilities.network]\nhosts = ['github.com']", "manifest:2:9: `github.com`: the port is missing"),
        (
            "[capabilities.spawn]\nprograms = [{ path = '/a', hash = 'md5:1' }]",
            "manifest:2:35: a hash is written",
        ),
        ("[capabilities.spawn]\nprograms = ['/a']", "manifest:2:13: "),
        ("[capabilities.spawn]\nenv_passthrough = ['A=B']", "manifest:2:19: `A=B` is not a name"),
        ("[capabilities.spawn]\ncredential_env_keys = ['']", "manifest:2:23: `` is not a name"),
        (
            "[capabilities.spawn]\nprograms = [{ path = 'gh' }]",
            "capabilities.spawn.programs `gh`: must be absolute",
        ),
        ("[capabilities.spawn]\nfs_read = ['work']", "capabilities.spawn.fs_read `work`: must be absolute"),
        ("[capabilities.spawn]\nfs_write = ['~me']", "capabilities.spawn.fs_write `~me`: must be absolute"),
        ("[capabilities.spawn]\ncwd = ''", "capabilities.spawn.cwd: must be absolute"),
        ("[capabilities.spawn.operations]\na = 'gh {x'", "manifest:2:5: `{x`: a brace"),
        (
            "[capabilities.spawn.operations]\na = 'gh x'",
            "capabilities.spawn.operations.a `gh`: is not one of the programs",
        ),
        (
            "[capabilities.spawn.operations]\na = 1",
            "manifest:2:5: invalid type: integer `1`, expected a pattern",
        ),
        (
            "[capabilities.spawn.limits]\nmax_memory_bytes = 0",
            "capabilities.spawn.limits.max_memory_bytes `0`",
        ),
        ("[capabilities.spawn.limits]\nmax_stdout_bytes = -1", "manifest:2:20: "),
        ("[capabilities.spawn]\ncwd = '/a'\ncwd = '/b'", "manifest:3:1: duplicate key"),
    ] {
        let error = Manifest::from_toml(text).expect_err(text).to_string();
        assert!(error.starts_with(said), "{text}\n{error}");
    }
}

#[test]
fn a_key_that_kennel_does_not_know_is_ignored_and_noted() {
    for (text, noted) in [
        ("x = 1\n[connector]", &["1:1 x"][..]),
        ("x = []", &["1:1 x"]),
        ("[connector]\nnom = 'a'\nlist = ['a']", &["2:1 nom", "3:1 list"]),
        ("[capabilities]\nspown = {}", &["2:1 spown"]),
        ("[capabilities.tool]\nx = 1", &["1:15 tool"]),
        ("[capabilities.network]\nhost = []", &["2:1 host"]),
        ("[capabilities.limits]\nmemory = 1", &["2:1 memory"]),
        ("[capabilities.limits.tool]\nx = 1", &["1:22 tool"]),
        ("[capabilities.credential]\nheadr = 'X'\nkind = 'api_key'", &["2:1 headr"]),
        ("[capabilities.spawn]\nprogramms = []\nforwarder = 'ssh'", &["3:1 forwarder", "2:1 programms"]),
        ("[capabilities.spawn]\nprograms = [{ path = '/a', sha = '' }]", &["2:28 sha"]),
        (
            "[capabilities.spawn]\nprograms = [{ path = '/a' }]\noperations.a = { argv = 'a', dash = [] }",
            &["3:30 dash"],
        ),
        ("[capabilities.spawn.limits]\nmax_pids = 1", &["2:1 max_pids"]),
    ] {
        let manifest = Manifest::from_toml(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let mut expected: Vec<_> = noted.iter().filter_map(|note| note.split_once(' ')).collect();
        expected.sort_unstable();
        let mut found: Vec<_> = manifest.notes().iter().map(|note| (&*note.subject, &*note.text)).collect();
        found.sort_unstable();
        let words = |key: &str| format!("Kennel does not know the key `{key}` and ignores it");
        let expected: Vec<_> =
            expected.iter().map(|(place, key)| (format!("manifest:{place}"), words(key))).collect();
        assert!(
            expected.iter().map(|(place, key)| (&**place, &**key)).eq(found.iter().copied()),
            "{found:?}"
        );
    }
    let many: String = (0..1000).map(|number| format!("k{number} = 1\n")).collect();
    assert_eq!(Manifest::from_toml(&many).expect("ignored").notes().len(), 100);
}

#[test]
fn hashes_are_exact() {
    let digits = "0".repeat(64);
    assert!(Hash::parse(&format!("sha256:{digits}")).is_some());
    for text in ["sha256:", &digits, &format!("sha256:{digits}0"), &format!("SHA256:{digits}")] {
        assert_eq!(Hash::parse(text), None, "{text}");
    }
    assert_eq!(Hash::parse(&format!("sha256:+{}", "0".repeat(63))), None);
    assert_eq!(Hash::parse(&format!("sha256:é{}", "0".repeat(62))), None);
}

/// What a connector reads, beside what `kennel op` reads.
const CONNECTOR: &str = r#"
[connector]
name = "mail"
version = "1.2"
publisher = "Example"
[capabilities.credential]
kind = "api_key"
header = "X-Key"
format = "key {key}!"
[capabilities.limits]
memory_bytes = 1048576
wall_seconds = 7
"#;

#[test]
fn tables_of_connectors_are_read() {
    let manifest = Manifest::from_toml(CONNECTOR).expect("a manifest");
    assert_eq!(
        (manifest.name(), manifest.version(), manifest.publisher()),
        (Some("mail"), Some("1.2"), Some("Example"))
    );
    let credential = manifest.credential.expect("a credential");
    assert_eq!((credential.kind.as_str(), &*credential.header), ("api_key", "X-Key"));
    assert_eq!(credential.around, ["key ", "!"]);
    assert_eq!((manifest.limits.memory_bytes, manifest.limits.wall_seconds), (Some(1 << 20), Some(7)));
    for kind in ["api_key", "oauth2"] {
        let text = format!("[capabilities.credential]\nkind = '{kind}'");
        let credential = Manifest::from_toml(&text).expect("a manifest").credential.expect("a credential");
        assert_eq!(
            (&*credential.header, credential.around),
            ("Authorization", ["Bearer ".into(), String::new()])
        );
    }
}

#[test]
fn tables_of_other_tools_are_ignored_where_they_may_be() {
    let plain = Manifest::from_toml(CONNECTOR).expect("a manifest");
    for tables in [
        "[tool.x]\nname = 1\ny = [{ z = 2 }]",
        "[connector.store]\nname = 7",
        "[capabilities.credential.oauth2]\nauthorize_url = 'https://a.example/'\nscopes = ['a', 'b']\nkind = 1",
        "[capabilities.credential.oauth2.more]\nformat = '{'",
        "[network]\nhosts = ['*']",
    ] {
        let text = format!("{CONNECTOR}\n{tables}");
        assert_eq!(Manifest::from_toml(&text).expect(tables), plain);
    }
}

#[test]
fn every_mistake_in_tables_of_connectors_has_its_place() {
    let credential = "[capabilities.credential]\n";
    for (text, said) in [
        ("connector = 1", "manifest:1:13: invalid type: integer `1`, expected a table"),
        ("[connector]\nname = 1", "manifest:2:8: invalid type: integer `1`, expected a string"),
        ("[capabilities.limits]\nwall_seconds = 1.5", "manifest:2:16: invalid type: number `1.5`"),
        (
            "[capabilities.limits]\nmemory_bytes = 0",
            "capabilities.limits.memory_bytes `0`: must be at least 1",
        ),
        (
            "[capabilities.limits]\nwall_seconds = 0",
            "capabilities.limits.wall_seconds `0`: must be at least 1",
        ),
        (
            &format!("{credential}kind = 'basic'"),
            "manifest:2:8: unknown variant `basic`, expected `oauth2` or",
        ),
        (credential, "manifest:1:1: missing field `kind`: oauth2 or api_key"),
        (
            &format!("{credential}kind = 'oauth2'\nheader = 'X'"),
            "manifest:1:1: `header` and `format` are for",
        ),
        (
            &format!("{credential}kind = 'oauth2'\nformat = '{{key}}'"),
            "manifest:1:1: `header` and `format` are",
        ),
        (
            &format!("{credential}kind = 'api_key'\nheader = 'X Y'"),
            "manifest:1:1: `X Y` is not a name of a header",
        ),
        (
            &format!("{credential}kind = 'api_key'\nheader = 'transfer-encoding'"),
            "manifest:1:1: `transfer-encoding` is a header that Kennel sets",
        ),
        (&format!("{credential}kind = 'api_key'\nheader = ''"), "manifest:1:1: `` is not a name of a header"),
        (
            &format!("{credential}kind = 'api_key'\nformat = 'Bearer'"),
            "manifest:1:1: `Bearer`: a format is plain",
        ),
        (
            &format!("{credential}kind = 'api_key'\nformat = '{{key}}{{key}}'"),
            "manifest:1:1: `{key}{key}`: a format",
        ),
        (
            &format!("{credential}kind = 'api_key'\nformat = \"a\\n{{key}}\""),
            "manifest:1:1: `a\\n{key}`: a format",
        ),
        (&format!("{credential}kind = 'api_key'\nformat = 'é{{key}}'"), "manifest:1:1: `é{key}`: a format"),
    ] {
        let error = Manifest::from_toml(text).expect_err(text).to_string();
        assert!(error.starts_with(said), "{text}\n{error}\n{said}");
    }
}
