# subject: Python
# tool: pip
# version: 23.0
# job: installs a package from an index on this machine
# needs: /usr/bin/python3
# flags: --allow localhost:$PORT
# server: python_index
# before:
/usr/bin/python3 -m venv env
# job:
env/bin/pip install -q --disable-pip-version-check --index-url http://localhost:$PORT/simple demo-everyday
env/bin/python -c 'import demo_everyday; print(demo_everyday.value)'
# after:
kill "$(cat ../pid)"
