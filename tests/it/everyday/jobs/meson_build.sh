# subject: C, C++ and build tools
# tool: meson
# version: 1.0
# job: sets up, builds and tests a C project
# needs: meson ninja cc
# before:
printf "project('demo', 'c')\nexe = executable('demo', 'main.c')\ntest('runs', exe)\n" > meson.build
printf 'int main(void) { return 0; }\n' > main.c
# job:
meson setup build >/dev/null
meson compile -C build >/dev/null
meson test -C build | grep '^Ok:'
