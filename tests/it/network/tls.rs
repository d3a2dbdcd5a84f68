//! HTTPS and HTTP/2: both ends decide what is inside a tunnel.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use super::{Net, at, stderr};
use crate::support::{has, require};

/// A server with a certificate of the test's own authority: HTTP/1.1 and HTTP/2 on one port, by node.
pub struct Secure {
    pub port: u16,
    node: Child,
}

const SERVER: &str = "const fs = require('fs'), [cert, key] = process.argv.slice(1).map(f => fs.readFileSync(f));\
    const server = require('http2').createSecureServer({ cert, key, allowHTTP1: true }, (req, res) => {\
      let size = 0; req.on('data', part => size += part.length);\
      req.on('end', () => {\
        if (req.url === '/big') return res.end(Buffer.alloc(20e6, 'kennel'));\
        res.end(`HTTP/${req.httpVersion} ${req.url} ${size}\\n`);\
      });\
    });\
    server.listen(0, '127.0.0.1', () => console.log(server.address().port));";

impl Secure {
    /// Writes the certificate of the authority to `ca.pem` in the workspace.
    pub fn start(workspace: &Path) -> Self {
        let (cert, key) = (workspace.join("ca.pem"), workspace.join("key.pem"));
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
            .args(["-days", "2", "-subj", "/CN=kennel test", "-addext"])
            .arg("subjectAltName=DNS:one.test,DNS:*.two.test")
            .args(["-keyout".as_ref(), key.as_os_str(), "-out".as_ref(), cert.as_os_str()])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let mut command = Command::new("node");
        command.args(["-e", SERVER]).args([&cert, &key]).stdout(Stdio::piped());
        let mut node = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(node.stdout.take().unwrap()).read_line(&mut line).unwrap();
        fs::remove_file(key).unwrap();
        Self { port: line.trim().parse().unwrap(), node }
    }
}

impl Drop for Secure {
    fn drop(&mut self) {
        let _ = self.node.kill();
        let _ = self.node.wait();
    }
}

#[test]
fn https_and_http_2_go_through_a_tunnel() {
    require!(has("curl") && has("openssl") && has("node"), "curl, openssl and node");
    let net = Net::new();
    let server = Secure::start(net.path());
    let to = at("one.test", server.port);
    let flags = net.flags(&[&to], &[]);
    let curl = "curl -sS --cacert ca.pem";
    let script = format!(
        "{curl} --http1.1 https://{to}/a && {curl} --http2 https://{to}/b -d xyz && \
         {curl} --http2 -x socks5h://127.0.0.1:3128 https://{to}/c"
    );
    assert_eq!(net.says(&flags, &script), "HTTP/1.1 /a 0\nHTTP/2.0 /b 3\nHTTP/2.0 /c 0");
    // One tunnel, many streams.
    let script = format!("{curl} --http2 -Z {}", format!("https://{to}/s ").repeat(20));
    assert_eq!(net.says(&flags, &script), ["HTTP/2.0 /s 0"; 20].join("\n"));
    let script = format!("{curl} https://{to}/big | sha256sum; printf 'kennel%.0s' 1 | wc -c");
    let outside = Command::new("sh")
        .args(["-c", "yes kennel | tr -d '\\n' | head -c 20000000 | sha256sum; echo 6"])
        .output()
        .unwrap();
    assert_eq!(net.says(&flags, &script), super::stdout(&outside));
}

#[test]
fn a_certificate_is_the_server_s_own() {
    require!(has("curl") && has("openssl") && has("node"), "curl, openssl and node");
    let net = Net::new();
    let server = Secure::start(net.path());
    let to = at("one.test", server.port);
    let wrong = at("wrong.test", server.port);
    let flags = net.flags(&[&to, &wrong], &[]);
    // Nobody is in between: an unknown authority and a wrong name still fail.
    for (script, words) in [
        (format!("curl -sS https://{to}/"), "self-signed certificate"),
        (format!("curl -sS --cacert ca.pem https://{wrong}/"), "no alternative certificate subject name"),
    ] {
        let output = net.shell(&flags, &script);
        assert_eq!(output.status.code(), Some(60), "{output:?}");
        assert!(stderr(&output).contains(words), "{output:?}");
    }
}

#[test]
fn a_refused_tunnel_is_reported() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let output = net.shell(&net.flags(&[], &[]), "curl -sSv https://one.test/");
    assert_eq!(output.status.code(), Some(56), "{output:?}");
    let said = stderr(&output);
    assert!(said.contains("HTTP/1.1 403 Forbidden") && said.contains("x-kennel-deny: not-allowed"), "{said}");
    assert!(said.contains("kennel: denied: one.test:443: "), "{said}");
}
