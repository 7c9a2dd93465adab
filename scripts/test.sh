#!/usr/bin/env bash
# Lint, types, contracts between the subpackages, tests. Arguments go to pytest.
# Uses the active virtual environment, or makes .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ -n "${VIRTUAL_ENV:-}" ]; then
    python="$VIRTUAL_ENV/bin/python"
else
    [ -x .venv/bin/pip ] || "$(command -v python3.11 || command -v python3)" -m venv .venv
    python=.venv/bin/python
fi

echo "Installing sheafprop and what its tests need ..."
"$python" -m pip install --quiet -c constraints.txt -e ".[test]"
# Compiled extensions are taken as they come; building them takes longer than the tests.
if ! "$python" -m pip install --quiet --only-binary torch-scatter,torch-sparse \
    -c constraints.txt -e ".[sparse]"; then
    echo "No wheels of torch-scatter and torch-sparse for this torch: their tests are skipped."
    [ "${SHEAFPROP_REQUIRE_SPARSE:-0}" != 1 ] || exit 1
fi

"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m mypy sheafprop scripts/benchmarks
"$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')/lint-imports" --no-cache
# A process for each core, one thread each: many small tests run faster so than with many threads.
OMP_NUM_THREADS=1 "$python" -m pytest --numprocesses auto --dist worksteal "$@"
