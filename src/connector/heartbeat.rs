//! The clock that interrupts programs: a thread that advances the engine's epoch while calls run.

use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use wasmtime::Engine;

use crate::sys::locked;

/// How long a program computes before it lets other tasks of its thread run.
const BEAT: Duration = Duration::from_millis(5);

/// Advances the epoch while a [`Beating`] exists. Otherwise its thread sleeps.
pub(crate) struct Heartbeat(Arc<Pulse>);

struct Pulse {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    calls: usize,
    is_over: bool,
}

/// A running call.
pub(crate) struct Beating<'h>(&'h Pulse);

impl Heartbeat {
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(engine: &Engine) -> std::io::Result<Self> {
        let pulse = Arc::new(Pulse { state: Mutex::default(), changed: Condvar::new() });
        let (own, engine) = (Arc::clone(&pulse), engine.clone());
        thread::Builder::new().name("kennel-epoch".to_owned()).spawn(move || own.beat(&engine))?;
        Ok(Self(pulse))
    }

    pub(crate) fn beat(&self) -> Beating<'_> {
        let mut state = locked(&self.0.state);
        state.calls += 1;
        if state.calls == 1 {
            self.0.changed.notify_one();
        }
        Beating(&self.0)
    }
}

impl Pulse {
    fn beat(&self, engine: &Engine) {
        loop {
            {
                let state = locked(&self.state);
                let waited = self.changed.wait_while(state, |state| state.calls == 0 && !state.is_over);
                if waited.map_or(true, |state| state.is_over) {
                    return;
                }
            }
            thread::sleep(BEAT);
            engine.increment_epoch();
        }
    }
}

impl Drop for Beating<'_> {
    fn drop(&mut self) {
        locked(&self.0.state).calls -= 1;
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        locked(&self.0.state).is_over = true;
        self.0.changed.notify_one();
    }
}
