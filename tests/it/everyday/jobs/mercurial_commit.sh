# subject: Version control
# tool: hg
# version: 6.3
# job: commits under the name in ~/.hgrc
# needs: hg
# by-hand: yes
# flags: --ro $HOME/.hgrc
# note: its configuration is in HOME
# before:
printf '[ui]\nusername = Ada <ada@example.invalid>\n' > ~/.hgrc
# job:
hg init
echo one > file
hg add -q file
hg commit -m first
hg log -T '{author} {desc}\n'
