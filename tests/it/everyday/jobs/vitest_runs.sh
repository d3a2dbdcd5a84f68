# subject: JavaScript
# tool: vitest
# version: 4.1
# job: runs a TypeScript test
# needs: vitest
# by-hand: yes
# before:
ln -s "$(npm root -g)" node_modules
printf "import { expect, test } from 'vitest';\ntest('adds', () => { const n: number = 2; expect(1 + 1).toBe(n); });\n" > a.test.ts
echo '{"type": "module"}' > package.json
# job:
NO_COLOR=1 vitest run 2>&1 | grep -o 'Tests  1 passed'
