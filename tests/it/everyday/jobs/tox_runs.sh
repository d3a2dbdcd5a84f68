# subject: Python
# tool: tox
# version: 4.67
# job: makes an environment and runs a command in it
# needs: /usr/local/lib/everyday/bin/tox
# by-hand: yes
# before:
printf '[tox]\nskipsdist = true\nenvlist = py\n[testenv]\ncommands = python -c "print(6*7)"\n' > tox.ini
# job:
/usr/local/lib/everyday/bin/tox -q 2>/dev/null | grep 42
