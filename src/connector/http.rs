//! Requests of a program: what it asks for, whether that is granted, its credential, and redirects.
//! `transport` sends them.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use serde::Deserialize;
use url::Url;
use zeroize::Zeroizing;

use crate::audit::record::{CredentialUse, Record};
use crate::broker::checked::CredentialResolver;
use crate::broker::manifest::connector::{Credential, SET_BY_KENNEL};
use crate::connector::error::{denied, too_large};
use crate::network::proxy::Proxy;
use crate::network::refusal::{ProxyRefusal, Reason};
use crate::policy::network::destination::{Destination, DestinationHost};
use crate::policy::network::rule::Rules;
use crate::policy::text;
use crate::report::denial::ADD_TO_MANIFEST;
use crate::report::error::Error;
use crate::report::error::policy::escaped_value;
use crate::report::failure::{self, Boundary, Class, Details, Failure};

/// The future that [`HttpClient::send`] returns.
pub type Sending<'c> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, Failure>> + Send + 'c>>;

/// Sends one request and reads the whole answer. It follows no redirect: Kennel checks where that leads, and
/// sends another request. The default connects through the gate of Kennel's proxy; another one serves tests
/// without a network.
///
/// ```
/// use bytes::Bytes;
/// use hyper::{Request, Response};
/// use kennel::connector::{HttpClient, Runtime, Sending};
///
/// struct Canned;
///
/// impl HttpClient for Canned {
///     fn send(&self, request: Request<Bytes>) -> Sending<'_> {
///         Box::pin(async move { Ok(Response::new(Bytes::from(request.uri().path().to_owned()))) })
///     }
/// }
///
/// let runtime = Runtime::builder().http_client(Canned).build()?;
/// # Ok::<(), kennel::connector::ConnectorError>(())
/// ```
pub trait HttpClient: Send + Sync {
    /// Sends a request. Its URI is absolute, and its host is granted. A header with a credential is marked as
    /// sensitive.
    fn send(&self, request: Request<Bytes>) -> Sending<'_>;
}

/// The longest URL, in bytes.
const MAX_URL: usize = 32 << 10;

/// The most headers that a program may set. The maps of the HTTP library panic beyond some 24,000.
const MAX_HEADERS: usize = 1000;

/// Why a URL of another scheme is denied.
const NO_HTTP: &str = "is neither http nor https";

/// How many redirects a request may follow.
const MAX_REDIRECTS: usize = 10;

/// Headers of a program that do not go to another origin.
const PRIVATE: [HeaderName; 2] = [header::AUTHORIZATION, header::COOKIE];

/// A request as a program writes it. An empty method or credential is the same as none: some JSON libraries
/// write a text that is not set so, as that of Go does.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    #[serde(default)]
    pub(crate) method: Option<String>,
    pub(crate) url: String,
    #[serde(default, deserialize_with = "text::or_default")]
    pub(crate) headers: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) body: Option<String>,
    /// The kind of the credential that Kennel adds.
    #[serde(default)]
    pub(crate) credential: Option<String>,
}

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// The request itself is malformed.
    Malformed(String),
    /// It was denied, or has failed.
    Failed(Failure),
}

impl From<Failure> for NoAnswer {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Hosts that may be reached, as rules and as they were written.
#[derive(Clone, Copy)]
pub(crate) struct GrantedHosts<'c> {
    pub(crate) rules: &'c Rules,
    pub(crate) hosts: &'c [String],
}

/// Which hosts a call may reach.
pub(crate) struct HostGrants<'c> {
    pub(crate) manifest: GrantedHosts<'c>,
    /// Narrower, if the call says so.
    pub(crate) call: Option<GrantedHosts<'c>>,
}

/// What a request needs.
pub(crate) struct Sender<'c> {
    pub(crate) client: &'c dyn HttpClient,
    pub(crate) granted: HostGrants<'c>,
    pub(crate) credential: Option<&'c Credential>,
    pub(crate) resolver: Option<&'c dyn CredentialResolver>,
    pub(crate) max_body: usize,
    /// Records what is decided.
    pub(crate) proxy: &'c Proxy,
}

/// A checked request.
struct Checked {
    method: Method,
    url: Url,
    headers: hyper::HeaderMap,
    body: Bytes,
    /// The header with the credential, for the origin of the first URL only.
    credential: Option<(HeaderName, HeaderValue)>,
}

