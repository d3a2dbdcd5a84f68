//! One sandbox: a session with its record, its commands and its deadline.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use kennel::Session;
use kennel::internal::account::Account;
use nix::unistd::{getgid, getuid};
use tokio::sync::Notify;

use crate::sandboxes::prepared::{Prepared, prepare};
use crate::sandboxes::process::{Process, Start};
use crate::sandboxes::record::{Place, Record};
use crate::wire::failure::{Failure, Reason};
use crate::wire::sandbox::{NewSandbox, State, Summary, now};

/// How long a paused sandbox is kept, in milliseconds: 30 days, as with E2B.
const PAUSED_MS: u64 = 30 * 24 * 60 * 60 * 1000;

/// Commands that have ended and whose output somebody may still ask for.
const MOST_ENDED: usize = 16;

/// A sandbox of this host.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) place: Place,
    inner: Mutex<Inner>,
    /// The deadline has changed, or the sandbox has ended.
    pub(crate) changed: Notify,
}

#[derive(Debug)]
struct Inner {
    record: Record,
    session: Life,
    processes: BTreeMap<u32, Arc<Process>>,
    next_pid: u32,
    last_use: Instant,
}

/// What of the sandbox is there.
#[derive(Debug)]
enum Life {
    Running(Session),
    Paused,
    /// A pause or a resume is under way.
    Changing,
    Over(Reason),
}

impl Sandbox {
    /// One that is prepared, and now has an owner.
    pub(crate) fn new(prepared: Prepared, new: NewSandbox) -> Result<Self, Failure> {
        let started = now();
        let deadline = started.saturating_add(new.life_ms);
        let Prepared { place, id, session } = prepared;
        let record = Record { id, new, state: State::Running, started, deadline };
        match place.write(&record) {
            Ok(()) => Ok(Self::with(place, record, Life::Running(session))),
            Err(error) => {
                drop(session);
                // Nothing has run in it.
                let _ = place.remove();
                Err(Failure::on_disk(&error))
            }
        }
    }

    /// One that an earlier host has paused.
    pub(crate) fn paused(place: Place, record: Record) -> Self {
        Self::with(place, record, Life::Paused)
    }

