//! Pipes that processes in the background still hold after the end of the command that started them.

use std::collections::VecDeque;
use std::sync::Mutex;

use tokio::io::AsyncReadExt;
use tokio::task::AbortHandle;

use crate::process::output::ChildOutput;
use crate::sys::locked;

/// How many pipes are read on.
const MOST: usize = 64;

/// Pipes of commands that have ended, each with a task that reads and drops what comes. Without a reader,
/// processes that a command left in the background would get SIGPIPE. Dropping this gives all of them up.
///
/// ```no_run
/// # use kennel::internal::LeftPipes;
/// # async fn example(session: kennel::Session, left: LeftPipes) -> Result<(), kennel::Error> {
/// let mut command = session.command("sh");
/// let mut child = command.args(["-c", "server &"]).stdout(kennel::Stdio::piped()).spawn().await?;
/// child.wait().await?;
/// child.stdout.take().into_iter().for_each(|pipe| left.add(pipe));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct LeftPipes(Mutex<VecDeque<AbortHandle>>);

impl LeftPipes {
    /// Reads on. Beyond 64 pipes, the oldest one is given up.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn add(&self, mut pipe: ChildOutput) {
        let mut left = locked(&self.0);
        left.retain(|task| !task.is_finished());
        if left.len() >= MOST {
            left.pop_front().iter().for_each(AbortHandle::abort);
        }
        let task = tokio::spawn(async move {
            let mut piece = vec![0; 8192];
            while pipe.read(&mut piece).await.is_ok_and(|count| count > 0) {}
        });
        left.push_back(task.abort_handle());
    }

    /// Gives all pipes up.
    pub fn clear(&self) {
        locked(&self.0).drain(..).for_each(|task| task.abort());
    }
}

impl Drop for LeftPipes {
    fn drop(&mut self) {
        self.clear();
    }
}