impl Sender<'_> {
    /// Sends the request of a program, and follows redirects to granted hosts.
    pub(crate) async fn send(&self, wanted: Wanted) -> Result<Response<Bytes>, NoAnswer> {
        let kind = wanted.credential.clone().filter(|kind| !kind.is_empty());
        let mut checked = check(wanted)?;
        let destination = self.check_host(&checked.url)?;
        if let Some(kind) = kind {
            let is_safe = checked.url.scheme() == "https" || destination.host.is_loopback();
            let (name, value) = self.credential(&kind, is_safe).await?;
            checked.headers.remove(&name);
            checked.credential = Some((name, value));
        }
        for _ in 0..=MAX_REDIRECTS {
            let response = self.client.send(checked.request()?).await?;
            if response.body().len() > self.max_body {
                return Err(too_large("the answer", self.max_body).into());
            }
            match redirect(&response, &checked.url)? {
                Some(to) => {
                    self.check_host(&to)?;
                    checked.follow(response.status(), to);
                }
                None => return Ok(response),
            }
        }
        Err(network_error(format!("{}: more than {MAX_REDIRECTS} redirects", checked.url.authority())).into())
    }

    /// # Errors
    /// The manifest or the call does not grant the host.
    fn check_host(&self, url: &Url) -> Result<Destination, NoAnswer> {
        let destination = destination(url).inspect_err(|no_answer| {
            if matches!(no_answer, NoAnswer::Failed(_)) {
                let scheme = format!("{}:", url.scheme());
                self.proxy.write_refusal(&ProxyRefusal::request(&scheme, Reason::Malformed(NO_HTTP)));
            }
        })?;
        let HostGrants { manifest, call } = &self.granted;
        for (boundary, GrantedHosts { rules, hosts }) in [(Boundary::Manifest, *manifest)]
            .into_iter()
            .chain(call.map(|narrower| (Boundary::Action, narrower)))
        {
            if rules.find(&destination).is_none() {
                self.proxy.write_refusal(&ProxyRefusal::of(&destination, Reason::NotAllowed));
                let message = format!("request to {destination}: the ");
                let message = match boundary {
                    Boundary::Manifest => {
                        format!("{message}manifest does not grant this host; {ADD_TO_MANIFEST}")
                    }
                    _ => message + "call does not grant this host",
                };
                return Err(denied(boundary, destination.to_string(), message, hosts.iter().cloned()).into());
            }
        }
        Ok(destination)
    }

    /// The header with the credential. The decision is in the audit log before the header is used.
    async fn credential(&self, kind: &str, is_safe: bool) -> Result<(HeaderName, HeaderValue), Failure> {
        let kind = &*escaped_value(kind);
        let header = self.credential_header(kind, is_safe).await;
        let class = header.as_ref().err().map(|failure| failure.class);
        let decision = match class {
            None => "allowed",
            Some(Class::CapabilityDenied) => "denied",
            Some(_) => "failed",
        };
        let record = || Record::Credential(CredentialUse { kind, decision, class });
        match self.proxy.trail.write(None, record) {
            Err(error) if header.is_ok() => Err(Error::from(error).failure()),
            _ => header,
        }
    }

    async fn credential_header(
        &self,
        kind: &str,
        is_safe: bool,
    ) -> Result<(HeaderName, HeaderValue), Failure> {
        let Some(own) = self.credential.filter(|own| own.kind.as_str() == kind) else {
            let granted = self.credential.map(|own| own.kind.as_str().to_owned());
            let message = format!("credential {kind}: the manifest does not declare it");
            return Err(denied(Boundary::Manifest, kind.to_owned(), message, granted));
        };
        if !is_safe {
            let message = format!("credential {kind}: it is sent over https only");
            return Err(denied(Boundary::Runtime, kind.to_owned(), message, ["https".to_owned()]));
        }
        let asked = Details::Granted { requested: kind.to_owned(), granted: Vec::new() };
        let required = || {
            let message = format!("credential {kind} is required and was not given");
            Failure::new(Class::BindingRequired, Boundary::Runtime, message, asked.clone())
        };
        let failed = |reason: &str| {
            let message = format!("credential {kind}: {reason}");
            Failure::new(Class::BindingFailed, Boundary::Runtime, message, asked.clone())
        };
        let resolver = self.resolver.ok_or_else(required)?;
        let resolved = resolver.resolve(kind).await.map_err(|error| failed(&failure::chain(&*error)))?;
        let secret = resolved.filter(|secret| !secret.expose().is_empty()).ok_or_else(required)?;
        let [before, after] = &own.around;
        let text = Zeroizing::new([before.as_bytes(), secret.expose(), after.as_bytes()].concat());
        let mut value =
            HeaderValue::from_bytes(&text).map_err(|_| failed("its value cannot be in a header"))?;
        value.set_sensitive(true);
        let name = HeaderName::from_bytes(own.header.as_bytes()).map_err(|_| failed("bad header"))?;
        Ok((name, value))
    }
}

