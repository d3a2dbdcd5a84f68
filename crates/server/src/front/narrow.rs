//! What a client asks for within its template: never more than the template's policy, and what is more is
//! refused with its name.

use std::fmt::Display;

use kennel::internal::preset_of;
use kennel::{Limits, NetworkMode, Policy, Size, Span};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::wire::failure::Failure;

/// What stands for all addresses in lists of E2B.
const EVERYTHING: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// `network` of a creation.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct NetworkRequest {
    allow_out: Vec<String>,
    deny_out: Vec<String>,
    allow_public_traffic: Option<bool>,
    egress_proxy: Option<serde_json::Value>,
    rules: Option<serde_json::Value>,
    dns_servers: Vec<String>,
}

impl NetworkRequest {
    pub(crate) fn of(allow_out: Vec<String>, deny_out: Vec<String>) -> Self {
        Self { allow_out, deny_out, ..Self::default() }
    }
}

/// Narrows the network of a template's policy.
pub(crate) fn narrow(
    policy: &mut Policy,
    template: &str,
    internet: Option<bool>,
    request: &NetworkRequest,
) -> Result<(), Failure> {
    for (key, is_there) in [
        ("egressProxy", request.egress_proxy.is_some()),
        ("rules", request.rules.is_some()),
        ("dnsServers", !request.dns_servers.is_empty()),
    ] {
        if is_there {
            return Err(Failure::not_done(format!(
                "network.{key}: the template's policy decides about this"
            )));
        }
    }
    if request.allow_public_traffic == Some(true) {
        let message = "network.allowPublicTraffic: the template decides about this (public_ports)";
        return Err(Failure::bad(message));
    }
    let is_everything = |entry: &String| EVERYTHING.contains(&entry.as_str());
    let is_closed = internet == Some(false) || request.deny_out.iter().any(is_everything);
    let wanted: Vec<_> = request.allow_out.iter().filter(|entry| !is_everything(entry)).collect();
    let mut allowed = Vec::new();
    for host in &wanted {
        let rules = covered(policy, host);
        if rules.is_empty() {
            let message = format!("network: {host}: the policy of template {template} does not allow it");
            return Err(Failure::bad(message));
        }
        allowed.extend(rules);
    }
    if is_closed || !wanted.is_empty() {
        policy.network.allow = allowed;
    }
    if policy.network.allow.is_empty() && is_closed {
        policy.network.mode = Some(NetworkMode::None);
    }
    for host in request.deny_out.iter().filter(|entry| !is_everything(entry)) {
        policy.network.deny.push(format!("{host}:*"));
    }
    policy.validate().map_err(|error| Failure::bad(kennel::Error::from(error).chain()))
}

/// The rules for this host that the policy's rules cover.
fn covered(policy: &Policy, host: &str) -> Vec<String> {
    let host = host.to_ascii_lowercase();
    let below =
        |domain: &str| host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.') && rest.len() > 1);
    let mut rules = Vec::new();
    for rule in &policy.network.allow {
        if rule.starts_with('@') {
            let of_host = preset_of(&format!("{host}:443")).filter(|preset| preset == rule);
            rules.extend(of_host.map(|_| format!("{host}:443")));
        } else if let Some((pattern, port)) = rule.rsplit_once(':') {
            let covers = match pattern.strip_prefix("*.") {
                Some(domain) => below(&domain.to_ascii_lowercase()),
                None => pattern == "*" || pattern.eq_ignore_ascii_case(&host),
            };
            rules.extend(covers.then(|| format!("{host}:{port}")));
        }
    }
    rules
}

/// Limits of a request, each within that of the template.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LimitsRequest {
    /// Bytes, such as `"512M"`.
    #[schema(value_type = Option<String>)]
    memory: Option<Size>,
    /// Processes and threads.
    pids: Option<u64>,
    /// Processor time per second, in processors.
    cpus: Option<f64>,
    /// Processor time of each process, such as `"10s"`.
    #[schema(value_type = Option<String>)]
    cpu_time: Option<Span>,
    /// Bytes of each stream that the answer has.
    #[schema(value_type = Option<String>)]
    output: Option<Size>,
    /// Bytes of private directories, such as `/tmp`.
    #[schema(value_type = Option<String>)]
    tmp_size: Option<Size>,
    /// Bytes of each file that is written.
    #[schema(value_type = Option<String>)]
    file_size: Option<Size>,
}

/// Bytes of private directories, if the policy names none.
const USUAL_TMP: Size = Size::from_bytes(2 << 30);

