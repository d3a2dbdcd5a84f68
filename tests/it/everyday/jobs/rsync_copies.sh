# subject: Files and data
# tool: rsync
# version: 3.5
# job: copies a tree, updates it and deletes
# needs: rsync
# before:
mkdir -p from/a; echo one > from/a/one; echo two > from/two; ln -s two from/link
# job:
rsync -a from/ to/
rm from/two; echo three > from/three
rsync -a --delete --itemize-changes from/ to/ | grep -v "^.d"
find to | sort
