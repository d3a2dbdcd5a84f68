//! The network of a policy: the sockets of the sandbox that PID 1 hands out, the settings of the proxy, and
//! the variables by which tools inside find it. This file writes steps and runs none.

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use kennel_helper::plan::Step;

use crate::plan::Section;
use crate::policy::Policy;
use crate::policy::env::EnvBase;
use crate::policy::network::address;
use crate::policy::network::destination::DestinationHost;
use crate::policy::network::publish::Publish;
use crate::policy::network::rule::Rules;
use crate::policy::network::upstream::Upstream;
use crate::policy::network::{NAME_SERVER, Network, NetworkLimits, NetworkMode, name_server};
use crate::report::enforcement::{Enforcement, Note, Protection, State};
use crate::report::error::Error;
use crate::report::error::policy::PolicyError;
use crate::report::place_kind::PlaceKind;
use crate::report::remedy::{SettingKey, Wording, remedy};
use crate::sys::inode::Identity;
use crate::view::inputs::{Inputs, Subject};
use crate::view::layers::forgets_caches;
use crate::view::paths::source::BindSource;
use crate::view::{Node, View, desktop};

/// Ports on which [`Network::transparent`] always serves programs that know no proxy.
const TRANSPARENT_PORTS: [u16; 2] = [80, 443];

/// The most such ports: their steps must fit into the first message.
const MOST_PORTS: usize = 12;

/// The most ports of the host's loopback that have a listener, for the same reason.
const MOST_LOOPBACK_PORTS: usize = 32;

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
const LOOPBACK: [[&str; 3]; 5] = [
    ["localhost", "localhost", "localhost"],
    ["127.0.0.1", "127.0.0.1,127.0.0.0/8", "127.*"],
    ["[::1]", "::1,[::1]", "[::1]"],
    ["0.0.0.0", "0.0.0.0", "0.0.0.0"],
    ["[::]", "::,[::]", "[::]"],
];

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

/// Whether programs without proxy support reach something. Where nothing is allowed, no name has an address.
fn serves_connections(inputs: &Inputs<'_>) -> bool {
    is_transparent(inputs) && !inputs.policy.only_refuses()
}

/// How many sockets a sandbox hands out with which the outside makes others.
pub(crate) const SOCKETS_HANDED_OUT: usize = 2;

/// Appends the steps that make the sockets of the proxy and of published ports, and hand them out. The inside
/// makes them while it is allowed to: ports below 1024 need a privilege that no command has, so no command
/// can take them.
pub(crate) fn listen(inputs: &Inputs<'_>, namespaces: &mut Section, enforcement: &mut Enforcement) {
    listen_for_proxy(inputs, namespaces, enforcement);
    if published_sockets(inputs) > 0 {
        hand_out_sockets(namespaces);
    }
    let published = inputs.policy.network.published();
    let public = published.iter().filter_map(|publish| publish.port().note());
    enforcement.add_notes(public);
}

/// How many such sockets PID 1 hands out. In a session, a worker does, once they are needed.
pub(crate) fn published_sockets(inputs: &Inputs<'_>) -> usize {
    let publishes = !inputs.policy.network.publish.is_empty() && !inputs.kind.is_session();
    if publishes { SOCKETS_HANDED_OUT } else { 0 }
}

/// Steps that hand out the sockets with which the outside makes others.
fn hand_out_sockets(section: &mut Section) {
    for _ in 0..SOCKETS_HANDED_OUT {
        section.push(Protection::NetworkNamespace, &Step::ListenEverywhere { port: 0 });
    }
}

/// The steps of a worker of a session that hands out these sockets.
pub(crate) fn socket_steps() -> Section {
    let mut section = Section::default();
    hand_out_sockets(&mut section);
    section
}

fn listen_for_proxy(inputs: &Inputs<'_>, namespaces: &mut Section, enforcement: &mut Enforcement) {
    if !asks_for_proxy(inputs) {
        return;
    }
    if serves_connections(inputs) {
        // With 127.0.0.1 alone, the C library thinks that IPv4 is not configured, and asks for no IPv4
        // address.
        let address = SECOND_LOOPBACK.to_bits();
        namespaces.push(Protection::Proxy, &Step::LoopbackAddress { address });
    }
    for ProxySocket { kind, address, port } in sockets(inputs) {
        let port = port.into();
        let step = match address {
            Some(address) => Step::Listen { kind: kind.cast_unsigned(), address: address.to_bits(), port },
            None => Step::ListenEverywhere { port },
        };
        // Without the answers of a proxy that only refuses, programs find nothing at its address.
        if inputs.policy.only_refuses() {
            namespaces.push_optional(Protection::Proxy, &step)
        } else {
            namespaces.push(Protection::Proxy, &step)
        }
    }
    let allow = rules(&inputs.policy.network.allow);
    let served = loopback_ports(&allow);
    let unserved = allow.loopback_elsewhere(&served).map(|rule| {
        let (why, remedy) = match rule.port() {
            None => (
                "it names no port",
                Some(remedy!["name the port of the service, as in ", SettingKey::Allow.to("localhost:5432")]),
            ),
            Some(PORT) => ("inside, the port is the proxy's own", None),
            Some(_) => ("the other rules for localhost have used up the listeners", None),
        };
        let text = format!("only programs that use the proxy reach it, because {why}");
        Note::new(&rule.to_string(), &text, remedy)
    });
    enforcement.add_notes(unserved);
    enforcement.set(Protection::Proxy, State::Enforced, detail(&inputs.policy.network));
}

