# subject: Python
# tool: pytest-xdist
# version: 3.8
# job: runs tests in two processes
# needs: pytest
# before:
for n in 1 2 3 4; do printf 'def test_it(tmp_path):\n    (tmp_path / "x").write_text("x")\n' > test_$n.py; done
# job:
pytest -q -n 2 2>&1 | grep -o '4 passed'
ls -d .pytest_cache
