//! References, digests and configurations.

use crate::image::{Digest, ImageConfig, Reference};

fn read(text: &str) -> Reference {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

const HEX: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

#[test]
fn references_are_read_as_docker_reads_them() {
    for (text, whole, familiar) in [
        ("python", "docker.io/library/python:latest", "python:latest"),
        ("python:3.12", "docker.io/library/python:3.12", "python:3.12"),
        ("docker.io/python", "docker.io/library/python:latest", "python:latest"),
        ("index.docker.io/library/python", "docker.io/library/python:latest", "python:latest"),
        ("me/app:V1_x.y-z", "docker.io/me/app:V1_x.y-z", "me/app:V1_x.y-z"),
        ("localhost/app", "localhost/app:latest", "localhost/app:latest"),
        ("localhost:5000/a/b/c:t", "localhost:5000/a/b/c:t", "localhost:5000/a/b/c:t"),
        ("ghcr.io/o/r", "ghcr.io/o/r:latest", "ghcr.io/o/r:latest"),
        ("[::1]:5000/x", "[::1]:5000/x:latest", "[::1]:5000/x:latest"),
        ("a__b/c-d/e---f/g.h", "docker.io/a__b/c-d/e---f/g.h:latest", "a__b/c-d/e---f/g.h:latest"),
    ] {
        let reference = read(text);
        assert_eq!((reference.to_string().as_str(), reference.familiar().as_str()), (whole, familiar));
        assert_eq!(read(whole), reference);
        assert_eq!(read(familiar), reference);
    }
}

#[test]
fn with_tag_and_digest_the_digest_counts() {
    let both = read(&format!("python:3.12@sha256:{HEX}"));
    assert_eq!(both, read(&format!("python@sha256:{HEX}")));
    assert_eq!((both.tag(), both.digest().map(|digest| digest.hex())), (None, Some(HEX.to_owned())));
    assert_eq!(read("python").with_digest(Digest::of(b"")), both);
}

#[test]
fn the_beginning_of_a_digest_is_4_to_64_digits() {
    for (text, prefix) in [
        ("sha256:e3b0", Some("e3b0")),
        (HEX, Some(HEX)),
        ("cafe", Some("cafe")),
        ("caf", None),
        ("cafe:1", None),
        ("cafes", None),
    ] {
        assert_eq!(read(text).id_prefix(), prefix, "{text}");
    }
    assert_eq!(read(&format!("sha256:{HEX}")), Reference::of_image(Digest::of(b"")));
    assert_eq!(read("cafe").name().as_deref(), Some("docker.io/library/cafe:latest"));
    assert_eq!(read("sha256:cafe").name(), None);
}

#[test]
fn what_is_no_reference_is_refused() {
    let long = format!("{}:x", "a".repeat(250));
    for text in [
        "",
        ":",
        "a:",
        ":t",
        "A",
        "a/B",
        "a//b",
        "/a",
        "a/",
        "a:b:c",
        "a b",
        "a\n",
        "-a",
        "a-",
        "a..b",
        "a___b",
        "a@",
        "a@sha256:12",
        "a@md5:00",
        "sha256:123",
        "sha256:xyzw",
        "a:.t",
        "a:-t",
        "../a",
        "a/../b",
        ".",
        "http://a/b",
        "-x.io/a",
        "x.io:port/a",
        "x.io:99999/a",
        &long,
    ] {
        let error = text.parse::<Reference>().expect_err(text);
        assert!(error.remedy().is_some(), "{error}");
    }
    for text in ["", "sha256:", &HEX.to_uppercase(), HEX, &format!("sha256:{HEX}0"), &format!("sha512:{HEX}")]
    {
        text.parse::<Digest>().expect_err(text);
    }
}

#[test]
fn configurations_of_docker_and_oci_are_read() {
    let json = format!(
        r#"{{"architecture":"arm64","variant":"v8","os":"linux","created":"2024-01-01T00:00:00Z","history":[],
        "config":{{"Env":["A=1","B"],"Entrypoint":["/e","x"],"Cmd":"sh","WorkingDir":"/w","User":"1000:0","Labels":null}},
        "rootfs":{{"type":"layers","diff_ids":["sha256:{HEX}"]}}}}"#
    );
    let config = ImageConfig::from_json(json.as_bytes()).expect("read");
    assert_eq!(
        (config.env, config.entrypoint, config.cmd),
        (
            vec!["A=1".to_owned(), "B".to_owned()],
            vec!["/e".to_owned(), "x".to_owned()],
            vec!["sh".to_owned()]
        )
    );
    assert_eq!((config.working_dir.as_deref(), config.user.as_deref()), (Some("/w"), Some("1000:0")));
    assert_eq!(
        (config.platform.architecture.as_str(), config.platform.variant.as_deref()),
        ("arm64", Some("v8"))
    );
    assert_eq!(config.diff_ids, [Digest::of(b"")]);
    let least = br#"{"config":{"Env":null,"Entrypoint":null,"User":""},"rootfs":{"diff_ids":null}}"#;
    let config = ImageConfig::from_json(least).expect("read");
    assert_eq!(
        (config.env.len(), config.entrypoint.len(), config.user, config.working_dir),
        (0, 0, None, None)
    );
    for bad in ["", "[]", "{}", r#"{"rootfs":{"diff_ids":["x"]}}"#, r#"{"rootfs":{},"config":{"Env":1}}"#] {
        ImageConfig::from_json(bad.as_bytes()).expect_err(bad);
    }
}

#[test]
fn a_short_name_is_the_beginning_of_a_digest() {
    let digest: Digest = format!("sha256:{HEX}").parse().expect("a digest");
    assert_eq!(digest.short(), "73m324567s3ga9luvkp2cmve94");
}
