#!/usr/bin/env bash
# The propagation benchmark on CUDA, and a check that CPU and CUDA give the same step.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python="${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/}python"
"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || {
    echo "No CUDA device: nothing to measure." >&2
    exit 1
}
exec "$python" scripts/bench_propagation.py --device cuda "$@"
