#!/usr/bin/env bash
# From nothing to a report: installs into .venv, trains RotatE and TransE on UMLS, gives vectors to
# the entities that training has not seen, and ranks their missing triples.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ -x .venv/bin/pip ] || "$(command -v python3.11 || command -v python3)" -m venv .venv
echo "Installing sheafprop into .venv (some minutes the first time) ..."
.venv/bin/python -m pip install --quiet -c constraints.txt -e ".[pykeen]"

# The graph is so small that a second thread would mostly wait.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
group=runs/quickstart
for ((number = 2; ; number++)); do
    [ -e "$group" ] || break
    group="runs/quickstart-$number"
done
for name in rotate transe; do
    .venv/bin/sheafprop fit --config "configs/experiment/umls_$name.yaml" --run.group "$group"
    .venv/bin/sheafprop test --run "$group/$name"
done
echo "The report is in $group/report.md"
