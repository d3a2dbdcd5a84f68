# subject: Network, keys and rights
# tool: ssh
# version: 9.2
# job: logs in to a server of this machine
# needs: ssh ssh-keygen /usr/sbin/sshd
# by-hand: yes
# flags: --allow localhost:$PORT --rw $HOME/.ssh
# before:
mkdir -m 700 ~/.ssh
ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519
ssh-keygen -q -t ed25519 -N '' -f ../host
cp ~/.ssh/id_ed25519.pub ../allowed
printf 'Host here\n HostName localhost\n Port %s\n StrictHostKeyChecking accept-new\n IdentityFile %s/.ssh/id_ed25519\n UserKnownHostsFile %s/.ssh/known_hosts\n' $PORT $HOME $HOME > ~/.ssh/config
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
/usr/sbin/sshd -f /dev/null -p $PORT -o ListenAddress=127.0.0.1 -h "$PWD/../host" -o AuthorizedKeysFile="$PWD/../allowed" -o StrictModes=no -o PidFile="$PWD/../pid"
# job:
ssh -F ~/.ssh/config here 'echo logged in' 2>/dev/null
# after:
kill "$(cat ../pid)"
