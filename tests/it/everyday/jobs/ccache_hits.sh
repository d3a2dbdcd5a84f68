# subject: C, C++ and build tools
# tool: ccache
# version: 4.7
# job: finds in its cache what it compiled before
# needs: ccache cc
# before:
echo 'int main(void) { return 0; }' > main.c
# job:
ccache cc -c main.c -o one.o
ccache cc -c main.c -o two.o
ccache --print-stats | grep -E '^(direct|preprocessed)_cache_(hit|miss)' | sort
cmp one.o two.o
