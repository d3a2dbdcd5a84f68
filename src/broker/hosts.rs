//! The hosts of a manifest as a policy, and the proxy that lets a spawn reach them.

use crate::broker::checked::CheckedSpawn;
use crate::broker::manifest::Manifest;
use crate::network::{HostPolicy, SpawnProxy};
use crate::report::error::spawn::SpawnError;

/// The hosts of `capabilities.network`. Without that section, none.
impl From<&Manifest> for HostPolicy {
    fn from(manifest: &Manifest) -> Self {
        // Reading the manifest has checked them; what is no host allows none.
        Self::new(&manifest.hosts).unwrap_or_default()
    }
}

impl CheckedSpawn {
    /// The proxy through which the program may reach its [`hosts`](Self::hosts), for an executor that does not
    /// run it in Kennel's sandbox. Its lines in the audit log name the spawn. Give it a listener, and the
    /// program the variables `http_proxy` and `https_proxy`; close it when the program has ended.
    ///
    /// ```
    /// use kennel::broker::{Envelope, Manifest, SpawnPolicy};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let manifest = "[capabilities]\nspawn.programs = [{ path = '/bin/sh' }]\nnetwork.hosts = ['a.example:443']";
    /// let spawn = SpawnPolicy::new(Manifest::from_toml(manifest)?).check(&Envelope::new("sh", &[]))?;
    /// let proxy = spawn.proxy()?.connect_only();
    /// proxy.serve(std::net::TcpListener::bind("127.0.0.1:0")?)?;
    /// proxy.close().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The audit log cannot be opened again.
    pub fn proxy(&self) -> Result<SpawnProxy, SpawnError> {
        let proxy = SpawnProxy::of(HostPolicy::new(&self.hosts)?, self.origin.clone());
        Ok(match &self.audit {
            Some(audit) => proxy.audit(audit.clone())?,
            None => proxy,
        })
    }
}
