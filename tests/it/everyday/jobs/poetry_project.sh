# subject: Python
# tool: poetry
# version: 2.5
# job: checks a project, with the configuration in HOME
# needs: poetry
# flags: --ro $HOME/.config/pypoetry
# note: its configuration is in HOME
# before:
mkdir -p ~/.config/pypoetry
printf '[virtualenvs]\nin-project = true\n' > ~/.config/pypoetry/config.toml
touch README.md
printf '[project]\nname = "demo"\nversion = "1.0"\ndescription = "x"\nreadme = "README.md"\nauthors = [{name = "Ada"}]\nrequires-python = ">=3.9"\n' > pyproject.toml
# job:
poetry check
poetry config virtualenvs.in-project
