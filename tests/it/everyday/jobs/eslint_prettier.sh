# subject: JavaScript
# tool: eslint, prettier
# version: 10.15, 3.10
# job: lint and format
# needs: eslint prettier
# by-hand: yes
# before:
echo 'const a  = 1' > a.js
echo 'export default [{ rules: { "no-unused-vars": "error" } }]' > eslint.config.mjs
# job:
eslint a.js | grep -o no-unused-vars
prettier a.js
