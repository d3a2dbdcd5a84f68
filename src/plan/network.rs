//! The network of a policy: the sockets of the sandbox that PID 1 hands out, the settings of the proxy, and
//! the variables by which tools inside find it. This file writes steps and runs none.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use kennel_helper::plan::Step;

use crate::network::namespace::SOCKETS_HANDED_OUT;
use crate::plan::Section;
use crate::policy::Policy;
use crate::policy::env::EnvBase;
use crate::policy::network::destination::DestinationHost;
use crate::policy::network::proxy_variables::{self, JAVA_OPTIONS, LOOPBACK, ProxyVariables};
use crate::policy::network::publish::Publish;
use crate::policy::network::rule::Rules;
use crate::policy::network::settings::{AllowListOwner, PORT, ProxyUpstream, Settings};
use crate::policy::network::{NAME_SERVER, Network, NetworkMode};
use crate::report::enforcement::{Enforcement, Note, Protection, State};
use crate::report::error::Error;
use crate::report::error::policy::PolicyError;
use crate::report::place_kind::PlaceKind;
use crate::report::remedy::{SettingKey, remedy};
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
    let Inputs { policy, caller, .. } = inputs;
    let network = &policy.network;
    let mut settings = Settings::of(network, &caller.environment)?;
    if let Some(proxy) = &network.proxy {
        let path = caller.absolute(&proxy.unix);
        let identity = BindSource::resolve(&path).map_or(Identity::NOTHING, |source| source.identity);
        settings.upstream = ProxyUpstream::Foreign { path, identity };
    }
    Ok(Some(Settings {
        notes_registries: forgets_caches(inputs),
        ports: if serves_connections(inputs) { served_ports(network) } else { Vec::new() },
        sockets: sockets(inputs).len(),
        guards_answers: policy.learn,
        wording: policy.wording,
        decides: match inputs.subject {
            Subject::Workspace => AllowListOwner::Policy,
            Subject::Program(_) => AllowListOwner::Manifest,
        },
        ..settings
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
    let is_few = only_refuses && inputs.policy.env.base != EnvBase::Inherit;
    ProxyVariables { port: PORT, direct: &direct, only_refuses, is_few }.all()
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
    options.push(proxy_variables::java_options(PORT, &own_hosts(inputs, &desktop::host_name(inputs))[1]));
    Some(options)
}

/// Shows the sandbox's own name server, if it has one, instead of the profile's. The rest of the view must be
/// there already.
pub(crate) fn show_resolver(view: &mut View, inputs: &Inputs<'_>) {
    if !is_transparent(inputs) {
        return;
    }
    let usual = view.follow(Path::new("/etc/resolv.conf")).into_owned();
    let usual = &*usual;
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

/// The ports that TCP may connect to on the host's network, if the policy restricts them.
pub(crate) fn ports_of_host(inputs: &Inputs<'_>) -> Option<Vec<u16>> {
    let allow = &inputs.policy.network.allow;
    let is_narrowed = inputs.policy.effective_network() == NetworkMode::Host && !allow.is_empty();
    if is_narrowed { rules(allow).ports_of_any_host() } else { None }
}
