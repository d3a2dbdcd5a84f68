# subject: Other languages
# tool: ocaml
# version: 4.13
# job: compiles and runs
# needs: ocamlopt
# by-hand: yes
# before:
echo 'let () = print_int (6 * 7); print_newline ()' > a.ml
# job:
ocamlopt -o a a.ml
./a
