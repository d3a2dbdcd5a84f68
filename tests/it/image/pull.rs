//! `kennel image pull`, from registries on loopback: what it asks, what it keeps, what it refuses.

use std::process::Command;

use serde_json::json;

use super::{
    fixtures::{Image, Images, Tar, digest, gzip},
    puller::{layer, puller},
    registry::{Content, Registry, Request, Response, entry, index, path_of},
};
use crate::support::{kennel_path, stderr, stdout};

/// The platform of this machine.
fn here() -> String {
    format!("linux/{}", if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" })
}

#[test]
fn what_is_there_costs_no_pull() {
    let image = Image::of_two_layers();
    let registry = Registry::of(Content::of(&image, "a/b", "1"));
    let puller = puller!(registry);
    let name = format!("{}/a/b:1", registry.host);
    let output = puller.run(&["pull", &name]);
    assert_eq!(stdout(&output), format!("{}  {name}", image.digest()), "{output:?}");
    assert!(stderr(&output).starts_with(&format!("kennel: {name}: 2 of 2 layers fetched, ")), "{output:?}");
    let asked = registry.asked();
    assert_eq!(asked[0], "HEAD /v2/a/b/manifests/1");
    assert_eq!(asked.iter().filter(|it| it.starts_with("GET /v2/a/b/manifests/sha256:")).count(), 1);
    assert_eq!(asked.iter().filter(|it| it.starts_with("GET /v2/a/b/blobs/")).count(), 3, "{asked:?}");
    // As if it came from an archive.
    let other = Images::new().unwrap();
    other.ok(&["import", &other.file("it", image.docker_archive(&["a:1"]))]);
    assert_eq!(puller.0.layers(&name), other.layers("a:1"));
    assert_eq!(puller.0.list(), [(image.digest(), name.clone())]);

    let again = puller.run(&["pull", &name]);
    assert_eq!(stdout(&again), stdout(&output));
    assert_eq!(stderr(&again), format!("kennel: {name}: everything was here"));
    assert_eq!(registry.asked(), ["HEAD /v2/a/b/manifests/1"]);
}

#[test]
fn only_layers_that_are_missing_are_fetched() {
    let image = Image::new(vec![layer("lower"), layer("upper")]);
    let next = Image::new(vec![layer("lower"), layer("next"), layer("lower")]);
    let mut content = Content::of(&image, "a", "1");
    let manifest = content.image(&next, "a");
    content.tag("a", "2", &manifest);
    let registry = Registry::of(content);
    let puller = puller!(registry);
    puller.pull(&format!("{}/a:1", registry.host));
    registry.asked();
    let pulled = puller.json(&format!("{}/a:2", registry.host));
    assert_eq!((&pulled["digest"], &pulled["manifest"]), (&json!(next.digest()), &json!(digest(&manifest))));
    assert_eq!((&pulled["layers"], &pulled["fetched_layers"]), (&json!(3), &json!(1)));
    assert_eq!(pulled["fetched_size"], json!(gzip(&layer("next")).len()));
    let blobs: Vec<String> = registry.asked().into_iter().filter(|it| it.contains("/blobs/")).collect();
    assert_eq!(blobs.len(), 2, "the configuration and a layer: {blobs:?}");
    // The same image under another name: its configuration is here, too.
    let output = puller.run(&["pull", &format!("{}/a@{}", registry.host, digest(&manifest))]);
    assert!(
        output.status.success() && registry.asked().iter().all(|it| !it.contains("/blobs/")),
        "{output:?}"
    );
}

/// Such a layer is another one above other layers.
#[test]
fn a_layer_that_depends_on_those_below_is_found_above_the_same() {
    let upper = || Tar::new().file("etc/without/parents", "upper").bytes();
    let image = Image::new(vec![layer("lower"), upper()]);
    let same = Image::new(vec![layer("lower"), upper()]).executing(json!({ "Cmd": ["other"] }));
    let other = Image::new(vec![layer("other"), upper()]);
    let mut content = Content::of(&image, "a", "1");
    for (tag, image) in [("2", &same), ("3", &other)] {
        let manifest = content.image(image, "a");
        content.tag("a", tag, &manifest);
    }
    let registry = Registry::of(content);
    let puller = puller!(registry);
    let fetched = |tag: &str| puller.json(&format!("{}/a:{tag}", registry.host))["fetched_layers"].clone();
    assert_eq!([fetched("1"), fetched("2"), fetched("3")], [json!(2), json!(0), json!(2)]);
}

#[test]
fn a_digest_counts_more_than_a_tag_and_is_asked_for_once() {
    let (image, other) = (Image::new(vec![layer("one")]), Image::new(vec![layer("other")]));
    let mut content = Content::of(&image, "a", "1");
    let manifest = content.image(&other, "a");
    let registry = Registry::of(content);
    let puller = puller!(registry);
    let name = format!("{}/a:1@{}", registry.host, digest(&manifest));
    assert!(puller.pull(&name).starts_with(&other.digest()));
    assert!(registry.asked().iter().all(|it| !it.contains("manifests/1")));
    assert!(puller.pull(&name).starts_with(&other.digest()));
    assert_eq!(registry.asked(), Vec::<String>::new());
}

#[test]
fn the_platform_of_this_machine_is_found_in_an_index_of_indexes() {
    let image = Image::new(vec![layer("ours")]);
    let mut content = Content::default();
    let ours = content.image(&image, "a");
    let mut attestation = entry(b"{}", "unknown/unknown");
    attestation["annotations"] = json!({ "vnd.docker.reference.type": "attestation-manifest" });
    let mut variant = entry(b"absent", &here());
    variant["platform"]["variant"] = json!("v9");
    let inner =
        index(&[attestation.clone(), entry(b"absent", "linux/s390x"), variant, entry(&ours, &here())]);
    content.manifest("a", &inner);
    let mut nested = entry(&inner, &here());
    nested.as_object_mut().unwrap().remove("platform");
    let outer = index(&[attestation, nested]);
    content.tag("a", "1", &outer);
    content.manifest("a", &outer);
    let registry = Registry::of(content);
    let puller = puller!(registry);
    let pulled = puller.json(&format!("{}/a:1", registry.host));
    assert_eq!((&pulled["digest"], &pulled["manifest"]), (&json!(image.digest()), &json!(digest(&outer))));
}

#[test]
fn what_is_no_image_for_this_machine_is_named() {
    let image = Image::new(vec![layer("one")]);
    let config = json!({ "mediaType": "application/vnd.cncf.helm.config.v1+json", "digest": digest(b"{}"), "size": 2 });
    let helm = json!({ "schemaVersion": 2, "config": config, "layers": [] }).to_string();
    let mut foreign = Image::new(vec![layer("one")]);
    foreign.config = String::from_utf8(foreign.config).unwrap().replace(&here()[6..], "s390x").into_bytes();
    let mut content = Content::default();
    let manifest = content.image(&image, "a");
    let broken = String::from_utf8(manifest).unwrap().replace("\"size\":", "\"length\":");
    let foreign = content.image(&foreign, "a");
    let loop_of = (0..6).fold(foreign.clone(), |inner, _| {
        content.manifest("a", &inner);
        let mut entry = entry(&inner, &here());
        entry.as_object_mut().unwrap().remove("platform");
        index(&[entry])
    });
    let cases: [(&[u8], &str, &str); 8] = [
        (
            &index(&[entry(b"1", "linux/s390x"), entry(b"2", "windows/amd64")]),
            "only for linux/s390x, windows/amd64",
            "choose an image or a tag that has linux/",
        ),
        (&foreign, "only for linux/s390x", "choose an image or a tag that has linux/"),
        (
            br#"{"schemaVersion":1,"fsLayers":[]}"#,
            "Docker schema 1",
            "skopeo copy docker://NAME oci-archive:FILE",
        ),
        (
            helm.as_bytes(),
            "an artifact of type application/vnd.cncf.helm.config.v1+json",
            "an image of a root file system",
        ),
        (b"<html>", "expected value", "try again"),
        (&index(&[]), "it names no image", "try again"),
        (broken.as_bytes(), "has no size", "try again"),
        (&loop_of, "more than 4 indexes", "try again"),
    ];
    for (text, said, remedy) in cases {
        let mut content = content.clone();
        content.tag("a", "1", text);
        content.manifest("a", text);
        let registry = Registry::of(content);
        let puller = puller!(registry);
        let refused = puller.refused(&format!("{}/a:1", registry.host));
        assert!(refused.starts_with(&format!("kennel: pull {}/a:1: ", registry.host)), "{refused}");
        assert!(
            refused.contains(said) && refused.contains(&format!("hint: {remedy}"))
                || refused.contains(said) && refused.contains(remedy),
            "{refused}"
        );
    }
}

#[test]
fn other_bytes_than_promised_are_refused() {
    let image = Image::new(vec![layer("one")]);
    let content = Content::of(&image, "a", "1");
    let blob = gzip(&layer("one"));
    let other = gzip(&layer("two"));
    // Of a layer, of the configuration, of the manifest.
    for (path, with, said) in [
        (path_of(&blob), &other, "its digest is sha256:"),
        (image.digest(), &b"{}".to_vec(), "the digest is sha256:"),
    ] {
        let mut content = content.clone();
        content.replace(&path, with);
        let registry = Registry::of(content);
        let puller = puller!(registry);
        let refused = puller.refused(&format!("{}/a:1", registry.host));
        assert!(refused.contains(said) && refused.contains("hint: "), "{refused}");
    }
    // What HEAD said is not what GET gives.
    let registry = Registry::start(move |request| match request.path.contains("/manifests/") {
        true if request.method == "HEAD" => {
            Response::new(200, "").with("Docker-Content-Digest", digest(b"another"))
        }
        true => Response::new(200, "{}"),
        false => content.answer(request),
    });
    let puller = puller!(registry);
    let refused = puller.refused(&format!("{}/a:1", registry.host));
    assert!(
        refused.contains(&format!("{}: the digest is {}", digest(b"another"), digest(b"{}"))),
        "{refused}"
    );
    // The configuration promises other contents than the layer has.
    let mut lie = Image::new(vec![layer("one")]);
    lie.layers = vec![layer("two")];
    let registry = Registry::of(Content::of(&lie, "a", "1"));
    let puller = puller!(registry);
    let refused = puller.refused(&format!("{}/a:1", registry.host));
    assert!(refused.contains("its diff id is sha256:"), "{refused}");
}

#[test]
fn a_layer_that_was_cut_goes_on_where_it_ended() {
    let big: String = (0..40_000).map(|number| format!("{number}\n")).collect();
    let image = Image::new(vec![Tar::new().dir("etc/").file("etc/numbers", &big).bytes()]);
    let content = Content::of(&image, "a", "1");
    let half = gzip(&image.layers[0]).len() / 2;
    let blob = path_of(&gzip(&image.layers[0]));
    // One goes on as asked, one sends the whole again, one a part that nobody wants.
    for how in ["part", "whole", "another part"] {
        let (content, blob) = (content.clone(), blob.clone());
        let cut = blob.clone();
        let registry = Registry::start(move |request: &Request| {
            let whole = content.answer(&Request { headers: [].into(), ..request.clone() });
            match (request.path.ends_with(&cut), request.earlier) {
                (true, 0) => whole.cut_after(half),
                (true, 1) if how == "whole" => whole,
                (true, 1) if how == "another part" => {
                    Response::new(206, "part").with("Content-Range", "bytes 1-4/9")
                }
                _ => content.answer(request),
            }
        });
        let puller = puller!(registry);
        puller.pull(&format!("{}/a:1", registry.host));
        let ranges: Vec<Option<String>> = registry
            .requests()
            .iter()
            .filter(|it| it.path.ends_with(&blob))
            .map(|it| it.header("range").map(str::to_owned))
            .collect();
        let expected = [None, Some(format!("bytes={half}-")), None];
        assert_eq!(ranges, expected[..if how == "another part" { 3 } else { 2 }], "{how}");
    }
}

#[test]
fn a_registry_that_asks_to_wait_is_waited_for_within_reason() {
    let content = Content::of(&Image::new(vec![layer("one")]), "a", "1");
    for status in [429, 500, 503] {
        let content = content.clone();
        let registry = Registry::start(move |request: &Request| match request.earlier {
            0 if request.method == "GET" => Response::error(status, "later").with("Retry-After", "0"),
            _ => content.answer(request),
        });
        let puller = puller!(registry);
        puller.pull(&format!("{}/a:1", registry.host));
        let blobs = registry.requests().iter().filter(|it| it.is_blob()).count();
        assert_eq!(blobs, 4, "each of two was asked for twice");
    }
    let registry = Registry::start(|_| {
        Response::error(429, "You have reached your pull rate limit.").with("Retry-After", "21600")
    });
    let puller = puller!(registry);
    let refused = puller.refused(&format!("{}/a:1", registry.host));
    let said = format!(
        "kennel: pull {0}/a:1: {0}: 429: You have reached your pull rate limit.; it asks to wait 21600 s\n\
         kennel: hint: wait, or log in to be allowed more: docker login {0}; or import",
        registry.host
    );
    assert!(refused.starts_with(&said), "{refused}");
    assert_eq!(registry.asked().len(), 2, "HEAD and GET, once each");
}

/// A registry that wants tokens of a server beside it. Blobs are on another host.
struct Guarded {
    registry: Registry,
    tokens: Registry,
    blobs: Registry,
}

impl Guarded {
    /// `expected` is what the token server wants to have; it gives the token to nobody else.
    fn new(content: Content, expected: Option<&'static str>) -> Self {
        let tokens = Registry::start(move |request| {
            let sent =
                request.header("authorization").or(Some(request.body.as_str()).filter(|it| !it.is_empty()));
            match sent == expected {
                true => Response::new(200, r#"{"token":"the-token"}"#),
                false => Response::new(401, r#"{"details":"incorrect username or password"}"#),
            }
        });
        let behind = content.clone();
        let blobs = Registry::start(move |request| behind.answer(request));
        let (realm, elsewhere) = (tokens.host.clone(), blobs.host.clone());
        let registry = Registry::start(move |request| {
            if request.header("authorization") != Some("Bearer the-token") {
                let challenge =
                    format!("Bearer realm=\"http://{realm}/token\",service=\"it\",scope=\"all:push\"");
                return Response::error(401, "authentication required").with("WWW-Authenticate", challenge);
            }
            match request.is_blob() {
                true => {
                    Response::new(307, "").with("Location", format!("http://{elsewhere}{}", request.path))
                }
                false => content.answer(request),
            }
        });
        Self { registry, tokens, blobs }
    }

    fn name(&self) -> String {
        format!("{}/a/b:1", self.registry.host)
    }
}

#[test]
fn credentials_go_to_the_token_server_and_no_further() {
    let image = Image::of_two_layers();
    let content = Content::of(&image, "a/b", "1");
    // base64 of `user:pass`.
    const BASIC: &str = "Basic dXNlcjpwYXNz";
    let form = "service=it&scope=repository%3Aa%2Fb%3Apull&grant_type=refresh_token&client_id=kennel&refresh_token=the-identity";
    for (auth, expected) in [
        (json!({}), None),
        (json!({ "auth": "dXNlcjpwYXNz" }), Some(BASIC)),
        (json!({ "username": "user", "password": "pass" }), Some(BASIC)),
        (json!({ "auth": "dXNlcjpwYXNz", "identitytoken": "the-identity" }), Some(form)),
    ] {
        let guarded = Guarded::new(content.clone(), expected);
        let puller = puller!(guarded.registry);
        puller.login(&guarded.registry.host, auth);
        assert!(puller.pull(&guarded.name()).starts_with(&image.digest()));
        let asked = guarded.tokens.requests();
        assert_eq!(asked.len(), 1, "one token serves all requests: {asked:?}");
        match asked[0].method.as_str() {
            "GET" => assert_eq!(asked[0].path, "/token?service=it&scope=repository%3Aa%2Fb%3Apull"),
            _ => assert_eq!((&*asked[0].path, &*asked[0].body), ("/token", form)),
        }
        let sent = guarded.registry.requests();
        assert!(sent.iter().all(|it| it.header("authorization").is_none_or(|it| it == "Bearer the-token")));
        let fetched = guarded.blobs.requests();
        assert_eq!(fetched.len(), 3);
        assert!(fetched.iter().all(|it| it.header("authorization").is_none()), "{fetched:?}");
    }
}

#[test]
fn a_name_and_a_password_are_sent_where_the_registry_wants_them() {
    let image = Image::new(vec![layer("one")]);
    let content = Content::of(&image, "a", "1");
    let registry = Registry::start(move |request| match request.header("authorization") {
        Some("Basic dXNlcjpwYXNz") => content.answer(request),
        _ => Response::error(401, "who is there?").with("WWW-Authenticate", "Basic realm=\"it\""),
    });
    let puller = puller!(registry);
    let name = format!("{}/a:1", registry.host);
    let refused = puller.refused(&name);
    assert!(
        refused.contains("401: who is there?")
            && refused.contains(&format!("log in: docker login {}", registry.host)),
        "{refused}"
    );
    puller.login(&registry.host, json!({ "auth": "dXNlcjp3cm9uZw==" }));
    let refused = puller.refused(&name);
    assert!(refused.contains(&format!("hint: log in again: docker login {}", registry.host)), "{refused}");
    puller.login(&registry.host, json!({ "auth": "dXNlcjpwYXNz" }));
    puller.pull(&name);
}

#[test]
fn a_helper_of_credentials_is_asked() {
    let content = Content::of(&Image::new(vec![layer("one")]), "a/b", "1");
    let guarded = Guarded::new(content, Some("Basic dXNlcjpwYXNz"));
    let puller = puller!(guarded.registry);
    let host = &guarded.registry.host;
    // An entry without credentials is what docker writes beside a helper.
    puller.0.file(
        "docker/config.json",
        json!({ "auths": { host: {} }, "credHelpers": { host: "of-it" } }).to_string(),
    );
    let refused = puller.refused(&guarded.name());
    assert!(
        refused.contains("incorrect username or password (without credentials: ")
            && refused.contains("docker-credential-… that it names cannot be executed")
            && refused.contains("hint: mend the credentials"),
        "{refused}"
    );
    let helper = puller.0.file(
        "bin/docker-credential-of-it",
        format!("#!/bin/sh\nread -r host\n[ \"$1 $host\" = 'get {host}' ] || exit 1\necho '{{\"Username\":\"user\",\"Secret\":\"pass\"}}'\n"),
    );
    std::fs::set_permissions(&helper, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", puller.0.at("bin").display(), std::env::var("PATH").unwrap());
    let mut command = puller.0.command(&["pull", &guarded.name()]);
    let output = puller.prepare(&mut command).env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn what_a_registry_says_is_one_harmless_line_with_a_remedy() {
    let hostile = "no\r\nkennel: all is well\u{1b}[2J \u{202e}txet";
    for (status, remedy) in [
        (401, "hint: check the name; if the repository is private, log in: docker login 127.0.0.1:"),
        (403, "hint: ask the owner of the repository for access, or log in: docker login 127.0.0.1:"),
        (
            404,
            "hint: check the name and the tag; if the repository is private, log in: docker login 127.0.0.1:",
        ),
    ] {
        let registry = Registry::start(move |_| Response::error(status, hostile));
        let puller = puller!(registry);
        let refused = puller.refused(&format!("{}/a:1", registry.host));
        let said = format!("{status}: no kennel: all is well\\u{{1b}}[2J \\u{{202e}}txet\nkennel: ");
        assert!(refused.contains(&said) && refused.contains(remedy), "{refused}");
        assert_eq!(refused.lines().count(), 2, "{refused}");
    }
    let registry = Registry::start(|_| Response::new(404, "<html>".repeat(1000)));
    let puller = puller!(registry);
    assert!(puller.refused(&format!("{}/a:1", registry.host)).contains(": 404\n"));
    // Nobody has so many descriptions.
    let registry = Registry::start(|_| Response::new(200, vec![b' '; 5 << 20]));
    let puller = puller!(registry);
    let refused = puller.refused(&format!("{}/a:1", registry.host));
    assert!(refused.contains("a description of more than 4194304 bytes"), "{refused}");
}

#[test]
fn plain_http_is_only_for_registries_that_are_named() {
    let registry = Registry::of(Content::of(&Image::new(vec![layer("one")]), "a", "1"));
    let puller = puller!();
    let refused = puller.refused(&format!("{}/a:1", registry.host));
    assert!(refused.contains("hint: ") && refused.contains("images.insecure_registries"), "{refused}");
    assert_eq!(registry.asked(), Vec::<String>::new());
    // Nobody listens there any more.
    let name = format!("{}/a:1", registry.host);
    let puller = puller!(registry);
    drop(registry);
    let refused = puller.refused(&name);
    assert!(refused.contains("Connection refused") && refused.contains("hint: check the name"), "{refused}");
}

#[test]
fn a_registry_is_believed_if_the_host_knows_its_authority() {
    let image = Image::new(vec![layer("one")]);
    let (registry, authority) = Registry::with_tls(Content::of(&image, "a", "1"));
    let (_, other) = Registry::with_tls(Content::default());
    let puller = puller!();
    let name = format!("{}/a:1", registry.host);
    let pull = |authority: &str| {
        let file = puller.0.file("authority.pem", authority);
        let mut command = puller.0.command(&["pull", &name]);
        puller.prepare(&mut command).env("SSL_CERT_FILE", file).output().unwrap()
    };
    for unknown in [&*other, ""] {
        let output = pull(unknown);
        let said = stderr(&output);
        assert!(output.status.code() == Some(125) && said.contains("hint: let SSL_CERT_FILE name"), "{said}");
        assert!(said.contains("certificate") && registry.asked().is_empty(), "{said}");
    }
    let output = pull(&authority);
    assert_eq!(stdout(&output), format!("{}  {name}", image.digest()), "{output:?}");
}

/// As `openssl req -x509` makes them.
#[test]
fn a_registry_with_the_certificate_of_an_authority_needs_another() {
    let (registry, authority) = Registry::as_authority();
    let puller = puller!();
    let mut command = puller.0.command(&["pull", &format!("{}/a:1", registry.host)]);
    let file = puller.0.file("authority.pem", authority);
    let output = puller.prepare(&mut command).env("SSL_CERT_FILE", file).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr(&output).contains("basicConstraints=CA:FALSE"), "{output:?}");
}

#[test]
fn a_mirror_is_asked_in_place_of_the_registry() {
    let image = Image::new(vec![layer("one")]);
    let registry = Registry::of(Content::of(&image, "proxy/library/python", "3.12"));
    let puller = puller!();
    puller.0.file(
        "config/kennel/config.toml",
        format!("[images.mirrors]\n\"docker.io\" = \"http://{}/proxy\"\n", registry.host),
    );
    assert_eq!(puller.pull("python:3.12"), format!("{}  python:3.12", image.digest()));
    assert_eq!(puller.0.list(), [(image.digest(), "python:3.12".to_owned())]);
    puller.0.file("config/kennel/config.toml", "images.mirrors.'docker.io' = 'mirror'\n");
    let output = puller.run(&["pull", "python:3.13"]);
    assert!(
        output.status.code() == Some(125) && stderr(&output).contains("write https://HOST"),
        "{output:?}"
    );
}

#[test]
fn nothing_is_fetched_for_a_store_that_cannot_hold_it() {
    let registry = Registry::of(Content::of(&Image::of_two_layers(), "a", "1"));
    let puller = puller!(registry);
    let name = format!("{}/a:1", registry.host);
    puller.0.file("file", "");
    let mut command = puller.0.command(&["pull", &name]);
    let output = puller.prepare(&mut command).env("KENNEL_IMAGES", puller.0.at("file")).output().unwrap();
    assert!(output.status.code() == Some(125) && stderr(&output).contains("file"), "{output:?}");
    assert_eq!(registry.asked(), Vec::<String>::new());
    // More than an image may have: no layer is fetched.
    let config = format!("[images]\ninsecure_registries = [\"{}\"]\nmax_size = 64\n", registry.host);
    puller.0.file("config/kennel/config.toml", config);
    let refused = puller.refused(&name);
    assert!(refused.contains("larger than 64 bytes") && refused.contains("images.max_size"), "{refused}");
    assert_eq!(registry.requests().iter().filter(|it| it.is_blob()).count(), 1, "the configuration");
    for wrong in ["sha256:1234", "No", ""] {
        let output = puller.run(&["pull", "--", wrong]);
        assert!(output.status.code() == Some(125) && stderr(&output).contains("hint"), "{output:?}");
    }
}

/// Only whether the store gets the image: what runs in it is promised elsewhere.
#[test]
fn run_and_session_get_an_image_that_is_missing() {
    let image = Image::new(vec![layer("one")]);
    let registry = Registry::of(Content::of(&image, "a", "1"));
    let puller = puller!(registry);
    let name = format!("{}/a:1", registry.host);
    let kennel = |words: &[&str]| {
        let mut command = Command::new(kennel_path());
        command.args(words).current_dir(puller.0.at("."));
        puller.prepare(&mut command).output().unwrap()
    };
    let session = format!("pulls-{}", registry.host.replace("127.0.0.1:", ""));
    for verb in [&["run"][..], &["session", "start", "--name", &session]] {
        let program = if verb.len() == 1 { &["--", "/bin/none"][..] } else { &[] };
        let with = |flags: &[&str], name: &str| {
            let output = kennel(&[verb, &["--image", name], flags, program].concat());
            if verb.len() > 1 && output.status.success() {
                assert!(kennel(&["session", "stop", &session]).status.success());
            }
            output
        };
        let output = with(&["--pull", "never"], &name);
        assert!(stderr(&output).contains("it is not in the store"), "{output:?}");
        assert_eq!((registry.asked(), puller.0.list()), (Vec::new(), Vec::new()));
        let output = with(&[], &name);
        assert!(stderr(&output).contains(&format!("kennel: {name}: 1 of 1 layer fetched")), "{output:?}");
        assert_eq!(puller.0.list(), [(image.digest(), name.clone())]);
        registry.asked();
        let output = with(&[], &name);
        assert!(registry.asked().is_empty() && !stderr(&output).contains("fetched"), "{output:?}");
        let output = with(&["--pull", "always"], &name);
        assert!(stderr(&output).contains("everything was here"), "{output:?}");
        assert_eq!(registry.asked(), ["HEAD /v2/a/manifests/1"]);
        let output = with(&[], &format!("{}/a:2", registry.host));
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains("404: unknown") && said.contains("a:2`: it could not be pulled"), "{said}");
        registry.asked();
        puller.0.ok(&["remove", &name]);
    }
}
