# subject: Other languages
# tool: lua
# version: 5.4
# job: runs
# needs: lua5.4
# by-hand: yes
# job:
lua5.4 -e 'print(6 * 7, os.tmpname() ~= nil)'
