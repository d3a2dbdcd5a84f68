//! What a worker or a router can do when somebody else has it, as docs/fleet.md says.

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::route::{Router, worker};
use crate::server::Made;

/// The token that this seed gives to a sandbox.
fn token_by(seed: &[u8], id: &str) -> String {
    let mac = Hmac::<Sha256>::new_from_slice(seed).unwrap().chain_update(b"envd:").chain_update(id);
    let digits: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{id}.{digits}")
}

#[test]
fn a_worker_opens_no_sandbox_of_another() {
    let (one, two) = (worker("one", ""), worker("two", ""));
    let router = Router::before(&[&one, &two]);
    let [of_one, of_two] = [&one, &two].map(|worker| worker.create());
    let seed = std::fs::read(one.state().join("seed")).unwrap();
    // What the test computes is what a worker does.
    assert_eq!(token_by(&seed, &of_one.id), of_one.token);
    let forged = Made { token: token_by(&seed, &of_two.id), ..of_two };
    let own = Made { id: forged.id.clone(), token: of_one.token, traffic: None };
    for client in [&*router, &*two] {
        let status = |made: &Made| client.of(made, "GET", "/files?path=/etc/hostname", "", b"").status;
        assert_eq!((status(&forged), status(&own)), (401, 401));
    }
}

#[test]
fn a_router_holds_no_key_of_its_own() {
    let one = worker("one", "");
    let router = Router::before(&[&one]);
    let made = router.create();
    let without = |method, path: &str| router.request(method, path, &[], b"{}").status;
    assert_eq!(without("POST", "/v2/sandboxes"), 401);
    assert_eq!(without("GET", &format!("/sandboxes/{}", made.id)), 401);
    let headers = [("e2b-sandbox-id", &*made.id)];
    assert_eq!(router.request("GET", "/files?path=/etc/hostname", &headers, b"").status, 401);
    // Its files and its memory are all that it has: nothing is written.
    let left = std::fs::read_dir(router.place.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| name == "errors" || name == "tokens.toml"), "it keeps no state");
}
