# subject: Python
# tool: mypy, black
# version: 2.4, 26.10
# job: checks types and formats
# needs: /usr/local/lib/everyday/bin/mypy
# by-hand: yes
# before:
printf 'def f(x:int)->str:\n    return x\n' > a.py
# job:
/usr/local/lib/everyday/bin/mypy a.py || true
/usr/local/lib/everyday/bin/black -q a.py
cat a.py
