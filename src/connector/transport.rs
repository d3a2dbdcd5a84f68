//! The default HTTP client: through the gate and the dialler of Kennel's proxy, with TLS.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::{env, fs, io};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::connector::error::too_large;
use crate::connector::http::{HttpClient, Sending, network_error};
use crate::network::dial;
use crate::network::metered::Metered;
use crate::network::proxy::Proxy;
use crate::network::refusal::ProxyRefusal;
use crate::network::stream::{Limited, ReadLimit, Stream};
use crate::policy::network::destination::{Destination, DestinationHost};
use crate::report::denial::ADD_TO_MANIFEST;
use crate::report::error::Error;
use crate::report::failure::{self, Boundary, Class, Details, Failure};

/// Bytes that the head of an answer may have.
const MAX_HEAD: usize = 64 << 10;

/// The trusted certificate authorities: those of the system, and further ones.
#[derive(Default)]
pub(crate) struct Tls {
    further: Vec<CertificateDer<'static>>,
    config: OnceLock<Arc<ClientConfig>>,
}

impl Tls {
    /// Trusts the certificates of a PEM file, too.
    ///
    /// # Errors
    /// The file cannot be read, or has no certificate.
    pub(crate) fn trust(&mut self, path: &Path) -> Result<(), Error> {
        let failed = |source| Error::File {
            what: "read the certificates in",
            path: path.to_owned(),
            source,
            remedy: None,
        };
        let pem = fs::read(path).map_err(failed)?;
        let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        let found = parsed.map_err(|error| failed(io::Error::other(error.to_string())))?;
        if found.is_empty() {
            return Err(failed(io::Error::other("it has no certificate in PEM form")));
        }
        self.further.extend(found);
        Ok(())
    }

    /// Where the environment says that the system's certificates are: a file, and directories.
    pub(crate) fn of_environment() -> Vec<PathBuf> {
        let directories = env::var_os("SSL_CERT_DIR").unwrap_or_default();
        let named = env::split_paths(&directories).chain(env::var_os("SSL_CERT_FILE").map(PathBuf::from));
        named.filter(|path| !path.as_os_str().is_empty()).collect()
    }

    /// The settings of clients. Reads the system's certificates at the first call.
    fn config(&self) -> Result<Arc<ClientConfig>, Failure> {
        if let Some(config) = self.config.get() {
            return Ok(Arc::clone(config));
        }
        let mut roots = RootCertStore::empty();
        // A file that cannot be read leaves out what is in it: its hosts are then not trusted.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots.add_parsable_certificates(self.further.iter().cloned());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| network_error(format!("TLS: {error}")))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Arc::clone(self.config.get_or_init(|| Arc::new(config))))
    }
}

/// The client of one connector.
pub(crate) struct Transport {
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) tls: Arc<Tls>,
    pub(crate) max_body: usize,
}

impl HttpClient for Transport {
    fn send(&self, request: Request<Bytes>) -> Sending<'_> {
        Box::pin(self.exchange(request))
    }
}

impl Transport {
    async fn exchange(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Failure> {
        let (destination, is_tls) = target(request.uri())?;
        let shown = destination.to_string();
        let dialled =
            dial::connect(&self.proxy, destination.clone()).await.map_err(|refusal| refused(&refusal))?;
        let Stream::Tcp(stream) = dialled.stream else {
            return Err(network_error(format!("{shown}: not reached by TCP")));
        };
        let stream = Metered::new(stream, Arc::clone(&self.proxy), dialled.record);
        let answer = if is_tls {
            let connector = TlsConnector::from(self.tls.config()?);
            let name = server_name(&destination.host)?;
            let failed =
                |error: io::Error| network_error(format!("{shown}: TLS: {}", failure::words(&error)));
            let stream = connector.connect(name, stream).await.map_err(failed)?;
            self.over(stream, request).await
        } else {
            self.over(stream, request).await
        };
        answer.map_err(|failure| {
            let message = format!("{shown}: {}", failure.message);
            failure.with_message(message)
        })
    }

    /// Sends a request over a connection, and reads the answer.
    async fn over(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        mut request: Request<Bytes>,
    ) -> Result<Response<Bytes>, Failure> {
        let failed = |error: hyper::Error| network_error(failure::chain(&error));
        let limit = ReadLimit::default();
        limit.set(MAX_HEAD);
        let stream = TokioIo::new(Limited::new(stream, limit.clone()));
        let (mut sender, connection) =
            http1::Builder::new().max_buf_size(MAX_HEAD).handshake(stream).await.map_err(failed)?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection of a connector");
            }
        });
        to_origin_form(&mut request);
        let (head, mut body) =
            sender.send_request(request.map(Full::new)).await.map_err(failed)?.into_parts();
        limit.remove();
        let mut bytes = BytesMut::new();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.map_err(failed)?.into_data() {
                if bytes.len() + data.len() > self.max_body {
                    return Err(too_large("the answer", self.max_body));
                }
                bytes.extend_from_slice(&data);
            }
        }
        Ok(Response::from_parts(head, bytes.freeze()))
    }
}

