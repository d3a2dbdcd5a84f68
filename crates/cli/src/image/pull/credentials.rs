//! The credentials that docker and podman keep, found where each of them looks. It prints none and keeps
//! none.

use std::{
    env,
    fs::File,
    io::{self, BufReader},
    path::{Path, PathBuf},
};

use docker_credential::{CredentialRetrievalError, DockerCredential, get_credential_from_reader};
use kennel::image::SentCredentials;

/// What a helper says when it has none.
const NOT_FOUND: &str = "credentials not found";

/// The credentials for a registry.
#[derive(Default)]
pub(super) struct Credentials {
    pub(super) found: Option<DockerCredential>,
    /// What a refusal says about them.
    pub(super) sent: SentCredentials,
}

impl Credentials {
    /// The first ones that the files have under one of these keys. Files that cannot be used hinder nobody:
    /// most images are public.
    pub(super) fn find(files: &[PathBuf], keys: &[&str]) -> Self {
        let mut sent = SentCredentials::None;
        for path in files {
            for key in keys {
                match read(path, key) {
                    Ok(Some(found)) => return Self { found: Some(found), sent: SentCredentials::Given },
                    Ok(None) => {}
                    Err(reason) => sent = SentCredentials::Unusable(format!("{}: {reason}", path.display())),
                }
            }
        }
        Self { found: None, sent }
    }
}

/// The files that may have credentials: those of docker, then those of podman.
pub(super) fn files() -> Vec<PathBuf> {
    places(|name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from))
}

fn places(variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let home = |below: &str| variable("HOME").map(|home| home.join(below));
    if let Some(file) = variable("REGISTRY_AUTH_FILE") {
        return vec![file];
    }
    let docker = variable("DOCKER_CONFIG").or_else(|| home(".docker"));
    let runtime = variable("XDG_RUNTIME_DIR").map(|place| place.join("containers/auth.json"));
    let config = variable("XDG_CONFIG_HOME").or_else(|| home(".config"));
    let kept = config.map(|place| place.join("containers/auth.json"));
    docker.map(|place| place.join("config.json")).into_iter().chain(runtime).chain(kept).collect()
}

/// What a file has under a key.
fn read(path: &Path, key: &str) -> Result<Option<DockerCredential>, String> {
    let file = match File::open(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        file => file.map_err(|error| kennel::internal::words(&error))?,
    };
    match get_credential_from_reader(BufReader::new(file), key) {
        Ok(found) => Ok(Some(found)),
        Err(CredentialRetrievalError::NoCredentialConfigured) => Ok(None),
        Err(CredentialRetrievalError::HelperFailure { stdout, stderr, .. })
            if stdout.contains(NOT_FOUND) || stderr.contains(NOT_FOUND) =>
        {
            Ok(None)
        }
        Err(error) => Err(reason(&error)),
    }
}

fn reason(error: &CredentialRetrievalError) -> String {
    match error {
        CredentialRetrievalError::ConfigReadError => "it is no configuration of docker".to_owned(),
        CredentialRetrievalError::HelperCommunicationError => {
            "the program docker-credential-… that it names cannot be executed".to_owned()
        }
        CredentialRetrievalError::HelperFailure { helper, stdout, stderr } => {
            let said = [stdout, stderr].into_iter().flat_map(|text| text.lines()).map(str::trim);
            let said = said.into_iter().find(|line| !line.is_empty()).unwrap_or("it says nothing");
            format!("{helper} failed: {said}")
        }
        CredentialRetrievalError::MalformedHelperResponse => {
            "the program docker-credential-… that it names answers no credentials".to_owned()
        }
        CredentialRetrievalError::CredentialMismatchError => "auth says another one than username".to_owned(),
        _ => "auth is not USER:PASSWORD in base64".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn find(text: &str, keys: &[&str]) -> Credentials {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("config.json");
        fs::write(&path, text).expect("a file");
        Credentials::find(&[place.path().join("absent"), path], keys)
    }

    #[test]
    fn what_docker_and_podman_write_is_read() {
        let basic = |user: &str, password: &str| {
            Some(DockerCredential::UsernamePassword(user.to_owned(), password.to_owned()))
        };
        for (text, key, expected) in [
            (r#"{"auths":{"a.b":{"auth":"dTpwOnE="}}}"#, "a.b", basic("u", "p:q")),
            (r#"{"auths":{"https://a.b/v1/":{"auth":"dTpw"}}}"#, "a.b", basic("u", "p")),
            (r#"{"auths":{"a.b":{"username":"u","password":"p"}}}"#, "a.b", basic("u", "p")),
            (
                r#"{"auths":{"a.b":{"auth":"dTpw","identitytoken":"t"}}}"#,
                "a.b",
                Some(DockerCredential::IdentityToken("t".to_owned())),
            ),
            (r#"{"auths":{"a.b":{}}}"#, "a.b", None),
            (r#"{"auths":{"a.b":{"auth":"dTpw"}}}"#, "a.b:5000", None),
            (r#"{"HttpHeaders":{}}"#, "a.b", None),
        ] {
            let found = find(text, &[key]);
            assert_eq!(found.sent == SentCredentials::Given, expected.is_some(), "{text}");
            assert_eq!(found.found, expected, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_told() {
        for (text, said) in [
            ("no JSON", "it is no configuration of docker"),
            (r#"{"auths":{"a.b":{"auth":"!"}}}"#, "auth is not USER:PASSWORD"),
            (
                r#"{"credsStore":"of-no-such-program"}"#,
                "docker-credential-… that it names cannot be executed",
            ),
        ] {
            let SentCredentials::Unusable(reason) = find(text, &["a.b"]).sent else { panic!("{text}") };
            assert!(reason.contains(said) && reason.contains("config.json: "), "{reason}");
        }
    }

    #[test]
    fn files_are_where_docker_and_podman_have_them() {
        let of = |set: &[(&str, &str)]| {
            places(|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
        };
        let paths = |them: &[&str]| them.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(
            of(&[("HOME", "/h"), ("XDG_RUNTIME_DIR", "/r")]),
            paths(&["/h/.docker/config.json", "/r/containers/auth.json", "/h/.config/containers/auth.json"])
        );
        assert_eq!(of(&[("DOCKER_CONFIG", "/d")]), paths(&["/d/config.json"]));
        assert_eq!(of(&[("HOME", "/h"), ("REGISTRY_AUTH_FILE", "/a.json")]), paths(&["/a.json"]));
    }
}
