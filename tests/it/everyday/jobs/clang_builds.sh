# subject: C, C++ and build tools
# tool: clang
# version: 14.0
# job: compiles and runs
# needs: clang
# by-hand: yes
# before:
printf 'int puts(const char *);\nint main(void) { return puts("built") < 0; }\n' > a.c
# job:
clang -g a.c -o a
./a
