//! `Upgrade` of HTTP/1.1 (RFC 9110, 7.8): what a client offers, and whether an answer takes that. WebSockets,
//! `docker attach` and `kubectl exec` use it.
//!
//! The header belongs to one hop, so the proxy writes it anew. It passes on what it could also relay after a
//! CONNECT: bytes of this one connection, to the destination that the gate has checked. It does not pass on
//! another version of HTTP, of which it would have to be a party.

use hyper::header::{CONNECTION, CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use hyper::{HeaderMap, Request, Version};

/// The protocols that a client offers to switch to.
pub(crate) struct Offer(Vec<String>);

impl Offer {
    /// The offer of a request, if it makes one that can be passed on.
    pub(crate) fn of<B>(request: &Request<B>) -> Option<Self> {
        let is_asked =
            tokens(request.headers(), CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"));
        // In HTTP/1.0 the header means nothing.
        if request.version() != Version::HTTP_11 || !is_asked {
            return None;
        }
        let offered: Vec<_> = tokens(request.headers(), UPGRADE).filter(|token| !is_http(token)).collect();
        (!offered.is_empty()).then_some(Self(offered))
    }

    /// Makes the same offer to the next hop.
    pub(crate) fn write_to(&self, headers: &mut HeaderMap) {
        write(headers, &self.0);
    }

    /// What an answer with status 101 switches to, if that was offered.
    pub(crate) fn taken(&self, headers: &HeaderMap) -> Option<Taken> {
        let is_offered = |token: &String| self.0.iter().any(|offered| offered.eq_ignore_ascii_case(token));
        let taken: Vec<_> = tokens(headers, UPGRADE).collect();
        (!taken.is_empty() && taken.iter().all(is_offered)).then_some(Taken(taken))
    }
}

/// The protocols that an answer switches to.
pub(crate) struct Taken(Vec<String>);

impl Taken {
    /// Tells the client. Such an answer has no content.
    pub(crate) fn write_to(&self, headers: &mut HeaderMap) {
        headers.remove(CONTENT_LENGTH);
        headers.remove(TRANSFER_ENCODING);
        write(headers, &self.0);
    }
}

fn write(headers: &mut HeaderMap, protocols: &[String]) {
    if let Ok(value) = HeaderValue::from_str(&protocols.join(", ")) {
        headers.insert(UPGRADE, value);
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    }
}

/// The elements of a list in a header. A value that is no text has none.
fn tokens(headers: &HeaderMap, name: hyper::header::HeaderName) -> impl Iterator<Item = String> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    let tokens = values.flat_map(|value| value.split(',')).map(str::trim).filter(|token| !token.is_empty());
    tokens.map(str::to_owned).collect::<Vec<_>>().into_iter()
}

/// Whether it is another version of HTTP: the proxy speaks HTTP/1.1 on both sides.
fn is_http(token: &str) -> bool {
    let name = token.split('/').next().unwrap_or(token);
    ["h2", "h2c", "h3", "http"].iter().any(|http| name.eq_ignore_ascii_case(http))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(version: Version, headers: &[(&str, &str)]) -> Option<Vec<String>> {
        let mut request = Request::builder().version(version);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Offer::of(&request.body(()).expect("valid")).map(|offer| offer.0)
    }

    #[test]
    fn an_offer_needs_both_headers_and_no_http() {
        let of = |headers: &[(&str, &str)]| offer(Version::HTTP_11, headers);
        let both = [("Connection", "keep-alive, UPGRADE"), ("Upgrade", "websocket")];
        assert_eq!(of(&both), Some(vec!["websocket".to_owned()]));
        assert_eq!(offer(Version::HTTP_10, &both), None);
        assert_eq!(of(&both[..1]), None);
        assert_eq!(of(&both[1..]), None);
        for http in ["h2c", "H2C", "HTTP/2.0", "h2c, HTTP/1.1", ""] {
            assert_eq!(of(&[("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", http)]), None, "{http}");
        }
        let mixed = [("Connection", "upgrade"), ("Upgrade", "h2c, SPDY/3.1"), ("Upgrade", "tcp")];
        assert_eq!(of(&mixed), Some(vec!["SPDY/3.1".to_owned(), "tcp".to_owned()]));
    }

    #[test]
    fn an_answer_takes_what_was_offered_and_nothing_else() {
        let offer = Offer(vec!["SPDY/3.1".to_owned(), "tcp".to_owned()]);
        for (answer, is_taken) in [
            ("spdy/3.1", true),
            ("tcp", true),
            ("tcp, SPDY/3.1", true),
            ("SPDY/3", false),
            ("websocket", false),
            ("tcp, h2c", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(UPGRADE, HeaderValue::from_str(answer).expect("valid"));
            assert_eq!(offer.taken(&headers).is_some(), is_taken, "{answer}");
        }
        assert!(offer.taken(&HeaderMap::new()).is_none());
    }
}
