# subject: Other languages
# tool: R
# version: 4.2
# job: installs a package of the workspace
# needs: Rscript
# by-hand: yes
# before:
mkdir -p demo/R; printf 'Package: demo\nVersion: 1.0\nTitle: X\nDescription: X.\nLicense: MIT\n' > demo/DESCRIPTION
echo 'export(f)' > demo/NAMESPACE; echo 'f <- function() 42' > demo/R/f.R
# job:
mkdir lib; R CMD INSTALL -l lib demo >/dev/null 2>&1
Rscript -e 'library(demo, lib.loc = "lib"); cat(f(), "\n")'
