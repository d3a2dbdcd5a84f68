# subject: Debuggers and tracers
# tool: gdb
# version: 13.1
# job: runs a program to a breakpoint and prints a variable
# needs: gdb cc
# before:
printf 'int add(int a, int b) {\n    return a + b;\n}\nint main(void) {\n    return add(20, 22) - 42;\n}\n' > main.c
cc -g -O0 -o prog main.c
# job:
gdb -q -batch -nx -ex 'break add' -ex run -ex 'print a + b' -ex bt -ex continue prog 2>/dev/null | grep -E '^\$1|^#|exited' | sed 's/ 0x[0-9a-f]* in//; s/process [0-9]*/process N/'
