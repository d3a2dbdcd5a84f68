# subject: Other languages
# tool: perl
# version: 5.36
# job: runs, and builds a module with MakeMaker
# needs: perl make
# before:
mkdir -p lib/Demo t
printf 'package Demo::It; our $VERSION = "1.0"; sub value { 42 } 1;\n' > lib/Demo/It.pm
printf 'use ExtUtils::MakeMaker; WriteMakefile(NAME => "Demo::It", VERSION_FROM => "lib/Demo/It.pm");\n' > Makefile.PL
printf 'use Test::More tests => 1; use Demo::It; is(Demo::It::value(), 42);\n' > t/a.t
# job:
perl -MPOSIX -e 'print POSIX::floor(4.9), " ", join(",", map { $_ ** 2 } 1 .. 3), "\n"'
perl Makefile.PL >/dev/null
make -s test 2>&1 | grep -o 'Result: PASS'
