# subject: C, C++ and build tools
# tool: autoconf, automake
# version: 2.71, 1.16
# job: generates configure, configures, builds and makes a distribution
# needs: autoconf automake make cc
# by-hand: yes
# before:
printf 'AC_INIT([demo],[1])\nAM_INIT_AUTOMAKE([foreign])\nAC_PROG_CC\nAC_CONFIG_FILES([Makefile])\nAC_OUTPUT\n' > configure.ac
printf 'bin_PROGRAMS = demo\ndemo_SOURCES = main.c\n' > Makefile.am
echo 'int main(void) { return 0; }' > main.c
# job:
autoreconf -i 2>/dev/null
./configure --quiet
make -s
./demo
make -s dist >/dev/null
tar tf demo-1.tar.gz | grep -c main.c
