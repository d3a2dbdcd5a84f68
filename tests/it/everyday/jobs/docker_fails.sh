# subject: Network, keys and rights
# tool: docker
# version: 28.2
# job: says that it does not reach its daemon
# needs: docker
# by-hand: yes
# fails: Cannot connect to the Docker daemon
# job:
docker ps
