//! Where the repository of an image is: the registry of its name, or the mirror that the configuration names.

use kennel::image::Reference;

use crate::config::images::table::{ImagesConfig, Mirror};

/// The registry of docker, and where it is.
const HUB: &str = "docker.io";
const HUB_HOST: &str = "registry-1.docker.io";

/// What docker files the credentials of its registry under.
const HUB_CREDENTIALS: &str = "https://index.docker.io/v1/";

/// A repository of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// The registry, as `docker login` takes it.
    pub(super) registry: String,
    /// `HOST[:PORT]` to connect to.
    host: String,
    /// The repository there.
    pub(super) repository: String,
    /// Whether it speaks plain HTTP.
    pub(super) is_plain: bool,
}

impl Endpoint {
    /// Where the image of a name is. `None` for the digest of an image.
    pub(super) fn of(name: &Reference, config: &ImagesConfig) -> Option<Self> {
        let (registry, repository) = (name.registry()?, name.repository()?);
        if let Some(Mirror { host, prefix, is_plain }) = config.mirrors.get(registry) {
            let repository = match prefix.is_empty() {
                true => repository.to_owned(),
                false => format!("{prefix}/{repository}"),
            };
            return Some(Self {
                registry: host.clone(),
                host: host.clone(),
                repository,
                is_plain: *is_plain,
            });
        }
        let host = if registry == HUB { HUB_HOST } else { registry };
        Some(Self {
            registry: registry.to_owned(),
            host: host.to_owned(),
            repository: repository.to_owned(),
            is_plain: config.insecure_registries.iter().any(|plain| plain == registry),
        })
    }

    /// The address of something in the repository: `manifests` and a tag or digest, `blobs` and a digest.
    pub(super) fn address(&self, kind: &str, version: &str) -> String {
        let scheme = if self.is_plain { "http" } else { "https" };
        format!("{scheme}://{}/v2/{}/{kind}/{version}", self.host, self.repository)
    }

    /// What credentials of the registry may be filed under, the usual one first.
    pub(super) fn credential_keys(&self) -> Vec<&str> {
        match self.registry == HUB {
            true => vec![HUB_CREDENTIALS, HUB],
            false => vec![&self.registry],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(name: &str, config: &ImagesConfig) -> String {
        let name = name.parse().expect("a reference");
        Endpoint::of(&name, config).expect("an endpoint").address("manifests", "1")
    }

    #[test]
    fn names_lead_to_their_registry_or_its_mirror() {
        let mut config = ImagesConfig::default();
        for (name, expected) in [
            ("python:3.12", "https://registry-1.docker.io/v2/library/python/manifests/1"),
            ("index.docker.io/a/b", "https://registry-1.docker.io/v2/a/b/manifests/1"),
            ("ghcr.io/a/b/c", "https://ghcr.io/v2/a/b/c/manifests/1"),
            ("localhost:5000/a", "https://localhost:5000/v2/a/manifests/1"),
        ] {
            assert_eq!(address(name, &config), expected);
        }
        config.insecure_registries = vec!["localhost:5000".to_owned()];
        assert_eq!(address("localhost:5000/a", &config), "http://localhost:5000/v2/a/manifests/1");
        assert_eq!(address("localhost:5001/a", &config), "https://localhost:5001/v2/a/manifests/1");
        let mirror = "http://a.b/proxy".to_owned().try_into().expect("a mirror");
        config.mirrors.insert("docker.io".to_owned(), mirror);
        assert_eq!(address("python", &config), "http://a.b/v2/proxy/library/python/manifests/1");
        assert_eq!(address("ghcr.io/a", &config), "https://ghcr.io/v2/a/manifests/1");
        let digest = "sha256:1234".parse().expect("a reference");
        assert_eq!(Endpoint::of(&digest, &config), None);
    }

    #[test]
    fn credentials_of_the_hub_have_the_key_of_docker() {
        let endpoint = |name: &str| {
            Endpoint::of(&name.parse().expect("a reference"), &ImagesConfig::default()).expect("an endpoint")
        };
        assert_eq!(endpoint("python").credential_keys(), [HUB_CREDENTIALS, HUB]);
        assert_eq!(endpoint("ghcr.io/a").credential_keys(), ["ghcr.io"]);
    }
}
