//! `publish`: programs of this machine reach a server of the sandbox, on loopback only.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use serde_json::json;

use super::Client;
use crate::support::{has, require, until};

#[test]
fn a_server_of_the_sandbox_is_reachable_at_the_address_of_the_result() {
    require!(has("python3"), "python3");
    let mut client = Client::start(&["--net", "none"]);
    client.call("write_file", json!({"path": "page", "content": "hello"}));
    client.succeeds("python3 -m http.server 8000 --bind 127.0.0.1 &");
    let published = client.call("publish", json!({"port": 8000}));
    let address: SocketAddr = published.data("address").as_str().unwrap().parse().unwrap();
    assert!(address.ip().is_loopback() && address.port() != 8000, "{address}");
    assert_eq!(published.data("url"), &json!(format!("http://{address}/")));
    let get = || {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.write_all(b"GET /page HTTP/1.0\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.ends_with("hello").then_some(())
    };
    until("the server answers", || get().is_some());
    assert!(get().is_some(), "and writes its log to a pipe that nobody reads");
    assert_eq!(client.call("publish", json!({"port": 8000})).data("address"), published.data("address"));
    assert_eq!(client.end().0, Some(0));
    assert!(TcpStream::connect(address).is_err(), "it ends with the server");
}

#[test]
fn no_call_chooses_an_address_or_a_port_of_the_machine() {
    let mut client = Client::start(&["--net", "none"]);
    for arguments in [
        json!({"port": "0.0.0.0:8000:8000"}),
        json!({"port": 8000, "address": "0.0.0.0"}),
        json!({"port": 8000, "host_port": 80}),
        json!({"port": 80}),
        json!({"port": 0}),
        json!({"port": 65536}),
        json!({"port": -1}),
        json!({}),
    ] {
        client.call("publish", arguments).refusal();
    }
}
