//! How a registry is told who asks: tokens of its token server, or a name and a password. A token is asked
//! for with the right to pull, whatever else the registry proposes.

use docker_credential::DockerCredential;
use http_auth::ChallengeRef;
use reqwest::{
    Url,
    blocking::{Client, RequestBuilder, Response},
    header::{CONTENT_TYPE, WWW_AUTHENTICATE},
};
use serde::Deserialize;

/// What is sent to a registry.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Authorization {
    Bearer(String),
    Basic { user: String, password: String },
}

/// The answer of a token server. The first name is docker's, the second one that of OAuth.
#[derive(Deserialize)]
struct Answer {
    token: Option<String>,
    access_token: Option<String>,
}

impl Authorization {
    pub(super) fn add_to(&self, request: RequestBuilder) -> RequestBuilder {
        match self {
            Self::Bearer(token) => request.bearer_auth(token),
            Self::Basic { user, password } => request.basic_auth(user, Some(password)),
        }
    }

    /// The token in an answer.
    pub(super) fn of_answer(text: &[u8]) -> Option<Self> {
        let answer: Answer = serde_json::from_slice(text).ok()?;
        let token = answer.token.or(answer.access_token).filter(|token| !token.is_empty())?;
        Some(Self::Bearer(token))
    }
}

/// What a registry wants.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// A token of this server.
    Token {
        realm: String,
        service: Option<String>,
    },
    Password,
}

/// What a refusal asks for; a token is preferred.
pub(super) fn challenge_of(response: &Response) -> Option<Challenge> {
    let texts = response.headers().get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
    let mut found = None;
    for text in texts {
        // An empty value is an error.
        for challenge in http_auth::parse_challenges(text).unwrap_or_default() {
            match Challenge::of(&challenge) {
                Some(token @ Challenge::Token { .. }) => return Some(token),
                other => found = found.or(other),
            }
        }
    }
    found
}

impl Challenge {
    fn of(challenge: &ChallengeRef<'_>) -> Option<Self> {
        let parameter = |name: &str| {
            let mut parameters = challenge.params.iter();
            let (_, value) = parameters.find(|(known, _)| known.eq_ignore_ascii_case(name))?;
            Some(value.to_unescaped())
        };
        if challenge.scheme.eq_ignore_ascii_case("Bearer") {
            return Some(Self::Token { realm: parameter("realm")?, service: parameter("service") });
        }
        challenge.scheme.eq_ignore_ascii_case("Basic").then_some(Self::Password)
    }

    /// The request to the token server; `None` if there is none.
    ///
    /// # Errors
    /// The registry names no address of a server.
    pub(super) fn request(
        &self,
        client: &Client,
        scope: &str,
        credentials: Option<&DockerCredential>,
    ) -> Option<Result<RequestBuilder, String>> {
        let Self::Token { realm, service } = self else { return None };
        let Ok(mut address) = Url::parse(realm) else {
            return Some(Err(format!("its token server `{realm}` is no address")));
        };
        let service = service.iter().map(|service| ("service", service.as_str()));
        let asked = service.chain([("scope", scope)]);
        Some(Ok(match credentials {
            // The token of docker login is changed for one that lasts some minutes.
            Some(DockerCredential::IdentityToken(token)) => {
                let form =
                    [("grant_type", "refresh_token"), ("client_id", "kennel"), ("refresh_token", token)];
                let mut fields = address.clone();
                fields.set_query(None);
                fields.query_pairs_mut().extend_pairs(asked.chain(form));
                let body = fields.query().unwrap_or_default().to_owned();
                client.post(address).header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body)
            }
            Some(DockerCredential::UsernamePassword(user, password)) => {
                address.query_pairs_mut().extend_pairs(asked);
                client.get(address).basic_auth(user, Some(password))
            }
            None => {
                address.query_pairs_mut().extend_pairs(asked);
                client.get(address)
            }
        }))
    }

    /// What a registry without a token server gets, if there is anything.
    pub(super) fn without_request(&self, credentials: Option<&DockerCredential>) -> Option<Authorization> {
        match (self, credentials?) {
            (Self::Password, DockerCredential::UsernamePassword(user, password)) => {
                Some(Authorization::Basic { user: user.clone(), password: password.clone() })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<Challenge> {
        http_auth::parse_challenges(text).expect("challenges").first().and_then(Challenge::of)
    }

    #[test]
    fn challenges_are_read() {
        let token = |realm: &str, service: Option<&str>| {
            Some(Challenge::Token { realm: realm.to_owned(), service: service.map(str::to_owned) })
        };
        for (text, expected) in [
            (
                r#"Bearer realm="https://a.b/token",service="a.b",scope="x:y:push""#,
                token("https://a.b/token", Some("a.b")),
            ),
            (r#"bearer REALM="https://a.b/\"t\"""#, token("https://a.b/\"t\"", None)),
            (r#"Basic realm="a""#, Some(Challenge::Password)),
            (r#"Bearer service="a""#, None),
            (r#"Negotiate"#, None),
        ] {
            assert_eq!(of(text), expected, "{text}");
        }
    }

    #[test]
    fn tokens_have_two_names() {
        for (text, expected) in [
            (r#"{"token":"t"}"#, Some("t")),
            (r#"{"access_token":"t","expires_in":3}"#, Some("t")),
            (r#"{"token":""}"#, None),
            (r#"{}"#, None),
            ("<html>", None),
        ] {
            let token = Authorization::of_answer(text.as_bytes());
            assert!(token == expected.map(|token| Authorization::Bearer(token.to_owned())), "{text}");
        }
    }
}
