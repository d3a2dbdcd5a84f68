# subject: C, C++ and build tools
# tool: make
# version: 4.3
# job: builds a C library and program with make -j
# needs: make cc ar
# before:
for n in 1 2 3 4; do echo "int f$n(void) { return $n; }" > f$n.c; done
printf 'int printf(const char *, ...);\nint f1(void), f4(void);\nint main(void) { printf("%%d\\n", f1() + f4()); return 0; }\n' > main.c
printf 'prog: main.o libf.a\n\tcc -o $@ main.o -L. -lf\nlibf.a: f1.o f2.o f3.o f4.o\n\tar rcs $@ $^\n' > Makefile
# job:
make -j4 --no-print-directory | sort
./prog
make
