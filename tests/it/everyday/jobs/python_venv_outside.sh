# subject: Python
# tool: python
# version: 3.11
# job: uses an activated environment that is not in the workspace
# needs: /usr/bin/python3
# path: $HOME/env/bin
# before:
/usr/bin/python3 -m venv --without-pip ~/env
echo 'value = 42' > "$(echo ~/env/lib/python3*/site-packages)/mine.py"
# job:
python -c 'import mine, sys; print(mine.value, sys.prefix != sys.base_prefix)'
