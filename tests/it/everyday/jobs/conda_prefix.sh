# subject: Python
# tool: conda
# version: a prefix made by hand
# job: an activated prefix that is laid out as conda does it, under HOME
# needs: cc
# path: $HOME/miniforge3/envs/demo/bin
# before:
P=$HOME/miniforge3/envs/demo; mkdir -p $P/bin $P/lib $P/share/demo $P/conda-meta
echo 'int answer(void) { return 42; }' > a.c; cc -shared -fPIC -o $P/lib/libanswer.so a.c
printf '#include <stdio.h>\nint answer(void);\nint main(void) { printf("%%d\\n", answer()); return 0; }\n' > m.c
cc m.c -o $P/bin/answer -L$P/lib -lanswer -Wl,-rpath,'$ORIGIN/../lib'
echo data > $P/share/demo/data
# job:
answer
cat "$(dirname "$(command -v answer)")/../share/demo/data"
