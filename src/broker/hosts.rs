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
    /// The proxy through which the program may reach its [`hosts`](Self::hosts), for an executor that does
    /// not run it in Kennel's sandbox. Its lines in the audit log name the spawn. Give it a listener, and the
    /// program the variables `http_proxy` and `https_proxy`; close it when the program has ended.
    ///
    /// ```
    /// use kennel::broker::{Envelope, Manifest, SpawnPolicy};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let manifest = "[capabilities]\nspawn.programs = [{ path = '/bin/sh' }]\n\
    ///     network.hosts = ['a.example:443']";
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use serde_json::Value;

    use super::*;
    use crate::broker::SpawnPolicy;
    use crate::broker::envelope::Envelope;

    #[test]
    fn a_manifest_without_hosts_allows_none() {
        let policy = |text: &str| HostPolicy::from(&Manifest::from_toml(text).expect("a manifest"));
        assert!(policy("[capabilities]").allowed_hosts().is_empty());
        let hosts = policy("capabilities.network.hosts = ['A.example:443', '[::1]:80', 'localhost:1']");
        assert_eq!(hosts.allowed_hosts(), ["a.example:443", "[::1]:80", "localhost:1"]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_proxy_of_a_spawn_has_its_hosts_and_its_lines_name_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("log");
        let text = "connector.name = 'mail'\n[capabilities]\nspawn.programs = [{ path = '/bin/sh' }]\n\
                    network.hosts = ['a.example:443']";
        let manifest = Manifest::from_toml(text).expect("a manifest");
        let policy = SpawnPolicy::new(manifest).audit(&*log).expect("a log");
        let spawn = policy.check(&Envelope::new("sh", &[])).expect("allowed");
        let proxy = spawn.proxy().expect("a proxy");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("its number");
        proxy.serve(listener).expect("served");
        let asked = tokio::task::spawn_blocking(move || {
            let mut client = TcpStream::connect(at).expect("a connection");
            client.write_all(b"CONNECT b.example:443 HTTP/1.1\r\nConnection: close\r\n\r\n").expect("sent");
            let mut answer = String::new();
            client.read_to_string(&mut answer).expect("an answer");
            answer
        });
        let answer = asked.await.expect("asked");
        assert!(answer.contains("403") && answer.contains("the allow list is: a.example:443"), "{answer}");
        proxy.close().await;
        let text = std::fs::read_to_string(&log).expect("a log");
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let [checked, egress] = &lines[..] else { panic!("{text}") };
        assert_eq!((&checked["event"], &egress["event"]), (&"spawn".into(), &"egress".into()));
        assert!(
            lines.iter().all(|line| line["connector"] == "mail" && line["spawn"] == checked["id"]),
            "{text}"
        );
    }
}
