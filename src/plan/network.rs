//! The network of a policy: the sockets of the sandbox that PID 1 hands out, the settings of the proxy, and
//! the variables by which tools inside find it. This file writes steps and runs none.

use std::ffi::{OsStr, OsString};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use kennel_helper::plan::Step;

use crate::plan::Section;
use crate::policy::address;
use crate::policy::network::{NAME_SERVER, Network, NetworkLimits, NetworkMode, name_server};
use crate::policy::rule::Rules;
use crate::policy::upstream::Upstream;
use crate::report::enforcement::{Enforcement, Protection, State};
use crate::report::error::Error;
use crate::report::policy_error::PolicyError;
use crate::sys::inode::Identity;
use crate::view::inputs::Inputs;
use crate::view::source::BindSource;
use crate::view::{Node, View, certificates, system};

/// Ports on which [`Network::transparent`] always serves programs that know no proxy.
const TRANSPARENT_PORTS: [u16; 2] = [80, 443];

/// The most such ports: their steps must fit into the first message.
const MOST_PORTS: usize = 12;

/// A second loopback address. Names do not resolve to it.
const SECOND_LOOPBACK: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

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

/// Variables that list what programs reach without the proxy.
const NO_PROXY_VARIABLES: &[&str] = &["NO_PROXY", "no_grpc_proxy", "no_proxy", "npm_config_noproxy"];

/// The sandbox's own loopback: as rules, as `no_proxy` and as Java spell it.
const LOOPBACK: [[&str; 3]; 3] =
    [["localhost", "localhost", "localhost"], ["127.0.0.1", "127.0.0.1", "127.*"], ["[::1]", "::1", "[::1]"]];

/// The URL of the proxy, for programs. HTTP, not SOCKS: some libraries lack support for SOCKS and refuse to
/// start with a SOCKS proxy in `ALL_PROXY`.
fn url() -> String {
    format!("http://127.0.0.1:{PORT}")
}

pub(crate) fn asks_for_proxy(inputs: &Inputs<'_>) -> bool {
    inputs.policy.effective_network() == NetworkMode::Proxy
}

fn is_transparent(inputs: &Inputs<'_>) -> bool {
    asks_for_proxy(inputs) && inputs.policy.network.is_transparent()
}

/// Appends the steps that make the proxy's sockets and hand them out. The inside makes them while it is
/// allowed to: ports below 1024 need a privilege that no command has, so no command can take them.
pub(crate) fn listen(inputs: &Inputs<'_>, namespaces: &mut Section, enforcement: &mut Enforcement) {
    if !asks_for_proxy(inputs) {
        return;
    }
    if is_transparent(inputs) {
        // With 127.0.0.1 alone, the C library thinks that IPv4 is not configured, and asks for no IPv4
        // address.
        let address = SECOND_LOOPBACK.to_bits();
        namespaces.push(Protection::Proxy, &Step::LoopbackAddress { address });
    }
    for ProxySocket { kind, address, port } in sockets(inputs) {
        let (kind, address) = (kind.cast_unsigned(), address.to_bits());
        namespaces.push(Protection::Proxy, &Step::Listen { kind, address, port: port.into() });
    }
    enforcement.set(Protection::Proxy, State::Enforced, detail(&inputs.policy.network));
}

/// A socket that PID 1 makes and hands out to the proxy.
struct ProxySocket {
    /// `SOCK_STREAM` or `SOCK_DGRAM`.
    kind: libc::c_int,
    address: Ipv4Addr,
    port: u16,
}

/// The sockets of the proxy.
fn sockets(inputs: &Inputs<'_>) -> Vec<ProxySocket> {
    let socket = |kind, address, port| ProxySocket { kind, address, port };
    let mut sockets = vec![socket(libc::SOCK_STREAM, Ipv4Addr::LOCALHOST, PORT)];
    if is_transparent(inputs) {
        sockets.push(socket(libc::SOCK_DGRAM, Ipv4Addr::LOCALHOST, NAME_SERVER));
        let ports = ports(&inputs.policy.network).into_iter();
        sockets.extend(ports.map(|port| socket(libc::SOCK_STREAM, Ipv4Addr::UNSPECIFIED, port)));
    }
    sockets
}

