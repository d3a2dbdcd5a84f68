# subject: Files and data
# tool: bsdtar
# version: 3.6
# job: packs and unpacks
# needs: bsdtar
# by-hand: yes
# before:
mkdir tree; echo one > tree/file; ln -s file tree/link
# job:
bsdtar cf tree.tar tree
mkdir out
bsdtar xf tree.tar -C out
cat out/tree/link
