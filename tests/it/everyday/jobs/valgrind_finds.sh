# subject: Debuggers and tracers
# tool: valgrind
# version: 3.19
# job: finds a leak
# needs: valgrind cc
# by-hand: yes
# before:
printf '#include <stdlib.h>\nint main(void) { malloc(7); return 0; }\n' > main.c; cc -g -o prog main.c
# job:
valgrind --leak-check=full ./prog 2>&1 | grep -o 'definitely lost: 7 bytes'
