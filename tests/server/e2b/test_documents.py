"""The example of docs/server.md runs as it stands."""

import pathlib
import subprocess
import sys


def test_the_lines_of_the_page_run(server):
    page = pathlib.Path(__file__).parents[3] / "docs" / "server.md"
    code = page.read_text().split("```python\n")[1].split("```")[0]
    assert "from e2b import Sandbox" in code
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("Hello from E2B Sandbox!", 0), done.stderr
