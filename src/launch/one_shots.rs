//! What the one-shots of a policy are started with. Each is to have walls that fit what is there when it starts: a command
//! before it may have made a repository, and git outside replaces a config by another file.

use std::fmt;
use std::sync::{Arc, Mutex};

use crate::host::Host;
use crate::host::caller::Caller;
use crate::launch::prepared::Prepared;
use crate::plan::compile;
use crate::plan::mount_state::{Change, replaced};
use crate::policy::Policy;
use crate::report::error::Error;
use crate::sys::locked;
use crate::view::inputs::Shape;

/// What compile needs to do its work again.
pub(crate) type Question = (Policy, Host, Caller);

pub(crate) struct OneShots {
    /// `None` where there is a single command.
    question: Option<Question>,
    now: Mutex<Arc<Prepared>>,
}

/// A policy and the environment of whoever made the sandbox may hold secrets.
impl fmt::Debug for OneShots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneShots").field("now", &self.prepared()).finish_non_exhaustive()
    }
}

impl OneShots {
    pub(crate) fn of(question: Question, prepared: Prepared) -> Self {
        Self { question: Some(question), now: Mutex::new(Arc::new(prepared)) }
    }

    /// For a single command, which is started at once.
    pub(crate) fn once(prepared: Prepared) -> Self {
        Self { question: None, now: Mutex::new(Arc::new(prepared)) }
    }

    /// As the last one was started, or the first will be.
    pub(crate) fn prepared(&self) -> Arc<Prepared> {
        Arc::clone(&locked(&self.now))
    }

    /// As one is to be started now.
    ///
    /// # Errors
    /// The workspace or a writable grant that was replaced or is gone; those of compile, where what is there now cannot be protected.
    pub(crate) fn renewed(&self) -> Result<Arc<Prepared>, Error> {
        let mut now = locked(&self.now);
        if let Some((policy, host, caller)) = &self.question {
            match now.change() {
                Change::None => {}
                Change::Grant(what, path) => return Err(replaced(what, path, "make a new sandbox")),
                Change::Some => {
                    *now = Arc::new(now.anew(compile::compile(policy, host, caller, Shape::OneShot)?));
                }
            }
        }
        Ok(Arc::clone(&now))
    }
}