/// The ports on which programs that know no proxy are served.
fn ports(network: &Network) -> Vec<u16> {
    let mut ports = TRANSPARENT_PORTS.to_vec();
    for port in rules(&network.allow).low_ports() {
        if !ports.contains(&port) && port != NAME_SERVER {
            ports.push(port);
        }
    }
    ports.truncate(MOST_PORTS);
    ports
}

/// Parses rules of a policy that was validated.
fn rules(texts: &[String]) -> Rules {
    Rules::parse(texts.iter().map(String::as_str)).unwrap_or_default()
}

fn detail(network: &Network) -> String {
    if let Some(proxy) = &network.proxy {
        return format!("the proxy at {} decides what passes", proxy.unix.display());
    }
    let allow = rules(&network.allow);
    let allowed = if allow.is_empty() { "nothing is allowed".to_owned() } else { format!("only {allow}") };
    match rules(&network.deny) {
        deny if deny.is_empty() => allowed,
        deny => format!("{allowed}; never {deny}"),
    }
}

/// The settings of the proxy; `None` if the policy asks for none.
///
/// # Errors
/// The environment names an upstream proxy that is invalid.
pub(crate) fn settings(inputs: &Inputs<'_>) -> Result<Option<Settings>, Error> {
    if !asks_for_proxy(inputs) {
        return Ok(None);
    }
    let network = &inputs.policy.network;
    let upstream = match (&network.proxy, &network.upstream) {
        (Some(proxy), _) => {
            let path = inputs.caller.absolute(&proxy.unix);
            let identity = BindSource::resolve(&path).map_or(Identity::NOTHING, |source| source.identity);
            ProxyUpstream::Foreign { path, identity }
        }
        (None, Some(upstream)) => Upstream::of(upstream, &inputs.caller.environment)
            .map_err(|reason| PolicyError::value("network.upstream", "…", reason))?
            .map_or(ProxyUpstream::Direct, ProxyUpstream::Upstream),
        (None, None) => ProxyUpstream::Direct,
    };
    let addresses = address::networks(network.allow_addresses.iter().map(String::as_str));
    Ok(Some(Settings {
        allow: rules(&network.allow),
        deny: rules(&network.deny),
        addresses: addresses.unwrap_or_default(),
        upstream,
        name_servers: network.name_servers.iter().filter_map(|text| name_server(text)).collect(),
        limits: ProxyLimits::of(&network.limits, inputs.caller.descriptors[0]),
        ports: ports(network),
        sockets: sockets(inputs).len(),
    }))
}

/// The variables by which tools find the proxy.
pub(crate) fn variables(inputs: &Inputs<'_>, view: &View) -> Vec<(OsString, OsString)> {
    if !asks_for_proxy(inputs) {
        return Vec::new();
    }
    // A rule for loopback means the host's loopback, which only the proxy reaches.
    let rules = rules(&inputs.policy.network.allow);
    let direct = LOOPBACK.iter().filter(|[host, ..]| !rules.name(host));
    let (no_proxy, java_no_proxy): (Vec<&str>, Vec<&str>) =
        direct.map(|[_, plain, java]| (*plain, *java)).unzip();
    let java: Vec<String> = ["http", "https"]
        .iter()
        .flat_map(|scheme| {
            [format!("-D{scheme}.proxyHost=127.0.0.1"), format!("-D{scheme}.proxyPort={PORT}")]
        })
        .chain([format!("-Dhttp.nonProxyHosts={}", java_no_proxy.join("|"))])
        .collect();
    let own = [("JAVA_TOOL_OPTIONS", java.join(" ")), ("NODE_USE_ENV_PROXY", "1".to_owned())];
    let to =
        |names: &'static [&'static str], value: String| names.iter().map(move |&name| (name, value.clone()));
    to(PROXY_VARIABLES, url())
        .chain(to(NO_PROXY_VARIABLES, no_proxy.join(",")))
        .chain(own)
        .map(|(name, value)| (name.into(), value.into()))
        .chain(certificates::variables(inputs, view))
        .collect()
}

/// Whether tools find a proxy by this variable.
pub(crate) fn is_proxy_variable(name: &OsStr) -> bool {
    PROXY_VARIABLES.iter().chain(NO_PROXY_VARIABLES).any(|other| name == *other)
}

