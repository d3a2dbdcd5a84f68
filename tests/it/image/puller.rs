//! A user who pulls images from registries on loopback.

use std::process::{Command, Output};

use serde_json::{Value, json};

use super::{
    fixtures::{Images, Tar},
    registry::Registry,
};
use crate::support::{stderr, stdout};

/// Variables of the caller that would lead elsewhere.
const ELSEWHERE: [&str; 9] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "REGISTRY_AUTH_FILE",
    "XDG_RUNTIME_DIR",
    "SSL_CERT_DIR",
];

/// A layer of one file.
pub(super) fn layer(name: &str) -> Vec<u8> {
    Tar::new().dir("etc/").file(&format!("etc/{name}"), name).bytes()
}

/// A store whose user speaks plain HTTP with some registries.
pub(super) struct Puller(pub(super) Images);

impl Puller {
    pub(super) fn new(plain: &[&Registry]) -> Option<Self> {
        let images = Images::new()?;
        let hosts: Vec<&str> = plain.iter().map(|registry| registry.host.as_str()).collect();
        images.file("config/kennel/config.toml", format!("images.insecure_registries = {hosts:?}\n"));
        Some(Self(images))
    }

    pub(super) fn prepare<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        ELSEWHERE.iter().for_each(|name| {
            command.env_remove(name);
        });
        command.env("HOME", self.0.at("home")).env("DOCKER_CONFIG", self.0.at("docker"));
        command.env("KENNEL_IMAGES", self.0.store()).env("XDG_CONFIG_HOME", self.0.at("config"))
    }

    pub(super) fn run(&self, words: &[&str]) -> Output {
        self.prepare(&mut self.0.command(words)).output().unwrap()
    }

    pub(super) fn pull(&self, name: &str) -> String {
        let output = self.run(&["pull", name]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        stdout(&output)
    }

    pub(super) fn json(&self, name: &str) -> Value {
        let output = self.run(&["pull", "--json", name]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// What it says about an image of which nothing is kept.
    pub(super) fn refused(&self, name: &str) -> String {
        let output = self.run(&["pull", name]);
        assert_eq!((output.status.code(), stdout(&output)), (Some(125), String::new()), "{output:?}");
        assert_eq!((self.0.left(), self.0.list()), (Vec::new(), Vec::new()), "{name}");
        stderr(&output)
    }

    pub(super) fn login(&self, host: &str, auth: Value) {
        self.0.file("docker/config.json", json!({ "auths": { host: auth } }).to_string());
    }
}

/// Leaves a test on a host whose /tmp holds no layers.
macro_rules! puller {
    ($($registry:expr),*) => {{
        let Some(puller) = crate::image::puller::Puller::new(&[$(&$registry),*]) else { return };
        puller
    }};
}
pub(super) use puller;
