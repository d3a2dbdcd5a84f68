# subject: Other languages
# tool: elixir, mix
# version: 1.14
# job: makes a project and tests it
# needs: elixir mix
# by-hand: yes
# job:
export LC_ALL=C.UTF-8
mix new demo >/dev/null
cd demo
mix test 2>/dev/null | grep -o '0 failures'
