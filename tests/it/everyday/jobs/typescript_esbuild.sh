# subject: JavaScript
# tool: tsc, esbuild
# version: 7.0, 0.28
# job: checks types and bundles
# needs: tsc esbuild node
# by-hand: yes
# before:
echo 'export const n: number = 42; console.log(n)' > a.ts
# job:
tsc --noEmit a.ts
esbuild a.ts --bundle --outfile=out.js --log-level=error
node out.js
