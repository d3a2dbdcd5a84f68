"""TLS with a certificate of one's own, and names of hosts in the place of headers."""

import http.client
import json
import shutil
import ssl
import subprocess

import pytest
from conftest import Server

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate")


@pytest.fixture
def served(tmp_path):
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost".split()
    names = "subjectAltName=DNS:localhost,DNS:*.sandboxes.test,DNS:api.sandboxes.test"
    files = ["-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"]
    subprocess.run(["openssl", *words, "-addext", names, *files], check=True, capture_output=True)
    config = 'domain = "sandboxes.test"\n[tls]\ncertificate = "cert.pem"\nkey = "key.pem"\n'
    server = Server(tmp_path, config)
    server.start()
    yield server
    server.stop()


def ask(server, method, path, host, body=None, **headers):
    context = ssl.create_default_context(cafile=str(server.place / "cert.pem"))
    port = int(server.url.rsplit(":", 1)[1])
    connection = http.client.HTTPSConnection("localhost", port, context=context)
    connection.request(method, path, body, {"Host": host, **headers})
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_a_client_finds_a_sandbox_by_the_name_of_its_host(served):
    assert served.url.startswith("https://")
    key = {"X-API-KEY": served.environment["E2B_API_KEY"]}
    status, made = ask(served, "POST", "/sandboxes", "api.sandboxes.test", "{}", **key)
    assert status == 201
    made = json.loads(made)
    assert made["domain"] == "sandboxes.test"
    host = f"49983-{made['sandboxID']}.sandboxes.test"
    token = {"X-Access-Token": made["envdAccessToken"]}
    assert ask(served, "GET", "/health", host)[0] == 204
    octets = {"Content-Type": "application/octet-stream"}
    assert ask(served, "POST", "/files?path=a", host, b"x", **octets, **token)[0] == 200
    assert ask(served, "GET", "/files?path=a", host, **token) == (200, b"x")
    assert ask(served, "GET", "/files?path=a", host)[0] == 401
    assert ask(served, "GET", "/health", host.replace("49983", "x"))[0] == 502
    assert ask(served, "GET", "/health", "49983-kennel-aaaaaaaaaaaaaaaa.sandboxes.test")[0] == 502
    path = f"/sandboxes/{made['sandboxID']}"
    assert ask(served, "DELETE", path, "api.sandboxes.test", **key)[0] == 204


def test_a_signed_url_opens_one_file(served):
    import base64
    import hashlib
    import time
    import urllib.parse

    key = {"X-API-KEY": served.environment["E2B_API_KEY"]}
    made = json.loads(ask(served, "POST", "/sandboxes", "localhost", "{}", **key)[1])
    host, token = f"49983-{made['sandboxID']}.sandboxes.test", made["envdAccessToken"]

    def url(path, operation, until):
        text = f"{path}:{operation}::{token}:{until}"
        signature = "v1_" + base64.b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        query = {"path": path, "signature": signature, "signature_expiration": until}
        return "/files?" + urllib.parse.urlencode(query)

    later, before = int(time.time()) + 60, int(time.time()) - 60
    octets = {"Content-Type": "application/octet-stream"}
    assert ask(served, "POST", url("/home/user/ä b", "write", later), host, b"signed", **octets)[0] == 200
    assert ask(served, "GET", url("/home/user/ä b", "read", later), host) == (200, b"signed")
    assert ask(served, "GET", url("/home/user/ä b", "write", later), host)[0] == 401
    assert ask(served, "GET", url("/home/user/ä b", "read", before), host)[0] == 401
    other = json.loads(ask(served, "POST", "/sandboxes", "localhost", "{}", **key)[1])
    elsewhere = f"49983-{other['sandboxID']}.sandboxes.test"
    assert ask(served, "GET", url("/home/user/ä b", "read", later), elsewhere)[0] == 401


def test_without_tls_nobody_is_answered(served):
    port = int(served.url.rsplit(":", 1)[1])
    connection = http.client.HTTPConnection("localhost", port, timeout=5)
    with pytest.raises((http.client.HTTPException, OSError)):
        connection.request("GET", "/healthz")
        connection.getresponse()
