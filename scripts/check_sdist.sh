#!/usr/bin/env bash
# Builds the source archive and the wheel into build/archives, checks their metadata, and runs tests of
# the unpacked source archive in a virtual environment of its own. Arguments go to pytest: without any,
# the whole suite. SHEAFPROP_SDIST_VENV names an environment that has the test extras already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ -n "${VIRTUAL_ENV:-}" ]; then
    python="$VIRTUAL_ENV/bin/python"
else
    [ -x .venv/bin/pip ] || "$(command -v python3.11 || command -v python3)" -m venv .venv
    python=.venv/bin/python
fi
"$python" -m pip install --quiet "build>=1.2" "twine>=6"
rm -rf build/archives
"$python" -m build --outdir build/archives .
"$python" -m twine check --strict build/archives/*

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
tar -xzf build/archives/sheafprop-*.tar.gz -C "$work"
cd "$work"/sheafprop-*
if [ -n "${SHEAFPROP_SDIST_VENV:-}" ]; then
    python="$SHEAFPROP_SDIST_VENV/bin/python"
    # The archive's own package, whatever that environment has installed.
    export PYTHONPATH="$PWD:$PWD/scripts"
else
    python3 -m venv "$work/venv"
    python="$work/venv/bin/python"
    "$python" -m pip install --quiet -c constraints.txt ".[test]"
fi
"$python" -m pytest -p no:cacheprovider "$@"
echo "The archives in build/archives are complete."
