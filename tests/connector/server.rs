//! A small web server on loopback, with and without TLS. It keeps what it got, and answers by path, also as
//! no server should.
//!
//! It reads and writes HTTP by itself, because the libraries write nothing that is wrong.

use std::collections::BTreeMap;
use std::fs;
use std::io::Result;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// A certificate authority of its own.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    place: TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("ca.pem"), parameters.self_signed(&key).unwrap().pem()).unwrap();
        Self { issuer: Issuer::new(parameters, key), place }
    }

    /// The file with its certificate.
    pub(crate) fn file(&self) -> PathBuf {
        self.place.path().join("ca.pem")
    }

    fn acceptor(&self, name: &str) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let parameters = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }
}

/// A request that a server got.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    /// By names in lower case. Several of one name are joined by `|`.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

/// A server. It ends when this is dropped.
pub(crate) struct Server {
    scheme: &'static str,
    host: &'static str,
    pub(crate) port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// How many clients left while they waited for an answer.
    left: watch::Receiver<u32>,
    _served: JoinSet<()>,
}

impl Server {
    /// Without TLS, at 127.0.0.1.
    pub(crate) async fn http() -> Self {
        Self::start("http", "127.0.0.1", None).await
    }

    /// With TLS, and a certificate for 127.0.0.1.
    pub(crate) async fn https(authority: &Authority) -> Self {
        Self::start("https", "127.0.0.1", Some(authority.acceptor("127.0.0.1"))).await
    }

    /// With TLS, called by a name that is in the hosts file, and a certificate for `certified`.
    pub(crate) async fn https_as(authority: &Authority, host: &'static str, certified: &'static str) -> Self {
        Self::start("https", host, Some(authority.acceptor(certified))).await
    }

    async fn start(scheme: &'static str, host: &'static str, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (leaves, left) = watch::channel(0);
        let mut served = JoinSet::new();
        served.spawn(accept(listener, tls, Arc::clone(&seen), leaves));
        Self { scheme, host, port, seen, left, _served: served }
    }

    /// Its host and port, as manifests have it.
    pub(crate) fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.authority())
    }

    /// What it got, and forgets it.
    pub(crate) fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }

    /// The only request that it got.
    pub(crate) fn only(&self) -> Seen {
        let mut seen = self.take();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.remove(0)
    }

    /// Waits until so many clients have left while they waited for an answer.
    pub(crate) async fn left(&mut self, clients: u32) {
        self.left.wait_for(|left| *left == clients).await.unwrap();
    }

    /// Waits until it has got a request.
    pub(crate) async fn asked(&self) {
        while self.seen.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    seen: Arc<Mutex<Vec<Seen>>>,
    leaves: watch::Sender<u32>,
) {
    let mut served = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, seen, leaves) = (tls.clone(), Arc::clone(&seen), leaves.clone());
        // A client may leave at any time.
        served.spawn(async move {
            let _ = match tls {
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => serve(stream, &seen, &leaves).await,
                    Err(error) => Err(error),
                },
                None => serve(stream, &seen, &leaves).await,
            };
        });
    }
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    seen: &Mutex<Vec<Seen>>,
    leaves: &watch::Sender<u32>,
) -> Result<()> {
    let request = read(&mut stream).await?;
    let path = request.path.clone();
    seen.lock().unwrap().push(request);
    if path == "/never" {
        // Until the client leaves, with or without a word.
        let _ = stream.read_u8().await;
        leaves.send_modify(|left| *left += 1);
        return Ok(());
    }
    answer(&mut stream, &path).await?;
    stream.shutdown().await
}

/// Reads one request.
async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Seen> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.trim_end().split("\r\n");
    let mut words = lines.next().unwrap().split(' ');
    let (method, path) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
    let mut headers: BTreeMap<String, String> = BTreeMap::new();
    for line in lines {
        let (name, value) = line.split_once(": ").unwrap();
        let joined = headers.entry(name.to_ascii_lowercase()).or_default();
        if !joined.is_empty() {
            joined.push('|');
        }
        joined.push_str(value);
    }
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Seen { method, path, headers, body: String::from_utf8(body).unwrap() })
}

/// Answers. The path is one word, then what it needs.
async fn answer(stream: &mut (impl AsyncWrite + Unpin), path: &str) -> Result<()> {
    let (word, rest) = path[1..].split_once('/').unwrap_or((&path[1..], ""));
    match word {
        "status" => plain(stream, rest.split('?').next().unwrap(), "", "short").await,
        // The status, then the URL.
        "redirect" => {
            let (status, to) = rest.split_once('/').unwrap();
            plain(stream, status, &format!("Location: {}\r\n", to), "moved").await
        }
        "redirect-far" => {
            plain(stream, "302", &format!("Location: /{}\r\n", "<".repeat(20_000)), "moved").await
        }
        "loop" => plain(stream, "302", "Location: /loop\r\n", "moved").await,
        // A number of bytes.
        "body" => plain(stream, "200", "", &"x".repeat(rest.parse().unwrap())).await,
        // Less than it says.
        "short" => stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nfew bytes").await,
        "endless-body" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await?;
            let chunk = format!("4000\r\n{}\r\n", "x".repeat(0x4000));
            loop {
                stream.write_all(chunk.as_bytes()).await?;
            }
        }
        "endless-head" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nX: ").await?;
            loop {
                stream.write_all(&[b'x'; 0x4000]).await?;
            }
        }
        "endless-interim" => loop {
            stream.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n").await?;
        },
        "nonsense" => stream.write_all(b"SSH-2.0-OpenSSH_9.7\r\n\r\n").await,
        "messages?count=2" => {
            plain(stream, "200", "", r#"{"messages": [{"from": "a", "unread": true}, {"from": "b"}]}"#).await
        }
        // Half of a body, then nothing.
        "half" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf").await?;
            stream.flush().await?;
            std::future::pending().await
        }
        _ => plain(stream, "200", "", "hello").await,
    }
}

async fn plain(
    stream: &mut (impl AsyncWrite + Unpin),
    status: &str,
    headers: &str,
    body: &str,
) -> Result<()> {
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status} X\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await
}
