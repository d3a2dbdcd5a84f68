"""`kennel mcp`, driven by the official Python client: what its own types, schemas and timeouts make of the server.

Usage: client.py KENNEL. Prints a line for each test, and then `N passed, N failed`.
"""

import asyncio
import os
import sys
import tempfile
import traceback
import urllib.request
from contextlib import asynccontextmanager
from pathlib import Path

from mcp import Client, MCPError, StdioServerParameters

KENNEL = os.path.abspath(sys.argv[1])


@asynccontextmanager
async def server(*flags, mode="auto"):
    """A client of a new server, and the workspace."""
    with tempfile.TemporaryDirectory(prefix="kennel-mcp-", dir="/tmp") as workspace:
        parameters = StdioServerParameters(
            command=KENNEL, args=["mcp", "--no-config", "--workspace", workspace, *flags], env={"PATH": os.environ["PATH"]}
        )
        async with Client(parameters, mode=mode) as client:
            yield client, Path(workspace)


def text(result):
    return result.content[0].text


async def both_lifecycles_lead_to_the_same_tools():
    for mode in ["legacy", "auto"]:
        async with server("--net", "none", mode=mode) as (client, workspace):
            listed = (await client.list_tools()).tools
            assert [tool.name for tool in listed] == ["run", "shell", "read_file", "write_file", "edit_file", "list_dir", "publish"]
            assert str(workspace) in client.instructions
            # The client checks each structured result against the schema of the tool.
            result = await client.call_tool("run", {"command": "echo out; echo err >&2; exit 3"})
            assert not result.is_error and result.structured_content["exit_code"] == 3
            assert [item.text for item in result.content] == ["out\n", "[kennel: stderr]", "err\n", "[kennel: exit status 3]"]
            print(f"    {mode}: {client.protocol_version}")


async def every_result_matches_its_schema():
    async with server() as (client, workspace):
        for tool, arguments in [
            ("run", {"argv": ["cat"], "stdin": "text", "timeout_ms": 60000, "env": {"A": "b"}, "cwd": "."}),
            ("run", {"command": "touch /usr/x"}),
            ("run", {"command": "kill -9 $$"}),
            ("shell", {"snippet": "cd /tmp; exit 1"}),
            ("write_file", {"path": "a", "content": "text"}),
            ("read_file", {"path": "a", "offset": 1, "limit": 2}),
            ("list_dir", {}),
            ("publish", {"port": 8000}),
        ]:
            result = await client.call_tool(tool, arguments)
            assert not result.is_error and result.structured_content is not None, (tool, result)
            print(f"    {tool}: {text(result)!r}"[:120])
        for tool, arguments in [("run", {"argv": ["no-such-program"]}), ("read_file", {"path": "none"}), ("run", {})]:
            result = await client.call_tool(tool, arguments)
            assert result.is_error and text(result), (tool, result)
        assert (workspace / "a").read_text() == "text"


async def a_shell_keeps_its_state():
    async with server() as (client, _):
        await client.call_tool("shell", {"snippet": "cd /tmp && X=1"})
        result = await client.call_tool("shell", {"snippet": "pwd; echo $X"})
        assert result.structured_content["stdout"] == "/tmp\n1\n", result


async def an_unknown_tool_is_an_error_of_the_protocol():
    async with server() as (client, _):
        try:
            result = await client.call_tool("nope", {})
        except MCPError as error:
            assert "unknown tool: nope" in str(error), error
        else:
            raise AssertionError(result)


async def progress_reaches_the_callback():
    async with server() as (client, workspace):
        heard = []

        async def progress(seconds, total, message):
            heard.append((seconds, message))
            if len(heard) == 2:
                (workspace / "go").touch()

        line = "echo begun; until [ -e go ]; do sleep 0.05; done"
        await client.call_tool("run", {"command": line}, progress_callback=progress)
        assert len(heard) >= 2 and heard[0] < heard[1] and "begun" in heard[0][1], heard


async def a_cancelled_call_ends_its_command():
    for mode in ["legacy", "auto"]:
        async with server(mode=mode) as (client, workspace):
            line = "while :; do date > now; touch begun; sleep 0.02; done"
            call = asyncio.create_task(client.call_tool("run", {"command": line}))
            while not (workspace / "begun").exists():
                await asyncio.sleep(0.01)
            call.cancel()
            try:
                await call
                raise AssertionError("it was not cancelled")
            except asyncio.CancelledError:
                pass
            # Wait until nobody writes any more.
            for _ in range(500):
                before = (workspace / "now").stat().st_mtime_ns
                await asyncio.sleep(0.3)
                if (workspace / "now").stat().st_mtime_ns == before:
                    break
            else:
                raise AssertionError("the command runs on")
            assert text(await client.call_tool("run", {"argv": ["echo", "still here"]})).startswith("still here")


async def calls_run_side_by_side():
    async with server() as (client, _):
        line = "touch {0}; until [ -e {1} ]; do sleep 0.02; done"
        pairs = [(f"a{n}", f"a{(n + 1) % 8}") for n in range(8)]
        calls = [client.call_tool("run", {"command": line.format(*pair)}) for pair in pairs]
        assert [result.structured_content["exit_code"] for result in await asyncio.gather(*calls)] == [0] * 8


async def a_published_server_is_reachable():
    async with server() as (client, workspace):
        (workspace / "page").write_text("hello")
        await client.call_tool("run", {"command": "python3 -m http.server 8000 --bind 127.0.0.1 &"})
        published = await client.call_tool("publish", {"port": 8000})
        url = published.structured_content["url"] + "page"

        def page():
            return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10).read()

        for _ in range(500):
            try:
                assert await asyncio.to_thread(page) == b"hello"
                break
            except OSError:
                await asyncio.sleep(0.02)
        else:
            raise AssertionError("no answer")


async def a_client_that_leaves_leaves_nothing():
    async with server() as (client, _):
        await client.call_tool("run", {"command": "sleep 76543 &"})
        assert sleeping()
    for _ in range(500):
        if not sleeping():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it is still there")


def sleeping():
    """Whether a process `sleep 76543` is there."""
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if process.read_bytes() == b"sleep\x0076543\x00":
                return True
        except OSError:
            pass
    return False


TESTS = [
    both_lifecycles_lead_to_the_same_tools,
    every_result_matches_its_schema,
    a_shell_keeps_its_state,
    an_unknown_tool_is_an_error_of_the_protocol,
    progress_reaches_the_callback,
    a_cancelled_call_ends_its_command,
    calls_run_side_by_side,
    a_published_server_is_reachable,
    a_client_that_leaves_leaves_nothing,
]


def main():
    failed = 0
    for test in TESTS:
        name = test.__name__
        try:
            asyncio.run(asyncio.wait_for(test(), 60))
            print(f"test {name} ... ok", flush=True)
        except BaseException:
            failed += 1
            print(f"test {name} ... FAILED\n{traceback.format_exc()}", flush=True)
    print(f"{len(TESTS) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
