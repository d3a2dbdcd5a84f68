//! What commands changed in the image of a session, held while it is stored.

use crate::image::Snapshot;
use crate::launch::inside::PATIENCE;
use crate::report::error::Error;
use crate::report::error::image::ImageError;
use crate::report::error::overlay::OverlayError;
use crate::session::Session;

impl Session {
    /// What commands changed in the session's image so far, for one more layer of a new image. The session
    /// goes on with its changes when the snapshot is dropped; until then, no command starts. What a command
    /// left running in the background may write meanwhile.
    ///
    /// Only the root is in it, with its `/tmp`: no grant, no workspace, no `/dev/shm`. A mount point that
    /// Kennel made is in it as an empty file or directory.
    ///
    #[cfg_attr(feature = "image", doc = "```no_run")]
    #[cfg_attr(not(feature = "image"), doc = "```ignore")]
    /// # async fn example() -> Result<(), kennel::Error> {
    /// use kennel::image::{Reference, Store};
    /// use kennel::{Policy, Profile, Session};
    ///
    /// let policy = Policy::profile(Profile::RepoWrite, ".").image("python:3.12");
    /// let session = Session::prepare(&policy).await?;
    /// session.command("pip").args(["install", "numpy"]).status().await?;
    ///
    /// let writer = Store::open_default()?.writer()?;
    /// let name: Reference = "numpy:latest".parse()?;
    /// let stored = session.snapshot().await?.store(&writer, Some(&name))?;
    /// println!("{}", stored.digest);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ImageError::NoImage`] for a session without an image; [`OverlayError::Running`] while a command
    /// runs.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time enabled.
    pub async fn snapshot(&self) -> Result<Snapshot, Error> {
        let prepared = self.prepared();
        let image = prepared.compiled.view.root.as_ref().and_then(|root| root.image.as_ref());
        let (Some(image), Some(upper)) = (image, self.live().log().root_upper()) else {
            return Err(ImageError::NoImage.into());
        };
        let upper = upper.try_clone().map_err(Error::io("hand out the changes of the image"))?;
        // They count as commands, which may change something at any time.
        self.live().interpreters().end_waiting();
        let settling = self.live().zygote().settle(PATIENCE).await.ok_or(OverlayError::Running)?;
        Ok(Snapshot::new(image.digest, upper, settling))
    }
}
