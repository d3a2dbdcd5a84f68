# subject: Network, keys and rights
# tool: gpg
# version: 2.2
# job: makes a key, signs, encrypts and decrypts
# needs: gpg gpg-agent gpgconf
# job:
export GNUPGHOME=$HOME/.gnupg
mkdir -m 700 -p "$GNUPGHOME"
gpg --batch --quiet --passphrase '' --quick-generate-key ada@example.invalid future-default default never 2>/dev/null
echo text > text
gpg --batch --quiet --sign --encrypt -r ada@example.invalid text 2>/dev/null
gpg --batch --quiet --decrypt text.gpg 2>/dev/null
gpgconf --kill gpg-agent
