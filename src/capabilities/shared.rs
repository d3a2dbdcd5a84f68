//! The one wrapper of the process, for those who do not want to hold one.

use std::{ffi::OsStr, path::Path};

use tokio::process::Command;

use super::{Capabilities, Layer, RunLimits, Wrapper};
use crate::{Error, Output};

/// What [`wrap_command`] and its like use: so that commands with the same capabilities share a session wherever in the
/// program they are made.
static SHARED: Wrapper = Wrapper::new();

/// The strongest layer that this host gives for `caps`; see [`Wrapper::resolve_layer`].
///
/// ```
/// use kennel::{Capabilities, Layer};
///
/// assert_eq!(kennel::resolve_layer(&Capabilities::default()), Layer::Lightweight);
/// let caps = Capabilities { net: false, ..Capabilities::default() };
/// if kennel::resolve_layer(&caps) == Layer::None {
///     eprintln!("this host cannot keep a command from the network; kennel probe says why");
/// }
/// ```
#[must_use]
pub fn resolve_layer(caps: &Capabilities) -> Layer {
    SHARED.resolve_layer(caps)
}

/// A command that is held to `caps`, and the layer that holds it; see [`Wrapper::wrap`]. The sessions are those of one
/// wrapper of the process; to decide when they end, use a [`Wrapper`] of your own.
///
/// ```
/// use kennel::{Capabilities, Layer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (mut command, layer) = kennel::wrap_command("pwd", ["-P"], "/usr", &Capabilities::default()).await?;
/// assert_eq!(layer, Layer::Lightweight);
/// assert_eq!(command.output().await?.stdout, b"/usr\n");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of [`Wrapper::wrap`].
///
/// # Panics
/// As [`Wrapper::wrap`].
pub async fn wrap_command(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    cwd: impl AsRef<Path>,
    caps: &Capabilities,
) -> Result<(Command, Layer), Error> {
    SHARED.wrap(program, args, cwd, caps).await
}

/// Runs a command to its end, held to `caps` and `limits`; see [`Wrapper::run`] and [`wrap_command`].
///
/// ```
/// use kennel::{Capabilities, RunLimits};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), kennel::Error> {
/// let limits = RunLimits { timeout: Some(Duration::from_millis(50)), ..RunLimits::default() };
/// let (output, _) = kennel::run_command("sleep", ["60"], "/", &Capabilities::default(), &limits).await?;
/// assert_eq!(output.exit_code(), 124);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of [`Wrapper::run`].
///
/// # Panics
/// As [`Wrapper::run`].
pub async fn run_command(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    cwd: impl AsRef<Path>,
    caps: &Capabilities,
    limits: &RunLimits,
) -> Result<(Output, Layer), Error> {
    SHARED.run(program, args, cwd, caps, limits).await
}
