# subject: Python
# tool: uv
# version: 0.13
# job: makes an environment and installs a package from an index on this machine
# needs: uv /usr/bin/python3
# flags: --allow localhost:$PORT
# server: python_index
# before:
mkdir -p ~/.cache/uv
# job:
uv venv -q --python /usr/bin/python3 env
VIRTUAL_ENV=$PWD/env uv pip install -q --index-url http://localhost:$PORT/simple demo-everyday
env/bin/python -c 'import demo_everyday; print(demo_everyday.value)'
# after:
kill "$(cat ../pid)"
