# subject: Other languages
# tool: php
# version: 8.2
# job: runs with the extensions that /etc/php turns on
# needs: php
# job:
php -r 'echo mb_strtoupper("é"), " ", extension_loaded("mbstring") ? "loaded" : "missing", "\n";'
