//! The hosts: found or started, listened to, and asked. What the front knows about sandboxes it has from
//! them.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Request, Response, StatusCode};
use bytes::BytesMut;
use futures_util::StreamExt;
use hyper::body::Incoming;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use crate::Problem;
use crate::config::Config;
use crate::config::template::Template;
use crate::front::ask::{HostClient, client, stream_client};
use crate::http::forward::{at, forward};
use crate::sandboxes::ready::Wanted;
use crate::wire::failure::{Failure, Reason};
use crate::wire::id::SandboxId;
use crate::wire::sandbox::{News, State, Summary};
use crate::wire::{StateDirectory, VERSION};

/// How long a host may take until it answers for the first time.
const START: Duration = Duration::from_secs(20);

/// How long no host has its lock until none is waited for.
const GONE: Duration = Duration::from_secs(2);

/// The pause between two looks for a host.
const LOOK: Duration = Duration::from_millis(5);

/// The pause before a host that does not start is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Lost sandboxes that are remembered here.
const MOST_LOST: usize = 20_000;

/// All hosts of this worker.
pub(crate) struct Hosts {
    state: StateDirectory,
    count: u8,
    client: HostClient,
    streams: HostClient,
    known: Mutex<Known>,
    /// Something has ended, so that somebody may have room.
    pub(crate) changed: Notify,
    /// Whether the front is ending: no host is started any more.
    ending: watch::Sender<bool>,
    /// Each keeper has one, as long as it may start its host again.
    keepers: Arc<()>,
    /// Told of every end.
    on_end: OnEnd,
}

/// Is told of a sandbox that has ended.
type OnEnd = Box<dyn Fn(&Summary, Reason) + Send + Sync>;

#[derive(Default)]
struct Known {
    sandboxes: HashMap<SandboxId, Summary>,
    /// Those that died with their host, as far as this front has seen it.
    lost: HashSet<SandboxId>,
    /// By host and owner: commands that run.
    commands: HashMap<(u8, String), i64>,
    alive: Vec<u8>,
    /// Creations under way, by host.
    making: HashMap<u8, usize>,
}

