//! A registry on loopback that does what a test tells it, and remembers what it was asked.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{ServerConfig, ServerConnection, StreamOwned, pki_types::PrivateKeyDer};
use serde_json::{Value, json};

use super::fixtures::{Image, digest, hex};

/// What somebody asked.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) method: String,
    /// With the query.
    pub(super) path: String,
    /// By names in lower case.
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: String,
    /// How often this was asked before.
    pub(super) earlier: usize,
}

impl Request {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(super) fn is_blob(&self) -> bool {
        self.path.contains("/blobs/")
    }
}

/// What it gets.
#[derive(Clone, Debug)]
pub(super) struct Response {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// After how many bytes of the body the connection is cut.
    cut: Option<usize>,
}

impl Response {
    pub(super) fn new(status: u16, body: impl AsRef<[u8]>) -> Self {
        Self { status, headers: Vec::new(), body: body.as_ref().to_owned(), cut: None }
    }

    /// The error that OCI defines.
    pub(super) fn error(status: u16, message: &str) -> Self {
        Self::new(status, json!({ "errors": [{ "code": "CODE", "message": message }] }).to_string())
    }

    pub(super) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(super) fn cut_after(mut self, bytes: usize) -> Self {
        self.cut = Some(bytes);
        self
    }

    fn write(&self, method: &str, to: &mut impl Write) {
        let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", self.status);
        head += &format!("Content-Length: {}\r\n", self.body.len());
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        let body = self.body.get(..self.cut.unwrap_or(self.body.len())).unwrap();
        let body = if method == "HEAD" { &[][..] } else { body };
        // Who asked may be gone.
        let _ = to.write_all(&[head.as_bytes(), b"\r\n", body].concat()).and_then(|()| to.flush());
    }
}

type Handler = dyn Fn(&Request) -> Response + Send + Sync;

fn tls(certificate: &Certificate, key: &KeyPair) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = builder.unwrap().with_no_client_auth();
    Arc::new(config.with_single_cert(vec![certificate.der().clone()], key).unwrap())
}

/// A server at a port of its own. It ends with this.
pub(super) struct Registry {
    /// `127.0.0.1:PORT`
    pub(super) host: String,
    log: Arc<Mutex<Vec<Request>>>,
    is_over: Arc<AtomicBool>,
    listener: Option<thread::JoinHandle<()>>,
}

impl Registry {
    pub(super) fn start(handler: impl Fn(&Request) -> Response + Send + Sync + 'static) -> Self {
        Self::serve(None, handler)
    }

    /// One that speaks TLS, whose certificate an authority of its own has signed: the text is that one's.
    pub(super) fn with_tls(content: Content) -> (Self, String) {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = parameters.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(parameters, key);
        let key = KeyPair::generate().unwrap();
        let names = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = names.signed_by(&key, &issuer).unwrap();
        (Self::serve(Some(tls(&certificate, &key)), move |request| content.answer(request)), authority)
    }

    /// One that shows the certificate of an authority as its own: the text is that.
    pub(super) fn as_authority() -> (Self, String) {
        let mut parameters = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        let registry = Self::serve(Some(tls(&certificate, &key)), |_| unreachable!());
        (registry, certificate.pem())
    }

    fn serve(
        tls: Option<Arc<ServerConfig>>,
        handler: impl Fn(&Request) -> Response + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let (log, is_over) = (Arc::<Mutex<Vec<Request>>>::default(), Arc::<AtomicBool>::default());
        let handler: Arc<Handler> = Arc::new(handler);
        let (shared, ends) = (Arc::clone(&log), Arc::clone(&is_over));
        let accept = move || {
            for stream in listener.incoming() {
                if ends.load(SeqCst) {
                    return;
                }
                let (log, handler) = (Arc::clone(&shared), Arc::clone(&handler));
                let (tls, stream) = (tls.clone(), stream.unwrap());
                thread::spawn(move || match tls {
                    None if is_tls(&stream) => {
                        let _ = (&stream).write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
                    }
                    None => serve(stream, &log, &*handler),
                    Some(config) => {
                        let connection = ServerConnection::new(config).unwrap();
                        serve(StreamOwned::new(connection, stream), &log, &*handler);
                    }
                });
            }
        };
        Self { host, log, is_over, listener: Some(thread::spawn(accept)) }
    }

    /// One that has this.
    pub(super) fn of(content: Content) -> Self {
        Self::start(move |request| content.answer(request))
    }