/// Narrows the limits of a template's policy.
pub(crate) fn narrow_limits(
    limits: &mut Limits,
    template: &str,
    request: &LimitsRequest,
) -> Result<(), Failure> {
    let LimitsRequest { memory, pids, cpus, cpu_time, output, tmp_size, file_size } = request.clone();
    let in_template = InTemplate(template);
    in_template.narrow("memory", &mut limits.memory, memory, None)?;
    in_template.narrow("pids", &mut limits.pids, pids, Some(Limits::SESSION_PIDS))?;
    in_template.narrow("cpus", &mut limits.cpus, cpus, None)?;
    in_template.narrow("cpu_time", &mut limits.cpu_time, cpu_time, None)?;
    in_template.narrow("output", &mut limits.output, output, None)?;
    in_template.narrow("tmp_size", &mut limits.tmp_size, tmp_size, Some(USUAL_TMP))?;
    in_template.narrow("file_size", &mut limits.file_size, file_size, None)
}

struct InTemplate<'a>(&'a str);

impl InTemplate<'_> {
    /// Takes what is wanted, if it is not more than there is, or than there usually is.
    fn narrow<T: Copy + PartialOrd + Display>(
        &self,
        key: &str,
        limit: &mut Option<T>,
        wanted: Option<T>,
        usual: Option<T>,
    ) -> Result<(), Failure> {
        let Some(wanted) = wanted else { return Ok(()) };
        match limit.or(usual) {
            Some(most) if wanted > most => Err(Failure::bad(format!(
                "limits.{key}: {wanted} is more than {most}, the limit of template {}",
                self.0
            ))),
            _ => {
                *limit = Some(wanted);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kennel::Profile;

    use super::*;

    fn narrowed(
        allow: &[&str],
        internet: Option<bool>,
        request: &str,
    ) -> Result<(Vec<String>, Option<NetworkMode>), u16> {
        let mut policy = Policy::profile(Profile::RepoWrite, "/srv");
        policy.network.allow = allow.iter().map(|rule| (*rule).to_owned()).collect();
        let request: NetworkRequest = serde_json::from_str(request).expect(request);
        narrow(&mut policy, "base", internet, &request).map_err(|failure| failure.status.as_u16())?;
        Ok((policy.network.allow, policy.network.mode))
    }

    fn rules(rules: &[&str]) -> Vec<String> {
        rules.iter().map(|rule| (*rule).to_owned()).collect()
    }

    #[test]
    fn a_client_gets_what_both_allow() {
        let policy = ["crates.io:443", "*.example.com:80", "@pypi"];
        let all = rules(&policy);
        assert_eq!(narrowed(&policy, None, "{}"), Ok((all.clone(), None)));
        assert_eq!(narrowed(&policy, Some(true), r#"{"allowOut": ["0.0.0.0/0"]}"#), Ok((all, None)));
        let some = r#"{"allowOut": ["Crates.io", "a.example.com"], "denyOut": ["0.0.0.0/0"]}"#;
        assert_eq!(narrowed(&policy, None, some), Ok((rules(&["crates.io:443", "a.example.com:80"]), None)));
        let preset = r#"{"allowOut": ["pypi.org"]}"#;
        assert_eq!(narrowed(&policy, None, preset), Ok((rules(&["pypi.org:443"]), None)));
    }

    #[test]
    fn a_client_can_have_no_network() {
        let none = Ok((rules(&[]), Some(NetworkMode::None)));
        assert_eq!(narrowed(&["crates.io:443"], Some(false), "{}"), none);
        assert_eq!(narrowed(&["crates.io:443"], None, r#"{"denyOut": ["0.0.0.0/0"]}"#), none);
    }

    #[test]
    fn more_than_the_template_is_refused() {
        for host in ["github.com", "example.com", "xcrates.io", "crates.io.evil", "*.io", "*", "*.com"] {
            let request = format!(r#"{{"allowOut": ["{host}"]}}"#);
            assert_eq!(narrowed(&["crates.io:443", "*.example.com:80"], None, &request), Err(400), "{host}");
        }
        assert_eq!(narrowed(&[], None, r#"{"allowOut": ["crates.io"]}"#), Err(400));
        assert_eq!(narrowed(&["a:1"], None, r#"{"allowPublicTraffic": true}"#), Err(400));
        assert_eq!(narrowed(&["a:1"], None, r#"{"rules": {}}"#), Err(501));
    }

    #[test]
    fn a_denied_host_is_denied() {
        let mut policy = Policy::profile(Profile::RepoWrite, "/srv");
        policy.network.allow = vec!["*.example.com:443".into()];
        let request = NetworkRequest { deny_out: vec!["b.example.com".into()], ..NetworkRequest::default() };
        narrow(&mut policy, "base", None, &request).expect("narrower");
        assert_eq!(policy.network.deny, ["b.example.com:*"]);
        assert_eq!(policy.network.allow, ["*.example.com:443"]);
    }
}