impl Hosts {
    /// Finds the hosts that run, and starts the others.
    pub(crate) async fn start(
        config: &Config,
        on_end: impl Fn(&Summary, Reason) + Send + Sync + 'static,
    ) -> Result<Arc<Self>, Problem> {
        let hosts = Arc::new(Self {
            state: config.state.clone(),
            count: config.hosts,
            client: client(config.state.clone()),
            streams: stream_client(config.state.clone()),
            known: Mutex::default(),
            changed: Notify::new(),
            ending: watch::channel(false).0,
            keepers: Arc::default(),
            on_end: Box::new(on_end),
        });
        let mut ready = Vec::new();
        for index in 0..config.hosts {
            let (tell, told) = watch::channel(None);
            let keeper = Keeper {
                hosts: Arc::clone(&hosts),
                _keeps: Arc::clone(&hosts.keepers),
                index,
                name: config.name.clone(),
                orphan: config.orphan,
                ready: wanted(config, index),
                tell,
            };
            tokio::spawn(keeper.keep());
            ready.push(told);
        }
        for mut told in ready {
            let answer = timeout(START, told.wait_for(Option::is_some)).await;
            let answer = answer.map(|answer| answer.map_or(None, |answer| answer.clone()));
            match answer {
                Ok(Some(Ok(()))) => {}
                Ok(Some(Err(reason))) => return Err(Problem(reason)),
                _ => {
                    return Err(Problem(format!(
                        "a host does not answer; see {}",
                        hosts.state.hosts().display()
                    )));
                }
            }
        }
        Ok(hosts)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a request on to a host, and both directions after an upgrade.
    pub(crate) async fn forward(&self, host: u8, request: Request<Body>) -> Result<Response<Body>, Failure> {
        forward(request, |request| self.ask(host, request)).await
    }

    /// Asks a host.
    pub(crate) async fn ask(
        &self,
        host: u8,
        mut request: Request<Body>,
    ) -> Result<Response<Incoming>, Failure> {
        *request.uri_mut() = at(&host.to_string(), request.uri())?;
        let is_stream = matches!(request.uri().path(), "/process.Process/Start" | "/process.Process/Connect");
        let client = if is_stream { &self.streams } else { &self.client };
        client.request(request).await.map_err(|error| {
            if error.is_connect() {
                return Failure::gone(Some(Reason::SessionLost));
            }
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            Failure::new(
                StatusCode::BAD_GATEWAY,
                format!("the host of this sandbox did not answer: {error}: {cause}"),
            )
        })
    }

    /// The hosts that answer.
    pub(crate) fn alive(&self) -> Vec<u8> {
        self.lock().alive.clone()
    }

    /// Whether a host of this number can be there.
    pub(crate) fn has(&self, host: u8) -> bool {
        host < self.count
    }

    /// The host for a new sandbox: the one with the fewest; with a key, always the same one.
    pub(crate) fn choose(self: &Arc<Self>, key: Option<u64>) -> Option<Chosen> {
        let mut known = self.lock();
        let host = match key {
            Some(key) => u8::try_from(key % u64::from(self.count)).ok(),
            None => known.alive.iter().copied().min_by_key(|host| {
                let has = known.sandboxes.keys().filter(|id| id.host() == *host).count();
                has + known.making.get(host).copied().unwrap_or(0)
            }),
        }?;
        *known.making.entry(host).or_insert(0) += 1;
        Some(Chosen { hosts: Arc::clone(self), host })
    }

    /// Notes a sandbox before its host tells of it.
    pub(crate) fn note(&self, summary: Summary) {
        self.lock().sandboxes.entry(summary.id.clone()).or_insert(summary);
    }

    /// Notes that a client has ended a sandbox, before its host tells of it.
    pub(crate) fn note_end(&self, id: &SandboxId) {
        self.hear(id.host(), News::Ended { id: id.clone(), reason: Reason::Ended });
    }

    /// A sandbox, as its host has told last.
    pub(crate) fn find(&self, id: &SandboxId) -> Option<Summary> {
        self.lock().sandboxes.get(id).cloned()
    }

    /// All sandboxes of an owner.
    pub(crate) fn of_owner(&self, owner: &str) -> Vec<Summary> {
        self.lock().sandboxes.values().filter(|summary| summary.owner == owner).cloned().collect()
    }

    /// How many run, of this owner or of all.
    pub(crate) fn running(&self, owner: Option<&str>) -> usize {
        let known = self.lock();
        let counts = |summary: &&Summary| {
            summary.state == State::Running && owner.is_none_or(|owner| summary.owner == owner)
        };
        known.sandboxes.values().filter(counts).count()
    }

    /// How many run, by owner.
    pub(crate) fn running_by_owner(&self) -> HashMap<String, usize> {
        let mut counts = HashMap::new();
        let known = self.lock();
        for summary in known.sandboxes.values().filter(|summary| summary.state == State::Running) {
            match counts.get_mut(&summary.owner) {
                Some(count) => *count += 1,
                None => {
                    counts.insert(summary.owner.clone(), 1);
                }
            }
        }
        counts
    }

    /// How many commands of this owner run.
    pub(crate) fn commands(&self, owner: &str) -> usize {
        let known = self.lock();
        let of_owner = known.commands.iter().filter(|((_, name), _)| name == owner);
        usize::try_from(of_owner.map(|(_, count)| *count).sum::<i64>()).unwrap_or(0)
    }

    /// Why a sandbox is not there, where its host cannot know.
    pub(crate) fn lost(&self, id: &SandboxId) -> Option<Reason> {
        let is_lost = self.lock().lost.contains(id) || self.state.lost().join(id.as_str()).exists();
        is_lost.then_some(Reason::SessionLost)
    }

    /// The answer about a sandbox whose host does not answer. What ran there is lost, and what was paused is
    /// there again with the next host.
    pub(crate) fn without_host(&self, id: &SandboxId) -> Failure {
        let ran = self.find(id).is_some_and(|summary| summary.state == State::Running);
        let reason = self.lost(id).or(ran.then_some(Reason::SessionLost));
        if reason.is_none() && self.state.sandboxes().join(id.as_str()).exists() {
            let message = "the host of this sandbox is just being started again";
            return Failure::later(StatusCode::SERVICE_UNAVAILABLE, 1, message);
        }
        Failure::unknown(id.as_str(), reason)
    }

    /// Ends the hosts, and waits until they are gone.
    pub(crate) async fn end(&self) {
        self.ending.send_replace(true);
        // They hold their locks until their sandboxes are gone. A host may just be starting, also when its
        // keeper has given it up: it is told as soon as it can be. Where none has its lock for some time,
        // none comes.
        let mut free = Instant::now();
        loop {
            if (0..self.count).any(|index| is_locked(&self.state, index)) {
                free = Instant::now();
            } else if Arc::strong_count(&self.keepers) == 1 || free.elapsed() >= GONE {
                return;
            }
            for index in 0..self.count {
                let stream = UnixStream::connect(self.state.host_socket(index)).await;
                let pid = stream.ok().and_then(|stream| stream.peer_cred().ok()?.pid());
                pid.into_iter().for_each(|pid| {
                    // It may have ended by itself.
                    let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
                });
            }
            sleep(LOOK).await;
        }
    }

    fn hear(&self, host: u8, news: News) {
        let mut known = self.lock();
        match news {
            News::Hello { commands, .. } => {
                known.sandboxes.retain(|id, _| id.host() != host);
                known.commands.retain(|(of, _), _| *of != host);
                known.commands.extend(commands.into_iter().map(|(owner, count)| ((host, owner), count)));
                if !known.alive.contains(&host) {
                    known.alive.push(host);
                }
            }
            News::Sandbox(summary) => {
                let was_running =
                    known.sandboxes.get(&summary.id).is_some_and(|old| old.state == State::Running);
                let pauses = was_running && summary.state == State::Paused;
                known.sandboxes.insert(summary.id.clone(), summary);
                drop(known);
                if pauses {
                    self.changed.notify_waiters();
                }
            }
            News::Ended { id, reason } => {
                let ended = known.sandboxes.remove(&id);
                drop(known);
                ended.into_iter().for_each(|summary| (self.on_end)(&summary, reason));
                self.changed.notify_waiters();
            }
            News::Commands { owner, change } => {
                *known.commands.entry((host, owner)).or_insert(0) += change;
            }
        }
    }

    /// A host is gone, and with it what ran there.
    fn lose(&self, host: u8) {
        let mut known = self.lock();
        known.alive.retain(|alive| *alive != host);
        known.commands.retain(|(of, _), _| *of != host);
        let mut lost = Vec::new();
        known.sandboxes.retain(|id, summary| {
            let is_lost = id.host() == host && summary.state == State::Running;
            if is_lost {
                lost.push(summary.clone());
            }
            !is_lost
        });
        if known.lost.len() > MOST_LOST {
            // The next host writes them down, too.
            known.lost.clear();
        }
        known.lost.extend(lost.iter().map(|summary| summary.id.clone()));
        drop(known);
        lost.iter().for_each(|summary| (self.on_end)(summary, Reason::SessionLost));
        self.changed.notify_waiters();
    }
}

/// The host of a creation, which counts as one of its sandboxes until this is dropped.
pub(crate) struct Chosen {
    hosts: Arc<Hosts>,
    pub(crate) host: u8,
}

impl Drop for Chosen {
    fn drop(&mut self) {
        if let Some(making) = self.hosts.lock().making.get_mut(&self.host) {
            *making -= 1;
        }
    }
}

fn is_locked(state: &StateDirectory, index: u8) -> bool {
    let Ok(file) = File::open(state.host_lock(index)) else { return false };
    Flock::lock(file, FlockArg::LockSharedNonblock).is_err()
}

/// What a host keeps prepared: its part of what each template wants.
fn wanted(config: &Config, index: u8) -> Vec<Wanted> {
    let (hosts, index) = (usize::from(config.hosts), usize::from(index));
    let of_template = |(name, template): (&String, &Template)| {
        let count = template.ready / hosts + usize::from(index < template.ready % hosts);
        Wanted { making: template.making(name, template.policy.clone()), count }
    };
    config.templates.iter().map(of_template).filter(|wanted| wanted.count > 0).collect()
}

/// Keeps one host alive, and hears its news.
struct Keeper {
    hosts: Arc<Hosts>,
    _keeps: Arc<()>,
    index: u8,
    name: String,
    orphan: Duration,
    ready: Vec<Wanted>,
    /// Whether the host has answered for the first time.
    tell: watch::Sender<Option<Result<(), String>>>,
}

impl Keeper {
    async fn keep(self) {
        let mut ending = self.hosts.ending.subscribe();
        loop {
            match self.listen().await {
                // It was there: perhaps this front was too slow for its news.
                Ok(true) => continue,
                Ok(false) => self.hosts.lose(self.index),
                Err(reason) => {
                    self.tell.send_replace(Some(Err(reason)));
                    return;
                }
            }
            if *ending.borrow_and_update() {
                return;
            }
            if let Err(error) = self.begin().await {
                self.tell
                    .send_if_modified(|told| told.replace(Err(format!("start a host: {error}"))).is_none());
                sleep(AGAIN).await;
            }
        }
    }

