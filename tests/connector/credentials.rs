//! Credentials of requests: the server sees them, and nothing else does.

use std::fs;
use std::sync::{Arc, Mutex};

use kennel::connector::{Call, Runtime};
use kennel::{
    Audit, Secret,
    broker::{CredentialResolver, Manifest, Resolving},
    report::{Boundary, Class, Failure},
};
use serde_json::{Value, json};

use crate::server::{Authority, Server};
use crate::steps::{Guest, Ran, bytes, run};
use crate::traces;

/// A resolver with one answer, which keeps what it is asked for.
#[derive(Clone)]
pub(crate) struct Vault {
    answer: Result<Option<&'static str>, &'static str>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Vault {
    pub(crate) fn with(value: &'static str) -> Self {
        Self::answering(Ok(Some(value)))
    }

    pub(crate) fn answering(answer: Result<Option<&'static str>, &'static str>) -> Self {
        Self { answer, asked: Arc::default() }
    }

    /// What it was asked for, and forgets it.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl CredentialResolver for Vault {
    fn resolve<'r>(&'r self, key: &'r str) -> Resolving<'r> {
        self.asked.lock().unwrap().push(key.to_owned());
        Box::pin(async move {
            match self.answer {
                Ok(value) => Ok(value.map(|value| Secret::from(value.to_owned()))),
                Err(reason) => Err(reason.into()),
            }
        })
    }
}

pub(crate) const OAUTH2: &str = "[capabilities.credential]\nkind = 'oauth2'";

/// A manifest that grants hosts.
pub(crate) fn granting(hosts: &[&str], more: &str) -> Manifest {
    let text = format!("[connector]\nname = 'test'\n[capabilities.network]\nhosts = {hosts:?}\n{more}");
    Manifest::from_toml(&text).unwrap()
}

/// Calls a program that may reach one server.
async fn ask(server: &Server, authority: &Authority, more: &str, guest: Guest, call: Call) -> Ran {
    let runtime = Runtime::builder().at_once(4).certificate_authority(authority.file()).build().unwrap();
    let manifest = granting(&[&server.authority()], more);
    run(&runtime.compile(&manifest, &guest.program()).unwrap(), call).await
}

fn details(ran: &Ran) -> Value {
    serde_json::to_value(Failure::from(ran.error()).details).unwrap()
}

#[tokio::test]
async fn the_server_sees_the_credential_and_nothing_else_does() {
    const SECRET: &str = "hunter2-no-one-else";
    traces::keep();
    let (authority, place) = (Authority::new(), tempfile::tempdir().unwrap());
    let server = Server::https(&authority).await;
    let lines = Arc::new(Mutex::new(String::new()));
    let sink = Arc::clone(&lines);
    let log = place.path().join("audit.log");
    let runtime = Runtime::builder()
        .at_once(4)
        .certificate_authority(authority.file())
        .audit(Audit { arguments: true, ..Audit::new(&log) })
        .log_sink(move |name, line| sink.lock().unwrap().push_str(&format!("{name} {line:?}\n")))
        .build()
        .unwrap();
    let manifest = granting(&[&server.authority()], OAUTH2);
    let request = |path: &str| {
        json!({
            "url": server.url(path),
            "headers": {"authorization": "Bearer of-the-program", "Accept": "text/plain"},
            "credential": "oauth2",
        })
    };
    let good = Guest::new().request(&request("/hello")).dump().program();
    let bad = Guest::new().request(&request("/hello")).request(&request("/short")).dump().program();
    let traps = Guest::new().request(&request("/hello")).run("unreachable").program();

    let mut shown = String::new();
    for program in [&good, &bad, &traps] {
        let connector = runtime.compile(&manifest, program).unwrap();
        let call = Call::new("op").credentials(Vault::with(SECRET));
        shown.push_str(&format!("{call:?} {connector:?} {runtime:?} {manifest:?}"));
        let ran = run(&connector, call).await;
        shown.push_str(&format!("{ran:?} {ran:#?}"));
        match &ran.ended {
            Ok(result) => {
                shown.push_str(&serde_json::to_string(result).unwrap());
                let memory = bytes(result.output.as_ref().unwrap()["memory"].as_str().unwrap());
                let has = |text: &str| memory.windows(text.len()).any(|window| window == text.as_bytes());
                assert!(has("hello") && has("of-the-program"), "the memory was read");
                assert!(!has(SECRET));
            }
            Err(error) => {
                assert!(std::error::Error::source(error).is_none());
                shown.push_str(&format!("{error} {} {:?}", error.to_wire(), Failure::from(error)));
            }
        }
        for seen in server.take() {
            assert_eq!(seen.headers["authorization"], format!("Bearer {SECRET}"), "{seen:?}");
            assert_eq!(seen.headers["accept"], "text/plain");
        }
    }
    let (audit, traces) = (fs::read_to_string(log).unwrap(), traces::all());
    let sunk = lines.lock().unwrap().clone();
    for (text, has) in
        [(&audit, "\"credential\""), (&traces, "http_request: "), (&sunk, "200"), (&shown, "Oauth2")]
    {
        assert!(text.contains(has), "{text}");
        assert!(!text.contains("hunter2") && !text.contains("of-the-program"), "{text}");
    }
}

#[tokio::test]
async fn a_manifest_says_where_an_api_key_goes() {
    let authority = Authority::new();
    let server = Server::https(&authority).await;
    for (more, header, expected) in [
        ("", "authorization", "Bearer k1"),
        ("header = 'X-Api-Key'", "x-api-key", "Bearer k1"),
        ("header = 'X-Api-Key'\nformat = '{key}'", "x-api-key", "k1"),
        ("format = 'token {key};v=1'", "authorization", "token k1;v=1"),
    ] {
        let more = format!("[capabilities.credential]\nkind = 'api_key'\n{more}");
        let request = json!({
            "url": server.url("/a?b=c#d"),
            "headers": {"X-API-KEY": "own", "Authorization": "own"},
            "credential": "api_key",
        });
        let vault = Vault::with("k1");
        let call = Call::new("op").credentials(vault.clone());
        let ran = ask(&server, &authority, &more, Guest::new().request(&request), call).await;
        assert_eq!(ran.said[0].numbers[..2], [0, 200], "{ran:?}");
        let seen = server.only();
        assert_eq!(seen.headers[header], expected);
        let other = if header == "x-api-key" { "authorization" } else { "x-api-key" };
        assert_eq!((&*seen.headers[other], &*seen.path), ("own", "/a?b=c"));
        assert_eq!(vault.asked(), ["api_key"]);
    }
}

#[tokio::test]
async fn a_request_without_the_word_gets_no_credential() {
    let authority = Authority::new();
    let server = Server::https(&authority).await;
    let vault = Vault::with("k1");
    let guest = Guest::new().request(&json!({"url": server.url("/"), "credential": null}));
    ask(&server, &authority, OAUTH2, guest, Call::new("op").credentials(vault.clone())).await.ended.unwrap();
    assert!(!server.only().headers.contains_key("authorization"));
    assert!(vault.asked().is_empty());
}

#[tokio::test]
async fn another_kind_of_credential_is_denied() {
    let authority = Authority::new();
    let server = Server::https(&authority).await;
    for (more, kind, granted) in [
        (OAUTH2, "api_key", json!(["oauth2"])),
        (OAUTH2, "OAUTH2", json!(["oauth2"])),
        ("", "oauth2", json!([])),
    ] {
        let vault = Vault::with("k1");
        let guest = Guest::new().request(&json!({"url": server.url("/"), "credential": kind}));
        let ran = ask(&server, &authority, more, guest, Call::new("op").credentials(vault.clone())).await;
        let failure = ran.error().failure();
        assert_eq!((failure.class, failure.boundary), (Class::CapabilityDenied, Boundary::Manifest));
        assert_eq!(details(&ran), json!({"requested": kind, "granted": granted}));
        assert_eq!(ran.said[0].numbers[..2], [-1, -1]);
        assert!(vault.asked().is_empty() && server.take().is_empty());
    }
}

#[tokio::test]
async fn a_credential_that_is_not_there_is_told_from_one_that_failed() {
    let authority = Authority::new();
    let server = Server::https(&authority).await;
    let required = (Class::BindingRequired, "credential oauth2 is required and was not given");
    let failed = |reason| (Class::BindingFailed, reason);
    for (answer, (class, message)) in [
        (None, required),
        (Some(Ok(None)), required),
        (Some(Ok(Some(""))), required),
        (Some(Err("the vault\nis locked")), failed("credential oauth2: the vault\\nis locked")),
        (Some(Ok(Some("two\nlines"))), failed("credential oauth2: its value cannot be in a header")),
        (Some(Ok(Some("a\r\nX: b"))), failed("credential oauth2: its value cannot be in a header")),
        (Some(Ok(Some("a\0b"))), failed("credential oauth2: its value cannot be in a header")),
    ] {
        let mut call = Call::new("op");
        if let Some(answer) = answer {
            call = call.credentials(Vault::answering(answer));
        }
        let guest = Guest::new().request(&json!({"url": server.url("/"), "credential": "oauth2"}));
        let ran = ask(&server, &authority, OAUTH2, guest, call).await;
        let failure = ran.error().failure();
        assert_eq!((failure.class, &*failure.message), (class, message));
        assert_eq!(failure.boundary, Boundary::Runtime);
        assert_eq!(details(&ran), json!({"requested": "oauth2", "granted": []}));
        assert_eq!(ran.said[0].numbers[..2], [-1, -1]);
        assert!(server.take().is_empty());
    }
}

#[tokio::test]
async fn the_resolver_is_asked_only_if_the_host_is_granted_and_the_way_is_safe() {
    let authority = Authority::new();
    let server = Server::https(&authority).await;
    let vault = Vault::with("k1");
    let runtime = Runtime::builder().at_once(4).build().unwrap();
    let hosts = ["name.example:80", "name.example:443", "192.0.2.1:80"];
    for (url, boundary, message) in [
        (
            server.url("/"),
            Boundary::Manifest,
            format!(
                "request to {}: the manifest does not grant this host; add it to capabilities.network.hosts of the manifest",
                server.authority()
            ),
        ),
        (
            "https://name.example/".to_owned(),
            Boundary::Action,
            "request to name.example:443: the call does not grant this host".to_owned(),
        ),
        (
            "http://name.example/".to_owned(),
            Boundary::Runtime,
            "credential oauth2: it is sent over https only".to_owned(),
        ),
        (
            "http://192.0.2.1/".to_owned(),
            Boundary::Runtime,
            "credential oauth2: it is sent over https only".to_owned(),
        ),
    ] {
        let guest = Guest::new().request(&json!({"url": url, "credential": "oauth2"}));
        let connector = runtime.compile(&granting(&hosts, OAUTH2), &guest.program()).unwrap();
        let call =
            Call::new("op").credentials(vault.clone()).allow_hosts(["name.example:80", "192.0.2.1:80"]);
        let ran = run(&connector, call).await;
        let failure = ran.error().failure();
        assert_eq!((failure.class, failure.boundary), (Class::CapabilityDenied, boundary));
        assert_eq!(failure.message, message);
        assert!(vault.asked().is_empty(), "{url}");
    }
    assert!(server.take().is_empty());
}

#[tokio::test]
async fn a_credential_may_go_to_a_server_of_this_host_without_tls() {
    let (authority, server) = (Authority::new(), Server::http().await);
    let guest = Guest::new().request(&json!({"url": server.url("/"), "credential": "oauth2"}));
    let call = Call::new("op").credentials(Vault::with("k1"));
    ask(&server, &authority, OAUTH2, guest, call).await.ended.unwrap();
    assert_eq!(server.only().headers["authorization"], "Bearer k1");
}