/// Shows the sandbox's own name server, if it has one, instead of the profile's. The rest of the view must be
/// there already.
pub(crate) fn show_resolver(view: &mut View, inputs: &Inputs<'_>) {
    if !is_transparent(inputs) {
        return;
    }
    let usual = Path::new("/etc/resolv.conf");
    let contents = "# The name server of this sandbox: it knows what is allowed.\nnameserver 127.0.0.1\n";
    let mut show = |at: &Path, node| view.wall("name server", at, node, Protection::Proxy);
    if !inputs.policy.profile.meaning().shows_host {
        return show(usual, system::file(contents));
    }
    // The profile shows the host's tree, so this is the host's file. It may be a link.
    match usual.canonicalize() {
        Ok(leads_to) if view.host_path(&leads_to).is_some() => {
            let own = Path::new("/run/kennel/resolv.conf");
            let source = own.to_owned();
            view.wall("name server", own, system::file(contents), Protection::Proxy);
            view.wall("name server", &leads_to, Node::OwnFile { source }, Protection::Proxy);
        }
        Ok(leads_to) => view.wall("name server", &leads_to, system::file(contents), Protection::Proxy),
        // Without the file, programs ask 127.0.0.1.
        Err(_) => {}
    }
}

// The settings of the proxy: plain data that `compile` makes from a policy.

/// The port of the proxy on 127.0.0.1 in the sandbox. The namespace is new, so no other program has it.
pub(crate) const PORT: u16 = 3128;

/// The network part of a policy, in the forms that decisions need.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) allow: Rules,
    pub(crate) deny: Rules,
    /// Special address ranges that names may resolve to.
    pub(crate) addresses: Vec<IpNet>,
    pub(crate) upstream: ProxyUpstream,
    /// Name servers that the proxy asks instead of the system's.
    pub(crate) name_servers: Vec<SocketAddr>,
    pub(crate) limits: ProxyLimits,
    /// Ports on which programs that know no proxy are served.
    pub(crate) ports: Vec<u16>,
    /// How many sockets each sandbox hands out.
    pub(crate) sockets: usize,
}

/// How the proxy connects to allowed destinations.
#[derive(Clone, Debug, Default)]
pub(crate) enum ProxyUpstream {
    #[default]
    Direct,
    /// Through an HTTP proxy.
    Upstream(Upstream),
    /// Through another program's proxy on a Unix socket. That proxy decides what passes.
    Foreign {
        path: PathBuf,
        /// The identity of the socket when the policy was compiled.
        identity: Identity,
    },
}

/// [`NetworkLimits`] with the defaults filled in.
#[derive(Clone, Debug)]
pub(crate) struct ProxyLimits {
    pub(crate) connections: usize,
    pub(crate) header_size: usize,
    pub(crate) header_time: Duration,
    pub(crate) idle_time: Duration,
    pub(crate) bytes: Option<u64>,
    pub(crate) rate: Option<u64>,
}

impl Default for ProxyLimits {
    fn default() -> Self {
        Self::of(&NetworkLimits::default(), u64::MAX)
    }
}

impl ProxyLimits {
    /// `descriptors` is the limit of open descriptors of the embedding program.
    pub(crate) fn of(limits: &NetworkLimits, descriptors: u64) -> Self {
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        // Each connection takes two descriptors, and the program needs others.
        let most = size(descriptors / 4).clamp(16, 4096);
        Self {
            connections: limits.connections.map_or(most, |count| size(count.into())),
            header_size: limits.header_size.map_or(64 << 10, |bytes| size(bytes.bytes())),
            header_time: limits.header_time.map_or(Duration::from_secs(10), |span| span.duration()),
            idle_time: limits.idle_time.map_or(Duration::from_secs(15 * 60), |span| span.duration()),
            bytes: limits.bytes.map(|size| size.bytes()),
            rate: limits.rate.map(|size| size.bytes()),
        }
    }
}

/// The ports that TCP may connect to on the host's network, if the policy restricts them.
pub(crate) fn ports_of_host(inputs: &Inputs<'_>) -> Option<Vec<u16>> {
    let allow = &inputs.policy.network.allow;
    let is_narrowed = inputs.policy.effective_network() == NetworkMode::Host && !allow.is_empty();
    if is_narrowed { rules(allow).ports_of_any_host() } else { None }
}
