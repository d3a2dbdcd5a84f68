//! Keys of clients: `tokens.toml`, or one key in the state directory. Only their hashes are held.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use kennel::Span;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::Problem;
use crate::config;
use crate::wire::failure::Failure;
use crate::wire::id::{hex, unhex};

/// The owner of sandboxes where there are no tokens.
pub(crate) const ONLY: &str = "default";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokensFile {
    #[serde(default)]
    token: BTreeMap<String, TokenFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenFile {
    sha256: String,
    templates: Option<Vec<String>>,
    sandboxes: Option<usize>,
    commands: Option<usize>,
    creations: Option<u32>,
    life: Option<Span>,
}

/// What a key may do.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) name: String,
    /// `None`: every template.
    pub(crate) templates: Option<Vec<String>>,
    /// The most sandboxes that run at once.
    pub(crate) sandboxes: Option<usize>,
    /// The most commands that run at once.
    pub(crate) commands: Option<usize>,
    /// The most creations in a second.
    pub(crate) creations: Option<u32>,
    /// The longest life of a sandbox.
    pub(crate) life: Option<Duration>,
}

impl Token {
    pub(crate) fn may_use(&self, template: &str) -> bool {
        self.templates.as_ref().is_none_or(|names| names.iter().any(|name| name == template))
    }

    /// The answer where as many sandboxes run as may.
    pub(crate) fn has_sandboxes(&self) -> Failure {
        let most = self.sandboxes.unwrap_or_default();
        let message = format!("token {}: {most} sandboxes run, which is its limit", self.name);
        Failure::later(StatusCode::TOO_MANY_REQUESTS, 2, message)
    }

    /// The answer where it has made as many sandboxes in a second as it may.
    pub(crate) fn has_creations(&self) -> Failure {
        let most = self.creations.unwrap_or_default();
        let message = format!("token {}: {most} creations a second are its limit", self.name);
        Failure::later(StatusCode::TOO_MANY_REQUESTS, 1, message)
    }
}

/// Creations of the last second, by the names of their tokens.
#[derive(Default)]
pub(crate) struct Recent(HashMap<String, VecDeque<Instant>>);

impl Recent {
    /// Whether the token has made as many sandboxes as it may.
    pub(crate) fn is_full(&self, token: &Token) -> bool {
        let times = || self.0.get(&token.name).into_iter().flatten();
        token.creations.is_some_and(|most| times().filter(|time| is_recent(time)).count() >= most as usize)
    }

    /// It makes one.
    pub(crate) fn note(&mut self, token: &Token) {
        if token.creations.is_some() {
            let times = self.0.entry(token.name.clone()).or_default();
            times.retain(is_recent);
            times.push_back(Instant::now());
        }
    }
}

fn is_recent(time: &Instant) -> bool {
    time.elapsed() < Duration::from_secs(1)
}

/// All of them, by the SHA-256 of their keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tokens(HashMap<[u8; 32], Token>);

impl Tokens {
    pub(crate) fn read(path: &Path) -> Result<Self, Problem> {
        let file: TokensFile = config::parse(path)?;
        let mut tokens = HashMap::new();
        for (name, token) in file.token {
            let about = |reason: &str| Problem(format!("{}: token.{name}: {reason}", path.display()));
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            if name.is_empty() || !name.bytes().all(plain) {
                return Err(about("the name: letters, digits, `.`, `_` and `-` are possible"));
            }
            let hash =
                unhex(&token.sha256).ok_or_else(|| about("sha256: 64 hexadecimal digits are expected"))?;
            let token = Token {
                name: name.clone(),
                templates: token.templates,
                sandboxes: token.sandboxes,
                commands: token.commands,
                creations: token.creations,
                life: token.life.map(Span::duration),
            };
            if tokens.insert(hash, token).is_some() {
                return Err(about("sha256: another token has the same key"));
            }
        }
        if tokens.is_empty() {
            return Err(Problem(format!(
                "{}: it has no [token.NAME], so nobody could use the server",
                path.display()
            )));
        }
        Ok(Self(tokens))
    }