    /// Hears the host until it is gone. Returns whether it was there.
    ///
    /// # Errors
    /// It speaks another version.
    async fn listen(&self) -> Result<bool, String> {
        let request = Request::get("/host/news").body(Body::empty()).unwrap_or_default();
        let Ok(response) = self.hosts.ask(self.index, request).await else { return Ok(false) };
        let mut pieces = Body::new(response.into_body()).into_data_stream();
        let mut text = BytesMut::new();
        // Between its first line and its last summary, a host that was known is only half told.
        let mut left = 1;
        while let Some(Ok(piece)) = pieces.next().await {
            text.extend_from_slice(&piece);
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line = text.split_to(end + 1);
                let Ok(news) = serde_json::from_slice::<News>(&line) else { return Ok(true) };
                if let News::Hello { version, sandboxes, .. } = &news {
                    if *version != VERSION {
                        return Err(format!(
                            "hosts of another version of Kennel still run (theirs {version}, ours {VERSION}): end them with SIGTERM first"
                        ));
                    }
                    left = sandboxes + 1;
                }
                self.hosts.hear(self.index, news);
                if left == 1 {
                    self.want_ready().await;
                    self.tell.send_if_modified(|told| told.replace(Ok(())).is_none());
                }
                left = left.saturating_sub(1);
            }
        }
        Ok(true)
    }

