# subject: JavaScript
# tool: npm
# version: 11.19
# job: installs a package of a registry on this machine, and runs a script
# needs: npm node curl
# flags: --allow localhost:$PORT
# server: npm_registry
# before:
mkdir -p ~/.npm/_cacache
# job:
npm install --silent --no-audit --no-fund --registry http://localhost:$PORT demo-everyday
npm start --silent
npm ls --silent
# after:
kill "$(cat ../pid)"
