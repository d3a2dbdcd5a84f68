//! The user of the sandbox learns of each denial: in the report, on stderr, with the flag that would allow
//! it.

use super::{ClosedPort, Net, Origin, at, stderr, stdout};
use crate::support::{has, report, require};

/// `subject: reason` of each denial of a report.
fn denials(report: &serde_json::Value) -> Vec<String> {
    let entries = report["denials"].as_array().unwrap();
    let line = |entry: &serde_json::Value| {
        assert_eq!(entry["protection"], "proxy", "{entry}");
        format!("{}: {}", entry["subject"].as_str().unwrap(), entry["reason"].as_str().unwrap())
    };
    entries.iter().map(line).collect()
}

#[test]
fn report_and_stderr_list_the_same_denials() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let origin = Origin::named("one");
    let (to, deny) = (at("one.test", origin.port()), at("no.two.test", origin.port()));
    let allow = [at("*.two.test", origin.port()), at("local.test", origin.port())];
    let flags = net.strict(&[&allow[0], &allow[1]], &["--deny", &deny]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let script = format!(
        "for host in {to} {deny} local.test:{port} {to}; do curl -sS http://$host/ -o /dev/null; done; exit 3",
        port = origin.port()
    );
    let (output, report) = report(net.path(), &flags, &["sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(3), "a denial is not the command's failure: {output:?}");
    let expected = [
        format!("{deny}: rule {deny} of the deny list refuses it; remove --deny {deny} to allow it"),
        format!(
            "local.test:{}: resolves to 127.0.0.1, which is not a public address (loopback); --allow-address 127.0.0.1 \
             would allow it",
            origin.port()
        ),
        // Each once, in the order of its last denial.
        format!("{to}: not on the list of what is allowed; --allow {to} would allow it"),
    ];
    assert_eq!(denials(&report), expected);
    let said = stderr(&output);
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("kennel: ")).collect();
    let wanted = expected.map(|line| format!("kennel: denied: {line}"));
    assert_eq!(lines, wanted.each_ref());
    assert!(origin.is_untouched());
    assert_eq!(report["failure"], serde_json::Value::Null);
}

#[test]
fn quiet_silences_stderr_and_not_the_report() {
    let net = Net::new();
    let flags = net.strict(&[], &["-q"]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let (output, report) = report(net.path(), &flags, &["getent", "hosts", "one.test"]);
    assert_eq!((stderr(&output), output.status.code()), (String::new(), Some(2)), "{output:?}");
    assert_eq!(
        denials(&report),
        [
            "one.test: not on the list of what is allowed; --allow one.test:PORT would allow it (the command only looked \
             up the name, which tells no port)"
        ]
    );
}

#[test]
fn the_advice_works() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let origin = Origin::named("one");
    let to = at("one.test", origin.port());
    let mut flags = net.strict(&[], &[]);
    let script = format!("curl -sS http://{to}/");
    for _ in 0..2 {
        let said = stdout(&net.shell(&flags, &script));
        let flag = said.split("run the sandbox with: ").nth(1).unwrap_or_else(|| panic!("no advice: {said}"));
        flags.extend(flag.split_whitespace().map(str::to_owned));
    }
    assert!(flags.ends_with(&["--allow".into(), to.clone(), "--allow-address".into(), "127.0.0.1".into()]));
    assert_eq!(net.says(&flags, &script), "one: /");
}

#[test]
fn success_and_missing_servers_are_no_denials() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let origin = Origin::named("one");
    let closed = ClosedPort::new();
    let (to, nobody) = (at("one.test", origin.port()), at("one.test", closed.port));
    let flags = net.flags(&[&to, &nobody], &[]);
    let output =
        net.shell(&flags, &format!("curl -s http://{to}/ http://{nobody}/ -o /dev/null -o /dev/null"));
    assert_eq!(stderr(&output), "");
}

