"""`POST /run_code` with the client of SandboxFusion, unchanged: its endpoint is `http://:KEY@HOST`."""

import base64
import concurrent.futures

import pytest
import requests
import sandbox_fusion as fusion
from sandbox_fusion import CommandRunStatus, RunCodeRequest, RunStatus


@pytest.fixture
def endpoint(server):
    url = f"http://:{server.environment['E2B_API_KEY']}@{server.url.split('://')[1]}"
    fusion.set_sandbox_endpoint(url)
    return url


def run(language: str, code: str, **keys):
    return fusion.run_code(RunCodeRequest(language=language, code=code, **keys), max_attempts=1, client_timeout=60)


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "print(input() + '!')"),
        ("bash", "read line; echo $line!"),
        ("nodejs", "process.stdin.on('data', data => console.log(String(data).trim() + '!'))"),
        ("cpp", "#include <iostream>\nint main() { std::string line; std::cin >> line; std::cout << line << '!' << std::endl; }"),
    ],
)
def test_the_usual_languages_run(endpoint, language, code):
    result = run(language, code, stdin="hello\n")
    assert result.status == RunStatus.Success, result
    assert (result.run_result.stdout, result.run_result.return_code) == ("hello!\n", 0)
    assert (result.compile_result is None) == (language != "cpp")


def test_files_go_in_and_come_out(endpoint):
    data = bytes(range(256))
    code = "import pathlib; pathlib.Path('out').write_bytes(pathlib.Path('sub/in').read_bytes()[::-1])"
    files = {"sub/in": base64.b64encode(data).decode(), "none": None}
    result = run("python", code, files=files, fetch_files=["out", "missing"])
    assert result.status == RunStatus.Success, result
    assert {path: base64.b64decode(content) for path, content in result.files.items()} == {"out": data[::-1]}


def test_failures_have_their_status(endpoint):
    failed = run("python", "import sys; print('out'); sys.exit(3)")
    assert (failed.status, failed.run_result.return_code, failed.run_result.stdout) == (RunStatus.Failed, 3, "out\n")
    late = run("bash", "sleep 60", run_timeout=0.5)
    assert (late.status, late.run_result.status) == (RunStatus.Failed, CommandRunStatus.TimeLimitExceeded)
    broken = run("cpp", "int main() { return x; }")
    assert (broken.status, broken.run_result) == (RunStatus.Failed, None)
    assert "x" in broken.compile_result.stderr and broken.compile_result.return_code == 1


def test_a_language_that_is_not_served_is_named(endpoint, server):
    answer = requests.post(f"{endpoint}/run_code", json={"code": "", "language": "racket"}, timeout=30)
    assert answer.status_code == 400
    assert answer.json()["message"] == 'language: "racket" is not served; there are bash, cpp, nodejs, python'
    assert requests.post(f"{server.url}/run_code", json={"code": "", "language": "bash"}, timeout=30).status_code == 401


def test_the_limit_of_memory_is_the_clients(endpoint):
    # As verl sends it.
    order = {"code": "x = bytearray(400 << 20)", "language": "python", "memory_limit_MB": 256, "run_timeout": 20}
    result = requests.post(f"{endpoint}/run_code", json=order, timeout=60).json()
    assert result["status"] == "Failed", result


def test_many_at_once_get_their_own_answers(endpoint):
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda number: run("bash", f"echo {number}"), range(48)))
    assert [result.run_result.stdout for result in results] == [f"{number}\n" for number in range(48)]
