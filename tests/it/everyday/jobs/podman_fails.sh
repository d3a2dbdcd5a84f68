# subject: Network, keys and rights
# tool: podman
# version: 4.3
# job: says that it cannot make its namespaces
# needs: podman
# by-hand: yes
# fails: no such file or directory
# note: it misses /sys/fs/cgroup, and could not make namespaces either
# job:
podman info
