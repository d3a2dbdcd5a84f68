//! A registry over HTTP: descriptions and blobs of one repository, with credentials if it asks for them. It
//! tries again what may pass, and gives credentials to nobody but the registry and its token server.

use std::{
    fs::File,
    io::{self, Read, Seek, Write},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use kennel::{
    image::{Digest, ImportError, PullError},
    internal::{Description, Descriptor, MOST_DOCUMENT},
};
use reqwest::{
    Method, StatusCode,
    blocking::{Client, ClientBuilder, RequestBuilder, Response},
    header::{ACCEPT, CONTENT_RANGE, RANGE},
    redirect::Policy,
};

use super::{
    authorization::{Authorization, challenge_of},
    cause::{innermost, is_cut, is_of_tls},
    credentials::Credentials,
    endpoint::Endpoint,
    patience::{LONGEST_PAUSE, Patience, Trouble, asked},
    words,
};

/// What a manifest may be: of OCI, of docker, and of docker before it, to be refused by name.
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, \
                         application/vnd.docker.distribution.manifest.list.v2+json, \
                         application/vnd.oci.image.manifest.v1+json, \
                         application/vnd.docker.distribution.manifest.v2+json, \
                         application/vnd.docker.distribution.manifest.v1+prettyjws";

/// Bytes of a blob after which a cut counts as the first one again.
const PROGRESS: u64 = 1 << 20;

/// Bytes of a blob that are read at once.
const PIECE: usize = 64 << 10;

/// A repository of a registry.
pub(super) struct Registry {
    endpoint: Endpoint,
    /// Follows redirects. Another host gets no credentials.
    client: Client,
    /// For token servers: a redirect would take the credentials along.
    tokens: Client,
    credentials: Credentials,
    authorization: Mutex<Option<Authorization>>,
    patience: Patience,
    /// Whether the registry has answered once. If it never did, it is not waited for.
    has_answered: AtomicBool,
}

impl Registry {
    /// A registry that nobody has asked yet.
    ///
    /// # Errors
    /// The host has no certificates of authorities.
    pub(super) fn new(
        endpoint: Endpoint,
        credentials: Credentials,
        patience: Patience,
    ) -> Result<Self, PullError> {
        // An error means that there is one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = || {
            Client::builder()
                .user_agent(concat!("kennel/", env!("CARGO_PKG_VERSION")))
                .https_only(!endpoint.is_plain)
                .referer(false)
                .timeout(patience.stall)
        };
        let build = |redirects: fn() -> Policy| {
            let built = builder().redirect(redirects()).build();
            // Plain HTTP needs no certificates.
            if endpoint.is_plain && built.is_err() {
                return ClientBuilder::build(builder().redirect(redirects()).tls_certs_only([]));
            }
            built
        };
        let failed = |error: reqwest::Error| PullError::Tls {
            registry: endpoint.registry.clone(),
            reason: innermost(&error),
        };
        let client = build(Policy::default).map_err(failed)?;
        let tokens = build(Policy::none).map_err(failed)?;
        Ok(Self {
            client,
            tokens,
            credentials,
            authorization: Mutex::new(None),
            patience,
            has_answered: AtomicBool::new(false),
            endpoint,
        })
    }

    /// The digest that a tag has in this moment. It costs no pull. `None` if the registry does not say; then
    /// [`manifest`](Self::manifest) says why.
    ///
    /// # Errors
    /// Nobody answers, or the token server refuses.
    pub(super) fn digest_of(&self, tag: &str) -> Result<Option<Digest>, PullError> {
        let response = match self.send(Method::HEAD, "manifests", tag, None) {
            Ok(response) => response,
            Err(Trouble::Final(error)) if is_known(&error) => return Err(error),
            Err(_) => return Ok(None),
        };
        let digest = response.headers().get("docker-content-digest").and_then(|it| it.to_str().ok());
        Ok(digest.and_then(|digest| digest.parse().ok()))
    }

    /// A manifest or index by its tag or digest. With a digest, that is checked.
    pub(super) fn manifest(&self, version: &str, expected: Option<&Digest>) -> Result<Vec<u8>, PullError> {
        self.document("manifests", version, expected)
    }

    /// The description of an entry of an index.
    pub(super) fn described(&self, entry: &Descriptor) -> Result<Description, PullError> {
        let name = entry.digest.to_string();
        let text = self.manifest(&name, Some(&entry.digest))?;
        Ok(Description::parse(&name, &entry.media_type, &text)?)
    }

    /// The configuration of an image.
    pub(super) fn config(&self, descriptor: &Descriptor) -> Result<Vec<u8>, PullError> {
        self.document("blobs", &descriptor.digest.to_string(), Some(&descriptor.digest))
    }

    fn document(&self, kind: &str, version: &str, expected: Option<&Digest>) -> Result<Vec<u8>, PullError> {
        let text = self.patience.attempt(|| {
            let response = self.send(Method::GET, kind, version, None)?;
            self.text(response, MOST_DOCUMENT)
        })?;
        if let Some(expected) = expected {
            let found = Digest::of(&text);
            if found != *expected {
                let (expected, found) = (expected.to_string(), found.to_string());
                return Err(ImportError::Digest { member: version.to_owned(), expected, found }.into());
            }
        }
        Ok(text)
    }

    /// Writes a blob of `size` bytes to a file. After a cut it goes on where that was. The digest is left to
    /// be checked. `is_over` ends it early.
    pub(super) fn blob(
        &self,
        digest: &Digest,
        size: u64,
        file: &File,
        is_over: &AtomicBool,
    ) -> Result<(), PullError> {
        let (digest, mut have) = (digest.to_string(), 0);
        self.patience.attempt(|| {
            let before = have;
            let done = self.go_on(&digest, size, file, &mut have, is_over);
            done.map_err(|trouble| match trouble {
                Trouble::Passing { error, after, .. } => {
                    Trouble::Passing { error, after, has_progress: have.saturating_sub(before) >= PROGRESS }
                }
                trouble => trouble,
            })
        })
    }

    /// Fetches what a file still lacks.
    fn go_on(
        &self,
        digest: &str,
        size: u64,
        mut file: &File,
        have: &mut u64,
        is_over: &AtomicBool,
    ) -> Result<(), Trouble> {
        let kept = |source| Trouble::Final(PullError::Write { source });
        let mut response = self.send(Method::GET, "blobs", digest, Some(*have).filter(|have| *have > 0))?;
        // A server may answer with the whole, or with another part than was asked for.
        let begins = begins_at(&response).unwrap_or(0);
        if begins != *have {
            file.set_len(0).and_then(|()| file.rewind()).map_err(kept)?;
            *have = 0;
            if begins != 0 {
                return Err(Trouble::passing(
                    self.wrong("it sends another part of a layer than was asked for"),
                ));
            }
        }
        let mut piece = vec![0; PIECE];
        while *have < size && !is_over.load(Relaxed) {
            let most = usize::try_from(size - *have).unwrap_or(PIECE).min(PIECE);
            let room = piece.get_mut(..most).unwrap_or_default();
            let count = response.read(room).map_err(|error| Trouble::passing(self.cut(&error)))?;
            if count == 0 {
                let reason = format!("a layer ends after {have} of {size} bytes");
                return Err(Trouble::passing(self.wrong(&reason)));
            }
            file.write_all(room.get(..count).unwrap_or_default()).map_err(kept)?;
            *have += count as u64;
        }
        Ok(())
    }

    /// Sends a request, with credentials if the registry asks for them. The answer is one of success.
    fn send(
        &self,
        method: Method,
        kind: &str,
        version: &str,
        from: Option<u64>,
    ) -> Result<Response, Trouble> {
        let address = self.endpoint.address(kind, version);
        let request = |authorization: Option<&Authorization>| {
            let mut request = self.client.request(method.clone(), &address);
            if kind == "manifests" {
                request = request.header(ACCEPT, MANIFESTS);
            }
            if let Some(from) = from {
                request = request.header(RANGE, format!("bytes={from}-"));
            }
            match authorization {
                Some(authorization) => authorization.add_to(request),
                None => request,
            }
        };
        let known = self.authorization.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut response = self.ask(request(known.as_ref()))?;
        if response.status() == StatusCode::UNAUTHORIZED
            && let Some(fresh) = self.authorize(&response, known.as_ref())?
        {
            response = self.ask(request(Some(&fresh)))?;
        }
        self.accepted(response)
    }

    /// What to answer to a registry that asks who this is. `None`: there is nothing else to say. Several
    /// threads may come here at once, and one of them asks the token server.
    fn authorize(
        &self,
        response: &Response,
        known: Option<&Authorization>,
    ) -> Result<Option<Authorization>, Trouble> {
        let mut current = self.authorization.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref() != known {
            return Ok(current.clone());
        }
        let Some(challenge) = challenge_of(response) else { return Ok(None) };
        let scope = format!("repository:{}:pull", self.endpoint.repository);
        let found = self.credentials.found.as_ref();
        let fresh = match challenge.request(&self.tokens, &scope, found) {
            None => challenge.without_request(found),
            Some(Err(reason)) => return Err(Trouble::Final(self.wrong(&reason))),
            Some(Ok(request)) => {
                let response = self.ask(request)?;
                let text = self.accepted(response).and_then(|response| self.text(response, MOST_DOCUMENT))?;
                let token = Authorization::of_answer(&text);
                Some(token.ok_or_else(|| Trouble::Final(self.wrong("its token server sends no token")))?)
            }
        };
        // The registry has just refused that one.
        let fresh = fresh.filter(|fresh| Some(fresh) != known);
        current.clone_from(&fresh);
        Ok(fresh)
    }

    fn ask(&self, request: RequestBuilder) -> Result<Response, Trouble> {
        let response = request.send().map_err(|error| self.unanswered(&error))?;
        self.has_answered.store(true, Relaxed);
        Ok(response)
    }

    /// An answer of success, or what the registry says.
    fn accepted(&self, response: Response) -> Result<Response, Trouble> {
        let status = response.status();
        if matches!(status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
            return Ok(response);
        }
        let after = asked(response.headers());
        let mut words = words::of(response);
        if let Some(after) = after.filter(|after| *after > LONGEST_PAUSE) {
            words += if words.is_empty() { "" } else { "; " };
            words += &format!("it asks to wait {} s", after.as_secs());
        }
        let error = PullError::Refused {
            registry: self.endpoint.registry.clone(),
            status: status.as_u16(),
            words,
            credentials: self.credentials.sent.clone(),
        };
        Err(match status {
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
                Trouble::Passing { error, after, has_progress: false }
            }
            status if status.is_server_error() => Trouble::Passing { error, after, has_progress: false },
            _ => Trouble::Final(error),
        })
    }

    /// The whole of a short answer.
    fn text(&self, response: Response, most: u64) -> Result<Vec<u8>, Trouble> {
        let mut text = Vec::new();
        let read = response.take(most + 1).read_to_end(&mut text);
        read.map_err(|error| Trouble::passing(self.cut(&error)))?;
        if text.len() as u64 > most {
            return Err(Trouble::Final(
                self.wrong(&format!("it sends a description of more than {most} bytes")),
            ));
        }
        Ok(text)
    }

    /// Why there was no answer.
    fn unanswered(&self, error: &reqwest::Error) -> Trouble {
        let (registry, reason) = (self.endpoint.registry.clone(), innermost(error));
        let is_handshake = error.is_connect() && is_cut(error);
        if is_of_tls(error) || is_handshake && !self.endpoint.is_plain {
            return Trouble::Final(PullError::Tls { registry, reason });
        }
        if error.is_builder() || error.is_redirect() {
            return Trouble::Final(PullError::Answer { registry, reason });
        }
        let reason = if error.is_timeout() { self.silence() } else { reason };
        let error = PullError::Unreachable { registry, reason };
        match self.has_answered.load(Relaxed) {
            true => Trouble::passing(error),
            false => Trouble::Final(error),
        }
    }

    /// The error for an answer that ends in the middle.
    fn cut(&self, error: &io::Error) -> PullError {
        let is_timeout = error.get_ref().and_then(|inner| inner.downcast_ref::<reqwest::Error>());
        let is_timeout =
            is_timeout.is_some_and(reqwest::Error::is_timeout) || error.kind() == io::ErrorKind::TimedOut;
        let reason = if is_timeout { self.silence() } else { innermost(error) };
        PullError::Unreachable { registry: self.endpoint.registry.clone(), reason }
    }

    fn silence(&self) -> String {
        format!("nothing came for {} s", self.patience.stall.as_secs())
    }

    fn wrong(&self, reason: &str) -> PullError {
        PullError::Answer { registry: self.endpoint.registry.clone(), reason: reason.to_owned() }
    }
}

/// Whether asking once more would tell nothing new. An answer to HEAD has no words; those of a token server
/// are another's.
fn is_known(error: &PullError) -> bool {
    match error {
        PullError::Unreachable { .. } | PullError::Tls { .. } => true,
        PullError::Refused { status: 401 | 403, words, .. } => !words.is_empty(),
        _ => false,
    }
}

/// Where the bytes of a partial answer begin. `None`: they are the whole.
fn begins_at(response: &Response) -> Option<u64> {
    if response.status() != StatusCode::PARTIAL_CONTENT {
        return None;
    }
    let range = response.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
    let start = range.and_then(|range| range.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok());
    Some(start.unwrap_or(u64::MAX))
}
