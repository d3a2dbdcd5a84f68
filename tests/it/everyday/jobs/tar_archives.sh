# subject: Files and data
# tool: tar
# version: 1.34
# job: packs and unpacks with permissions, links, sparse files and times
# needs: tar xz
# before:
mkdir tree; echo one > tree/file; ln -s file tree/link; ln tree/file tree/hard; chmod 640 tree/file; truncate -s 1M tree/sparse; mkdir tree/empty
touch -d '2001-02-03 04:05:06' tree/file
# job:
tar cJSf tree.tar.xz tree
mkdir out
tar xJSpf tree.tar.xz -C out
find out -type f -name file -printf '%m %TY-%Tm %n %s %f\n'
readlink out/tree/link
tar czf tree.tgz --owner=0 --group=0 tree
tar tvzf tree.tgz | awk '{ print $1, $2, $6 }' | sort