    /// Tells the host how many sandboxes it is to keep prepared.
    async fn want_ready(&self) {
        let Ok(body) = serde_json::to_vec(&self.ready) else { return };
        let request =
            Request::post("/host/ready").header(CONTENT_TYPE, "application/json").body(Body::from(body));
        if let Ok(request) = request {
            // A host that has just died is told again when it is back.
            let _ = self.hosts.ask(self.index, request).await;
        }
    }

    /// Starts the process, and waits until it answers. It gets a group of its own, so that it outlives this
    /// one.
    async fn begin(&self) -> io::Result<()> {
        let state = &self.hosts.state;
        let log =
            OpenOptions::new().create(true).append(true).mode(0o600).open(state.host_log(self.index))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve-host").arg("--state").arg(state.path());
        command.args(["--index", &self.index.to_string(), "--name", &self.name]);
        command.args(["--orphan", &self.orphan.as_millis().to_string()]);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let mut child = command.spawn()?;
        let answers = async {
            while UnixStream::connect(state.host_socket(self.index)).await.is_err() {
                sleep(LOOK).await;
            }
        };
        tokio::select! {
            () = answers => {}
            ended = child.wait() => {
                let log = state.host_log(self.index);
                return Err(io::Error::other(format!("it ended with {}; see {}", ended?, log.display())));
            }
        }
        // It is reaped, whenever it ends.
        tokio::spawn(async move { child.wait().await });
        Ok(())
    }
}
