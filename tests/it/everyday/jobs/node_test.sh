# subject: JavaScript
# tool: node
# version: 20.20
# job: runs tests with node's own runner
# needs: node
# before:
printf "const test = require('node:test'), assert = require('node:assert');\ntest('adds', () => assert.equal(1 + 1, 2));\ntest('waits', async () => new Promise((done) => setTimeout(done, 5)));\n" > a.test.js
# job:
node --test --test-reporter=tap | grep -E '^# (tests|pass|fail)'
