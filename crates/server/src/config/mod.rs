//! `serve.toml`, templates and tokens: read, checked, and made whole before anything is served.

pub(crate) mod language;
pub(crate) mod nats;
pub(crate) mod template;
pub(crate) mod tokens;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kennel::{Size, Span};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::Problem;
use crate::arguments::Serve;
use crate::config::language::{Language, languages};
use crate::config::nats::{Nats, NatsFile};
use crate::config::template::{Template, TemplateFile, USUAL_TEMPLATE};
use crate::http::listen::{Listen, TlsFiles};
use crate::wire::StateDirectory;
use crate::wire::id::{LONGEST_NAME, MOST_HOSTS, is_worker_name};

/// Where the server listens without a file: the port of E2B's own daemon.
const USUAL_ADDRESS: &str = "127.0.0.1:49983";

/// The keys of `serve.toml`.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ServeFile {
    listen: Option<String>,
    state: Option<PathBuf>,
    name: String,
    hosts: u8,
    domain: Option<String>,
    tokens: Option<PathBuf>,
    insecure: bool,
    tls: Option<TlsFiles>,
    sandboxes: usize,
    connections: usize,
    queue: usize,
    admit_wait: Span,
    orphan: Span,
    drain: Span,
    blobs: Size,
    audit: Option<PathBuf>,
    nats: NatsFile,
    template: BTreeMap<String, TemplateFile>,
    language: BTreeMap<String, Language>,
}

impl Default for ServeFile {
    fn default() -> Self {
        let seconds = |seconds| Span::from(Duration::from_secs(seconds));
        Self {
            listen: None,
            state: None,
            name: "kennel".to_owned(),
            hosts: 4,
            domain: None,
            tokens: None,
            insecure: false,
            tls: None,
            sandboxes: 1000,
            connections: 10_000,
            queue: 256,
            admit_wait: seconds(2),
            orphan: seconds(600),
            drain: seconds(3600),
            blobs: Size::from_bytes(1 << 30),
            audit: None,
            nats: NatsFile::default(),
            template: BTreeMap::new(),
            language: BTreeMap::new(),
        }
    }
}

/// What the server does: the file with its defaults, checked.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) listen: Listen,
    pub(crate) state: StateDirectory,
    /// The name of this worker, with which the ids of its sandboxes begin.
    pub(crate) name: String,
    pub(crate) hosts: u8,
    /// Ports are at `PORT-ID.DOMAIN`.
    pub(crate) domain: Option<String>,
    /// The file of tokens. Without one, there is one key in the state directory.
    pub(crate) tokens: Option<PathBuf>,
    pub(crate) tls: Option<TlsFiles>,
    /// The most sandboxes that run at once.
    pub(crate) sandboxes: usize,
    pub(crate) connections: usize,
    /// The most creations that wait.
    pub(crate) queue: usize,
    /// How long a creation waits.
    pub(crate) admit_wait: Duration,
    /// How long hosts go on without a front.
    pub(crate) orphan: Duration,
    /// How long sandboxes may run on after SIGTERM.
    pub(crate) drain: Duration,
    /// Bytes of the blobs of one token.
    pub(crate) blobs: u64,
    /// The audit log.
    pub(crate) audit: Option<PathBuf>,
    /// The queue that jobs come from.
    #[cfg_attr(not(feature = "nats"), expect(dead_code, reason = "only the feature `nats` reads it"))]
    pub(crate) nats: Option<Nats>,
    pub(crate) templates: BTreeMap<String, Template>,
    /// Of `/run_code`.
    pub(crate) languages: BTreeMap<String, Language>,
}

