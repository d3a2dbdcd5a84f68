# subject: Other languages
# tool: composer
# version: 2.5
# job: installs a package of the workspace
# needs: composer php
# before:
mkdir -p lib ~/.cache/composer
echo '{"name": "x/lib", "version": "1.0.0", "autoload": {"files": ["lib.php"]}}' > lib/composer.json
echo '<?php const VALUE = 42;' > lib/lib.php
echo '{"name": "x/app", "repositories": [{"type": "path", "url": "lib"}, {"packagist.org": false}], "require": {"x/lib": "*"}}' > composer.json
# job:
COMPOSER_ALLOW_SUPERUSER=1 composer install --quiet --no-interaction
php -r 'require "vendor/autoload.php"; echo VALUE, "\n";'
