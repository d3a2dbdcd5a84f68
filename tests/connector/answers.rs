//! Answers of servers that are slow, endless, not trusted, or none.

use std::time::Duration;

use kennel::connector::{Call, CallLimits};
use kennel::report::{Boundary, Class, Details, Limit};
use serde_json::json;

use crate::credentials::{Vault, granting};
use crate::requests::{ask, builder, called, details, not_done, said};
use crate::server::{Authority, Server};
use crate::steps::Guest;

fn within(time: Duration) -> Call {
    Call::new("op").limits(CallLimits { wall_time: Some(time), ..CallLimits::default() })
}

#[tokio::test]
async fn a_body_ends_at_its_cap() {
    let server = Server::http().await;
    let own = server.authority();
    let size = |path: &str| {
        let guest = Guest::new().request(&json!({"url": server.url(path)}));
        let (own, builder) = (own.clone(), builder().max_body(1000));
        async move { called(builder, &[&own], guest, Call::new("op")).await }
    };
    assert_eq!(size("/body/1000").await.said, [said(0, 200, 1000, &"x".repeat(1000), 0)]);
    for path in ["/body/1001", "/endless-body"] {
        let ran = size(path).await;
        let failure = ran.error().failure();
        assert_eq!((failure.class, failure.boundary), (Class::ResourceLimitExceeded, Boundary::Runtime));
        assert_eq!(failure.message, format!("{own}: the answer has more than 1000 bytes"));
        assert_eq!(details(&ran), json!({"limit": "output", "configured": "1000 bytes"}));
        assert_eq!(ran.said, [not_done(-1)]);
        assert!(matches!(failure.details, Details::Limit { limit: Limit::Output, .. }));
    }
    // The default.
    let guest = Guest::new().request(&json!({"url": server.url("/endless-body")}));
    let ran = ask(&[&own], guest).await;
    assert_eq!(details(&ran)["configured"], "10485760 bytes");
}

#[tokio::test]
async fn answers_that_are_none_are_errors_of_the_network() {
    let server = Server::http().await;
    let own = server.authority();
    for path in ["/endless-head", "/endless-interim", "/nonsense", "/short"] {
        let ran = ask(&[&own], Guest::new().request(&json!({"url": server.url(path)}))).await;
        let failure = ran.error().failure();
        assert_eq!(
            (failure.class, failure.boundary, failure.retriable),
            (Class::NetworkError, Boundary::External, true)
        );
        assert!(failure.message.starts_with(&format!("{own}: ")), "{path} {}", failure.message);
        assert_eq!(ran.said, [not_done(-1)], "{path}");
    }
    drop(server);
    let ran = ask(&[&own], Guest::new().request(&json!({"url": format!("http://{own}/")}))).await;
    let failure = ran.error().failure();
    assert_eq!((failure.class, failure.retriable), (Class::NetworkError, true), "{}", failure.message);
    assert_eq!(failure.message, format!("request to {own}: it cannot be reached: Connection refused"));
}

#[tokio::test]
async fn a_server_whose_certificate_is_not_trusted_gets_no_request() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = Server::https(&authority).await;
    let own = server.authority();
    let guest = || Guest::new().request(&json!({"url": server.url("/"), "credential": "oauth2"}));
    let call = || Call::new("op").credentials(Vault::with("k1"));
    for builder in [builder(), builder().certificate_authority(other.file())] {
        let ran = called(builder, &[&own], guest(), call()).await;
        let failure = ran.error().failure();
        assert_eq!(failure.class, Class::NetworkError);
        assert!(
            failure.message.starts_with(&format!("{own}: TLS: invalid peer certificate")),
            "{}",
            failure.message
        );
    }
    let both = builder().certificate_authority(other.file()).certificate_authority(authority.file());
    called(both, &[&own], guest(), call()).await.ended.unwrap();
    server.only();
}

#[tokio::test]
async fn a_file_without_certificates_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("empty.pem");
    let error = |message: &str| {
        let error = builder().certificate_authority(&file).build().unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    };
    error("No such file");
    std::fs::write(&file, "").unwrap();
    error("no certificate");
    std::fs::write(&file, "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n").unwrap();
    error("empty.pem");
}

#[tokio::test]
async fn a_silent_server_ends_with_the_wall_time() {
    let mut server = Server::http().await;
    for (path, number) in [("/never", 1), ("/half", 1), ("/never", 2)] {
        let guest = Guest::new().request(&json!({"url": server.url(path)}));
        let call = within(Duration::from_millis(300));
        let ran = called(builder(), &[&server.authority()], guest, call).await;
        assert_eq!(ran.error().failure().class, Class::ResourceLimitExceeded);
        assert_eq!(details(&ran), json!({"limit": "wall_time", "configured": "300ms"}));
        server.left(number).await;
    }
}

#[tokio::test]
async fn a_dropped_call_closes_its_connection() {
    let mut server = Server::http().await;
    let program = Guest::new().request(&json!({"url": server.url("/never")})).program();
    let runtime = builder().at_once(1).build().unwrap();
    let connector = runtime.compile(&granting(&[&server.authority()], ""), &program).unwrap();
    for number in 1..4 {
        tokio::select! {
            ended = connector.invoke(Call::new("op")) => unreachable!("{ended:?}"),
            () = server.asked() => {}
        }
        server.only();
        server.left(number).await;
    }
}
