# subject: C, C++ and build tools
# tool: gfortran
# version: 12.2
# job: compiles and runs
# needs: gfortran
# by-hand: yes
# before:
printf 'program a\nprint "(i0)", 6 * 7\nend program\n' > a.f90
# job:
gfortran a.f90 -o a
./a
