# subject: JavaScript
# tool: deno
# version: 2.9
# job: runs TypeScript and its tests
# needs: deno
# by-hand: yes
# before:
echo 'const n: number = 42; console.log(n)' > a.ts
echo 'Deno.test("adds", () => { if (1 + 1 !== 2) throw 1 })' > a_test.ts
# job:
deno run --no-check a.ts
NO_COLOR=1 deno test --no-check 2>&1 | grep -o '1 passed'
