//! The variables by which programs find the proxy. Data: add a row for another program.

use std::ffi::{OsStr, OsString};

/// Variables by which programs find the proxy.
const PROXY_VARIABLES: &[&str] = &[
    "ALL_PROXY",
    "CARGO_HTTP_PROXY",
    "DOCKER_HTTPS_PROXY",
    "DOCKER_HTTP_PROXY",
    "FTP_PROXY",
    "GRPC_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "PIP_PROXY",
    "YARN_HTTPS_PROXY",
    "YARN_HTTP_PROXY",
    "all_proxy",
    "ftp_proxy",
    "grpc_proxy",
    "http_proxy",
    "https_proxy",
    "npm_config_https_proxy",
    "npm_config_proxy",
];

/// Those that suffice if nothing is allowed: a program that knows none of them learns as fast that a name
/// does not exist.
const FEW_PROXY_VARIABLES: &[&str] = &["http_proxy", "https_proxy"];

/// Variables by which tools do not try again, for seconds, what is refused for good.
const RETRIES: &[&str] =
    &["CARGO_NET_RETRY", "PIP_RETRIES", "UV_HTTP_RETRIES", "YARN_HTTP_RETRY", "npm_config_fetch_retries"];

/// The variable with options for every Java program.
pub(crate) const JAVA_OPTIONS: &str = "JAVA_TOOL_OPTIONS";

/// Variables that list what programs reach without the proxy.
const NO_PROXY_VARIABLES: &[&str] = &["NO_PROXY", "no_grpc_proxy", "no_proxy", "npm_config_noproxy"];

/// The sandbox's own loopback: as rules spell it, as `no_proxy` does, and as Java does. Some programs compare
/// addresses of IPv6 with their brackets.
pub(crate) const LOOPBACK: [[&str; 3]; 5] = [
    ["localhost", "localhost", "localhost"],
    ["127.0.0.1", "127.0.0.1,127.0.0.0/8", "127.*"],
    ["[::1]", "::1,[::1]", "[::1]"],
    ["0.0.0.0", "0.0.0.0", "0.0.0.0"],
    ["[::]", "::,[::]", "[::]"],
];

/// What the variables say.
pub(crate) struct ProxyVariables<'v> {
    /// The port of the proxy on 127.0.0.1.
    pub(crate) port: u16,
    /// What programs reach without the proxy, in the form of `no_proxy`.
    pub(crate) direct: &'v str,
    /// Whether the proxy allows nothing: then nothing is worth a second attempt.
    pub(crate) only_refuses: bool,
    /// Whether those suffice by which a program learns that nothing is allowed.
    pub(crate) is_few: bool,
}

impl ProxyVariables<'_> {
    /// The variables with their values.
    pub(crate) fn all(&self) -> Vec<(OsString, OsString)> {
        // HTTP, not SOCKS: some libraries lack support for SOCKS and refuse to start with a SOCKS proxy in
        // `ALL_PROXY`.
        let url = format!("http://127.0.0.1:{}", self.port);
        let direct = self.direct.to_owned();
        let names = if self.is_few {
            [(FEW_PROXY_VARIABLES, url), (&["no_proxy"], direct)]
        } else {
            [(PROXY_VARIABLES, url), (NO_PROXY_VARIABLES, direct)]
        };
        let node = (!self.is_few).then(|| (&["NODE_USE_ENV_PROXY"][..], "1".to_owned()));
        let retries = self.only_refuses.then(|| (RETRIES, "0".to_owned()));
        let each = |(names, value): (&'static [&'static str], String)| {
            names.iter().map(move |name| (name.into(), (&value).into()))
        };
        names.into_iter().chain(node).chain(retries).flat_map(each).collect()
    }
}

/// The options by which Java finds the proxy at this port of 127.0.0.1. `direct` is what it reaches without.
pub(crate) fn java_options(port: u16, direct: &[&str]) -> String {
    let proxy = |scheme| format!("-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort={port} ");
    format!("{}{}-Dhttp.nonProxyHosts={}", proxy("http"), proxy("https"), direct.join("|"))
}

/// Whether tools find a proxy by this variable.
pub(crate) fn is_proxy_variable(name: &OsStr) -> bool {
    PROXY_VARIABLES.iter().chain(NO_PROXY_VARIABLES).any(|other| name == *other)
}
