# subject: JavaScript
# tool: yarn
# version: 1.22
# job: installs a package of a registry on this machine, and runs a script
# needs: yarn npm node curl
# flags: --allow localhost:$PORT
# server: npm_registry
# before:
mkdir -p ~/.cache/yarn
# job:
yarn add --silent --no-progress --registry http://localhost:$PORT demo-everyday
yarn --silent start
yarn list --silent | head -1
# after:
kill "$(cat ../pid)"
