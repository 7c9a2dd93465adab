#!/usr/bin/env bash
# Builds the documentation site into build/docs: warnings are errors, the examples run, internal links
# and the examples in docstrings are checked. Uses the active virtual environment, or .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ -n "${VIRTUAL_ENV:-}" ]; then
    python="$VIRTUAL_ENV/bin/python"
else
    [ -x .venv/bin/pip ] || "$(command -v python3.11 || command -v python3)" -m venv .venv
    python=.venv/bin/python
fi

if [ "${1:-}" != --no-install ]; then
    echo "Installing what the documentation needs ..."
    "$python" -m pip install --quiet -c constraints.txt -e ".[docs]"
fi
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
rm -rf build/docs docs/generated
"$python" -m sphinx -q -W --keep-going -b html docs build/docs
"$python" scripts/check_site.py build/docs
"$python" -m pytest -p no:cacheprovider tests/docs/test_docstrings.py -k examples
echo "The site is in build/docs/index.html"