/// # Errors
/// The request is malformed.
fn check(wanted: Wanted) -> Result<Checked, NoAnswer> {
    let malformed = |reason: String| NoAnswer::Malformed(reason);
    let method = wanted.method.as_deref().filter(|method| !method.is_empty()).unwrap_or("GET");
    let method = match Method::from_bytes(method.to_ascii_uppercase().as_bytes()) {
        Ok(method) if method != Method::CONNECT && method != Method::TRACE => method,
        _ => return Err(malformed("its method is not one of HTTP that a program can use".to_owned())),
    };
    let url = Url::parse(&wanted.url).map_err(|error| malformed(format!("its url: {error}")))?;
    if wanted.headers.len() > MAX_HEADERS {
        return Err(malformed(format!("it has more than {MAX_HEADERS} headers")));
    }
    let mut headers = hyper::HeaderMap::new();
    for (name, value) in &wanted.headers {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| malformed("a header has a malformed name".to_owned()))?;
        let value = HeaderValue::from_str(value).map_err(|_| {
            malformed(format!("header {} has a malformed value", escaped_value(name.as_str())))
        })?;
        if !SET_BY_KENNEL.contains(&name) {
            headers.insert(name, value);
        }
    }
    let body = wanted.body.unwrap_or_default().into();
    Ok(Checked { method, url, headers, body, credential: None })
}

impl Checked {
    fn request(&self) -> Result<Request<Bytes>, NoAnswer> {
        let mut url = self.url.clone();
        url.set_fragment(None);
        let uri: Uri =
            url.as_str().parse().map_err(|_| NoAnswer::Malformed("its url is not one of HTTP".to_owned()))?;
        let mut request = Request::new(self.body.clone());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers.clone();
        if let Some((name, value)) = &self.credential {
            request.headers_mut().insert(name.clone(), value.clone());
        }
        Ok(request)
    }

    /// Goes on at another URL, as RFC 9110, 15.4 says.
    fn follow(&mut self, status: StatusCode, to: Url) {
        if self.url.origin() != to.origin() {
            self.credential = None;
            PRIVATE.iter().for_each(|name| drop(self.headers.remove(name)));
        }
        let keeps_method = matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT)
            || status != StatusCode::SEE_OTHER && self.method != Method::POST
            || self.method == Method::HEAD;
        if !keeps_method {
            self.method = Method::GET;
            self.body = Bytes::new();
            self.headers.remove(header::CONTENT_TYPE);
        }
        self.url = to;
    }
}

/// Where a response redirects to.
fn redirect(response: &Response<Bytes>, from: &Url) -> Result<Option<Url>, NoAnswer> {
    let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    let Some(location) = response.headers().get(header::LOCATION).filter(|_| is_redirect) else {
        return Ok(None);
    };
    let to = location.to_str().ok().and_then(|text| from.join(text).ok());
    match to {
        // The next request is refused if it is of another scheme.
        Some(to) if !matches!(destination(&to), Err(NoAnswer::Malformed(_))) => Ok(Some(to)),
        _ => {
            let message =
                format!("{}: it redirects to something that is no URL of http or https", from.authority());
            Err(network_error(message).into())
        }
    }
}

/// The host and port of a URL.
///
/// # Errors
/// It is denied if its scheme is not http or https: no manifest grants another. It is malformed if it is too
/// long, or has a user name or password.
pub(crate) fn destination(url: &Url) -> Result<Destination, NoAnswer> {
    let malformed = |reason: &str| NoAnswer::Malformed(format!("its url {reason}"));
    if !matches!(url.scheme(), "http" | "https") {
        let message = format!("request to {}: its url {NO_HTTP}", escaped_value(url.scheme()));
        let granted = ["http".to_owned(), "https".to_owned()];
        return Err(denied(Boundary::Manifest, url.scheme().to_owned(), message, granted).into());
    }
    if url.as_str().len() > MAX_URL {
        return Err(malformed("is longer than 32 KiB"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(malformed("has a user name or password; set a header instead"));
    }
    let host = url.host_str().ok_or_else(|| malformed("has no host"))?;
    let host =
        DestinationHost::parse(host).map_err(|error| malformed(&format!("has a malformed host: {error}")))?;
    let port =
        url.port_or_known_default().filter(|port| *port != 0).ok_or_else(|| malformed("has no port"))?;
    Ok(Destination { host, port })
}

/// A failure of the network.
pub(crate) fn network_error(message: String) -> Failure {
    Failure::new(Class::NetworkError, Boundary::External, message, Details::None)
}