/// The destination of a URI, and whether it is reached by TLS.
fn target(uri: &Uri) -> Result<(Destination, bool), Failure> {
    let malformed = || network_error("malformed URI".to_owned());
    let is_tls = uri.scheme_str() == Some("https");
    let host = uri.host().and_then(|host| DestinationHost::parse(host).ok()).ok_or_else(malformed)?;
    let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    Ok((Destination { host, port }, is_tls))
}

fn server_name(host: &DestinationHost) -> Result<ServerName<'static>, Failure> {
    match host {
        DestinationHost::Address(address) => Ok(ServerName::IpAddress((*address).into())),
        DestinationHost::Name(name) => ServerName::try_from(name.as_str().to_owned())
            .map_err(|_| network_error(format!("{name}: no server of TLS can have this name"))),
    }
}

/// Moves the host of an absolute URI to the header `DestinationHost`.
fn to_origin_form(request: &mut Request<Bytes>) {
    let uri = request.uri();
    let host = uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).parse();
    *request.uri_mut() = path.unwrap_or_default();
    if let Some(host) = host {
        request.headers_mut().insert(header::HOST, host);
    }
}

/// A refusal of the gate as a failure.
fn refused(refusal: &ProxyRefusal) -> Failure {
    let requested = refusal.subject.clone();
    let message = match refusal.could_be_listed() {
        true => format!("request to {requested}: {refusal}; {ADD_TO_MANIFEST}"),
        false => format!("request to {requested}: {refusal}"),
    };
    let (class, boundary, details) = match refusal.class() {
        Class::CapabilityDenied => {
            let details = Details::Granted { requested, granted: Vec::new() };
            (Class::CapabilityDenied, Boundary::Manifest, details)
        }
        // A later call may reach it.
        Class::NetworkUnreachable | Class::NetworkError => {
            (Class::NetworkError, Boundary::External, Details::None)
        }
        class => (class, Boundary::Runtime, Details::None),
    };
    Failure::new(class, boundary, message, details)
}

#[cfg(test)]
mod tests {
    use url::Url;

    use super::*;
    use crate::connector::http::destination;

    /// The host is checked as the URL has it, and dialled as the URI has it.
    #[test]
    fn every_url_leads_where_it_was_checked() {
        let parts = [
            "http:",
            "https:",
            "HTTP:",
            "/",
            "//",
            "\\",
            "\t",
            "\n",
            "a.example",
            "A.Example",
            "a.example.",
            "evil.example",
            "127.0.0.1",
            "0x7f.1",
            "2130706433",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "[fe80::1%25eth0]",
            "%61",
            "%2e",
            "%00",
            "\u{ff41}",
            "\u{3002}",
            "\u{ad}",
            "ß",
            ":",
            ":80",
            ":443",
            ":0",
            ":65536",
            ":00080",
            "@",
            "?",
            "#",
            " ",
            "&",
            ";",
            "'",
            "|",
            "^",
            "{",
            "}",
            "`",
            "\"",
            "<",
            "é",
            "_",
            "~",
            "!",
            "..",
        ];
        let mut state = 1_u64;
        let mut next = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let mut found = 0;
        for _ in 0..200_000 {
            let start = ["http://", "https://", "http:", "", "http:\\"][next(5)].to_owned();
            let text = (0..=next(6)).fold(start, |text, _| text + parts[next(parts.len())]);
            let Ok(url) = Url::parse(&text) else { continue };
            let Ok(checked) = destination(&url) else { continue };
            let mut url = url;
            url.set_fragment(None);
            let Ok(uri) = url.as_str().parse::<Uri>() else { continue };
            let (dialled, is_tls) = target(&uri).unwrap_or_else(|error| panic!("{text}: {}", error.message));
            assert_eq!((dialled, is_tls), (checked, url.scheme() == "https"), "{text}");
            found += 1;
        }
        assert!(found > 1000, "{found}");
    }
}
