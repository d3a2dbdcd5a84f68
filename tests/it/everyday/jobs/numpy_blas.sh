# subject: Python
# tool: numpy
# version: 2.4
# job: multiplies matrices on all processors
# needs: /usr/local/lib/everyday/bin/python
# by-hand: yes
# job:
/usr/local/lib/everyday/bin/python -c 'import numpy as n; a = n.ones((300, 300)); print((a @ a).sum())'
