# subject: Network, keys and rights
# tool: ssh
# version: 9.2
# job: makes a key, and an agent signs with it
# needs: ssh-keygen ssh-agent
# job:
ssh-keygen -q -t ed25519 -N '' -C job -f key
eval "$(ssh-agent)" >/dev/null
ssh-add -q key
ssh-add -l | awk '{ print $1, $3, $4 }'
echo text > text
ssh-keygen -q -Y sign -f key -n file text 2>/dev/null
ssh-keygen -q -Y check-novalidate -n file -s text.sig < text | sed 's/SHA256:.*/KEY/'
kill "$SSH_AGENT_PID"
