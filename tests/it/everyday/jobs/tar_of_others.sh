# subject: Files and data
# tool: tar
# version: 1.34
# job: unpacks an archive whose files belong to others
# needs: tar
# before:
mkdir tree; echo one > tree/file; chmod 2775 tree
tar --owner=12345 --group=12345 -cf archive.tar tree
rm -r tree
# job:
tar xf archive.tar
cat tree/file
cp -a tree copy
stat -c %A copy copy/file