#[test]
fn denials_of_every_kind_of_client_are_reported() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let script = "curl -s http://a.test/; curl -s -p http://b.test/; curl -s --socks5-hostname 127.0.0.1:3128 http://c.test/; \
                  getent hosts d.test; curl -s -X TRACE http://e.test/; true";
    let flags = net.flags(&[], &[]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let (output, report) = report(net.path(), &flags, &["sh", "-c", script]);
    assert_eq!(
        denials(&report),
        [
            "a.test:80: not on the list of what is allowed; --allow a.test:80 would allow it",
            "b.test:80: not on the list of what is allowed; --allow b.test:80 would allow it",
            "c.test:80: not on the list of what is allowed; --allow c.test:80 would allow it",
            "d.test: not on the list of what is allowed; --allow d.test:PORT would allow it (the command only looked up the \
             name, which tells no port)",
            "e.test: the proxy refuses it: method TRACE is not served",
        ]
    );
    let said = stderr(&output);
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("kennel: ")).collect();
    assert_eq!(
        lines,
        [
            "kennel: denied: e.test: the proxy refuses it: method TRACE is not served",
            "kennel: 4 hosts were refused: --allow a.test:80 --allow b.test:80 --allow c.test:80 --allow d.test:PORT",
        ]
    );
}

#[test]
fn a_host_of_a_preset_is_offered_with_its_preset() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let flags = net.flags(&[], &[]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let one = "curl -s -o body http://index.crates.io:443/; cat body; exit 1";
    let (output, report) = report(net.path(), &flags, &["sh", "-c", one]);
    let denial = &report["denials"][0];
    assert_eq!(
        (&denial["preset"], &denial["remedy"]),
        (&"@cargo".into(), &"--allow index.crates.io:443".into())
    );
    assert_eq!(
        stderr(&output).trim_end(),
        "kennel: denied: index.crates.io:443: not on the list of what is allowed; --allow @cargo would allow it, or --allow \
         index.crates.io:443 that one host"
    );
    assert!(stdout(&output).contains("kennel: the rule @cargo has it"), "{output:?}");
    let several = "for host in pypi.org static.crates.io files.pythonhosted.org a.test; do curl -s http://$host:443/; done; exit 1";
    let output = net.shell(&net.flags(&[], &[]), several);
    assert_eq!(
        stderr(&output).trim_end(),
        "kennel: 4 hosts were refused: --allow @pypi --allow @cargo --allow a.test:443 (or one by one: pypi.org, \
         static.crates.io, files.pythonhosted.org)"
    );
    // The preset does not have this port.
    let output = net.shell(&net.flags(&[], &[]), "curl -s http://pypi.org/; exit 1");
    assert!(!stderr(&output).contains('@'), "{output:?}");
}

#[test]
fn a_success_hides_a_refused_update_check_unless_it_is_to_be_explained() {
    require!(has("curl"), "curl");
    let net = Net::new();
    let script = "curl -s -o body http://pypi.org:443/; curl -s -o body http://registry.npmjs.org:443/";
    let flags = |more: &[&str]| net.flags(&[], more);
    let words = flags(&[]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (output, report) = report(net.path(), &words, &["sh", "-c", script]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    assert_eq!(denials(&report).len(), 2, "the report has them");
    for (more, script, is_said) in [
        (&[][..], format!("{script}; exit 1"), true),
        (&["--explain"], script.to_owned(), true),
        (
            &[],
            "curl -s -o body http://evil.test:443/; curl -s -o body http://github.com:443/".to_owned(),
            true,
        ),
    ] {
        let output = net.shell(&flags(more), &script);
        assert_eq!(stderr(&output).contains("2 hosts were refused"), is_said, "{script}: {output:?}");
    }
}

#[test]
fn any_number_of_denials_is_reported() {
    let net = Net::new();
    let get = |n: usize| format!(">GET http://n{n}.test/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n");
    let requests: Vec<String> = (0..300).map(get).collect();
    let steps: Vec<[&str; 3]> = requests.iter().map(|request| [request.as_str(), "!", "<"]).collect();
    let steps: Vec<&[&str]> = steps.iter().map(<[&str; 3]>::as_slice).collect();
    let words = steps.iter().flat_map(|steps| [&["+", super::PROXY], *steps].concat()).skip(1);
    let flags = net.flags(&[], &[]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let grant = format!("{}:/payload", crate::support::payload_path().display());
    let flags = [&["--ro", &grant], flags.as_slice()].concat();
    let command: Vec<&str> = ["/payload", "talk"].into_iter().chain(words).collect();
    let (output, report) = report(net.path(), &flags, &command);
    assert_eq!(stdout(&output).matches("403 Forbidden").count(), 300);
    let denials = denials(&report);
    assert_eq!(denials.len(), 100, "the last ones");
    assert!(denials[99].starts_with("n299.test:80: ") && denials[0].starts_with("n200.test:80: "));
}