    /// All requests until now, which are then forgotten: `GET /v2/…`.
    pub(super) fn asked(&self) -> Vec<String> {
        self.requests().iter().map(|it| format!("{} {}", it.method, it.path)).collect()
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.is_over.store(true, SeqCst);
        let _ = TcpStream::connect(&self.host);
        let _ = self.listener.take().unwrap().join();
    }
}

/// Whether somebody speaks TLS.
fn is_tls(stream: &TcpStream) -> bool {
    let mut first = [0];
    stream.peek(&mut first).is_ok_and(|count| count > 0) && first == [0x16]
}

/// Answers one request. What is none gets nothing.
fn serve(stream: impl Read + Write, log: &Mutex<Vec<Request>>, handler: &Handler) {
    let mut reader = BufReader::new(stream);
    let mut line = || {
        let mut line = Vec::new();
        let _ = reader.read_until(b'\n', &mut line);
        String::from_utf8_lossy(&line).trim_end().to_owned()
    };
    let first = line();
    let words: Vec<&str> = first.split(' ').collect();
    let [method, path, "HTTP/1.1"] = words[..] else { return };
    let mut headers = BTreeMap::new();
    while let Some((name, value)) = line().split_once(": ") {
        headers.insert(name.to_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let mut request = Request {
        method: method.to_owned(),
        path: path.to_owned(),
        headers,
        body: String::from_utf8(body).unwrap(),
        earlier: 0,
    };
    {
        let mut log = log.lock().unwrap();
        request.earlier = log.iter().filter(|it| it.method == method && it.path == path).count();
        log.push(request.clone());
    }
    handler(&request).write(method, reader.get_mut());
}

/// What a registry has, by paths.
#[derive(Clone, Default)]
pub(super) struct Content(BTreeMap<String, Vec<u8>>);

impl Content {
    /// An image with a tag.
    pub(super) fn of(image: &Image, repository: &str, tag: &str) -> Self {
        let mut content = Self::default();
        let manifest = content.image(image, repository);
        content.tag(repository, tag, &manifest);
        content
    }

    /// Adds an image; the answer is its manifest.
    pub(super) fn image(&mut self, image: &Image, repository: &str) -> Vec<u8> {
        let files: BTreeMap<String, Vec<u8>> = image.layout(None).into_iter().collect();
        let index: Value = serde_json::from_slice(&files["index.json"]).unwrap();
        let name = index["manifests"][0]["digest"].as_str().unwrap().replace("sha256:", "blobs/sha256/");
        for (name, content) in &files {
            if name.starts_with("blobs/") {
                self.blob(repository, content);
            }
        }
        self.manifest(repository, &files[&name]);
        files[&name].clone()
    }

    pub(super) fn blob(&mut self, repository: &str, content: &[u8]) {
        self.0.insert(format!("/v2/{repository}/blobs/{}", digest(content)), content.to_owned());
    }

    pub(super) fn manifest(&mut self, repository: &str, text: &[u8]) {
        self.tag(repository, &digest(text), text);
    }

    pub(super) fn tag(&mut self, repository: &str, tag: &str, text: &[u8]) {
        self.0.insert(format!("/v2/{repository}/manifests/{tag}"), text.to_owned());
    }

    /// Replaces what is at a path that ends so.
    pub(super) fn replace(&mut self, end: &str, with: &[u8]) {
        let path = self.0.keys().find(|path| path.ends_with(end)).unwrap().clone();
        self.0.insert(path, with.to_owned());
    }

    /// What a good registry answers.
    pub(super) fn answer(&self, request: &Request) -> Response {
        let Some(content) = self.0.get(&request.path) else { return Response::error(404, "unknown") };
        let range = request.header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
        let found = match range.map(|start| start.parse::<usize>().unwrap()) {
            None => Response::new(200, content),
            Some(start) => {
                let range = format!("bytes {start}-{}/{}", content.len() - 1, content.len());
                Response::new(206, &content[start..]).with("Content-Range", range)
            }
        };
        found.with("Docker-Content-Digest", digest(content))
    }
}

/// An entry of an index.
pub(super) fn entry(text: &[u8], platform: &str) -> Value {
    let (os, architecture) = platform.split_once('/').unwrap();
    json!({
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": digest(text),
        "size": text.len(),
        "platform": { "os": os, "architecture": architecture },
    })
}

pub(super) fn index(entries: &[Value]) -> Vec<u8> {
    json!({ "schemaVersion": 2, "manifests": entries }).to_string().into_bytes()
}

/// The end of the path of a layer.
pub(super) fn path_of(blob: &[u8]) -> String {
    format!("sha256:{}", hex(blob))
}
