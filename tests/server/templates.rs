//! What sandboxes are made from, and what a client may narrow.

use std::fs;

use serde_json::json;

use crate::server::Server;

#[test]
fn files_of_a_template_are_there_and_stay_as_they_are() {
    let files = tempfile::tempdir().unwrap();
    fs::write(files.path().join("given"), "of the template").unwrap();
    let server = Server::start(&format!("[template.base]\nfiles = '{}'\n", files.path().display()));
    let (one, other) = (server.create(), server.create());
    let change = "cat given; echo mine > given; rm -f missing; echo new > new; cat /home/user/given; pwd -P";
    let out = server.run(&one, change).0;
    assert_eq!(out, format!("of the templatemine\n{}\n", files.path().display()));
    assert_eq!(server.run(&other, "cat given; ls").0, "of the templategiven\n");
    assert_eq!(fs::read_to_string(files.path().join("given")).unwrap(), "of the template");
    // Changes outlive a pause.
    let path = format!("/sandboxes/{}/pause", one.id);
    assert_eq!(server.ask("POST", &path, &json!({ "memory": false })).status, 204);
    assert_eq!(server.ask("POST", &format!("/sandboxes/{}/connect", one.id), &json!({})).status, 201);
    assert_eq!(server.run(&one, "cat given new").0, "mine\nnew\n");
}

#[test]
fn variables_limits_and_policies_are_those_of_the_template() {
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("p.toml");
    fs::write(&policy, "profile = 'no-network'\nenv.set = { FROM_POLICY = 'p' }\n").unwrap();
    let server = Server::start(&format!(
        "[template.small]\npolicy = '{}'\nenv = {{ FROM_TEMPLATE = 't' }}\nlimits.open_files = 40\n",
        policy.display()
    ));
    let made = server.create_from(&json!({ "templateID": "small", "envVars": { "FROM_CLIENT": "c" } }));
    let out = server
        .run(&made, "echo $FROM_POLICY $FROM_TEMPLATE $FROM_CLIENT $(ulimit -n); ls /sys/class/net | wc -l")
        .0;
    assert!(out.starts_with("p t c 40\n"), "{out}");
}

#[test]
fn a_client_narrows_the_network_and_never_widens_it() {
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("p.toml");
    fs::write(&policy, "network.allow = ['one.test:443', '*.two.test:80']\n").unwrap();
    let server = Server::start(&format!("[template.base]\npolicy = '{}'\n", policy.display()));
    let refused = json!({ "network": { "allowOut": ["one.test", "three.test"] } });
    let answer = server.ask("POST", "/v2/sandboxes", &refused);
    assert_eq!(answer.status, 400);
    let words = "network: three.test: the policy of template base does not allow it";
    assert_eq!(answer.message(), words);
    let made =
        server.create_from(&json!({ "network": { "allowOut": ["a.two.test"], "denyOut": ["0.0.0.0/0"] } }));
    // The proxy refuses what is not there any more, and only that.
    let try_ = |host: &str| format!("curl -s -o /dev/null -D - http://{host}/ | head -1; true");
    assert!(server.run(&made, &try_("one.test")).0.contains("403"));
    let none = server.create_from(&json!({ "allow_internet_access": false }));
    assert!(!server.run(&none, "env").0.contains("http_proxy"), "no network at all");
}

#[test]
fn login_shells_are_the_templates_choice() {
    let plain = Server::start("");
    let login = Server::start("[template.base]\nlogin = true");
    let shell = "shopt -q login_shell && echo login || echo plain";
    assert_eq!(plain.run(&plain.create(), shell).0, "plain\n");
    assert_eq!(login.run(&login.create(), shell).0, "login\n");
}

#[test]
fn a_sandbox_that_nobody_uses_pauses_by_itself() {
    let server = Server::start("[template.base]\nidle = '1s'");
    let made = server.create();
    server.run(&made, "echo kept > file");
    crate::server::wait_until("it is paused", || {
        let answer = server.ask("GET", &format!("/sandboxes/{}", made.id), &serde_json::Value::Null);
        answer.json()["state"] == "paused"
    });
    assert_eq!(server.ask("POST", &format!("/v2/sandboxes/{}/connect", made.id), &json!({})).status, 201);
    assert_eq!(server.run(&made, "cat file").0, "kept\n");
}

#[test]
fn prepared_sandboxes_are_as_others() {
    let server = Server::start("[template.base]\nready = 3");
    std::thread::sleep(std::time::Duration::from_millis(500));
    let before = fs::read_dir(server.state().join("sandboxes")).unwrap().count();
    assert!((1..=3).contains(&before), "{before}");
    for number in 0..5 {
        let made =
            server.create_from(&json!({ "envVars": { "N": number.to_string() }, "metadata": { "a": "b" } }));
        let out = server.run(&made, "echo $N $E2B_SANDBOX_ID; ls -A").0;
        assert_eq!(out, format!("{number} {}\n", made.id));
    }
}
