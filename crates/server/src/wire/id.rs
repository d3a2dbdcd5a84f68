//! Names of sandboxes, and their tokens.

use std::path::Path;
use std::str::FromStr;
use std::{fmt, fs, io};

use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// Letters of an id: it is a label of the domain name system with a port before it.
const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// How many of them follow the name of the worker.
const RANDOM: usize = 16;

/// The longest name of a worker: `65535-NAME-` and the letters have 63 bytes at most.
pub(crate) const LONGEST_NAME: usize = 40;

/// The most hosts of a worker: the first letter names one.
pub(crate) const MOST_HOSTS: u8 = 36;

/// The name of a sandbox: `WORKER-` and 16 letters or digits, of which the first names the host.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct SandboxId(String);

impl SandboxId {
    /// A new id of this host.
    ///
    /// # Errors
    /// Errors of getrandom(2).
    pub(crate) fn new(worker: &str, host: u8) -> Result<Self, getrandom::Error> {
        let mut random = [0; RANDOM];
        getrandom::fill(&mut random)?;
        let letter = |byte: &u8| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]);
        let host = char::from(LETTERS[usize::from(host) % LETTERS.len()]);
        let random: String = random.iter().skip(1).map(letter).collect();
        Ok(Self(format!("{worker}-{host}{random}")))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of the worker that made it.
    pub(crate) fn worker(&self) -> &str {
        self.0.rsplit_once('-').map_or("", |(worker, _)| worker)
    }

    /// The sandbox that a token says it opens. Whether it does is another question.
    pub(crate) fn of_token(token: &str) -> Option<Self> {
        token.split_once('.').and_then(|(id, _)| id.parse().ok())
    }

    /// The host in which the sandbox lives.
    pub(crate) fn host(&self) -> u8 {
        let letter = self.0.rsplit_once('-').and_then(|(_, letters)| letters.bytes().next());
        let place = LETTERS.iter().position(|known| Some(*known) == letter);
        place.and_then(|place| u8::try_from(place).ok()).unwrap_or(MOST_HOSTS)
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<SandboxId> for String {
    fn from(id: SandboxId) -> Self {
        id.0
    }
}

/// The text is no id.
#[derive(Debug, thiserror::Error)]
#[error("no id of a sandbox")]
pub(crate) struct NoId;

impl FromStr for SandboxId {
    type Err = NoId;

    fn from_str(text: &str) -> Result<Self, NoId> {
        let (worker, letters) = text.rsplit_once('-').ok_or(NoId)?;
        let known = letters.len() == RANDOM && letters.bytes().all(|byte| LETTERS.contains(&byte));
        if known && is_worker_name(worker) { Ok(Self(text.to_owned())) } else { Err(NoId) }
    }
}

impl TryFrom<String> for SandboxId {
    type Error = NoId;

    fn try_from(text: String) -> Result<Self, NoId> {
        text.parse()
    }
}

/// Whether a worker may have this name.
pub(crate) fn is_worker_name(name: &str) -> bool {
    let inner = |byte: u8| LETTERS.contains(&byte) || byte == b'-';
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| LETTERS.contains(&byte));
    name.len() <= LONGEST_NAME
        && name.bytes().all(inner)
        && ends(name.bytes().next())
        && ends(name.bytes().next_back())
}

/// From which the tokens of sandboxes are computed, so that none is stored.
#[derive(Clone)]
pub(crate) struct Seed([u8; 32]);

/// It is a secret.
impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed")
    }
}

impl Seed {
    pub(crate) fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Reads it from its file.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let bytes = fs::read(path)?;
        bytes.try_into().map(Self).map_err(|_| io::Error::other("the seed has another length"))
    }

    /// The token that opens this sandbox, and nothing else: `ID.HEX`.
    pub(crate) fn token(&self, id: &SandboxId) -> String {
        format!("{id}.{}", hex(&self.mac(b"envd", id.as_str())))
    }

    /// The token that opens the ports of this sandbox, and nothing else: `ID.HEX`.
    pub(crate) fn traffic_token(&self, id: &SandboxId) -> String {
        format!("{id}.{}", hex(&self.mac(b"traffic", id.as_str())))
    }

    /// What names this state directory, and says nothing else about the seed: 16 hexadecimal digits.
    pub(crate) fn instance(&self) -> String {
        hex(self.mac(b"instance", "").get(..8).unwrap_or_default())
    }

    fn mac(&self, purpose: &[u8], about: &str) -> Vec<u8> {
        // HMAC takes keys of every length.
        let Ok(mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return Vec::new() };
        let mac = [purpose, b":", about.as_bytes()].into_iter().fold(mac, Mac::chain_update);
        mac.finalize().into_bytes().to_vec()
    }
}

/// The 32 bytes of 64 hexadecimal digits.
pub(crate) fn unhex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * place..2 * place + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // A String takes all of it.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_its_worker_and_its_host_and_is_a_label() {
        for host in [0, 3, MOST_HOSTS - 1] {
            let id = SandboxId::new("a-worker1", host).expect("random bytes");
            assert_eq!((id.worker(), id.host()), ("a-worker1", host));
            assert_eq!(id.as_str().parse::<SandboxId>().expect("an id"), id);
        }
        let long = SandboxId::new(&"w".repeat(LONGEST_NAME), 0).expect("random bytes");
        assert!(format!("65535-{long}").len() <= 63);
    }

    #[test]
    fn what_is_no_id_is_refused() {
        let good = SandboxId::new("w", 0).expect("random bytes").to_string();
        for bad in
            ["", "-", "w-", "w-short", "-aaaaaaaaaaaaaaaa", "../../aaaaaaaaaaaaaaaa", "w/x-aaaaaaaaaaaaaaaa"]
        {
            assert!(bad.parse::<SandboxId>().is_err(), "{bad}");
        }
        assert!(good.to_uppercase().parse::<SandboxId>().is_err());
        assert!(format!("{good}a").parse::<SandboxId>().is_err());
        assert!(format!("{}-aaaaaaaaaaaaaaaa", "w".repeat(LONGEST_NAME + 1)).parse::<SandboxId>().is_err());
    }

    #[test]
    fn tokens_differ_by_sandbox_purpose_and_seed() {
        let (one, other) = (Seed::new([1; 32]), Seed::new([2; 32]));
        let a: SandboxId = "w-aaaaaaaaaaaaaaaa".parse().expect("an id");
        let b: SandboxId = "w-aaaaaaaaaaaaaaab".parse().expect("an id");
        let all = [one.token(&a), one.token(&b), one.traffic_token(&a), other.token(&a)];
        for (place, token) in all.iter().enumerate() {
            let (id, digits) = token.split_once('.').expect("two parts");
            assert_eq!(SandboxId::of_token(token).expect("an id").as_str(), id);
            assert_eq!(digits.len(), 64);
            assert!(!all.iter().skip(place + 1).any(|later| later == token));
        }
        assert_eq!(one.token(&a), Seed::new([1; 32]).token(&a));
        assert_eq!((one.instance().len(), one.instance() == other.instance()), (16, false));
    }
}
