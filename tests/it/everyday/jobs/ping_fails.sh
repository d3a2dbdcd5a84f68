# subject: Network, keys and rights
# tool: ping
# version: 20221126
# job: says that there is no network for it
# needs: ping
# flags: --explain
# fails: socket(SOCK_RAW)
# note: raw sockets need a right that no command has
# job:
ping -c 1 -W 1 192.0.2.1
