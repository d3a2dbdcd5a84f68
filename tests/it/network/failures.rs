//! What is allowed and cannot be reached is explained: in the report, and in a hint where hints are wanted.

use std::process::Command;

use serde_json::Value;

use super::{
    ClosedPort, Net, Origin, at,
    names::{NameServer, Reply},
    stderr,
    upstream::Upstream,
    words,
};
use crate::support::{has, report, require};

/// `destination cause` of each failure of a report.
fn causes(report: &Value) -> Vec<String> {
    let failures = report["network_failures"].as_array().unwrap();
    let text = |failure: &Value, key: &str| failure[key].as_str().unwrap().to_owned();
    failures
        .iter()
        .map(|failure| format!("{} {}", text(failure, "destination"), text(failure, "cause")))
        .collect()
}

fn names() -> NameServer {
    NameServer::answering(|name, _| match name {
        "none.test" => Reply::NoSuchName,
        "broken.test" => Reply::Failure,
        _ => [127, 0, 0, 1].into(),
    })
}

#[test]
fn each_kind_of_failure_is_in_the_report_and_no_denial() {
    require!(has("curl"), "curl");
    let net = Net::with(names());
    let (closed, mute) = (ClosedPort::new(), super::Server::start(|_, _| ()));
    let [local, named] = ["localhost", "one.test"].map(|name| at(name, closed.port));
    let silent = at("one.test", mute.port);
    let flags = net.flags(&[&local, &named, &silent, "none.test:80", "broken.test:80"], &[]);
    let script = format!(
        "curl -s http://none.test/; curl -s -p http://none.test/; curl -s http://broken.test/; curl -s http://{local}/; \
         curl -s http://{named}/; curl -s http://{silent}/; exit 7"
    );
    let (output, report) = report(net.path(), &words(&flags), &["sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let expected = [
        "none.test:80 name".to_owned(),
        "broken.test:80 name".to_owned(),
        format!("{local} refused"),
        format!("{named} refused"),
        format!("{silent} broken"),
    ];
    assert_eq!(causes(&report), expected, "{report}");
    assert_eq!(report["denials"].as_array().map(Vec::len), Some(0), "{report}");
    let reason = &report["network_failures"][0]["reason"];
    assert_eq!(reason, "it cannot be reached: its name does not resolve: it has no address");
    assert_eq!(stderr(&output), "", "no hint was asked for");
}

#[test]
fn an_explanation_says_it_and_a_success_does_not() {
    require!(has("curl"), "curl");
    let net = Net::with(names());
    let closed = ClosedPort::new();
    let to = at("localhost", closed.port);
    let flags = net.flags(&[&to, "none.test:443"], &["--explain"]);
    let said = stderr(&net.shell(&flags, &format!("curl -s http://{to}/ || curl -s https://none.test/")));
    let expected = [
        format!("kennel: hint: {to}: it cannot be reached: Connection refused"),
        "kennel: hint: none.test:443: it cannot be reached: its name does not resolve: it has no address"
            .to_owned(),
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    let said = stderr(&net.shell(&flags, &format!("curl -s http://{to}/; true")));
    assert_eq!(said, "");
}

/// A command may wait for its server.
#[test]
fn what_is_reached_later_is_no_failure() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let closed = ClosedPort::new();
    let to = at("localhost", closed.port);
    let flags = net.flags(&[&to], &["--explain"]);
    let path = net.path().join("asked");
    let start = std::thread::spawn(move || {
        while !path.exists() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Origin::of(closed.open(), |_| super::answer(200, b"here\n"))
    });
    let script =
        format!("curl -s http://{to}/; touch asked; until curl -s http://{to}/; do sleep 0.05; done; exit 3");
    let (output, report) = report(net.path(), &words(&flags), &["sh", "-c", &script]);
    drop(start.join().unwrap());
    assert_eq!((causes(&report), stderr(&output)), (Vec::new(), String::new()), "{output:?}");
}

#[test]
fn a_proxy_that_only_the_environment_names_is_the_remedy() {
    require!(has("curl"), "curl");
    let net = Net::with(names());
    let origin = Origin::named("one");
    let upstream = Upstream::to(origin.port());
    let closed = ClosedPort::new();
    let local = at("localhost", closed.port);
    let run = |more: &[&str], script: &str| {
        let flags = net.flags(&["none.test:80", "none.corp.test:80", &local], more);
        let mut command: Command = net.command(&flags, &["sh", "-c", script]);
        command.env("https_proxy", upstream.url()).env("no_proxy", "corp.test");
        command.output().unwrap()
    };
    let hint = "kennel: hint: none.test:80: it cannot be reached: its name does not resolve: it has no address; --upstream \
                environment goes through the proxy that your https_proxy names";
    let said = stderr(&run(&["--explain"], "curl -fs http://none.test/"));
    assert_eq!(said.trim_end(), hint);
    // It would not lead to the host's own loopback.
    let said = stderr(&run(&["--explain"], &format!("curl -fs http://{local}/")));
    assert!(said.starts_with("kennel: hint: ") && !said.contains("--upstream"), "{said}");
    assert!(run(&["--upstream", "environment"], "curl -fs -p http://none.test/").status.success());
    let no = Upstream::leading(|_| Err("HTTP/1.1 503 No\r\n\r\n"));
    let flags = net.flags(&["none.test:80"], &["--upstream", &no.url()]);
    let (_, report) = report(net.path(), &words(&flags), &["curl", "-s", "-p", "http://none.test/"]);
    assert_eq!(causes(&report), ["none.test:80 upstream"]);
    let reason = report["network_failures"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("the upstream proxy answered 503"), "{reason}");
}

/// What a package manager downloads is lost with the sandbox.
#[test]
fn downloads_into_a_private_cache_name_the_flag_that_keeps_them() {
    require!(has("curl"), "curl");
    require!(crate::overlay::in_memory(), "copy-on-write layers, Linux 6.6");
    let net = Net::new();
    let origin = Origin::named("one");
    let upstream = Upstream::to(origin.port());
    let said = |more: &[&str], host: &str| {
        let url = upstream.url();
        let more = [&["--explain", "--upstream", &url], more].concat();
        let flags = net.strict(&["@cargo", "@github"], &more);
        stderr(&net.shell(&flags, &format!("curl -s -p -o body http://{host}:443/crate")))
    };
    let line = "kennel: hint: caches: what it downloaded from @cargo is gone with the sandbox; --caches keep keeps it for the \
                next one";
    assert_eq!(said(&[], "static.crates.io"), line);
    assert_eq!(said(&["--caches", "read-only"], "static.crates.io"), "");
    assert_eq!(said(&[], "github.com"), "", "no package manager keeps that");
}
