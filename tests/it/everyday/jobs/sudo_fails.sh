# subject: Network, keys and rights
# tool: sudo
# version: 1.9
# job: says that it cannot be root
# needs: sudo
# user: yes
# fails: no new privileges
# note: a sandbox cannot gain rights; sudo says so
# job:
sudo -n id