impl Config {
    pub(crate) fn read(serve: &Serve) -> Result<Self, Problem> {
        let (file, directory): (ServeFile, PathBuf) = match &serve.config {
            Some(path) => {
                let absolute = std::path::absolute(path).map_err(Problem::about(path.display()))?;
                (parse(path)?, absolute.parent().unwrap_or(Path::new("/")).to_owned())
            }
            None => (ServeFile::default(), PathBuf::from("/")),
        };
        let about = |key: &str, reason: String| {
            let name = serve.config.as_deref().map_or("kennel serve".into(), Path::to_string_lossy);
            Problem(format!("{name}: {key}: {reason}"))
        };
        let worker = serve.name.clone().unwrap_or(file.name);
        if !is_worker_name(&worker) {
            let reason = format!(
                "{worker:?} is no label of a domain: at most {LONGEST_NAME} lower-case letters, digits and hyphens"
            );
            return Err(about("name", reason));
        }
        if !(1..=MOST_HOSTS).contains(&file.hosts) {
            return Err(about("hosts", format!("{}: 1 to {MOST_HOSTS} are possible", file.hosts)));
        }
        let listen = serve.listen.as_deref().or(file.listen.as_deref()).unwrap_or(USUAL_ADDRESS);
        let listen = Listen::parse(listen, &directory).map_err(|reason| about("listen", reason))?;
        let tokens = file.tokens.map(|path| directory.join(path));
        if let Some(address) = listen.beyond_this_machine() {
            if tokens.is_none() {
                let reason = format!(
                    "{address} is no loopback address, and there are no tokens; name a file: tokens = \"tokens.toml\""
                );
                return Err(about("listen", reason));
            }
            if file.tls.is_none() && !file.insecure {
                let reason = format!(
                    "{address} is no loopback address, and keys would pass in the clear; set [tls], or insecure = true behind a proxy with TLS"
                );
                return Err(about("listen", reason));
            }
        }
        let state = match serve.state.clone().or_else(|| file.state.map(|path| directory.join(path))) {
            Some(state) => std::path::absolute(&state).map_err(Problem::about(state.display()))?,
            None => usual_state()?,
        };
        let mut files = file.template;
        if files.is_empty() {
            files.insert(USUAL_TEMPLATE.to_owned(), TemplateFile::default());
        }
        let state = StateDirectory(state);
        let nats = file.nats.check(serve.nats.as_deref(), &directory);
        let nats = nats.map_err(|(key, reason)| about(key, reason))?;
        let in_directory = |path: PathBuf| directory.join(path);
        let tls = file.tls.map(|files| TlsFiles {
            certificate: in_directory(files.certificate),
            key: in_directory(files.key),
        });
        let secrets = secrets([
            serve.config.clone(),
            tokens.clone(),
            tls.as_ref().map(|files| files.key.clone()),
            nats.as_ref().and_then(|nats| nats.credentials.clone()),
            nats.as_ref().and_then(|nats| nats.token_file.clone()),
        ]);
        let mut templates = BTreeMap::new();
        for (name, template) in files {
            let made = Template::new(template, &directory, &state, &secrets);
            let made = made.map_err(|reason| about(&format!("template.{name}"), reason))?;
            templates.insert(name, made);
        }
        for (name, language) in &file.language {
            let checked = language.check(|template| templates.contains_key(template));
            checked.map_err(|reason| about(&format!("language.{name}"), reason))?;
        }
        if tokens.is_some() && nats.as_ref().is_some_and(|nats| nats.token.is_none()) {
            let reason = "it is missing: jobs count against a token of yours, such as token = \"jobs\"";
            return Err(about("nats.token", reason.into()));
        }
        Ok(Self {
            listen,
            state,
            name: worker,
            hosts: file.hosts,
            domain: file.domain.map(|domain| domain.to_ascii_lowercase()),
            tokens,
            tls,
            sandboxes: file.sandboxes,
            connections: file.connections,
            queue: file.queue,
            admit_wait: file.admit_wait.duration(),
            orphan: file.orphan.duration(),
            drain: file.drain.duration(),
            blobs: file.blobs.bytes(),
            audit: file.audit.map(in_directory),
            nats,
            templates,
            languages: languages(file.language),
        })
    }
}

/// Where these files are, by every way that leads to them. One that is not there is no secret yet.
fn secrets(files: impl IntoIterator<Item = Option<PathBuf>>) -> Vec<PathBuf> {
    let ways = |path: PathBuf| [std::path::absolute(&path).ok(), fs::canonicalize(path).ok()];
    let mut all: Vec<_> = files.into_iter().flatten().flat_map(ways).flatten().collect();
    all.sort();
    all.dedup();
    all
}

fn usual_state() -> Result<PathBuf, Problem> {
    let of = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = of("XDG_STATE_HOME").or_else(|| of("HOME").map(|home| home.join(".local/state")));
    let missing =
        || Problem("neither HOME nor XDG_STATE_HOME is set: name a directory with --state".to_owned());
    state.map(|state| state.join("kennel/serve")).ok_or_else(missing)
}

