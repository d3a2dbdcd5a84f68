# subject: Files and data
# tool: zip, unzip
# version: 3.0
# job: packs and unpacks
# needs: zip unzip
# by-hand: yes
# before:
mkdir tree; echo one > tree/file
# job:
zip -qr tree.zip tree
rm -r tree
unzip -q tree.zip
cat tree/file
