# subject: C, C++ and build tools
# tool: gcc
# version: 12.2
# job: compiles with the address and undefined sanitizers, and finds an overflow
# needs: gcc
# by-hand: yes
# before:
printf 'int main(int c, char **v) { int a[2] = {0}; return a[c + 1]; }\n' > a.c
# job:
gcc -g -fsanitize=address,undefined a.c -o a
./a 2>&1 | grep -o 'stack-buffer-overflow' | head -1
