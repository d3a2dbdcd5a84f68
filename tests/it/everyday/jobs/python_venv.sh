# subject: Python
# tool: python
# version: 3.11
# job: makes a virtual environment and runs in it
# needs: /usr/bin/python3
# job:
/usr/bin/python3 -m venv --without-pip env
. env/bin/activate
python -c 'import sys; print(sys.prefix != sys.base_prefix)'