    fn with(place: Place, record: Record, session: Life) -> Self {
        let (processes, next_pid, last_use) = (BTreeMap::new(), 1, Instant::now());
        let inner = Inner { record, session, processes, next_pid, last_use };
        Self { place, inner: Mutex::new(inner), changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn summary(&self) -> Summary {
        self.lock().record.summary()
    }

    pub(crate) fn record(&self) -> Record {
        self.lock().record.clone()
    }

    /// Why it has ended.
    pub(crate) fn over(&self) -> Option<Reason> {
        match self.lock().session {
            Life::Over(reason) => Some(reason),
            _ => None,
        }
    }

    /// The name of the one user that its commands are.
    pub(crate) fn user(&self) -> String {
        let inner = self.lock();
        let policy = &inner.record.new.making.policy;
        let own = || {
            let account = Account::of(getuid().as_raw()).map(|account| account.name);
            account.and_then(|name| name.into_string().ok()).unwrap_or_else(|| getuid().to_string())
        };
        match &policy.user {
            Some(user) => user.split(':').next().filter(|user| *user != "0").unwrap_or("root").to_owned(),
            None if policy.root.is_some() || policy.image.is_some() => "root".to_owned(),
            None => own(),
        }
    }

    /// The name that an owner of files has there. No other id has a name in a sandbox.
    pub(crate) fn name_of_user(&self, uid: u32) -> String {
        if uid == getuid().as_raw() { self.user() } else { of_another(uid) }
    }

    /// As [`name_of_user`](Self::name_of_user), for a group.
    pub(crate) fn name_of_group(&self, gid: u32) -> String {
        if gid == getgid().as_raw() { self.user() } else { of_another(gid) }
    }

    /// Whether its template asks for `bash -l`.
    pub(crate) fn wants_login_shells(&self) -> bool {
        self.lock().record.new.making.login
    }

    /// The session, for one call. Keep no clone: the last one ends the sandbox.
    pub(crate) fn session(&self) -> Result<Session, Failure> {
        let mut inner = self.lock();
        inner.last_use = Instant::now();
        match &inner.session {
            Life::Running(session) if !session.has_ended() => Ok(session.clone()),
            Life::Running(_) => Err(Failure::gone(Some(Reason::SessionLost))),
            Life::Over(reason) => Err(Failure::gone(Some(*reason))),
            Life::Paused | Life::Changing => Err(Failure::new(
                StatusCode::BAD_GATEWAY,
                "The sandbox was not found: it is paused; connect resumes it",
            )),
        }
    }

    /// Bytes of a stream that its template keeps of a command.
    pub(crate) fn output_limit(&self) -> Option<u64> {
        self.lock().record.new.making.policy.limits.output.map(kennel::Size::bytes)
    }

    /// Starts a command. `ended` is called when it is over. The inner error is the command's own.
    pub(crate) async fn start(
        self: &Arc<Self>,
        start: Start,
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<Result<Arc<Process>, kennel::Error>, Failure> {
        let session = self.session()?;
        let mut start = start;
        let pid = {
            let mut inner = self.lock();
            for (name, value) in &inner.record.new.variables {
                start.variables.entry(name.clone()).or_insert_with(|| value.clone());
            }
            let pid = inner.next_pid;
            inner.next_pid += 1;
            pid
        };
        let sandbox = Arc::downgrade(self);
        let over = move || {
            sandbox.upgrade().into_iter().for_each(|sandbox| sandbox.forget_ended());
            ended();
        };
        let process = Process::start(&session, pid, start, over).await;
        if let Ok(process) = &process {
            self.lock().processes.insert(pid, Arc::clone(process));
        }
        Ok(process)
    }

    /// Forgets the oldest commands that have ended.
    fn forget_ended(&self) {
        let mut inner = self.lock();
        inner.last_use = Instant::now();
        let ended: Vec<_> =
            inner.processes.iter().filter(|(_, process)| process.has_ended()).map(|(pid, _)| *pid).collect();
        for pid in ended.iter().take(ended.len().saturating_sub(MOST_ENDED)) {
            inner.processes.remove(pid);
        }
    }

    /// Commands that run.
    pub(crate) fn running(&self) -> Vec<Arc<Process>> {
        self.lock().processes.values().filter(|process| !process.has_ended()).cloned().collect()
    }

    /// A command by its number.
    pub(crate) fn process(&self, pid: u32) -> Option<Arc<Process>> {
        self.lock().processes.get(&pid).cloned()
    }

    /// The newest command with this word.
    pub(crate) fn tagged(&self, tag: &str) -> Option<Arc<Process>> {
        let inner = self.lock();
        inner.processes.values().rev().find(|process| process.start.tag.as_deref() == Some(tag)).cloned()
    }

    /// Sets the deadline, which is written before this returns. `only_later`: an earlier one is ignored.
    pub(crate) fn renew(&self, life_ms: u64, only_later: bool) -> Result<(), Failure> {
        let mut inner = self.lock();
        if let Life::Over(reason) = inner.session {
            return Err(Failure::unknown(inner.record.id.as_str(), Some(reason)));
        }
        if life_ms > inner.record.new.longest_ms {
            return Err(too_long(life_ms, inner.record.new.longest_ms));
        }
        let deadline = now().saturating_add(life_ms);
        if only_later && deadline <= inner.record.deadline {
            return Ok(());
        }
        let record = Record { deadline, ..inner.record.clone() };
        self.place.write(&record).map_err(|error| Failure::on_disk(&error))?;
        inner.record = record;
        drop(inner);
        self.changed.notify_waiters();
        Ok(())
    }

    /// What is to be done at this moment, if anything: looked at and decided under one lock, so that a
    /// renewal comes either before or too late.
    pub(crate) fn due(&self) -> Due {
        let mut inner = self.lock();
        let running = match &inner.session {
            Life::Over(_) => return Due::Gone,
            Life::Paused | Life::Changing => false,
            Life::Running(session) if session.has_ended() => {
                inner.session = Life::Over(Reason::SessionLost);
                return Due::End(Reason::SessionLost);
            }
            Life::Running(_) => true,
        };
        let left = inner.record.deadline.saturating_sub(now());
        if left == 0 && !matches!(inner.session, Life::Changing) {
            if running && inner.record.new.pauses {
                return Due::Pause;
            }
            inner.session = Life::Over(Reason::Expired);
            return Due::End(Reason::Expired);
        }
        let busy = inner.processes.values().any(|process| !process.has_ended());
        let idle = inner.record.new.making.idle_ms.filter(|_| running && !busy);
        let unused = u64::try_from(inner.last_use.elapsed().as_millis()).unwrap_or(u64::MAX);
        match idle.map(|idle| idle.saturating_sub(unused)) {
            Some(0) => Due::Pause,
            idle => Due::Later(Duration::from_millis(left.min(idle.unwrap_or(left)))),
        }
    }

    /// Gives up what only makes the next command faster, if nobody has used the sandbox for that long.
    pub(crate) fn rest(&self, idle: Duration) {
        if let Life::Running(session) = &self.lock().session
            && session.idle().is_some_and(|time| time >= idle)
        {
            session.end_ready_workers();
        }
    }

    /// Ends it for good. Returns whether this call did.
    pub(crate) fn end(&self, reason: Reason) -> bool {
        let mut inner = self.lock();
        if matches!(inner.session, Life::Over(_)) {
            return false;
        }
        // The last handle: every process is killed.
        inner.session = Life::Over(reason);
        drop(inner);
        self.changed.notify_waiters();
        true
    }

    /// Ends its processes and keeps its files. Goes on if the caller goes away.
    pub(crate) async fn pause(self: &Arc<Self>) -> Result<(), Failure> {
        let sandbox = Arc::clone(self);
        to_the_end(async move { sandbox.do_pause().await }).await
    }

    async fn do_pause(&self) -> Result<(), Failure> {
        let session = {
            let mut inner = self.lock();
            match &inner.session {
                Life::Running(_) => {}
                Life::Over(reason) => return Err(Failure::unknown(inner.record.id.as_str(), Some(*reason))),
                Life::Paused | Life::Changing => {
                    return Err(Failure::new(
                        StatusCode::CONFLICT,
                        "the sandbox is paused, or just being so",
                    ));
                }
            }
            let deadline = now().saturating_add(PAUSED_MS);
            let record = Record { state: State::Paused, deadline, ..inner.record.clone() };
            self.place.write(&record).map_err(|error| Failure::on_disk(&error))?;
            inner.record = record;
            std::mem::replace(&mut inner.session, Life::Changing)
        };
        if let Life::Running(session) = session {
            session.shutdown().await;
        }
        let mut inner = self.lock();
        // It may have been ended meanwhile.
        if matches!(inner.session, Life::Changing) {
            inner.session = Life::Paused;
        }
        drop(inner);
        self.changed.notify_waiters();
        Ok(())
    }

    /// Gives a paused sandbox processes again. Returns whether it was paused. Goes on if the caller goes
    /// away.
    pub(crate) async fn resume(self: &Arc<Self>, life_ms: u64) -> Result<bool, Failure> {
        let sandbox = Arc::clone(self);
        to_the_end(async move { sandbox.do_resume(life_ms).await }).await
    }

    fn begin_resume(&self, life_ms: u64) -> Result<Resume, Failure> {
        let mut inner = self.lock();
        match &inner.session {
            Life::Running(_) => Ok(Resume::Running),
            Life::Over(reason) => Err(Failure::unknown(inner.record.id.as_str(), Some(*reason))),
            Life::Changing => Ok(Resume::Later),
            Life::Paused if life_ms > inner.record.new.longest_ms => {
                Err(too_long(life_ms, inner.record.new.longest_ms))
            }
            Life::Paused => {
                inner.session = Life::Changing;
                let deadline = now().saturating_add(life_ms);
                let record = Record { state: State::Running, deadline, ..inner.record.clone() };
                Ok(Resume::Begun(Box::new(record)))
            }
        }
    }

    async fn do_resume(&self, life_ms: u64) -> Result<bool, Failure> {
        let record = loop {
            let changed = self.changed.notified();
            match self.begin_resume(life_ms)? {
                Resume::Running => return Ok(false),
                Resume::Begun(record) => break *record,
                Resume::Later => changed.await,
            }
        };
        let prepared = prepare(&record.new.making, &record.id, &self.place).await;
        let mut inner = self.lock();
        if let Life::Over(reason) = inner.session {
            return Err(Failure::unknown(inner.record.id.as_str(), Some(reason)));
        }
        let written = prepared.and_then(|session| {
            self.place.write(&record).map_err(|error| Failure::on_disk(&error))?;
            Ok(session)
        });
        let resumed = match written {
            Ok(session) => {
                inner.session = Life::Running(session);
                inner.record = record;
                inner.last_use = Instant::now();
                Ok(true)
            }
            Err(failure) => {
                inner.session = Life::Paused;
                Err(failure)
            }
        };
        drop(inner);
        self.changed.notify_waiters();
        resumed
    }
}

/// What becomes of a wish to resume.
enum Resume {
    /// It runs already.
    Running,
    /// The caller prepares it.
    Begun(Box<Record>),
    /// Whoever pauses or resumes it just now says when that is done.
    Later,
}

/// What a sandbox needs at a moment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing before that time.
    Later(Duration),
    Pause,
    /// It has just ended for this reason.
    End(Reason),
    /// It has ended before.
    Gone,
}

/// Runs a future on the runtime. Dropping the wait for it does not stop it.
async fn to_the_end<T: Send + 'static>(
    future: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    tokio::spawn(future).await.unwrap_or_else(|_| Err(Failure::host_ends()))
}

fn of_another(id: u32) -> String {
    if id == 0 { "root".to_owned() } else { id.to_string() }
}

fn too_long(life_ms: u64, longest_ms: u64) -> Failure {
    Failure::bad(format!(
        "timeout: {} s is longer than the {} s that the token or the template allows",
        life_ms / 1000,
        longest_ms / 1000
    ))
}
