# subject: Terminals and editors
# tool: expect
# version: 5.45
# job: answers a question on a terminal
# needs: expect
# before:
cat > dialogue <<'END'
log_user 0
spawn sh -c {printf "name? "; read name; echo "hello $name"}
expect "name? "
send "Ada\r"
expect -re {hello (\w+)}
puts $expect_out(1,string)
END
# job:
expect dialogue