/// A socket that PID 1 makes and hands out to the proxy.
struct ProxySocket {
    /// `SOCK_STREAM` or `SOCK_DGRAM`.
    kind: libc::c_int,
    /// `None`: every address, of IPv6 too.
    address: Option<Ipv4Addr>,
    port: u16,
}

/// The sockets of the proxy.
fn sockets(inputs: &Inputs<'_>) -> Vec<ProxySocket> {
    let socket = |kind, address, port| ProxySocket { kind, address, port };
    let mut sockets = vec![socket(libc::SOCK_STREAM, Some(Ipv4Addr::LOCALHOST), PORT)];
    let loopback = loopback_ports(&rules(&inputs.policy.network.allow));
    if is_transparent(inputs) {
        sockets.push(socket(libc::SOCK_DGRAM, Some(Ipv4Addr::LOCALHOST), NAME_SERVER));
    }
    if serves_connections(inputs) {
        let ports = ports(&inputs.policy.network).into_iter().filter(|port| !loopback.contains(port));
        sockets.extend(ports.map(|port| socket(libc::SOCK_STREAM, Some(Ipv4Addr::UNSPECIFIED), port)));
    }
    sockets.extend(loopback.into_iter().map(|port| socket(libc::SOCK_STREAM, None, port)));
    sockets
}

/// Refuses to publish a port inside that is Kennel's own: programs outside would reach the proxy, or what
/// only commands may reach.
pub(crate) fn check_publish(policy: &Policy, publish: &Publish) -> Result<(), PolicyError> {
    let is_own = policy.effective_network() == NetworkMode::Proxy
        && (publish.inside == PORT
            || loopback_ports(&rules(&policy.network.allow)).contains(&publish.inside));
    if !is_own {
        return Ok(());
    }
    let reason = match publish.inside {
        PORT => "inside, this is the port of the proxy: let the server listen on another one",
        _ => {
            "inside, this port leads to the host's own service (network.allow): let the server listen on another one"
        }
    };
    Err(PolicyError::value("network.publish", publish, reason))
}

/// The ports at which every program reaches the host's loopback as its own. The proxy's own port is taken.
fn loopback_ports(allow: &Rules) -> Vec<u16> {
    allow.loopback_ports().into_iter().filter(|&port| port != PORT).take(MOST_LOOPBACK_PORTS).collect()
}

/// Whether an address of loopback leads to the host's at this port, for every program.
pub(crate) fn reaches_loopback(inputs: &Inputs<'_>, address: IpAddr, port: u16) -> bool {
    let allow = rules(&inputs.policy.network.allow);
    loopback_ports(&allow).contains(&port) && allow.loopback_host(address, port).is_some()
}

/// Whether rules name this spelling of loopback at a port without a listener.
fn names_elsewhere(allow: &Rules, host: &str, served: &[u16]) -> bool {
    DestinationHost::parse(host).is_ok_and(|host| allow.name_elsewhere(&host, served))
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

/// The ports at which a name that a program without proxy support asks for leads to the proxy.
fn served_ports(network: &Network) -> Vec<u16> {
    let mut served = ports(network);
    served.extend(loopback_ports(&rules(&network.allow)));
    served
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
    let unused_upstream = match upstream {
        ProxyUpstream::Direct => Upstream::of_environment(&inputs.caller.environment).ok().flatten(),
        _ => None,
    };
    let addresses = address::networks(network.allow_addresses.iter().map(String::as_str));
    Ok(Some(Settings {
        allow: rules(&network.allow),
        deny: rules(&network.deny),
        addresses: addresses.unwrap_or_default(),
        upstream,
        unused_upstream,
        notes_registries: forgets_caches(inputs),
        name_servers: network.name_servers.iter().filter_map(|text| name_server(text)).collect(),
        limits: ProxyLimits::of(&network.limits, inputs.caller.descriptors[0]),
        ports: if serves_connections(inputs) { served_ports(network) } else { Vec::new() },
        sockets: sockets(inputs).len(),
        guards_answers: inputs.policy.learn,
        wording: inputs.policy.wording,
        connect_only: false,
        decides: match inputs.subject {
            Subject::Workspace => AllowListOwner::Policy,
            Subject::Program(_) => AllowListOwner::Manifest,
        },
    }))
}

/// The variables by which tools find the proxy.
pub(crate) fn variables(inputs: &Inputs<'_>) -> Vec<(OsString, OsString)> {
    if !asks_for_proxy(inputs) {
        return Vec::new();
    }
    let direct = own_hosts(inputs, &desktop::host_name(inputs))[0].join(",");
    let only_refuses = inputs.policy.only_refuses();
    // In an inherited environment, the caller's own would lead nowhere.
    let few = only_refuses && inputs.policy.env.base != EnvBase::Inherit;
    let names = if few {
        [(FEW_PROXY_VARIABLES, url()), (&["no_proxy"], direct)]
    } else {
        [(PROXY_VARIABLES, url()), (NO_PROXY_VARIABLES, direct)]
    };
    let node = (!few).then(|| (&["NODE_USE_ENV_PROXY"][..], "1".to_owned()));
    let retries = only_refuses.then(|| (RETRIES, "0".to_owned()));
    let each = |(names, value): (&'static [&'static str], String)| {
        names.iter().map(move |name| (name.into(), (&value).into()))
    };
    names.into_iter().chain(node).chain(retries).flat_map(each).collect()
}

