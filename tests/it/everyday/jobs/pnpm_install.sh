# subject: JavaScript
# tool: pnpm
# version: 9.15
# job: installs a package of a registry on this machine, and runs a script
# needs: pnpm npm node curl
# flags: --allow localhost:$PORT
# server: npm_registry
# before:
mkdir -p ~/.npm/../.local/share/pnpm
# job:
pnpm install --silent --registry http://localhost:$PORT demo-everyday
pnpm --silent start
pnpm ls --parseable | wc -l
# after:
kill "$(cat ../pid)"
