//! Many connections at once: all are served in turn, and none leaves anything.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    process::{Child, Stdio},
};

use super::{Net, Origin, PROXY, Server, at};
use crate::support::{payload_path, require, until};

/// `kennel run` with many clients inside.
struct Crowd {
    kennel: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Crowd {
    /// Opens this many connections and sends `text` on each.
    fn gather(net: &Net, flags: &[String], count: usize, text: &str, beside: &str) -> Self {
        let grant = format!("{}:/payload", payload_path().display());
        let flags: Vec<String> = [flags, &["--ro".to_owned(), grant]].concat();
        let script = format!("{beside}\nexec /payload crowd {PROXY} {count} \"$0\"");
        let mut command = net.command(&flags, &["sh", "-c", &script, text]);
        let mut kennel =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let said = BufReader::new(kennel.stdout.take().unwrap());
        Self { kennel, said }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn go_on(&mut self) {
        let stdin = self.kennel.stdin.as_mut().unwrap();
        stdin.write_all(b"\n").unwrap();
    }

    fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.kennel.id())).unwrap().count()
    }

    fn memory_kib(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.kennel.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        let _ = self.kennel.kill();
        let _ = self.kennel.wait();
    }
}

/// The number of descriptors that the tests may have open.
fn descriptors() -> u64 {
    nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap().1
}

#[test]
fn two_thousand_silent_connections_delay_nobody() {
    require!(descriptors() >= 10_000, "10,000 descriptors");
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let get = format!(">GET http://{to}/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n");
    let beside =
        format!("(sleep 0.7; for n in 1 2 3; do /payload talk {PROXY} '{get}' '!' '<'; done) >out &");
    let mut crowd = Crowd::gather(&net, &net.flags(&[&to], &[]), 2000, "", &beside);
    assert_eq!(crowd.line(), "2000 ok");
    until("all are taken", || crowd.descriptors() >= 2000);
    until("three answers", || {
        let said = fs::read_to_string(net.path().join("out")).unwrap_or_default();
        said.matches("one: /\n").count() == 3
    });
    assert!(crowd.descriptors() >= 2000, "they are still there");
    crowd.go_on();
    assert_eq!(crowd.line(), "closed");
    until("all are gone", || crowd.descriptors() < 40);
}

#[test]
fn a_thousand_tunnels_are_all_served_and_leave_nothing() {
    require!(descriptors() >= 10_000, "10,000 descriptors");
    let net = Net::new();
    let (server, kept) = (Server::echo(), 1000);
    let to = at("one.test", server.port);
    let connect = format!("CONNECT {to} HTTP/1.1\\r\\n\\r\\nhello");
    let mut crowd = Crowd::gather(&net, &net.flags(&[&to], &[]), kept, &connect, "");
    assert_eq!(crowd.line(), "1000 ok");
    until("all are through", || server.accepted() == kept);
    let each = crowd.memory_kib() / kept;
    assert!(each < 100, "{each} KiB each, in a debug build");
    crowd.go_on();
    assert_eq!(crowd.line(), "closed");
    until("all are gone", || crowd.descriptors() < 40);
}

#[test]
fn ten_thousand_connections_wait_and_break_nothing() {
    require!(descriptors() >= 15_000, "15,000 descriptors");
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let mut crowd = Crowd::gather(&net, &net.flags(&[&to], &[]), 10_000, "", "");
    assert_eq!(crowd.line(), "10000 ok");
    until("as many as may are taken", || crowd.descriptors() >= 3000);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(crowd.descriptors() < 4096 + 100, "{}", crowd.descriptors());
    crowd.go_on();
    assert_eq!(crowd.line(), "closed");
    until("all are gone", || crowd.descriptors() < 40);
    crowd.go_on();
    assert_eq!(crowd.kennel.wait().unwrap().code(), Some(0));
}
