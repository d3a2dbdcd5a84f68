"""Manifests: valid by the schemas of Kubernetes, whole, and with the security context that workers need and no more."""

import re
import subprocess

import kubernetes_validate
import pytest
from conftest import DEPLOY, HASH, KENNEL, KUBERNETES, ROOT, Server, documents, one, pods, rendered

DIRECTORIES = ["", "autoscale", "per-image"]
# The first in which `hostUsers` and `procMount` need no switch, and the newest that the validator knows.
VERSIONS = ["1.33", "1.37"]

ALL = [found for directory in DIRECTORIES for found in rendered(KUBERNETES / directory)]
WORKERS = ["kennel-workers", "kennel-python"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("found", ALL, ids=lambda found: f"{found['kind']}/{found['metadata']['name']}")
def test_an_object_is_valid(found, version):
    kubernetes_validate.validate(found, version, strict=True)


def test_the_secret_is_an_example_and_valid_and_never_applied():
    [secret] = documents(KUBERNETES / "secret.example.yaml")
    kubernetes_validate.validate(secret, VERSIONS[-1], strict=True)
    assert not [found for found in ALL if found["kind"] == "Secret"]
    assert set(re.findall(r'sha256 = "(\w+)"', secret["stringData"]["tokens.toml"])) == {"0" * 64}


def test_the_sandbox_of_agent_sandbox_has_a_valid_pod():
    [sandbox] = documents(KUBERNETES / "agent-sandbox.yaml")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": sandbox["spec"]["podTemplate"]["spec"]}
    kubernetes_validate.validate(pod, VERSIONS[-1], strict=True)


def workers() -> dict[str, dict]:
    sandbox = documents(KUBERNETES / "agent-sandbox.yaml")
    return {name: pod for name, pod in pods(ALL + sandbox).items() if name != "kennel-routers"}


@pytest.mark.parametrize("name", [*WORKERS, "tenant-a"])
def test_a_worker_has_the_security_context_that_sandboxes_need(name):
    spec = workers()[name]["spec"]
    assert spec["hostUsers"] is False
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "seccompProfile": {"type": "Unconfined"},
        "appArmorProfile": {"type": "Unconfined"},
    }
    [worker] = spec["containers"]
    assert worker["securityContext"] == {
        "procMount": "Unmasked",
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_everything_else_is_as_restricted_as_a_pod_can_be():
    router = pods(ALL)["kennel-routers"]["spec"]
    assert router["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert router["securityContext"]["runAsNonRoot"] and router["automountServiceAccountToken"] is False
    containers = router["containers"] + pods(ALL)["kennel-python"]["spec"]["initContainers"]
    for container in containers:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    for pod in workers().values():
        for word in ("hostNetwork", "hostPID", "hostIPC", "serviceAccountName"):
            assert word not in pod["spec"]
        assert not [volume for volume in pod["spec"]["volumes"] if "hostPath" in volume]


@pytest.mark.parametrize("name", pods(ALL))
def test_a_pod_mounts_what_is_there_and_ports_have_names(name):
    spec = pods(ALL)[name]["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    containers = spec["containers"] + spec.get("initContainers", [])
    mounted = {mount["name"] for container in containers for mount in container["volumeMounts"]}
    assert mounted == set(volumes)
    for volume in volumes.values():
        for source in volume.get("projected", {}).get("sources", []):
            if config := source.get("configMap"):
                one(ALL, "ConfigMap", config["name"])
            else:
                assert source["secret"]["name"] == "kennel-tokens"
    for container in spec["containers"]:
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe in container:
                assert container[probe]["httpGet"]["port"] in ports


def matches(selector: dict, pod: dict) -> bool:
    return selector.items() <= pod["metadata"]["labels"].items()


def test_selectors_find_the_pods_that_they_are_for():
    found = pods(ALL)
    chosen = {
        (thing["kind"], thing["metadata"]["name"]): {name for name, pod in found.items() if matches(selector, pod)}
        for thing in ALL
        for selector in [selector_of(thing)]
        if selector
    }
    both, routers = set(WORKERS), {"kennel-routers"}
    assert chosen == {
        ("Service", "kennel-workers"): both,
        ("Service", "kennel"): routers,
        ("StatefulSet", "kennel-workers"): {"kennel-workers"},
        ("StatefulSet", "kennel-python"): {"kennel-python"},
        ("Deployment", "kennel-routers"): routers,
        ("PodDisruptionBudget", "kennel-workers"): both,
        ("PodDisruptionBudget", "kennel-routers"): routers,
        ("NetworkPolicy", "kennel-workers"): both,
        ("NetworkPolicy", "kennel-workers-metrics"): both,
        ("NetworkPolicy", "kennel-routers"): routers,
    }


def selector_of(thing: dict) -> dict | None:
    spec = thing.get("spec", {})
    selector = spec.get("selector") or spec.get("podSelector")
    return selector and selector.get("matchLabels", selector)


def test_only_routers_reach_workers():
    policy = one(ALL, "NetworkPolicy", "kennel-workers")["spec"]
    [rule] = policy["ingress"]
    [source] = rule["from"]
    assert list(source) == ["podSelector"]
    found = [name for name, pod in pods(ALL).items() if matches(source["podSelector"]["matchLabels"], pod)]
    assert found == ["kennel-routers"] and "egress" not in policy and "Egress" in policy["policyTypes"]


def test_addresses_of_full_and_draining_workers_stay():
    service = one(ALL, "Service", "kennel-workers")
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    for name in WORKERS:
        assert one(ALL, "StatefulSet", name)["spec"]["serviceName"] == "kennel-workers"
        [worker] = pods(ALL)[name]["spec"]["containers"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert worker[probe]["httpGet"]["path"] == "/healthz", "a full worker is ready, too"
    port = service["spec"]["ports"][0]["port"]
    assert f"dns+http://kennel-workers:{port}" in pods(ALL)["kennel-routers"]["spec"]["containers"][0]["args"]


def test_the_autoscaler_asks_for_a_number_that_the_rule_makes_of_numbers_that_workers_have():
    target = one(ALL, "HorizontalPodAutoscaler", "kennel-workers")["spec"]
    one(ALL, target["scaleTargetRef"]["kind"], target["scaleTargetRef"]["name"])
    [rules] = documents(KUBERNETES / "autoscale/prometheus-adapter.yaml")
    [rule] = rules["rules"]["custom"]
    assert target["metrics"][0]["pods"]["metric"]["name"] == rule["name"]["as"]
    assert set(re.findall(r"kennel_server_\w+", rule["seriesQuery"] + rule["metricsQuery"])) == {
        "kennel_server_room",
        "kennel_server_running",
    }


def config_of(name: str) -> str:
    volumes = workers()[name]["spec"]["volumes"]
    [sources] = [volume["projected"]["sources"] for volume in volumes if volume["name"] == "config"]
    return one(ALL, "ConfigMap", sources[0]["configMap"]["name"])["data"]["serve.toml"]


@pytest.mark.parametrize("name", WORKERS)
def test_a_pod_lives_longer_than_its_drain(name):
    minutes = int(re.search(r'^drain = "(\d+)m"$', config_of(name), re.MULTILINE)[1])
    assert workers()[name]["spec"]["terminationGracePeriodSeconds"] >= minutes * 60 + 30


@pytest.mark.parametrize(("name", "template"), [("kennel-workers", "base"), ("kennel-python", "python"), ("tenant-a", "base")])
def test_the_server_starts_with_the_words_and_files_of_the_pod(name, template, tmp_path):
    [worker] = workers()[name]["spec"]["containers"]
    tokens = documents(KUBERNETES / "secret.example.yaml")[0]["stringData"]["tokens.toml"]
    config, volume = tmp_path / "config", tmp_path / "volume"
    config.mkdir()
    volume.mkdir()
    (config / "serve.toml").write_text(config_of(name).replace("/var/lib/kennel", str(volume)))
    (config / "tokens.toml").write_text(tokens.replace("0" * 64, HASH))
    words = [word.replace("/etc/kennel", str(config)).replace("$(POD_NAME)", f"{name}-0") for word in worker["args"]]
    server = Server([KENNEL, *words, "--listen", "127.0.0.1:0"], tmp_path)
    try:
        assert server.ask("GET", worker["readinessProbe"]["httpGet"]["path"])[0] == 200
        status, made = server.ask("POST", "/v2/sandboxes", {"templateID": template})
        assert status == 201, made
        assert made["sandboxID"].startswith(f"{name}-0-" if name != "tenant-a" else "tenant-a-")
        metrics = server.ask("GET", "/metrics")[1]
        assert "kennel_server_running 1\n" in metrics and "kennel_server_room 199\n" in metrics
        assert server.ask("DELETE", f"/sandboxes/{made['sandboxID']}")[0] == 204
    finally:
        server.stop()


def test_an_image_gets_what_it_runs(tmp_path):
    """The init container, with the image's executables in the place of its own."""
    spec = pods(ALL)["kennel-python"]["spec"]
    [copy], [worker] = spec["initContainers"], spec["containers"]
    [mount] = copy["volumeMounts"]
    assert mount["mountPath"] in [mount["mountPath"] for mount in worker["volumeMounts"]]
    words = [word.replace(mount["mountPath"], str(tmp_path)) for word in copy["command"] + copy["args"]]
    built = KENNEL.removesuffix("/kennel")
    subprocess.run([word.replace("/usr/local/bin", built) for word in words], check=True)
    [program] = worker["command"]
    program = program.replace(mount["mountPath"], str(tmp_path))
    said = subprocess.run([program, "serve", "--help"], check=True, capture_output=True, text=True).stdout
    assert "--name" in said, "kennel finds kennel-server beside it"


def test_the_image_is_built_from_packages_that_are_there():
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    built = {
        (words["package"], program)
        for line in re.findall(r"cargo build ([^&\n]+)", text)
        for words in [dict(re.findall(r"--(package) (\S+)", line))]
        for program in re.findall(r"--bin (\S+)", line)
    }
    assert built == {("kennel-cli", "kennel"), ("kennel-cli", "kennel-image"), ("kennel-server", "kennel-server")}
    for package, program in built:
        manifest = (ROOT / "crates" / package.removeprefix("kennel-") / "Cargo.toml").read_text()
        assert f'name = "{package}"' in manifest and f'name = "{program}"' in manifest
        assert f"target/x86_64-unknown-linux-gnu/release/{program}" in text
    assert 'rustflags = ["-C", "target-feature=+crt-static"]' in (ROOT / ".cargo/config.toml").read_text()
    assert re.search(r"^USER 1000:1000$", text, re.MULTILINE)