    /// One key that may do everything.
    pub(crate) fn of_key(key: &str) -> Self {
        let token = Token {
            name: ONLY.to_owned(),
            templates: None,
            sandboxes: None,
            commands: None,
            creations: None,
            life: None,
        };
        Self(HashMap::from([(hash(key), token)]))
    }

    /// The token of a key.
    pub(crate) fn find(&self, key: &str) -> Option<&Token> {
        self.0.get(&hash(key))
    }

    /// The tokens, each with the first 16 hexadecimal digits of its hash.
    pub(crate) fn prefixes(&self) -> impl Iterator<Item = (String, &Token)> {
        self.0.iter().map(|(hash, token)| (prefix(hash), token))
    }

    /// The token of this name.
    pub(crate) fn named(&self, name: &str) -> Option<&Token> {
        self.0.values().find(|token| token.name == name)
    }
}

/// Enough of a hash to tell the tokens of a fleet apart.
fn prefix(hash: &[u8; 32]) -> String {
    hex(hash.get(..8).unwrap_or_default())
}

/// The same of a key.
pub(crate) fn prefix_of(key: &str) -> String {
    prefix(&hash(key))
}

fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// A secret of the server in a file that only its user can read; made if it is missing.
pub(crate) fn secret(path: &Path) -> io::Result<[u8; 32]> {
    match fs::read(path) {
        Ok(bytes) => bytes.try_into().map_err(|_| io::Error::other("it has another length")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut bytes = [0; 32];
            getrandom::fill(&mut bytes).map_err(io::Error::other)?;
            let new = path.with_extension("new");
            let mut file =
                OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&bytes)?;
            fs::rename(new, path)?;
            Ok(bytes)
        }
        Err(error) => Err(error),
    }
}

/// The key of a server without tokens, in the form that clients of E2B expect.
pub(crate) fn only_key(path: &Path) -> io::Result<String> {
    let bytes = secret(path)?;
    Ok(format!("e2b_{}", hex(bytes.get(..20).unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Tokens, String> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("tokens.toml");
        fs::write(&path, text).expect("written");
        Tokens::read(&path).map_err(|problem| problem.to_string())
    }

    #[test]
    fn a_key_is_found_by_its_hash_alone() {
        let hash = hex(&Sha256::digest(b"secret"));
        let tokens =
            read(&format!("[token.me]\nsha256 = '{hash}'\ntemplates = ['a']\nsandboxes = 3")).expect("good");
        let token = tokens.find("secret").expect("known");
        assert_eq!((token.name.as_str(), token.sandboxes), ("me", Some(3)));
        assert!(token.may_use("a") && !token.may_use("b"));
        assert!(tokens.find(&hash).is_none() && tokens.find("").is_none());
    }

    #[test]
    fn a_file_that_lets_nobody_in_or_says_nothing_clear_is_refused() {
        let hash = "00".repeat(32);
        read("").expect_err("no token");
        read("[token.a]\nsha256 = 'xy'").expect_err("no hash");
        read(&format!("[token.a]\nsha256 = '{}é'", "0".repeat(62))).expect_err("no digits");
        read(&format!("[token.a]\nsha256 = '{hash}'\nquota = 1")).expect_err("an unknown key");
        read(&format!("[token.\"a b\"]\nsha256 = '{hash}'")).expect_err("a name that is no word");
        read(&format!("[token.a]\nsha256 = '{hash}'\n[token.b]\nsha256 = '{hash}'")).expect_err("twice");
    }

    #[test]
    fn a_secret_stays_and_is_nobody_elses() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("seed");
        let made = secret(&path).expect("made");
        assert_eq!(secret(&path).expect("read"), made);
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        fs::write(&path, "short").expect("written");
        secret(&path).expect_err("another length");
    }
}
