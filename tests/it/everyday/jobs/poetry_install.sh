# subject: Python
# tool: poetry
# version: 2.5
# job: makes the environment of a project and runs in it
# needs: poetry
# by-hand: yes
# before:
mkdir demo; touch demo/__init__.py README.md
printf '[project]\nname = "demo"\nversion = "1.0"\ndescription = "x"\nreadme = "README.md"\nauthors = [{name = "Ada"}]\nrequires-python = ">=3.9"\n[build-system]\nrequires = ["poetry-core"]\nbuild-backend = "poetry.core.masonry.api"\n' > pyproject.toml
# job:
export POETRY_VIRTUALENVS_IN_PROJECT=true
poetry install --no-interaction --no-ansi >log 2>&1
grep -o 'Installing the current project.*' log
poetry run python -c 'import demo; print("imported")'
