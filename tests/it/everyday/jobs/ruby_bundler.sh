# subject: Other languages
# tool: ruby, bundler
# version: 3.1, 2.3
# job: builds a gem, bundles it and runs with it
# needs: ruby gem bundle
# before:
mkdir -p ../cache vendor/cache
mkdir ../gem; cd ../gem
printf 'Gem::Specification.new { |s| s.name = "demo"; s.version = "1.0"; s.summary = "x"; s.authors = ["x"]; s.files = ["lib/demo.rb"] }\n' > demo.gemspec
mkdir lib; echo 'DEMO = 42' > lib/demo.rb
gem build -q demo.gemspec >/dev/null 2>&1; cp demo-1.0.gem ../work/vendor/cache/
cd ../work
printf 'source "https://rubygems.org"\ngem "demo"\n' > Gemfile
# job:
bundle config set --local path vendor/bundle
bundle install --local --quiet
bundle exec ruby -e 'require "demo"; puts DEMO'
gem install --quiet --local --user-install vendor/cache/demo-1.0.gem 2>/dev/null | grep -c installed