/// Reads a file of TOML. Mistakes are named with line and column.
pub(crate) fn parse<T: DeserializeOwned>(path: &Path) -> Result<T, Problem> {
    let text = fs::read_to_string(path).map_err(Problem::about(path.display()))?;
    toml::from_str(&text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |rest| rest.chars().count()) + 1;
        Problem(format!("{}:{line}:{column}: {}", path.display(), error.message()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, String> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("serve.toml");
        fs::write(&path, text).expect("written");
        let state = Some(dir.path().join("state"));
        Config::read(&Serve { config: Some(path), listen: None, state, name: None, nats: None })
            .map_err(|problem| problem.to_string())
    }

    #[test]
    fn an_empty_file_has_all_defaults() {
        let config = read("").expect("good");
        assert_eq!(config.listen, Listen::Tcp(USUAL_ADDRESS.parse().expect("an address")));
        assert_eq!((config.hosts, config.name.as_str()), (4, "kennel"));
        assert_eq!(config.templates.keys().collect::<Vec<_>>(), ["base"]);
    }

    #[test]
    fn the_flag_names_a_worker_of_a_file_for_many() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("serve.toml");
        fs::write(&path, "name = 'all'").expect("written");
        let named = |name: &str| {
            let (config, state) = (Some(path.clone()), Some(dir.path().join("state")));
            Config::read(&Serve { config, listen: None, state, name: Some(name.to_owned()), nats: None })
        };
        assert_eq!(named("kennel-workers-3").expect("a label").name, "kennel-workers-3");
        let error = named("Node.1").expect_err("no label").to_string();
        assert!(error.contains("name: \"Node.1\" is no label of a domain"), "{error}");
    }

    #[test]
    fn what_is_the_servers_alone_is_masked_in_each_template() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("real")).expect("made");
        fs::write(at("real/tokens.toml"), "").expect("written");
        std::os::unix::fs::symlink("real/tokens.toml", at("tokens.toml")).expect("linked");
        let text = "tokens = 'tokens.toml'\n[tls]\ncertificate = 'c.pem'\nkey = 'k.pem'\n[template.a]\n";
        fs::write(at("serve.toml"), text).expect("written");
        let serve = Serve {
            config: Some(at("serve.toml")),
            listen: None,
            state: Some(at("state")),
            name: None,
            nats: None,
        };
        let config = Config::read(&serve).expect("good");
        let masks = &config.templates["a"].policy.mounts;
        for name in ["serve.toml", "tokens.toml", "real/tokens.toml", "k.pem"] {
            assert!(masks.contains(&kennel::Mount::Mask { path: at(name) }), "{name}: {masks:?}");
        }
        fs::write(at("policy.toml"), "[[mounts]]\ntype = 'ro'\nsource = 'real'").expect("written");
        fs::write(at("serve.toml"), format!("{text}policy = 'policy.toml'")).expect("written");
        let error = Config::read(&serve).expect_err("it shows them").to_string();
        assert!(error.contains("which is the server's"), "{error}");
    }

    #[test]
    fn an_open_address_needs_tokens_and_tls() {
        let open = "listen = '0.0.0.0:1'\n";
        assert!(read(open).expect_err("no tokens").contains("there are no tokens"));
        let tokens = format!("{open}tokens = 't.toml'\n");
        assert!(read(&tokens).expect_err("no TLS").contains("in the clear"));
        read(&format!("{tokens}insecure = true")).expect("said so");
        read(&format!("{tokens}tls = {{ certificate = 'c', key = 'k' }}")).expect("TLS");
        read("listen = 'unix:s'").expect("a socket");
        read("listen = '[::1]:1'").expect("loopback");
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (text, words) in [
            ("hostz = 1", "serve.toml:1:1: unknown field `hostz`"),
            ("\n\nhosts = 'x'", "serve.toml:3:9: invalid type"),
            ("hosts = 0", "hosts: 0: 1 to 36 are possible"),
            ("name = 'A_b'", "name: \"A_b\" is no label"),
            ("listen = 'x'", "listen: \"x\": ADDRESS:PORT"),
            ("[template.a]\npolicy = 'missing.toml'", "template.a: policy: "),
            ("[template.a]\nfiles = 'missing'", "template.a: files: "),
            ("[template.a]\ncommit = true", "template.a: commit: there are no files"),
            ("[language.a]\nfile = 'a/b'\nrun = ['a']", "language.a: file: \"a/b\" is no name"),
            ("[language.a]\nfile = 'a'\nrun = []", "language.a: run, compile: a program"),
            ("[language.a]\nfile = 'a'\nrun = ['a']\ntemplate = 'b'", "language.a: template: b is not there"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
