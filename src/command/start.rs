//! From a command to a worker that has it: what the worker gets to know, and which one it is.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use crate::audit::trail::Trail;
use crate::command::child::Child;
use crate::command::explain::Judge;
use crate::command::running::{CommandSpec, Running};
use crate::command::source::{Membership, ReadyWorker};
use crate::command::stdio::{Connected, StdioKind};
use crate::command::{Command, stdio};
use crate::launch::prepared;
use crate::launch::prepared::Prepared;
use crate::plan::limits::command;
use crate::plan::request::{RequestBuf, RequestFields};
use crate::plan::restrict;
use crate::policy::units::Size;
use crate::report::error::{Error, STREAMS};

/// A worker that has its command.
struct HandedOver {
    taken: ReadyWorker,
    membership: Option<Box<dyn Membership>>,
    born: Instant,
}

impl Command {
    /// Starts the command; `stdin` and `out` are the descriptors that nobody named.
    pub(crate) async fn start(
        &mut self,
        stdin: fn() -> StdioKind,
        out: fn() -> StdioKind,
    ) -> Result<Child, Error> {
        let prepared = self.source.renewed()?;
        let (request, asked) = self.request(&prepared)?;
        if asked.limits.output_ends {
            self.check_counted(out)?;
        }
        let [input, output, error] = self.connect(stdin, out)?;
        let theirs = [input.theirs.as_fd(), output.theirs.as_fd(), error.theirs.as_fd()];
        // Not entered across an await; what is told of the command names it as its parent.
        let span = tracing::debug_span!(parent: self.source.span(), "exec", program = ?self.program);
        let trail = self.source.trail();
        let mut exec = trail.begin(&self.program, &self.arguments, &asked.directory)?;
        let handed_over = self.hand_over(&prepared, (&asked, &request), &trail, theirs).await;
        let HandedOver { taken, membership, born } = handed_over.inspect_err(|error| exec.failed(error))?;
        tracing::debug!(parent: &span, "handed over");
        drop(request);
        let asked = CommandSpec { narrow: taken.steps(), ..asked };
        let mut running =
            Running::new(taken.inside, prepared, asked, (membership, taken.serving, exec, span), born)?;
        taken.said.iter().for_each(|report| running.note(report));
        if let Some(listener) = taken.listener {
            running.follow(listener)?;
        }
        let mut child = Child::new(running, self.kill_on_drop);
        child.connect([input.ours, output.ours, error.ours])?;
        Ok(child)
    }

    /// What the worker gets to know, and what we have to remember.
    fn request(&mut self, prepared: &Prepared) -> Result<(RequestBuf, CommandSpec), Error> {
        let compiled = &prepared.compiled;
        if self.background && !self.source.keeps_background() {
            return Err(Error::Command {
                what: "background",
                value: self.program.to_string_lossy().into_owned(),
                reason: "a command outside of a session leaves nothing behind".to_owned(),
            });
        }
        let directory = match &self.directory {
            Some(directory) => compiled.directory.join(directory),
            None => compiled.directory.clone(),
        };
        let mut kept = command::tightened(
            &compiled.limits,
            &compiled.groups,
            compiled.descriptors,
            self.limits.as_ref(),
        )?;
        // A narrowed command's worker is made for it, and has just seen to them; some may be read-only by now.
        if self.narrowings.is_empty() {
            kept.steps.extend_from_slice(&compiled.modes.bytes);
        }
        // They go when this function ends, also where it fails.
        let secrets = std::mem::take(&mut self.secrets);
        let request = RequestBuf::new(&RequestFields {
            program: &self.program,
            called: self.called.as_deref(),
            arguments: &self.arguments,
            environment: &self.environment,
            secrets: &secrets,
            directory: &directory,
            terminal: self.terminal,
            background: self.background,
            limits: &kept.steps,
        })?;
        let output = kept.limits.output.map(Size::bytes);
        let mut asked = CommandSpec {
            caps: self.caps.map_or([output; 2], |caps| caps.map(Some)),
            program: self.program.clone(),
            directory,
            timeout: [kept.limits.timeout.map(|span| span.duration()), self.timeout]
                .into_iter()
                .flatten()
                .min(),
            limits: kept.limits,
            settings: kept.settings,
            background: self.background,
            narrow: restrict::steps(&compiled.grants, &self.narrowings)?,
            judge: None,
        };
        asked.judge = compiled.terms.as_ref().map(|terms| Judge {
            terms: Arc::clone(terms),
            directory: asked.directory.clone(),
            limits: asked.limits.clone(),
            narrowed: self.narrowings.clone(),
        });
        Ok((request, asked))
    }

    /// Gives the request to a worker, at the moment that is answered. Takes another worker where one was killed before it got
    /// the request.
    async fn hand_over(
        &self,
        prepared: &Prepared,
        (asked, request): (&CommandSpec, &RequestBuf),
        trail: &Arc<Trail>,
        stdio: [BorrowedFd<'_>; 3],
    ) -> Result<HandedOver, Error> {
        loop {
            let taken = self.source.worker(prepared, trail, asked.narrow.as_ref(), self.fail_fast).await?;
            tighten(&taken, asked)?;
            let born = Instant::now();
            match prepared::send_request(&taken.inside, request, stdio) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe && self.source.has_others()? => {}
                // How the only worker ended is told when the command is waited for.
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                    return Err(Error::io("hand the command over")(error));
                }
                _ => return Ok(HandedOver { taken, membership: Arc::clone(&self.source).join(), born }),
            }
        }
    }

    /// Who writes too much can only be ended where what it writes passes through us.
    fn check_counted(&self, out: fn() -> StdioKind) -> Result<(), Error> {
        let is_counted = |kind: &Option<StdioKind>| {
            matches!(kind.as_ref().unwrap_or(&out()), StdioKind::Piped | StdioKind::Null)
        };
        if self.terminal.is_none() && is_counted(&self.stdout) && is_counted(&self.stderr) {
            return Ok(());
        }
        let passes_by = if self.terminal.is_some() { "a terminal" } else { "a descriptor of the caller's" };
        Err(Error::Command {
            what: "output",
            value: self.program.to_string_lossy().into_owned(),
            reason: format!(
                "goes to {passes_by}, where nobody counts it, and limits.output_ends shall end who writes too much: \
                 connect pipes, or leave output_ends out"
            ),
        })
    }

    fn connect(&mut self, stdin: fn() -> StdioKind, out: fn() -> StdioKind) -> Result<[Connected; 3], Error> {
        let [input, output, error] = STREAMS.map(Error::io);
        Ok([
            stdio::connect(self.stdin.take().unwrap_or_else(stdin), io::stdin(), true).map_err(input)?,
            stdio::connect(self.stdout.take().unwrap_or_else(out), io::stdout(), false).map_err(output)?,
            stdio::connect(self.stderr.take().unwrap_or_else(out), io::stderr(), false).map_err(error)?,
        ])
    }
}

/// Sets the limits of the command alone that its cgroup holds, before it has anything to do. It begins now, however long
/// its worker has waited.
fn tighten(taken: &ReadyWorker, asked: &CommandSpec) -> Result<(), Error> {
    let Some(leaf) = taken.inside.leaf() else { return Ok(()) };
    leaf.begin();
    leaf.tighten(&asked.settings)
}