/// The sandbox's own hosts, which programs reach without the proxy: as `no_proxy` and as Java spell them.
fn own_hosts<'h>(inputs: &Inputs<'_>, hostname: &'h str) -> [Vec<&'h str>; 2] {
    // Where a rule names the host's loopback without a listener, only the proxy leads there.
    let allow = rules(&inputs.policy.network.allow);
    let served = loopback_ports(&allow);
    let direct = LOOPBACK.into_iter().filter(|[host, ..]| !names_elsewhere(&allow, host, &served));
    // A rule with the name of the sandbox means another host.
    let own = (!names_elsewhere(&allow, hostname, &[])).then_some([hostname; 3]);
    let (plain, java) = direct.chain(own).map(|[_, plain, java]| (plain, java)).unzip();
    [plain, java]
}

/// The options by which Java finds the proxy. Those of the caller come first if they are passed on: Java
/// obeys the last of two options that contradict each other. `None` if there is no proxy.
pub(crate) fn java_options(inputs: &Inputs<'_>) -> Option<OsString> {
    // Java says on stderr that it picks them up. Where nothing is allowed, it finds out as fast without them.
    if !asks_for_proxy(inputs) || inputs.policy.only_refuses() {
        return None;
    }
    let passed = inputs.passed().into_iter().find(|(name, _)| *name == JAVA_OPTIONS);
    let inherits = inputs.policy.env.base == EnvBase::Inherit;
    let inherited = || inputs.caller.variable(JAVA_OPTIONS).filter(|_| inherits);
    let mut options = OsString::new();
    if let Some(theirs) = passed.map(|(_, value)| value).or_else(inherited) {
        options.push(theirs);
        options.push(" ");
    }
    for scheme in ["http", "https"] {
        options.push(format!("-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort={PORT} "));
    }
    let hosts = own_hosts(inputs, &desktop::host_name(inputs))[1].join("|");
    options.push(format!("-Dhttp.nonProxyHosts={hosts}"));
    Some(options)
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
    let is_hosts = view.host_path(usual).is_some() && !view.is_merged(usual);
    let mut show = |at: &Path, node| view.wall(PlaceKind::NameServer, at, node, Protection::Proxy);
    if !is_hosts {
        return show(usual, Node::file(contents));
    }
    // A bind of the host's /etc, so this is the host's file. It may be a link.
    match usual.canonicalize() {
        Ok(leads_to) if view.host_path(&leads_to).is_some() => {
            let own = Path::new("/run/kennel/resolv.conf");
            let source = own.to_owned();
            view.wall(PlaceKind::NameServer, own, Node::file(contents), Protection::Proxy);
            view.wall(PlaceKind::NameServer, &leads_to, Node::OwnFile { source }, Protection::Proxy);
        }
        Ok(leads_to) => view.wall(PlaceKind::NameServer, &leads_to, Node::file(contents), Protection::Proxy),
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
    /// The upstream proxy that the caller's environment names, if the policy names none.
    pub(crate) unused_upstream: Option<Upstream>,
    /// Whether to note which package registries were reached: what came from there is gone with the sandbox.
    pub(crate) notes_registries: bool,
    /// Name servers that the proxy asks instead of the system's.
    pub(crate) name_servers: Vec<SocketAddr>,
    pub(crate) limits: ProxyLimits,
    /// Ports on which programs that know no proxy are served.
    pub(crate) ports: Vec<u16>,
    /// How many sockets each sandbox hands out.
    pub(crate) sockets: usize,
    /// Whether an answer of the embedding program opens no special address, also if the request names it.
    pub(crate) guards_answers: bool,
    /// The words for settings in answers to refused requests.
    pub(crate) wording: Wording,
    /// Whether nothing but CONNECT is served.
    pub(crate) connect_only: bool,
    pub(crate) decides: AllowListOwner,
}

/// Whose list of allowed hosts it is: what a person changes to allow one more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AllowListOwner {
    #[default]
    Policy,
    Manifest,
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
